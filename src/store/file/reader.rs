//! The threads that read, each with a connection of its own.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::doubt::{Cause, Doubt};
use super::{Failure, OpenError, Settings, ThreadEnded, schema};
use crate::store::StoreError;

const READERS: usize = 2;
/// Queries that may wait for one reader; the next caller waits with its own timeout.
const WAITING: usize = 256;

type Query = Box<dyn FnOnce(&Connection) + Send>;

pub(super) struct Readers {
    readers: Vec<Reader>,
    next: AtomicUsize,
    doubt: Doubt,
}

struct Reader {
    queries: Option<mpsc::Sender<Query>>,
    thread: Option<JoinHandle<()>>,
}

impl Readers {
    pub(super) fn start(path: &Path, settings: Settings, doubt: Doubt) -> Result<Self, OpenError> {
        let readers = (0..READERS).map(|_| {
            let connection = schema::open_to_read(path, settings)?;
            Reader::start(connection).map_err(OpenError::Thread)
        });
        Ok(Self { readers: readers.collect::<Result<_, _>>()?, next: AtomicUsize::new(0), doubt })
    }

    /// Runs `query` on committed data.
    pub(super) async fn ask<T, F>(&self, query: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let query: Query = Box::new(move |connection| {
            if !reply.is_closed() {
                // Whoever asked may have given up meanwhile.
                drop(reply.send(query(connection)));
            }
        });
        self.turn().ok_or(ThreadEnded)?.send(query).await.map_err(|_| ThreadEnded)?;
        match answer.await.map_err(|_| ThreadEnded)? {
            Ok(value) => Ok(value),
            Err(Failure::Step(error)) => Err(error),
            Err(Failure::Database(error)) => Err(self.failed(error)),
        }
    }

    /// Damage ends the store: a key that is not found in a damaged file may have run. Other errors are of this query only.
    fn failed(&self, error: rusqlite::Error) -> StoreError {
        match Cause::of(error) {
            Ok(cause @ Cause::Damaged(_)) => StoreError::Ended(self.doubt.raise(cause)),
            Ok(Cause::Disk(error)) | Err(error) => StoreError::Connection(Box::new(error)),
            Ok(cause @ Cause::Replaced(_)) => StoreError::Connection(Box::new(cause)),
        }
    }

    fn turn(&self) -> Option<&mpsc::Sender<Query>> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.readers.len().max(1);
        self.readers.get(turn)?.queries.as_ref()
    }
}

impl Reader {
    fn start(connection: Connection) -> io::Result<Self> {
        let (queries, mut waiting) = mpsc::channel::<Query>(WAITING);
        let thread = thread::Builder::new().name("store-read".into()).spawn(move || {
            while let Some(query) = waiting.blocking_recv() {
                query(&connection);
            }
        })?;
        Ok(Self { queries: Some(queries), thread: Some(thread) })
    }
}

impl Drop for Reader {
    /// The connection is closed when this returns.
    fn drop(&mut self) {
        self.queries = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
