//! What happens to a step when the server or the way to it fails.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use oncegate::operation::OperationId;
use oncegate::store::{Claimed, Store, StoreError, Written};

use super::keeping::key_of;
use super::{PATIENT, failing, open, recovered, say};
use crate::support::operations::*;
use crate::support::redis_fleet::ClusterFleet;
use crate::support::redis_server::RedisServer;
use crate::support::toxic::{Toxic, ToxicProxy};
use crate::support::wall_clock::WallClock;

/// Comes in every question that runs one.
const SCRIPT: &[u8] = b"EVAL";

#[tokio::test]
async fn a_lost_answer_is_asked_for_again() {
    let server = RedisServer::start();
    let proxy = ToxicProxy::to(server.address());
    let store = open(&proxy.url(), PATIENT).await;
    for toxic in [
        Toxic::Cut,
        Toxic::CutAfter(9),
        Toxic::Instead(b"\x00garbage\r\n"),
        Toxic::Instead(b"$999999999999\r\n"),
        Toxic::Before(b"+OK\r\n"),
    ] {
        let key = format!("{toxic:?}");
        proxy.spoil(SCRIPT, toxic);
        let claimed = won(&store, claim(&store, &key)).await;
        assert!(proxy.has_spoiled());
        proxy.spoil(SCRIPT, toxic);
        let running = applied(&store, sent(&store, &claimed)).await;
        assert!(proxy.has_spoiled());
        assert_eq!(store.read(running.id).await.unwrap().unwrap().operation, running);
        assert_eq!(store.events(running.id).await.unwrap().len(), 2, "{toxic:?}");
    }
}

#[tokio::test]
async fn a_note_with_a_lost_answer_still_says_what_was_there() {
    let server = RedisServer::start();
    let proxy = ToxicProxy::to(server.address());
    let store = open(&proxy.url(), PATIENT).await;
    store.remember("rules", "old", None).await.unwrap();
    proxy.spoil(SCRIPT, Toxic::Cut);
    assert_eq!(store.remember("rules", "new", None).await.unwrap().as_deref(), Some("old"));
    assert_eq!(store.remember("rules", "newer", None).await.unwrap().as_deref(), Some("new"));
}

/// It takes a second and more, and what is asked meanwhile waits behind it.
#[tokio::test]
async fn a_long_receipt_has_the_time_that_it_takes() {
    let server = RedisServer::start();
    let proxy = ToxicProxy::to(server.address());
    let store = open(&proxy.url(), Duration::from_millis(500)).await;
    let running = put_sent(&store, claim(&store, "long")).await;
    let change = settled(&store, &running, receipt(vec![b'x'; 4 << 20]), KEPT_LONG);
    proxy.turn(Toxic::Latency(Duration::from_millis(20)));
    let begin = Instant::now();
    let (written, read) = tokio::join!(biased; store.write(&change), store.read(running.id));
    assert_eq!(written.unwrap(), Written::Applied);
    assert!(begin.elapsed() > Duration::from_secs(1), "{:?}", begin.elapsed());
    assert!(read.is_err_and(|error| matches!(error, StoreError::Timeout)));
    proxy.heal();
    assert_eq!(store.read(running.id).await.unwrap().unwrap().operation, change.operation);
}

/// Those that go on asking over it must not keep it.
#[tokio::test]
async fn a_dead_connection_is_given_up_while_long_receipts_wait() {
    let server = RedisServer::start();
    let proxy = ToxicProxy::to(server.address());
    let store = open(&proxy.url(), Duration::from_millis(300)).await;
    let mut changes = Vec::new();
    for key in ["first", "second"] {
        let running = put_sent(&store, claim(&store, key)).await;
        changes.push(settled(&store, &running, receipt(vec![b'x'; 2 << 20]), KEPT_LONG));
    }
    proxy.turn(Toxic::Blackhole);
    let write = async |change, wait| {
        tokio::time::sleep(wait).await;
        while store.write(change).await.is_err() {}
    };
    let heal = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.heal();
    };
    let both = async {
        tokio::join!(write(&changes[0], Duration::ZERO), write(&changes[1], Duration::from_secs(1)), heal);
    };
    tokio::time::timeout(PATIENT, both).await.expect("another connection");
}

