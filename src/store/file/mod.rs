//! One SQLite file beside the gateway.
//!
//! One thread writes: every step that waits while a commit runs goes into the next transaction, and no step is answered
//! before the commit that holds it is on the disk. Reads have connections and threads of their own and see what was
//! committed; only a receipt that was written or read lately is looked for on the thread of its caller. A lock keeps every
//! second process out, so whoever opened the file knows that the leases in it are over.

mod checkpoint;
mod doubt;
mod key;
mod lineage;
mod lock;
mod log;
mod place;
mod queries;
mod reader;
mod row;
mod schema;
mod steps;
mod time;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;

use crate::clock::{Clock, Timestamp};
use crate::crash_point::{self, Point};
use crate::entropy::Entropy;
use crate::operation::transition::Change;
use crate::operation::{OperationId, Scope, StoredRequest};
use crate::sealing_key::SealingKey;
use crate::store::ended::Ended;
use crate::store::held::Held;
use crate::store::pace::Paces;
use crate::store::{
    Claimed, Found, History, Pace, Page, Sealer, Space, Store, StoreError, TooMany, Unreadable, Written, position,
};
use checkpoint::Checkpointer;
use doubt::Doubt;
pub use key::KeyError;
use lineage::Lineage;
pub use lineage::LineageError;
pub use lock::LockError;
use place::Place;
use reader::Readers;
use row::Row;
pub use schema::SchemaError;
use writer::Writer;

/// A file is one namespace.
const NAMESPACE: &str = "";

/// How notes of whom calls are held back from are named.
const HOLD: &str = "hold:";

/// A store in one file that one process uses at a time.
///
/// Its threads live in real time: a test with a paused clock sees its timeouts end at once.
pub struct FileStore {
    clock: Clock,
    sealer: Sealer,
    timeout: Duration,
    doubt: Doubt,
    // These two are dropped before the writer, which empties the log at its end and has to be alone for that.
    readers: Readers,
    /// For looks that no thread is woken for.
    at_hand: Mutex<Connection>,
    writer: Writer,
    ended: Ended,
    held: Arc<Held>,
    paces: Paces,
    // Dropped last: nobody else may open the file while a thread still uses it.
    lock: lock::Lock,
}

/// How the file is used.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// No call to the store takes longer.
    pub timeout: Duration,
    pub durability: Durability,
}

/// What is true of a step that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It is on the disk.
    Fsync,
    /// The operating system has it: it outlives this process, and a power loss after about a second.
    Os,
}

