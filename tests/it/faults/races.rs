//! Races for new keys: each is asked for at every gateway of a fleet at the same moment, many keys at a time, while
//! owners stand still for longer than their leases, at random and at the points that matter most.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use oncegate::entropy::Entropy;
use oncegate::operation::{EventKind, StateName};

use super::caller::{Meaning, are_same, charge, charge_until_final, meaning};
use super::history::{self, Stored};
use super::oracle::Oracle;
use super::{Repeat, Tally, between, log_about, settings_that_log, stream};
use crate::support::client::Answer;
use crate::support::gateway::Gateway;
use crate::support::ground::Ground;
use crate::support::{PATIENCE, eventually};

const GATEWAYS: usize = 3;
/// Races at a time.
const LANES: usize = 64;
/// How long the upstream takes at most, in milliseconds.
const SLOWEST: u64 = 120;
/// A client asks elsewhere when a gateway says nothing for so long.
const PATIENCE_WITH_ONE: Duration = Duration::from_millis(700);
/// In milliseconds: between two stops at random, and how long a gateway stands still, longer than every lease.
const CALM: (u64, u64) = (300, 1500);
const STILL: (u64, u64) = (600, 1200);
const LOOK: Duration = Duration::from_millis(5);
/// Where a gateway that was built for it stops itself, each time after so many races.
const POINTS: [&str; 5] = ["AfterClaim", "BeforeSend", "AfterSend", "AfterHead", "BeforeSettle"];
const BETWEEN_STOPS: usize = 2000;
/// One of so many keys is asked for once more in the end, and every one that is in doubt.
const ASKED_AGAIN: usize = 16;

type Told = Result<Answer, String>;

/// What all clients and gateways share.
struct Track {
    places: Vec<SocketAddr>,
    races: usize,
    seed: u64,
    begun: AtomicUsize,
    stops: AtomicUsize,
    is_over: AtomicBool,
    /// By key.
    told: Mutex<HashMap<String, Vec<Told>>>,
}

/// Lets the fleet run so many races, then holds upstream, clients, counters and store against each other.
pub fn run(races: usize, seed: u64) -> Tally {
    let (oracle, ground) = (Oracle::start(stream(seed, "upstream"), SLOWEST), Ground::redis());
    let fleet: Vec<_> = (0..GATEWAYS).map(|place| start(&oracle, &ground, races, seed, place)).collect();
    let track = Track {
        places: fleet.iter().map(Gateway::address).collect(),
        races,
        seed,
        begun: AtomicUsize::new(0),
        stops: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        told: Mutex::default(),
    };
    let mut tally = Tally::new("", seed);
    let (stored, last) = track.be_run_on(&fleet, &ground);
    tally.freezes = track.stops.into_inner();
    let told = track.told.into_inner().unwrap();
    check_counts(&Late::of(&fleet, &stored), races, &mut tally);
    check_calls(told.values().flatten(), &mut tally);
    for one in &stored {
        let told = told.get(one.key()).map(Vec::as_slice).unwrap_or_default();
        let effects = oracle.account(one.key()).effects;
        let wrong = wrongs(one, effects, told, last.get(one.key()));
        tally.second_runs += usize::from(effects > 1);
        if !wrong.is_empty() {
            let log = log_about(&fleet, &one.operation.id.to_string());
            let (wrong, events, record) = (wrong.join("; "), &one.events, &one.operation);
            tally.violation(format!("{}: {wrong}\n{record:#?}\n{events:#?}\n{told:#?}\n{log}", one.key()));
        }
    }
    if stored.len() != races {
        tally.violation(format!("{} operations are stored", stored.len()));
    }
    tally
}

fn start(oracle: &Oracle, ground: &Ground, races: usize, seed: u64, place: usize) -> Gateway {
    let orders = orders(&stream(seed, &format!("points of gateway {place}")), races);
    settings_that_log(oracle, "info").environment("ONCEGATE_CRASH_POINTS", orders).start(ground)
}

