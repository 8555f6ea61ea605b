//! What a service does instead of answering, and what becomes of the call.

use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::raw::Raw;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [memory file redis]
    c11_a_service_that_is_down_for_a_while_is_called_once
    c13_a_lost_answer_of_an_unsafe_call_stays_unknown
    c14_a_lost_answer_is_fetched_with_the_same_key
    a_cut_answer_of_an_unsafe_call_is_unavailable
}

on! { [memory]
    c20_a_server_error_of_an_unsafe_call_stays_unknown
    c20_a_throttle_is_waited_for
    c20_a_denied_call_runs_again
    a_service_that_stays_down_has_not_run_the_call
    a_connection_closed_before_it_was_read_may_have_run
    a_switch_to_a_protocol_nobody_asked_for_is_no_answer
    a_read_that_may_have_arrived_is_not_said_to_have_done_nothing
    a_delete_that_finds_nothing_after_a_doubt_says_so
    a_veto_ends_the_retries_with_the_last_answer
    a_method_that_nobody_knows_is_not_sent_again
    a_body_in_chunks_is_whole_on_the_second_try
    an_upload_is_whole_when_its_service_was_down_at_first
    a_retry_goes_to_the_service_of_its_own_call
    layers_that_retry_do_not_multiply
}

fn c11_a_service_that_is_down_for_a_while_is_called_once(ground: Ground) {
    const OUTAGE: Duration = Duration::from_millis(300);
    let upstream = ScriptedUpstream::refusing();
    let gateway = Settings::of(&upstream).quick().route("retry.max_attempts = 1000").start(&ground);

    let call = gateway.charge("k-1").begin();
    gateway.wait_for("claimed");
    upstream.open_after(OUTAGE);
    let answer = call.answer().expect(201);

    let seen = upstream.only();
    assert_eq!((seen.key(), seen.header("Oncegate-Attempt")), (Some("k-1"), Some("1")), "a refusal is no send");
    let operation = gateway.operation(answer.operation());
    assert_eq!((operation.attempts(), operation.events()), (1, vec!["claimed", "sent", "settled"]));
    assert!(gateway.charge("k-1").send().expect(201).is_replay());
}

fn a_switch_to_a_protocol_nobody_asked_for_is_no_answer(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).quick().start(&ground);
    let switch =
        || Step::Raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".to_vec());

    upstream.then(switch());
    gateway.charge("k-1").send().expect_problem(502, "outcome-unknown");
    upstream.then(switch());
    gateway.call("GET", "/charges/1").send().expect(201);

    assert_eq!(upstream.seen().len(), 3, "a read may be asked again");
}

fn a_read_that_may_have_arrived_is_not_said_to_have_done_nothing(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let search = "[[routes]]\nname = 'search'\nmatch.path = '/search'\nupstream = 'payments'\neffect = 'read'";
    let gateway = Settings::of(&upstream).route("retry.max_attempts = 1").and(search).start(&ground);

    for call in [gateway.call("GET", "/charges"), gateway.post("/search").json("{}")] {
        upstream.then(Step::Close);
        let problem = call.send().expect_problem(502, "upstream-failed").json();
        let advice = problem["advice"].as_str().unwrap();
        assert!(advice.contains("Send the same call again") && !advice.contains("did not run"), "{problem}");
    }
}

