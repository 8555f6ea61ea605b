//! `kill -9` of the one gateway anywhere in a call, then the same call again at its successor. `tests/matrix/` does it at
//! named points.

use std::thread;
use std::time::{Duration, Instant};

use oncegate::entropy::Entropy;

use super::caller::{Meaning, are_same, charge, charge_until_final, meaning};
use super::oracle::Oracle;
use super::{Repeat, Tally, history, log_about, settings};
use crate::support::PATIENCE;
use crate::support::client::Answer;
use crate::support::gateway::Gateway;
use crate::support::ground::Ground;

/// The gateway dies up to so long after the call came, in microseconds.
const LATEST: u64 = 5000;

struct Scene {
    oracle: Oracle,
    gateway: Gateway,
    repeat: Repeat,
    entropy: Entropy,
    tally: Tally,
}

/// Kills a gateway `rounds` times, each time in another call.
pub fn run(ground: &Ground, repeat: Repeat, rounds: usize, seed: u64) -> Tally {
    let entropy = Entropy::seeded(seed);
    let oracle = Oracle::start(entropy.clone(), 0);
    let gateway = settings(&oracle).start(ground);
    let tally = Tally::new(format!("gateway on {} killed anywhere, {repeat:?}", kind(ground)), seed);
    let mut scene = Scene { oracle, gateway, repeat, entropy, tally };
    (0..rounds).for_each(|round| scene.round(&repeat.key(round)));
    scene.gateway.kill();
    scene.check_store(ground, rounds);
    scene.tally
}

fn kind(ground: &Ground) -> &'static str {
    match ground {
        Ground::Memory => "memory",
        Ground::File(_) => "file",
        Ground::Redis(_) => "redis",
    }
}

impl Scene {
    /// One call whose gateway is killed, and its repeats at the next one.
    fn round(&mut self, key: &str) {
        self.tally.calls += 1;
        let first = self.die_during(key);
        self.gateway.restart();
        let until = Instant::now() + PATIENCE;
        match charge_until_final(|| self.gateway.address(), key, PATIENCE, until) {
            Ok(last) => self.check(key, first.as_ref(), &last),
            Err(error) => self.tally.violation(format!("{key}: {error}")),
        }
    }

    /// The answer of the first call, if it came before the end.
    fn die_during(&mut self, key: &str) -> Option<Answer> {
        let (at, its_key) = (self.gateway.address(), key.to_owned());
        let first = thread::spawn(move || charge(at, &its_key, PATIENCE));
        thread::sleep(Duration::from_micros(self.entropy.up_to(LATEST)));
        self.gateway.kill();
        self.tally.kills += 1;
        first.join().unwrap().ok()
    }

    fn check(&mut self, key: &str, first: Option<&Answer>, last: &Answer) {
        let is_receipt = meaning(last) == Meaning::Receipt;
        *(if is_receipt { &mut self.tally.receipts } else { &mut self.tally.unknown }) += 1;
        let account = self.oracle.account(key);
        let shown = self.gateway.operation(last.operation()).0;
        let mut wrong: Vec<_> = history::broken_view(&shown).into_iter().collect();
        if account.effects > 1 {
            self.tally.second_runs += 1;
            wrong.push("it ran twice".to_owned());
        }
        if first.is_some_and(|first| !are_same(first, last)) {
            self.tally.lost_receipts += 1;
            wrong.push(format!("an answer from before the end is lost: {first:?}"));
        }
        if !self.may_end_with(last, account.effects) {
            wrong.push("that is no right end".to_owned());
        }
        if shown["state"] != if is_receipt { "succeeded" } else { "unknown" } {
            wrong.push("operators see another state".to_owned());
        }
        let again = charge(self.gateway.address(), key, PATIENCE).unwrap();
        if meaning(&again) != meaning(last) || is_receipt && !are_same(&again, last) {
            wrong.push(format!("the next repeat got another answer: {again:?}"));
        }
        if !wrong.is_empty() {
            let log = log_about([&self.gateway], last.operation());
            let wrong = wrong.join("; ");
            self.tally.violation(format!("{key}: {wrong}\n{last:?}\n{account:?}\n{shown:#}\n{log}"));
        }
    }

    /// Only what may not be sent twice may be left in doubt.
    fn may_end_with(&self, last: &Answer, effects: u32) -> bool {
        let is_certain = meaning(last) == Meaning::Receipt && effects == 1;
        let is_unknown = meaning(last) == Meaning::Unknown && last.status == 409;
        is_certain || is_unknown && self.repeat == Repeat::Unsafe
    }

    /// What the store holds, and what came late.
    fn check_store(&mut self, ground: &Ground, rounds: usize) {
        let stored = history::stored_on(ground);
        if stored.len() != rounds {
            self.tally.violation(format!("{} operations stored of {rounds}", stored.len()));
        }
        for operation in stored {
            if let Some(broken) = operation.broken_order() {
                self.tally.violation(format!("{}: {broken}", operation.key()));
            }
        }
        for (key, account) in self.oracle.accounts() {
            if account.effects > 1 {
                self.tally.violation(format!("{key}: ran twice in the end: {account:?}"));
            }
        }
    }
}
