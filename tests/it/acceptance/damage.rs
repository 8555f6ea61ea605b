//! What is stored and has been damaged: seen, said, and never a reason to run a call again.

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::stored::{Part, Stored};
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [file redis]
    a_damaged_receipt_is_not_replayed_and_nothing_runs_again
    a_damaged_record_is_never_claimed
    damage_of_any_byte_runs_nothing_again
    a_damaged_request_is_not_sent_again
    a_damaged_request_of_a_call_that_never_ran_is_replaced_by_its_callers
    a_damaged_event_leaves_the_rest_of_the_history
    a_damaged_record_keeps_no_other_back
}

fn settings(upstream: &ScriptedUpstream) -> Settings {
    Settings::of(upstream).top("store.lease = '1s'").quick()
}

/// `/v1/status`: how many parts of a kind cannot be read.
fn unreadable(gateway: &Gateway) -> Value {
    gateway.admin("/v1/status")["unreadable"].take()
}

fn a_damaged_receipt_is_not_replayed_and_nothing_runs_again(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = settings(&upstream).start(&ground);
    let id = gateway.charge("k-1").send().expect(201).operation().to_owned();
    let mut stored = Stored::of(&ground, &id, 1);

    stored.flip(Part::Receipt, 20, 4);
    for _ in 0..2 {
        let told = gateway.charge("k-1").send().expect_problem(409, "result-unavailable");
        assert_eq!((told.execution(), told.retry_after()), (Some("executed"), None));
        let lost = &told.json()["result"];
        assert_eq!((&lost["status"], &lost["length"]), (&json!(201), &json!(14)), "{told:?}");
        assert!(lost["digest"].as_str().is_some_and(|digest| digest.len() == 64), "{told:?}");
    }
    let operation = gateway.operation(&id);
    assert_eq!((operation.state(), operation.events().pop()), ("succeeded", Some("receipt_unreadable")));
    assert_eq!(operation.events().len(), 4, "it is said once");
    assert_eq!(unreadable(&gateway), json!({ "records": 0, "receipts": 1, "requests": 0, "events": 0 }));
    let warning = gateway.admin("/v1/status")["warnings"].to_string();
    assert!(warning.contains(&format!("receipt of {id}: it is damaged")), "{warning}");
    assert_eq!(gateway.log().matches("what is stored cannot be read").count(), 1);

    stored.flip(Part::Receipt, 20, 4);
    assert!(gateway.charge("k-1").send().expect(201).is_replay(), "a part that was restored counts again");
    assert_eq!(upstream.seen().len(), 1);
}

fn a_damaged_record_is_never_claimed(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = settings(&upstream).start(&ground);
    let id = gateway.charge("k-1").send().expect(201).operation().to_owned();
    gateway.charge("k-2").send().expect(201);

    Stored::of(&ground, &id, 1).flip(Part::Record, 100, 1);
    for _ in 0..2 {
        let told = gateway.charge("k-1").send().expect_problem(409, "result-unavailable");
        assert_eq!((told.execution(), told.retry_after()), (Some("unknown"), None));
    }
    gateway.look_up(&id, "").expect_problem(409, "result-unavailable");
    let list = gateway.admin("/v1/operations");
    assert_eq!((&list["unreadable"], list["operations"].as_array().unwrap().len()), (&json!([id]), 1));
    assert_eq!(unreadable(&gateway)["records"], 1);
    assert_eq!(upstream.seen().len(), 2);
}

/// Each repeat gets the one answer there is, or hears that it cannot be read.
fn damage_of_any_byte_runs_nothing_again(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = settings(&upstream).start(&ground);
    let first = gateway.charge("k-1").send().expect(201);
    let mut stored = Stored::of(&ground, first.operation(), 1);
    for (part, step) in [(Part::Receipt, 2), (Part::Event, 5), (Part::Record, 3)] {
        for at in (0..stored.read(part).len()).step_by(step) {
            let bits = 1 << (at / step % 8);
            stored.flip(part, at, bits);
            let told = gateway.charge("k-1").send();
            match (part, told.status) {
                (Part::Event, 201) => assert_eq!((told.is_replay(), &told.body), (true, &first.body)),
                _ => drop(told.expect_problem(409, "result-unavailable")),
            }
            stored.flip(part, at, bits);
        }
        assert!(gateway.charge("k-1").send().expect(201).is_replay(), "all is as it was");
    }
    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(gateway.operation(first.operation()).events().len(), 4);
}

fn a_damaged_request_is_not_sent_again(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    upstream.then(Step::Held(Reply::charge(1)));
    let mut gateway = settings(&upstream).with_key().start(&ground);
    let call = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    let id = gateway.wait_for("sent").0["id"].as_str().unwrap().to_owned();
    gateway.kill();
    drop(call);
    Stored::of(&ground, &id, 1).flip(Part::Request, 30, 2);
    gateway.restart();

    gateway.wait_for("unknown");
    gateway.charge("k-1").send().expect_problem(409, "outcome-unknown");
    assert_eq!((upstream.seen().len(), unreadable(&gateway)["requests"].take()), (1, json!(1)));
}

fn a_damaged_request_of_a_call_that_never_ran_is_replaced_by_its_callers(ground: Ground) {
    let upstream = ScriptedUpstream::refusing();
    let mut gateway = settings(&upstream).route("retry.max_attempts = 1000").start(&ground);
    let call = gateway.charge("k-1").begin();
    let id = gateway.wait_for("claimed").0["id"].as_str().unwrap().to_owned();
    gateway.kill();
    drop(call);
    Stored::of(&ground, &id, 1).flip(Part::Request, 30, 2);
    upstream.open();
    gateway.restart();

    gateway.charge("k-1").send().expect(201);
    let only = upstream.only();
    assert_eq!((only.key(), only.body.as_slice()), (Some("k-1"), &br#"{"amount": 500}"#[..]));
    assert!(gateway.charge("k-1").send().expect(201).is_replay());
}

fn a_damaged_event_leaves_the_rest_of_the_history(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = settings(&upstream).start(&ground);
    let id = gateway.charge("k-1").send().expect(201).operation().to_owned();

    Stored::of(&ground, &id, 1).flip(Part::Event, 9, 1);
    let operation = gateway.operation(&id);
    assert_eq!((operation.events(), &operation.0["unreadable_events"]), (vec!["sent", "settled"], &json!(1)));
    assert_eq!(unreadable(&gateway)["events"], 1);
    assert!(gateway.charge("k-1").send().expect(201).is_replay());
}

fn a_damaged_record_keeps_no_other_back(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let mut gateway = settings(&upstream).start(&ground);
    for (calls, key) in [(1, "k-1"), (2, "k-2")] {
        upstream.then(Step::Held(Reply::charge(1)));
        gateway.charge(key).begin().hang_up();
        upstream.wait_for(calls);
    }
    let first = gateway.operations("").pop().unwrap();
    gateway.kill();
    Stored::of(&ground, first.0["id"].as_str().unwrap(), 1).flip(Part::Record, 60, 1);
    gateway.restart();

    assert_eq!(gateway.wait_for("unknown").0["key"], "k-2");
    // A few sweeps later it was still looked at once.
    eventually("three sweeps", || gateway.admin("/v1/status")["uptime_seconds"].as_u64().filter(|up| *up >= 4));
    assert_eq!(gateway.log().matches("not recovered yet").count(), 1);
    gateway.charge("k-1").send().expect_problem(409, "result-unavailable");
    assert_eq!(upstream.seen().len(), 2);
}
