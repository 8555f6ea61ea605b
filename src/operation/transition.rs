//! The one place that changes a state. It knows the legal edges and refuses every other, in release builds too.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::operation::admission::Repeat;
use crate::operation::dead_letter::{DeadLetter, LEAST_LIFE, Letter, Next};
use crate::operation::{
    Cause, Event, EventKind, Fence, Identity, Lease, Operation, OperationId, OwnerId, Receipt, Sender, Settled, State,
    StateName, StoredRequest, WriteId,
};

/// One write to a store: the record as it will be, what it must still be, and what changes beside it.
#[derive(Clone, Debug)]
pub struct Change {
    pub operation: Operation,
    /// What the store must hold; `None` for a claim of a key that has no record.
    pub expected: Option<Fence>,
    pub event: Option<Event>,
    pub receipt: Option<Receipt>,
    pub request: RequestChange,
}

impl Change {
    /// Whether a run begins with it. Somebody waits for that, and is told in the end that nothing was sent: a store that
    /// takes it after he has gone would make that untrue.
    pub fn begins_run(&self) -> bool {
        let kind = self.event.as_ref().map(|event| event.kind);
        matches!(kind, Some(EventKind::Claimed | EventKind::ClaimedAgain | EventKind::TakenOver | EventKind::Due))
    }

    /// What it does to the dead letter, so that a store touches its index of them only where it has to.
    pub fn letter(&self) -> Letter {
        let (from, kind) = self.event.as_ref().map_or((None, None), |event| (event.from, Some(event.kind)));
        match (self.operation.dead_letter(), from, kind) {
            (Some(_), _, _) => Letter::Open,
            (None, Some(StateName::Unknown | StateName::NotExecuted), _) => Letter::Closed,
            (None, _, Some(EventKind::Abandoned)) => Letter::Closed,
            (None, _, _) => Letter::None,
        }
    }
}

/// What becomes of the stored request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestChange {
    Keep,
    Put(StoredRequest),
    Drop,
}

/// The table of edges does not know this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an operation cannot go from {from:?} to {to}")]
pub struct IllegalTransition {
    pub from: Option<StateName>,
    pub to: StateName,
}

/// Late answers that are told of one operation. Each is one write; what matters is that there were any.
const MAX_LATE_ANSWERS: u32 = 4;

type Changed = Result<Change, IllegalTransition>;

/// The circumstances of one write.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// By the store's clock.
    pub now: Timestamp,
    pub write: WriteId,
}

/// How long things are kept once they ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub receipts: Duration,
    pub tombstones: Duration,
    /// `None`: an `unknown` stays until there is evidence, or a person says what to make of it.
    pub unknowns: Option<Duration>,
}

/// What an owner brings to a claim.
#[derive(Clone, Copy, Debug)]
pub struct Ownership {
    pub owner: OwnerId,
    pub lease: Duration,
    /// When the run of this owner is over, by the store's clock.
    pub deadline: Timestamp,
    /// Where this owner sends it; see [`ResendRule`](crate::operation::admission::ResendRule).
    pub destination: [u8; 8],
    /// His caller does not wait for the end; see [`Operation::accepted`].
    pub accepted: bool,
}

/// How a claim begins: with a send that may happen at once, or with a step of its own before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// For upstreams where a false "may have run" would cost a person's time.
    Claimed,
    /// For upstreams that take the same call twice: the first attempt is counted in the claim.
    Sent,
}

impl Opening {
    /// Where a false "may have run" would cost a person's time, the send has a store step of its own before it.
    pub fn of(repeat: Repeat) -> Self {
        match repeat {
            Repeat::Unsafe => Self::Claimed,
            Repeat::WithKey | Repeat::Harmless => Self::Sent,
        }
    }
}

/// The claim of a key that has no record.
///
/// # Errors
/// None in practice; the edges of a first state are checked like all others.
pub fn claim(
    id: OperationId,
    identity: impl Into<Arc<Identity>>,
    request: StoredRequest,
    ownership: Ownership,
    opening: Opening,
    step: Step,
) -> Changed {
    let blank = Operation {
        id,
        identity: identity.into(),
        state: State::NotExecuted { cause: Cause::OwnerLost },
        fence: Fence::default(),
        attempts: 0,
        attempts_before: 0,
        may_have_run: false,
        first_sent_at: None,
        attempt_ended_at: None,
        sender: None,
        destination: None,
        deadline: ownership.deadline,
        created_at: step.now,
        changed_at: step.now,
        expires_at: None,
        events: 0,
        late_answers: 0,
        accepted: false,
        dead: None,
    };
    let opened = open(blank, ownership, opening, step);
    check_edge(None, opened.state.name())?;
    Ok(write(opened, None, None, EventKind::Claimed, step).with_request(RequestChange::Put(request)))
}

