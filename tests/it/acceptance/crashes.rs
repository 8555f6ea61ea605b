//! Gateways that are killed, stall and come back: the call is not made twice, and nobody waits for the dead.

use std::time::{Duration, Instant};

use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [file redis]
    c16_a_call_that_was_out_when_the_gateway_died_is_not_made_again
    c17_a_call_that_was_not_out_when_the_gateway_died_is_made
    a_with_key_call_that_was_out_is_fetched_by_the_next_gateway
    a_receipt_outlives_the_gateway
}

on! { [redis]
    c18_the_answer_of_a_stalled_owner_ends_the_doubt
    c19_an_owner_that_stalled_before_its_send_does_not_send
    c19_neither_does_one_whose_send_was_counted_already
    a_waiting_call_goes_on_elsewhere_and_keeps_its_wait
}

const LEASE: Duration = Duration::from_secs(1);
/// Within which nobody waits for a dead owner any more.
const TAKEN_OVER: Duration = Duration::from_secs(3);

fn settings(upstream: &ScriptedUpstream) -> Settings {
    Settings::of(upstream).top("store.lease = '1s'").quick()
}

fn c16_a_call_that_was_out_when_the_gateway_died_is_not_made_again(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let mut gateway = settings(&upstream).start(&ground);

    let call = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    gateway.kill();
    drop(call);
    gateway.restart();

    for _ in 0..2 {
        let repeat = gateway.charge("k-1").send().expect_problem(409, "outcome-unknown");
        assert_eq!(repeat.execution(), Some("unknown"));
    }
    assert_eq!(upstream.seen().len(), 1);
    let operation = gateway.operations("?dead=true").remove(0);
    let operation = gateway.operation(operation.0["id"].as_str().unwrap());
    assert_eq!(operation.events(), ["claimed", "sent", "lease_ended"]);
}

fn c17_a_call_that_was_not_out_when_the_gateway_died_is_made(ground: Ground) {
    let upstream = ScriptedUpstream::refusing();
    let settings = settings(&upstream).route("retry.max_attempts = 1000");
    let mut gateway = settings.start(&ground);

    let call = gateway.charge("k-1").begin();
    gateway.wait_for("claimed");
    gateway.kill();
    drop(call);
    upstream.open();
    gateway.restart();

    gateway.charge("k-1").send().expect(201);
    assert_eq!(upstream.only().key(), Some("k-1"));
    assert_eq!(gateway.wait_for("succeeded").attempts(), 1);
}

fn a_with_key_call_that_was_out_is_fetched_by_the_next_gateway(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    upstream.then(Step::Held(Reply::charge(1)));
    let mut gateway = settings(&upstream).with_key().start(&ground);

    let call = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    gateway.kill();
    drop(call);
    gateway.restart();

    gateway.wait_for("succeeded");
    assert!(gateway.charge("k-1").send().expect(201).is_replay(), "nobody had to come back for it");
    let seen = upstream.seen();
    assert_eq!((seen.len(), upstream.effects()), (2, 1));
    assert_eq!(
        (seen[1].key(), &seen[1].body, seen[1].header("Oncegate-Attempt")),
        (Some("k-1"), &seen[0].body, Some("2"))
    );
}

fn a_receipt_outlives_the_gateway(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let mut gateway = settings(&upstream).start(&ground);

    let first = gateway.charge("k-1").send().expect(201);
    gateway.kill();
    gateway.restart();
    let again = gateway.charge("k-1").send().expect(201);

    assert!(again.is_replay());
    assert_eq!((&again.body, again.header("Location")), (&first.body, first.header("Location")));
    assert_eq!((again.operation(), upstream.seen().len()), (first.operation(), 1));
}

fn c18_the_answer_of_a_stalled_owner_ends_the_doubt(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let (owner, other) = (settings(&upstream).start(&ground), settings(&upstream).start(&ground));

    let call = owner.charge("k-1").begin();
    upstream.wait_for(1);
    owner.freeze();
    let doubt = other.charge("k-1").send().expect_problem(409, "outcome-unknown");
    upstream.release();
    owner.thaw();

    assert_eq!(call.answer().expect(201).body, br#"{"id": "ch_1"}"#);
    let repeat = other.charge("k-1").send().expect(201);
    assert!(repeat.is_replay());
    assert_eq!((repeat.body.as_slice(), upstream.seen().len()), (br#"{"id": "ch_1"}"#.as_slice(), 1));
    let operation = other.operation(doubt.operation());
    assert_eq!((operation.state(), operation.events().last()), ("succeeded", Some(&"late_answer")));
}

fn c19_an_owner_that_stalled_before_its_send_does_not_send(ground: Ground) {
    let upstream = ScriptedUpstream::stalling();
    stalled_before_its_send(&upstream, &settings(&upstream), "claimed", &ground);
}

fn c19_neither_does_one_whose_send_was_counted_already(ground: Ground) {
    let upstream = ScriptedUpstream::stalling();
    stalled_before_its_send(&upstream, &settings(&upstream).with_key(), "sent", &ground);
}

/// The owner waits for a connection when it is stopped, and a second gateway makes the call; it wakes up with the
/// connection at hand.
fn stalled_before_its_send(upstream: &ScriptedUpstream, settings: &Settings, state: &str, ground: &Ground) {
    let settings = settings.clone().top("upstreams.payments.connect_timeout = '30s'");
    let (owner, other) = (settings.start(ground), settings.start(ground));

    let call = owner.charge("k-1").begin();
    other.wait_for(state);
    owner.freeze();
    upstream.open();
    other.charge("k-1").send().expect(201);
    assert_eq!(upstream.seen().len(), 1);
    owner.thaw();

    let answer = call.answer().expect(201);
    assert!(answer.is_replay(), "it is the other one's");
    assert_eq!((upstream.only().key(), upstream.effects()), (Some("k-1"), 1));
    assert!(other.operation(answer.operation()).events().contains(&"taken_over"));
}

fn a_waiting_call_goes_on_elsewhere_and_keeps_its_wait(ground: Ground) {
    const ASKED: Duration = Duration::from_secs(5);
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(429).line("Retry-After: 5")));
    let (mut owner, other) = (settings(&upstream).start(&ground), settings(&upstream).start(&ground));

    let call = owner.charge("k-1").begin();
    let waiting = other.wait_for("waiting");
    owner.kill();
    let killed = Instant::now();
    drop(call);
    let taken = eventually("a take-over", || taken_over(&other));
    assert!(killed.elapsed() <= TAKEN_OVER, "after {:?} with a lease of {LEASE:?}", killed.elapsed());
    assert_eq!((taken.state(), taken.attempts()), ("waiting", 1), "it keeps its count");
    assert_eq!(taken.0["not_before"], waiting.0["not_before"], "and its wait");

    other.wait_for("succeeded");
    let seen = upstream.seen();
    assert_eq!((seen.len(), seen[1].header("Oncegate-Attempt"), seen[1].key()), (2, Some("2"), Some("k-1")));
    assert!(seen[1].at - seen[0].at >= ASKED);
    assert!(other.charge("k-1").send().expect(201).is_replay());
}

fn taken_over(gateway: &Gateway) -> Option<crate::support::gateway::Operation> {
    let id = gateway.operations("").remove(0).0["id"].as_str()?.to_owned();
    Some(gateway.operation(&id)).filter(|operation| operation.events().contains(&"taken_over"))
}
