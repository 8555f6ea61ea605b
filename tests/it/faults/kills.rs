//! `kill -9` of the one gateway in the middle of a call, then the same call again at its successor.

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

/// When the gateway dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It has claimed the key and waits for a connection.
    BeforeSend,
    /// The upstream has run the call and not answered yet.
    AfterSend,
    /// Up to 5 ms after the call came.
    Anywhere,
}

struct Scene {
    oracle: Oracle,
    gateway: Gateway,
    repeat: Repeat,
    moment: Moment,
    entropy: Entropy,
    tally: Tally,
}

/// Kills a gateway `rounds` times at `moment`, each time in another call.
pub fn run(ground: &Ground, repeat: Repeat, moment: Moment, rounds: usize, seed: u64) -> Tally {
    let entropy = Entropy::seeded(seed);
    let oracle = Oracle::start(entropy.clone(), 0);
    let gateway = settings(&oracle).start(ground);
    let tally = Tally::new(format!("gateway on {} killed {moment:?}, {repeat:?}", kind(ground)), seed);
    let mut scene = Scene { oracle, gateway, repeat, moment, entropy, tally };
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
        match self.moment {
            Moment::BeforeSend => self.oracle.shut(),
            Moment::AfterSend => self.oracle.hold(),
            Moment::Anywhere => {}
        }
        let (at, its_key) = (self.gateway.address(), key.to_owned());
        let first = thread::spawn(move || charge(at, &its_key, PATIENCE));
        match self.moment {
            Moment::BeforeSend => history::has_begun(&self.gateway, key),
            Moment::AfterSend => self.oracle.wait_for(key),
            Moment::Anywhere => thread::sleep(Duration::from_micros(self.entropy.up_to(5000))),
        }
        self.gateway.kill();
        self.tally.kills += 1;
        let first = first.join().unwrap().ok();
        if self.moment == Moment::BeforeSend && self.oracle.account(key).sends > 0 {
            self.tally.violation(format!("{key}: sent without a connection"));
        }
        match self.moment {
            Moment::BeforeSend => self.oracle.open(),
            Moment::AfterSend => self.oracle.release(),
            Moment::Anywhere => {}
        }
        first
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

    /// Whether the answer is the one that the moment of the end leaves.
    fn may_end_with(&self, last: &Answer, effects: u32) -> bool {
        let is_certain = meaning(last) == Meaning::Receipt && effects == 1;
        let is_unknown = meaning(last) == Meaning::Unknown && last.status == 409;
        match (self.repeat, self.moment) {
            (Repeat::WithKey, _) | (Repeat::Unsafe, Moment::BeforeSend) => is_certain,
            (Repeat::Unsafe, Moment::AfterSend) => is_unknown && effects == 1,
            (Repeat::Unsafe, Moment::Anywhere) => is_certain || is_unknown,
        }
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
