//! Which servers are taken.

use std::time::Duration;

use oncegate::store::redis::{OpenError, RedisStore};
use oncegate::store::{Store, StoreError};

use super::{PATIENT, failing, open, recovered, say};
use crate::support::operations::*;
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn a_wrong_password_is_refused() {
    let server = RedisServer::start();
    say::<()>(&server, &["CONFIG", "SET", "requirepass", "secret"]);
    let with = |credentials: &str| server.url().replace("//", &format!("//{credentials}"));
    for url in [server.url(), with(":wrong@"), with("nobody:secret@")] {
        let error = refused(&url).await;
        assert!(matches!(error, OpenError::Credentials(_)), "{error:?}");
        assert!(!format!("{error:?}").contains("wrong"));
    }
    won(&open(&with(":secret@"), PATIENT).await, claim(&open(&with(":secret@"), PATIENT).await, "k")).await;
}

#[tokio::test]
async fn a_server_that_evicts_is_refused() {
    let server = RedisServer::start();
    say::<()>(&server, &["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    let error = refused(&server.url()).await;
    assert!(matches!(&error, OpenError::Evicts(policy) if policy == "volatile-ttl"), "{error:?}");
}

#[tokio::test]
async fn a_replica_is_refused() {
    let server = RedisServer::start();
    say::<()>(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    assert!(matches!(refused(&server.url()).await, OpenError::Replica));
}

#[tokio::test]
async fn a_url_of_another_kind_is_refused() {
    for url in ["http://localhost", "redis://", "redis+unix:///socket", "localhost:6379", "redis+sentinel://h"] {
        assert!(matches!(refused(url).await, OpenError::Url(_)), "{url}");
    }
}

#[tokio::test]
async fn a_server_that_is_away_at_the_start_is_waited_for() {
    let mut server = RedisServer::start();
    server.kill();
    let store = open(&server.url(), PATIENT).await;
    let change = claim(&store, "early");
    assert!(matches!(store.claim(&change, None).await, Err(StoreError::Away(_))), "at once, not after the timeout");
    server.restart();
    recovered(&store).await;
    won(&store, claim(&store, "later")).await;
}

/// There is nothing in it yet, and nothing can be founded.
#[tokio::test]
async fn a_server_that_takes_no_writes_at_the_start_is_waited_for() {
    for (setting, words) in [("maxmemory", "OOM"), ("min-replicas-to-write", "NOREPLICAS")] {
        let server = RedisServer::start();
        say::<()>(&server, &["CONFIG", "SET", setting, "1"]);
        let store = open(&server.url(), PATIENT).await;
        let error = store.claim(&claim(&store, "early"), None).await.unwrap_err();
        assert!(matches!(&error, StoreError::Refused(why) if why.contains(words)), "{error:?}");
        say::<()>(&server, &["CONFIG", "SET", setting, "0"]);
        recovered(&store).await;
        won(&store, claim(&store, "later")).await;
    }
}

#[tokio::test]
async fn a_server_that_became_unfit_is_not_used() {
    let server = RedisServer::start();
    let store = open(&server.url(), Duration::from_millis(500)).await;
    say::<()>(&server, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let refusal = loop {
        if let StoreError::Refused(why) = failing(&store).await {
            break why;
        }
    };
    assert!(refusal.contains("noeviction"), "{refusal}");
    say::<()>(&server, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    recovered(&store).await;
}

async fn refused(url: &str) -> OpenError {
    RedisStore::connect(url, "shop", PATIENT).await.err().unwrap()
}
