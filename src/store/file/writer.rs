//! The thread that writes, and group commit.
//!
//! All steps that wait while one commit runs share the next: one fsync for all of them. A step is answered after the
//! commit that holds it, never before.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};

use rusqlite::{Connection, TransactionBehavior};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::checkpoint::{Checkpointer, empty_log};
use super::doubt::{Cause, Doubt};
use super::lineage::Lineage;
use super::place::Place;
use super::{Failure, ThreadEnded, time};
use crate::clock::{Clock, Timestamp};
use crate::store::StoreError;

/// Steps of one transaction, and steps that may wait for it; the next caller waits with its own timeout.
const BATCH: usize = 1024;

pub(super) struct Writer {
    steps: Option<mpsc::Sender<Asked>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        pages: Checkpointer,
        (place, lineage): (Place, Lineage),
        clock: Clock,
    ) -> io::Result<Self> {
        let (steps, waiting) = mpsc::channel(BATCH);
        let doubt = pages.doubt();
        let times = time::Notes::default();
        let committer = Committer { connection, pages, place, lineage, clock, times, waiting, doubt };
        let thread = thread::Builder::new().name("store-write".into()).spawn(move || committer.run())?;
        Ok(Self { steps: Some(steps), thread: Some(thread) })
    }

    /// Runs `work` in the next transaction and answers once that is on the disk. A caller that gave up before its turn
    /// leaves nothing behind.
    pub(super) async fn step<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, Timestamp) -> Result<T, Failure> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let step = Box::new(Waiting { work: Some(work), outcome: None, reply });
        let asked = Asked { step, runtime: Handle::current(), thread: thread::current().id() };
        let steps = self.steps.as_ref().ok_or(ThreadEnded)?;
        steps.send(asked).await.map_err(|_| ThreadEnded)?;
        answer.await.map_err(|_| ThreadEnded)?
    }
}

