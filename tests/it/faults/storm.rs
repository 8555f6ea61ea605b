//! Three gateways on one Redis, killed and frozen at random under many clients who ask for few keys; or Redis, too.
//!
//! Nothing is judged meanwhile: what clients got, what the upstream did and what is stored are compared afterwards.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use oncegate::entropy::Entropy;

use super::caller::{Meaning, are_same, charge, charge_until_final, meaning};
use super::history::{self, Stored};
use super::oracle::Oracle;
use super::{Repeat, Tally, between, log_about, settings, stream};
use crate::support::client::Answer;
use crate::support::gateway::Gateway;
use crate::support::ground::Ground;
use crate::support::redis_server::RedisServer;
use crate::support::{PATIENCE, eventually};

const GATEWAYS: usize = 3;
const CLIENTS: usize = 16;
/// Keys of each kind that clients ask for at any time; others come with every term.
const KEYS: u64 = 4;
const TERM: Duration = Duration::from_millis(150);
/// How long the upstream takes at most, in milliseconds.
const SLOWEST: u64 = 150;
/// How long a client waits for one answer, and for the end of one call.
const PATIENCE_WITH_ONE: Duration = Duration::from_secs(2);
const PATIENCE_WITH_ALL: Duration = Duration::from_secs(15);
/// Both in milliseconds. A freeze outlasts every lease.
const CALM: (u64, u64) = (100, 1000);
const FREEZE: (u64, u64) = (600, 1500);

/// What may be struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Gateways,
    /// The store dies as well, and comes back with what it has on its disk.
    Everything,
}

/// What everybody in the storm shares.
struct Sea {
    /// Where the gateways listen at the moment.
    places: Mutex<Vec<SocketAddr>>,
    told: Mutex<Vec<Told>>,
    seed: u64,
    began: Instant,
    over: Instant,
}

/// What a client was told in the end.
struct Told {
    key: String,
    answer: Result<Answer, String>,
    /// Asked when all was calm again.
    is_last: bool,
}

/// Kills and freezes for `length`, then checks what came of it.
pub fn run(reach: Reach, seed: u64, length: Duration) -> Tally {
    let mut tally = Tally::new(format!("{CLIENTS} clients, {GATEWAYS} gateways, {reach:?} struck"), seed);
    let (oracle, mut ground) = (Oracle::start(stream(seed, "upstream"), SLOWEST), Ground::redis());
    let mut fleet: Vec<_> = (0..GATEWAYS).map(|_| settings(&oracle).start(&ground)).collect();
    let began = Instant::now();
    let sea = Sea {
        places: Mutex::new(fleet.iter().map(Gateway::address).collect()),
        told: Mutex::default(),
        seed,
        began,
        over: began + length,
    };
    let redis = (reach == Reach::Everything).then(|| ground.server());
    (tally.kills, tally.freezes) = rage(&sea, &mut fleet, redis);
    all_ended(&ground);
    ask_all_again(&sea, &fleet, &oracle);
    // An owner who could not keep his receipt may have come with it since.
    check(sea, &fleet, &oracle, &all_ended(&ground), &mut tally);
    tally
}

/// What is stored once nobody is at work.
fn all_ended(ground: &Ground) -> Vec<Stored> {
    eventually("the end of every operation", || {
        Some(history::stored_on(ground)).filter(|stored| stored.iter().all(Stored::has_ended))
    })
}

/// Until every client has his last answer. Kills and freezes.
fn rage(sea: &Sea, fleet: &mut [Gateway], redis: Option<&mut RedisServer>) -> (usize, usize) {
    thread::scope(|scope| {
        (0..CLIENTS).for_each(|client| drop(scope.spawn(move || be_client(sea, client))));
        let redis = redis.map(|redis| scope.spawn(move || strike_store(sea, redis)));
        let strikes = fleet.iter_mut().enumerate();
        let strikes: Vec<_> =
            strikes.map(|(place, gateway)| scope.spawn(move || strike(sea, place, gateway))).collect();
        let mut struck = (redis.map_or(0, |redis| redis.join().unwrap()), 0);
        for (kills, freezes) in strikes.into_iter().map(|strikes| strikes.join().unwrap()) {
            struck = (struck.0 + kills, struck.1 + freezes);
        }
        struck
    })
}

/// Kills or freezes one gateway again and again, and leaves it alive.
fn strike(sea: &Sea, place: usize, gateway: &mut Gateway) -> (usize, usize) {
    let entropy = stream(sea.seed, &format!("strikes at {place}"));
    let (mut kills, mut freezes) = (0, 0);
    loop {
        thread::sleep(between(&entropy, CALM));
        if Instant::now() >= sea.over {
            return (kills, freezes);
        }
        if entropy.up_to(1) == 0 {
            kills += 1;
            gateway.kill();
            gateway.restart();
            sea.places.lock().unwrap()[place] = gateway.address();
        } else {
            freezes += 1;
            gateway.freeze();
            thread::sleep(between(&entropy, FREEZE));
            gateway.thaw();
        }
    }
}

/// Kills the store again and again, and leaves it alive.
fn strike_store(sea: &Sea, redis: &mut RedisServer) -> usize {
    let entropy = stream(sea.seed, "strikes at the store");
    let mut kills = 0;
    loop {
        thread::sleep(between(&entropy, CALM));
        if Instant::now() >= sea.over {
            return kills;
        }
        kills += 1;
        redis.kill();
        thread::sleep(between(&entropy, CALM));
        redis.restart();
    }
}

