//! What a gateway is in the middle of, between two things that it waits for.

use std::time::Duration;

use oncegate::operation::admission::Admission;
use oncegate::operation::dead_letter::Next;
use oncegate::operation::transition::{Change, Ended, IllegalTransition, LateAnswer, Retention, Step, Verdict};
use oncegate::operation::{Fence, Kept, Operation, OwnerId, Receipt, Sender, Settled, StoredRequest, WriteId};
use oncegate::retry::decide;
use oncegate::store::{Claimed, Found, Written};

use super::setup::LEASE;
use super::upstream::Heard;

/// A task of the engine: a call, a recovery, a claim that is taken back, or a last word that is still to be written.
#[derive(Clone)]
pub struct Task {
    pub id: u32,
    pub gateway: usize,
    pub key: usize,
    pub callers: Vec<usize>,
    pub deadline: u64,
    pub phase: Phase,
    pub awaited: u64,
    pub awaited_beside: u64,
    pub owner: Option<Box<Owner>>,
    /// What it has to say last, from the moment it is known.
    pub last_word: Option<Box<LastWord>>,
    pub tries: decide::Run,
    pub counted: bool,
}

/// `engine/owner.rs`.
#[derive(Clone)]
pub struct Owner {
    pub operation: Operation,
    pub held_until: u64,
    pub writing: Option<Writing>,
    /// The renewal beside the work.
    pub renewing: Option<Writing>,
    /// Somebody else has it, so it is renewed no more.
    pub lost: bool,
    /// What he knows, while he retracts an unknown.
    pub known: Option<Box<Operation>>,
}

/// A write on its way.
#[derive(Clone)]
pub struct Writing {
    pub transition: Transition,
    pub adoptions_left: usize,
    pub since: u64,
    pub change: Box<Change>,
}

/// Which transition an owner writes: what the engine has as a closure.
#[derive(Clone)]
pub enum Transition {
    Renew,
    MarkSent,
    Wait {
        ended: Ended,
        wait: u64,
    },
    Last(Box<LastWord>),
    /// A last word without doubt, on the unknown that was made of this owner's attempt.
    Retract(Box<LastWord>, OwnerId),
}

/// `engine/settle.rs`.
#[derive(Clone)]
pub struct LastWord {
    pub word: Word,
    pub keep: Retention,
    pub write: WriteId,
}

#[derive(Clone)]
pub enum Word {
    Settle { verdict: Verdict, settled: Settled, receipt: Option<Receipt> },
    End(Ended, Next),
}

/// Where a task goes on.
#[derive(Clone, Default)]
pub enum Phase {
    #[default]
    Over,
    Claim {
        change: Box<Change>,
        since: u64,
    },
    /// `Engine::recover` reads first.
    Recover,
    /// The stored request is read before somebody becomes an owner.
    Fetch {
        found: Box<Found>,
        admission: Admission,
    },
    Enter {
        change: Box<Change>,
        since: u64,
        alone: bool,
    },
    EndLapsed {
        change: Box<Change>,
        alone: bool,
    },
    /// Between two looks at a record that another process owns.
    Follow {
        until: u64,
        pause: u64,
    },
    Look {
        until: u64,
        pause: u64,
    },
    /// `holding(sleep)`, before the first attempt.
    Due,
    Connect,
    Writing(Then),
    /// `holding(send)`.
    Send,
    /// `holding(sleep)`, between two attempts.
    Pause,
    /// An answer that came too late becomes an event of a record that stays as it is.
    Tell {
        answer: LateAnswer,
        found: Box<Found>,
        tries_left: usize,
        then: Then,
    },
    /// Between two tries of a last word.
    Rest {
        word: Box<LastWord>,
        then: Then,
    },
    TakeBackRest {
        before: Option<Fence>,
        word: Box<LastWord>,
        since: u64,
        pause: u64,
    },
}

/// What follows a write.
#[derive(Clone)]
pub enum Then {
    Ready {
        renewals_left: usize,
    },
    Pause {
        wait: u64,
        ended: Ended,
    },
    /// `make_durable`: a receipt that its caller waits for.
    Show {
        until: u64,
        pause: u64,
        sender: Option<Sender>,
        again: bool,
    },
    /// `end_without_receipt`.
    End {
        told: Told,
    },
    /// `keep_writing`: nobody waits for it.
    Keep {
        pause: u64,
        sender: Option<Sender>,
        again: bool,
    },
    TakeBack {
        before: Option<Fence>,
        word: Box<LastWord>,
        since: u64,
        pause: u64,
    },
}

/// What a task is waked by.
#[derive(Clone)]
pub enum Input {
    Woken,
    Reply(Reply),
    /// What came on the connection of a send.
    Heard(usize, Heard),
}

