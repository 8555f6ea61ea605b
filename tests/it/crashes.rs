//! What clients and the upstream see of gateways and servers that die. `./test soak` does the same for longer.

use std::thread;
use std::time::Duration;

use oncegate::entropy::Entropy;

use crate::faults::failover::{self, Fleet, Strike};
use crate::faults::oracle::Oracle;
use crate::faults::power_loss::Durability;
use crate::faults::redis_loss::Loss;
use crate::faults::storm::Reach;
use crate::faults::{Repeat, any_seed, caller, kills, power_loss, races, redis_loss, settings, storm};
use crate::support::ground::Ground;
use crate::support::redis_fleet::{ClusterFleet, SentinelFleet};
use crate::support::toxic::{Toxic, ToxicProxy};
use crate::support::{PATIENCE, eventually};

const ROUNDS: usize = 3;
const RACES: usize = 300;
/// The state in a record, as only the write that makes it `sent` carries it.
const MARKED_SENT: &[u8] = b"\xa4sent";
/// As only the write of a receipt carries it.
const SETTLED: &[u8] = b"\xa9succeeded";

#[test]
fn killed_anywhere_nothing_runs_twice() {
    for repeat in [Repeat::Unsafe, Repeat::WithKey] {
        kills::run(&Ground::file(), repeat, ROUNDS, any_seed()).conclude();
        kills::run(&Ground::redis(), repeat, ROUNDS, any_seed()).conclude();
    }
}

#[test]
fn a_power_loss_takes_nothing_that_was_answered() {
    power_loss::run(Durability::Fsync, ROUNDS, any_seed()).conclude();
}

#[test]
fn with_durability_os_a_power_loss_leaves_a_whole_file() {
    power_loss::run(Durability::Os, ROUNDS, any_seed()).conclude();
}

#[test]
fn a_fleet_in_a_storm_runs_nothing_twice_and_loses_no_receipt() {
    storm::run(Reach::Gateways, any_seed(), Duration::from_secs(3)).conclude();
}

#[test]
fn neither_does_one_whose_store_dies_with_it() {
    storm::run(Reach::Everything, any_seed(), Duration::from_secs(3)).conclude();
}

#[test]
fn of_many_who_race_for_a_key_one_sends_however_late_its_owner_is() {
    races::run(RACES, any_seed()).conclude();
}

#[test]
fn a_killed_redis_takes_no_receipt_with_it() {
    for loss in [Loss::BeforeSend, Loss::BeforeSettle, Loss::AfterReceipt, Loss::Anywhere] {
        redis_loss::run(Repeat::Unsafe, loss, 1, any_seed()).conclude();
        redis_loss::run(Repeat::WithKey, loss, 1, any_seed()).conclude();
    }
}

/// A process or a network that stands still between the last step before the send and the send.
#[test]
fn an_owner_that_hears_after_its_lease_that_it_may_send_sends_nothing() {
    let oracle = Oracle::start(Entropy::seeded(0), 0);
    let mut ground = Ground::redis();
    let proxy = ToxicProxy::to(ground.server().address());
    let patient = settings(&oracle).top("store.timeout = '30s'");
    let late = patient.start_on(&proxy.url());
    let other = patient.start(&ground);
    // The server knows the script from here on and needs to be sent it only once.
    caller::charge(late.address(), &Repeat::Unsafe.key("before"), PATIENCE).unwrap().expect(201);
    proxy.turn_at(MARKED_SENT, Toxic::Unheard);
    let (at, key) = (late.address(), Repeat::Unsafe.key("late"));
    let asked = thread::spawn(move || caller::charge(at, &Repeat::Unsafe.key("late"), PATIENCE));
    eventually("the end of the lease", || other.operations("?state=unknown").pop());
    proxy.heal();
    asked.join().unwrap().unwrap().expect_problem(502, "upstream-failed");
    assert_eq!((oracle.account(&key).sends, other.operations("?state=unknown").len()), (0, 0), "its owner says so");
}

#[test]
fn a_receipt_that_was_kept_without_the_gateway_hearing_of_it_is_a_receipt() {
    let oracle = Oracle::start(Entropy::seeded(0), 0);
    let mut ground = Ground::redis();
    let proxy = ToxicProxy::to(ground.server().address());
    let hasty = settings(&oracle).top("store.timeout = '200ms'");
    let gateway = hasty.start_on(&proxy.url());
    caller::charge(gateway.address(), &Repeat::Unsafe.key("before"), PATIENCE).unwrap().expect(201);
    proxy.turn_at(SETTLED, Toxic::Unheard);
    let (at, key) = (gateway.address(), Repeat::Unsafe.key("unheard"));
    let asked = thread::spawn(move || caller::charge(at, &Repeat::Unsafe.key("unheard"), PATIENCE));
    eventually("a write that is not answered", || gateway.log().contains("receipt not kept yet").then_some(()));
    proxy.heal();
    let first = asked.join().unwrap().unwrap().expect(201);
    assert_eq!((first.header("Oncegate-Receipt"), first.is_replay()), (None, false), "{first:?}");
    let again = caller::charge(at, &key, PATIENCE).unwrap().expect(201);
    assert!(again.is_replay() && caller::are_same(&again, &first), "{again:?}");
}

#[test]
fn a_failover_by_sentinels_loses_nothing_that_replicas_have() {
    let fleet = Fleet::Sentinel(SentinelFleet::start());
    failover::run(fleet, &[Strike::Freeze], any_seed()).conclude();
}

#[test]
fn a_failover_of_a_cluster_loses_nothing_that_replicas_have() {
    let fleet = Fleet::Cluster(ClusterFleet::start());
    failover::run(fleet, &[Strike::Kill, Strike::Planned], any_seed()).conclude();
}

/// The honest figure: what a failover takes that no replica had.
#[test]
fn a_failover_loses_what_only_the_master_had() {
    for fleet in [Fleet::Sentinel(SentinelFleet::start()), Fleet::Cluster(ClusterFleet::start())] {
        let tally = failover::lose(fleet, any_seed()).tally;
        assert!(tally.lost_receipts > 0, "{tally}");
        tally.conclude();
    }
}
