//! Stores that the first version left behind, which wrote no checksums: `tests/vectors/store-1.sql` and `store-1.aof`.
//!
//! A gateway of it answered a few calls, was killed in the middle of four more, and the store was kept as it stood then.
//! Whatever is in it has to be understood for as long as records live.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use rusqlite::Connection;

use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::ScriptedUpstream;

const FILE: &str = include_str!("../vectors/store-1.sql");
const REDIS: &[u8] = include_bytes!("../vectors/store-1.aof");
/// Ten years after it was recorded its operations are over.
const KEPT: &str = "store.receipts = '3650d'\nstore.tombstones = '3650d'\nupstreams.payments.key_retention = '3650d'";

fn restored_file() -> Ground {
    let ground = Ground::file();
    Connection::open(ground.path()).unwrap().execute_batch(FILE).unwrap();
    ground
}

fn restored_redis() -> Ground {
    let mut ground = Ground::redis();
    let mut connection = TcpStream::connect(ground.server().address()).unwrap();
    connection.write_all(REDIS).unwrap();
    connection.shutdown(Shutdown::Write).unwrap();
    let mut replies = String::new();
    connection.read_to_string(&mut replies).unwrap();
    assert!(replies.starts_with("+OK") && !replies.contains("\n-"), "{replies}");
    ground
}

/// The settings under which it was recorded.
fn opened(ground: &Ground, upstream: &ScriptedUpstream) -> Gateway {
    let settings = Settings::of(upstream).quick().top(KEPT).top(&format!("upstreams.away.url = '{}'", upstream.url()));
    let honoured =
        "[[routes]]\nname = 'honoured'\nmatch.path = '/honoured'\nupstream = 'payments'\nrepeat = 'with-key'";
    let away = "[[routes]]\nname = 'away'\nmatch.path = '/away'\nupstream = 'away'\nretry.max_attempts = 1000";
    settings.and(honoured).and(away).start(ground)
}

#[test]
fn every_state_of_a_recorded_file_is_understood() {
    every_state_is_understood(&restored_file());
}

#[test]
fn every_state_of_a_recorded_redis_is_understood() {
    every_state_is_understood(&restored_redis());
}

fn every_state_is_understood(ground: &Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = opened(ground, &upstream);
    listed_as_dead(&gateway);

    let done = gateway.charge("k-done").send().expect(201);
    assert!(done.is_replay());
    assert_eq!(done.body, br#"{"id": "ch_1"}"#);
    let failed = gateway.charge("k-failed").send().expect(422);
    assert_eq!((failed.is_replay(), failed.body.as_slice()), (true, &br#"{"error": "no such card"}"#[..]));
    for key in ["k-unknown", "k-sent"] {
        gateway.charge(key).send().expect_problem(409, "outcome-unknown");
    }
    gateway.post("/unnamed").json(r#"{"amount": 500}"#).send().expect_problem(409, "outcome-unknown");
    let changed = gateway.post("/charges").key("k-done").json(r#"{"amount": 501}"#).send();
    changed.expect_problem(422, "key-reused");

    // What was out to a service that honours keys is fetched, by the sweep or by us.
    let resent = gateway.post("/honoured").key("k-resent").json(r#"{"amount": 700}"#).send().expect(201);
    let again = gateway.post("/honoured").key("k-resent").json(r#"{"amount": 700}"#).send().expect(201);
    assert_eq!((again.is_replay(), &again.body), (true, &resent.body));
    // What did not run is made now.
    gateway.charge("k-refused").send().expect(201);
    gateway.charge("k-waiting").send().expect(201);
    gateway.post("/away").key("k-claimed").json(r#"{"amount": 900}"#).send().expect(201);

    let mut keys: Vec<_> = upstream.seen().iter().map(|seen| seen.key().unwrap().to_owned()).collect();
    keys.sort();
    assert_eq!(keys, ["k-claimed", "k-refused", "k-resent", "k-waiting"], "nothing else was sent");
    histories_are_whole(&gateway);
}

/// A file is put into order when it is opened; a Redis has other gateways.
fn listed_as_dead(gateway: &Gateway) {
    let unknown = gateway.operations("?state=unknown");
    let dead = gateway.operations("?dead=true");
    let is_noted = |key: &str| dead.iter().any(|letter| letter.0["key"] == key);
    assert!(unknown.iter().any(|operation| operation.0["key"] == "k-unknown"));
    assert_eq!(is_noted("k-unknown"), gateway.admin("/v1/status")["store"]["kind"] == "file");
}

fn histories_are_whole(gateway: &Gateway) {
    let operations = gateway.operations("");
    assert_eq!(operations.len(), 9);
    for operation in operations {
        let whole = gateway.operation(operation.0["id"].as_str().unwrap());
        assert!(whole.events().len() >= 3, "{whole:?}");
    }
    let unreadable = gateway.admin("/v1/status")["unreadable"].take();
    assert_eq!(unreadable, serde_json::json!({ "records": 0, "receipts": 0, "requests": 0, "events": 0 }));
}
