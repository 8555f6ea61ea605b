//! The life of a run: the order of `engine/owner.rs`, `engine/run.rs` and `engine/attempt.rs`, restated as steps between
//! two waits.

use std::time::Duration;

use oncegate::operation::admission::Repeat;
use oncegate::operation::outcome::{Outcome, Silence, classify};
use oncegate::operation::transition::Ended;
use oncegate::operation::{Cause, Operation, State, StateName};
use oncegate::retry::decide::{self, Decision, Situation, decide};
use oncegate::retry::retry_after::Hint;
use oncegate::store::Written;

use super::setup::{Broken, CONNECT, LEASE};
use super::task::{Ask, Input, Owner, Phase, Reply, Task, Then, Transition, WriteError, Writing};
use super::upstream::{Fate, Heard, Send};
use super::world::{Address, Event, World};

pub const ADOPTIONS: usize = 3;
const RENEWALS: usize = 3;
/// A send that never began, for its intent could not be made durable.
const UNSENT: Ended = Ended { cause: Cause::Store, may_have_run: false };
const ODDS_OF_NO_CONNECTION: usize = 20;

/// An attempt that is over.
pub struct Attempted {
    pub outcome: Outcome,
    /// Of an answer: status, and what is in its body.
    pub answer: Option<(u16, u32)>,
    pub hint: Option<Hint>,
}

impl World {
    /// What a task has waited for is there.
    pub fn resume(&mut self, to: Address, input: Input) {
        let Some(mut task) = self.tasks.remove(&to.task) else { return };
        let awaited = if to.beside { task.awaited_beside } else { task.awaited };
        if awaited != to.number {
            return self.keep(task);
        }
        if to.beside {
            self.renewal(&mut task, input);
            return self.keep(task);
        }
        self.cancel(task.id, None);
        if let Some(owner) = &mut task.owner {
            owner.renewing = None;
        }
        task.awaited_beside = 0;
        self.goes_on(task, input);
    }

    fn goes_on(&mut self, mut task: Box<Task>, input: Input) {
        match (std::mem::take(&mut task.phase), input) {
            (Phase::Claim { change, since }, Input::Reply(reply)) => self.claimed(task, change, since, reply),
            (Phase::Recover, Input::Reply(reply)) => self.recovers(task, reply),
            (Phase::Fetch { found, admission }, Input::Reply(reply)) => self.fetched(task, found, admission, reply),
            (Phase::Enter { change, since, alone }, Input::Reply(reply)) => {
                self.entered(task, change, since, alone, reply);
            }
            (Phase::EndLapsed { change, alone }, Input::Reply(reply)) => self.lapsed(task, change, alone, reply),
            (Phase::Follow { until, pause }, Input::Woken) => self.look(task, until, pause),
            (Phase::Look { until, pause }, Input::Reply(reply)) => self.looked(task, until, pause, reply),
            (Phase::Due, Input::Woken) => self.first_attempt(task),
            (Phase::Connect, Input::Woken) => self.connected(task),
            (Phase::Writing(then), Input::Reply(reply)) => self.written(task, then, reply),
            (Phase::Send, input) => self.heard(task, input),
            (Phase::Pause, Input::Woken) => self.attempt(task),
            (Phase::Tell { answer, found, tries_left, then }, Input::Reply(reply)) => {
                self.told_late(task, (answer, found, tries_left, then), reply);
            }
            (Phase::Rest { word, then }, Input::Woken) => self.write(task, Transition::Last(word), then),
            (Phase::TakeBackRest { before, word, since, pause }, Input::Woken) => {
                self.take_back(task, before, *word, since, pause);
            }
            _ => unreachable!("nobody else sends this"),
        }
    }

    pub fn keep(&mut self, task: Box<Task>) {
        self.tasks.insert(task.id, task);
    }

    pub fn sleep(&mut self, task: &mut Task, wait: u64) {
        let to = self.await_next(task, false);
        self.after(wait, Event::Resume { to, input: Input::Woken });
    }

    /// Drops what a task waits for; only the renewal beside it, or all.
    pub fn cancel(&mut self, task: u32, beside: Option<bool>) {
        let is_its = |to: &Address| to.task == task && beside.is_none_or(|beside| to.beside == beside);
        self.queue.retain(|due| !matches!(&due.event, Event::Resume { to, .. } if is_its(to)));
    }

