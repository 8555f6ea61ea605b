//! Masters of a Redis that are killed, frozen or replaced under load, before two gateways.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oncegate::entropy::Entropy;

use super::caller::{Meaning, are_same, charge, charge_until_final, meaning};
use super::oracle::Oracle;
use super::{Repeat, Tally, settings};
use crate::support::client::Answer;
use crate::support::gateway::Gateway;
use crate::support::redis_fleet::{ClusterFleet, MASTER, SentinelFleet, is_synced, say};
use crate::support::redis_server::RedisServer;
use crate::support::{PATIENCE, eventually};

const CLIENTS: usize = 8;
/// How long clients work before a strike and after it.
const CALM: Duration = Duration::from_millis(700);
const PATIENCE_WITH_ONE: Duration = Duration::from_secs(3);
/// Calls that are acknowledged while the replica of a master hears nothing. Of a cluster, that master has about a third.
const UNHEARD: usize = 30;

/// What happens to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    Kill,
    /// Longer than the others wait; it wakes up as a master that does not know it yet.
    Freeze,
    /// An operator asks for it.
    Planned,
}

/// Servers that replace each other.
pub enum Fleet {
    Sentinel(SentinelFleet),
    /// Its first master and the replica of that one take turns.
    Cluster(ClusterFleet),
}

/// What everybody in a run shares.
struct Load {
    places: Vec<SocketAddr>,
    over: AtomicBool,
    next: AtomicUsize,
    told: Mutex<Vec<(String, Answer, Instant)>>,
}

impl Fleet {
    fn url(&self) -> String {
        match self {
            Self::Sentinel(fleet) => fleet.url(),
            Self::Cluster(fleet) => fleet.url(),
        }
    }

    fn master(&self) -> usize {
        match self {
            Self::Sentinel(fleet) => fleet.master(),
            Self::Cluster(fleet) => {
                if fleet.serves(0) {
                    0
                } else {
                    3
                }
            }
        }
    }

    /// Until there is another master, and the old one follows it.
    fn fail_over(&mut self, strike: Strike) {
        let old = self.master();
        let other = self.partner(old);
        match strike {
            Strike::Kill => self.servers()[old].kill(),
            Strike::Freeze => self.servers()[old].freeze(),
            Strike::Planned => self.ask_for_failover(other),
        }
        self.has_taken_over(old, other);
        match strike {
            Strike::Kill => self.servers()[old].restart(),
            Strike::Freeze => self.servers()[old].thaw(),
            Strike::Planned => {}
        }
        is_synced(self.servers()[old].address());
    }

    /// The replica of `master` hears nothing more, so that all it misses is lost when it takes over.
    fn cut_off(&mut self, replica: usize, master: usize) {
        let servers = self.servers();
        // In a cluster one that heard nothing for long would not stand for election.
        say::<()>(servers[replica].address(), &["CONFIG", "SET", "cluster-replica-validity-factor", "0"]);
        servers[replica].freeze();
        // What lay in its socket it would read when it wakes.
        say::<i64>(servers[master].address(), &["CLIENT", "KILL", "TYPE", "replica"]);
    }

    fn servers(&mut self) -> &mut Vec<RedisServer> {
        match self {
            Self::Sentinel(fleet) => &mut fleet.servers,
            Self::Cluster(fleet) => &mut fleet.servers,
        }
    }

    /// Who takes the place of a master.
    fn partner(&self, master: usize) -> usize {
        match self {
            Self::Sentinel(_) => 1 - master,
            Self::Cluster(_) => 3 - master,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Sentinel(_) => "Sentinel",
            Self::Cluster(_) => "Cluster",
        }
    }

    fn ask_for_failover(&self, other: usize) {
        match self {
            Self::Sentinel(fleet) => say::<()>(fleet.sentinels[0].address(), &["SENTINEL", "FAILOVER", MASTER]),
            Self::Cluster(fleet) => say::<()>(fleet.servers[other].address(), &["CLUSTER", "FAILOVER"]),
        }
    }

    fn has_taken_over(&self, old: usize, other: usize) {
        match self {
            Self::Sentinel(fleet) => fleet.has_failed_over(old),
            Self::Cluster(fleet) => fleet.has_taken_over(other),
        }
    }
}

