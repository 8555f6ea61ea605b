//! The pure core: what an operation is, how it may change, and what a caller who meets one gets.
//!
//! Nothing here awaits, reads a clock or draws a random number: time and identifiers are arguments. What a store keeps
//! is decided here and nowhere else.

pub mod admission;
pub mod dead_letter;
pub mod event;
pub mod fingerprint;
pub mod id;
pub mod key;
mod lines;
pub mod meaning;
pub mod outcome;
pub mod payload;
mod raw;
pub mod receipt;
pub mod request;
pub mod scope;
pub mod state;
pub mod transition;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
pub use dead_letter::DeadLetter;
pub use event::{Event, EventKind};
pub use fingerprint::Fingerprint;
pub use id::{OperationId, OwnerId, WriteId};
pub use key::KeySource;
pub use receipt::{Kept, Receipt, Settled};
pub use request::StoredRequest;
pub use scope::Scope;
pub use state::{Cause, Lease, State, StateName};

/// One logical side effect, however many tries and callers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    pub id: OperationId,
    /// Shared: each step of an operation makes a new record around it.
    pub identity: Arc<Identity>,
    pub state: State,
    /// In the header of a stored record, where a store can compare it without reading the rest.
    #[serde(skip)]
    pub fence: Fence,
    /// Sends so far, over all runs; counted in the write that comes before each send.
    pub attempts: u32,
    /// Sends of earlier runs: `attempts - attempts_before` is what `max_attempts` bounds.
    pub attempts_before: u32,
    /// An attempt ended ambiguous. Only a final answer, a probe or a person clears it.
    pub may_have_run: bool,
    /// When the first byte of the first attempt could have gone, by the store's clock.
    pub first_sent_at: Option<Timestamp>,
    /// When the last attempt was known to be over.
    pub attempt_ended_at: Option<Timestamp>,
    /// Whose answer may still end an unknown.
    pub sender: Option<Sender>,
    /// [`ResendRule::destination`](admission::ResendRule) of the present owner, or the last one; `None` where a version
    /// wrote it that did not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<[u8; 8]>,
    /// No attempt of the present run starts later, by the store's clock.
    pub deadline: Timestamp,
    pub created_at: Timestamp,
    pub changed_at: Timestamp,
    /// When the record itself goes; `None` while it has not ended.
    pub expires_at: Option<Timestamp>,
    /// Events so far, those that are not kept any more included.
    #[serde(default)]
    pub events: u32,
    /// Answers that came too late and were told as events.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub late_answers: u32,
    /// Whoever asked for it was told 202, and asks for the end by the operation's name.
    #[serde(default, skip_serializing_if = "is_false")]
    pub accepted: bool,
    /// As it was noted, also while a run may still make it needless: [`Operation::dead_letter`] says whether one is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead: Option<DeadLetter>,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// What never changes in the life of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub scope: Scope,
    pub route: String,
    /// The key in force, as the client sees it.
    pub key: String,
    /// The key as the upstream gets it, byte for byte; `None` where it gets none.
    pub upstream_key: Option<String>,
    pub source: KeySource,
    pub fingerprint: Fingerprint,
    pub session: Option<String>,
    pub step: Option<String>,
    /// Digest of an unnamed call; look-alikes share it.
    pub alike: Option<Alike>,
    /// Digest of the route's identity rules under which the key was made.
    #[serde(serialize_with = "raw::serialize")]
    pub rules: [u8; 8],
}

/// What unnamed calls of the same content have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alike {
    #[serde(serialize_with = "raw::serialize")]
    pub digest: [u8; 32],
    /// Until when an identical unnamed call is this operation; `None` if only an unresolved one counts.
    pub until: Option<Timestamp>,
}

/// When an identical unnamed call has to stop at an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// Until this one moves.
    Always,
    Until(Timestamp),
    /// Its owner may go away: from the end of his lease on nobody knows whether it ran.
    From(Timestamp),
}

impl Blocking {
    pub fn holds_at(self, now: Timestamp) -> bool {
        match self {
            Self::Always => true,
            Self::Until(end) => end > now,
            Self::From(begin) => begin <= now,
        }
    }

    /// As one number that stores can compare: an end, or a begin below zero; `None` has no end.
    pub fn as_number(self) -> Option<i64> {
        let signed = |time: Timestamp| i64::try_from(time.0).unwrap_or(i64::MAX);
        match self {
            Self::Always => None,
            Self::Until(end) => Some(signed(end)),
            Self::From(begin) => Some(-signed(begin)),
        }
    }
}