impl Operation {
    /// The claim of a record that ended `not_executed`, or of an unknown that may be sent again: a new run.
    ///
    /// # Errors
    /// The state has no edge to the opening.
    pub fn claim_again(&self, ownership: Ownership, opening: Opening, step: Step) -> Changed {
        let mut next = self.clone();
        next.attempts_before = self.attempts;
        next.expires_at = None;
        if self.state.name() == StateName::NotExecuted && !self.is_disputed() {
            next.first_sent_at = None;
        }
        if self.is_disputed() {
            // A late answer told of a send that the record knows nothing of.
            next.may_have_run = true;
            next.first_sent_at = next.first_sent_at.or(Some(self.created_at));
        }
        self.to(open(next, ownership, opening, step), EventKind::ClaimedAgain, step)
    }

    /// A new owner for a record whose lease is over, or whose parking is. State, attempts and `not_before` stay as they are.
    ///
    /// # Errors
    /// The record has no owner to take over from.
    pub fn take_over(&self, ownership: Ownership, step: Step) -> Changed {
        let mut next = Self { state: self.leased(ownership.lease, step)?, ..self.clone() };
        next.doubt(matches!(self.state, State::Sent { .. }));
        (next.deadline, next.destination) = (ownership.deadline, Some(ownership.destination));
        next.accepted |= ownership.accepted;
        next.fence = Fence { owner: ownership.owner, token: self.fence.token + 1, ..self.fence };
        let kind = if self.parked_until().is_some() { EventKind::Due } else { EventKind::TakenOver };
        Ok(self.same_state(next, kind, step))
    }

    /// The lease moves on; no event, for no state changes.
    ///
    /// # Errors
    /// The record has no lease.
    pub fn renew(&self, lease: Duration, step: Step) -> Changed {
        let next = Self { state: self.leased(lease, step)?, ..self.clone() };
        Ok(unmarked(revised(next, step), Some(self.fence)))
    }

    /// The same state, held for a lease from now on.
    fn leased(&self, lease: Duration, step: Step) -> Result<State, IllegalTransition> {
        let lease = Lease { until: step.now.after(lease) };
        match &self.state {
            State::Claimed { .. } => Ok(State::Claimed { lease }),
            State::Sent { .. } => Ok(State::Sent { lease }),
            State::Waiting { not_before, .. } => Ok(State::Waiting { not_before: *not_before, lease: Some(lease) }),
            State::AwaitingApproval
            | State::Succeeded { .. }
            | State::Failed { .. }
            | State::NotExecuted { .. }
            | State::Unknown { .. }
            | State::Rejected
            | State::Abandoned
            | State::Compensating { .. }
            | State::Compensated { .. } => Err(self.illegal(self.state.name())),
        }
    }

    /// Intent, durable before the first byte goes: the attempt is counted here.
    ///
    /// # Errors
    /// Only `claimed`, `waiting` and, for the owner that took it over, `sent` lead to a send without a new claim.
    pub fn mark_sent(&self, lease: Duration, step: Step) -> Changed {
        let next = sent(self.clone(), Lease { until: step.now.after(lease) }, step.now);
        match self.state.name() {
            StateName::Sent => Ok(self.same_state(next, EventKind::Sent, step)),
            StateName::Claimed | StateName::Waiting => self.to(next, EventKind::Sent, step),
            StateName::AwaitingApproval
            | StateName::Succeeded
            | StateName::Failed
            | StateName::NotExecuted
            | StateName::Unknown
            | StateName::Rejected
            | StateName::Abandoned
            | StateName::Compensating
            | StateName::Compensated => Err(self.illegal(StateName::Sent)),
        }
    }

    /// An attempt is over and another may follow at `not_before`.
    ///
    /// # Errors
    /// It is not running.
    pub fn wait(&self, ended: Ended, not_before: Timestamp, lease: Duration, step: Step) -> Changed {
        self.waiting(ended, State::Waiting { not_before, lease: Some(Lease { until: step.now.after(lease) }) }, step)
    }

