//! Operations that need a person: listed while they do, and made again on a person's word.

use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [memory file redis]
    a_call_that_did_not_run_is_redriven_once
}

on! { [file redis]
    a_letter_outlives_the_gateway
}

on! { [memory]
    who_was_told_to_come_back_needs_nobody
    a_redrive_is_an_operators_word
}

fn settings(upstream: &ScriptedUpstream) -> Settings {
    Settings::of(upstream).with_key().quick().route("retry.max_attempts = 2")
}

fn letters(gateway: &Gateway) -> Vec<String> {
    let operations = gateway.operations("?dead=true");
    operations.iter().map(|operation| operation.0["id"].as_str().unwrap().to_owned()).collect()
}

fn a_call_that_did_not_run_is_redriven_once(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    (0..2).for_each(|_| upstream.then(Step::Reply(Reply::new(429))));
    upstream.then(Step::Held(Reply::charge(1)));
    let gateway = settings(&upstream).start(&ground);

    let first = gateway.charge("k-1").send().expect(429);
    let operation = first.operation().to_owned();
    assert_eq!(letters(&gateway), [operation.as_str()]);
    let letter = &gateway.operations("?dead=true")[0].0["dead_letter"];
    assert_eq!((letter["reason"].as_str(), &letter["alerted_at"]), (Some("status_429"), &serde_json::Value::Null));

    let redrive = gateway.admin_call("POST", &format!("/v1/operations/{operation}/redrive"));
    let (one, other) = (redrive.begin(), redrive.begin());
    let mut answers = [one.answer(), other.answer()];
    answers.sort_by_key(|answer| answer.status);
    assert_eq!([answers[0].status, answers[1].status], [202, 409]);
    assert_eq!(answers[1].json()["code"], "conflict");
    upstream.wait_for(3);
    assert_eq!(letters(&gateway), [""; 0]);
    upstream.release();
    gateway.wait_for("succeeded");
    redrive.send().expect_problem(409, "conflict");

    let seen = upstream.seen();
    assert_eq!((seen.len(), seen[0].key(), &seen[0].body), (3, seen[2].key(), &seen[2].body));
    assert!(gateway.charge("k-1").send().expect(201).is_replay());
    assert_eq!(gateway.counts()["dead_letters"], 1);
}

fn a_letter_outlives_the_gateway(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Close);
    let mut gateway = Settings::of(&upstream).start(&ground);
    let operation = gateway.charge("k-1").send().expect_problem(502, "outcome-unknown").operation().to_owned();
    gateway.kill();
    gateway.restart();
    assert_eq!(letters(&gateway), [operation.as_str()]);
    let problem = gateway.admin_call("POST", &format!("/v1/operations/{operation}/redrive")).send();
    assert!(problem.expect_problem(409, "conflict").json()["detail"].as_str().unwrap().contains("Nobody knows"));
    assert_eq!(gateway.admin_call("POST", &format!("/v1/operations/{operation}/abandon")).send().status, 200);
    assert_eq!((letters(&gateway), gateway.state().as_deref()), (vec![], Some("abandoned")));
    gateway.charge("k-1").send().expect_problem(409, "abandoned");
    assert_eq!(upstream.seen().len(), 1);
}

fn who_was_told_to_come_back_needs_nobody(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(429).line("Retry-After: 100")));
    let gateway = settings(&upstream).start(&ground);
    gateway.charge("k-1").send().expect(429);
    assert_eq!(gateway.state().as_deref(), Some("not_executed"));
    assert_eq!(letters(&gateway), [""; 0]);
    assert_eq!(gateway.operations("?dead=false").len(), 1);
}

fn a_redrive_is_an_operators_word(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(401)));
    let gateway = settings(&upstream).start(&ground);
    let operation = gateway.charge("k-1").send().expect(401).operation().to_owned();
    let target = format!("/v1/operations/{operation}/redrive");
    gateway
        .admin_call("POST", &target)
        .header("Origin", "http://localhost")
        .send()
        .expect_problem(400, "invalid-request");
    assert_eq!(gateway.admin_call("GET", &target).send().status, 405);
    gateway.admin_call("POST", "/v1/operations/op_1/redrive").send().expect_problem(404, "not-found");
    assert_eq!(upstream.seen().len(), 1);
}