fn a_service_that_stays_down_has_not_run_the_call(ground: Ground) {
    let upstream = ScriptedUpstream::refusing();
    let gateway = Settings::of(&upstream).quick().route("retry.max_attempts = 3").start(&ground);

    let refused = gateway.charge("k-1").send().expect_problem(502, "upstream-failed");
    assert_eq!((refused.execution(), refused.header("Oncegate-Stop")), (Some("not-executed"), Some("exhausted")));
    assert_eq!((refused.header("Oncegate-Attempts"), &gateway.counts()["attempts"]), (Some("0"), &0.into()));
    assert!(refused.json()["detail"].as_str().unwrap().ends_with(" Tries without a connection: 3."), "{refused:?}");
    assert_eq!(refused.header("x-should-retry"), Some("false"), "our own retries are used up");
    assert_eq!(gateway.operation(refused.operation()).state(), "not_executed");
    let log = gateway.log();
    assert_eq!(log.matches("no connection to an upstream").count(), 1, "not for each attempt: {log}");
    let ended = log.lines().find(|line| line.contains("operation ended")).unwrap();
    assert!(ended.contains(r#""failure":""#) && ended.contains("refused the connection"), "{ended}");

    upstream.open();
    let answer = gateway.charge("k-1").send().expect(201);
    assert_eq!((answer.is_replay(), answer.operation()), (false, refused.operation()));
    assert_eq!(upstream.only().key(), Some("k-1"));
}

fn c13_a_lost_answer_of_an_unsafe_call_stays_unknown(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Close);
    let gateway = Settings::of(&upstream).quick().start(&ground);

    let first = gateway.charge("k-1").send().expect_problem(502, "outcome-unknown");
    assert_eq!((first.execution(), first.header("Oncegate-Stop")), (Some("unknown"), Some("unsafe")));
    assert!(first.json()["detail"].as_str().unwrap().contains("repeat = \"with-key\""), "it teaches: {first:?}");
    for _ in 0..2 {
        let repeat = gateway.charge("k-1").send().expect_problem(409, "outcome-unknown");
        assert_eq!((repeat.execution(), repeat.retry_after()), (Some("unknown"), None));
        assert_eq!(repeat.header("x-should-retry"), Some("false"));
        assert_eq!(repeat.operation(), first.operation());
    }

    assert_eq!(upstream.effects(), 1);
    let dead = gateway.operations("?dead=true");
    assert_eq!((dead.len(), dead[0].state(), &dead[0].0["id"]), (1, "unknown", &first.operation().into()));
    assert_eq!(gateway.operation(first.operation()).events(), ["claimed", "sent", "unknown"]);
    assert!(gateway.log().contains("nobody knows whether it ran"));
}

fn c14_a_lost_answer_is_fetched_with_the_same_key(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    upstream.then(Step::Close);
    upstream.then(Step::Close);
    let gateway = Settings::of(&upstream).with_key().quick().start(&ground);

    let answer = gateway.charge("k-1").send().expect(201);
    assert_eq!((answer.execution(), answer.header("Oncegate-Attempts")), (Some("executed"), Some("3")));

    let seen = upstream.seen();
    assert_eq!((seen.len(), upstream.effects()), (3, 1));
    for (call, attempt) in seen.iter().zip(["1", "2", "3"]) {
        assert_eq!((call.key(), call.header("Oncegate-Attempt")), (Some("k-1"), Some(attempt)));
        assert_eq!((&call.target, &call.body), (&seen[0].target, &seen[0].body));
    }
    let operation = gateway.operation(answer.operation());
    assert_eq!(operation.events(), ["claimed", "waiting", "sent", "waiting", "sent", "settled"]);
    assert!(gateway.charge("k-1").send().expect(201).is_replay());
}

fn a_connection_closed_before_it_was_read_may_have_run(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::CloseUnread);
    let gateway = Settings::of(&upstream).quick().start(&ground);

    let first = gateway.charge("k-1").send();

    // Its end may come before our first byte, and then it is another try, or after it, and then nobody knows.
    match first.status {
        201 => assert_eq!(upstream.effects(), 1),
        _ => {
            first.expect_problem(502, "outcome-unknown");
            gateway.charge("k-1").send().expect_problem(409, "outcome-unknown");
            assert_eq!(upstream.effects(), 0);
        }
    }
}

fn c20_a_server_error_of_an_unsafe_call_stays_unknown(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(500).body("oops")));
    let gateway = Settings::of(&upstream).quick().start(&ground);

    let first = gateway.charge("k-1").send().expect(500);
    assert_eq!((first.body.as_slice(), first.execution()), (b"oops".as_slice(), Some("unknown")));
    assert_eq!((first.header("Oncegate-Stop"), first.header("x-should-retry")), (Some("unsafe"), Some("false")));
    gateway.charge("k-1").send().expect_problem(409, "outcome-unknown");

    assert_eq!(upstream.seen().len(), 1);
}

