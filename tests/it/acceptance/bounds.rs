//! What is too large, too fast or too late.

use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::client::Connection;
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::raw::Raw;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [memory file redis]
    c23_an_answer_beyond_the_receipt_is_passed_on_whole_and_never_made_again
    s33_unfinished_operations_are_bounded
}

on! { [redis]
    a_store_that_fills_up_is_told_in_time
}

on! { [memory]
    c24_a_long_answer_that_breaks_off_is_broken_for_its_client_and_not_made_again
    s33_one_caller_cannot_use_up_what_is_anothers
    a_large_body_is_refused
    a_large_body_may_pass_unguarded
    a_rate_refuses_new_calls_and_replays_old_ones
    a_rate_does_not_say_that_a_call_in_doubt_did_not_run
    a_guarded_call_is_not_sent_for_one_who_left_the_line
    a_guarded_call_that_came_through_the_line_is_answered_to_one_who_listens
    a_gateway_that_is_told_to_stop_finishes_its_calls
    a_call_that_outlasts_the_drain_is_left_to_its_lease
    a_gateway_that_is_told_to_stop_twice_waits_for_nothing
}

const LARGE: usize = 100_000;

fn c23_an_answer_beyond_the_receipt_is_passed_on_whole_and_never_made_again(ground: Ground) {
    let large: Vec<u8> = (0..LARGE).map(|number| (number % 251) as u8).collect();
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(201).line("X-Rows: 100").body(large.clone())));
    let gateway = Settings::of(&upstream).route("max_receipt = '1KiB'").start(&ground);

    let first = gateway.charge("k-1").send().expect(201);
    let repeat = gateway.charge("k-1").send().expect_problem(409, "result-unavailable");

    assert!(first.body == large && first.header("X-Rows") == Some("100"));
    let (told, digest) = (repeat.json()["result"].take(), hex(&large));
    assert_eq!((&told["status"], &told["length"]), (&201.into(), &LARGE.into()));
    assert_eq!((&told["digest"], repeat.execution()), (&digest.into(), Some("executed")));
    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(gateway.operation(first.operation()).0["result"]["kept"], "too_large");
}

fn c24_a_long_answer_that_breaks_off_is_broken_for_its_client_and_not_made_again(ground: Ground) {
    let part = vec![b'a'; LARGE];
    let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n", LARGE + 1).into_bytes();
    let upstream = ScriptedUpstream::honouring_keys();
    upstream.then(Step::Raw([head, part.clone()].concat()));
    let gateway = Settings::of(&upstream).with_key().route("max_receipt = '1KiB'").start(&ground);

    let first = gateway.charge("k-1").send();
    let repeat = gateway.charge("k-1").send().expect_problem(409, "result-unavailable");

    assert_eq!((first.status, first.is_whole), (201, false));
    assert_eq!(repeat.json()["result"], json!({ "status": 201, "length": LARGE, "digest": hex(&part) }));
    let kept = json!({ "status": 201, "length": LARGE, "kept": "cut", "digest": hex(&part) });
    assert_eq!(gateway.operation(first.operation()).0["result"], kept);
    assert_eq!(upstream.seen().len(), 1, "after forwarding began there is no second try");
}

fn a_large_body_is_refused(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).route("max_body = '1KiB'").start(&ground);

    let refused =
        gateway.post("/charges").key("k-1").json("x".repeat(1025)).send().expect_problem(413, "body-too-large");
    gateway.post("/charges").key("k-1").json("x".repeat(1024)).send().expect(201);

    assert_eq!((refused.execution(), refused.header("Connection")), (Some("not-executed"), Some("close")));
    assert_eq!(upstream.only().body.len(), 1024);
}

fn a_large_body_may_pass_unguarded(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let settings = Settings::of(&upstream).route("max_body = '1KiB'").route("on_large_body = 'pass-unguarded'");
    let gateway = settings.start(&ground);
    let large = vec![b'x'; LARGE];

    for _ in 0..2 {
        let passed = gateway.post("/charges").key("k-1").json(large.clone()).send().expect(201);
        assert_eq!(passed.header("Oncegate-Guarded"), Some("no; reason=body-size"));
        assert!(!passed.is_replay());
    }
    assert_eq!(gateway.charge("k-1").send().expect(201).header("Oncegate-Guarded"), None);

    let seen = upstream.seen();
    assert!(seen.len() == 3 && seen[0].body == large && seen[1].body == large);
    assert_eq!(gateway.counts()["unguarded"]["body_size"], 2);
    assert_eq!(gateway.operations("").len(), 1);
}

