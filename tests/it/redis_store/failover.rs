//! Servers that replace each other under a store: it goes on with the one that is in charge.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use oncegate::operation::{Operation, OperationId, Scope};
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
    let bucket = first.id.bucket();
    let lapsed = [lapsed(&store, bucket).await, lapsed(&store, bucket ^ 1).await];
    let moves = [record_of(&first), "oncegate:{shop}:epoch".to_owned()].map(|key| Move::begin(&fleet, &key));
    assert_eq!(store.read(first.id).await.unwrap().unwrap().operation, first);
    moves.iter().for_each(|slot| slot.take_along(|key| !key.contains(":r:")));
    all_but_its_calls_go_on(&fleet, &store, &first, lapsed).await;
    moves.iter().for_each(|slot| slot.take_along(|_| true));
    assert_eq!(store.read(first.id).await.unwrap().unwrap().operation, first, "by ASK");
    moves.iter().for_each(Move::end);
    assert_eq!(store.read(first.id).await.unwrap().unwrap().operation, first, "by MOVED");
    let again = store.claim(&claim(&store, "k"), None).await.unwrap();
    assert!(matches!(again, Claimed::Exists(found) if found.operation == first));
}

/// Marker, indexes and epoch are at the new server by now, records at the old one.
async fn all_but_its_calls_go_on(fleet: &ClusterFleet, store: &dyn Store, first: &Operation, lapsed: [OperationId; 2]) {
    let due: HashSet<_> = store.due(10).await.unwrap().into_iter().collect();
    assert_eq!(due, HashSet::from(lapsed));
    assert_eq!(store.count_open(&Scope::none()).await.unwrap(), 2);
    assert_eq!(store.list(None, 10).await.unwrap().operations.len(), 3);
    assert_eq!(store.events(first.id).await.unwrap().len(), 3);
    store.ping().await.unwrap();
    let fresh = open(&fleet.url(), PATIENT).await;
    won(&fresh, claim(&fresh, &key_in(first.id.bucket() ^ 2))).await;
}

async fn lapsed(store: &dyn Store, bucket: u8) -> OperationId {
    won(store, claim_as(store, identity(&key_in(bucket)), Duration::ZERO)).await.id
}

fn key_in(bucket: u8) -> String {
    (0..).map(|number| format!("k-{number}")).find(|key| id(key).bucket() == bucket).unwrap()
}

/// A slot on its way from one master to the next.
struct Move {
    slot: String,
    from: (SocketAddr, String),
    to: (SocketAddr, String),
}

impl Move {
    fn begin(fleet: &ClusterFleet, key: &str) -> Self {
        let slot: i64 = say(fleet.servers[0].address(), &["CLUSTER", "KEYSLOT", key]);
        let from = usize::try_from(slot / 5462).unwrap();
        let [from, to] = [from, (from + 1) % 3].map(|server| {
            let address = fleet.servers[server].address();
            (address, say::<String>(address, &["CLUSTER", "MYID"]))
        });
        let slot = slot.to_string();
        say::<()>(to.0, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.1]);
        say::<()>(from.0, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.1]);
        Self { slot, from, to }
    }

    fn take_along(&self, which: impl Fn(&str) -> bool) {
        let keys: Vec<String> = say(self.from.0, &["CLUSTER", "GETKEYSINSLOT", &self.slot, "100"]);
        let (host, port) = (self.to.0.ip().to_string(), self.to.0.port().to_string());
        for key in keys.iter().filter(|key| which(key)) {
            // One that has run out meanwhile is no error.
            say::<()>(self.from.0, &["MIGRATE", &host, &port, key, "0", "5000"]);
        }
    }

    fn end(&self) {
        for (server, _) in [&self.to, &self.from] {
            say::<()>(*server, &["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.to.1]);
        }
    }
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
