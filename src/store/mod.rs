//! Where operations are kept: one contract, three stores.
//!
//! A store compares and writes; it decides nothing about states. Every step is atomic and safe to send twice, because a
//! write carries an identifier that the record remembers.

mod checksum;
mod ended;
pub mod file;
mod held;
pub mod memory;
mod pace;
pub mod record;
pub mod redis;
mod seal;
mod unreadable;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::operation::transition::Change;
use crate::operation::{Event, Operation, OperationId, Receipt, Scope, StoredRequest};
use crate::sealing_key::KeyId;

pub use checksum::Kind;
pub use seal::Sealer;
pub use unreadable::{Damage, Unreadable};

/// A record as it was found, with its receipt while that is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub operation: Operation,
    pub receipt: Option<Receipt>,
    /// Why a receipt that is kept is not here.
    pub lost: Option<Unreadable>,
}

impl Found {
    /// With what could be read of its receipt, if there is one.
    pub fn new(operation: Operation, receipt: Option<Result<Receipt, Unreadable>>) -> Self {
        let (receipt, lost) = match receipt {
            Some(Ok(receipt)) => (Some(receipt), None),
            Some(Err(unreadable)) => (None, Some(unreadable)),
            None => (None, None),
        };
        Self { operation, receipt, lost }
    }
}

/// What is left of an operation's history, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub events: Vec<Event>,
    /// Why some are missing.
    pub unreadable: Vec<Unreadable>,
}

impl History {
    /// The next event, or what is left of it.
    fn add(&mut self, event: Result<Event, Unreadable>) {
        match event {
            Ok(event) => self.events.push(event),
            Err(unreadable) => self.unreadable.push(unreadable),
        }
    }
}

/// A history is read as its events.
impl Deref for History {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.events
    }
}

/// How a claim ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Claimed {
    /// The record is ours, now or since an earlier try of the same claim.
    Won,
    /// The key has a record.
    Exists(Box<Found>),
    /// The key is new, but an identical unnamed call stands in the way. Nothing was written.
    Alike(Box<Found>),
}

/// How a write ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// It is durable, now or since an earlier try of the same write.
    Applied,
    /// The record is not what the writer thought; this is what it is.
    Refused(Box<Found>),
    /// There is no such record.
    Gone,
}

/// One page of a listing, newest first. Lists may lag; nothing is decided on them.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub operations: Vec<Operation>,
    /// Those of the page whose records cannot be read.
    pub unreadable: Vec<(OperationId, Unreadable)>,
    /// Give it back to get the next page.
    pub next: Option<String>,
}

impl Page {
    fn add(&mut self, id: OperationId, operation: Result<Operation, Unreadable>) {
        match operation {
            Ok(operation) => self.operations.push(operation),
            Err(unreadable) => self.unreadable.push((id, unreadable)),
        }
    }
}

/// How much of its space a store has used, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub used: u64,
    /// Beyond it nothing is written.
    pub limit: u64,
}

impl Space {
    /// The used part of all, from 0 to 1.
    pub fn share(self) -> f64 {
        if self.limit == 0 { 1.0 } else { self.used as f64 / self.limit as f64 }
    }
}

/// A rate: a call in each interval, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub interval: Duration,
    pub burst: u32,
}

/// A rate is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany {
    /// Which one of those that were asked for: the one that is so for the longest.
    pub rate: usize,
    /// Until the next call would be taken.
    pub wait: Duration,
}

impl Pace {
    /// Between two calls. At least one, which is a million calls in a second.
    fn micros(self) -> u64 {
        u64::try_from(self.interval.as_micros()).unwrap_or(u64::MAX).max(1)
    }

    /// Until all that is taken at once is there again.
    fn whole_micros(self) -> u64 {
        self.micros().saturating_mul(self.burst.into())
    }
}

