//! The end of a run: the order of `engine/settle.rs`, restated as steps between two waits.

use std::sync::Arc;

use bytes::Bytes;
use oncegate::operation::admission::ResendRule;
use oncegate::operation::dead_letter::Next;
use oncegate::operation::outcome::Outcome;
use oncegate::operation::transition::{Ended, LateAnswer, Verdict};
use oncegate::operation::{Cause, Kept, Operation, Receipt, Sender, Settled, StateName};
use oncegate::retry::decide::Ending;
use oncegate::store::{Found, Written};

use super::claim::FIRST_PAUSE;
use super::run::{ADOPTIONS, Attempted};
use super::setup::{Broken, LEASE};
use super::task::{Ask, LastWord, Owner, Phase, Reply, Task, Then, Told, Transition, Word, WriteError};
use super::world::World;

const LONGEST_PAUSE: u64 = 1_000;
const GRACE: u64 = 2_000;

impl World {
    /// `Run::end`.
    pub fn end(&mut self, task: Box<Task>, attempted: &Attempted, ending: Ending) {
        match (ending.verdict(), attempted.answer) {
            (Some(verdict), Some((status, body))) => {
                let body = Bytes::copy_from_slice(&body.to_be_bytes());
                let receipt = Receipt { status, headers: Arc::default(), body };
                self.settle(task, verdict, status, Some(receipt));
            }
            (Some(verdict), None) => {
                let status = match attempted.outcome {
                    Outcome::Cut { status } | Outcome::Answer { status } => status,
                    Outcome::NotSent { .. } | Outcome::TurnedAway | Outcome::Silent(_) | Outcome::BadHead => 502,
                };
                self.settle(task, verdict, status, None);
            }
            (None, _) => {
                let ended = ending.ended().unwrap_or(Ended { cause: Cause::BadAnswer, may_have_run: true });
                let told = attempted.answer.is_some() && attempted.hint.is_some();
                self.end_without_receipt(task, ended, told);
            }
        }
    }

    /// `Run::spent`.
    pub fn spent(&mut self, task: Box<Task>) {
        self.end_without_receipt(task, Ended { cause: Cause::OwnerLost, may_have_run: false }, false);
    }

    fn settle(&mut self, mut task: Box<Task>, verdict: Verdict, status: u16, receipt: Option<Receipt>) {
        let settled = Settled {
            status,
            length: 4,
            digest: [0; 32],
            kept: if receipt.is_some() { Kept::Whole } else { Kept::Cut },
            receipt_until: self.view(task.gateway).after(self.setup.keep.receipts),
            after_doubt: false,
        };
        let word = self.word(&task, Word::Settle { verdict, settled, receipt });
        if self.setup.broken == Broken::ToldBeforeDurable {
            for caller in std::mem::take(&mut task.callers) {
                self.tell(caller, word.shows());
            }
        }
        let until = task.deadline.max(self.now + GRACE);
        let sender = sender_of(&task);
        self.write(task, Transition::Last(word), Then::Show { until, pause: FIRST_PAUSE, sender, again: false });
    }

    fn end_without_receipt(&mut self, task: Box<Task>, ended: Ended, told_to_come_back: bool) {
        let word = self.word(&task, Word::End(ended, next(&task, told_to_come_back)));
        self.write(task, Transition::Last(word), Then::End { told: Told::Problem("no receipt") });
    }

    /// `Run::broken_off`: the store did not take a step on the way to the next send.
    pub fn broken_off(&mut self, task: Box<Task>, error: WriteError, ended: Ended) {
        match error {
            WriteError::Fenced(_) if !ended.may_have_run => {
                let word = self.word(&task, Word::End(ended, Next::Person));
                let then = Then::End { told: Told::Problem("did not run") };
                self.write(task, Transition::Last(word), then);
            }
            WriteError::Store => {
                let word = self.word(&task, Word::End(ended, next(&task, true)));
                self.keep_writing(&task, word);
                self.conclude(task, Told::Problem("store unavailable"));
            }
            error => self.lost(task, error),
        }
    }

    fn lost(&mut self, task: Box<Task>, error: WriteError) {
        match error {
            WriteError::Fenced(found) => self.superseded(task, &found),
            WriteError::Store | WriteError::Gone | WriteError::Illegal => {
                self.conclude(task, Told::Problem("in progress"));
            }
        }
    }

