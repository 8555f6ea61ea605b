//! Whether the file is the one that was used here last.
//!
//! A file that was removed, replaced by another or put back from an old copy lacks calls that were acknowledged, and they
//! would run again; so does one whose log was removed. So a generation is counted up in the file, at each start and once a
//! second while it is written, and in the lock beside it once the disk has it: where not every commit is synced, that is
//! after a checkpoint, and a power loss does not make the last file an older one.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::lock::Lock;
use super::place::beside;
use super::{Durability, OpenError, SchemaError};
use crate::clock::Timestamp;
use crate::entropy::Entropy;

const NAME: &str = "lineage";
const EVERY: Duration = Duration::from_secs(1);

/// Which file it is, and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    id: u64,
    generation: u64,
}

/// Why the file is not taken for the one that was used last.
#[derive(Debug, thiserror::Error)]
pub enum LineageError {
    #[error("{}", told(.0, "is another file than the one that was used here last"))]
    Replaced(PathBuf),
    #[error("{}", told(.0, "is an older copy of the file that was used here last"))]
    Older(PathBuf),
    /// Nothing is made in its place: SQLite removes the log beside a file that is empty.
    #[error(
        "{path} is not there or empty, but {path}-wal or {path}.lock says that it was used here: calls in it would run \
         again; put it back, with its own -wal if that is gone, or accept that and remove both", path = .0.display()
    )]
    Missing(PathBuf),
    #[error(
        "the mark in {0}.lock cannot be read or written, and without it nobody knows whether calls are missing in the file; \
         accept that and remove {0}.lock", path.display()
    )]
    Unmarked { path: PathBuf, source: io::Error },
    #[error("the system gives no randomness for the mark of a new file")]
    Entropy(#[from] rand::rngs::SysError),
}

fn told(path: &Path, what: &str) -> String {
    let path = path.display();
    format!(
        "{path} {what}: calls may be missing in it and would run again; put the last one back, or accept that and remove {path}.lock"
    )
}

/// Before the file is opened or made: what is left of one that is missing is left as it is.
pub(super) fn look_for_remains(lock: &Lock) -> Result<(), LineageError> {
    let is_empty = |path: &Path| path.metadata().map_or(true, |found| found.len() == 0);
    let was_used = read_beside(lock)?.is_some() || !is_empty(&beside(lock.path(), "-wal"));
    if was_used && is_empty(lock.path()) {
        return Err(LineageError::Missing(lock.path().to_owned()));
    }
    Ok(())
}

/// The count, as the thread that writes keeps it.
pub(super) struct Lineage {
    mark: Mark,
    beside: Arc<Beside>,
    counted: Timestamp,
    durability: Durability,
}

/// The mark in the lock, as all threads that may move it on see it.
pub(super) struct Beside {
    id: u64,
    lock: File,
    committed: AtomicU64,
    written: AtomicU64,
}

impl Lineage {
    /// Before anything is written: the file must be the one that the lock knows.
    pub(super) fn of(connection: &Connection, lock: &Lock, durability: Durability) -> Result<Self, OpenError> {
        let mark = match (read_beside(lock)?, read_within(connection)?) {
            (None, None) => {
                let path = lock.path().display();
                tracing::warn!(%path, "a new, empty store was begun: no earlier call is known");
                Mark { id: u64::from_be_bytes(new_id()?), generation: 0 }
            }
            (None, Some(held)) => {
                let path = lock.path().display();
                tracing::warn!(%path, "no mark beside the store: the file is taken as it is, whatever it may have lost");
                held
            }
            (Some(last), Some(held)) if last.id != held.id => return Err(replaced(lock).into()),
            (Some(last), Some(held)) if last.generation > held.generation => {
                return Err(LineageError::Older(lock.path().to_owned()).into());
            }
            (Some(_), Some(held)) => held,
            (Some(_), None) => return Err(replaced(lock).into()),
        };
        let (committed, written) = (AtomicU64::new(mark.generation), AtomicU64::new(mark.generation));
        let lock = lock.share().map_err(|source| LineageError::Unmarked { path: lock.path().to_owned(), source })?;
        let beside = Arc::new(Beside { id: mark.id, lock, committed, written });
        Ok(Self { mark, beside, counted: Timestamp(0), durability })
    }

