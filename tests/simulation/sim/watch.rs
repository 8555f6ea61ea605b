//! What must always hold, looked at after every step with the eyes of somebody who sees all of it: the store, the
//! upstream, and what callers were told.
//!
//! I1: it runs once. I2: a receipt stays as it is. I4: an unknown ends by evidence only. I5: durable first, then sent or
//! shown. I6: one owner, and on an unsafe upstream one attempt that may run. I7: lost owners are not in the way. I9: no
//! attempt after the deadline. I10: each change has its event, in order.

use std::collections::HashSet;
use std::time::Duration;

use oncegate::operation::admission::Repeat;
use oncegate::operation::transition::Change;
use oncegate::operation::{Event, EventKind, Kept, Operation, OwnerId, Receipt, State, StateName};

use super::setup::SKEW;
use super::store::Record;
use super::task::{Phase, Task, Told};
use super::upstream::{Fate, Send};
use super::world::World;

/// I7: how long after the end of its lease a dead owner may still be in the way.
const LONGEST_LOSS: u64 = 2_000;

/// From no record, or a state, to a state; the same state twice is a new owner.
pub type Edge = (Option<StateName>, StateName);

/// Edges that the engine can take: approvals, undos, a person's words and probes come with later versions.
pub const EDGES: &[Edge] = &[
    (None, StateName::Claimed),
    (None, StateName::Sent),
    (Some(StateName::Claimed), StateName::Claimed),
    (Some(StateName::Claimed), StateName::Sent),
    (Some(StateName::Claimed), StateName::NotExecuted),
    (Some(StateName::Sent), StateName::Sent),
    (Some(StateName::Sent), StateName::Waiting),
    (Some(StateName::Sent), StateName::Succeeded),
    (Some(StateName::Sent), StateName::Failed),
    (Some(StateName::Sent), StateName::NotExecuted),
    (Some(StateName::Sent), StateName::Unknown),
    (Some(StateName::Waiting), StateName::Waiting),
    (Some(StateName::Waiting), StateName::Sent),
    (Some(StateName::Waiting), StateName::NotExecuted),
    (Some(StateName::Waiting), StateName::Unknown),
    (Some(StateName::NotExecuted), StateName::Claimed),
    (Some(StateName::NotExecuted), StateName::Sent),
    (Some(StateName::Unknown), StateName::Sent),
    (Some(StateName::Unknown), StateName::Succeeded),
    (Some(StateName::Unknown), StateName::Failed),
    (Some(StateName::Unknown), StateName::NotExecuted),
];

/// What was seen so far.
#[derive(Clone)]
pub struct Watch {
    pub violation: Option<(&'static str, String)>,
    pub edges: HashSet<Edge>,
    /// Until then the store, or every gateway, has an excuse.
    troubled_until: u64,
    /// Receipts that were ever kept: key, life, status, body.
    receipts: Vec<(usize, usize, Receipt)>,
    /// Effects by key and life.
    effects: Vec<(usize, usize)>,
    /// Owners whose taking over was not answered; the sweep after the next finds what they left.
    left: Vec<OwnerId>,
    keys: usize,
}

impl Watch {
    pub fn new(keys: usize) -> Self {
        Self {
            violation: None,
            edges: HashSet::new(),
            troubled_until: 0,
            receipts: Vec::new(),
            effects: Vec::new(),
            left: Vec::new(),
            keys,
        }
    }

    pub fn violates(&mut self, rule: &'static str, seen: String) {
        self.violation.get_or_insert((rule, seen));
    }

    fn must(&mut self, holds: bool, rule: &'static str, seen: impl FnOnce() -> String) {
        if !holds {
            self.violates(rule, seen());
        }
    }

    pub fn troubled_until(&mut self, until: u64) {
        self.troubled_until = self.troubled_until.max(until);
    }

    pub fn leaves(&mut self, owner: OwnerId) {
        self.left.push(owner);
    }

    /// Of the past what a rule may still ask for: excuses, what was kept, what was done.
    pub fn past(&self, now: u64) -> (u64, usize, usize) {
        (self.troubled_until.saturating_sub(now), self.receipts.len(), self.effects.len())
    }

