//! How a gateway knows that the store still has its memory.
//!
//! A namespace has an epoch: an id that stands in a key of its own and, as a marker, in every bucket. Whoever founds one
//! writes the key first and opens it when all markers stand, so a marker without the key, or a bucket without its marker,
//! was lost. A count in the key goes up about once a second: one that is lower than it was is that of an older copy.
//!
//! A gateway that finds a loss leaves word of it in the store, so that those close, too, that begin after it. Only an
//! operator's word begins the next epoch, with a higher generation, which every gateway takes up by itself.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};

use crate::clock::Timestamp;
use crate::entropy::Entropy;
use crate::store::redis::clock::ServerClock;
use crate::store::redis::cluster::Cluster;
use crate::store::redis::failure::Failure;
use crate::store::redis::fitness::OpenError;
use crate::store::redis::keys::Keys;
use crate::store::redis::line::Line;
use crate::store::redis::replies;
use crate::store::redis::scripts::{BEGIN, CONDEMN, RAISE, Request};

/// How a store shows that it has forgotten something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    #[error("it is empty, or its epoch is gone: a flush, a lost disk or another database")]
    Gone,
    #[error("it has another epoch than before: it was begun anew, or it is another store")]
    Other,
    #[error("it is older than it was: its epoch counted {seen} before and counts {stored} now")]
    Older { seen: u64, stored: u64 },
    #[error("bucket {0:02x} has lost the marker of the epoch, and its records with it")]
    Bucket(u8),
    /// What a gateway found before.
    #[error("{0}")]
    Told(String),
}

type EpochId = [u8; 16];

/// How far the estimate of the server's clock may be off.
const CLOCK_ERROR: Duration = Duration::from_secs(5);

/// The epoch as this gateway knows it, and the store's memory measured by it.
pub(super) struct Epoch {
    keys: Keys,
    entropy: Entropy,
    /// Whether a count that is read will still be there after a failover; else only those count that replicas have.
    believes_reads: bool,
    known: Mutex<Memory>,
}

/// Over what a store is asked about its epoch.
pub(super) enum Way<'w> {
    /// A line that nothing else may use yet, and the clock of its server.
    Line(&'w Line, &'w ServerClock),
    Cluster(&'w Cluster),
}

impl Way<'_> {
    async fn send(&self, request: &Request, with_source: bool) -> Result<Value, OpenError> {
        match self {
            Self::Line(line, _) => Ok(replies::whole(line.send(request, with_source, false).await?)?),
            Self::Cluster(cluster) => cluster.send(request, with_source).await,
        }
    }

    fn now(&self) -> Timestamp {
        match self {
            Self::Line(_, clock) => clock.now(),
            Self::Cluster(cluster) => cluster.now(),
        }
    }
}

#[derive(Default)]
struct Memory {
    known: Option<Known>,
    /// The log says so once.
    is_lost: bool,
}

/// What the store said when it last agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    id: EpochId,
    generation: u64,
    count: u64,
    /// By the store's clock.
    looked_at: Timestamp,
}

/// The key of the epoch as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    /// Empty where a loss was noted in an empty store.
    id: Vec<u8>,
    generation: u64,
    count: u64,
    founded_at: Timestamp,
    /// All markers stand.
    is_open: bool,
    lost: Option<String>,
}

impl Epoch {
    pub(super) fn new(keys: Keys, entropy: Entropy, believes_reads: bool) -> Self {
        Self { keys, entropy, believes_reads, known: Mutex::default() }
    }

    /// What a claim compares with the marker of its bucket. Before anything is known it fits no marker.
    pub(super) fn marker(&self) -> EpochId {
        self.memory().known.map_or([0; 16], |known| known.id)
    }

    /// On a new connection, before any step goes over it. Founds the epoch of a namespace that has none.
    ///
    /// # Errors
    /// The store has lost something, or does not answer.
    pub(super) async fn examine(&self, way: &Way<'_>) -> Result<(), OpenError> {
        let known = self.known();
        let mut stored = self.stored(way).await?;
        if stored.is_none() && known.is_none() {
            stored = self.found(way).await?;
        }
        let stored = self.agree(way, known, stored).await?;
        if !stored.is_open {
            self.mark(way, &stored).await?;
        } else if let Some(bucket) = unmarked(&self.markers(way).await?, &stored.id) {
            return Err(self.lost(way, known, Some(&stored), Loss::Bucket(bucket)).await);
        }
        self.take_up(&stored, way.now());
        Ok(())
    }

    /// Sees, on a connection in use, that the store is what it was.
    ///
    /// # Errors
    /// The same as for [`Self::examine`].
    pub(super) async fn look(&self, way: &Way<'_>) -> Result<(), OpenError> {
        // What is known before the question is the measure: an answer may be overtaken by a later count.
        let known = self.known();
        let stored = self.stored(way).await?;
        let stored = self.agree(way, known, stored).await?;
        if stored.is_open && known.is_some_and(|known| known.id[..] == stored.id) {
            self.take_up(&stored, way.now());
            return Ok(());
        }
        self.examine(way).await
    }

