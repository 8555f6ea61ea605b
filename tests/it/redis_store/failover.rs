//! Servers that replace each other under a store: it goes on with the one that is in charge.

use std::net::SocketAddr;

use oncegate::operation::Operation;
use oncegate::store::{Claimed, Store};

use super::{PATIENT, open, recovered};
use crate::support::eventually;
use crate::support::operations::*;
use crate::support::redis_fleet::{ClusterFleet, MASTER, SentinelFleet, say};

#[tokio::test]
async fn sentinels_lead_away_from_a_dead_master() {
    let mut fleet = SentinelFleet::start();
    let store = open(&fleet.url(), PATIENT).await;
    let kept = put_settled(&store, "kept", KEPT_LONG).await;
    let old = fleet.master();
    has_all(fleet.servers[1 - old].address(), fleet.servers[old].address());
    fleet.servers[old].kill();
    recovered(&store).await;
    fleet.has_failed_over(old);
    assert_eq!(store.read(kept.id).await.unwrap().unwrap().operation, kept);
    won(&store, claim(&store, "next")).await;
}

#[tokio::test]
async fn a_master_that_was_deposed_in_its_sleep_is_not_used() {
    let fleet = SentinelFleet::start();
    let store = open(&fleet.url(), PATIENT).await;
    won(&store, claim(&store, "before")).await;
    let old = fleet.master();
    fleet.servers[old].freeze();
    fleet.has_failed_over(old);
    recovered(&store).await;
    fleet.servers[old].thaw();
    for number in 0..20 {
        let claimed = won(&store, claim(&store, &format!("after-{number}"))).await;
        let there: i64 = say(fleet.servers[1 - old].address(), &["EXISTS", &record_of(&claimed)]);
        assert_eq!(there, 1, "{number}");
    }
    fleet.is_replica(old);
}

#[tokio::test]
async fn a_planned_failover_is_followed() {
    let fleet = SentinelFleet::start();
    let store = open(&fleet.url(), PATIENT).await;
    won(&store, claim(&store, "before")).await;
    let old = fleet.master();
    say::<()>(fleet.sentinels[0].address(), &["SENTINEL", "FAILOVER", MASTER]);
    fleet.has_failed_over(old);
    fleet.is_replica(old);
    let claimed = won(&store, claim(&store, "after")).await;
    let there: i64 = say(fleet.servers[1 - old].address(), &["EXISTS", &record_of(&claimed)]);
    assert_eq!(there, 1);
}

#[tokio::test]
async fn a_cluster_goes_on_with_the_replica_of_a_dead_master() {
    let mut fleet = ClusterFleet::start();
    let store = open(&fleet.url(), PATIENT).await;
    let mut kept = Vec::new();
    for number in 0..24 {
        kept.push(put_settled(&store, &format!("kept-{number}"), KEPT_LONG).await);
    }
    has_all(fleet.servers[3].address(), fleet.servers[0].address());
    fleet.servers[0].kill();
    fleet.has_taken_over(3);
    for operation in &kept {
        assert_eq!(until_read(&store, operation).await.as_ref(), Some(operation));
    }
    for number in 0..24 {
        won(&store, claim(&store, &format!("next-{number}"))).await;
    }
    assert_eq!(store.list(None, 100).await.unwrap().operations.len(), 48);
}

/// A slot that moves: new keys go ahead of it, old ones are where they were until they are moved.
#[tokio::test]
async fn a_slot_that_moves_is_followed() {
    let fleet = ClusterFleet::start();
    let store = open(&fleet.url(), PATIENT).await;
    let first = put_settled(&store, "k", KEPT_LONG).await;
    let slot: i64 = say(fleet.servers[0].address(), &["CLUSTER", "KEYSLOT", &record_of(&first)]);
    let slot = slot.to_string();
    let from = usize::try_from(slot.parse::<i64>().unwrap() / 5462).unwrap();
    let to = (from + 1) % 3;
    let id_of = |server: usize| say::<String>(fleet.servers[server].address(), &["CLUSTER", "MYID"]);
    let (source, target) = (fleet.servers[from].address(), fleet.servers[to].address());
    say::<()>(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id_of(from)]);
    say::<()>(source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id_of(to)]);
    assert_eq!(store.read(first.id).await.unwrap().unwrap().operation, first);
    let keys: Vec<String> = say(source, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
    let (host, port) = (target.ip().to_string(), target.port().to_string());
    for key in &keys {
        say::<()>(source, &["MIGRATE", &host, &port, key, "0", "5000"]);
    }
    assert_eq!(store.read(first.id).await.unwrap().unwrap().operation, first, "by ASK");
    for server in [target, source] {
        say::<()>(server, &["CLUSTER", "SETSLOT", &slot, "NODE", &id_of(to)]);
    }
    assert_eq!(store.read(first.id).await.unwrap().unwrap().operation, first, "by MOVED");
    let again = store.claim(&claim(&store, "k"), None).await.unwrap();
    assert!(matches!(again, Claimed::Exists(found) if found.operation == first));
}

pub fn record_of(operation: &Operation) -> String {
    format!("oncegate:{{shop:{:02x}}}:r:{}", operation.id.bucket(), operation.id)
}

async fn until_read(store: &dyn Store, operation: &Operation) -> Option<Operation> {
    loop {
        if let Ok(found) = store.read(operation.id).await {
            return found.map(|found| found.operation);
        }
        tokio::task::yield_now().await;
    }
}

/// Returns when the replica has all that the master had.
fn has_all(replica: SocketAddr, master: SocketAddr) {
    let offset = |server| -> u64 {
        let about: String = say(server, &["INFO", "replication"]);
        about.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).unwrap().parse().unwrap()
    };
    let sought = offset(master);
    eventually("a replica that has all", || (offset(replica) >= sought).then_some(()));
}
