//! What happened to an operation: exactly one event for each change of state, in the order of its revisions.
//!
//! A history is bounded: an operation that is asked for again and again keeps how it began and what came last. Its
//! record counts all events, so that whoever reads them knows how many are left out between the two.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::operation::id::OwnerId;
use crate::operation::state::{Cause, StateName};

/// The most events that are kept of one operation.
pub const MAX_EVENTS: usize = 64;
/// How many of them are the oldest; the others are the newest.
pub const FIRST_EVENTS: usize = 8;

/// Leaves out the oldest event after the first ones where there are too many. Called for each event that is added.
pub fn keep_bounded<T>(events: &mut Vec<T>) {
    if events.len() > MAX_EVENTS {
        events.remove(FIRST_EVENTS);
    }
}

/// One entry of an operation's history. Bodies, header values and credentials are never in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The revision of the record that this event made; a strictly growing number within the operation.
    pub revision: u64,
    pub at: Timestamp,
    pub kind: EventKind,
    /// `None` for the first event, and where no state changed.
    pub from: Option<StateName>,
    pub to: Option<StateName>,
    /// Sends so far, over all runs.
    pub attempts: u32,
    pub token: u64,
    pub owner: OwnerId,
    pub cause: Option<Cause>,
    /// Status of the upstream's answer, where there was one.
    pub status: Option<u16>,
}

/// What kind of step it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    Claimed,
    ClaimedAgain,
    /// From an owner who was lost.
    TakenOver,
    /// The time of a parked call has come, and somebody goes on with it.
    Due,
    Sent,
    Waiting,
    Settled,
    NotExecuted,
    Unknown,
    /// The lease of the owner ended and nobody can go on.
    LeaseEnded,
    /// The answer of an owner that had lost its lease ended an unknown.
    LateAnswer,
    /// The answer of an owner whose operation had moved on: told, and nothing changed.
    AnswerRefused,
    /// The same, where the record says that nothing ran, or that somebody gave it up.
    Disputed,
    /// A person gave it up.
    Abandoned,
    /// No step: the receipt is there, and what is in it cannot be read.
    ReceiptUnreadable,
    /// A step that a newer version knows.
    #[serde(other)]
    Other,
}