    fn edge(&mut self, before: Option<&Operation>, change: &Change) {
        let (from, to) = (before.map(|before| before.state.name()), change.operation.state.name());
        let taken_over = before.is_some_and(|before| before.fence.token != change.operation.fence.token);
        if from != Some(to) || taken_over {
            self.edges.insert((from, to));
        }
    }
}

impl World {
    /// A record that was not there.
    pub fn created(&mut self, key: usize, before: Option<&Record>, change: &Change) {
        let too_early = before.and_then(|before| before.operation.expires_at).filter(|end| *end > self.store_time());
        let unended = before.is_some_and(|before| before.operation.expires_at.is_none());
        let watch = &mut self.watch;
        watch.edge(None, change);
        watch.must(too_early.is_none() && !unended, "I1: a record went before its time", || format!("key {key}"));
        watch.must(change.operation.state.name().may_follow(None), "a record begins in a wrong state", String::new);
        self.history(key, None, change);
    }

    /// A record that is another one now.
    pub fn replaced(&mut self, key: usize, before: &Record, change: &Change) {
        let (was, is) = (&before.operation, &change.operation);
        let (from, to) = (was.state.name(), is.state.name());
        self.watch.edge(Some(was), change);
        let only_told = change.event.as_ref().is_some_and(is_only_told) && was.state == is.state;
        self.watch
            .must(was.state.settled().is_none() || only_told, "I2: a receipt changes", || format!("{from} -> {to}"));
        let seen = || format!("{from} -> {to}");
        self.watch.must(change.expected == Some(was.fence), "I6: one writes who is not the owner", seen);
        self.fenced(was, is);
        self.keeps_doubt(was, change);
        self.history(key, Some(was), change);
        let ended = matches!(to, StateName::Succeeded | StateName::Failed | StateName::NotExecuted);
        let watch = &mut self.watch;
        watch.must(is.expires_at.is_some() == ended, "I4: a timer may end it", || format!("{to} has the wrong end"));
        let told = || format!("{to}: {:?}", is.dead);
        let one = is.dead == is.dead_letter() || is.due().is_some();
        watch.must(one, "I11: not exactly one dead letter", told);
        if only_told {
            return;
        }
        if from == StateName::Unknown {
            self.by_evidence(key, was, change);
        }
        match to {
            StateName::NotExecuted => self.did_not_run(key, before.life),
            StateName::Succeeded | StateName::Failed => self.was_answered(key, before.life, change),
            _ => {}
        }
    }

    /// I10.
    fn history(&mut self, key: usize, before: Option<&Operation>, change: &Change) {
        let from = before.map(|before| before.state.name());
        let to = change.operation.state.name();
        let kept = self.store.records[key].as_ref().and_then(|record| record.last_event.clone());
        let told = match &change.event {
            Some(event) if from != Some(to) => event.from == from && event.to == Some(to),
            Some(event) => event.from.is_none() && event.to.is_none(),
            None => from == Some(to),
        };
        let revision = before.map_or(1, |before| before.fence.revision + 1);
        let in_order = change.event.as_ref().is_none_or(|event| event.revision == revision);
        let kept = change.event.is_none() || kept.as_ref() == change.event.as_ref();
        let released = self.store.records[key].is_none();
        let seen = || format!("{from:?} -> {to}: {:?}", change.event);
        self.watch.must(told && in_order && (kept || released), "I10: a change without its event", seen);
        self.watch.must(change.operation.fence.revision == revision, "I10: revisions do not grow by one", seen);
    }

    /// I6: at most one can write, and nobody takes what is another's.
    fn fenced(&mut self, was: &Operation, is: &Operation) {
        let now = self.store_time();
        let handed_on = was.fence.owner != is.fence.owner || was.fence.token != is.fence.token;
        let next = was.fence.owner != is.fence.owner && is.fence.token == was.fence.token + 1;
        let over = was.due().is_none_or(|until| until <= now.after(Duration::from_millis(SKEW)));
        let seen = || format!("token {} -> {}, lease until {:?}", was.fence.token, is.fence.token, was.due());
        self.watch.must(!handed_on || (next && over), "I6: two owners", seen);
        self.watch.must(is.attempts >= was.attempts, "an attempt is forgotten", seen);
    }

    /// `may_have_run` is cleared by a final answer, and by the sender's word that nothing came of it.
    fn keeps_doubt(&mut self, was: &Operation, change: &Change) {
        let is = &change.operation;
        let taken_back = was.state.name() == StateName::Unknown && is.state.name() == StateName::NotExecuted;
        let kept = is.may_have_run || !was.may_have_run || is.state.settled().is_some() || taken_back;
        let released = is.may_have_run && is.state.name() == StateName::NotExecuted;
        self.watch.must(kept && !released, "doubt is lost", || format!("{} -> {}", was.state.name(), is.state.name()));
    }

