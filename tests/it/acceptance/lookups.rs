//! A caller's own look at what became of a call, without making it.

use std::time::{Duration, Instant};

use crate::support::client::Answer;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [memory file redis]
    c30_a_call_can_be_looked_up_from_its_start_to_its_end
}

on! { [memory]
    c30_an_unknown_end_is_told_as_such
    an_unknown_that_a_repeat_settles_says_so
    c30_a_look_up_of_nothing_or_of_another_caller_finds_nothing
    a_stamped_call_is_found_by_its_key
    a_problem_explains_itself_at_its_address
}

fn by_key(gateway: &Gateway, key: &str) -> Answer {
    let question = format!(r#"{{"route": "payments", "key": "{key}"}}"#);
    gateway.post("/.oncegate/operations/lookup").json(question).send()
}

fn c30_a_call_can_be_looked_up_from_its_start_to_its_end(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let gateway = Settings::of(&upstream).start(&ground);

    let call = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    let running = by_key(&gateway, "k-1");
    assert_eq!((running.status, running.json()["state"].as_str()), (200, Some("sent")), "{running:?}");
    assert_eq!((&running.json()["execution"], &running.json()["attempts"]), (&"in-progress".into(), &1.into()));
    let id = running.json()["id"].as_str().unwrap().to_owned();
    let says = |answer: &Answer, address: &str| answer.json()["next"].as_str().unwrap().contains(address);
    assert!(says(&running, &format!("GET /.oncegate/operations/{id}?wait=10s")), "{running:?}");

    let asked = Instant::now();
    assert_eq!(gateway.look_up(&id, "?wait=50ms").json()["state"], "sent");
    assert!(asked.elapsed() >= Duration::from_millis(50));
    let waiting = gateway.call("GET", &format!("/.oncegate/operations/{id}?wait=30s")).begin();
    upstream.release();
    assert_eq!(waiting.answer().json()["state"], "succeeded", "the end is told as it comes");

    let answer = call.answer().expect(201);
    assert_eq!(answer.operation(), id);
    for told in [by_key(&gateway, "k-1"), gateway.look_up(&id, "")] {
        let told = told.json();
        assert_eq!(
            (&told["id"], &told["key"], &told["state"]),
            (&id.as_str().into(), &"k-1".into(), &"succeeded".into())
        );
        assert_eq!((&told["result"]["status"], &told["result"]["length"]), (&201.into(), &answer.body.len().into()));
        let receipt = format!("/.oncegate/operations/{id}/receipt");
        let next = told["next"].as_str().unwrap();
        assert!(next.contains("same key") && next.contains(&receipt), "{told}");
    }
    assert_eq!(upstream.seen().len(), 1);
}

fn c30_an_unknown_end_is_told_as_such(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Close);
    let gateway = Settings::of(&upstream).start(&ground);

    let lost = gateway.charge("k-1").send().expect_problem(502, "outcome-unknown");
    let instance = lost.json()["instance"].as_str().unwrap().to_owned();
    assert_eq!(instance, format!("/.oncegate/operations/{}", lost.operation()));
    let told = gateway.call("GET", &instance).send().json();

    assert_eq!((&told["state"], &told["execution"]), (&"unknown".into(), &"unknown".into()));
    assert!(told["next"].as_str().is_some_and(|next| next.starts_with("Do not repeat")), "{told}");
}

fn an_unknown_that_a_repeat_settles_says_so(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Close);
    let gateway = Settings::of(&upstream).with_key().route("retry.max_attempts = 1").start(&ground);

    let lost = gateway.charge("k-1").send().expect_problem(502, "outcome-unknown");
    assert_eq!(lost.json()["retryable"], true);
    let told = gateway.look_up(lost.operation(), "").json();
    assert!(told["next"].as_str().is_some_and(|next| next.starts_with("Repeat the call with the same key")), "{told}");
    let receipt = gateway.look_up(lost.operation(), "/receipt").expect_problem(409, "outcome-unknown");
    assert_eq!(receipt.json()["retryable"], true);
    gateway.charge("k-1").send().expect(201);
}

fn c30_a_look_up_of_nothing_or_of_another_caller_finds_nothing(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).top("callers.scope = 'header:X-Tenant'").start(&ground);
    let question = |key: &str, tenant: &str| {
        let call = gateway.post("/.oncegate/operations/lookup").header("X-Tenant", tenant);
        call.json(format!(r#"{{"route": "payments", "key": "{key}"}}"#)).send()
    };

    gateway.charge("k-1").header("X-Tenant", "one").send().expect(201);
    assert_eq!(question("k-1", "one").json()["state"], "succeeded");
    let absent = question("k-2", "one").expect_problem(404, "not-found");
    let foreign = question("k-1", "two").expect_problem(404, "not-found");

    assert_eq!(foreign.body, absent.body);
    let malformed = gateway.post("/.oncegate/operations/lookup").header("X-Tenant", "one").json("{}").send();
    malformed.expect_problem(400, "invalid-request");
}

fn a_stamped_call_is_found_by_its_key(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    let stamped = gateway.post("/charges").json("{}").send().expect(201);
    let found = by_key(&gateway, stamped.header("Idempotency-Key").unwrap()).json();

    assert_eq!((&found["id"], &found["key_source"]), (&stamped.operation().into(), &"stamped".into()));
}

fn a_problem_explains_itself_at_its_address(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    let problem = gateway.charge("a").key("b").send().expect_problem(400, "key-invalid");
    let page = gateway.call("GET", problem.json()["type"].as_str().unwrap()).send();

    assert_eq!((page.status, page.header("Oncegate-Source")), (200, Some("gateway")));
    assert!(String::from_utf8(page.body).unwrap().contains("visible ASCII"));
}