    /// Begins the next epoch over what is left; false if nothing was lost.
    ///
    /// # Errors
    /// The store does not answer.
    pub(super) async fn accept(&self, way: &Way<'_>) -> Result<bool, OpenError> {
        let (known, stored) = (self.known(), self.stored(way).await?);
        let is_whole = match judge(known.as_ref(), stored.as_ref()) {
            Ok(stored) => unmarked(&self.markers(way).await?, &stored.id).is_none(),
            Err(_) => false,
        };
        if is_whole {
            return Ok(false);
        }
        let (id, generation) = (stored.map(|stored| stored.id), known.map_or(0, |known| known.generation));
        self.begin(way, &id.unwrap_or_default(), "next", generation).await?;
        let stored = self.stored(way).await?.ok_or(Loss::Gone)?;
        self.mark(way, &stored).await?;
        self.take_up(&stored, way.now());
        Ok(true)
    }

    /// Raises the count. Replies it, or nothing if the epoch is another one.
    pub(super) fn raise(&self) -> Request {
        RAISE.call(1, 0).with(self.keys.epoch()).with(&self.marker()[..]).with("count").into()
    }

    pub(super) fn raised(&self, count: u64) {
        if let Some(known) = &mut self.memory().known {
            known.count = known.count.max(count);
        }
    }

    /// The markers of all buckets.
    pub(super) fn all_markers(&self) -> Request {
        self.each_marker(|keys, bucket| {
            let mut command = Cmd::new();
            command.arg("GET").arg(keys.marker(bucket));
            command
        })
    }

    /// Whether a reply to [`Self::all_markers`] is what it should be.
    pub(super) fn is_marked(&self, reply: &Value) -> Result<bool, Failure> {
        Ok(unmarked(&markers(reply)?, &self.marker()).is_none())
    }

    async fn found(&self, way: &Way<'_>) -> Result<Option<Stored>, OpenError> {
        if self.markers(way).await?.iter().all(Option::is_none) {
            self.begin(way, b"", "first", 0).await?;
        }
        self.stored(way).await
    }

    /// Whoever begins it may go away before its markers stand: the next one who comes writes them.
    async fn begin(&self, way: &Way<'_>, stands: &[u8], which: &str, generation: u64) -> Result<(), OpenError> {
        let id: EpochId = self.entropy.bytes();
        let call = BEGIN.call(1, 0).with(self.keys.epoch()).with(&id[..]).with(stands).with(which).with(generation);
        replies::number(way.send(&call.into(), true).await?)?;
        Ok(())
    }

    /// Writes all markers, then opens the epoch. In the first one a marker of another is no leftover but a loss.
    async fn mark(&self, way: &Way<'_>, stored: &Stored) -> Result<(), OpenError> {
        let is_first = stored.generation <= 1;
        let request = self.each_marker(|keys, bucket| {
            let mut command = Cmd::new();
            command.arg("SET").arg(keys.marker(bucket)).arg(&stored.id);
            if is_first {
                command.arg("NX").arg("GET");
            }
            command
        });
        let reply = way.send(&request, true).await?;
        if is_first && let Some(bucket) = marked_otherwise(&markers(&reply)?, &stored.id) {
            return Err(self.lost(way, self.known(), Some(stored), Loss::Bucket(bucket)).await);
        }
        let open = RAISE.call(1, 0).with(self.keys.epoch()).with(&stored.id).with("open");
        match way.send(&open.into(), true).await? {
            Value::Int(_) => Ok(()),
            // It is not the one any more whose markers these are.
            _ => Err(Loss::Other.into()),
        }
    }

    async fn agree(&self, way: &Way<'_>, known: Option<Known>, stored: Option<Stored>) -> Result<Stored, OpenError> {
        match judge(known.as_ref(), stored.as_ref()) {
            Ok(stored) => Ok(stored.clone()),
            Err(loss) => Err(self.lost(way, known, stored.as_ref(), loss).await),
        }
    }

    /// Says it in the log, and in the store, where another gateway may be about to begin.
    async fn lost(&self, way: &Way<'_>, known: Option<Known>, stored: Option<&Stored>, loss: Loss) -> OpenError {
        if !std::mem::replace(&mut self.memory().is_lost, true) {
            tracing::error!(
                %loss,
                "the store has lost its memory; guarded calls are refused until POST /v1/store/accept-loss"
            );
        }
        if may_condemn(known.as_ref(), stored, &loss) {
            let generation = known.map_or(0, |known| known.generation);
            let stands = stored.map_or(&b""[..], |stored| &stored.id);
            let call = CONDEMN.call(1, 0).with(self.keys.epoch()).with(stands).with(generation).with(loss.to_string());
            if let Err(error) = way.send(&call.into(), true).await {
                tracing::warn!(%error, "the loss could not be noted in the store");
            }
        }
        loss.into()
    }

