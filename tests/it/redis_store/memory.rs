//! A server that has forgotten what it acknowledged is found out, and used again only when an operator says so.

use std::time::{Duration, Instant};

use oncegate::store::redis::RedisStore;
use oncegate::store::{Claimed, Store, StoreError};

use super::{PATIENT, open, recovered, say};
use crate::support::operations::*;
use crate::support::redis_fleet::{ClusterFleet, try_say};
use crate::support::redis_server::RedisServer;

const EPOCH: &str = "oncegate:{shop}:epoch";

#[tokio::test]
async fn not_one_claim_passes_after_a_flush() {
    let server = RedisServer::start();
    let stores = [open(&server.url(), PATIENT).await, open(&server.url(), PATIENT).await];
    let ended = put_settled(&stores[0], "ran", KEPT_LONG).await;
    say::<()>(&server, &["FLUSHALL"]);
    for store in &stores {
        expect_lost(store.claim(&claim(store, "ran"), None).await);
        expect_lost(store.ping().await);
        expect_lost(store.read(ended.id).await);
    }
    let left: Vec<String> = say(&server, &["KEYS", "*"]);
    assert_eq!(left, [EPOCH], "nothing but the word that it was flushed");
}

#[tokio::test]
async fn who_begins_after_the_flush_is_told_by_those_who_were_there() {
    let server = RedisServer::start();
    let before = open(&server.url(), PATIENT).await;
    say::<()>(&server, &["FLUSHALL"]);
    finds_out(&before).await;
    let after = open(&server.url(), PATIENT).await;
    expect_lost(after.claim(&claim(&after, "k"), None).await);
}

/// It may found an epoch of its own before the others have noticed.
#[tokio::test]
async fn who_was_faster_than_they_is_stopped_soon() {
    let server = RedisServer::start();
    let before = open(&server.url(), PATIENT).await;
    say::<()>(&server, &["FLUSHALL"]);
    let after = open(&server.url(), PATIENT).await;
    finds_out(&before).await;
    finds_out(&after).await;
}

#[tokio::test]
async fn an_older_copy_is_found_out_before_anything_is_asked_of_it() {
    let mut server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    let count = counted(&store, &server, 1).await;
    let copy = server.copy();
    put_settled(&store, "ran", KEPT_LONG).await;
    counted(&store, &server, count + 1).await;
    server.kill();
    server.put_back(&copy);
    server.restart();
    finds_out(&store).await;
    expect_lost(store.claim(&claim(&store, "ran"), None).await);
}

#[tokio::test]
async fn another_database_is_found_out() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    put_settled(&store, "ran", KEPT_LONG).await;
    say::<()>(&server, &["SWAPDB", "0", "1"]);
    expect_lost(store.claim(&claim(&store, "ran"), None).await);
    say::<()>(&server, &["SWAPDB", "0", "1"]);
    recovered(&store).await;
    assert!(matches!(store.claim(&claim(&store, "ran"), None).await, Ok(Claimed::Exists(_))));
}

/// A gateway that is led to a store of other gateways by mistake closes itself and not them.
#[tokio::test]
async fn another_store_of_the_same_name_is_left_alone() {
    let server = RedisServer::start();
    let ours = open(&server.url(), PATIENT).await;
    let theirs = open(&format!("{}/1", server.url()), PATIENT).await;
    let long_ago = ["HSET", EPOCH, "founded", "1"];
    redis::pipe().cmd("SELECT").arg(1).cmd("HSET").arg(&long_ago[1..]).exec(&mut server.admin()).unwrap();
    say::<()>(&server, &["SWAPDB", "0", "1"]);
    expect_lost(ours.claim(&claim(&ours, "k"), None).await);
    say::<()>(&server, &["SWAPDB", "0", "1"]);
    recovered(&theirs).await;
    recovered(&ours).await;
}

