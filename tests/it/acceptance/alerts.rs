//! Who is told that an operation needs a person: at least once, under one id, whatever dies in between.

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::support::authority::Authority;
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Seen, Step};

on! { [memory file redis]
    a_letter_is_told_once_and_signed
}

on! { [file redis]
    an_alert_outlives_the_gateway
}

on! { [redis]
    a_fleet_tells_it_once
}

on! { [memory]
    an_alert_is_tried_until_it_is_taken
    a_receiver_that_is_away_is_told_when_it_is_back
    a_receiver_proves_who_it_is
    letters_of_one_kind_share_an_alert
    what_stays_open_is_told_again
    people_are_told_in_a_sentence
    the_log_is_a_receiver
}

const SECRET: &str = "wh-s3cret";

/// Unsafe, so that a call without an answer is a letter.
fn settings(upstream: &ScriptedUpstream, receiver: &ScriptedUpstream, rules: &str) -> Settings {
    Settings::of(upstream).and(&format!("[alerts]\nurl = '{}/hooks/T0?x=y'\n{rules}", receiver.url()))
}

const AT_ONCE: &str = "secret = 'wh-s3cret'\ngroup_wait = '0s'";

/// A charge of which nobody knows whether it was made.
fn lost_charge(upstream: &ScriptedUpstream, gateway: &Gateway, key: &str) -> String {
    upstream.then(Step::Close);
    gateway.charge(key).send().expect_problem(502, "outcome-unknown").operation().to_owned()
}

fn is_noted(gateway: &Gateway, operation: &str) {
    eventually("a note of the alert", || {
        gateway.operation(operation).0["dead_letter"]["alerted_at"].is_string().then_some(())
    });
}

fn counts(gateway: &Gateway, sent: u64, failures: u64) {
    let expected = serde_json::json!({ "sent": sent, "failures": failures });
    eventually("the counts", || (gateway.admin("/v1/status")["alerts"] == expected).then_some(()));
}

fn body(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

fn named(seen: &Seen) -> Vec<String> {
    let operations = body(seen)["operations"].as_array().unwrap().clone();
    operations.iter().map(|operation| operation["id"].as_str().unwrap().to_owned()).collect()
}

/// As a receiver would check it, in the words of RFC 2104.
fn hmac(key: &str, text: &[u8]) -> String {
    let pad = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key.bytes()).for_each(|(byte, of_key)| *byte ^= of_key);
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).finalize();
    let outer = Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize();
    outer.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn a_letter_is_told_once_and_signed(ground: Ground) {
    let (upstream, receiver) = (ScriptedUpstream::start(), ScriptedUpstream::start());
    let gateway = settings(&upstream, &receiver, AT_ONCE).start(&ground);

    let first = lost_charge(&upstream, &gateway, "k-1");
    is_noted(&gateway, &first);
    let alert = receiver.only();
    assert_eq!((alert.method.as_str(), alert.target.as_str()), ("POST", "/hooks/T0?x=y"));
    assert_eq!((alert.key(), alert.header("Content-Type")), (body(&alert)["id"].as_str(), Some("application/json")));
    assert_eq!(body(&alert)["group"], serde_json::json!({ "upstream": "payments", "reason": "closed" }));
    let told = &body(&alert)["operations"][0];
    assert_eq!((told["id"].as_str(), told["state"].as_str()), (Some(first.as_str()), Some("unknown")));
    let signature = alert.header("Oncegate-Signature").unwrap();
    let (time, tag) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    assert_eq!(tag, hmac(SECRET, &[time.as_bytes(), b".", &alert.body].concat()));
    let all = format!("{:?} {}", alert.headers, String::from_utf8(alert.body.clone()).unwrap());
    assert!(!all.contains("amount") && !all.contains(SECRET) && !all.contains("k-1"), "{all}");

    let second = lost_charge(&upstream, &gateway, "k-2");
    is_noted(&gateway, &second);
    let seen = receiver.seen();
    assert_eq!((seen.len(), named(&seen[1])), (2, vec![second, first]));
    assert_ne!(seen[0].key(), seen[1].key());
    counts(&gateway, 2, 0);
    assert!(!gateway.log().contains("/hooks/T0") && !gateway.log().contains(SECRET));
}

