//! The store goes away before, during and after a call: nothing is sent that could not be remembered.

use crate::support::client::Answer;
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [redis]
    c27_without_its_store_a_gateway_sends_nothing
    c27_a_frozen_store_is_an_absent_one
    c27_an_answer_that_could_not_be_kept_is_told_and_kept_later
    c27_an_answer_that_was_never_kept_stays_unknown
    a_route_may_let_calls_pass_without_a_store
    a_repeat_of_a_running_call_hears_that_it_may_have_run
}

fn c27_without_its_store_a_gateway_sends_nothing(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    gateway.charge("before").send().expect(201);

    ground.server().kill();
    expect_away(gateway.charge("k-1").send());
    expect_away(gateway.charge("before").send());
    gateway.call("GET", "/charges").send().expect(201);
    assert_eq!(upstream.effects(), 2, "the charge before, and a read");
    assert_eq!(gateway.readiness().json()["store"]["ok"], false);

    ground.server().restart();
    let back = eventually("the store", || Some(gateway.charge("k-1").send()).filter(|answer| answer.status != 503));
    assert!(!back.expect(201).is_replay());
    assert!(gateway.charge("before").send().expect(201).is_replay());
    assert_eq!(upstream.effects(), 3);
}

fn c27_a_frozen_store_is_an_absent_one(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).top("store.timeout = '200ms'").start(&ground);

    ground.server().freeze();
    expect_away(gateway.charge("k-1").send());
    ground.server().thaw();

    let back = eventually("the store", || Some(gateway.charge("k-1").send()).filter(|answer| answer.status != 503));
    back.expect(201);
    assert_eq!(upstream.seen().len(), 1, "the claim that was under way sends nothing");
}

fn c27_an_answer_that_could_not_be_kept_is_told_and_kept_later(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = short_of_time(&upstream).start(&ground);

    let first = answered_without_store(&gateway, &upstream, &mut ground);
    ground.server().restart();

    let kept = eventually("the receipt", || Some(gateway.charge("k-1").send()).filter(Answer::is_replay)).expect(201);
    assert_eq!((&kept.body, kept.operation(), upstream.effects()), (&first.body, first.operation(), 1));
}

fn c27_an_answer_that_was_never_kept_stays_unknown(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let mut gateway = short_of_time(&upstream).start(&ground);

    answered_without_store(&gateway, &upstream, &mut ground);
    gateway.kill();
    ground.server().restart();
    gateway.restart();

    let code = |answer: Answer| answer.json()["code"].as_str().map(str::to_owned);
    let told = |expected: &str| (code(gateway.charge("k-1").send()).as_deref() == Some(expected)).then_some(());
    eventually("the end of the lease", || told("outcome-unknown"));
    gateway.charge("k-1").send().expect_problem(409, "outcome-unknown");
    assert_eq!(upstream.effects(), 1);
}

fn a_route_may_let_calls_pass_without_a_store(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let route = "[[routes]]\nname = 'open'\nmatch.path = '/open'\nmatch.methods = ['PUT']\nupstream = 'payments'\n\
                 on_store_down = 'pass'";
    let gateway = Settings::of(&upstream).and(route).start(&ground);
    let put = || gateway.call("PUT", "/open").key("k-1").json(r#"{"limit": 5}"#).send().expect(201);

    assert_eq!((put().header("Oncegate-Guarded"), put().is_replay()), (None, true));
    ground.server().kill();
    let (one, two) = (put(), put());
    expect_away(gateway.charge("k-1").send());

    for answer in [one, two] {
        assert_eq!(answer.header("Oncegate-Guarded"), Some("no; reason=store"));
        assert!(!answer.is_replay() && answer.execution() == Some("executed"), "{answer:?}");
    }
    let seen = upstream.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|call| call.key() == Some("k-1") && call.body == br#"{"limit": 5}"#));
    ground.server().restart();
    let counts = eventually("the store", || gateway.readiness().json()["store"]["ok"].as_bool().filter(|ok| *ok))
        .then(|| gateway.admin("/v1/status")["routes"]["open"]["unguarded"].take());
    assert_eq!(counts.unwrap()["store"], 2);
}

/// It was sent, whatever the store can say of it.
fn a_repeat_of_a_running_call_hears_that_it_may_have_run(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = short_of_time(&upstream).start(&ground);
    let charge = || gateway.post("/charges").session("s-1", "1").json("{}");
    upstream.then(Step::Held(Reply::charge(1)));
    let running = charge().begin();
    upstream.wait_for(1);
    ground.server().kill();

    let repeat = charge().send().expect_problem(503, "store-unavailable");
    let looked_up = gateway.look_up(repeat.operation(), "").expect_problem(503, "store-unavailable");
    upstream.release();

    assert_eq!(repeat.execution(), Some("in-progress"), "{repeat:?}");
    let told = repeat.json().to_string();
    assert!(told.contains("may have run") && !told.contains("nothing was sent"), "{told}");
    let told = looked_up.json().to_string();
    assert!(told.contains("says nothing about the call") && !told.contains("not sent"), "{told}");
    running.answer().expect(201);
    assert_eq!(upstream.seen().len(), 1);
}

/// So that an owner soon gives the answer away without a receipt.
fn short_of_time(upstream: &ScriptedUpstream) -> Settings {
    let settings = Settings::of(upstream).top("store.lease = '1s'").top("store.timeout = '200ms'");
    settings.route("retry.deadline = '1s'").route("retry.attempt_timeout = '1s'").route("in_flight = 'reject'")
}

/// The store dies while the call is out; the client gets its true answer all the same.
fn answered_without_store(gateway: &Gateway, upstream: &ScriptedUpstream, ground: &mut Ground) -> Answer {
    // Its patience is short, and a busy machine may have used it up at the start.
    eventually("a store", || (gateway.store_readiness().status == 200).then_some(()));
    upstream.then(Step::Held(Reply::charge(1)));
    let call = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    ground.server().kill();
    upstream.release();
    let answer = call.answer().expect(201);
    assert_eq!(answer.header("Oncegate-Receipt"), Some("none"), "{answer:?}");
    assert_eq!((answer.body.as_slice(), answer.execution()), (br#"{"id": "ch_1"}"#.as_slice(), Some("executed")));
    answer
}

#[track_caller]
fn expect_away(answer: Answer) {
    let answer = answer.expect_problem(503, "store-unavailable");
    assert_eq!((answer.execution(), answer.header("x-should-retry")), (Some("not-executed"), None));
    assert!(answer.retry_after() >= Some(1), "{answer:?}");
}