/// Strikes once after the other under load. With `durability = "replicas"` nothing that was told may be lost.
pub fn run(mut fleet: Fleet, strikes: &[Strike], seed: u64) -> Tally {
    let mut tally =
        Tally::new(format!("{} failover ({strikes:?}), {CLIENTS} clients, 2 gateways, replicas", fleet.kind()), seed);
    let oracle = Oracle::start(Entropy::seeded(seed), 0);
    let settings = settings(&oracle).top("store.durability = 'replicas'").top("store.replicas = 1");
    let gateways: Vec<_> = (0..2).map(|_| settings.start_on(&fleet.url())).collect();
    let load = Load::on(&gateways);
    thread::scope(|scope| {
        (0..CLIENTS).for_each(|_| drop(scope.spawn(|| load.work())));
        for strike in strikes {
            thread::sleep(CALM);
            fleet.fail_over(*strike);
            tally.kills += 1;
        }
        thread::sleep(CALM);
        load.over.store(true, Ordering::Relaxed);
    });
    let told = load.told.into_inner().unwrap();
    println!("longest time without a receipt: {:.1} s", longest_gap(&told).as_secs_f64());
    for (key, answer, _) in &told {
        check(key, answer, &gateways, &oracle, &mut tally);
    }
    if tally.receipts * 2 < tally.calls || tally.receipts == 0 {
        tally.violation("less than half of the calls succeeded");
    }
    if tally.second_runs + tally.lost_receipts > 0 {
        tally.violation("something that was told is lost");
    }
    tally
}

/// What a failover came to that was made to lose something.
pub struct Forced {
    pub tally: Tally,
    /// Whether the gateway found out by itself, and had to be told to go on.
    pub was_noticed: bool,
}

/// With `durability = "single"`, and a replica that heard nothing of the last receipts when its master died: they are
/// lost, and the tally says how many.
pub fn lose(mut fleet: Fleet, seed: u64) -> Forced {
    let mut tally = Tally::new(format!("{} failover to a replica that lags, single", fleet.kind()), seed);
    let oracle = Oracle::start(Entropy::seeded(seed), 0);
    let gateway = settings(&oracle).start_on(&fleet.url());
    let old = fleet.master();
    let other = fleet.partner(old);
    fleet.cut_off(other, old);
    let keys: Vec<_> = (0..UNHEARD).map(|number| Repeat::Unsafe.key(number)).collect();
    let told: Vec<_> = keys.iter().map(|key| charge(gateway.address(), key, PATIENCE).unwrap().expect(201)).collect();
    fleet.servers()[old].kill();
    fleet.servers()[other].thaw();
    tally.kills += 1;
    fleet.has_taken_over(old, other);
    let mut was_noticed = false;
    eventually("a store that is taken as it is", || {
        was_noticed |= gateway.admin_call("POST", "/v1/store/accept-loss").send().status == 200;
        (gateway.probe("/readyz?store=1").status == 200).then_some(())
    });
    for (key, answer) in keys.iter().zip(&told) {
        check(key, answer, std::slice::from_ref(&gateway), &oracle, &mut tally);
    }
    Forced { tally, was_noticed }
}

fn check(key: &str, told: &Answer, gateways: &[Gateway], oracle: &Oracle, tally: &mut Tally) {
    tally.calls += 1;
    match meaning(told) {
        Meaning::Receipt => tally.receipts += 1,
        Meaning::Unknown => tally.unknown += 1,
        Meaning::NotYet => tally.violation(format!("{key}: {told:?}")),
    }
    let is_kept = gateways.iter().all(|gateway| {
        let until = Instant::now() + PATIENCE;
        let again = charge_until_final(|| gateway.address(), key, PATIENCE, until).unwrap();
        meaning(told) != Meaning::Receipt || meaning(&again) == Meaning::Receipt && are_same(&again, told)
    });
    tally.lost_receipts += usize::from(!is_kept);
    tally.second_runs += usize::from(oracle.account(key).effects > 1);
}

impl Load {
    fn on(gateways: &[Gateway]) -> Self {
        let places = gateways.iter().map(Gateway::address).collect();
        Self { places, over: AtomicBool::new(false), next: AtomicUsize::new(0), told: Mutex::default() }
    }

    /// One call after the other, each until it has its end, at either gateway.
    fn work(&self) {
        while !self.over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let repeat = if number.is_multiple_of(2) { Repeat::Unsafe } else { Repeat::WithKey };
            let key = repeat.key(number);
            let until = Instant::now() + PATIENCE;
            let place = || self.places[self.next.load(Ordering::Relaxed) % self.places.len()];
            let answer = charge_until_final(place, &key, PATIENCE_WITH_ONE, until).unwrap();
            self.told.lock().unwrap().push((key, answer, Instant::now()));
        }
    }
}

fn longest_gap(told: &[(String, Answer, Instant)]) -> Duration {
    let mut times: Vec<_> = told.iter().map(|(_, _, at)| *at).collect();
    times.sort_unstable();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}
