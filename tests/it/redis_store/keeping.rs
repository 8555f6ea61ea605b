//! How things are kept, and what a step costs.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use oncegate::operation::dead_letter::Next;
use oncegate::operation::transition::{Ended, Opening, Retention};
use oncegate::operation::{Cause, OperationId};
use oncegate::store::{Claimed, Store};

use super::{PATIENT, open, say};
use crate::support::eventually;
use crate::support::lives;
use crate::support::operations::*;
use crate::support::redis_server::RedisServer;

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn only_what_has_ended_expires() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    put_unknown(&store, claim(&store, "unknown")).await;
    let running = put_sent(&store, claim(&store, "running")).await;
    for key in keys(&server) {
        assert_eq!(life(&server, &key), None, "{key}");
    }
    let keep = Retention { receipts: DAY, tombstones: 30 * DAY, unknowns: None };
    let ended = applied(&store, settled(&store, &running, receipt("done"), keep)).await;
    for (part, expected) in [("r", Some(30 * DAY)), ("a", Some(DAY)), ("e", Some(30 * DAY)), ("q", None)] {
        assert_life(&server, &key_of(part, ended.id), expected);
    }
}

#[tokio::test]
async fn a_new_run_lives_until_it_ends() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    let running = put_sent(&store, claim(&store, "again")).await;
    let ended = Ended { cause: Cause::Connect, may_have_run: false };
    let ended = applied(&store, running.end(ended, Next::Client, KEPT_LONG, step(store.now())).unwrap()).await;
    for part in ["r", "e", "q"] {
        assert_life(&server, &key_of(part, ended.id), Some(KEPT_LONG.tombstones));
    }
    let again = ended.claim_again(ownership(store.now(), HOUR), Opening::Claimed, step(store.now())).unwrap();
    applied(&store, again).await;
    for key in keys(&server) {
        assert_eq!(life(&server, &key), None, "{key}");
    }
}

#[tokio::test]
async fn what_a_look_alike_leaves_goes_with_its_window() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    let until = store.now().after(HOUR);
    let first = won(&store, claim_unnamed(&store, "a", [9; 32], Some(until))).await;
    let key = keys(&server).into_iter().find(|key| key.contains("}:u:")).unwrap();
    assert_life(&server, &key, Some(HOUR));
    let running = applied(&store, sent(&store, &first)).await;
    let unresolved = applied(&store, unknown(&store, &running)).await;
    assert_eq!(life(&server, &key), None);
    applied(&store, settled(&store, &unresolved, receipt("late"), KEPT_LONG)).await;
    assert_life(&server, &key, Some(HOUR));
}

#[tokio::test]
async fn all_keys_of_an_operation_are_in_one_slot() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    let running = put_sent(&store, claim_unnamed(&store, "a", [9; 32], Some(store.now().after(HOUR)))).await;
    applied(&store, settled(&store, &running, receipt("done"), KEPT_LONG)).await;
    let keys = keys(&server);
    assert_eq!(keys.len(), 6, "{keys:?}");
    let slots: HashSet<&str> = keys.iter().map(|key| &key[..key.find('}').unwrap()]).collect();
    assert_eq!(slots, HashSet::from(["oncegate:{shop:09"]));
}

#[tokio::test]
async fn purging_leaves_nothing() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    // What ran out stays until somebody looks at it.
    say::<()>(&server, &["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    let count = || say::<usize>(&server, &["DBSIZE"]);
    let empty = count();
    let mut last = None;
    for number in 0..5 {
        let keep = Retention { receipts: SOON, tombstones: SOON, unknowns: None };
        last = Some(put_settled(&store, &format!("gone-{number}"), keep).await);
    }
    let running = put_sent(&store, claim(&store, "running")).await;
    past(&store, last.unwrap().expires_at.unwrap().after(SOON)).await;
    assert_eq!((store.purge(3).await.unwrap(), store.purge(10).await.unwrap()), (3, 2));
    let stored = count() - empty;
    let left: HashSet<String> = keys(&server).into_iter().filter(|key| !key.contains("turn")).collect();
    assert_eq!(stored, left.len() + 1, "with the turn of the purge");
    let indexes = ["l", "o", "c"].map(|letter| index_of(letter, running.id));
    let expected = ["r", "q", "e"].map(|part| key_of(part, running.id)).into_iter().chain(indexes);
    assert_eq!(left, expected.collect());
}

/// An older version takes what ran out of the indexes that it knows.
#[tokio::test]
async fn letters_that_are_gone_leave_their_index() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    let kept = put_not_executed(&store, "kept", Next::Person).await;
    for number in 0..5 {
        let gone = put_not_executed(&store, &format!("gone-{number}"), Next::Person).await.id;
        say::<()>(&server, &["DEL", &key_of("r", gone)]);
        for letter in ["l", "o"] {
            say::<()>(&server, &["ZREM", &index_of(letter, gone), &gone.to_string()]);
        }
    }
    assert_eq!(store.dead_letters(None, 10).await.unwrap().operations, [kept]);
    let indexes = keys(&server).into_iter().filter(|key| key.ends_with("}:d"));
    assert_eq!(indexes.map(|key| say::<usize>(&server, &["ZCARD", &key])).sum::<usize>(), 1);
}

#[tokio::test]
async fn when_all_is_over_only_the_epoch_is_left() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    store.ping().await.unwrap();
    past(&store, lives::live(&store).await).await;
    lives::purge(&store).await;
    // Turns and probes are over within a second, and the server counts what it has not come by yet.
    // Besides the clock of the fleet.
    eventually("nothing but the epoch's key and its markers", || {
        (say::<usize>(&server, &["DBSIZE"]) <= 258).then_some(())
    });
    assert_eq!(keys(&server), [""; 0]);
}

