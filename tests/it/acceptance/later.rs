//! `Prefer: respond-async`: where the caller is told to ask, and what he finds there, also after the gateway has died.

use std::time::Duration;

use crate::support::client::Answer;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [memory file redis]
    an_answer_is_fetched_where_the_caller_was_told_to_ask
}

on! { [file redis]
    a_parked_call_survives_its_gateway_and_is_made_once
}

on! { [redis]
    a_parked_call_is_made_by_another_gateway
    a_credential_is_kept_for_later_only_under_a_key
}

/// A hint that is too long to be waited for, and not for a test.
const HINT: Duration = Duration::from_secs(2);

fn throttled() -> Step {
    Step::Reply(Reply::new(429).line(&format!("Retry-After: {}", HINT.as_secs())))
}

fn settings(upstream: &ScriptedUpstream) -> Settings {
    Settings::of(upstream).top("store.lease = '1s'").route("retry.retry_after_max = '100ms'")
}

fn accepted(gateway: &Gateway, key: &str) -> Answer {
    let answer = gateway.charge(key).header("Prefer", "respond-async").send();
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(answer.header("Preference-Applied"), Some("respond-async"));
    assert_eq!(answer.header("Location"), Some(&*format!("/.oncegate/operations/{}", answer.operation())));
    assert_eq!((answer.execution(), answer.header("Oncegate-Source")), (Some("in-progress"), Some("gateway")));
    answer
}

fn receipt(gateway: &Gateway, accepted: &Answer) -> Answer {
    let address = format!("{}/receipt?wait=30s", accepted.header("Location").unwrap());
    gateway.call("GET", &address).send()
}

fn an_answer_is_fetched_where_the_caller_was_told_to_ask(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let kept_by_caches =
        Reply::charge(1).line("Cache-Control: public, max-age=3600").line("CDN-Cache-Control: max-age=60");
    upstream.then(Step::Held(kept_by_caches));
    let gateway = settings(&upstream).start(&ground);

    let told = accepted(&gateway, "k-1");
    upstream.wait_for(1);
    assert_eq!(accepted(&gateway, "k-1").operation(), told.operation());
    let waiting = format!("{}/receipt", told.header("Location").unwrap());
    gateway.call("GET", &waiting).send().expect_problem(409, "in-progress");
    upstream.release();

    let fetched = receipt(&gateway, &told).expect(201);
    assert_eq!((fetched.is_replay(), fetched.operation()), (true, told.operation()));
    assert_eq!((fetched.lines("Cache-Control"), fetched.header("CDN-Cache-Control")), (vec!["no-store"], None));
    let replayed = gateway.charge("k-1").send().expect(201);
    assert_eq!((&replayed.body, replayed.header("CDN-Cache-Control")), (&fetched.body, Some("max-age=60")));
    assert_eq!(upstream.only().header("Prefer"), None, "it was said to the gateway");
}

fn parked(gateway: &Gateway) -> Answer {
    let told = accepted(gateway, "k-1");
    gateway.wait_for("waiting");
    let repeat = gateway.charge("k-1").send().expect_problem(409, "in-progress");
    assert!(repeat.retry_after().is_some());
    told
}

fn a_parked_call_survives_its_gateway_and_is_made_once(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(throttled());
    // The deadline of the first run is over when the next one is due.
    let short = settings(&upstream).route("retry.deadline = '1500ms'").route("retry.attempt_timeout = '1s'");
    let mut gateway = short.start(&ground);

    let told = parked(&gateway);
    gateway.kill();
    gateway.restart();

    receipt(&gateway, &told).expect(201);
    let seen = upstream.seen();
    assert_eq!((seen.len(), &seen[1].body, seen[1].key()), (2, &seen[0].body, seen[0].key()));
    assert!(seen[1].at - seen[0].at >= HINT);
}

fn a_parked_call_is_made_by_another_gateway(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(throttled());
    let mut gateway = settings(&upstream).start(&ground);
    let heir = settings(&upstream).start(&ground);

    let told = parked(&gateway);
    gateway.kill();

    receipt(&heir, &told).expect(201);
    assert_eq!(upstream.seen().len(), 2);
}

fn a_credential_is_kept_for_later_only_under_a_key(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let open = settings(&upstream).start(&ground);
    let ask = |gateway: &Gateway| {
        gateway.charge("k-1").header("Prefer", "respond-async").header("Authorization", "Bearer s3cret").send()
    };
    let refused = ask(&open).expect_problem(400, "invalid-request");
    assert!(refused.json()["detail"].as_str().unwrap().contains("store.encryption"), "{refused:?}");
    assert!(upstream.seen().is_empty());
    drop(open);

    upstream.then(throttled());
    let sealed = settings(&upstream)
        .top("store.encryption = { env = 'SEALING_KEY' }")
        .environment("SEALING_KEY", "6b2f1fd36f8e1ee2c3c1d0f5f3a9a86bb1f6f65d8b1d0c2f4b7d6e2a9c405162")
        .start(&ground);
    let told = ask(&sealed);
    assert_eq!(told.status, 202, "{told:?}");
    receipt(&sealed, &told).expect(201);
    let seen = upstream.seen();
    assert_eq!((seen.len(), seen[1].header("Authorization")), (2, Some("Bearer s3cret")));
}