    /// `Owner::write`.
    pub fn write(&mut self, mut task: Box<Task>, transition: Transition, then: Then) {
        if let Transition::Last(word) = &transition {
            task.last_word = Some(word.clone());
        }
        match self.put(&mut task, transition, ADOPTIONS - 1, false) {
            Ok(()) => {
                task.phase = Phase::Writing(then);
                self.keep(task);
            }
            Err(error) => self.wrote(task, then, Err(error)),
        }
    }

    fn put(&mut self, task: &mut Task, transition: Transition, left: usize, beside: bool) -> Result<(), WriteError> {
        let step = self.step_of(task.gateway);
        let owner = task.owner.as_mut().expect("only an owner writes");
        let change = Box::new(transition.change(&owner.operation, step)?);
        let writing = Writing { transition, adoptions_left: left, since: self.now, change: change.clone() };
        if beside {
            owner.renewing = Some(writing);
        } else {
            owner.writing = Some(writing);
        }
        self.ask(task, Ask::Write(change), beside);
        Ok(())
    }

    fn written(&mut self, mut task: Box<Task>, then: Then, reply: Reply) {
        let writing = task.owner.as_mut().and_then(|owner| owner.writing.take()).expect("it wrote");
        match self.adopt(&mut task, writing, reply, false) {
            Some(result) => self.wrote(task, then, result),
            None => {
                task.phase = Phase::Writing(then);
                self.keep(task);
            }
        }
    }

    /// What a reply makes of a write; `None` while it is tried again.
    fn adopt(
        &mut self,
        task: &mut Task,
        writing: Writing,
        reply: Reply,
        beside: bool,
    ) -> Option<Result<(), WriteError>> {
        let owner = task.owner.as_mut().expect("only an owner writes");
        match reply {
            Reply::Written(Written::Applied) => {
                owner.operation = writing.change.operation;
                owner.held_until = writing.since + LEASE;
                Some(Ok(()))
            }
            Reply::Written(Written::Refused(found)) if found.operation.is_held_under(&owner.operation.fence) => {
                owner.operation = owner.operation.clone().resumed(found.operation);
                if writing.adoptions_left == 0 {
                    return Some(Err(WriteError::Store));
                }
                self.put(task, writing.transition, writing.adoptions_left - 1, beside).err().map(Err)
            }
            Reply::Written(Written::Refused(found)) => Some(Err(WriteError::Fenced(found))),
            Reply::Written(Written::Gone) => Some(Err(WriteError::Gone)),
            _ => Some(Err(WriteError::Store)),
        }
    }

    /// `Owner::holding`: the renewal beside a work that has just begun.
    fn hold(&mut self, mut task: Box<Task>, phase: Phase) {
        let owner = task.owner.as_ref().expect("only an owner holds");
        if !owner.lost {
            let renew_at = owner.held_until.saturating_sub(LEASE * 2 / 3).max(self.now);
            let to = self.await_next(&mut task, true);
            self.after(renew_at - self.now, Event::Resume { to, input: Input::Woken });
        }
        task.phase = phase;
        self.keep(task);
    }

    /// `Owner::renew`, from its sleep on.
    fn renewal(&mut self, task: &mut Task, input: Input) {
        let writing = task.owner.as_mut().and_then(|owner| owner.renewing.take());
        let result = match (input, writing) {
            (Input::Reply(reply), Some(writing)) => self.adopt(task, writing, reply, true),
            _ => self.put(task, Transition::Renew, ADOPTIONS - 1, true).err().map(Err),
        };
        let Some(result) = result else { return };
        let owner = task.owner.as_mut().expect("only an owner renews");
        let wait = match result {
            Ok(()) => owner.held_until.saturating_sub(LEASE * 2 / 3).saturating_sub(self.now),
            Err(WriteError::Store) => LEASE / 10,
            Err(WriteError::Fenced(_) | WriteError::Gone | WriteError::Illegal) => {
                owner.lost = true;
                return;
            }
        };
        let to = self.await_next(task, true);
        self.after(wait, Event::Resume { to, input: Input::Woken });
    }

