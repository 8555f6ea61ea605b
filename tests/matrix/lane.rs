//! One cell, played again and again on a gateway, an upstream and a piece of a store of its own.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use oncegate::crash_point::VARIABLE;
use oncegate::entropy::Entropy;
use oncegate::operation::StateName;
use tempfile::TempDir;

use crate::checker::{Asked, Logs, Record, Said, Told, Violation, check};
use crate::faults::caller::{self, Meaning, meaning};
use crate::faults::history::{self, Stored};
use crate::faults::journal::{self, digest};
use crate::faults::oracle::Oracle;
use crate::faults::{Repeat, settings_that_log};
use crate::plan::{Cell, Death, Kept, Story};
use crate::support::PATIENCE;
use crate::support::client::Answer;
use crate::support::gateway::{Gateway, Settings};
use crate::support::redis_server::RedisServer;
use crate::support::toxic::{Toxic, ToxicProxy};

/// What I7 allows beyond the lease.
const GRACE: Duration = Duration::from_secs(2);
/// Between two tries of a client.
const PAUSE: Duration = Duration::from_millis(10);
/// How long the upstream takes at most, and how long nobody starts a gateway again; both in milliseconds.
const SLOWEST: u64 = 2;
const LONGEST_PAUSE: u64 = 20;
/// How long a gateway waits for a store whose reply is held up; a good deal less than the lease.
const HASTY: &str = "1s";
/// A process that came to its point is dead long before.
const DYING: Duration = Duration::from_secs(5);
const SIGKILL: i32 = 9;

/// What came of a cell.
pub struct Played {
    pub cell: Cell,
    pub kills: usize,
    pub calls: usize,
    /// Rounds in which the gateway did not come to the point; others were played for them.
    pub missed: usize,
    pub receipts: usize,
    pub unknown: usize,
    /// Calls of which a run ended provably without having run, before another one did it.
    pub not_executed: usize,
    pub longest_blocked: Duration,
    pub violations: Vec<Violation>,
}

struct Lane {
    cell: Cell,
    gateway: Gateway,
    oracle: Oracle,
    link: Option<ToxicProxy>,
    entropy: Entropy,
    kills: usize,
    /// The last start of a gateway; longer than a moment only on a machine with too much to do.
    start_took: Duration,
    logs: Logs,
}

/// Plays `cell` until its gateway has died `rounds` times at the point, in the database `number` of `server` or a file.
pub fn play(cell: Cell, server: &RedisServer, number: usize, rounds: usize, entropy: &Entropy) -> Played {
    let directory = tempfile::tempdir().unwrap();
    let oracle = Oracle::start(entropy.clone(), SLOWEST);
    let journal = directory.path().join("journal");
    oracle.keep_journal(&journal);
    let link = (cell.row.story == Story::Unanswered).then(|| ToxicProxy::to(server.address()));
    let server = link.as_ref().map_or(server.address(), |link| link.address);
    let url = match cell.kept {
        Kept::File => format!("file:{}", store_in(&directory).display()),
        Kept::Redis => format!("redis://{server}/{number}"),
    };
    let gateway = settings_of(&cell, &oracle).start_on(&url);
    let logs = Logs { rounds, limit: cell.lease() + GRACE, ..Logs::default() };
    let mut lane =
        Lane { cell, gateway, oracle, link, entropy: entropy.clone(), kills: 0, start_took: Duration::ZERO, logs };
    let missed = lane.rounds(rounds);
    lane.gateway.kill();
    lane.logs.sends = fs::read_to_string(journal).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    lane.logs.records = history::stored_at(&url).into_iter().map(record).collect();
    lane.played(missed)
}

fn store_in(directory: &TempDir) -> PathBuf {
    directory.path().join("store.db")
}

fn settings_of(cell: &Cell, oracle: &Oracle) -> Settings {
    let settings = settings_that_log(oracle, "info").top("defaults.max_receipt = '16KiB'");
    let settings = settings.environment("ONCEGATE__STORE__LEASE", format!("{}ms", cell.lease().as_millis()));
    settings.top("defaults.retry.base_interval = '20ms'").top("store.timeout = '10s'")
}

fn record(stored: Stored) -> Record {
    let Stored { operation, events, .. } = stored;
    Record { key: operation.identity.key.clone(), state: operation.state.name(), attempts: operation.attempts, events }
}

impl Lane {
    /// A round that missed its point is played again, but not for ever. Says how many there were.
    fn rounds(&mut self, rounds: usize) -> usize {
        let (mut played, mut missed) = (0, 0);
        while played < rounds && missed <= 3 + rounds / 10 {
            let key = self.cell.repeat.key(played + missed);
            let reached = self.round(key);
            *(if reached { &mut played } else { &mut missed }) += 1;
        }
        missed
    }