/// A gateway is a receiver that speaks TLS, too.
fn a_receiver_proves_who_it_is(ground: Ground) {
    let (upstream, receiver, authority) = (ScriptedUpstream::start(), ScriptedUpstream::start(), Authority::made());
    let (own, other) = (authority.papers("localhost"), Authority::made().papers("localhost"));
    let path = |files: &TempDir, file: &str| files.path().join(file).display().to_string();
    let tls = format!("server.tls = {{ cert = '{}', key = '{}' }}", path(&own, "cert.pem"), path(&own, "key.pem"));
    let front = Settings::of(&receiver).top(&tls).start(&ground);
    let told_by = |ca: &TempDir| {
        let url = format!("https://localhost:{}/hooks/T0", front.address().port());
        let alerts = format!("[alerts]\nurl = '{url}'\nca_file = '{}'\n{AT_ONCE}", path(ca, "ca.pem"));
        Settings::of(&upstream).and(&alerts).start(&ground)
    };

    let deceived = told_by(&other);
    lost_charge(&upstream, &deceived, "k-1");
    eventually("a failure", || (deceived.admin("/v1/status")["alerts"]["failures"].as_u64() > Some(0)).then_some(()));
    assert!(receiver.seen().is_empty());

    let gateway = told_by(&own);
    let operation = lost_charge(&upstream, &gateway, "k-1");
    is_noted(&gateway, &operation);
    assert_eq!(named(&receiver.only()), [operation]);
}

fn an_alert_outlives_the_gateway(ground: Ground) {
    let (upstream, receiver) = (ScriptedUpstream::start(), ScriptedUpstream::start());
    receiver.then(Step::Held(Reply::new(204)));
    let mut gateway = settings(&upstream, &receiver, AT_ONCE).start(&ground);
    let first = lost_charge(&upstream, &gateway, "k-1");
    receiver.wait_for(1);
    gateway.kill();
    receiver.release();
    gateway.restart();
    let second = lost_charge(&upstream, &gateway, "k-2");
    is_noted(&gateway, &second);
    is_noted(&gateway, &first);
    let seen = receiver.seen();
    assert_eq!((seen.len(), seen[0].key(), &seen[0].body), (3, seen[1].key(), &seen[1].body));
    assert!(seen[2].key() != seen[1].key() && named(&seen[2]).contains(&second));
}

fn a_fleet_tells_it_once(ground: Ground) {
    let (upstream, receiver) = (ScriptedUpstream::start(), ScriptedUpstream::start());
    let settings = settings(&upstream, &receiver, AT_ONCE);
    let gateways = [settings.start(&ground), settings.start(&ground), settings.start(&ground)];
    for (round, gateway) in gateways.iter().enumerate() {
        let operation = lost_charge(&upstream, gateway, &format!("k-{round}"));
        is_noted(gateway, &operation);
        assert_eq!(receiver.seen().len(), round + 1);
    }
}

fn an_alert_is_tried_until_it_is_taken(ground: Ground) {
    let (upstream, receiver) = (ScriptedUpstream::start(), ScriptedUpstream::start());
    receiver.then(Step::Reply(Reply::new(307).line(&format!("Location: {}/other", receiver.url()))));
    receiver.then(Step::Close);
    receiver.then(Step::Reply(Reply::new(500)));
    let gateway = settings(&upstream, &receiver, AT_ONCE).start(&ground);
    let operation = lost_charge(&upstream, &gateway, "k-1");
    is_noted(&gateway, &operation);
    let seen = receiver.seen();
    assert_eq!(seen.len(), 4);
    let first = (seen[0].key(), &seen[0].body, seen[0].target.as_str());
    assert!(seen.iter().all(|seen| (seen.key(), &seen.body, seen.target.as_str()) == first));
    counts(&gateway, 1, 3);
}

