//! `durability = "replicas"`: what counts is what the replicas have.

use std::time::Duration;

use oncegate::operation::Operation;
use oncegate::redis_url::RedisUrl;
use oncegate::store::redis::{RedisStore, Settings};
use oncegate::store::{Store, StoreError, Written};

use super::failover::record_of;
use super::{PATIENT, recovered, say};
use crate::support::eventually;
use crate::support::gateway::Settings as GatewaySettings;
use crate::support::operations::*;
use crate::support::redis_fleet::{follower, is_synced, replicated};
use crate::support::redis_server::RedisServer;
use crate::support::toxic::{Toxic, ToxicProxy};
use crate::support::upstream::ScriptedUpstream;

const SHORT: Duration = Duration::from_secs(3);
/// The state in a record, as only the write that makes it `sent` carries it.
const MARKED_SENT: &[u8] = b"\xa4sent";

async fn open(master: &RedisServer, replicas: usize, timeout: Duration) -> RedisStore {
    let url = RedisUrl::parse(&master.url()).unwrap();
    RedisStore::open(Settings { replicas: Some(replicas), ..Settings::new(url, "shop", timeout) }).await.unwrap()
}

#[tokio::test]
async fn what_the_replica_does_not_have_does_not_count() {
    let (master, replica) = replicated();
    let store = open(&master, 1, SHORT).await;
    let ended = put_settled(&store, "ended", KEPT_LONG).await;
    let claimed = won(&store, claim(&store, "k")).await;
    replica.freeze();
    let intent = sent(&store, &claimed);
    let error = store.write(&intent).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreplicated(_)), "{error:?}");
    let error = store.read(ended.id).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused(_)), "a receipt is told only if it lasts: {error:?}");
    won(&store, claim(&store, "another")).await;
    replica.thaw();
    assert_eq!(until_applied(&store, &intent).await, Written::Applied, "the same write once more");
    assert_eq!(until_read(&store, &ended).await, Some(ended));
}

#[tokio::test]
async fn more_replicas_than_there_are_stop_everything_that_is_acted_upon() {
    let (master, _replica) = replicated();
    let store = open(&master, 2, SHORT).await;
    let claimed = won(&store, claim(&store, "k")).await;
    let error = store.write(&sent(&store, &claimed)).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unreplicated(why) if why.to_string().contains("of 2 replicas")), "{error:?}");
}

/// A server that was a replica for a moment may have lost what it had, though it answers as if nothing were.
#[tokio::test]
async fn another_life_of_the_same_server_is_known() {
    let (master, replica) = replicated();
    let store = open(&master, 1, PATIENT).await;
    let kept = put_settled(&store, "kept", KEPT_LONG).await;
    let (host, port) = (replica.address().ip().to_string(), replica.address().port().to_string());
    say::<()>(&master, &["REPLICAOF", &host, &port]);
    say::<()>(&master, &["REPLICAOF", "NO", "ONE"]);
    recovered(&store).await;
    assert_eq!(until_read(&store, &kept).await, Some(kept));
}

/// The step was done in one life of its server, and `WAIT` is asked in the next.
#[tokio::test]
async fn a_step_of_another_life_does_not_count() {
    let (master, replica) = replicated();
    let proxy = ToxicProxy::to(master.address());
    let url = RedisUrl::parse(&proxy.url()).unwrap();
    let settings = Settings { replicas: Some(1), ..Settings::new(url, "shop", PATIENT) };
    let store = RedisStore::open(settings).await.unwrap();
    put_sent(&store, claim(&store, "warm")).await;
    let claimed = won(&store, claim(&store, "k")).await;
    let intent = sent(&store, &claimed);
    proxy.turn_at(MARKED_SENT, Toxic::Unheard);
    let another_life = async {
        until_done(&master, &claimed).await;
        // In one breath, so that nobody sees it as a replica.
        let mut lives = redis::pipe();
        lives.cmd("REPLICAOF").arg("127.0.0.1").arg(1).cmd("REPLICAOF").arg("NO").arg("ONE");
        lives.exec(&mut redis::Client::open(master.url()).unwrap().get_connection().unwrap()).unwrap();
        let follows = || say::<String>(&master, &["INFO", "replication"]).contains("state=online").then_some(());
        eventually("the replica of before", follows);
        is_synced(replica.address());
        proxy.heal();
    };
    let (written, ()) = tokio::join!(store.write(&intent), another_life);
    let error = written.unwrap_err();
    assert!(matches!(&error, StoreError::Unreplicated(why) if why.to_string().contains("same master")), "{error:?}");
    assert_eq!(until_applied(&store, &intent).await, Written::Applied, "in the new life");
}