/// Who may write a record next. The store compares all of it but `write` before it changes anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    pub owner: OwnerId,
    /// The fencing token: grows with every claim and take-over, never falls.
    pub token: u64,
    /// Grows with every write.
    pub revision: u64,
    /// The last write; the same one sent again is success and changes nothing.
    pub write: WriteId,
}

/// The attempt whose answer counts as evidence, even from an owner that lost its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    pub owner: OwnerId,
    pub attempt: u32,
}

impl Operation {
    /// Sends of the present run.
    pub fn attempts_of_run(&self) -> u32 {
        self.attempts.saturating_sub(self.attempts_before)
    }

    /// When somebody has to look at it if its owner does not: the end of its lease, or of the wait that nobody holds.
    pub fn due(&self) -> Option<Timestamp> {
        self.parked_until().or_else(|| self.state.lease().map(|lease| lease.until))
    }

    /// The end of a wait during which nobody owns it.
    pub fn parked_until(&self) -> Option<Timestamp> {
        match self.state {
            State::Waiting { not_before, lease: None } => Some(not_before),
            _ => None,
        }
    }

    /// Events that are not kept any more, given how many are. They lie between the first ones and the newest.
    pub fn events_left_out(&self, kept: usize) -> u32 {
        self.events.saturating_sub(u32::try_from(kept).unwrap_or(u32::MAX))
    }

    /// Whether it is unfinished: such a record has no end of its own, and `max_open` bounds how many there are.
    pub fn is_open(&self) -> bool {
        self.expires_at.is_none()
    }

    /// Whether an identical unnamed call has to stop here, and when.
    pub fn blocks_alike(&self) -> Option<(Alike, Blocking)> {
        let alike = self.identity.alike?;
        let blocking = match (&self.state, alike.until) {
            // One that goes by itself needs nobody to end it.
            (State::Unknown { .. }, Some(until)) if !self.is_open() => Blocking::Until(until),
            (State::Unknown { .. } | State::AwaitingApproval, _) => Blocking::Always,
            (_, Some(until)) => Blocking::Until(until),
            (State::Sent { .. } | State::Waiting { .. }, None) if self.is_anothers_attempt() => Blocking::Always,
            (State::Sent { lease }, None) => Blocking::From(lease.until),
            (State::Waiting { lease: Some(lease), .. }, None) if self.may_have_run => Blocking::From(lease.until),
            (State::Waiting { lease: None, .. }, None) if self.may_have_run => Blocking::Always,
            (_, None) => return None,
        };
        Some((alike, blocking))
    }

    /// Whether its last attempt was that of an owner who is gone, and may have run: whoever asked him for it asks again.
    fn is_anothers_attempt(&self) -> bool {
        self.may_have_run && self.sender.is_some_and(|sender| sender.owner != self.fence.owner)
    }

    /// Whether the owner of `fence` still has it, though it may have been written since. Whoever ends a record whose
    /// lease is over leaves the owner's name in it, but not the lease.
    pub fn is_held_under(&self, fence: &Fence) -> bool {
        let is_unfinished = self.state.lease().is_some() || self.parked_until().is_some();
        self.fence.owner == fence.owner && self.fence.token == fence.token && is_unfinished
    }

    /// What its owner goes on from when the store holds `stored`, which is his: an earlier write whose reply was lost. A
    /// store that has forgotten his last writes, in a failover, is told of them by the next one: nobody else knows that
    /// the call was sent.
    #[must_use]
    pub fn resumed(self, stored: Self) -> Self {
        if stored.fence.revision < self.fence.revision { Self { fence: stored.fence, ..self } } else { stored }
    }

    /// Whether `stored` is this record, with no more than a note of an alert since: every other step has an event.
    pub fn is_still(&self, stored: &Self) -> bool {
        let of = |operation: &Self| (operation.fence.token, operation.events, operation.state.name());
        of(self) == of(stored)
    }

    /// Whether the write by which the present owner got it has counted an attempt that is still to be made.
    pub fn opened_with_send(&self) -> bool {
        self.state.name() == StateName::Sent && self.sender.is_some_and(|sender| sender.owner == self.fence.owner)
    }

    /// Whether the lease is over at `now`; a record without a lease has no owner either.
    pub fn is_ownerless(&self, now: Timestamp) -> bool {
        self.state.lease().is_none_or(|lease| lease.until <= now)
    }
}