fn a_receiver_that_is_away_is_told_when_it_is_back(ground: Ground) {
    let (upstream, receiver) = (ScriptedUpstream::start(), ScriptedUpstream::refusing());
    let gateway = settings(&upstream, &receiver, AT_ONCE).start(&ground);
    let operation = lost_charge(&upstream, &gateway, "k-1");
    let warns =
        |gateway: &Gateway| gateway.admin("/v1/status")["warnings"].to_string().contains("alerts: no connection");
    eventually("a warning", || warns(&gateway).then_some(()));
    receiver.open();
    is_noted(&gateway, &operation);
    assert_eq!(named(&receiver.only()), [operation]);
    eventually("no warning", || (!warns(&gateway)).then_some(()));
}

fn letters_of_one_kind_share_an_alert(ground: Ground) {
    let (upstream, receiver) = (ScriptedUpstream::start(), ScriptedUpstream::start());
    let gateway = settings(&upstream, &receiver, "group_wait = '3s'").start(&ground);
    let alike: Vec<_> = (0..3).map(|number| lost_charge(&upstream, &gateway, &format!("k-{number}"))).collect();
    upstream.then(Step::Reply(Reply::new(503)));
    let other = gateway.charge("other").send().expect(503).operation().to_owned();
    alike.iter().chain([&other]).for_each(|operation| is_noted(&gateway, operation));
    let mut told: Vec<_> = receiver.seen().iter().map(named).collect();
    told.sort_by_key(Vec::len);
    assert_eq!((told.len(), &told[0]), (2, &vec![other]));
    assert!(alike.iter().all(|operation| told[1].contains(operation)) && told[1].len() == 3, "{told:?}");
    assert_eq!(receiver.seen()[0].header("Oncegate-Signature"), None);
}

fn what_stays_open_is_told_again(ground: Ground) {
    let (upstream, receiver) = (ScriptedUpstream::start(), ScriptedUpstream::start());
    let gateway = settings(&upstream, &receiver, "group_wait = '0s'\nrepeat_interval = '1s'").start(&ground);
    let operation = lost_charge(&upstream, &gateway, "k-1");
    receiver.wait_for(2);
    let seen = receiver.seen();
    assert_eq!((&body(&seen[0])["repeat"], &body(&seen[1])["repeat"]), (&false.into(), &true.into()));
    assert_eq!(named(&seen[1]), [operation]);
    assert_ne!(seen[0].key(), seen[1].key());
}

fn people_are_told_in_a_sentence(ground: Ground) {
    let (upstream, receiver) = (ScriptedUpstream::start(), ScriptedUpstream::start());
    let rules = "group_wait = '0s'\ngroup_by = ['route']\nformat = 'slack'";
    let gateway = settings(&upstream, &receiver, rules).start(&ground);
    let operation = lost_charge(&upstream, &gateway, "k-1");
    is_noted(&gateway, &operation);
    let told = body(&receiver.only());
    let expected = format!("oncegate: 1 operation needs a person (route payments): {operation} (unknown).");
    assert!(told["text"].as_str().unwrap().starts_with(&expected), "{told}");
}

fn the_log_is_a_receiver(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let settings = Settings::of(&upstream).and("[alerts]\nformat = 'log'\ngroup_wait = '0s'\ngroup_by = []");
    let gateway = settings.start(&ground);
    let operation = lost_charge(&upstream, &gateway, "k-1");
    is_noted(&gateway, &operation);
    let log = gateway.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("operations need a person")).collect();
    assert!(told.len() == 1 && told[0].contains(&operation) && told[0].contains("al_"), "{told:?}");
}