    /// The same for a wait that nobody holds: whoever is there at `not_before` takes the operation over.
    ///
    /// # Errors
    /// It is not running.
    pub fn park(&self, ended: Ended, not_before: Timestamp, step: Step) -> Changed {
        self.waiting(ended, State::Waiting { not_before, lease: None }, step)
    }

    /// Its owner, who has sent nothing, leaves it to whoever is there at `not_before`.
    ///
    /// # Errors
    /// It is not running.
    pub fn put_off(&self, not_before: Timestamp, step: Step) -> Changed {
        self.to_waiting(Self { state: State::Waiting { not_before, lease: None }, ..self.clone() }, step)
    }

    fn waiting(&self, ended: Ended, state: State, step: Step) -> Changed {
        let next = Self { state, ..self.ended(ended, step) };
        self.to_waiting(next, step).map(|change| change.because(ended.cause))
    }

    fn to_waiting(&self, next: Self, step: Step) -> Changed {
        match self.state.name() {
            StateName::Waiting => Ok(self.same_state(next, EventKind::Waiting, step)),
            StateName::Claimed | StateName::Sent => self.to(next, EventKind::Waiting, step),
            StateName::AwaitingApproval
            | StateName::Succeeded
            | StateName::Failed
            | StateName::NotExecuted
            | StateName::Unknown
            | StateName::Rejected
            | StateName::Abandoned
            | StateName::Compensating
            | StateName::Compensated => Err(self.illegal(StateName::Waiting)),
        }
    }

    /// A final answer. The receipt is kept whole, or `settled` says why it is not.
    ///
    /// # Errors
    /// Nothing was sent, or the operation has ended.
    pub fn settle(
        &self,
        verdict: Verdict,
        settled: Settled,
        receipt: Option<Receipt>,
        keep: Retention,
        step: Step,
    ) -> Changed {
        let mut next = self.clone();
        next.may_have_run = false;
        next.attempt_ended_at = Some(step.now);
        next.expires_at = Some(step.now.after(keep.tombstones.max(keep.receipts)));
        let status = settled.status;
        next.state = match verdict {
            Verdict::Succeeded => State::Succeeded { settled },
            Verdict::Failed => State::Failed { settled },
        };
        let late = self.state.name() == StateName::Unknown;
        let kind = if late { EventKind::LateAnswer } else { EventKind::Settled };
        let mut change = self.to(next, kind, step)?.with_request(RequestChange::Drop);
        change.receipt = receipt;
        if let Some(event) = &mut change.event {
            event.status = Some(status);
        }
        Ok(change)
    }

    /// The run is over without a final answer: `unknown` wherever an attempt may have run, else `not_executed`. It is a
    /// dead letter, unless nothing ran and the client comes back by himself.
    ///
    /// # Errors
    /// The operation has ended.
    pub fn end(&self, ended: Ended, who: Next, keep: Retention, step: Step) -> Changed {
        let mut next = self.ended(ended, step);
        next.dead = Some(DeadLetter { disputed: false, ..next.dead.unwrap_or(DeadLetter::opened(step.now)) });
        let kind = if next.may_have_run {
            next.state = State::Unknown { cause: ended.cause, since: step.now };
            next.expires_at = keep.unknowns.map(|life| step.now.after(life.max(LEAST_LIFE)));
            EventKind::Unknown
        } else {
            next.state = State::NotExecuted { cause: ended.cause };
            let life = match who {
                Next::Person => keep.tombstones.max(LEAST_LIFE),
                Next::Client => {
                    next.dead = None;
                    keep.tombstones
                }
            };
            next.expires_at = Some(step.now.after(life));
            EventKind::NotExecuted
        };
        self.to(next, kind, step).map(|change| change.because(ended.cause))
    }

    /// A person gives it up: its key is never sent again, and nobody is told of it any more.
    ///
    /// # Errors
    /// Only what is `unknown`, `not_executed` or disputed waits for a person.
    pub fn abandon(&self, keep: Retention, step: Step) -> Changed {
        let may_have_run = self.may_have_run || self.is_disputed();
        let mut next = Self { dead: None, may_have_run, ..self.clone() };
        if self.dead.is_some() && matches!(self.state, State::Rejected | State::Abandoned) {
            return Ok(self.same_state(next, EventKind::Abandoned, step));
        }
        next.state = State::Abandoned;
        next.expires_at = Some(step.now.after(keep.tombstones));
        Ok(self.to(next, EventKind::Abandoned, step)?.with_request(RequestChange::Drop))
    }