/// Stops at every point, spread over the first half of what a gateway is likely to own.
fn orders(entropy: &Entropy, races: usize) -> String {
    let stops = 1 + races / BETWEEN_STOPS;
    let reach = (races / GATEWAYS / stops / 2).max(1) as u64;
    let orders = POINTS.iter().flat_map(|point| {
        (0..stops as u64).map(move |stop| format!("{point}:{}:stop", stop * reach + 1 + entropy.up_to(reach - 1)))
    });
    orders.collect::<Vec<_>>().join(",")
}

impl Track {
    /// Returns what is stored in the end, and what was said to those who asked once more.
    fn be_run_on(&self, fleet: &[Gateway], ground: &Ground) -> (Vec<Stored>, HashMap<String, Told>) {
        thread::scope(|scope| {
            let _end = AtTheEnd(&self.is_over);
            for (place, gateway) in fleet.iter().enumerate() {
                scope.spawn(move || self.wake(gateway, place));
            }
            scope.spawn(|| self.stop_at_random(fleet));
            let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(|| self.race())).collect();
            lanes.into_iter().for_each(|lane| lane.join().unwrap());
            let ended = || {
                eventually("the end of every operation", || {
                    Some(history::stored_on(ground)).filter(|stored| stored.iter().all(Stored::has_ended))
                })
            };
            // What surely did not run is made by whoever asks for it.
            self.ask_again(&ended());
            let stored = ended();
            let last = self.ask_again(&stored);
            (stored, last)
        })
    }

    /// Lets a gateway stand still for longer than its leases, whoever stopped it.
    fn wake(&self, gateway: &Gateway, place: usize) {
        let entropy = stream(self.seed, &format!("stillness of gateway {place}"));
        while !self.is_over.load(Ordering::Relaxed) {
            if gateway.is_stopped() {
                self.stops.fetch_add(1, Ordering::Relaxed);
                thread::sleep(between(&entropy, STILL));
                gateway.thaw();
            }
            thread::sleep(LOOK);
        }
        gateway.thaw();
    }

    fn stop_at_random(&self, fleet: &[Gateway]) {
        let entropy = stream(self.seed, "stops");
        loop {
            thread::sleep(between(&entropy, CALM));
            // After the last race nobody wakes a gateway any more.
            if self.begun.load(Ordering::Relaxed) >= self.races {
                return;
            }
            let place = usize::try_from(entropy.up_to(GATEWAYS as u64 - 1)).unwrap();
            fleet[place].freeze();
        }
    }

    /// One race after the other.
    fn race(&self) {
        loop {
            let race = self.begun.fetch_add(1, Ordering::Relaxed);
            if race >= self.races {
                return;
            }
            let key = if race.is_multiple_of(2) { Repeat::Unsafe } else { Repeat::WithKey }.key(race);
            let line = Barrier::new(GATEWAYS);
            let told = thread::scope(|scope| {
                let clients = [0, 1, 2].map(|place| {
                    let (line, key) = (&line, &key);
                    scope.spawn(move || {
                        line.wait();
                        self.ask(key, place)
                    })
                });
                clients.map(|client| client.join().unwrap()).into()
            });
            self.told.lock().unwrap().insert(key, told);
        }
    }

    /// First at the gateway of that place, then at any.
    fn ask(&self, key: &str, place: usize) -> Told {
        let entropy = stream(self.seed, &format!("{key} at {place}"));
        let first = Cell::new(Some(place));
        let any = || usize::try_from(entropy.up_to(GATEWAYS as u64 - 1)).unwrap();
        let next = || self.places[first.take().unwrap_or_else(any)];
        charge_until_final(next, key, PATIENCE_WITH_ONE, Instant::now() + PATIENCE)
    }

    fn ask_again(&self, stored: &[Stored]) -> HashMap<String, Told> {
        let is_asked = |(at, one): &(usize, &Stored)| at.is_multiple_of(ASKED_AGAIN) || self.is_in_doubt(one);
        let asked = stored.iter().enumerate().filter(is_asked);
        asked
            .map(|(at, one)| {
                let answer =
                    eventually("a last answer", || charge(self.places[at % GATEWAYS], one.key(), PATIENCE).ok());
                (one.key().to_owned(), Ok(answer))
            })
            .collect()
    }

    fn is_in_doubt(&self, one: &Stored) -> bool {
        let told = self.told.lock().unwrap();
        let in_doubt = |told: &Vec<Told>| told.iter().any(|told| receipt(told).is_none());
        one.operation.state.name() == StateName::Unknown || told.get(one.key()).is_some_and(in_doubt)
    }
}

