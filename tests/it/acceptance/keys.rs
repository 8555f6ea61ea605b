//! Which key a call has, where it comes from, and which payloads are the same.

use serde_json::Value;

use crate::support::client::Answer;
use crate::support::eventually;
use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [memory]
    c09_a_malformed_key_is_refused
    c10_a_call_without_a_key_is_refused_passed_or_stamped
    c31_json_is_compared_by_value
    s01_a_required_key_that_is_missing_is_refused
    s03_a_reused_key_shows_nothing_of_its_first_payload
    s37_monstrous_json_is_compared_by_its_bytes
    session_and_step_make_a_key
    a_session_that_cannot_be_read_is_refused
    an_unnamed_call_that_may_be_made_again_needs_no_end_of_an_earlier_one
    an_unnamed_call_stops_at_nothing_where_the_route_says_so
    another_payload_of_a_step_is_rejected_where_it_could_run_twice
    another_payload_of_a_step_runs_and_names_the_earlier_one
    a_key_that_an_sdk_made_up_gives_way_to_a_derived_one
    a_stamped_key_that_comes_back_finds_out
    a_stamped_key_that_comes_back_joins_its_call
    a_stamped_key_of_another_caller_is_a_key_like_any
    the_status_tells_where_keys_come_from
}

on! { [redis]
    s02_a_malformed_key_is_refused_without_a_look_into_the_store
}

on! { [memory file redis]
    a_stamped_key_that_comes_back_names_its_call
    an_unnamed_call_stops_at_an_identical_unknown_one
    identical_unnamed_calls_of_a_window_are_one_call
}

on! { [file redis]
    a_call_keeps_its_key_when_its_service_is_said_to_honour_keys
    a_call_keeps_its_key_when_its_service_is_said_to_be_unsafe
}

on! { [file]
    keys_from_before_a_change_of_their_rules_are_told
}

/// Key lines that are no keys.
fn malformed() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = ["", "\"\"", "a, b", "\"a\", \"b\"", "\"a\";x=1", "a b", "\"a", "\"a\"b"]
        .map(|key| key.as_bytes().to_vec())
        .to_vec();
    keys.extend([vec![b'k'; 256], b"caf\xc3\xa9".to_vec(), b"a\xff".to_vec(), b"a\tb".to_vec()]);
    keys
}

fn c09_a_malformed_key_is_refused(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    for key in malformed() {
        let refused = gateway.post("/charges").key(&key).json("{}").send().expect_problem(400, "key-invalid");
        assert_eq!(refused.execution(), Some("not-executed"), "{}", key.escape_ascii());
    }
    let control = gateway.post("/charges").key("a\x7f").json("{}").send();
    assert_eq!(control.status, 400, "no header at all: {control:?}");
    gateway.charge("a").key("b").send().expect_problem(400, "key-invalid");
    gateway.charge("a").key("a").send().expect_problem(400, "key-invalid");
    gateway.charge(&"k".repeat(255)).send().expect(201);

    assert_eq!(upstream.only().key(), Some("k".repeat(255).as_str()));
    assert_eq!(gateway.operations("").len(), 1, "only the last one has a record");
}

fn a_session_that_cannot_be_read_is_refused(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    let twice = gateway.post("/charges").session("s-1", "1").header("X-Session-Id", "s-2").json("{}");
    twice.send().expect_problem(400, "key-invalid");
    let garbled = gateway.post("/charges").session("s-1", "1").header("X-Step-Index", b"\xff").json("{}");
    garbled.send().expect_problem(400, "key-invalid");

    assert!(upstream.seen().is_empty());
    gateway.post("/charges").session("s-1", "1").json("{}").send().expect(201);
}

fn s02_a_malformed_key_is_refused_without_a_look_into_the_store(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    ground.server().kill();

    for key in malformed() {
        gateway.post("/charges").key(key).json("{}").send().expect_problem(400, "key-invalid");
    }
    gateway.charge("a").key("b").send().expect_problem(400, "key-invalid");
    gateway.charge("well-formed").send().expect_problem(503, "store-unavailable");
    assert!(upstream.seen().is_empty());
}

