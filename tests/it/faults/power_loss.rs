//! The power is cut under a gateway that many clients ask. What its disk holds is all that is left then.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use oncegate::entropy::Entropy;

use super::caller::{Meaning, are_same, charge, charge_until_final, meaning};
use super::oracle::Oracle;
use super::{Repeat, Tally, settings_that_log};
use crate::support::client::Answer;
use crate::support::disk::{Disk, Fault, Leaves};
use crate::support::gateway::Gateway;
use crate::support::{PATIENCE, eventually};

const CLIENTS: usize = 8;
/// How long they ask before the power goes, in milliseconds.
const LONGEST: u64 = 150;
/// Calls after which the log is moved into the file, and its fsyncs may be cut.
const PAGES_MOVED: u64 = 1500;

/// What a step is to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Fsync,
    Os,
}

struct Scene {
    oracle: Oracle,
    disk: Disk,
    gateway: Gateway,
    durability: Durability,
    entropy: Entropy,
    tally: Tally,
    /// One of each round, to be asked for at the end.
    receipts: Vec<(String, Answer)>,
}

/// Cuts the power `rounds` times.
pub fn run(durability: Durability, rounds: usize, seed: u64) -> Tally {
    let entropy = Entropy::seeded(seed);
    let (oracle, disk) = (Oracle::start(entropy.clone(), 0), Disk::new());
    let word = if durability == Durability::Fsync { "fsync" } else { "os" };
    let settings = settings_that_log(&oracle, "info").top(&format!("store.durability = '{word}'"));
    let gateway = disk.under(settings).start_on(&disk.url());
    let tally = Tally::new(format!("power lost with durability {word}"), seed);
    let mut scene = Scene { oracle, disk, gateway, durability, entropy, tally, receipts: Vec::new() };
    (0..rounds).for_each(|round| scene.round(round));
    for (key, receipt) in std::mem::take(&mut scene.receipts) {
        scene.check(&key, Some(&receipt));
    }
    scene.tally
}

impl Scene {
    fn round(&mut self, round: usize) {
        let asked = self.lose_power_under_load(round);
        self.tally.calls += asked.len();
        self.tally.kills += 1;
        let leaves = if self.entropy.up_to(2) == 0 { Leaves::Nothing } else { Leaves::Some };
        self.disk.lose_power(leaves, &self.entropy);
        self.gateway.restart();
        let mut kept = None;
        for (key, first) in asked {
            let receipt = first.ok().filter(|answer| meaning(answer) == Meaning::Receipt);
            self.check(&key, receipt.as_ref());
            kept = receipt.map(|receipt| (key, receipt)).or(kept);
        }
        if self.durability == Durability::Fsync {
            self.receipts.extend(kept);
        }
    }

    /// Every call that was made, with what its client got.
    fn lose_power_under_load(&mut self, round: usize) -> Vec<(String, io::Result<Answer>)> {
        let at = self.gateway.address();
        thread::scope(|scope| {
            let ask = |client| move || ask_until_dark(client, |key| charge(at, key, PATIENCE));
            let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(ask(format!("{round}-{client}")))).collect();
            self.lose_power_sometime();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        })
    }

    fn lose_power_sometime(&mut self) {
        let ending = if self.entropy.up_to(3) == 0 { ".db" } else { "-wal" };
        let longest = if ending == ".db" { PAGES_MOVED } else { LONGEST };
        thread::sleep(Duration::from_millis(self.entropy.up_to(longest)));
        match self.entropy.up_to(2) {
            0 => return self.gateway.kill(),
            1 => self.disk.fail(Fault::DieBeforeSync(ending)),
            _ => self.disk.fail(Fault::DieAfterSync(ending)),
        }
        eventually("the end of the gateway", || self.disk.has_failed().then_some(()));
        self.gateway.kill();
    }

    fn check(&mut self, key: &str, receipt: Option<&Answer>) {
        let until = Instant::now() + PATIENCE;
        let last = match charge_until_final(|| self.gateway.address(), key, PATIENCE, until) {
            Ok(last) => last,
            Err(error) => return self.tally.violation(format!("{key}: {error}")),
        };
        let is_receipt = meaning(&last) == Meaning::Receipt;
        *(if is_receipt { &mut self.tally.receipts } else { &mut self.tally.unknown }) += 1;
        let account = self.oracle.account(key);
        let is_lost = receipt.is_some_and(|receipt| !are_same(receipt, &last));
        let ran_twice = account.effects > 1;
        self.tally.lost_receipts += usize::from(is_lost);
        self.tally.second_runs += usize::from(ran_twice);
        if (is_lost || ran_twice) && self.durability == Durability::Fsync {
            self.tally.violation(format!("{key}: {receipt:?}, then {last:?}, {account:?}"));
        }
    }
}

/// Asks for one thing after the other until there is no answer.
fn ask_until_dark(client: String, ask: impl Fn(&str) -> io::Result<Answer>) -> Vec<(String, io::Result<Answer>)> {
    let mut asked = Vec::new();
    for number in 0.. {
        let repeat = if number % 2 == 0 { Repeat::Unsafe } else { Repeat::WithKey };
        let key = repeat.key(format!("{client}-{number}"));
        let answer = ask(&key);
        let is_dark = answer.is_err();
        asked.push((key, answer));
        if is_dark {
            break;
        }
    }
    asked
}