    /// One call over which a gateway dies, repeated until its end. Whether it died where it should.
    fn round(&mut self, key: String) -> bool {
        let Cell { row, repeat, .. } = self.cell;
        self.oracle.take_next(&key, row.manner(repeat));
        let mut freed_after = Vec::new();
        let deaths = row.deaths(repeat);
        let reached = deaths.iter().filter(|death| self.die(&key, death, &mut freed_after)).count() == deaths.len();
        thread::sleep(Duration::from_millis(self.entropy.up_to(LONGEST_PAUSE)));
        self.oracle.take_next(&key, None);
        self.start(None);
        let free_from = Instant::now();
        self.ask_until_final(&key);
        freed_after.push(free_from.elapsed().saturating_sub(self.start_took));
        self.ask_until_final(&key);
        self.logs.calls.push(Asked { key, repeat, ends: self.cell.ends(), reached, freed_after });
        reached
    }

    /// Whether the gateway killed itself.
    fn die(&mut self, key: &str, death: &Death, freed_after: &mut Vec<Duration>) -> bool {
        let status = if death.asked {
            self.start(Some(death));
            self.ask_once(key);
            self.gateway.exit_within(DYING)
        } else {
            self.prepare(Some(death));
            let free_from = Instant::now();
            let status = self.gateway.restart_to_its_end(DYING);
            freed_after.push(free_from.elapsed().saturating_sub(self.start_took));
            status
        };
        let killed = status.is_some_and(|status| status.signal() == Some(SIGKILL));
        self.kills += usize::from(killed);
        killed
    }

    fn start(&mut self, death: Option<&Death>) {
        self.prepare(death);
        let began = Instant::now();
        self.gateway.restart();
        self.start_took = began.elapsed();
    }

    fn prepare(&mut self, death: Option<&Death>) {
        self.gateway.kill();
        self.gateway.forget_log();
        self.gateway.set_environment(VARIABLE, death.map(|death| death.orders.clone()));
        let hasty = death.filter(|_| self.link.is_some()).map(|_| HASTY.to_owned());
        self.gateway.set_environment("ONCEGATE__STORE__TIMEOUT", hasty);
    }

    /// The call over which somebody is to die; where a link is, with the reply to the claim held up on it.
    fn ask_once(&mut self, key: &str) {
        if let Some(link) = &self.link {
            link.turn_at(self.claim_mark(), Toxic::Unheard);
        }
        self.ask(key);
        if let Some(link) = &self.link {
            link.heal();
        }
    }

    /// What only the claim carries: the state in its record.
    fn claim_mark(&self) -> &'static [u8] {
        if self.cell.repeat == Repeat::Unsafe { b"\xa7claimed" } else { b"\xa4sent" }
    }

    fn ask_until_final(&mut self, key: &str) {
        let give_up = Instant::now() + PATIENCE;
        while !matches!(self.ask(key), Said::Unknown | Said::Receipt(_)) && Instant::now() < give_up {
            thread::sleep(PAUSE);
        }
    }

    fn ask(&mut self, key: &str) -> Said {
        let mut call = caller::call(self.gateway.address(), key);
        if self.cell.row.story == Story::TakenOver {
            // Only who brings this can go on with the call, so the sweep leaves it to callers.
            call = call.header("Authorization", "Bearer of-the-caller");
        }
        let said = call.try_send(PATIENCE).map_or(Said::Nothing, |answer| said(&answer));
        self.logs.told.push(Told { at: journal::now(), key: key.to_owned(), said: said.clone() });
        said
    }

    fn played(self, missed: usize) -> Played {
        let Self { cell, kills, logs, .. } = self;
        let last = |key: &str| logs.told.iter().rev().find(|told| told.key == key).map(|told| &told.said);
        let ended =
            |is_so: fn(&Said) -> bool| logs.calls.iter().filter(|asked| last(&asked.key).is_some_and(is_so)).count();
        let did_not_run = |record: &&Record| record.events.iter().any(|event| event.to == Some(StateName::NotExecuted));
        let blocked = logs.calls.iter().flat_map(|asked| &asked.freed_after).max();
        Played {
            cell,
            kills,
            missed,
            calls: logs.calls.len(),
            receipts: ended(|said| matches!(said, Said::Receipt(_))),
            unknown: ended(|said| *said == Said::Unknown),
            not_executed: logs.records.iter().filter(did_not_run).count(),
            longest_blocked: blocked.copied().unwrap_or_default(),
            violations: check(&logs),
        }
    }
}

fn said(answer: &Answer) -> Said {
    match meaning(answer) {
        Meaning::Unknown => Said::Unknown,
        Meaning::NotYet if answer.status == 503 && answer.json()["code"] == "store-unavailable" => Said::NoStore,
        Meaning::NotYet => Said::NotYet,
        Meaning::Receipt => {
            let seen = format!("{} {:?} {:?}", answer.status, answer.header("X-Send"), answer.body);
            Said::Receipt(digest(seen.as_bytes()))
        }
    }
}