impl Drop for Writer {
    /// The steps that wait are committed and the connection is closed when this returns.
    fn drop(&mut self) {
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

struct Committer {
    connection: Connection,
    pages: Checkpointer,
    place: Place,
    lineage: Lineage,
    clock: Clock,
    times: time::Notes,
    waiting: mpsc::Receiver<Asked>,
    doubt: Doubt,
}

impl Committer {
    fn run(mut self) {
        while let Some(first) = self.waiting.blocking_recv() {
            let mut batch = self.gather(first);
            let end = self.end(&mut batch);
            answer(batch, end.err());
        }
        self.close();
    }

    fn gather(&mut self, first: Asked) -> Vec<Asked> {
        let mut batch = vec![first];
        while batch.len() < BATCH {
            let Ok(asked) = self.waiting.try_recv() else { break };
            batch.push(asked);
        }
        batch
    }

    fn end(&mut self, batch: &mut [Asked]) -> Result<(), BatchError> {
        self.pages.lend_a_hand(&self.connection);
        if let Some(cause) = self.doubt.cause() {
            return Err(BatchError::Ended(cause));
        }
        self.commit(batch).map_err(|error| self.failed(error))?;
        self.look_around()?;
        self.pages.wake();
        Ok(())
    }

    fn commit(&mut self, batch: &mut [Asked]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let now = self.clock.now();
        let counts = self.lineage.count(&transaction, now)?;
        let changes = transaction.total_changes();
        for Asked { step, .. } in batch {
            step.run(&transaction, self.clock.now())?;
        }
        if transaction.total_changes() > changes {
            self.times.keep(&transaction, now)?;
        }
        transaction.commit()?;
        if counts {
            self.lineage.counted(now);
        }
        Ok(())
    }

    fn failed(&mut self, error: rusqlite::Error) -> BatchError {
        match Cause::of(error) {
            Ok(cause) => self.in_doubt(cause),
            Err(error) => BatchError::Refused(Arc::new(error)),
        }
    }

    /// After each commit: no step is answered that went to a file which is not at its place any more.
    fn look_around(&self) -> Result<(), BatchError> {
        let lost = self.place.lost().map(|path| Cause::Replaced(path.to_owned()));
        lost.map_or(Ok(()), |cause| Err(self.in_doubt(cause)))
    }

    fn in_doubt(&self, cause: Cause) -> BatchError {
        BatchError::InDoubt(self.doubt.raise(cause))
    }

    /// What is left in the log is moved, but never after a doubt: that would be another try.
    fn close(self) {
        if self.doubt.cause().is_some() {
            return;
        }
        // It would be in the way.
        drop(self.pages);
        if let Err(error) = empty_log(&self.connection) {
            tracing::info!(%error, "the log of the store is left for the next start; nothing in it is lost");
        }
    }
}

/// All callers of one thread are told by a task there: waking one from here is a system call each time, and from there
/// it is none.
fn answer(mut batch: Vec<Asked>, error: Option<BatchError>) {
    while let Some(last) = batch.last() {
        let (thread, runtime) = (last.thread, last.runtime.clone());
        let (theirs, others): (Vec<_>, _) = batch.into_iter().partition(|asked| asked.thread == thread);
        batch = others;
        let error = error.clone();
        let tell = move || theirs.into_iter().for_each(|asked| asked.step.answer(error.as_ref()));
        drop(runtime.spawn(async move { tell() }));
    }
}

/// How a transaction failed, for every step that was in it.
#[derive(Clone, Debug)]
enum BatchError {
    /// It went back whole; the next one may succeed.
    Refused(Arc<rusqlite::Error>),
    /// It may or may not be on the disk.
    InDoubt(Arc<Cause>),
    /// The store had ended before; this one was not begun.
    Ended(Arc<Cause>),
}

impl From<&BatchError> for StoreError {
    fn from(error: &BatchError) -> Self {
        match error {
            BatchError::Refused(cause) => Self::Refused(cause.to_string()),
            BatchError::InDoubt(cause) => Self::Connection(Box::new(Arc::clone(cause))),
            BatchError::Ended(cause) => Self::Ended(Arc::<Cause>::clone(cause)),
        }
    }
}

/// A step, and where its caller waits.
struct Asked {
    step: Box<dyn Step>,
    runtime: Handle,
    thread: ThreadId,
}

/// A step of any result, as the committer sees it.
trait Step: Send {
    /// Fails only if the whole transaction has to go back.
    fn run(&mut self, connection: &Connection, now: Timestamp) -> rusqlite::Result<()>;

    /// Tells the caller, after the commit.
    fn answer(self: Box<Self>, error: Option<&BatchError>);
}

struct Waiting<F, T> {
    work: Option<F>,
    outcome: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Step for Waiting<F, T>
where
    F: FnOnce(&Connection, Timestamp) -> Result<T, Failure> + Send,
    T: Send,
{
    fn run(&mut self, connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
        if self.reply.is_closed() {
            return Ok(());
        }
        let Some(work) = self.work.take() else { return Ok(()) };
        self.outcome = Some(match work(connection, now) {
            Ok(outcome) => Ok(outcome),
            Err(Failure::Step(error)) => Err(error),
            Err(Failure::Database(error)) => return Err(error),
        });
        Ok(())
    }

    fn answer(self: Box<Self>, error: Option<&BatchError>) {
        let outcome = match error {
            Some(error) => Err(error.into()),
            None => self.outcome.unwrap_or(Err(StoreError::Timeout)),
        };
        // Whoever asked may have given up meanwhile.
        drop(self.reply.send(outcome));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rusqlite::ErrorCode;
    use rusqlite::ffi::{self, SQLITE_FULL, SQLITE_IOERR_FSYNC};

    use super::super::{Durability, Settings, lock, schema};
    use super::*;

    #[tokio::test]
    async fn steps_of_a_refused_transaction_leave_nothing_and_the_next_one_is_taken() {
        let (directory, writer) = writer();
        let (release, held) = std::sync::mpsc::channel();
        let (begin, begun) = oneshot::channel();
        let hold = writer.step(move |_, _| {
            begin.send(()).unwrap();
            held.recv().map_err(|_| StoreError::Timeout.into())
        });
        // What is sent before the first transaction runs may still become a part of it.
        let both = async {
            begun.await.unwrap();
            let go_on = async { release.send(()).unwrap() };
            tokio::join!(note(&writer, "one"), fail(&writer, SQLITE_FULL), go_on)
        };
        let (_, (one, full, ())) = tokio::join!(hold, both);
        assert!(matches!(one, Err(StoreError::Refused(_))), "it waited with the one that failed");
        assert!(matches!(full, Err(StoreError::Refused(_))));
        assert_eq!(notes(&directory), [""; 0]);
        note(&writer, "two").await.unwrap();
        assert_eq!(notes(&directory), ["two"]);
    }

    #[tokio::test]
    async fn nothing_is_written_after_an_fsync_that_failed() {
        let (directory, writer) = writer();
        note(&writer, "before").await.unwrap();
        assert!(matches!(fail(&writer, SQLITE_IOERR_FSYNC).await, Err(StoreError::Connection(_))));
        for _ in 0..2 {
            assert!(matches!(note(&writer, "after").await, Err(StoreError::Ended(_))));
        }
        assert_eq!(notes(&directory), ["before"]);
    }

    #[tokio::test]
    async fn a_step_that_failed_alone_does_not_spoil_the_others() {
        let (directory, writer) = writer();
        let alone = writer.step(|_, _| Err::<(), _>(Failure::Step(StoreError::RecordTooNew(2))));
        let (alone, other) = tokio::join!(alone, note(&writer, "other"));
        assert!(matches!(alone, Err(StoreError::RecordTooNew(2))));
        other.unwrap();
        assert_eq!(notes(&directory), ["other"]);
    }

    fn writer() -> (tempfile::TempDir, Writer) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.db");
        drop(Connection::open(&path).unwrap());
        let settings = Settings { timeout: Duration::from_secs(1), durability: Durability::Fsync };
        let mut connection = schema::open_to_write(&path, settings).unwrap();
        schema::make_tables(&mut connection).unwrap();
        let lock = lock::take(&path).unwrap();
        let lineage = Lineage::of(&connection, &lock, settings.durability).unwrap();
        let pages = schema::open_durable(&path, settings).unwrap();
        let pages = Checkpointer::start(pages, lineage.beside(), Doubt::default()).unwrap();
        let place = Place::of(&path).unwrap();
        (directory, Writer::start(connection, pages, (place, lineage), Clock::system()).unwrap())
    }

    async fn note(writer: &Writer, name: &'static str) -> Result<(), StoreError> {
        let insert = "INSERT INTO notes (name, value) VALUES (?1, '')";
        writer.step(move |connection, _| Ok(connection.execute(insert, [name]).map(drop)?)).await
    }

    async fn fail(writer: &Writer, code: i32) -> Result<(), StoreError> {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        assert_ne!(error.sqlite_error_code(), Some(ErrorCode::Unknown));
        writer.step(move |_, _| Err(Failure::Database(error))).await
    }

    fn notes(directory: &tempfile::TempDir) -> Vec<String> {
        let file = Connection::open(directory.path().join("store.db")).unwrap();
        let theirs = "SELECT name FROM notes WHERE name NOT IN ('lineage', 'clock') ORDER BY name";
        let mut select = file.prepare(theirs).unwrap();
        select.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }
}
