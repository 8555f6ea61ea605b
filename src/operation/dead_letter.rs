//! What needs a person: a part of the operation's record and not a copy of it, so that it can be neither lost nor doubled.
//!
//! The step that ends a run opens it; the step that moves the operation on closes it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::operation::{Operation, State};

/// How long one of an operation that did not run is kept at least, whatever its key: a receiver of alerts may be away.
pub const LEAST_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// An open dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Since when the operation has needed a person, by the store's clock. A run that ends like the one before goes on with
    /// its letter, so that a caller who tries again and again makes no news.
    pub since: Timestamp,
    /// When the last alert that names it had been taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerted_at: Option<Timestamp>,
    /// It was opened by an answer that says otherwise than the record does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disputed: bool,
}

impl DeadLetter {
    /// One that nobody was told of.
    pub fn opened(since: Timestamp) -> Self {
        Self { since, alerted_at: None, disputed: false }
    }
}

/// Who sees to an operation that did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The caller, who was told when to come back.
    Client,
    /// Nobody was told that, so that it is a dead letter.
    Person,
}

/// What a write does to the dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    /// It is open from this write on, or still.
    Open,
    /// If there was one, it is closed.
    Closed,
    /// There was none before, and there is none.
    None,
}

impl Operation {
    /// The open dead letter. An older version does not note that of an unknown.
    pub fn dead_letter(&self) -> Option<DeadLetter> {
        match &self.state {
            State::Unknown { since, .. } => Some(self.dead.unwrap_or(DeadLetter::opened(*since))),
            State::NotExecuted { .. } | State::Rejected | State::Abandoned => self.dead,
            State::Claimed { .. }
            | State::AwaitingApproval
            | State::Sent { .. }
            | State::Waiting { .. }
            | State::Succeeded { .. }
            | State::Failed { .. }
            | State::Compensating { .. }
            | State::Compensated { .. } => None,
        }
    }

    /// An answer came after its end and against what that says, so that it may have run all the same.
    pub fn is_disputed(&self) -> bool {
        self.dead_letter().is_some_and(|letter| letter.disputed)
    }

    /// Why a person has to look at it, in one word to group by.
    pub fn letter_reason(&self) -> Option<String> {
        let letter = self.dead_letter()?;
        match &self.state {
            State::Unknown { cause, .. } | State::NotExecuted { cause } if !letter.disputed => Some(cause.word()),
            State::Claimed { .. }
            | State::AwaitingApproval
            | State::Sent { .. }
            | State::Waiting { .. }
            | State::Succeeded { .. }
            | State::Failed { .. }
            | State::NotExecuted { .. }
            | State::Unknown { .. }
            | State::Rejected
            | State::Abandoned
            | State::Compensating { .. }
            | State::Compensated { .. } => Some("disputed".to_owned()),
        }
    }
}