/// agentgateway/agentgateway#3329.
fn a_rate_refuses_new_calls_and_replays_old_ones(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).route("limit.rate = '1/m'").route("limit.burst = 2").start(&ground);

    gateway.charge("k-1").send().expect(201);
    gateway.charge("k-2").send().expect(201);
    let refused = gateway.charge("k-3").send().expect_problem(429, "rate-limited");

    assert!(refused.retry_after().is_some_and(|seconds| (1..=60).contains(&seconds)), "{refused:?}");
    assert_eq!((refused.execution(), refused.header("x-should-retry")), (Some("not-executed"), None));
    assert!(gateway.charge("k-1").send().expect(201).is_replay(), "what is known already costs nothing");
    gateway.post("/charges").key("k-1").json("{}").send().expect_problem(422, "key-reused");
    assert_eq!((upstream.effects(), gateway.operations("").len()), (2, 2));
}

fn a_rate_does_not_say_that_a_call_in_doubt_did_not_run(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    upstream.then(Step::Close);
    let settings = Settings::of(&upstream).with_key().route("retry.max_attempts = 1");
    let gateway = settings.route("limit.rate = '1/m'").start(&ground);

    let lost = gateway.charge("k-1").send().expect_problem(502, "outcome-unknown");
    let refused = gateway.charge("k-1").send().expect_problem(429, "rate-limited");

    assert_eq!((refused.operation(), refused.execution()), (lost.operation(), Some("unknown")));
    assert!(refused.json()["detail"].as_str().unwrap().contains("may have run"), "{refused:?}");
}

/// A caller of HTTP/1, byte by byte.
fn asks(gateway: &Gateway, key: &str) -> Raw {
    let mut caller = Raw::connect(gateway.address());
    let head = format!("POST /charges HTTP/1.1\r\nHost: gw\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\n\r\n");
    caller.says(head + "{}");
    caller
}

/// linkerd/linkerd2#986.
fn a_guarded_call_is_not_sent_for_one_who_left_the_line(ground: Ground) {
    for (limit, first) in [
        ("limit = { concurrency = 1, queue = 9 }", Step::Held(Reply::charge(1))),
        ("limit = { rate = '1/m', rate_queue = 9 }", Step::Held(Reply::charge(1))),
        ("", Step::Reply(Reply::new(429).line("Retry-After: 30"))),
    ] {
        let upstream = ScriptedUpstream::start();
        upstream.then(first);
        let mut gateway = Settings::of(&upstream).route("retry.max_attempts = 1").route(limit).start(&ground);
        let first = gateway.charge("first").begin();
        upstream.wait_for(1);
        if limit.is_empty() {
            eventually("a pause", || {
                let pauses = gateway.admin("/v1/pauses");
                pauses["pauses"].as_array().filter(|pauses| !pauses.is_empty()).map(|_| ())
            });
        }
        asks(&gateway, "reset").resets();
        let mut left = asks(&gateway, "left");
        left.ends();
        let (told, end) = left.rest();
        assert!(told.is_empty() && end.is_ok(), "{limit}: {end:?}");
        upstream.release();
        first.answer();
        gateway.terminate();
        gateway.exit();
        assert_eq!(upstream.seen().len(), 1, "{limit}");
    }
}

