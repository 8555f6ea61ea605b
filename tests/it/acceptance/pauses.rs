//! An upstream that asks for less: at one gateway, at all of a fleet, and in an operator's hands.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::client::{Answer, Pending};
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [redis]
    a_fleet_sends_nothing_within_a_stated_wait
}

on! { [file redis]
    a_pause_outlives_a_restart
}

on! { [memory]
    a_pause_of_one_service_holds_no_call_to_another_back
    an_operator_sees_sets_and_ends_a_pause
    a_pause_holds_every_upstream_that_leads_to_the_service
    a_breaker_shuts_a_service_out_and_says_so
}

fn once(upstream: &ScriptedUpstream) -> Settings {
    Settings::of(upstream).with_key().route("retry.max_attempts = 1")
}

/// What the operators' API says to a PUT.
fn put(gateway: &Gateway, query: &str) -> Answer {
    gateway.admin_call("PUT", &format!("/v1/pauses?{query}")).send()
}

#[track_caller]
fn list(answer: Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn wait_for_pause(gateway: &Gateway) {
    eventually("a pause", || {
        let list = gateway.admin("/v1/pauses");
        list["pauses"].as_array().filter(|pauses| !pauses.is_empty()).map(|_| ())
    });
}

/// Two hundred callers of two gateways, after one of them was told to come back in three seconds.
fn a_fleet_sends_nothing_within_a_stated_wait(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(429).line("Retry-After: 3")));
    upstream.then(Step::After(Duration::from_millis(500), Reply::charge(1)));
    let fleet = [once(&upstream).start(&ground), once(&upstream).start(&ground)];
    fleet[0].charge("first").send().expect(429);
    let told = Instant::now();
    fleet.iter().for_each(wait_for_pause);

    let asked = (0..200).map(|number| fleet[number % 2].charge(&format!("k-{number}")).begin());
    let answers: Vec<Answer> = asked.collect::<Vec<Pending>>().into_iter().map(Pending::answer).collect();
    let seen: Vec<Duration> = upstream.seen().iter().skip(1).map(|seen| seen.at.duration_since(told)).collect();
    assert!(seen[0] > Duration::from_millis(2900), "within the wait: {seen:?}");
    assert!(seen[1] > seen[0] + Duration::from_millis(450), "one canary, and then the others: {seen:?}");
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!((made, seen.len()), (128, 128), "as many as the queues of both hold");
    let refused = answers.into_iter().filter(|answer| answer.status != 201);
    for answer in refused.map(|answer| answer.expect_problem(429, "rate-limited")) {
        assert!((1..=3).contains(&answer.retry_after().unwrap()) && answer.header("Oncegate-Attempts") == Some("0"));
    }
}

fn restart(gateway: &mut Gateway) {
    gateway.terminate();
    assert!(gateway.exit().success());
    gateway.restart();
}

/// Not even the first call is sent.
fn a_pause_outlives_a_restart(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(429).line("Retry-After: 200")));
    let mut gateway = once(&upstream).start(&ground);
    gateway.charge("first").send().expect(429);
    let credential = |pause: &Value| pause["credential"].as_str().unwrap().to_owned();
    let pauses = |list: &Value| list["pauses"].as_array().unwrap().iter().map(credential).collect::<Vec<_>>();
    let before = pauses(&list(put(&gateway, "upstream=payments&seconds=300")));
    assert_eq!((before.len(), before[0].as_str()), (2, "*"));

    restart(&mut gateway);
    gateway.charge("k").send().expect_problem(429, "rate-limited");
    assert_eq!((pauses(&gateway.admin("/v1/pauses")), upstream.seen().len()), (before, 1));
    list(put(&gateway, "upstream=payments&seconds=0"));
    restart(&mut gateway);
    gateway.charge("k").send().expect(201);
}

fn a_pause_of_one_service_holds_no_call_to_another_back(ground: Ground) {
    let [upstream, other] = [(), ()].map(|()| ScriptedUpstream::start());
    let throttled = || Step::After(Duration::from_millis(100), Reply::new(429).line("Retry-After: 120"));
    (0..5).for_each(|_| upstream.then(throttled()));
    let elsewhere = format!(
        "[upstreams.other]\nurl = '{}'\n[[routes]]\nname = 'other'\nmatch.path = '/other'\nupstream = 'other'",
        other.url()
    );
    let gateway = once(&upstream).and(&elsewhere).start(&ground);
    let first: Vec<Pending> = (0..5).map(|number| gateway.charge(&format!("first-{number}")).begin()).collect();
    first.into_iter().for_each(|call| drop(call.answer().expect(429)));
    assert_eq!(gateway.log().matches("the upstream asks for less").count(), 1, "of calls that are told the same");

    let told = gateway.charge("k-1").send().expect_problem(429, "rate-limited").json();
    assert_eq!(told["detail"], "Calls to `payments` with this credential are paused; this one was not sent.");
    gateway.call("GET", "/charges").send().expect_problem(429, "rate-limited");
    gateway.post("/other").key("k-1").json("{}").send().expect(201);
    assert_eq!((upstream.seen().len(), other.seen().len()), (5, 1));
}