    /// `Run::new`, and `Run::run` up to its first wait.
    pub fn own(&mut self, mut task: Box<Task>, operation: Operation, since: u64) {
        task.counted = operation.opened_with_send();
        task.tries = decide::Run::after(operation.attempts_of_run().saturating_sub(u32::from(task.counted)));
        let State::Waiting { not_before, .. } = operation.state else {
            task.owner = Some(Owner::new(operation, since));
            return self.first_attempt(task);
        };
        task.owner = Some(Owner::new(operation, since));
        let wait = not_before.since(self.view(task.gateway)).as_millis() as u64;
        self.sleep(&mut task, wait);
        self.hold(task, Phase::Due);
    }

    fn first_attempt(&mut self, task: Box<Task>) {
        if task.tries.tries >= self.setup.policy.max_attempts {
            return self.spent(task);
        }
        self.attempt(task);
    }

    /// `Run::attempt`: connecting is not sending.
    fn attempt(&mut self, mut task: Box<Task>) {
        task.tries = task.tries.next_try();
        if self.strikes(ODDS_OF_NO_CONNECTION) {
            task.counted = false;
            return self.attempted(task, Attempted::not_sent(Cause::Connect));
        }
        let wait = self.chance.latency(CONNECT).min(task.deadline.saturating_sub(self.now));
        self.sleep(&mut task, wait);
        self.hold(task, Phase::Connect);
    }

    fn connected(&mut self, mut task: Box<Task>) {
        if std::mem::take(&mut task.counted) {
            return self.ready(task, RENEWALS);
        }
        if self.setup.broken == Broken::IntentNotAwaited {
            return self.send_now(task);
        }
        self.write(task, Transition::MarkSent, Then::Ready { renewals_left: RENEWALS });
    }

    /// `Owner::ready_to_send`, then the last look before the first byte.
    fn ready(&mut self, task: Box<Task>, renewals_left: usize) {
        let owner = task.owner.as_ref().expect("only an owner sends");
        if !owner.may_send(self.now) && self.setup.broken != Broken::SendWithoutLease {
            return match renewals_left {
                0 => self.broken_off(task, WriteError::Store, UNSENT),
                left => self.write(task, Transition::Renew, Then::Ready { renewals_left: left - 1 }),
            };
        }
        if !owner.operation.may_be_sent(&self.rule(), self.view(task.gateway))
            && self.setup.broken != Broken::TakeOverResends
        {
            return self.attempted(task, Attempted::not_sent(Cause::Unsendable));
        }
        if self.now >= task.deadline && self.setup.broken != Broken::DeadlineIgnored {
            return self.attempted(task, Attempted::not_sent(Cause::Deadline));
        }
        self.send_now(task);
    }

    fn send_now(&mut self, mut task: Box<Task>) {
        let timeout = self.setup.policy.attempt_timeout.as_millis() as u64;
        let until = task.deadline.max(self.now).min(self.now + timeout);
        self.sleep(&mut task, until - self.now);
        let operation = &task.owner.as_ref().expect("only an owner sends").operation;
        let send = Send {
            key: task.key,
            life: self.store.records[task.key].as_ref().map_or(0, |record| record.life),
            owner: operation.fence.owner.0,
            attempt: operation.attempts,
            at: self.now,
            fate: Fate::Travelling,
            answered: None,
            task: task.id,
            number: task.awaited,
        };
        self.sends(&send, task.deadline);
        self.send(send);
        self.hold(task, Phase::Send);
    }

    fn heard(&mut self, task: Box<Task>, input: Input) {
        let attempted = match input {
            Input::Heard(_, Heard::Answer { status, body, cut, hint }) => {
                let hint = hint.map(|hint| Hint(Duration::from_millis(hint)));
                let attempted = Attempted { outcome: Outcome::Answer { status }, answer: Some((status, body)), hint };
                return self.weigh(task, attempted, cut);
            }
            Input::Heard(_, Heard::Closed) => Attempted::bare(Outcome::Silent(Silence::Closed)),
            Input::Heard(_, Heard::BadHead) => Attempted::bare(Outcome::BadHead),
            Input::Heard(_, Heard::Silence) | Input::Woken | Input::Reply(_) => {
                Attempted::bare(Outcome::Silent(Silence::Timeout))
            }
        };
        self.attempted(task, attempted);
    }