    /// The lease is over and nobody can go on.
    ///
    /// # Errors
    /// The record has no lease to lose.
    pub fn lapse(&self, keep: Retention, step: Step) -> Changed {
        let may_have_run = self.state.name() == StateName::Sent;
        let cause = if self.parked_until().is_some() { Cause::Unsendable } else { Cause::OwnerLost };
        let mut change = self.end(Ended { cause, may_have_run }, Next::Person, keep, step)?;
        if let Some(event) = &mut change.event {
            event.kind = EventKind::LeaseEnded;
        }
        Ok(change)
    }

    /// The receipt is there and cannot be read. The history says so; nothing else changes.
    ///
    /// # Errors
    /// There is no answer that could have been kept.
    pub fn lose_receipt(&self, step: Step) -> Changed {
        if self.state.settled().is_none() {
            return Err(self.illegal(self.state.name()));
        }
        Ok(self.same_state(self.clone(), EventKind::ReceiptUnreadable, step))
    }

    /// An alert that names the dead letter of `since` was taken at `at`; no event, for no state changes. `None` if that one
    /// is closed.
    pub fn alerted(&self, since: Timestamp, at: Timestamp, step: Step) -> Option<Change> {
        let letter = self.dead_letter().filter(|letter| letter.since == since)?;
        let dead = Some(DeadLetter { alerted_at: Some(at), ..letter });
        let mut change = unmarked(revised(Self { dead, ..self.clone() }, step), Some(self.fence));
        change.operation.changed_at = self.changed_at;
        Some(change)
    }

    /// Whether `sender` is the one whose late answer may end this unknown.
    pub fn takes_evidence_of(&self, sender: Sender) -> bool {
        self.state.name() == StateName::Unknown && self.sender == Some(sender)
    }

    /// The word of `owner` that his last attempt, of which an unknown was made when his lease was over, came to nothing:
    /// nobody else knows that. It is evidence as an answer is, and ends the doubt of that attempt; there was no other
    /// while he had the operation, or he brings it in `ended`.
    ///
    /// # Errors
    /// It is no unknown of his, or he is in doubt himself.
    pub fn retract(&self, owner: OwnerId, ended: Ended, keep: Retention, step: Step) -> Changed {
        if ended.may_have_run || !self.is_unknown_of(owner) {
            return Err(self.illegal(StateName::NotExecuted));
        }
        Self { may_have_run: false, ..self.clone() }.end(ended, Next::Person, keep, step)
    }

    /// Whether `owner` made the last attempt of this unknown, so that he may say that it came to nothing.
    pub fn is_unknown_of(&self, owner: OwnerId) -> bool {
        self.state.name() == StateName::Unknown && self.sender.is_some_and(|sender| sender.owner == owner)
    }

    /// Nobody knows any more how long ago it was sent, so that no upstream is relied on to remember its key; no event, for
    /// no state changes. `None` if it was not sent.
    pub fn forget_when_sent(&self, step: Step) -> Option<Change> {
        self.first_sent_at?;
        let next = Self { first_sent_at: Some(Timestamp(0)), ..self.clone() };
        Some(unmarked(revised(next, step), Some(self.fence)))
    }

    /// An answer that came when the record had moved on: an event, and a dead letter where it says otherwise than the
    /// record; nothing else changes. `None` once enough were told.
    pub fn tell_late(&self, answer: LateAnswer, step: Step) -> Option<Change> {
        if self.late_answers >= MAX_LATE_ANSWERS {
            return None;
        }
        let kind = match &self.state {
            State::NotExecuted { .. } | State::Rejected | State::Abandoned => EventKind::Disputed,
            State::Claimed { .. }
            | State::AwaitingApproval
            | State::Sent { .. }
            | State::Waiting { .. }
            | State::Succeeded { .. }
            | State::Failed { .. }
            | State::Unknown { .. }
            | State::Compensating { .. }
            | State::Compensated { .. } => EventKind::AnswerRefused,
        };
        let mut next = Self { late_answers: self.late_answers + 1, ..self.clone() };
        if kind == EventKind::Disputed {
            next.dead = Some(DeadLetter { disputed: true, ..DeadLetter::opened(step.now) });
            next.expires_at = self.expires_at.max(Some(step.now.after(LEAST_LIFE)));
        }
        let mut change = self.same_state(next, kind, step);
        change.operation.changed_at = self.changed_at;
        if let Some(event) = &mut change.event {
            (event.owner, event.status) = (answer.owner, Some(answer.status));
        }
        Some(change)
    }

