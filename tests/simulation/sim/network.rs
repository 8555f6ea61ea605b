//! What lies between the processes, the store and the upstream: every message may be lost, late, or there twice.

use oncegate::store::{Claimed, Found, Written};

use super::setup::{LATEST, STORE_TIMEOUT};
use super::store::Record;
use super::task::{Ask, Input, Reply, Task};
use super::upstream::{Fate, Heard, Next, Send};
use super::world::{Address, Event, World};

/// One strike in so many chances.
const ODDS_OF_STORE_FAULT: usize = 12;
const ODDS_OF_LATE_SEND: usize = 8;
const ODDS_OF_UPSTREAM_FAULT: usize = 2;

impl World {
    /// Sends a step on its way to the store, and decides what becomes of it.
    pub fn ask(&mut self, task: &mut Task, ask: Ask, beside: bool) {
        let (to, key) = (self.await_next(task, beside), task.key);
        if self.store.is_away(self.now) {
            let (wait, unheard) = (self.chance.latency(20), Reply::Away);
            return self.after(wait, Event::Resume { to, input: Input::Reply(unheard) });
        }
        let travel = self.chance.latency(10);
        if !self.strikes(ODDS_OF_STORE_FAULT) {
            return self.after(travel, Event::Store { to, key, ask });
        }
        self.watch.troubled_until(self.now + LATEST + STORE_TIMEOUT);
        let unheard = Address { number: 0, ..to };
        match self.chance.pick(4) {
            0 => self.note(|| format!("task {}: step lost", to.task)),
            1 => {
                self.note(|| format!("task {}: reply lost", to.task));
                self.after(travel, Event::Store { to: unheard, key, ask });
            }
            2 => {
                let late = STORE_TIMEOUT + self.chance.within(LATEST - STORE_TIMEOUT);
                self.note(|| format!("task {}: step late by {late} ms", to.task));
                self.after(late, Event::Store { to: unheard, key, ask });
            }
            _ => {
                self.note(|| format!("task {}: step sent twice", to.task));
                self.after(travel, Event::Store { to: unheard, key, ask: ask.clone() });
                return self.after(travel + travel, Event::Store { to, key, ask });
            }
        }
        self.after(STORE_TIMEOUT, Event::Resume { to, input: Input::Reply(Reply::Timeout) });
    }

    pub fn store_step(&mut self, to: Address, key: usize, ask: &Ask) {
        if self.store.is_away(self.now) {
            let rest = STORE_TIMEOUT;
            return self.after(rest, Event::Resume { to, input: Input::Reply(Reply::Timeout) });
        }
        let reply = self.execute(key, ask);
        self.note(|| format!("store: task {} of key {key} {} -> {}", to.task, ask.in_words(), reply.in_words()));
        if to.number == 0 {
            return;
        }
        let travel = self.chance.latency(10);
        self.after(travel, Event::Resume { to, input: Input::Reply(reply) });
    }

    fn execute(&mut self, key: usize, ask: &Ask) -> Reply {
        let now = self.store_time();
        match ask {
            Ask::Claim(change) => {
                let before = self.store.records[key].clone();
                let claimed = self.store.claim(key, change, now);
                if claimed == Claimed::Won
                    && before.as_ref().is_none_or(|before| before.operation.fence != change.operation.fence)
                {
                    self.created(key, before.as_ref(), change);
                }
                Reply::Claimed(claimed)
            }
            Ask::Write(change) => {
                let before = self.store.records[key].clone();
                let written = self.store.write(key, change, now);
                let fresh = |before: &Record| before.operation.fence.write != change.operation.fence.write;
                if let Some(before) = before.filter(|before| written == Written::Applied && fresh(before)) {
                    self.replaced(key, &before, change);
                }
                Reply::Written(written)
            }
            Ask::Read => Reply::Read(self.store.read(key, now).map(|found: Found| Box::new(found))),
            Ask::Request => {
                Reply::Request(self.store.live(key, now).and_then(|record| record.request.clone()).map(Box::new))
            }
        }
    }

    /// The first byte goes, right after the last look at lease and clock.
    pub fn send(&mut self, send: Send) {
        let number = self.upstream.sends.len();
        self.note(|| format!("task {} sends attempt {} as send {number}", send.task, send.attempt));
        self.upstream.sends.push(send);
        let late = self.strikes(ODDS_OF_LATE_SEND);
        let settle = self.setup.settle.as_millis() as u64;
        let travel = if late { self.chance.within(settle / 2) } else { self.chance.latency(20) };
        self.after(travel, Event::Arrive { send: number });
    }

    pub fn arrive(&mut self, send: usize) {
        let trouble = self.strikes(ODDS_OF_UPSTREAM_FAULT);
        let next = self.upstream.arrives(send, self.now, &self.setup, trouble, &mut self.chance);
        let fate = self.upstream.sends[send].fate;
        if fate == Fate::Executed {
            self.executed(send);
        }
        match next {
            Next::Answer(heard) => {
                self.note(|| format!("upstream reads send {send}: {fate:?}, {heard:?}"));
                self.answer(send, heard);
            }
            Next::Work => {
                self.note(|| format!("upstream queues send {send}"));
                let wait = self.chance.within(self.setup.settle.as_millis() as u64 / 2);
                self.after(wait, Event::Work { send });
            }
        }
    }

    pub fn answer(&mut self, send: usize, heard: Heard) {
        let sent = &self.upstream.sends[send];
        let to = Address { task: sent.task, number: sent.number, beside: false };
        if heard != Heard::Silence {
            let travel = self.chance.latency(1_000);
            self.after(travel, Event::Resume { to, input: Input::Heard(send, heard) });
        }
    }
}