/// Its deadline is far away, and what has gone under is sent again over another one.
#[tokio::test]
async fn a_dead_connection_is_given_up_in_the_middle_of_a_long_receipt() {
    let server = RedisServer::start();
    let proxy = ToxicProxy::to(server.address());
    let store = open(&proxy.url(), Duration::from_millis(300)).await;
    let running = put_sent(&store, claim(&store, "long")).await;
    let change = settled(&store, &running, receipt(vec![b'x'; 16 << 20]), KEPT_LONG);
    proxy.turn(Toxic::Blackhole);
    let heal = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.heal();
    };
    let (written, ()) = tokio::join!(store.write(&change), heal);
    assert_eq!(written.unwrap(), Written::Applied);
}

#[tokio::test]
async fn a_no_is_a_no_at_once() {
    let server = RedisServer::start();
    let proxy = ToxicProxy::to(server.address());
    let store = open(&proxy.url(), PATIENT).await;
    for said in ["-ERR injected by the case\r\n", "-NOREPLICAS Not enough good replicas to write.\r\n"] {
        proxy.spoil(SCRIPT, Toxic::Instead(said.as_bytes()));
        let error = store.claim(&claim(&store, said), None).await.unwrap_err();
        let words = said.trim_start_matches('-').trim_end();
        assert!(matches!(&error, StoreError::Refused(why) if why == words), "{error:?}");
    }
    won(&store, claim(&store, "next")).await;
}

#[tokio::test]
async fn a_server_that_is_not_ready_is_asked_again() {
    let server = RedisServer::start();
    let proxy = ToxicProxy::to(server.address());
    let store = open(&proxy.url(), PATIENT).await;
    for said in ["-LOADING Redis is loading the dataset in memory\r\n", "-CLUSTERDOWN Hash slot not served\r\n"] {
        proxy.spoil(SCRIPT, Toxic::Instead(said.as_bytes()));
        won(&store, claim(&store, said)).await;
        assert!(proxy.has_spoiled());
    }
}

#[tokio::test]
async fn a_connection_that_fell_silent_is_replaced() {
    let server = RedisServer::start();
    let proxy = ToxicProxy::to(server.address());
    let store = open(&proxy.url(), Duration::from_millis(500)).await;
    proxy.spoil(SCRIPT, Toxic::Blackhole);
    let change = claim(&store, "unheard");
    let first = store.claim(&change, None).await;
    assert!(matches!(first, Err(StoreError::Timeout) | Ok(Claimed::Won)), "{first:?}");
    assert!(proxy.has_spoiled());
    recovered(&store).await;
    assert_eq!(store.claim(&change, None).await.unwrap(), Claimed::Won);
    assert_eq!(store.events(change.operation.id).await.unwrap().len(), 1);
}

/// Its gateway is gone as well by then, so that nobody takes it back.
#[tokio::test]
async fn what_begins_a_run_is_not_done_after_its_caller_was_told_that_it_was_not() {
    let server = RedisServer::start();
    let store = open(&server.url(), Duration::from_millis(400)).await;
    recovered(&store).await;
    let running = put_sent(&store, claim(&store, "running")).await;
    let take_over = running.take_over(ownership(store.now(), HOUR), step(store.now())).unwrap();
    let claim = claim(&store, "late");
    server.freeze();
    let (claimed, taken_over) = tokio::join!(store.claim(&claim, None), store.write(&take_over));
    // The first to give up replaces the line, under the other's hands too.
    assert!(matches!(claimed, Err(StoreError::Timeout | StoreError::Connection(_))), "{claimed:?}");
    assert!(matches!(taken_over, Err(StoreError::Timeout | StoreError::Connection(_))), "{taken_over:?}");
    drop(store);
    server.thaw();

    let after = open(&server.url(), PATIENT).await;
    recovered(&after).await;
    assert_eq!(after.read(claim.operation.id).await.unwrap(), None);
    assert_eq!(after.read(running.id).await.unwrap().unwrap().operation, running);
}