/// However the race ends, those who wait for its end hear of it.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What became of late owners: by the counters of the gateways, and by the events of the operations.
struct Late {
    refused: u64,
    evidence: u64,
    answers_refused: u64,
    late_answers: u64,
}

impl Late {
    fn of(fleet: &[Gateway], stored: &[Stored]) -> Self {
        let routes: Vec<_> = fleet.iter().map(|gateway| gateway.admin("/v1/status")["routes"].take()).collect();
        let sum = |counter: &str| {
            let routes = routes.iter().flat_map(|routes| routes.as_object().unwrap().values());
            routes.map(|route| route[counter].as_u64().unwrap()).sum()
        };
        let count = |is: fn(EventKind) -> bool| {
            stored.iter().flat_map(|one| &one.events).filter(|event| is(event.kind)).count() as u64
        };
        Self {
            refused: sum("fenced_writes"),
            evidence: sum("late_answers"),
            answers_refused: count(|kind| matches!(kind, EventKind::AnswerRefused | EventKind::Disputed)),
            late_answers: count(|kind| kind == EventKind::LateAnswer),
        }
    }
}

fn check_counts(late: &Late, races: usize, tally: &mut Tally) {
    let Late { refused, evidence, answers_refused, late_answers } = late;
    tally.name = format!(
        "{races} races at {GATEWAYS} gateways, {refused} late writes refused ({answers_refused} of them answers), \
         {evidence} late answers taken as evidence"
    );
    if evidence != late_answers {
        tally.violation(format!("{evidence} late answers were counted, and {late_answers} are in the histories"));
    }
    if answers_refused > refused {
        tally.violation(format!("{answers_refused} refused answers are in the histories, and {refused} were counted"));
    }
    if tally.freezes == 0 || *refused == 0 {
        tally.violation("no owner was late: nothing is shown".to_owned());
    }
}

fn check_calls<'a>(told: impl Iterator<Item = &'a Told>, tally: &mut Tally) {
    for told in told {
        tally.calls += 1;
        match told.as_ref().map(meaning) {
            Ok(Meaning::Receipt) => tally.receipts += 1,
            Ok(Meaning::Unknown) => tally.unknown += 1,
            Ok(Meaning::NotYet) | Err(_) => tally.violation(format!("no end: {told:?}")),
        }
    }
    if tally.receipts * 2 < tally.calls {
        tally.violation("less than half of the calls ended with a receipt");
    }
}

/// What does not fit together about one key.
fn wrongs(stored: &Stored, effects: u32, told: &[Told], last: Option<&Told>) -> Vec<String> {
    let broken = [stored.broken_order(), stored.broken_ownership(), stored.silent_end_of_doubt()];
    let mut wrong: Vec<String> = broken.into_iter().flatten().collect();
    let receipts: Vec<_> = told.iter().chain(last).filter_map(receipt).collect();
    let kept = stored.receipt.as_ref();
    let is_kept = |told: &Answer| kept.is_some_and(|kept| kept.status == told.status && kept.body == told.body);
    let is_certain = stored.operation.state.name() == StateName::Succeeded;
    let faults = [
        (effects > 1, "it ran more than once"),
        (effects == 0 && !receipts.is_empty(), "a receipt of what never ran"),
        (receipts.windows(2).any(|pair| !are_same(pair[0], pair[1])), "two receipts differ"),
        (receipts.iter().any(|told| !is_kept(told)), "what is stored is not what was told"),
        (last.is_some_and(|last| receipt(last).is_some() != is_certain), "the last answer is not what is stored"),
        (Repeat::of(stored.key()) == Repeat::WithKey && !is_certain, "no receipt, though the upstream knows the key"),
    ];
    wrong.extend(faults.iter().filter(|(is_so, _)| *is_so).map(|(_, fault)| (*fault).to_owned()));
    wrong
}

fn receipt(told: &Told) -> Option<&Answer> {
    told.as_ref().ok().filter(|answer| meaning(answer) == Meaning::Receipt)
}
