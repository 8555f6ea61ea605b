//! Gateways and servers that die, at length: fifty times at every moment that matters, and half a minute of storm.

use std::time::Duration;

use crate::faults::failover::{self, Fleet, Strike};
use crate::faults::power_loss::{self, Durability};
use crate::faults::races;
use crate::faults::redis_loss::{self, Loss};
use crate::faults::storm::{self, Reach};
use crate::faults::{Repeat, any_seed, kills};
use crate::support::ground::Ground;
use crate::support::redis_fleet::{ClusterFleet, SentinelFleet};

const ROUNDS: usize = 50;
const RACES: usize = 20_000;
const POWER_LOSSES: usize = 200;
const STORM: Duration = Duration::from_secs(30);
const BOTH: [Repeat; 2] = [Repeat::Unsafe, Repeat::WithKey];

fn lose_at(loss: Loss) {
    BOTH.into_iter().for_each(|repeat| redis_loss::run(repeat, loss, ROUNDS, any_seed()).conclude());
}

#[test]
fn a_gateway_killed_anywhere() {
    for repeat in BOTH {
        for ground in [Ground::file(), Ground::redis()] {
            kills::run(&ground, repeat, ROUNDS, any_seed()).conclude();
        }
    }
}

#[test]
fn a_power_loss_that_takes_nothing() {
    power_loss::run(Durability::Fsync, POWER_LOSSES, any_seed()).conclude();
}

#[test]
fn a_power_loss_with_durability_os() {
    power_loss::run(Durability::Os, POWER_LOSSES, any_seed()).conclude();
}

#[test]
fn a_fleet_in_a_storm() {
    storm::run(Reach::Gateways, any_seed(), STORM).conclude();
}

#[test]
fn a_fleet_and_its_store_in_a_storm() {
    storm::run(Reach::Everything, any_seed(), STORM).conclude();
}

#[test]
fn a_fleet_that_races_for_every_key() {
    races::run(RACES, any_seed()).conclude();
}

#[test]
fn redis_killed_before_the_send() {
    lose_at(Loss::BeforeSend);
}

#[test]
fn redis_killed_before_the_settle() {
    lose_at(Loss::BeforeSettle);
}

#[test]
fn redis_killed_after_the_receipt() {
    lose_at(Loss::AfterReceipt);
}

#[test]
fn redis_killed_anywhere() {
    lose_at(Loss::Anywhere);
}

const STRIKES: [Strike; 6] =
    [Strike::Kill, Strike::Freeze, Strike::Planned, Strike::Kill, Strike::Freeze, Strike::Planned];

#[test]
fn sentinels_that_replace_a_master() {
    failover::run(Fleet::Sentinel(SentinelFleet::start()), &STRIKES, any_seed()).conclude();
}

#[test]
fn a_cluster_that_replaces_a_master() {
    failover::run(Fleet::Cluster(ClusterFleet::start()), &STRIKES, any_seed()).conclude();
}

const FORCED: usize = 6;

/// What is lost is printed, and how often the store's epoch told it.
fn lose_by_failover(fleet: impl Fn() -> Fleet) {
    let mut noticed = 0;
    for _ in 0..FORCED {
        let forced = failover::lose(fleet(), any_seed());
        noticed += usize::from(forced.was_noticed);
        forced.tally.conclude();
    }
    println!("{noticed} of {FORCED} losses were noticed");
}

#[test]
fn a_sentinel_failover_that_loses_what_only_the_master_had() {
    lose_by_failover(|| Fleet::Sentinel(SentinelFleet::start()));
}

#[test]
fn a_cluster_failover_that_loses_what_only_the_master_had() {
    lose_by_failover(|| Fleet::Cluster(ClusterFleet::start()));
}