/// The masters of a cluster may differ in their clocks.
#[tokio::test]
async fn what_is_late_is_late_by_the_clock_of_the_server_that_would_do_it() {
    let clock = WallClock::start();
    clock.jump("-1h");
    let fleet = ClusterFleet::by_two_clocks(&clock);
    let slow = &fleet.servers[1];
    let is_there = |key: &String| slow.say::<i64>(&["CLUSTER", "KEYSLOT", &marker_of(id(key).bucket())]) >= 8192;
    let keys: Vec<String> = (0..).map(|number| format!("k-{number}")).filter(is_there).take(2).collect();
    let store = open(&fleet.url(), Duration::from_secs(1)).await;
    recovered(&store).await;
    won(&store, claim(&store, &keys[0])).await;
    let late = claim(&store, &keys[1]);
    slow.freeze();
    let claimed = store.claim(&late, None).await;
    assert!(matches!(claimed, Err(StoreError::Timeout)), "{claimed:?}");
    drop(store);
    slow.thaw();

    let after = open(&fleet.url(), PATIENT).await;
    recovered(&after).await;
    assert_eq!(after.read(late.operation.id).await.unwrap(), None);
}

fn marker_of(bucket: u8) -> String {
    format!("oncegate:{{shop:{bucket:02x}}}:m")
}

#[tokio::test]
async fn a_frozen_server_costs_no_more_than_the_timeout() {
    let server = RedisServer::start();
    let timeout = Duration::from_millis(400);
    let store = open(&server.url(), timeout).await;
    recovered(&store).await;
    let running = put_sent(&store, claim(&store, "running")).await;
    let settle = settled(&store, &running, receipt("done"), KEPT_LONG);
    server.freeze();
    for _ in 0..4 {
        let changes: Vec<_> = (0..8).map(|number| claim(&store, &format!("frozen-{number}"))).collect();
        let since = Instant::now();
        let claims = at_once(changes.iter().map(|change| store.claim(change, None))).await;
        assert!(matches!(
            store.write(&settle).await,
            Err(StoreError::Timeout | StoreError::Connection(_) | StoreError::Away(_))
        ));
        assert!(since.elapsed() < 2 * timeout + Duration::from_millis(600), "{:?}", since.elapsed());
        assert!(
            claims.iter().all(|claim| matches!(
                claim,
                Err(StoreError::Timeout | StoreError::Connection(_) | StoreError::Away(_))
            ))
        );
    }
    server.thaw();
    recovered(&store).await;
    applied(&store, settle).await;
}

#[tokio::test]
async fn a_killed_server_has_what_it_acknowledged() {
    let mut server = RedisServer::start();
    let store = open(&server.url(), Duration::from_secs(2)).await;
    let mut ended = Vec::new();
    for number in 0..20 {
        ended.push(put_settled(&store, &format!("kept-{number}"), KEPT_LONG).await);
    }
    server.kill();
    assert!(matches!(failing(&store).await, StoreError::Connection(_) | StoreError::Away(_) | StoreError::Timeout));
    server.restart();
    recovered(&store).await;
    for operation in ended {
        let found = store.read(operation.id).await.unwrap().unwrap();
        assert_eq!((found.operation, found.receipt), (operation, Some(receipt("done"))));
    }
    won(&store, claim(&store, "after")).await;
}

#[tokio::test]
async fn a_short_outage_is_waited_for() {
    let mut server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    server.kill();
    let change = claim(&store, "meanwhile");
    let (claimed, ()) = tokio::join!(store.claim(&change, None), async { server.restart() });
    assert_eq!(claimed.unwrap(), Claimed::Won);
}