    fn ended(&self, ended: Ended, step: Step) -> Operation {
        let mut next = self.clone();
        next.doubt(ended.may_have_run);
        next.attempt_ended_at = Some(step.now);
        next
    }

    /// What nobody was told of is that it may have run: a letter of before knows nothing of that.
    fn doubt(&mut self, may_have_run: bool) {
        if may_have_run && !self.may_have_run {
            (self.may_have_run, self.dead) = (true, None);
        }
    }

    fn to(&self, mut next: Operation, kind: EventKind, step: Step) -> Changed {
        let from = self.state.name();
        check_edge(Some(from), next.state.name())?;
        let is_running = matches!(next.state, State::Claimed { .. } | State::Sent { .. } | State::Waiting { .. });
        next.dead = next.dead.filter(|_| is_running || next.dead_letter().is_some());
        Ok(write(next, Some(self.fence), Some(from), kind, step))
    }

    fn same_state(&self, next: Operation, kind: EventKind, step: Step) -> Change {
        let mut change = write(next, Some(self.fence), None, kind, step);
        if let Some(event) = &mut change.event {
            event.to = None;
        }
        change
    }

    fn illegal(&self, to: StateName) -> IllegalTransition {
        IllegalTransition { from: Some(self.state.name()), to }
    }
}

/// How an attempt, or a run, ended without a final answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub cause: Cause,
    /// This attempt may have run; doubt of earlier ones is kept by the record.
    pub may_have_run: bool,
}

/// An answer of an owner that is none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateAnswer {
    pub owner: OwnerId,
    pub status: u16,
}

/// Which of the two final answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Succeeded,
    Failed,
}

impl Change {
    fn with_request(mut self, request: RequestChange) -> Self {
        self.request = request;
        self
    }

    fn because(mut self, cause: Cause) -> Self {
        if let Some(event) = &mut self.event {
            event.cause = Some(cause);
            event.status = match cause {
                Cause::Status(status) | Cause::Ruled { status, .. } => Some(status),
                Cause::Connect
                | Cause::TurnedAway
                | Cause::Closed
                | Cause::Timeout
                | Cause::BadAnswer
                | Cause::Deadline
                | Cause::OwnerLost
                | Cause::HeldBack
                | Cause::Store
                | Cause::Unsendable
                | Cause::Other => None,
            };
        }
        self
    }
}

fn check_edge(from: Option<StateName>, to: StateName) -> Result<(), IllegalTransition> {
    if to.may_follow(from) { Ok(()) } else { Err(IllegalTransition { from, to }) }
}

fn open(mut operation: Operation, ownership: Ownership, opening: Opening, step: Step) -> Operation {
    let lease = Lease { until: step.now.after(ownership.lease) };
    (operation.deadline, operation.destination) = (ownership.deadline, Some(ownership.destination));
    operation.accepted = ownership.accepted;
    operation.fence = Fence { owner: ownership.owner, token: operation.fence.token + 1, ..operation.fence };
    match opening {
        Opening::Claimed => Operation { state: State::Claimed { lease }, ..operation },
        Opening::Sent => sent(operation, lease, step.now),
    }
}

fn sent(mut operation: Operation, lease: Lease, now: Timestamp) -> Operation {
    operation.attempts = operation.attempts.saturating_add(1);
    operation.first_sent_at = operation.first_sent_at.or(Some(now));
    operation.sender = Some(Sender { owner: operation.fence.owner, attempt: operation.attempts });
    operation.state = State::Sent { lease };
    operation
}

fn write(next: Operation, expected: Option<Fence>, from: Option<StateName>, kind: EventKind, step: Step) -> Change {
    let mut next = revised(next, step);
    next.events = next.events.saturating_add(1);
    let event = Event {
        revision: next.fence.revision,
        at: step.now,
        kind,
        from,
        to: Some(next.state.name()),
        attempts: next.attempts,
        token: next.fence.token,
        owner: next.fence.owner,
        cause: None,
        status: None,
    };
    Change { event: Some(event), ..unmarked(next, expected) }
}

fn revised(mut next: Operation, step: Step) -> Operation {
    next.fence.revision += 1;
    next.fence.write = step.write;
    next.changed_at = step.now;
    next
}

fn unmarked(operation: Operation, expected: Option<Fence>) -> Change {
    Change { operation, expected, event: None, receipt: None, request: RequestChange::Keep }
}