#[tokio::test]
async fn it_says_how_full_it_is_where_memory_has_a_bound() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    assert_eq!(store.space().await.unwrap(), None);
    say::<()>(&server, &["CONFIG", "SET", "maxmemory", "1gb"]);
    let space = store.space().await.unwrap().unwrap();
    assert!(space.limit == 1 << 30 && space.used > 100_000 && space.share() < 0.5, "{space:?}");
}

#[tokio::test]
async fn long_lists_come_in_pages() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    let mut created = Vec::new();
    for number in 0..120 {
        // All in one bucket, so that it alone has to fill a page.
        created.push(won(&store, claim_unnamed(&store, &format!("k{number}"), [5; 32], None)).await);
    }
    let (mut listed, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.list(cursor.as_deref(), 50).await.unwrap();
        assert!(page.operations.len() <= 50);
        listed.extend(page.operations);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert!(listed.is_sorted_by_key(|operation| std::cmp::Reverse(operation.created_at)));
    let ids: HashSet<OperationId> = listed.iter().map(|operation| operation.id).collect();
    assert_eq!((listed.len(), ids), (created.len(), created.iter().map(|operation| operation.id).collect()));
}

#[tokio::test]
async fn of_two_stores_one_wins_a_key_and_one_sweeps() {
    let server = RedisServer::start();
    let (one, other) = (open(&server.url(), PATIENT).await, open(&server.url(), PATIENT).await);
    for number in 0..50 {
        let key = format!("raced-{number}");
        let (first, second) = (claim(&one, &key), claim(&other, &key));
        let (first, second) = tokio::join!(one.claim(&first, None), other.claim(&second, None));
        let won = [first.unwrap(), second.unwrap()].iter().filter(|claimed| **claimed == Claimed::Won).count();
        assert_eq!(won, 1);
    }
    let due = won(&one, claim_as(&one, identity("lapsed"), Duration::ZERO)).await;
    past(&other, due.created_at).await;
    assert_eq!(one.due(9).await.unwrap(), [due.id]);
    assert_eq!(other.due(9).await.unwrap(), [], "it is not its turn");
    while other.due(9).await.unwrap() != [due.id] {}
}

/// A named call takes one round trip for each of its steps.
#[tokio::test]
async fn a_step_is_one_command() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    put_settled(&store, "warm", KEPT_LONG).await;
    let claim = claim(&store, "counted");
    let spent = spent(&server, store.claim(&claim, None)).await;
    assert_eq!(spent, counts(&[("evalsha", 1), ("get", 1), ("set", 2), ("rpush", 1), ("zadd", 3)]));
    let running = applied(&store, sent(&store, &claim.operation)).await;
    let settle = settled(&store, &running, receipt("done"), KEPT_LONG);
    let inside =
        [("getrange", 1), ("pttl", 1), ("set", 2), ("del", 1), ("rpush", 1), ("pexpire", 1), ("zadd", 2), ("zrem", 1)];
    assert_eq!(self::spent(&server, store.write(&settle)).await, counts(&[&[("evalsha", 1)], &inside[..]].concat()));
    let replay = super::super::support::operations::claim(&store, "counted");
    assert_eq!(self::spent(&server, store.claim(&replay, None)).await, counts(&[("mget", 1)]), "it ended here");
    let other = open(&server.url(), PATIENT).await;
    for spent in [counts(&[("evalsha", 1), ("set", 1), ("get", 2)]), counts(&[("mget", 1)])] {
        assert_eq!(self::spent(&server, other.claim(&replay, None)).await, spent);
    }
    assert_eq!(self::spent(&server, store.read(running.id)).await, counts(&[("mget", 1)]));
}

/// Commands that the server ran for `step`; what the store asks each second is left out.
async fn spent<T>(server: &RedisServer, step: impl Future<Output = T>) -> HashMap<String, u64> {
    say::<()>(server, &["CONFIG", "RESETSTAT"]);
    step.await;
    let stats: String = say(server, &["INFO", "commandstats"]);
    let calls = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    });
    let upkeep =
        |name: &str| ["time", "role", "hmget", "config|resetstat", "client|setinfo", "info", "hello"].contains(&name);
    calls.filter(|(name, _)| !upkeep(name)).collect()
}

fn counts(calls: &[(&str, u64)]) -> HashMap<String, u64> {
    calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// All but those of the epoch, which stay for ever.
fn keys(server: &RedisServer) -> Vec<String> {
    let keys: Vec<String> = say(server, &["KEYS", "*"]);
    let is_of_the_fleet = |key: &String| [":epoch", "}:m", ":clock"].iter().any(|end| key.ends_with(end));
    keys.into_iter().filter(|key| !is_of_the_fleet(key)).collect()
}

pub fn key_of(part: &str, id: OperationId) -> String {
    format!("oncegate:{{shop:{:02x}}}:{part}:{id}", id.bucket())
}

fn index_of(letter: &str, id: OperationId) -> String {
    format!("oncegate:{{shop:{:02x}}}:{letter}", id.bucket())
}

/// `None` for a key that stays, and for one that is not there.
fn life(server: &RedisServer, key: &str) -> Option<Duration> {
    let left: i64 = say(server, &["PTTL", key]);
    u64::try_from(left).ok().map(Duration::from_millis)
}

fn assert_life(server: &RedisServer, key: &str, expected: Option<Duration>) {
    let left = life(server, key);
    let is_near = |left: Duration, whole: Duration| left <= whole && left + Duration::from_secs(60) > whole;
    match expected {
        Some(whole) => assert!(left.is_some_and(|left| is_near(left, whole)), "{key}: {left:?}"),
        None => assert_eq!(left, None, "{key}"),
    }
}