#[tokio::test]
async fn a_demoted_server_is_left_until_it_is_a_master_again() {
    let server = RedisServer::start();
    let store = open(&server.url(), Duration::from_millis(500)).await;
    let running = put_sent(&store, claim(&store, "running")).await;
    say::<()>(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    let error = store.write(&settled(&store, &running, receipt("lost"), KEPT_LONG)).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
    say::<()>(&server, &["REPLICAOF", "NO", "ONE"]);
    recovered(&store).await;
    applied(&store, settled(&store, &running, receipt("done"), KEPT_LONG)).await;
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    let running = put_sent(&store, claim(&store, "flushed")).await;
    say::<()>(&server, &["SCRIPT", "FLUSH"]);
    assert_eq!(store.write(&settled(&store, &running, receipt("done"), KEPT_LONG)).await.unwrap(), Written::Applied);
    assert_eq!(store.read(running.id).await.unwrap().unwrap().receipt, Some(receipt("done")));
}

#[tokio::test]
async fn a_full_server_refuses_and_nothing_is_written() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    let running = put_sent(&store, claim(&store, "running")).await;
    say::<()>(&server, &["CONFIG", "SET", "maxmemory", "1mb"]);
    let change = claim(&store, "too-much");
    let settle = settled(&store, &running, receipt("done"), KEPT_LONG);
    for error in [store.claim(&change, None).await.unwrap_err(), store.write(&settle).await.unwrap_err()] {
        assert!(matches!(&error, StoreError::Refused(why) if why.starts_with("OOM")), "{error:?}");
    }
    assert!(matches!(store.ping().await, Err(StoreError::Refused(_))));
    assert_eq!(store.read(change.operation.id).await.unwrap(), None);
    assert_eq!(store.read(running.id).await.unwrap().unwrap().operation, running);
    assert_eq!(store.events(running.id).await.unwrap().len(), 2);
    say::<()>(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    won(&store, change).await;
    applied(&store, settle).await;
}

#[tokio::test]
async fn a_key_of_ours_that_holds_something_else_takes_nothing() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    let running = put_sent(&store, claim(&store, "running")).await;
    let settle = settled(&store, &running, receipt("done"), KEPT_LONG);
    let change = claim(&store, "new");
    let id = change.operation.id;
    let index = |index: &str, id: OperationId| format!("oncegate:{{shop:{:02x}}}:{index}", id.bucket());
    for key in [key_of("r", id), key_of("e", id), index("l", id), index("o", id)] {
        refuses(&server, &key, || store.claim(&change, None)).await;
        assert_eq!(store.read(id).await.unwrap(), None, "{key}");
    }
    for key in [key_of("e", running.id), index("l", running.id)] {
        refuses(&server, &key, || store.write(&settle)).await;
        assert_eq!(store.read(running.id).await.unwrap().unwrap().operation, running, "{key}");
    }
    won(&store, change).await;
    applied(&store, settle).await;
    assert_eq!((store.events(id).await.unwrap().len(), store.events(running.id).await.unwrap().len()), (1, 3));
}

/// While `key` is somebody else's.
async fn refuses<T: Debug, F: Future<Output = Result<T, StoreError>>>(
    server: &RedisServer,
    key: &str,
    step: impl FnOnce() -> F,
) {
    let ours: bool = say(server, &["EXISTS", key]);
    if ours {
        say::<()>(server, &["RENAME", key, "aside"]);
    }
    say::<()>(server, &["HSET", key, "their", "own"]);
    let refusal = step().await;
    assert!(matches!(&refusal, Err(StoreError::Refused(why)) if why.starts_with("WRONGTYPE")), "{key}: {refusal:?}");
    say::<()>(server, &["DEL", key]);
    if ours {
        say::<()>(server, &["RENAME", "aside", key]);
    }
}