    fn superseded(&mut self, task: Box<Task>, found: &Found) {
        let row = found.operation.admit(None, &ResendRule::NONE, self.view(task.gateway));
        let told = self.told_of(found, row);
        self.conclude(task, told);
    }

    fn word(&mut self, task: &Task, word: Word) -> Box<LastWord> {
        Box::new(LastWord { word, keep: self.setup.keep, write: self.step_of(task.gateway).write })
    }

    /// `Run::keep_writing`: a task goes on in the owner's name.
    fn keep_writing(&mut self, task: &Task, word: Box<LastWord>) {
        let mut own = self.task(task.gateway, task.key);
        own.owner = task.owner.clone().map(|owner| Box::new(Owner { writing: None, renewing: None, ..*owner }));
        let sender = sender_of(&own);
        self.write(own, Transition::Last(word), Then::Keep { pause: FIRST_PAUSE, sender, again: false });
    }

    /// What follows a last word: first what `Owner::write_answer` makes of it, then whoever wanted it written.
    pub fn last_word_written(&mut self, mut task: Box<Task>, then: Then, result: Result<(), WriteError>) {
        let Some(word) = task.last_word.clone() else { return self.conclude(task, Told::Problem("in progress")) };
        let owner = task.owner.as_mut().expect("only an owner writes");
        if let Some(known) = owner.known.take() {
            if result.is_err() {
                owner.operation = *known;
            }
            return self.said(task, word, then, result);
        }
        match (result, &then) {
            (Err(WriteError::Fenced(found)), _) if self.may_retract(&task, &word, &found) => {
                self.retract(task, word, then, *found);
            }
            (Err(WriteError::Fenced(found)), Then::Show { again, sender, .. } | Then::Keep { again, sender, .. })
                if matches!(word.word, Word::Settle { .. }) =>
            {
                let sender = *sender;
                if !again && self.is_evidence(sender, &found) {
                    return self.write_evidence(task, word, then, *found);
                }
                let settled = found.operation.state.settled().is_some();
                if !again && settled && self.setup.broken == Broken::LateOwnerOverwrites {
                    return self.overwrite(task, word, then, &found);
                }
                self.tell_late(task, &word, sender, found, then);
            }
            (result, _) => self.said(task, word, then, result),
        }
    }

    /// `Owner::write_end`, of which the doubt is brought by whoever writes.
    fn may_retract(&self, task: &Task, word: &LastWord, found: &Found) -> bool {
        let Word::End(ended, _) = word.word else { return false };
        let Some(owner) = &task.owner else { return false };
        let doubtful = ended.may_have_run || owner.operation.may_have_run;
        !doubtful && found.operation.is_unknown_of(owner.operation.fence.owner)
    }

    /// `Owner::retract`.
    fn retract(&mut self, mut task: Box<Task>, word: Box<LastWord>, then: Then, unknown: Found) {
        let Some(owner) = &mut task.owner else { return };
        let known = std::mem::replace(&mut owner.operation, unknown.operation);
        let retracts = Transition::Retract(word, known.fence.owner);
        owner.known = Some(Box::new(known));
        self.write(task, retracts, then);
    }

    /// `Owner::tell_late`.
    fn tell_late(&mut self, task: Box<Task>, word: &LastWord, sender: Option<Sender>, found: Box<Found>, then: Then) {
        let Word::Settle { settled, .. } = &word.word else { return };
        let owner = sender.map(|sender| sender.owner);
        let owner = owner.or(task.owner.as_ref().map(|owner| owner.operation.fence.owner)).unwrap_or_default();
        let answer = LateAnswer { owner, status: settled.status };
        let record = found.operation.clone();
        self.tell_once(task, answer, &record, found, ADOPTIONS, then);
    }

    fn tell_once(
        &mut self,
        mut task: Box<Task>,
        answer: LateAnswer,
        record: &Operation,
        found: Box<Found>,
        tries_left: usize,
        then: Then,
    ) {
        let step = self.step_of(task.gateway);
        match record.tell_late(answer, step) {
            Some(change) if tries_left > 0 => {
                self.ask(&mut task, Ask::Write(Box::new(change)), false);
                task.phase = Phase::Tell { answer, found, tries_left: tries_left - 1, then };
                self.keep(task);
            }
            _ => self.answer_told(task, found, then),
        }
    }

    pub fn told_late(
        &mut self,
        task: Box<Task>,
        (answer, found, tries_left, then): (LateAnswer, Box<Found>, usize, Then),
        reply: Reply,
    ) {
        match reply {
            Reply::Written(Written::Refused(record)) => {
                self.tell_once(task, answer, &record.operation, found, tries_left, then);
            }
            _ => self.answer_told(task, found, then),
        }
    }