fn c20_a_throttle_is_waited_for(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(429).line("Retry-After: 2")));
    let gateway = Settings::of(&upstream).start(&ground);

    let answer = gateway.charge("k-1").send().expect(201);

    let seen = upstream.seen();
    assert_eq!((seen.len(), seen[0].key(), seen[1].key()), (2, Some("k-1"), Some("k-1")));
    assert!(seen[1].at - seen[0].at >= Duration::from_secs(2), "a hint is a lower bound");
    assert_eq!(gateway.operation(answer.operation()).events(), ["claimed", "sent", "waiting", "sent", "settled"]);
    assert!(gateway.charge("k-1").send().expect(201).is_replay());
}

fn c20_a_denied_call_runs_again(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(401).body("token has expired")));
    let gateway = Settings::of(&upstream).start(&ground);

    let denied = gateway.charge("k-1").header("Authorization", "Bearer old").send().expect(401);
    assert_eq!((denied.execution(), denied.header("Oncegate-Attempts")), (Some("not-executed"), Some("1")));
    assert_eq!(gateway.operation(denied.operation()).state(), "not_executed");
    let allowed = gateway.charge("k-1").header("Authorization", "Bearer new").send().expect(201);

    assert!(!allowed.is_replay());
    let tokens: Vec<_> = upstream.seen().iter().map(|call| call.header("Authorization").unwrap().to_owned()).collect();
    assert_eq!(tokens, ["Bearer old", "Bearer new"]);
    let operation = gateway.operation(allowed.operation());
    assert_eq!(operation.events()[..4], ["claimed", "sent", "not_executed", "claimed_again"]);
    assert!(gateway.charge("k-1").send().expect(201).is_replay(), "a receipt needs no credential under this scope");
}

fn a_cut_answer_of_an_unsafe_call_is_unavailable(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Raw(b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{\"id\": ".to_vec()));
    let gateway = Settings::of(&upstream).quick().start(&ground);

    let first = gateway.charge("k-1").send().expect_problem(502, "result-unavailable");
    assert_eq!(first.execution(), Some("executed"), "the head said so");
    let repeat = gateway.charge("k-1").send().expect_problem(409, "result-unavailable");

    assert_eq!((upstream.effects(), repeat.execution()), (1, Some("executed")));
    let digest: String = Sha256::digest(b"{\"id\": ").iter().map(|byte| format!("{byte:02x}")).collect();
    let told = json!({ "status": 201, "length": 7, "digest": digest });
    assert_eq!(repeat.json()["result"], told, "as far as it came");
    let kept = json!({ "status": 201, "length": 7, "kept": "cut", "digest": digest });
    assert_eq!(gateway.operation(first.operation()).0["result"], kept, "operators see what came of it");
}

fn a_delete_that_finds_nothing_after_a_doubt_says_so(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Close);
    upstream.then(Step::Reply(Reply::new(404)));
    let gateway = Settings::of(&upstream).quick().start(&ground);

    let first = gateway.call("DELETE", "/charges/ch_1").key("k-1").send().expect(404);
    let repeat = gateway.call("DELETE", "/charges/ch_1").key("k-1").send().expect(404);

    for answer in [&first, &repeat] {
        assert_eq!(answer.header("Oncegate-Prior-Outcome"), Some("unknown"));
    }
    assert!(repeat.is_replay());
    assert_eq!(upstream.seen().len(), 2);
}

fn a_veto_ends_the_retries_with_the_last_answer(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    upstream.then(Step::Reply(Reply::new(503).line("x-should-retry: false").body("closed for today")));
    let gateway = Settings::of(&upstream).with_key().quick().start(&ground);

    let answer = gateway.charge("k-1").send().expect(503);

    assert_eq!((answer.body.as_slice(), upstream.seen().len()), (b"closed for today".as_slice(), 1));
    assert_eq!((answer.header("Oncegate-Stop"), answer.execution()), (Some("vetoed"), Some("unknown")));
}