fn be_client(sea: &Sea, client: usize) {
    let entropy = stream(sea.seed, &format!("client {client}"));
    while Instant::now() < sea.over {
        let key = sea.any_key(&entropy);
        let until = Instant::now() + PATIENCE_WITH_ALL;
        let answer = charge_until_final(|| sea.any_place(&entropy), &key, PATIENCE_WITH_ONE, until);
        sea.note(key, answer, false);
    }
}

/// Every key that ran, once more at every gateway.
fn ask_all_again(sea: &Sea, fleet: &[Gateway], oracle: &Oracle) {
    for key in oracle.accounts().into_keys() {
        for gateway in fleet {
            let answer = charge(gateway.address(), &key, PATIENCE);
            sea.note(key.clone(), answer.map_err(|error| error.to_string()), true);
        }
    }
}

fn check(sea: Sea, fleet: &[Gateway], oracle: &Oracle, stored: &[Stored], tally: &mut Tally) {
    let told = sea.told.into_inner().unwrap();
    for call in told.iter().filter(|told| !told.is_last) {
        tally.calls += 1;
        match call.meaning() {
            Some(Meaning::Receipt) => tally.receipts += 1,
            Some(Meaning::Unknown) => tally.unknown += 1,
            Some(Meaning::NotYet) | None => tally.violation(format!("{}: {:?}", call.key, call.answer)),
        }
    }
    if tally.receipts * 2 < tally.calls {
        tally.violation("less than half of the calls succeeded");
    }
    let mut by_key: HashMap<&str, Vec<&Told>> = HashMap::new();
    told.iter().for_each(|told| by_key.entry(&told.key).or_default().push(told));
    for one in stored {
        let told = by_key.remove(one.key()).unwrap_or_default();
        let effects = oracle.account(one.key()).effects;
        let wrong = wrongs(one, effects, &told, tally);
        if !wrong.is_empty() {
            let log = log_about(fleet, &one.operation.id.to_string());
            let answers: Vec<_> = told.iter().map(|told| &told.answer).collect();
            let (wrong, events, record) = (wrong.join("; "), &one.events, &one.operation);
            tally.violation(format!("{}: {wrong}\n{record:#?}\n{events:#?}\n{answers:#?}\n{log}", one.key()));
        }
    }
    by_key.keys().for_each(|key| tally.violation(format!("{key}: nothing is stored")));
}

/// What does not fit together about one key.
fn wrongs(stored: &Stored, effects: u32, told: &[&Told], tally: &mut Tally) -> Vec<String> {
    let broken = [stored.broken_order(), stored.broken_ownership(), stored.silent_end_of_doubt()];
    let mut wrong: Vec<String> = broken.into_iter().flatten().collect();
    let repeat = Repeat::of(stored.key());
    if effects > 1 && repeat != Repeat::Harmless {
        tally.second_runs += 1;
        wrong.push(format!("it ran {effects} times"));
    }
    let receipts: Vec<_> = told.iter().filter_map(|told| told.receipt()).collect();
    if !receipts.is_empty() && effects == 0 {
        wrong.push("a receipt of what never ran".to_owned());
    }
    if receipts.windows(2).any(|pair| !are_same(pair[0], pair[1])) {
        wrong.push("two receipts differ".to_owned());
    }
    let kept = stored.receipt.as_ref();
    let is_kept = |told: &Answer| kept.is_some_and(|kept| kept.status == told.status && kept.body == told.body);
    if receipts.iter().any(|told| !is_kept(told)) {
        wrong.push("what is stored is not what was told".to_owned());
    }
    if !receipts.is_empty() && told.iter().any(|told| told.is_last && told.receipt().is_none()) {
        tally.lost_receipts += 1;
        wrong.push("a receipt is lost".to_owned());
    }
    if repeat != Repeat::Unsafe && told.iter().any(|told| told.receipt().is_none()) {
        wrong.push("no receipt, though the upstream takes the call twice".to_owned());
    }
    wrong
}

impl Sea {
    fn any_key(&self, entropy: &Entropy) -> String {
        let repeat = match entropy.up_to(2) {
            0 => Repeat::Unsafe,
            1 => Repeat::WithKey,
            _ => Repeat::Harmless,
        };
        let term = self.began.elapsed().as_millis() / TERM.as_millis();
        repeat.key(format_args!("{term}-{}", entropy.up_to(KEYS - 1)))
    }

    fn any_place(&self, entropy: &Entropy) -> SocketAddr {
        let place = usize::try_from(entropy.up_to(GATEWAYS as u64 - 1)).unwrap();
        self.places.lock().unwrap()[place]
    }

    fn note(&self, key: String, answer: Result<Answer, String>, is_last: bool) {
        self.told.lock().unwrap().push(Told { key, answer, is_last });
    }
}

impl Told {
    fn meaning(&self) -> Option<Meaning> {
        self.answer.as_ref().ok().map(meaning)
    }

    fn receipt(&self) -> Option<&Answer> {
        self.answer.as_ref().ok().filter(|answer| meaning(answer) == Meaning::Receipt)
    }
}
