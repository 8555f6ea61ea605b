//! Moving pages from the write-ahead log into the file, off the path of the commits.
//!
//! SQLite's own checkpoints happen inside a commit and drop their errors. An fsync that failed must not be tried again:
//! the pages may be lost, and the second one would succeed. So checkpoints are made here and their errors stop the store.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;

use super::leaves_doubt;

const PAUSE: Duration = Duration::from_secs(1);
/// Pages of a log that only ends if somebody moves its last page while nobody writes.
const LONG: i64 = 8192;

/// The thread that moves pages, as the one that writes sees it.
pub(super) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    log: Arc<Log>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Log {
    is_long: AtomicBool,
    doubt: OnceLock<Arc<rusqlite::Error>>,
}

impl Checkpointer {
    pub(super) fn start(connection: Connection) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let log = Arc::new(Log::default());
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

    /// For the thread that writes, between two commits: lends a hand if the log is long, and says which error left the
    /// disk in doubt, if one did.
    pub(super) fn doubt(&self, writer: &Connection) -> Option<Arc<rusqlite::Error>> {
        if self.log.is_long.load(Ordering::Relaxed) {
            self.log.shorten(writer);
        }
        self.log.doubt.get().cloned()
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            drop(thread.join());
        }
    }
}

impl Log {
    fn keep_short(&self, connection: &Connection, woken: &Receiver<()>) {
        while woken.recv().is_ok() && self.doubt.get().is_none() {
            self.shorten(connection);
            thread::park_timeout(PAUSE);
        }
    }

    /// Moves what can be moved without holding anybody up.
    fn shorten(&self, connection: &Connection) {
        let pages = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1));
        match pages {
            Ok(pages) => self.is_long.store(pages > LONG, Ordering::Relaxed),
            Err(error) if leaves_doubt(&error) => {
                tracing::error!(%error, "the store writes no more: pages that were moved may be lost");
                self.doubt.get_or_init(|| Arc::new(error));
            }
            Err(error) => tracing::warn!(%error, "the pages of the store cannot be moved now"),
        }
    }
}