fn s01_a_required_key_that_is_missing_is_refused(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).route("key.mode = 'required'").start(&ground);

    let refused = gateway.post("/charges").json("{}").send().expect_problem(400, "key-missing");

    let detail = refused.json()["detail"].to_string();
    assert!(["idempotency-key", "x-session-id", "x-step-index"].iter().all(|name| detail.contains(name)), "{detail}");
    let lone =
        gateway.post("/charges").header("X-Session-Id", "s").json("{}").send().expect_problem(400, "key-missing");
    assert!(lone.json()["detail"].as_str().unwrap().ends_with("has `x-session-id` and no `x-step-index`."), "{lone:?}");
    assert!(upstream.seen().is_empty() && gateway.operations("").is_empty());
    gateway.post("/charges").session("s", "1").json("{}").send().expect(201);
}

fn c10_a_call_without_a_key_is_refused_passed_or_stamped(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let routes = "[[routes]]\nname = 'off'\nmatch.path = '/off'\nupstream = 'payments'\nkey.mode = 'off'\n\
                  [[routes]]\nname = 'required'\nmatch.path = '/required'\nupstream = 'payments'\nkey.mode = 'required'";
    let gateway = Settings::of(&upstream).quick().and(routes).start(&ground);

    gateway.post("/required").json("{}").send().expect_problem(400, "key-missing");
    assert!(upstream.seen().is_empty());

    for _ in 0..2 {
        let passed = gateway.post("/off").json("{}").send().expect(201);
        assert_eq!(passed.header("Oncegate-Guarded"), Some("no; reason=off"));
        assert_eq!((passed.header("Idempotency-Key"), passed.header("Oncegate-Operation")), (None, None));
    }
    assert!(upstream.seen().iter().all(|call| call.key().is_none()) && upstream.effects() == 2);

    upstream.then(Step::Reply(Reply::new(429)));
    let stamped = gateway.post("/stamp").json("{}").send().expect(201);
    assert_eq!(stamped.header("Oncegate-Key-Source"), Some("stamped"));
    let seen = upstream.seen();
    let keys: Vec<_> = seen[2..].iter().map(|call| call.key()).collect();
    assert_eq!(keys, [stamped.header("Idempotency-Key"); 2], "one key for all its sends");
    let other = gateway.post("/stamp").json("{}").send().expect(201);
    assert_ne!(other.header("Idempotency-Key"), stamped.header("Idempotency-Key"));
}

fn c31_json_is_compared_by_value(ground: Ground) {
    const FIRST: &str = r#"{"amount": 5.0, "to": {"a": 1, "b": [1, 2]}, "at": "09:00"}"#;
    const SAME: [&str; 2] = [
        r#"{"to":{"b":[1,2],"a":1},"amount":5,"at":"09:01"}"#,
        "{ \"at\" : null,\n\"amount\" : 50e-1 , \"to\" : { \"a\" : 1.00, \"b\" : [ 1, 2 ] } }",
    ];
    const OTHER: [&str; 3] = [
        r#"{"amount": 5.01, "to": {"a": 1, "b": [1, 2]}}"#,
        r#"{"amount": 5, "to": {"a": 1, "b": [2, 1]}}"#,
        r#"{"amount": "5", "to": {"a": 1, "b": [1, 2]}}"#,
    ];
    let upstream = ScriptedUpstream::start();
    let bytes = "[[routes]]\nname = 'raw'\nmatch.path = '/raw'\nupstream = 'payments'\npayload.compare = 'bytes'";
    let gateway = Settings::of(&upstream).route("payload.ignore = ['/at']").and(bytes).start(&ground);
    let send = |target, body| gateway.post(target).key("k-1").json(body).send();

    send("/charges", FIRST).expect(201);
    for same in SAME {
        assert!(send("/charges", same).expect(201).is_replay(), "{same}");
    }
    for other in OTHER {
        send("/charges", other).expect_problem(422, "key-reused");
    }
    assert_eq!(upstream.only().body, FIRST.as_bytes(), "what goes upstream are the bytes that came");

    send("/raw", FIRST).expect(201);
    send("/raw", SAME[0]).expect_problem(422, "key-reused");
    assert!(send("/raw", FIRST).expect(201).is_replay());
}