/// Why a store did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store did not answer within its timeout")]
    Timeout,
    /// Nothing was begun.
    #[error("the store cannot be reached")]
    Away(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It may or may not have been done.
    #[error("the connection to the store broke")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It was done, and may be forgotten: too few replicas have it.
    #[error("the store did it, but {0}")]
    Unreplicated(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store said no; nothing was written.
    #[error("the store refused: {0}")]
    Refused(String),
    /// It has forgotten what it had acknowledged, so nothing is asked of it until an operator accepts that.
    #[error("the store has lost its memory: {0}")]
    LostMemory(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The cursor is not one that a list of this store gave.
    #[error("the cursor is not one that a list gave")]
    NoSuchPlace,
    #[error("the record has format {0}, which a newer version wrote")]
    RecordTooNew(u8),
    /// Nothing was written.
    #[error("the record has no stored form")]
    Unencodable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nothing was written, and nothing will be: the process has to end. See [`Store::ended`].
    #[error("the store takes no more writes: {0}")]
    Ended(#[source] Arc<dyn std::error::Error + Send + Sync>),
    #[error("the record is damaged: {0}")]
    Corrupt(Damage),
    #[error("what is stored is encrypted with key {0}, and no key is configured (store.encryption)")]
    NoKey(KeyId),
}

impl StoreError {
    /// Why what is stored cannot be read, if it is that. The store itself is well, and asking again gives the same.
    pub fn unreadable(&self) -> Option<Unreadable> {
        match self {
            Self::RecordTooNew(format) => Some(Unreadable::TooNew(*format)),
            Self::Corrupt(damage) => Some(Unreadable::Damaged(*damage)),
            Self::NoKey(id) => Some(Unreadable::NoKey(*id)),
            Self::Timeout
            | Self::Away(_)
            | Self::Connection(_)
            | Self::LostMemory(_)
            | Self::Unreplicated(_)
            | Self::Refused(_)
            | Self::Ended(_)
            | Self::NoSuchPlace
            | Self::Unencodable(_) => None,
        }
    }

    /// Whether the same step may succeed later in the life of this process.
    pub fn may_pass(&self) -> bool {
        self.unreadable().is_none() && !matches!(self, Self::Ended(_))
    }
}

/// The contract of a store. All of it holds for every implementation; `tests/it/store_contract.rs` is run over each.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The store's clock: every timestamp in a record is by it.
    fn now(&self) -> Timestamp;

    /// Creates the record of `change` if its key has none. With `alike`, also looks for an identical unnamed call that
    /// stands in the way; `past` names one that the caller has already looked at. Like each step that begins a run, it is
    /// not made after its caller was told `Timeout`, but for what had begun by then.
    async fn claim(&self, change: &Change, past: Option<OperationId>) -> Result<Claimed, StoreError>;

    /// Replaces a record that is still what `change.expected` says: owner, token and revision.
    async fn write(&self, change: &Change) -> Result<Written, StoreError>;

    async fn read(&self, id: OperationId) -> Result<Option<Found>, StoreError>;

    /// A record that has ended, where the store can show it without a wait.
    fn at_hand(&self, _id: OperationId) -> Option<Found> {
        None
    }

    async fn request(&self, id: OperationId) -> Result<Option<StoredRequest>, StoreError>;

    /// The history of an operation.
    async fn events(&self, id: OperationId) -> Result<History, StoreError>;

    /// Operations whose lease ended before now, up to `limit`.
    async fn due(&self, limit: usize) -> Result<Vec<OperationId>, StoreError>;

    /// Unfinished operations of a scope. A store that does not count has no bound.
    async fn count_open(&self, _scope: &Scope) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Operations by creation, newest first, from `cursor` on.
    async fn list(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError>;

    /// Of these, the open dead letters, by an index that every step keeps.
    async fn dead_letters(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError>;

    /// Removes up to `limit` records and receipts whose time is over; says how many went.
    async fn purge(&self, limit: usize) -> Result<usize, StoreError>;

    /// Keeps a small named value, `until` then or for ever, and gives back what was there before.
    async fn remember(&self, name: &str, value: &str, until: Option<Timestamp>) -> Result<Option<String>, StoreError>;

    /// Holds all who ask after this name back until then, or longer if that was said before. What is over is forgotten.
    async fn hold(&self, name: &str, until: Timestamp) -> Result<(), StoreError>;

    /// The same, if nobody holds it by now; else nothing is changed, and this is until when.
    async fn hold_if_over(&self, name: &str, until: Timestamp) -> Result<Option<Timestamp>, StoreError>;

    /// Gives it another end, or ends it now, if `known` is its end still: nobody has said anything else since.
    async fn replace_hold(&self, name: &str, known: Timestamp, until: Option<Timestamp>) -> Result<(), StoreError>;

    /// Every name that is held now, and until when.
    async fn held(&self) -> Result<Vec<(String, Timestamp)>, StoreError>;

    /// A named value as it is.
    async fn recall(&self, name: &str) -> Result<Option<String>, StoreError>;

    /// Takes the turn for some `work` of a fleet, for `life` from now on, or keeps it; false if another store has it. Who
    /// is alone always has it. Nothing gives it back but time.
    async fn take_turn(&self, _work: &str, _life: Duration) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// Takes one call of each of these rates, which all who use this store keep together, or of none of them. Rates that
    /// are taken together always are, the same one first.
    async fn take(&self, rates: &[(String, Pace)]) -> Result<Result<(), TooMany>, StoreError>;

    /// An operator's word that a store which has lost its memory is to be used again; false if it has lost nothing.
    async fn accept_loss(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// How full it is, where it has a limit that can be known.
    async fn space(&self) -> Result<Option<Space>, StoreError> {
        Ok(None)
    }

    /// What an operator should change about how it is set up, as it stands now; mostly nothing.
    async fn advice(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    /// Asks the store whether it would take a write now.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Returns once this store will never take a write again, with why. Whoever hears of it ends the process: only one
    /// that starts anew sees what the disk holds. A store that comes back by itself never ends.
    async fn ended(&self) -> StoreError {
        std::future::pending().await
    }
}

/// The place in a list that counts its records in the order of their creation; without a cursor, before the newest.
fn position(cursor: Option<&str>) -> Result<u64, StoreError> {
    let parsed = cursor.map_or(Ok(i64::MAX as u64), str::parse);
    parsed.map_err(|_| StoreError::NoSuchPlace)
}