fn a_method_that_nobody_knows_is_not_sent_again(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).quick().start(&ground);
    for (number, method) in ["FOO", "get"].into_iter().enumerate() {
        upstream.then(Step::Reply(Reply::new(503)));
        let answer = gateway.call(method, "/charges/1").send().expect(503);
        assert_eq!((answer.execution(), answer.header("Oncegate-Stop")), (Some("unknown"), Some("unsafe")), "{method}");
        assert_eq!((upstream.seen().len(), &*upstream.seen()[number].method), (number + 1, method));
    }
}

/// 40 KiB, in four chunks.
fn says_in_chunks(caller: &mut Raw, lines: &str) -> Vec<u8> {
    let piece = "0123456789abcdef".repeat(640);
    caller.says(format!("POST /charges HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n{lines}\r\n"));
    (0..4).for_each(|_| caller.says_chunk(&piece));
    caller.says("0\r\n\r\n");
    piece.repeat(4).into_bytes()
}

/// caddyserver/caddy#7546; linkerd/linkerd#599.
fn a_body_in_chunks_is_whole_on_the_second_try(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    [502, 500].into_iter().for_each(|status| upstream.then(Step::Reply(Reply::new(status))));
    let gateway = Settings::of(&upstream).with_key().quick().start(&ground);

    let mut caller = Raw::connect(gateway.address());
    let body = says_in_chunks(&mut caller, "Idempotency-Key: k-1\r\n");

    assert!(caller.until("\r\n\r\n").starts_with("HTTP/1.1 201 "));
    let seen = upstream.seen();
    assert_eq!((seen.len(), upstream.effects()), (3, 1));
    assert!(seen.iter().all(|call| call.key() == Some("k-1") && call.body == body));
}

/// traefik/traefik#1008; caddyserver/caddy#5454. Nobody keeps the body of a call that is not guarded.
fn an_upload_is_whole_when_its_service_was_down_at_first(ground: Ground) {
    let upstream = ScriptedUpstream::refusing();
    let gateway =
        Settings::of(&upstream).quick().route("key.mode = 'off'").route("retry.max_attempts = 1000").start(&ground);

    let mut caller = Raw::connect(gateway.address());
    let body = says_in_chunks(&mut caller, "");
    caller.sees_nothing();
    upstream.open();

    assert!(caller.until("\r\n\r\n").starts_with("HTTP/1.1 201 "));
    assert!(upstream.only().body == body);
}

/// haproxy/haproxy#623.
fn a_retry_goes_to_the_service_of_its_own_call(ground: Ground) {
    let services = [(), ()].map(|()| ScriptedUpstream::start());
    let [first, other] = &services;
    let elsewhere = format!(
        "[upstreams.other]\nurl = '{}'\n[[routes]]\nname = 'other'\nmatch.path = '/other'\nupstream = 'other'",
        other.url()
    );
    let gateway = Settings::of(first).quick().and(&elsewhere).start(&ground);
    for (service, target) in services.iter().zip(["/charges", "/other"]) {
        service.then(Step::Close);
        service.then(Step::Reply(Reply::new(503)));
        gateway.call("GET", target).send().expect(201);
        assert_eq!(service.seen().iter().map(|call| &*call.target).collect::<Vec<_>>(), [target; 3]);
    }
}

/// HKUDS/nanobot#2760: an application that tries four times, by an SDK that tries three times each.
fn layers_that_retry_do_not_multiply(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    (0..9).for_each(|_| upstream.then(Step::Reply(Reply::new(503))));
    let gateway = Settings::of(&upstream).with_key().quick().route("retry.max_attempts = 3").start(&ground);
    let tries = |retries: usize| gateway.charge("k-1").header("X-Stainless-Retry-Count", retries.to_string()).send();

    let obedient = (0..12).map(tries).take_while(|answer| answer.header("x-should-retry") != Some("false")).count();
    assert_eq!((obedient, upstream.seen().len()), (0, 3), "whoever heeds the line stops with the first answer");
    assert_eq!(gateway.counts()["client_retries"], 0);

    tries(1).expect(503);
    assert_eq!((&gateway.counts()["client_retries"], upstream.seen().len()), (&1.into(), 6), "another one is counted");
    assert!(gateway.log().contains("a caller tries again by itself"));
}
