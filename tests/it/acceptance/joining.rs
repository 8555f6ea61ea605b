//! Many callers of one key at the same time, on one gateway and over several: one call is made.

use std::thread;
use std::time::Duration;

use crate::support::client::{Answer, Call, Connection};
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [memory file redis]
    c02_fifty_at_once_make_one_call
    s04_a_repeat_in_flight_is_rejected_where_the_route_says_so
    a_thousand_on_64_connections_make_one_call
}

on! { [memory]
    c05_another_payload_in_flight_is_told_so
    who_joined_a_lost_call_is_told_the_same
    who_joined_a_failed_call_gets_its_last_answer
    who_waited_long_enough_is_told_to_come_back
}

on! { [redis]
    c03_two_gateways_make_one_call
    a_thousand_over_three_gateways_make_one_call
    another_gateway_rejects_and_tells_payloads_apart
}

const WORK: Duration = Duration::from_millis(300);

fn c02_fifty_at_once_make_one_call(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::After(WORK, Reply::charge(1)));
    let gateway = Settings::of(&upstream).start(&ground);

    let calls: Vec<_> = (0..50).map(|_| gateway.charge("k-1").begin()).collect();
    let answers: Vec<_> = calls.into_iter().map(|call| call.answer().expect(201)).collect();

    assert_eq!(upstream.only().key(), Some("k-1"));
    assert!(answers.iter().all(|answer| answer.body == br#"{"id": "ch_1"}"#));
    assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1, "one of them made the call");
    let operation = gateway.operation(answers[0].operation());
    assert_eq!((operation.state(), operation.attempts()), ("succeeded", 1));
}

fn c03_two_gateways_make_one_call(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::After(WORK, Reply::charge(1)));
    let gateways = [(); 2].map(|()| Settings::of(&upstream).start(&ground));

    let calls: Vec<_> = (0..50).map(|number| gateways[number % 2].charge("k-1").begin()).collect();
    let answers: Vec<_> = calls.into_iter().map(|call| call.answer().expect(201)).collect();

    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1);
    let [one, other] = gateways.each_ref().map(|gateway| gateway.operation(answers[0].operation()).0);
    assert_eq!(one, other);
}

fn c05_another_payload_in_flight_is_told_so(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let gateway = Settings::of(&upstream).start(&ground);

    let first = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    gateway.post("/charges").key("k-1").json("{}").send().expect_problem(422, "key-reused");
    upstream.release();

    first.answer().expect(201);
    assert_eq!(upstream.seen().len(), 1);
}

fn s04_a_repeat_in_flight_is_rejected_where_the_route_says_so(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let gateway = Settings::of(&upstream).route("in_flight = 'reject'").start(&ground);

    let first = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    let second = expect_in_progress(gateway.charge("k-1").send());
    assert_eq!(gateway.operation(second.operation()).state(), "sent");
    upstream.release();

    first.answer().expect(201);
    assert!(gateway.charge("k-1").send().expect(201).is_replay());
    assert_eq!(upstream.seen().len(), 1);
}

fn another_gateway_rejects_and_tells_payloads_apart(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let settings = Settings::of(&upstream).route("in_flight = 'reject'");
    let (owner, other) = (settings.start(&ground), settings.start(&ground));

    let first = owner.charge("k-1").begin();
    upstream.wait_for(1);
    expect_in_progress(other.charge("k-1").send());
    other.post("/charges").key("k-1").json("{}").send().expect_problem(422, "key-reused");
    upstream.release();

    first.answer().expect(201);
    assert!(other.charge("k-1").send().expect(201).is_replay());
}

fn who_joined_a_lost_call_is_told_the_same(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::HeldClose);
    let gateway = Settings::of(&upstream).start(&ground);

    let answers = join_and_release(&gateway, &upstream);

    for answer in answers {
        let answer = answer.expect_problem(502, "outcome-unknown");
        assert_eq!((answer.execution(), answer.header("Oncegate-Stop")), (Some("unknown"), Some("unsafe")));
    }
    assert_eq!(upstream.seen().len(), 1, "a joiner never claims");
    gateway.charge("k-1").send().expect_problem(409, "outcome-unknown");
}