    pub(super) fn beside(&self) -> Arc<Beside> {
        Arc::clone(&self.beside)
    }

    /// Counts up in the file, whatever the time is.
    pub(super) fn begin(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.mark = self.mark.next();
        write_within(connection, self.mark)
    }

    /// Counts up in the lock, once the file has it for good.
    pub(super) fn begun(&self, lock: &Lock) -> Result<(), LineageError> {
        let unmarked = |source| LineageError::Unmarked { path: lock.path().to_owned(), source };
        self.beside.write(self.mark.generation).and_then(|()| self.beside.lock.sync_all()).map_err(unmarked)
    }

    /// Counts up in a transaction, if a second is over.
    pub(super) fn count(&mut self, connection: &Connection, now: Timestamp) -> rusqlite::Result<bool> {
        if now.since(self.counted) < EVERY {
            return Ok(false);
        }
        write_within(connection, self.mark.next()).map(|()| true)
    }

    /// After the commit of what was counted.
    pub(super) fn counted(&mut self, now: Timestamp) {
        (self.mark, self.counted) = (self.mark.next(), now);
        self.beside.committed.store(self.mark.generation, Ordering::Release);
        if self.durability == Durability::Fsync {
            self.beside.on_disk(self.mark.generation);
        }
    }
}

impl Beside {
    /// What the next checkpoint brings to the disk, if it moves all.
    pub(super) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Counts up in the lock: no power loss takes this generation from the file any more.
    pub(super) fn on_disk(&self, generation: u64) {
        if self.written.fetch_max(generation, Ordering::AcqRel) >= generation {
            return;
        }
        if let Err(error) = self.write(generation) {
            tracing::warn!(%error, "the mark beside the store cannot be written");
        }
    }

    fn write(&self, generation: u64) -> io::Result<()> {
        self.lock.write_all_at(Mark { id: self.id, generation }.to_string().as_bytes(), 0)
    }
}

fn replaced(lock: &Lock) -> LineageError {
    LineageError::Replaced(lock.path().to_owned())
}

fn new_id() -> Result<[u8; 8], LineageError> {
    Ok(Entropy::system()?.bytes())
}

impl Mark {
    fn next(self) -> Self {
        Self { generation: self.generation.saturating_add(1), ..self }
    }

    fn parse(text: &str) -> Option<Self> {
        let (id, generation) = text.trim().split_once(' ')?;
        Some(Self { id: u64::from_str_radix(id, 16).ok()?, generation: generation.parse().ok()? })
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:016x} {:020}", self.id, self.generation)
    }
}

/// An older version, or somebody who accepts a loss, leaves none.
fn read_beside(lock: &Lock) -> Result<Option<Mark>, LineageError> {
    let unmarked = |source| LineageError::Unmarked { path: lock.path().to_owned(), source };
    match lock.read().map_err(unmarked)?.as_str() {
        "" => Ok(None),
        text => Mark::parse(text).map(Some).ok_or_else(|| unmarked(io::ErrorKind::InvalidData.into())),
    }
}

/// A file without tables is new.
fn read_within(connection: &Connection) -> Result<Option<Mark>, SchemaError> {
    if connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))? == 0 {
        return Ok(None);
    }
    let read = connection.query_row("SELECT value FROM notes WHERE name = ?1", [NAME], |row| row.get::<_, String>(0));
    Ok(read.optional()?.as_deref().and_then(Mark::parse))
}

fn write_within(connection: &Connection, mark: Mark) -> rusqlite::Result<()> {
    let mut replace = connection.prepare_cached("REPLACE INTO notes (name, value) VALUES (?1, ?2)")?;
    replace.execute([NAME, &mark.to_string()]).map(drop)
}