/// Why the file cannot be used as a store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error(transparent)]
    Lineage(#[from] LineageError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the operating system gives no randomness")]
    Entropy(#[source] rand::rngs::SysError),
    #[error("the log of the store cannot be moved into its file")]
    Log(#[source] rusqlite::Error),
    #[error("the log of {}, `-wal`, cannot be read", path.display())]
    LogUnreadable { path: PathBuf, source: std::io::Error },
    #[error(
        "the log of {}, `-wal`, is damaged, and acknowledged calls in it would run again; put back a copy with its own \
         `-wal`, or accept that with one start under durability = \"os\"", .0.display()
    )]
    LogDamaged(PathBuf),
    #[error("the files of the store are not where they were opened")]
    Place(#[source] std::io::Error),
    #[error("the store cannot start its threads")]
    Thread(#[source] std::io::Error),
}

impl FileStore {
    /// Opens the file, or makes it, readable by its owner only. Leases of an earlier life end here, and the store's time
    /// goes on from where it was: `clock` is what the machine says of it.
    /// Bodies are sealed with the first of `keys`; without any, with a key of the store's own beside the file.
    ///
    /// # Errors
    /// Another process has the file, a newer version wrote it, it is no store, or the key that sealed last is not here.
    pub fn open(path: &Path, settings: Settings, clock: Clock, keys: &[SealingKey]) -> Result<Self, OpenError> {
        let entropy = Entropy::system().map_err(OpenError::Entropy)?;
        let mut lock = lock::take(path)?;
        lineage::look_for_remains(&lock)?;
        lock::make(&mut lock)?;
        look_through_log(lock.path(), settings.durability)?;
        let mut connection = schema::open_to_write(lock.path(), settings)?;
        let mut lineage = Lineage::of(&connection, &lock, settings.durability)?;
        schema::look_through(&connection)?;
        schema::make_tables(&mut connection)?;
        lineage.begin(&connection).map_err(SchemaError::from)?;
        let clock = time::resume(&connection, clock).map_err(SchemaError::from)?;
        let sealer = Sealer::new(&key::keys(&connection, lock.path(), keys, &entropy)?, NAMESPACE, entropy);
        steps::end_leases(&connection, clock.now()).map_err(SchemaError::from)?;
        let held = queries::holds(&connection, clock.now()).map_err(SchemaError::from)?;
        checkpoint::empty_log(&connection).map_err(OpenError::Log)?;
        lineage.begun(&lock)?;
        let doubt = Doubt::default();
        let readers = Readers::start(lock.path(), settings, doubt.clone())?;
        let at_hand = schema::open_to_read(lock.path(), Settings { timeout: Duration::ZERO, ..settings })?;
        let pages = schema::open_durable(lock.path(), settings)?;
        let pages = Checkpointer::start(pages, lineage.beside(), doubt.clone()).map_err(OpenError::Thread)?;
        let place = Place::of(lock.path()).map_err(OpenError::Place)?;
        let writer = Writer::start(connection, pages, (place, lineage), clock.clone()).map_err(OpenError::Thread)?;
        let (ended, at_hand) = (Ended::default(), Mutex::new(at_hand));
        let (held, paces) = (Arc::new(Held::of(held)), Paces::default());
        Ok(Self { clock, sealer, timeout: settings.timeout, doubt, writer, readers, ended, held, paces, at_hand, lock })
    }

    /// Writes down what is true when its turn comes, so that it does not matter in what order two of these are made. The
    /// canary of a pause holds the others back for so short a time that nobody keeps it.
    async fn keep_hold(&self, name: &str) -> Result<(), StoreError> {
        let (held, name) = (Arc::clone(&self.held), name.to_owned());
        let step = move |connection: &_, now| steps::keep_hold(connection, &name, held.until(&name), now);
        self.in_time(self.writer.step(step)).await
    }

    async fn in_time<T>(&self, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        tokio::time::timeout(self.timeout, answer).await.unwrap_or(Err(StoreError::Timeout))
    }
}

/// Without an fsync for every commit a power loss leaves the end of the log in pieces, and that is no damage.
fn look_through_log(path: &Path, durability: Durability) -> Result<(), OpenError> {
    let unreadable = |source| OpenError::LogUnreadable { path: path.to_owned(), source };
    match (log::lacks_commits(&place::beside(path, "-wal")).map_err(unreadable)?, durability) {
        (false, _) => Ok(()),
        (true, Durability::Fsync) => Err(OpenError::LogDamaged(path.to_owned())),
        (true, Durability::Os) => {
            tracing::warn!(path = %path.display(), "the last steps before a power loss are missing");
            Ok(())
        }
    }
}

#[async_trait]
impl Store for FileStore {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn claim(&self, change: &Change, past: Option<OperationId>) -> Result<Claimed, StoreError> {
        let row = Row::of(&self.sealer, change)?;
        let claimed = self.in_time(self.writer.step(move |connection, now| steps::claim(connection, &row, past, now)));
        let claimed = claimed.await.inspect(|_| crash_point::reached(Point::StoreDone));
        if let Ok(Claimed::Exists(found)) = &claimed {
            self.ended.note(found.operation.id, found.receipt.as_ref());
        }
        claimed
    }

    async fn write(&self, change: &Change) -> Result<Written, StoreError> {
        let row = Row::of(&self.sealer, change)?;
        let written = self.in_time(self.writer.step(move |connection, now| steps::write(connection, &row, now)));
        let written = written.await.inspect(|_| crash_point::reached(Point::StoreDone));
        if matches!(written, Ok(Written::Applied)) {
            self.ended.note(change.operation.id, change.receipt.as_ref());
        }
        written
    }

    async fn read(&self, id: OperationId) -> Result<Option<Found>, StoreError> {
        let (sealer, now) = (self.sealer.clone(), self.now());
        self.in_time(self.readers.ask(move |connection| queries::found(connection, &sealer, id, now))).await
    }

    /// A look of 10 us at pages that are in memory, for they were used a moment ago; by a thread that reads it would be
    /// three times that. Whatever stands in its way is left to the claim.
    fn at_hand(&self, id: OperationId) -> Option<Found> {
        if !self.ended.has(id) || self.doubt.cause().is_some() {
            return None;
        }
        let connection = self.at_hand.try_lock().ok()?;
        queries::found(&connection, &self.sealer, id, self.now()).ok()?.filter(|found| found.receipt.is_some())
    }

    async fn request(&self, id: OperationId) -> Result<Option<StoredRequest>, StoreError> {
        let (sealer, now) = (self.sealer.clone(), self.now());
        self.in_time(self.readers.ask(move |connection| queries::request(connection, &sealer, id, now))).await
    }

    async fn events(&self, id: OperationId) -> Result<History, StoreError> {
        let (sealer, now) = (self.sealer.clone(), self.now());
        self.in_time(self.readers.ask(move |connection| queries::events(connection, &sealer, id, now))).await
    }

    async fn due(&self, limit: usize) -> Result<Vec<OperationId>, StoreError> {
        let now = self.now();
        self.in_time(self.readers.ask(move |connection| queries::due(connection, limit, now))).await
    }

    async fn count_open(&self, scope: &Scope) -> Result<u64, StoreError> {
        let scope = scope.clone();
        self.in_time(self.readers.ask(move |connection| queries::count_open(connection, &scope))).await
    }

    async fn list(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let (before, now) = (position(cursor)?, self.now());
        self.in_time(self.readers.ask(move |connection| queries::list(connection, before, limit, now))).await
    }

    async fn dead_letters(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let (before, now) = (position(cursor)?, self.now());
        self.in_time(self.readers.ask(move |connection| queries::dead_letters(connection, before, limit, now))).await
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        self.in_time(self.writer.step(move |connection, now| steps::purge(connection, limit, now))).await
    }

    async fn remember(&self, name: &str, value: &str, until: Option<Timestamp>) -> Result<Option<String>, StoreError> {
        let (name, value) = (name.to_owned(), value.to_owned());
        let step = move |connection: &_, now| steps::remember(connection, (&name, &value), until, now);
        self.in_time(self.writer.step(step)).await
    }

    async fn hold(&self, name: &str, until: Timestamp) -> Result<(), StoreError> {
        self.held.hold(name, until, self.now());
        self.keep_hold(name).await
    }

    async fn hold_if_over(&self, name: &str, until: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.held.hold_if_over(name, until, self.now()))
    }

    async fn take(&self, rates: &[(String, Pace)]) -> Result<Result<(), TooMany>, StoreError> {
        Ok(self.paces.take(rates, self.now()))
    }

    async fn replace_hold(&self, name: &str, known: Timestamp, until: Option<Timestamp>) -> Result<(), StoreError> {
        if self.held.replace(name, known, until) { self.keep_hold(name).await } else { Ok(()) }
    }

    async fn held(&self) -> Result<Vec<(String, Timestamp)>, StoreError> {
        Ok(self.held.all(self.now()))
    }

    async fn recall(&self, name: &str) -> Result<Option<String>, StoreError> {
        let (name, now) = (name.to_owned(), self.now());
        self.in_time(self.readers.ask(move |connection| queries::note(connection, &name, now))).await
    }

    /// Its own files, and what the file system has left for them.
    async fn space(&self) -> Result<Option<Space>, StoreError> {
        let path = self.lock.path().to_owned();
        self.in_time(self.readers.ask(move |_| Ok(Some(place::space(&path)?)))).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.in_time(self.writer.step(steps::ping)).await
    }

    async fn ended(&self) -> StoreError {
        loop {
            self.doubt.raised().await;
            if let Some(cause) = self.doubt.cause() {
                return StoreError::Ended(cause);
            }
        }
    }
}

/// Why a step or a query has no answer.
#[derive(Debug)]
enum Failure {
    /// It is this step's own; the others of its transaction go on.
    Step(StoreError),
    /// The database said no; the whole transaction goes back.
    Database(rusqlite::Error),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Step(error)
    }
}

impl From<Unreadable> for Failure {
    fn from(unreadable: Unreadable) -> Self {
        Self::Step(unreadable.into())
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

/// Only a panic ends a thread of a store that is in use.
#[derive(Debug, thiserror::Error)]
#[error("a thread of the store has ended")]
struct ThreadEnded;

impl From<ThreadEnded> for StoreError {
    fn from(ended: ThreadEnded) -> Self {
        Self::Connection(Box::new(ended))
    }
}

/// SQLite's integers are signed; the end of time is far enough away for both.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn at(time: Timestamp) -> i64 {
    integer(time.0)
}