fn an_operator_sees_sets_and_ends_a_pause(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = once(&upstream).start(&ground);
    assert_eq!(gateway.admin("/v1/pauses"), json!({ "pauses": [] }));

    let set = list(put(&gateway, "upstream=payments&seconds=600"));
    assert_eq!((&set["pauses"][0]["upstream"], &set["pauses"][0]["credential"]), (&json!("payments"), &json!("*")));
    let held_back = gateway.charge("k-1").send().expect_problem(429, "rate-limited").json();
    assert_eq!(held_back["detail"], "Calls to `payments` are paused; this one was not sent.");
    gateway.call("GET", "/charges").send().expect_problem(429, "rate-limited");
    let status = gateway.admin("/v1/status");
    assert_eq!(status["upstreams"]["payments"]["pauses"][0]["phase"], json!("paused"));
    let none = json!({ "rate": 0, "pause": 2, "breaker": 0, "concurrency": 0, "max_open": 0, "store": 0 });
    assert_eq!(status["routes"]["payments"]["refused"], none);

    assert_eq!(list(put(&gateway, "upstream=payments&seconds=0")), json!({ "pauses": [] }));
    gateway.charge("k-1").send().expect(201);
    for wrong in ["", "upstream=payments", "upstream=payments&seconds=3601", "upstream=payments&seconds=1&until=2"] {
        put(&gateway, wrong).expect_problem(400, "invalid-request");
    }
    let unknown = put(&gateway, "upstream=others&seconds=1").expect_problem(404, "not-found").json();
    assert_eq!(unknown["detail"], "no route leads to an upstream of this name; there are: payments.");
    put(&gateway, "upstream=payments&seconds=1&credential=me").expect_problem(400, "invalid-request");
    let page = gateway.admin_call("PUT", "/v1/pauses?upstream=payments&seconds=9").header("Origin", "http://localhost");
    page.send().expect_problem(400, "invalid-request");
    gateway.admin_call("POST", "/v1/pauses").send().expect_problem(405, "method-not-allowed");
    assert_eq!(gateway.admin("/v1/pauses"), json!({ "pauses": [] }));
}

/// Two accounts of one service.
fn a_pause_holds_every_upstream_that_leads_to_the_service(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let account = format!(
        "[upstreams.account]\nurl = '{}/account'\n[[routes]]\nname = 'account'\nmatch.path = '/account'\nupstream = 'account'",
        upstream.url()
    );
    let gateway = once(&upstream).and(&account).start(&ground);
    let names = |list: &Value| {
        let pauses = list["pauses"].as_array().unwrap().iter();
        pauses.map(|pause| pause["upstream"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let set = list(put(&gateway, "upstream=payments&seconds=600"));
    assert_eq!(names(&set), ["account", "payments"]);
    let told = gateway.post("/account").key("k").json("{}").send().expect_problem(429, "rate-limited").json();
    assert_eq!(told["detail"], "Calls to `account` are paused; this one was not sent.");

    assert_eq!(list(put(&gateway, "upstream=account&seconds=0")), json!({ "pauses": [] }));
    gateway.charge("k").send().expect(201);
    gateway.post("/account").key("k").json("{}").send().expect(201);
}

fn a_breaker_shuts_a_service_out_and_says_so(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    (0..2).for_each(|_| upstream.then(Step::Reply(Reply::new(502))));
    let gateway = once(&upstream).route("breaker = { consecutive_failures = 2, open_for = '60s' }").start(&ground);
    gateway.charge("k-1").send().expect(502);
    gateway.call("GET", "/charges").send().expect(502);
    let answer = gateway.charge("k-2").send().expect_problem(503, "breaker-open");
    assert!((1..=72).contains(&answer.retry_after().unwrap()));
    assert!(answer.json()["detail"].as_str().unwrap().contains("(last: the upstream answered 502)"), "{answer:?}");
    assert_eq!((answer.header("Oncegate-Execution"), answer.header("x-should-retry")), (Some("not-executed"), None));
    gateway.call("GET", "/charges").send().expect_problem(503, "breaker-open");
    assert_eq!(upstream.seen().len(), 2);
    let shown: Value = gateway.admin("/v1/status")["upstreams"]["payments"]["breakers"][0].clone();
    assert_eq!((&shown["state"], &shown["openings"], &shown["refused"]), (&json!("open"), &json!(1), &json!(2)));
    assert_eq!((&shown["last_failure"], &shown["routes"]), (&json!("the upstream answered 502"), &json!(["payments"])));
    assert!(gateway.log().contains("\"routes\":\"payments\""), "{}", gateway.log());
}
