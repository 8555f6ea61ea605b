//! Moving pages from the write-ahead log into the file, off the path of the commits.
//!
//! SQLite's own checkpoints happen inside a commit and drop their errors. An fsync that failed must not be tried again:
//! the pages may be lost, and the second one would succeed. So checkpoints are made here and their errors stop the store.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::{Connection, ffi};

use super::doubt::{Cause, Doubt};
use super::lineage::Beside;

const PAUSE: Duration = Duration::from_secs(1);
/// Pages of a log that only ends if somebody moves its last page while nobody writes.
const LONG: i64 = 8192;

/// The thread that moves pages, as the one that writes sees it.
pub(super) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    log: Arc<Log>,
    thread: Option<JoinHandle<()>>,
}

struct Log {
    is_long: AtomicBool,
    /// The thread is waited for, and pauses no more.
    is_ending: AtomicBool,
    mark: Arc<Beside>,
    doubt: Doubt,
}

impl Checkpointer {
    pub(super) fn start(connection: Connection, mark: Arc<Beside>, doubt: Doubt) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let log = Arc::new(Log { is_long: AtomicBool::new(false), is_ending: AtomicBool::new(false), mark, doubt });
        let shared = Arc::clone(&log);
        let name = thread::Builder::new().name("store-pages".into());
        let thread = name.spawn(move || shared.keep_short(&connection, &woken))?;
        Ok(Self { wake: Some(wake), log, thread: Some(thread) })
    }

    /// Something was written.
    pub(super) fn wake(&self) {
        if let Some(wake) = &self.wake {
            // Full means that it is awake already.
            wake.try_send(()).ok();
        }
    }

    pub(super) fn doubt(&self) -> Doubt {
        self.log.doubt.clone()
    }

    /// For the thread that writes, between two commits: lends a hand if the log is long.
    pub(super) fn lend_a_hand(&self, writer: &Connection) {
        if self.log.is_long.load(Ordering::Relaxed) {
            self.log.shorten(writer);
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        self.log.is_ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            drop(thread.join());
        }
    }
}

impl Log {
    fn keep_short(&self, connection: &Connection, woken: &Receiver<()>) {
        while woken.recv().is_ok() && self.doubt.cause().is_none() {
            self.shorten(connection);
            if !self.is_ending.load(Ordering::Relaxed) {
                thread::park_timeout(PAUSE);
            }
        }
    }

    /// Moves what can be moved without holding anybody up.
    fn shorten(&self, connection: &Connection) {
        let committed = self.mark.committed();
        match moved(connection).map_err(Cause::of) {
            Ok((pages, is_all)) => {
                self.is_long.store(pages > LONG, Ordering::Relaxed);
                if is_all {
                    self.mark.on_disk(committed);
                }
            }
            Err(Ok(cause)) => drop(self.doubt.raise(cause)),
            Err(Err(error)) => tracing::warn!(%error, "the pages of the store cannot be moved now"),
        }
    }
}

/// How many pages the log has, and whether all of them are in the file now.
fn moved(connection: &Connection) -> rusqlite::Result<(i64, bool)> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        let (is_busy, pages, moved): (bool, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((pages, !is_busy && moved == pages))
    })
}

/// Moves the whole log into the file and empties it, where nobody else uses them.
///
/// After an fsync that failed, the log that is read may not be the one on the disk. What is moved is written again, and
/// this time its fsync proves something.
pub(super) fn empty_log(connection: &Connection) -> rusqlite::Result<()> {
    let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    let busy = || rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None);
    if is_busy { Err(busy()) } else { Ok(()) }
}
