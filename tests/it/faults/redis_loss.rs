//! `kill -9` of a Redis that writes to the disk before it answers, in the middle of calls.

use std::io;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use oncegate::entropy::Entropy;

use super::caller::{Meaning, are_same, charge, charge_until_final, meaning};
use super::oracle::Oracle;
use super::{Repeat, Tally, history, log_about, settings};
use crate::support::PATIENCE;
use crate::support::client::Answer;
use crate::support::gateway::Gateway;
use crate::support::ground::Ground;

/// When the server dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The key is claimed, and the gateway waits for a connection.
    BeforeSend,
    /// The call has run, and the gateway has no answer yet.
    BeforeSettle,
    /// The client has its receipt.
    AfterReceipt,
    /// Up to 5 ms after the call came.
    Anywhere,
}

/// How long the server may be away, in milliseconds: shorter and longer than leases and timeouts.
const AWAY: u64 = 1300;

struct Scene {
    oracle: Oracle,
    ground: Ground,
    gateway: Gateway,
    loss: Loss,
    entropy: Entropy,
    tally: Tally,
    /// What clients hold in their hands.
    receipts: Vec<(String, Answer)>,
}

/// Kills the server `rounds` times, each time in another call; at the end the server and the gateway together.
pub fn run(repeat: Repeat, loss: Loss, rounds: usize, seed: u64) -> Tally {
    let entropy = Entropy::seeded(seed);
    let (oracle, ground) = (Oracle::start(entropy.clone(), 0), Ground::redis());
    let gateway = settings(&oracle).start(&ground);
    let tally = Tally::new(format!("Redis killed {loss:?}, {repeat:?}"), seed);
    let mut scene = Scene { oracle, ground, gateway, loss, entropy, tally, receipts: Vec::new() };
    (0..rounds).for_each(|round| scene.round(repeat.key(round)));
    scene.lose_all();
    scene.check();
    scene.tally
}

impl Scene {
    fn round(&mut self, key: String) {
        self.tally.calls += 1;
        let first = self.lose_during(&key).join().unwrap();
        let until = Instant::now() + PATIENCE;
        let last = match first {
            Ok(answer) if meaning(&answer) != Meaning::NotYet => Ok(answer),
            _ => charge_until_final(|| self.gateway.address(), &key, PATIENCE, until),
        };
        match last {
            Ok(answer) if meaning(&answer) == Meaning::Receipt => {
                self.tally.receipts += 1;
                self.receipts.push((key, answer));
            }
            // The gateway lives: it knows whether it sent anything and what it was answered.
            other => {
                self.tally.unknown += 1;
                let log = other.as_ref().map(|answer| log_about([&self.gateway], answer.operation()));
                self.tally.violation(format!("{key}: {other:?}\n{}", log.unwrap_or_default()));
            }
        }
    }

    /// The first call, with the server killed in it and started again.
    fn lose_during(&mut self, key: &str) -> JoinHandle<io::Result<Answer>> {
        match self.loss {
            Loss::BeforeSend => self.oracle.shut(),
            Loss::BeforeSettle => self.oracle.hold(),
            Loss::AfterReceipt | Loss::Anywhere => {}
        }
        let (at, its_key) = (self.gateway.address(), key.to_owned());
        let mut first = thread::spawn(move || charge(at, &its_key, PATIENCE));
        match self.loss {
            Loss::BeforeSend => history::has_begun(&self.gateway, key),
            Loss::BeforeSettle => self.oracle.wait_for(key),
            Loss::AfterReceipt => {
                let answer = first.join().unwrap();
                first = thread::spawn(|| answer);
            }
            Loss::Anywhere => thread::sleep(Duration::from_micros(self.entropy.up_to(5000))),
        }
        self.ground.server().kill();
        self.tally.kills += 1;
        match self.loss {
            Loss::BeforeSend => self.oracle.open(),
            Loss::BeforeSettle => self.oracle.release(),
            Loss::AfterReceipt | Loss::Anywhere => {}
        }
        thread::sleep(Duration::from_millis(self.entropy.up_to(AWAY)));
        self.ground.server().restart();
        first
    }

    /// From here on there is nothing but what the server has on its disk.
    fn lose_all(&mut self) {
        self.gateway.kill();
        self.ground.server().kill();
        self.ground.server().restart();
        self.gateway.restart();
    }

    fn check(&mut self) {
        for (key, receipt) in std::mem::take(&mut self.receipts) {
            let again = charge(self.gateway.address(), &key, PATIENCE).unwrap();
            if !are_same(&again, &receipt) || !again.is_replay() {
                self.tally.lost_receipts += 1;
                self.tally.violation(format!("{key}: the receipt {receipt:?} is lost: {again:?}"));
            }
        }
        for (key, account) in self.oracle.accounts() {
            if account.effects != 1 {
                self.tally.second_runs += 1;
                self.tally.violation(format!("{key}: {account:?}"));
            }
        }
        for operation in history::stored_on(&self.ground) {
            if let Some(broken) = operation.broken_order() {
                self.tally.violation(format!("{}: {broken}", operation.key()));
            }
        }
    }
}