    async fn stored(&self, way: &Way<'_>) -> Result<Option<Stored>, OpenError> {
        let mut command = Cmd::new();
        command.arg("HMGET").arg(self.keys.epoch()).arg(&["id", "generation", "count", "founded", "open", "lost"]);
        Ok(stored(&way.send(&Request::One(command), false).await?)?)
    }

    async fn markers(&self, way: &Way<'_>) -> Result<Vec<Option<Vec<u8>>>, OpenError> {
        Ok(markers(&way.send(&self.all_markers(), false).await?)?)
    }

    fn each_marker(&self, command: impl Fn(&Keys, u8) -> Cmd) -> Request {
        let mut commands = Pipeline::with_capacity(256);
        for bucket in 0..=u8::MAX {
            commands.add_command(command(&self.keys, bucket));
        }
        Request::Many(commands)
    }

    fn take_up(&self, stored: &Stored, now: Timestamp) {
        let Ok(id) = EpochId::try_from(stored.id.as_slice()) else { return };
        let mut memory = self.memory();
        let before = memory.known.filter(|known| known.id == id).map_or(0, |known| known.count);
        if memory.known.is_none_or(|known| known.generation <= stored.generation) {
            let read = if self.believes_reads { stored.count } else { 0 };
            let (generation, count) = (stored.generation, read.max(before));
            memory.known = Some(Known { id, generation, count, looked_at: now });
        }
        if std::mem::replace(&mut memory.is_lost, false) {
            tracing::info!(generation = stored.generation, "the loss of the store was accepted; calls are taken again");
        }
    }

    fn known(&self) -> Option<Known> {
        self.memory().known
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rule: a store agrees with what was known of it, or an operator has accepted that it does not.
fn judge<'s>(known: Option<&Known>, stored: Option<&'s Stored>) -> Result<&'s Stored, Loss> {
    let stored = stored.ok_or(Loss::Gone)?;
    if let Some(lost) = &stored.lost {
        return Err(Loss::Told(lost.clone()));
    }
    match known {
        Some(known) if known.id[..] == stored.id && stored.count < known.count => {
            Err(Loss::Older { seen: known.count, stored: stored.count })
        }
        Some(known) if known.id[..] != stored.id && stored.generation <= known.generation => Err(Loss::Other),
        Some(_) | None => Ok(stored),
    }
}

/// Not over another fleet's store: a gateway may have been led there by a wrong name. An epoch that was founded since
/// the last look stands where ours stood.
fn may_condemn(known: Option<&Known>, stored: Option<&Stored>, loss: &Loss) -> bool {
    match loss {
        Loss::Told(_) => false,
        Loss::Gone | Loss::Older { .. } | Loss::Bucket(_) => true,
        Loss::Other => {
            known.zip(stored).is_some_and(|(known, stored)| stored.founded_at.after(CLOCK_ERROR) > known.looked_at)
        }
    }
}

fn unmarked(markers: &[Option<Vec<u8>>], id: &[u8]) -> Option<u8> {
    let bucket = markers.iter().position(|marker| marker.as_deref() != Some(id))?;
    u8::try_from(bucket).ok()
}

fn marked_otherwise(markers: &[Option<Vec<u8>>], id: &[u8]) -> Option<u8> {
    let bucket = markers.iter().position(|marker| marker.as_deref().is_some_and(|marker| marker != id))?;
    u8::try_from(bucket).ok()
}

fn markers(reply: &Value) -> Result<Vec<Option<Vec<u8>>>, Failure> {
    let marker = |entry| replies::bulk_or_nil(entry).map(|marker| marker.map(<[u8]>::to_vec));
    replies::list(reply)?.iter().map(marker).collect()
}

fn stored(reply: &Value) -> Result<Option<Stored>, Failure> {
    let [id, generation, count, founded, open, lost] = replies::list(reply)? else { return Err(Failure::Garbage) };
    let (id, lost) = (replies::bulk_or_nil(id)?, replies::bulk_or_nil(lost)?.filter(|lost| !lost.is_empty()));
    if id.is_none() && lost.is_none() {
        return Ok(None);
    }
    Ok(Some(Stored {
        id: id.unwrap_or_default().to_vec(),
        generation: number(generation)?,
        count: number(count)?,
        founded_at: Timestamp(number(founded)?),
        is_open: number(open)? > 0,
        lost: lost.map(|lost| String::from_utf8_lossy(lost).into_owned()),
    }))
}

/// A field that is not there counts as zero.
fn number(field: &Value) -> Result<u64, Failure> {
    match replies::bulk_or_nil(field)? {
        Some(digits) => replies::text(digits)?.parse().map_err(|_| Failure::Garbage),
        None => Ok(0),
    }
}