    fn answer_told(&mut self, task: Box<Task>, found: Box<Found>, then: Then) {
        let Some(word) = task.last_word.clone() else { return };
        self.said(task, word, then, Err(WriteError::Fenced(found)));
    }

    fn said(&mut self, mut task: Box<Task>, word: Box<LastWord>, then: Then, result: Result<(), WriteError>) {
        match then {
            Then::Show { until, pause, sender, .. } => self.shown(task, word, until, pause, sender, result),
            Then::End { told } => match result {
                Ok(()) => self.conclude(task, told),
                Err(WriteError::Fenced(found)) => self.superseded(task, &found),
                Err(_) => {
                    self.keep_writing(&task, word);
                    self.conclude(task, told);
                }
            },
            Then::Keep { pause, sender, .. } => match result {
                Err(WriteError::Store) => {
                    let longer = (pause * 2).min(LONGEST_PAUSE);
                    self.sleep(&mut task, pause);
                    let then = Then::Keep { pause: longer, sender, again: false };
                    task.phase = Phase::Rest { word, then };
                    self.keep(task);
                }
                _ => self.conclude(task, Told::Lost),
            },
            Then::TakeBack { before, word, since, pause } => {
                let is_late = match result {
                    Ok(()) | Err(WriteError::Illegal) => false,
                    Err(WriteError::Store) => true,
                    Err(WriteError::Gone) => self.now - since < LEASE,
                    Err(WriteError::Fenced(found)) => Some(found.operation.fence) == before && self.now - since < LEASE,
                };
                if is_late {
                    self.sleep(&mut task, pause);
                    let pause = (pause * 2).min(LONGEST_PAUSE);
                    task.phase = Phase::TakeBackRest { before, word, since, pause };
                    self.keep(task);
                }
            }
            Then::Ready { .. } | Then::Pause { .. } => unreachable!("no last word"),
        }
    }

    /// `make_durable`, after a try.
    fn shown(
        &mut self,
        mut task: Box<Task>,
        word: Box<LastWord>,
        until: u64,
        pause: u64,
        sender: Option<Sender>,
        result: Result<(), WriteError>,
    ) {
        match result {
            Ok(()) => self.conclude(task, word.shows()),
            Err(WriteError::Fenced(found)) => self.superseded(task, &found),
            Err(WriteError::Store) if self.now + pause < until => {
                let longer = (pause * 2).min(LONGEST_PAUSE);
                self.sleep(&mut task, pause);
                let then = Then::Show { until, pause: longer, sender, again: false };
                task.phase = Phase::Rest { word, then };
                self.keep(task);
            }
            Err(_) => {
                self.keep_writing(&task, word);
                self.conclude(task, Told::NoReceipt);
            }
        }
    }

    fn is_evidence(&self, sender: Option<Sender>, found: &Found) -> bool {
        match self.setup.broken {
            Broken::AnyEvidence => found.operation.state.name() == StateName::Unknown,
            _ => sender.is_some_and(|sender| found.operation.takes_evidence_of(sender)),
        }
    }

    fn write_evidence(&mut self, mut task: Box<Task>, word: Box<LastWord>, then: Then, found: Found) {
        if let Some(owner) = &mut task.owner {
            owner.operation = found.operation;
        }
        let then = match then {
            Then::Show { until, pause, sender, .. } => Then::Show { until, pause, sender, again: true },
            Then::Keep { pause, sender, .. } => Then::Keep { pause, sender, again: true },
            then => then,
        };
        self.write(task, Transition::Last(word), then);
    }

    /// What an owner without a fence would do.
    fn overwrite(&mut self, mut task: Box<Task>, word: Box<LastWord>, then: Then, found: &Found) {
        if let Some(owner) = &mut task.owner {
            let Then::Show { until, pause, sender, .. } = then else { return };
            owner.operation.fence = found.operation.fence;
            let then = Then::Show { until, pause, sender, again: true };
            self.write(task, Transition::Last(word), then);
        }
    }
}

fn sender_of(task: &Task) -> Option<Sender> {
    task.owner.as_ref().and_then(|owner| owner.operation.sender)
}

/// `FirstCaller::next`.
fn next(task: &Task, told_to_come_back: bool) -> Next {
    if told_to_come_back && !task.callers.is_empty() { Next::Client } else { Next::Person }
}