/// Returns when the server has the record as `sent`, of which its store has not heard.
async fn until_done(server: &RedisServer, operation: &Operation) {
    let key = record_of(operation);
    let is_sent = || say::<Vec<u8>>(server, &["GET", &key]).windows(MARKED_SENT.len()).any(|it| it == MARKED_SENT);
    while !is_sent() {
        tokio::task::yield_now().await;
    }
}

/// Steps that end together share one `WAIT`.
#[tokio::test]
async fn many_steps_wait_once() {
    let (master, _replica) = replicated();
    let store = open(&master, 1, PATIENT).await;
    let mut claimed = Vec::new();
    for number in 0..64 {
        claimed.push(won(&store, claim(&store, &format!("k{number}"))).await);
    }
    say::<()>(&master, &["CONFIG", "RESETSTAT"]);
    let changes: Vec<_> = claimed.iter().map(|operation| sent(&store, operation)).collect();
    let written = at_once(changes.iter().map(|change| store.write(change))).await;
    assert!(written.iter().all(|written| matches!(written, Ok(Written::Applied))));
    let stats: String = say(&master, &["INFO", "commandstats"]);
    let waits = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls=")?.split(',').next()).unwrap();
    assert!(waits.parse::<usize>().unwrap() < 32, "{waits}");
}

#[tokio::test]
async fn missing_replicas_are_told() {
    let (master, replica) = replicated();
    assert_eq!(open(&master, 1, PATIENT).await.advice().await.unwrap(), Vec::<String>::new());
    let advice = open(&master, 2, PATIENT).await.advice().await.unwrap();
    assert!(advice[0].contains("has 1 of the 2 replicas"), "{advice:?}");
    let another = follower(&master);
    let advice = open(&master, 1, PATIENT).await.advice().await.unwrap();
    assert!(advice[0].contains("has 2 replicas and store.replicas waits for 1"), "{advice:?}");
    drop((replica, another));
    let store = open(&master, 1, PATIENT).await;
    let missing = async {
        loop {
            if let Some(advice) = store.advice().await.unwrap().pop() {
                break advice;
            }
        }
    };
    let advice = missing.await;
    assert!(advice.contains("has 0 of the 1 replicas"), "{advice}");
}

#[tokio::test]
async fn a_master_that_does_not_stop_when_it_is_cut_off_is_told() {
    let (master, _replica) = replicated();
    let store = super::open(&master.url(), PATIENT).await;
    let advice = store.advice().await.unwrap();
    assert!(advice[0].contains("min-replicas-to-write is 0"), "{advice:?}");
    say::<()>(&master, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_eq!(store.advice().await.unwrap(), Vec::<String>::new());
    say::<()>(&master, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
    say::<()>(&master, &["ACL", "SETUSER", "default", "-info"]);
    assert_eq!(store.advice().await.unwrap(), Vec::<String>::new(), "one that may not tell");
}

#[tokio::test]
async fn a_server_that_forgets_when_it_dies_is_told_of() {
    let server = RedisServer::start();
    let store = super::open(&server.url(), PATIENT).await;
    assert_eq!(store.advice().await.unwrap(), Vec::<String>::new());
    say::<()>(&server, &["CONFIG", "SET", "appendonly", "no"]);
    let advice = store.advice().await.unwrap();
    assert!(advice.len() == 1 && advice[0].contains("say appendonly yes"), "{advice:?}");
    say::<()>(&server, &["ACL", "SETUSER", "default", "-info", "-config|get"]);
    let advice = store.advice().await.unwrap();
    assert!(advice.len() == 1 && advice[0].contains("does not tell its maxmemory-policy"), "{advice:?}");
}

#[test]
fn a_gateway_says_what_its_replicas_lack() {
    let (master, _replica) = replicated();
    let settings = GatewaySettings::of(&ScriptedUpstream::start());
    let too_many = settings.clone().top("store.durability = 'replicas'").top("store.replicas = 2");
    for (settings, words) in [(settings, "min-replicas-to-write is 0"), (too_many, "1 of the 2 replicas")] {
        let gateway = settings.start_on(&master.url());
        let told = || gateway.admin("/v1/status")["warnings"].to_string();
        eventually("a warning", || told().contains(words).then_some(()));
        assert!(gateway.log().contains(words));
    }
}

async fn until_applied(store: &dyn Store, change: &oncegate::operation::transition::Change) -> Written {
    loop {
        if let Ok(written) = store.write(change).await {
            return written;
        }
    }
}

async fn until_read(store: &dyn Store, operation: &Operation) -> Option<Operation> {
    loop {
        if let Ok(found) = store.read(operation.id).await {
            return found.map(|found| found.operation);
        }
        tokio::task::yield_now().await;
    }
}