/// A step of the store.
#[derive(Clone)]
pub enum Ask {
    Claim(Box<Change>),
    Write(Box<Change>),
    Read,
    Request,
}

#[derive(Clone)]
pub enum Reply {
    Claimed(Claimed),
    Written(Written),
    Read(Option<Box<Found>>),
    Request(Option<Box<StoredRequest>>),
    /// It may have been done.
    Timeout,
    /// Nothing was begun.
    Away,
}

/// What a caller gets to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Receipt {
        status: u16,
        body: u32,
    },
    /// True, and marked as not kept.
    NoReceipt,
    /// The last answer of a run without a receipt, or a problem.
    Problem(&'static str),
    /// The connection broke.
    Lost,
}

/// `WriteError`.
#[derive(Clone)]
pub enum WriteError {
    Store,
    Fenced(Box<Found>),
    Gone,
    Illegal,
}

impl From<IllegalTransition> for WriteError {
    fn from(_: IllegalTransition) -> Self {
        Self::Illegal
    }
}

impl Owner {
    pub fn new(operation: Operation, since: u64) -> Box<Self> {
        let held_until = since + LEASE;
        Box::new(Self { operation, held_until, writing: None, renewing: None, lost: false, known: None })
    }

    pub fn may_send(&self, now: u64) -> bool {
        self.held_until.saturating_sub(now) >= LEASE / 4
    }
}

impl Transition {
    pub fn change(&self, operation: &Operation, step: Step) -> Result<Change, IllegalTransition> {
        let lease = Duration::from_millis(LEASE);
        match self {
            Self::Renew => operation.renew(lease, step),
            Self::MarkSent => operation.mark_sent(lease, step),
            Self::Wait { ended, wait } => {
                operation.wait(*ended, step.now.after(Duration::from_millis(*wait)), lease, step)
            }
            Self::Last(last) => last.change(operation, step),
            Self::Retract(last, owner) => last.retraction(operation, *owner, step),
        }
    }
}

impl LastWord {
    fn change(&self, operation: &Operation, step: Step) -> Result<Change, IllegalTransition> {
        let step = Step { write: self.write, ..step };
        match &self.word {
            Word::Settle { verdict, settled, receipt } => {
                operation.settle(*verdict, settled.clone(), receipt.clone(), self.keep, step)
            }
            Word::End(ended, next) => operation.end(*ended, *next, self.keep, step),
        }
    }

    fn retraction(&self, operation: &Operation, owner: OwnerId, step: Step) -> Result<Change, IllegalTransition> {
        match &self.word {
            Word::Settle { .. } => self.change(operation, step),
            Word::End(ended, _) => operation.retract(owner, *ended, self.keep, Step { write: self.write, ..step }),
        }
    }

    /// What its caller may be shown.
    pub fn shows(&self) -> Told {
        match &self.word {
            Word::Settle { settled, .. } if settled.kept == Kept::Cut => Told::Problem("cut"),
            Word::Settle { receipt: Some(receipt), .. } => Told::of_receipt(receipt),
            Word::Settle { receipt: None, .. } | Word::End(..) => Told::Problem("ended"),
        }
    }
}

impl Told {
    pub fn of_receipt(receipt: &Receipt) -> Self {
        let body = receipt.body.first_chunk().map_or(0, |body| u32::from_be_bytes(*body));
        Self::Receipt { status: receipt.status, body }
    }
}

impl Ask {
    pub fn in_words(&self) -> String {
        match self {
            Self::Claim(change) => format!("claims as {}", change.operation.state.name()),
            Self::Write(change) => format!(
                "writes {} over revision {:?}, {} attempts, token {}",
                change.operation.state.name(),
                change.expected.map(|fence| fence.revision),
                change.operation.attempts,
                change.operation.fence.token
            ),
            Self::Read => "reads".to_owned(),
            Self::Request => "reads the request".to_owned(),
        }
    }
}

impl Reply {
    pub fn in_words(&self) -> String {
        let of = |found: &Found| format!("{}, token {}", found.operation.state.name(), found.operation.fence.token);
        match self {
            Self::Claimed(Claimed::Won) => "won".to_owned(),
            Self::Claimed(Claimed::Exists(found) | Claimed::Alike(found)) => format!("exists: {}", of(found)),
            Self::Written(Written::Applied) => "applied".to_owned(),
            Self::Written(Written::Refused(found)) => format!("refused: {}", of(found)),
            Self::Written(Written::Gone) | Self::Read(None) => "gone".to_owned(),
            Self::Read(Some(found)) => of(found),
            Self::Request(request) => format!("request kept: {}", request.is_some()),
            Self::Timeout => "timeout".to_owned(),
            Self::Away => "away".to_owned(),
        }
    }
}