fn who_joined_a_failed_call_gets_its_last_answer(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::new(500).body("out of ink")));
    let gateway = Settings::of(&upstream).start(&ground);

    for answer in join_and_release(&gateway, &upstream) {
        let answer = answer.expect(500);
        assert_eq!((answer.body.as_slice(), answer.execution()), (b"out of ink".as_slice(), Some("unknown")));
        assert!(!answer.is_replay(), "it is no receipt");
    }
    assert_eq!(upstream.seen().len(), 1);
}

fn who_waited_long_enough_is_told_to_come_back(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let gateway = Settings::of(&upstream).route("in_flight_wait = '100ms'").start(&ground);

    let first = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    expect_in_progress(gateway.charge("k-1").send());
    upstream.release();

    first.answer().expect(201);
}

fn a_thousand_on_64_connections_make_one_call(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::After(WORK, Reply::charge(1)));
    let gateway = Settings::of(&upstream).start(&ground);

    let answers = a_thousand(&[&gateway]);

    expect_one_charge(&upstream, &answers);
}

fn a_thousand_over_three_gateways_make_one_call(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::After(WORK, Reply::charge(1)));
    let gateways = [(); 3].map(|()| Settings::of(&upstream).route("in_flight_wait = '100ms'").start(&ground));

    let answers = a_thousand(&gateways.each_ref());

    expect_one_charge(&upstream, &answers);
}

/// The same call a thousand times, on 64 connections that are spread over the gateways.
fn a_thousand(gateways: &[&Gateway]) -> Vec<Answer> {
    const CONNECTIONS: usize = 64;
    let clients = (0..CONNECTIONS).map(|number| {
        let call = gateways[number % gateways.len()].charge("k-1");
        let address = gateways[number % gateways.len()].address();
        let share = 1000 / CONNECTIONS + usize::from(number < 1000 % CONNECTIONS);
        thread::spawn(move || repeat(&call, Connection::open(address), share))
    });
    let clients: Vec<_> = clients.collect();
    clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
}

fn repeat(call: &Call, mut connection: Connection, times: usize) -> Vec<Answer> {
    (0..times).map(|_| connection.send(call)).collect()
}

fn expect_one_charge(upstream: &ScriptedUpstream, answers: &[Answer]) {
    assert_eq!((answers.len(), upstream.seen().len(), upstream.effects()), (1000, 1, 1));
    let (done, waiting): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 201);
    assert!(done.iter().all(|answer| answer.body == br#"{"id": "ch_1"}"# && answer.is_whole));
    assert_eq!(done.iter().filter(|answer| !answer.is_replay()).count(), 1);
    for answer in waiting {
        assert_eq!((answer.status, &answer.json()["code"]), (409, &"in-progress".into()), "{answer:?}");
        assert!(answer.retry_after() >= Some(1), "{answer:?}");
    }
}

/// A first call and three that join it, let go together. The joiners are there when their gateway says that it serves
/// four.
fn join_and_release(gateway: &Gateway, upstream: &ScriptedUpstream) -> Vec<Answer> {
    let mut calls = vec![gateway.charge("k-1").begin()];
    upstream.wait_for(1);
    calls.extend((0..3).map(|_| gateway.charge("k-1").begin()));
    crate::support::eventually("three joiners", || (gateway.counts()["calls"] == 4).then_some(()));
    upstream.release();
    calls.into_iter().map(|call| call.answer()).collect()
}

#[track_caller]
fn expect_in_progress(answer: Answer) -> Answer {
    let answer = answer.expect_problem(409, "in-progress");
    assert!(answer.retry_after() >= Some(1), "{answer:?}");
    assert_eq!((answer.execution(), answer.header("x-should-retry")), (Some("in-progress"), None));
    assert_eq!(answer.json()["retryable"], true);
    answer
}