    /// `Run::weigh`: the body of an answer that ends the run is read, and if it is cut, weighed again.
    fn weigh(&mut self, mut task: Box<Task>, attempted: Attempted, cut: bool) {
        let decision = self.decide(&mut task, &attempted);
        if !cut || matches!(decision, Decision::Retry { .. }) {
            return self.decided(task, attempted, decision);
        }
        let (status, _) = attempted.answer.unwrap_or_default();
        let refused = self.setup.broken == Broken::CutIsRefusal;
        let outcome = if refused { Outcome::Answer { status: 429 } } else { Outcome::Cut { status } };
        self.attempted(task, Attempted { outcome, answer: None, ..attempted });
    }

    pub fn attempted(&mut self, mut task: Box<Task>, attempted: Attempted) {
        let decision = self.decide(&mut task, &attempted);
        self.decided(task, attempted, decision);
    }

    fn decide(&mut self, task: &mut Task, attempted: &Attempted) -> Decision {
        let operation = &mut task.owner.as_mut().expect("only an owner decides").operation;
        let outcome = match attempted.outcome {
            Outcome::Answer { status: 503 } if self.setup.broken == Broken::OverloadIsRefusal => {
                Outcome::Answer { status: 429 }
            }
            outcome => outcome,
        };
        let clears = match self.setup.broken {
            Broken::ConflictEndsDoubt => outcome == Outcome::Answer { status: 409 },
            Broken::ThrottleEndsDoubt => outcome == Outcome::Answer { status: 429 },
            _ => false,
        };
        operation.may_have_run &= !clears;
        let operation = &*operation;
        let resends = self.setup.broken == Broken::TakeOverResends;
        let repeat = self.rule().repeat_at(operation.first_sent_at, self.view(task.gateway));
        let situation = Situation {
            fact: classify(&outcome),
            repeat: if resends && repeat == Repeat::Unsafe { Repeat::Harmless } else { repeat },
            deletes: false,
            may_have_run: operation.may_have_run,
            vetoed: false,
            promoted: false,
            replayable: true,
            hint: attempted.hint,
            may_park: false,
            left: Duration::from_millis(task.deadline.saturating_sub(self.now)),
            run: task.tries,
        };
        decide(&situation, &self.setup.policy, &mut self.chance.jitter())
    }

    fn decided(&mut self, mut task: Box<Task>, attempted: Attempted, decision: Decision) {
        self.note(|| format!("task {}: {:?} -> {decision:?}", task.id, attempted.outcome));
        match decision {
            Decision::Retry { wait, ended, run, .. } => {
                task.tries = run;
                self.pause(task, wait.as_millis() as u64, ended);
            }
            Decision::End { ending, .. } => self.end(task, &attempted, ending),
        }
    }

    /// The wait is in the record before it begins, unless nothing was sent.
    fn pause(&mut self, task: Box<Task>, wait: u64, ended: Ended) {
        let owner = task.owner.as_ref().expect("only an owner waits");
        if owner.operation.state.name() == StateName::Sent {
            return self.write(task, Transition::Wait { ended, wait }, Then::Pause { wait, ended });
        }
        self.rest(task, wait);
    }

    fn rest(&mut self, mut task: Box<Task>, wait: u64) {
        self.sleep(&mut task, wait);
        self.hold(task, Phase::Pause);
    }

    fn wrote(&mut self, task: Box<Task>, then: Then, result: Result<(), WriteError>) {
        match (then, result) {
            (Then::Ready { renewals_left }, Ok(())) => self.ready(task, renewals_left),
            (Then::Ready { .. }, Err(error)) => self.broken_off(task, error, UNSENT),
            (Then::Pause { wait, .. }, Ok(())) => self.rest(task, wait),
            (Then::Pause { ended, .. }, Err(error)) => self.broken_off(task, error, ended),
            (then, result) => self.last_word_written(task, then, result),
        }
    }
}

impl Attempted {
    fn not_sent(cause: Cause) -> Self {
        Self::bare(Outcome::NotSent { cause, reused_connection: false })
    }

    fn bare(outcome: Outcome) -> Self {
        Self { outcome, answer: None, hint: None }
    }
}