    /// I4.
    fn by_evidence(&mut self, key: usize, was: &Operation, change: &Change) {
        let is = &change.operation;
        let seen = || format!("unknown -> {}, {:?}", is.state.name(), was.sender);
        let rightly = match &is.state {
            State::Succeeded { settled } | State::Failed { settled } => {
                let answered =
                    was.sender.and_then(|sender| self.upstream.sent_by(key, sender)).and_then(|send| send.answered);
                let late = change.event.as_ref().is_some_and(|event| event.kind == EventKind::LateAnswer);
                late && answered == Some(settled.status)
            }
            State::Sent { .. } => self.setup.repeat != Repeat::Unsafe,
            State::NotExecuted { .. } => {
                let send = was.sender.and_then(|sender| self.upstream.sent_by(key, sender));
                send.is_none_or(|send| send.fate == Fate::Refused)
            }
            _ => false,
        };
        self.watch.must(rightly, "I4: an unknown ends without evidence", seen);
    }

    /// `not_executed` is the truth, now and later.
    fn did_not_run(&mut self, key: usize, life: usize) {
        let may_run = |send: &Send| matches!(send.fate, Fate::Travelling | Fate::Queued | Fate::Executed);
        let running = self.upstream.of_life(key, life).any(may_run);
        self.watch.must(!running, "what is said not to have run has run, or will", || format!("key {key}"));
    }

    /// A receipt is an answer that the upstream gave, and stays.
    fn was_answered(&mut self, key: usize, life: usize, change: &Change) {
        let Some(settled) = change.operation.state.settled() else { return };
        let given = self.upstream.of_life(key, life).any(|send| send.answered == Some(settled.status));
        let ran = self.effects_of(key, life) > 0;
        let failed = change.operation.state.name() == StateName::Failed && self.setup.repeat != Repeat::Harmless;
        let watch = &mut self.watch;
        watch.must(given, "a receipt that the upstream did not give", || format!("{settled:?}"));
        watch.must(!(failed && ran), "what is said to have failed has run", || format!("{settled:?}"));
        let whole = settled.kept == Kept::Whole;
        watch.must(whole == change.receipt.is_some(), "a receipt is not kept as it is said", || format!("{settled:?}"));
        if let Some(receipt) = &change.receipt {
            let other = watch.receipts.iter().any(|(k, l, kept)| (*k, *l) == (key, life) && kept != receipt);
            watch.must(!other, "I2: a receipt changes", || format!("{receipt:?}"));
            watch.receipts.push((key, life, receipt.clone()));
        }
    }

    fn effects_of(&self, key: usize, life: usize) -> usize {
        self.watch.effects.iter().filter(|effect| **effect == (key, life)).count()
    }

    /// I1, at the moment when the upstream does it.
    pub fn executed(&mut self, send: usize) {
        let Send { key, life, .. } = self.upstream.sends[send];
        self.watch.effects.push((key, life));
        let record = self.store.records[key].as_ref().filter(|record| record.life == life);
        let state = record.map(|record| record.operation.state.name());
        let denied = match state {
            Some(StateName::NotExecuted) => true,
            Some(StateName::Failed) => self.setup.repeat != Repeat::Harmless,
            _ => false,
        };
        let once = self.setup.repeat == Repeat::Harmless || self.effects_of(key, life) == 1;
        self.watch.must(once, "I1: the upstream runs it twice", || format!("send {send} of key {key}"));
        self.watch.must(!denied, "what is said not to have run has run, or will", || format!("send {send}, {state:?}"));
    }

    /// I5, I6, I9 and the end of what an upstream remembers, right before the first byte.
    pub fn sends(&mut self, send: &Send, deadline: u64) {
        let record = self.store.live(send.key, self.store_time());
        let operation = record.map(|record| &record.operation);
        let is_sender = |operation: &&Operation| {
            let sender = operation.sender.map(|sender| (sender.owner.0, sender.attempt));
            operation.state.name() == StateName::Sent && sender == Some((send.owner, send.attempt))
        };
        let intended = operation.as_ref().is_some_and(is_sender);
        let own = |operation: &Operation| operation.fence.owner.0 == send.owner && operation.due().is_some();
        let owns = operation.is_none_or(own);
        let earlier: Vec<&Send> = self.upstream.of_life(send.key, send.life).collect();
        let refused = earlier.iter().all(|send| send.fate == Fate::Refused);
        let first = earlier.iter().filter(|send| send.fate != Fate::Refused).map(|send| send.at).min();
        let window = self.setup.rule().window().as_millis() as u64 + 2 * SKEW;
        let forgotten = self.setup.repeat == Repeat::WithKey && first.is_some_and(|first| send.at > first + window);
        let unsafely = self.setup.repeat == Repeat::Unsafe && !refused;
        let (now, state) = (self.now, operation.map(|operation| operation.state.name()));
        let watch = &mut self.watch;
        watch.must(owns, "I6: sent by one who was replaced", || format!("{state:?}"));
        watch.must(intended, "I5: sent before the intent is durable", || format!("{state:?}"));
        watch.must(!unsafely, "I6: a second attempt beside one that may have run", || {
            format!("attempt {}", send.attempt)
        });
        watch.must(now < deadline, "I9: an attempt after the deadline", || format!("{} ms late", now - deadline));
        watch.must(!forgotten, "sent again to an upstream that has forgotten the key", || format!("{first:?}"));
    }