#[tokio::test]
async fn a_bucket_that_is_gone_closes_the_whole_store() {
    let server = RedisServer::start();
    let (store, other) = (open(&server.url(), PATIENT).await, open(&server.url(), PATIENT).await);
    let ended = put_settled(&store, "ran", KEPT_LONG).await;
    let lost: Vec<String> = say(&server, &["KEYS", &format!("oncegate:{{shop:{:02x}}}:*", ended.id.bucket())]);
    assert!(lost.len() > 3, "{lost:?}");
    say::<()>(&server, &[&["DEL"], &*lost.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    expect_lost(store.claim(&claim(&store, "ran"), None).await);
    finds_out(&other).await;
}

/// Nobody calls, and the gateway whose turn it is sees it.
#[tokio::test]
async fn a_bucket_that_is_gone_is_missed_even_if_nobody_asks_for_it() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    say::<()>(&server, &["DEL", "oncegate:{shop:7f}:m"]);
    let error = loop {
        if let Err(error) = store.due(1).await {
            break error;
        }
    };
    assert!(error.to_string().contains("bucket 7f"), "{error}");
}

/// The key of the epoch is on another server than what was lost.
#[tokio::test]
async fn a_lost_part_of_a_cluster_closes_all_of_it() {
    let fleet = ClusterFleet::start();
    let store = open(&fleet.url(), PATIENT).await;
    let marker = "oncegate:{shop:7f}:m";
    let lost = fleet
        .servers
        .iter()
        .filter(|server| try_say(server.address(), &["DEL", marker]).is_ok_and(|lost: i64| lost == 1));
    assert_eq!(lost.count(), 1);
    let since = Instant::now();
    while store.due(1).await.is_ok() {
        assert!(since.elapsed() < PATIENT, "it has not been missed");
    }
    finds_out(&store).await;
    let newcomer = open(&fleet.url(), PATIENT).await;
    expect_lost(newcomer.ping().await);
    assert!(newcomer.accept_loss().await.unwrap());
    recovered(&newcomer).await;
    recovered(&store).await;
}

#[tokio::test]
async fn the_key_of_the_epoch_alone_may_be_what_was_lost() {
    let server = RedisServer::start();
    let store = open(&server.url(), PATIENT).await;
    say::<()>(&server, &["DEL", EPOCH]);
    let newcomer = open(&server.url(), PATIENT).await;
    expect_lost(newcomer.claim(&claim(&newcomer, "k"), None).await);
    finds_out(&store).await;
}

#[tokio::test]
async fn one_word_of_an_operator_is_enough_for_all() {
    let server = RedisServer::start();
    let stores = [open(&server.url(), PATIENT).await, open(&server.url(), PATIENT).await];
    for round in 0..2 {
        assert!(!stores[1].accept_loss().await.unwrap(), "nothing was lost");
        say::<()>(&server, &["FLUSHALL"]);
        expect_lost(stores[0].claim(&claim(&stores[0], "again"), None).await);
        finds_out(&stores[1]).await;
        assert!(stores[1].accept_loss().await.unwrap());
        for store in &stores {
            recovered(store).await;
            won(store, claim(store, &format!("{round} {:p}", store))).await;
        }
        // Whoever comes later finds nothing strange.
        recovered(&open(&server.url(), PATIENT).await).await;
    }
}

#[tokio::test]
async fn a_newcomer_may_take_the_word_for_gateways_that_know_more() {
    let server = RedisServer::start();
    let old = open(&server.url(), PATIENT).await;
    for _ in 0..2 {
        say::<()>(&server, &["FLUSHALL"]);
        finds_out(&old).await;
        let new = open(&server.url(), PATIENT).await;
        expect_lost(new.ping().await);
        assert!(new.accept_loss().await.unwrap());
        recovered(&new).await;
        recovered(&old).await;
    }
    let mut restarted = server;
    restarted.kill();
    restarted.restart();
    recovered(&old).await;
    recovered(&open(&restarted.url(), PATIENT).await).await;
}

/// The gateway that founded it died in between.
#[tokio::test]
async fn a_founding_that_broke_off_is_finished_by_the_next() {
    let server = RedisServer::start();
    let fields =
        ["HSET", EPOCH, "id", "0123456789abcdef", "generation", "1", "count", "0", "founded", "1", "open", "0"];
    say::<()>(&server, &fields);
    say::<()>(&server, &["SET", "oncegate:{shop:00}:m", "0123456789abcdef"]);
    let store = open(&server.url(), PATIENT).await;
    won(&store, claim(&store, "k")).await;
}

#[tokio::test]
async fn of_many_that_begin_together_all_agree() {
    let server = RedisServer::start();
    let url = server.url();
    let stores = at_once((0..8).map(|_| RedisStore::connect(&url, "shop", PATIENT))).await;
    for (number, store) in stores.into_iter().enumerate() {
        let store = store.unwrap();
        won(&store, claim(&store, &number.to_string())).await;
    }
}

/// During an upgrade: what an older version left has no epoch.
#[tokio::test]
async fn records_without_an_epoch_are_taken_over() {
    let server = RedisServer::start();
    let ended = put_settled(&open(&server.url(), PATIENT).await, "older", KEPT_LONG).await;
    let of_epoch: Vec<String> = say(&server, &["KEYS", "oncegate:{shop*:m"]);
    say::<()>(&server, &[&["DEL", EPOCH], &*of_epoch.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    let store = open(&server.url(), PATIENT).await;
    let claimed = store.claim(&claim(&store, "older"), None).await.unwrap();
    assert!(matches!(claimed, Claimed::Exists(found) if found.operation == ended));
    won(&store, claim(&store, "newer")).await;
}

/// Returns when the epoch counts at least so many, and what it counts.
async fn counted(store: &RedisStore, server: &RedisServer, least: u64) -> u64 {
    loop {
        store.due(1).await.unwrap();
        let count: u64 = say(server, &["HGET", EPOCH, "count"]);
        if count >= least {
            return count;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A step under way may first see its connection end.
async fn finds_out(store: &RedisStore) {
    let since = Instant::now();
    while !matches!(store.ping().await, Err(StoreError::LostMemory(_))) {
        assert!(since.elapsed() < PATIENT, "it has not been missed");
        tokio::task::yield_now().await;
    }
}

#[track_caller]
fn expect_lost<T: std::fmt::Debug>(asked: Result<T, StoreError>) {
    assert!(matches!(asked, Err(StoreError::LostMemory(_))), "{asked:?}");
}