fn a_guarded_call_that_came_through_the_line_is_answered_to_one_who_listens(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    (1..=2).for_each(|number| upstream.then(Step::Held(Reply::charge(number))));
    let gateway = Settings::of(&upstream).route("limit = { concurrency = 1, queue = 9 }").start(&ground);
    let first = gateway.charge("first").begin();
    upstream.wait_for(1);
    let mut patient = asks(&gateway, "patient");
    eventually("a line", || (gateway.admin("/v1/status")["places"]["payments"]["queued"] == 1).then_some(()));
    upstream.release();
    upstream.wait_for(2);
    patient.ends();
    (0..3).for_each(|_| patient.sees_nothing());
    upstream.release();
    let head = patient.until("\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    first.answer().expect(201);
}

fn a_gateway_that_is_told_to_stop_finishes_its_calls(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let mut gateway = Settings::of(&upstream).start(&ground);

    let call = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    gateway.terminate();
    eventually("draining", || (gateway.readiness().status == 503).then_some(()));
    assert_eq!(gateway.readiness().json()["stage"], "draining");
    upstream.release();

    let answer = call.answer().expect(201);
    assert_eq!((answer.body.as_slice(), answer.execution()), (br#"{"id": "ch_1"}"#.as_slice(), Some("executed")));
    assert!(gateway.exit().success());
}

fn a_call_that_outlasts_the_drain_is_left_to_its_lease(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let mut gateway = Settings::of(&upstream).top("server.drain = '100ms'").start(&ground);

    let call = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    let idle = Connection::open(gateway.address());
    gateway.terminate();

    assert!(gateway.exit().success() && gateway.log().contains("left to their leases"));
    drop((call, idle));
    assert_eq!(upstream.seen().len(), 1);
}

fn a_gateway_that_is_told_to_stop_twice_waits_for_nothing(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let mut gateway = Settings::of(&upstream).top("server.drain = '10m'").top("server.threads = 2").start(&ground);

    let call = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    gateway.terminate();
    eventually("draining", || (gateway.readiness().status == 503).then_some(()));
    let status = eventually("the end of the gateway", || {
        gateway.terminate();
        gateway.exit_within(Duration::from_millis(100))
    });
    assert_eq!((status.code(), gateway.log().contains("told to end twice")), (Some(1), true));
    drop(call);
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn s33_unfinished_operations_are_bounded(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).top("store.max_open = 3").start(&ground);
    for key in ["u-1", "u-2"] {
        upstream.then(Step::Close);
        gateway.charge(key).send().expect_problem(502, "outcome-unknown");
    }
    upstream.then(Step::Held(Reply::charge(1)));
    let running = gateway.charge("k-1").begin();
    upstream.wait_for(3);

    let refused = gateway.charge("k-2").send().expect_problem(429, "rate-limited");
    assert!(refused.retry_after() >= Some(1) && refused.json()["detail"].as_str().unwrap().contains("store.max_open"));
    assert_eq!(refused.execution(), Some("not-executed"));
    let warnings = gateway.admin("/v1/status")["warnings"].to_string();
    assert!([&warnings, &gateway.log()].iter().all(|told| told.contains("state=unknown")), "{warnings}");
    assert!(refused.json()["detail"].as_str().unwrap().contains("state=unknown"), "{refused:?}");
    gateway.charge("u-1").send().expect_problem(409, "outcome-unknown");
    assert_eq!((gateway.operations("").len(), upstream.seen().len()), (3, 3), "nothing was written or sent");

    upstream.release();
    running.answer().expect(201);
    let taken = eventually("a free place", || Some(gateway.charge("k-2").send()).filter(|it| it.status != 429));
    taken.expect(201);
    assert!(gateway.charge("k-1").send().expect(201).is_replay());
}

fn s33_one_caller_cannot_use_up_what_is_anothers(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let settings = Settings::of(&upstream).top("store.max_open = 1").top("callers.scope = 'credential'");
    let gateway = settings.start(&ground);
    let charge = |caller: &str, key: &str| gateway.charge(key).header("Authorization", format!("Bearer {caller}"));
    upstream.then(Step::Close);
    charge("one", "k-1").send().expect_problem(502, "outcome-unknown");
    charge("one", "k-2").send().expect_problem(429, "rate-limited");
    charge("other", "k-2").send().expect(201);
}

fn a_store_that_fills_up_is_told_in_time(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    let mut server = redis::Client::open(ground.server().url()).unwrap().get_connection().unwrap();
    let memory: redis::InfoDict = redis::cmd("INFO").arg("memory").query(&mut server).unwrap();
    let limit = memory.get::<u64>("used_memory").unwrap() * 5 / 4;
    redis::cmd("CONFIG").arg(&["SET", "maxmemory"]).arg(limit).exec(&mut server).unwrap();
    let told = eventually("a warning", || {
        let status = gateway.admin("/v1/status");
        let warnings = status["warnings"].as_array().unwrap().clone();
        let told = warnings.iter().any(|warning| warning.as_str().unwrap().contains("of its space is used"));
        told.then(|| status["store"]["space"].clone())
    });
    assert_eq!(told["limit"], limit);
    assert!(told["share"].as_f64().unwrap() > 0.7, "{told}");
}