    /// I2 and I5, when a caller is told.
    pub fn check_told(&mut self, key: usize, told: &Told) {
        let Told::Receipt { .. } = told else { return };
        let kept = self.watch.receipts.iter().any(|(k, _, receipt)| *k == key && Told::of_receipt(receipt) == *told);
        let last = self.watch.receipts.iter().rev().find(|(k, ..)| *k == key).map(|(_, life, _)| *life);
        let lost = self.store.records[key].as_ref().is_none_or(|record| last.is_some_and(|life| life > record.life));
        let state = self.store.records[key].as_ref().map(|record| record.operation.state.name());
        let there = state.is_some_and(|state| matches!(state, StateName::Succeeded | StateName::Failed));
        let again = self.store.records[key].as_ref().is_some_and(|record| last.is_some_and(|life| life < record.life));
        self.watch.must(kept && !lost, "I5: a receipt is shown that is not durable", || format!("{told:?}"));
        self.watch.must(there || again, "I2: a shown receipt is gone", || format!("{told:?}, {state:?}"));
    }

    /// After every step.
    pub fn check(&mut self) {
        if !(0..self.gateways.len()).any(|gateway| self.is_awake(gateway)) {
            self.watch.troubled_until(self.now);
        }
        for key in 0..self.watch.keys {
            let Some(record) = &self.store.records[key] else { continue };
            let Some(until) = record.operation.due() else { continue };
            let (owner, state) = (record.operation.fence.owner, record.operation.state.name());
            let awake_since = self.awake_since();
            let blocked = until.0.max(self.watch.troubled_until).max(awake_since) + LONGEST_LOSS + 2 * SKEW < self.now;
            self.watch.must(!blocked, "I7: a lost owner is in the way", || format!("{state} until {until}"));
            let orphan = self.is_orphan(owner);
            self.watch.must(!orphan, "nobody knows of a lease that is held", || format!("{state} until {until}"));
        }
    }

    /// The gateway that has been there for longest.
    fn awake_since(&self) -> u64 {
        let awake =
            self.gateways.iter().filter(|gateway| gateway.up).map(|gateway| gateway.frozen_until.max(gateway.up_since));
        awake.min().unwrap_or(self.now)
    }

    /// A lease whose owner's process lives, and has forgotten it.
    pub fn is_orphan(&self, owner: OwnerId) -> bool {
        let gateway = &self.gateways[usize::from(owner.0[0])];
        let number = owner.0[8..].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        if !gateway.up || number < gateway.first_number || self.watch.left.contains(&owner) {
            return false;
        }
        !self.tasks.values().any(|task| knows(task, owner))
    }

    /// When everything that can end has ended.
    pub fn check_end(&mut self) {
        for key in 0..self.watch.keys {
            let state = self.store.records[key].as_ref().map(|record| record.operation.state.name());
            let ended = match state {
                None | Some(StateName::Succeeded | StateName::Failed | StateName::NotExecuted | StateName::Unknown) => {
                    true
                }
                Some(_) => false,
            };
            self.watch.must(ended, "it never ends", || format!("{state:?}"));
        }
    }
}

/// An answer that came too late: an event, and nothing else changes.
fn is_only_told(event: &Event) -> bool {
    matches!(event.kind, EventKind::AnswerRefused | EventKind::Disputed)
}

fn knows(task: &Task, owner: OwnerId) -> bool {
    let opens = |change: &Change| change.operation.fence.owner == owner;
    let owns = task.owner.as_ref().is_some_and(|own| own.operation.fence.owner == owner);
    owns || match &task.phase {
        Phase::Claim { change, .. } | Phase::Enter { change, .. } => opens(change),
        _ => false,
    }
}