fn s03_a_reused_key_shows_nothing_of_its_first_payload(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    let first = gateway.post("/charges/canary-path?q=canary-query").key("k-1").header("X-Note", "canary-header");
    first.json(r#"{"note": "canary-body"}"#).send().expect(201);
    let reused = gateway.charge("k-1").send().expect_problem(422, "key-reused");

    assert!(!format!("{reused:?}").contains("canary") && !format!("{reused:?}").contains("ch_1"), "{reused:?}");
    assert_eq!((reused.execution(), upstream.seen().len()), (Some("not-executed"), 1));
}

fn s37_monstrous_json_is_compared_by_its_bytes(ground: Ground) {
    let deep = |inside: &str| format!("{}{inside}{}", "[".repeat(10_000), "]".repeat(10_000));
    let monsters = [
        (deep("1"), deep("1.0")),
        (r#"{"a": 1, "a": 2}"#.to_owned(), r#"{"a": 2}"#.to_owned()),
        (r#"{"a": 1e400}"#.to_owned(), r#"{"a": 1e401}"#.to_owned()),
        (r#"{"a": 1"#.to_owned(), r#"{"a":1"#.to_owned()),
        (format!("{{\"a\": {}}}", "9".repeat(100_000)), format!("{{\"a\": {}8}}", "9".repeat(99_999))),
    ];
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).route("payload.ignore = ['/x']").start(&ground);

    for (number, (monster, other)) in monsters.iter().enumerate() {
        let send = |body: &str| gateway.post("/charges").key(format!("k-{number}")).json(body).send();
        send(monster).expect(201);
        assert!(send(monster).expect(201).is_replay());
        send(other).expect_problem(422, "key-reused");
        assert_eq!(upstream.seen()[number].body, monster.as_bytes());
    }
    assert_eq!(upstream.effects(), monsters.len());
}

fn session_and_step_make_a_key(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    let gateway = Settings::of(&upstream).with_key().start(&ground);
    let step = |session, step| gateway.post("/charges").session(session, step).json("{}").send().expect(201);

    let first = step("s-1", "3.1");
    let again = step("s-1", "3.1");
    let next = step("s-1", "3.2");
    let elsewhere = step("s-2", "3.1");

    assert_eq!(first.header("Oncegate-Key-Source"), Some("derived"));
    assert!(again.is_replay() && !next.is_replay() && !elsewhere.is_replay());
    let keys: Vec<_> = upstream.seen().iter().map(|call| call.key().unwrap().to_owned()).collect();
    assert_eq!(keys, [&first, &next, &elsewhere].map(|answer| answer.header("Idempotency-Key").unwrap()));
    assert!(keys.iter().all(|key| key.len() == 64) && upstream.effects() == 3);
    let operation = gateway.operation(first.operation()).0;
    assert_eq!((&operation["session"], &operation["step"]), (&"s-1".into(), &"3.1".into()));
}

fn another_payload_of_a_step_is_rejected_where_it_could_run_twice(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    let step = |body: &str| gateway.post("/charges").session("s-1", "3").json(body).send();

    step(r#"{"amount": 5}"#).expect(201);
    let changed = step(r#"{"amount": 6}"#).expect_problem(422, "payload-changed");
    assert!(step(r#"{"amount": 5}"#).expect(201).is_replay());

    assert!(changed.json()["advice"].as_str().unwrap().contains("X-Step-Index"), "{changed:?}");
    assert_eq!(upstream.effects(), 1);
    gateway.charge("own-key").send().expect(201);
    gateway.post("/charges").key("own-key").json("{}").send().expect_problem(422, "key-reused");
}

fn another_payload_of_a_step_runs_and_names_the_earlier_one(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    let gateway = Settings::of(&upstream).with_key().start(&ground);
    let step = |body: &str| gateway.post("/charges").session("s-1", "3").json(body).send().expect(201);

    let first = step(r#"{"amount": 5}"#);
    let changed = step(r#"{"amount": 6}"#);

    assert_eq!((first.header("Oncegate-Earlier"), changed.is_replay()), (None, false));
    assert_eq!(changed.header("Oncegate-Earlier"), Some(first.operation()));
    assert_eq!(upstream.effects(), 2);
}

fn a_key_that_an_sdk_made_up_gives_way_to_a_derived_one(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    let charge = |key: &str| gateway.charge(key).session("s-1", "3").send().expect(201);

    let first = charge("stripe-node-retry-7a1c");
    let again = charge("stainless-node-retry-77b2");
    let own = charge("order-7");

    assert_eq!((first.header("Oncegate-Key-Source"), again.is_replay()), (Some("derived"), true));
    assert_eq!((own.header("Oncegate-Key-Source"), own.is_replay()), (Some("client"), false));
}

fn an_unnamed_call_stops_at_an_identical_unknown_one(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Close);
    let gateway = Settings::of(&upstream).start(&ground);
    let unnamed = |body: &str| gateway.post("/charges").json(body).send();

    let lost = unnamed(r#"{"amount": 5}"#).expect_problem(502, "outcome-unknown");
    let stopped = unnamed(r#"{"amount": 5.0}"#).expect_problem(409, "outcome-unknown");
    let other = unnamed(r#"{"amount": 6}"#).expect(201);

    assert_eq!(stopped.operation(), lost.operation());
    assert_eq!(stopped.header("Oncegate-Key-Source"), Some("stamped"));
    assert_eq!(stopped.header("Idempotency-Key"), lost.header("Idempotency-Key"), "under a new one it would run");
    assert!(!other.is_replay() && upstream.effects() == 2);
}

fn a_stamped_key_that_comes_back_names_its_call(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Close);
    let gateway = Settings::of(&upstream).start(&ground);
    let unnamed = |body: &str| gateway.post("/charges").json(body).send();
    let again = |first: &Answer, body: &str| {
        gateway.post("/charges").key(first.header("Idempotency-Key").unwrap()).json(body).send()
    };

    let lost = unnamed("1").expect_problem(502, "outcome-unknown");
    let told = again(&lost, "1").expect_problem(409, "outcome-unknown");
    assert_eq!((told.operation(), told.execution()), (lost.operation(), Some("unknown")));
    again(&lost, "2").expect_problem(422, "key-reused");

    let done = unnamed("3").expect(201);
    let replay = again(&done, "3").expect(201);
    assert_eq!((replay.is_replay(), replay.operation(), &replay.body), (true, done.operation(), &done.body));
    assert_eq!(upstream.effects(), 2);
}

fn a_stamped_key_that_comes_back_finds_out(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    upstream.then(Step::Close);
    let gateway = Settings::of(&upstream).with_key().route("retry.max_attempts = 1").start(&ground);

    let lost = gateway.post("/charges").json("{}").send().expect_problem(502, "outcome-unknown");
    let key = lost.header("Idempotency-Key").unwrap();
    let told = lost.json();
    assert_eq!((&told["retryable"], lost.header("x-should-retry")), (&Value::Bool(true), Some("false")));
    assert!(told["advice"].as_str().unwrap().contains("finds out"), "{told}");
    let stopped = gateway.post("/charges").json("{}").send().expect_problem(409, "outcome-unknown");
    assert_eq!((stopped.header("Idempotency-Key"), &stopped.json()["retryable"]), (Some(key), &Value::Bool(true)));
    let found = gateway.post("/charges").key(key).json("{}").send().expect(201);

    assert_eq!((found.operation(), upstream.effects()), (lost.operation(), 1));
    assert_eq!(gateway.look_up(lost.operation(), "").json()["key_source"], "client", "kept as one that has a name");
}

fn a_stamped_key_that_comes_back_joins_its_call(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let gateway = Settings::of(&upstream).start(&ground);

    let first = gateway.post("/charges").json("{}").begin();
    upstream.wait_for(1);
    let key = gateway.admin("/v1/operations")["operations"][0]["key"].as_str().unwrap().to_owned();
    let second = gateway.post("/charges").key(&key).json("{}").begin();
    upstream.release();

    let (first, second) = (first.answer().expect(201), second.answer().expect(201));
    assert_eq!((second.operation(), upstream.seen().len()), (first.operation(), 1));
}

/// I3: nor does it tell that the key exists.
fn a_stamped_key_of_another_caller_is_a_key_like_any(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).top("callers.scope = 'header:X-Tenant'").start(&ground);
    let call = |tenant: &str| gateway.post("/charges").header("X-Tenant", tenant).json("{}");

    let stamped = call("one").send().expect(201);
    let foreign = call("two").key(stamped.header("Idempotency-Key").unwrap()).send().expect(201);

    assert!(!foreign.is_replay());
    assert_ne!(foreign.operation(), stamped.operation());
    assert_eq!(upstream.effects(), 2);
}

fn an_unnamed_call_that_may_be_made_again_needs_no_end_of_an_earlier_one(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let settings = Settings::of(&upstream).top("store.max_open = 2").route("retry.max_attempts = 1");
    let window = "[[routes]]\nname = 'window'\nmatch.path = '/window'\nupstream = 'payments'\n\
                  retry.max_attempts = 1\nduplicate_window = '10m'";
    let gateway = settings.and(window).start(&ground);

    for (method, target) in [("PUT", "/lamp"), ("DELETE", "/lamp"), ("PUT", "/window")] {
        let call = || gateway.call(method, target).json("{}").send();
        upstream.then(Step::Reply(Reply::new(503)));
        let lost = call().expect(503);
        assert_eq!(lost.execution(), Some("unknown"), "{method} {target}");
        assert_eq!(gateway.operation(lost.operation()).state(), "unknown");
        assert!(!call().expect(201).is_replay(), "{method} {target}");
    }
    gateway.charge("k-1").send().expect(201);
    assert_eq!((upstream.seen().len(), upstream.effects()), (7, 7));
}

fn an_unnamed_call_stops_at_nothing_where_the_route_says_so(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Close);
    let gateway = Settings::of(&upstream).route("duplicate_window = 'off'").start(&ground);

    let lost = gateway.post("/charges").json("{}").send().expect_problem(502, "outcome-unknown");
    let other = gateway.post("/charges").json("{}").send().expect(201);

    assert_ne!(other.operation(), lost.operation());
    assert_eq!(upstream.effects(), 2);
}

fn identical_unnamed_calls_of_a_window_are_one_call(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).route("duplicate_window = '10m'").start(&ground);
    let unnamed = |body: &str| gateway.post("/charges").json(body).send().expect(201);

    let first = unnamed(r#"{"amount": 5}"#);
    let again = unnamed(r#"{"amount": 5.0}"#);
    let other = unnamed(r#"{"amount": 6}"#);

    assert!(!first.is_replay() && again.is_replay() && !other.is_replay());
    assert!([&first, &again].iter().all(|answer| answer.header("Oncegate-Key-Source") == Some("window")));
    assert_eq!(again.operation(), first.operation());
    assert_eq!((&again.body, upstream.effects()), (&first.body, 2));
}

fn the_status_tells_where_keys_come_from(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    for key in ["k-1", "k-1"] {
        gateway.charge(key).send().expect(201);
    }
    gateway.post("/charges").session("s-1", "1").json("{}").send().expect(201);
    gateway.post("/charges").header("X-Session-Id", "s-1").json("{}").send().expect(201);

    let counts = gateway.counts();
    let share = |source: &str| (counts["keys"][source]["count"].as_u64(), counts["keys"][source]["share"].as_f64());
    assert_eq!((share("client"), share("derived")), ((Some(2), Some(0.5)), (Some(1), Some(0.25))));
    assert_eq!((share("stamped"), share("window")), ((Some(1), Some(0.25)), (Some(0), Some(0.0))));
    assert_eq!((&counts["calls"], &counts["replays"], &counts["attempts"]), (&4.into(), &1.into(), &3.into()));
    assert_eq!(counts["session_without_step"], Value::Bool(true));
    let warnings = gateway.admin("/v1/status")["warnings"].to_string();
    assert!(warnings.contains("no step") && gateway.log().contains("no step"), "{warnings}");
}

fn a_call_keeps_its_key_when_its_service_is_said_to_honour_keys(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    upstream.then(Step::Close);
    let mut gateway = Settings::of(&upstream).start(&ground);
    let lost = gateway.post("/charges").session("s-1", "3").json("{}").send().expect_problem(502, "outcome-unknown");
    assert!(lost.json()["detail"].to_string().contains("with-key"), "the advice that is followed here: {lost:?}");
    gateway.kill();

    let gateway = Settings::of(&upstream).with_key().start(&ground);
    let step = |body: &str| gateway.post("/charges").session("s-1", "3").json(body).send().expect(201);
    let again = step("{}");
    let replayed = step("{}");
    let other = step(r#"{"amount": 6}"#);

    assert_eq!((again.operation(), replayed.operation()), (lost.operation(), lost.operation()));
    assert!(!again.is_replay() && replayed.is_replay() && !other.is_replay());
    let key = lost.header("Idempotency-Key");
    let seen = upstream.seen();
    assert_eq!(seen.iter().map(|call| call.key() == key).collect::<Vec<_>>(), [true, true, false], "{seen:?}");
    assert_eq!(upstream.effects(), 2);
}

fn a_call_keeps_its_key_when_its_service_is_said_to_be_unsafe(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    let mut gateway = Settings::of(&upstream).with_key().start(&ground);
    let first = gateway.post("/charges").session("s-1", "3").json("{}").send().expect(201);
    gateway.kill();

    let gateway = Settings::of(&upstream).start(&ground);
    let step = |step, body: &str| gateway.post("/charges").session("s-1", step).json(body).send();
    let again = step("3", "{}").expect(201);
    let other = step("4", "{}").expect(201);
    step("4", "[]").expect_problem(422, "payload-changed");

    assert!(again.is_replay() && again.operation() == first.operation());
    assert!(!other.is_replay() && upstream.effects() == 2);
}

/// Also when the rules are changed back, for then those of the time between are lost.
fn keys_from_before_a_change_of_their_rules_are_told(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    let before = Settings::of(&upstream).with_key();
    let after = Settings::of(&upstream).with_key().route("key.from = ['session', 'step']");
    let live = |settings: &Settings, step: &str| {
        let mut gateway = settings.start(&ground);
        gateway.post("/charges").session("s-1", step).json("{}").send().expect(201);
        gateway.charge(&format!("own-{step}")).send().expect(201);
        gateway.kill();
        gateway.log()
    };
    assert!(!live(&before, "1").contains("identity rules"));
    assert!(!live(&Settings::of(&upstream), "2").contains("identity rules"), "they are still found");

    let told = |settings: &Settings, says: &str| {
        let gateway = settings.start(&ground);
        let warnings = || gateway.admin("/v1/status")["warnings"].to_string();
        eventually(says, || warnings().contains(says).then_some(()));
        assert!(gateway.log().contains(says), "{}", gateway.log());
        warnings()
    };
    let changed = told(&after, "1 live key was made under other identity rules");
    assert!(changed.contains("key.from was [session, step, payload], is [session, step]"), "{changed}");
    live(&after, "3");
    told(&before, "1 live key was made under other identity rules (key.from was [session, step], is");
    told(&after, "key.from was [session, step, payload]");
}
