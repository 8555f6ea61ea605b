//! One connection of the library, and whether there is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::millis;
use crate::redis_url::Host;
use crate::store::StoreError;
use crate::store::redis::failure::{Failure, words_of};
use crate::store::redis::fitness::OpenError;
use crate::store::redis::replicas::Place;
use crate::store::redis::scripts::Request;

/// Whether there is a line to a server now.
pub(super) enum State {
    Up(Line),
    Down {
        /// `None`: there never was one, so that not even the server's clock is known.
        since: Option<Instant>,
        reason: Option<Arc<OpenError>>,
    },
}

/// One connection of the library.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) connection: MultiplexedConnection,
    pub(super) number: u64,
    pub(super) host: Arc<Host>,
    /// Answers so far. If none comes within a whole timeout, the line is dead even if TCP does not say so.
    pub(super) answers: Arc<AtomicU64>,
    /// What the server said last of its life as a master, if replicas are waited for.
    pub(super) life: Arc<AtomicU64>,
    /// Until when something long may be on its way, in milliseconds since `opened`.
    busy_until: Arc<AtomicU64>,
    /// Answers before it was sent.
    busy_after: Arc<AtomicU64>,
    opened: Instant,
    uptake: Uptake,
}

/// When the system last took a piece of something long that goes over a connection.
#[derive(Clone)]
pub(super) struct Uptake {
    opened: Instant,
    /// In milliseconds since then.
    last: Arc<AtomicU64>,
}

/// How long what the system has taken may be under way. It holds up to 4 MiB, and has a second for each.
const HELD_BY_SYSTEM: Duration = Duration::from_secs(4);

impl Uptake {
    pub(super) fn new() -> Self {
        Self { opened: Instant::now(), last: Arc::default() }
    }

    pub(super) fn goes_on(&self) {
        self.last.store(millis(self.opened.elapsed()), Ordering::Relaxed);
    }

    fn stands_still(&self) -> bool {
        millis(self.opened.elapsed()).saturating_sub(self.last.load(Ordering::Relaxed)) > millis(HELD_BY_SYSTEM)
    }
}

impl Line {
    pub(super) fn new(connection: MultiplexedConnection, uptake: Uptake, number: u64, host: Host) -> Self {
        let (answers, life, busy_until, opened) = (Arc::default(), Arc::default(), Arc::default(), Instant::now());
        let busy_after = Arc::new(AtomicU64::new(u64::MAX));
        Self { connection, number, host: Arc::new(host), answers, life, busy_until, busy_after, opened, uptake }
    }

    /// Something long goes over it until then, at the latest: what is asked behind it has to wait, and silence says
    /// nothing. Whoever sends more before an answer came puts that no further off, for the line may be dead.
    pub(super) fn is_busy_until(&self, end: Instant) {
        let answers = self.answers.load(Ordering::Relaxed);
        if self.busy_after.swap(answers, Ordering::Relaxed) != answers {
            self.uptake.goes_on();
            self.busy_until.fetch_max(millis(end.saturating_duration_since(self.opened)), Ordering::Relaxed);
        }
    }

    /// Something long may still be going over it: not if that is over a host that has vanished.
    pub(super) fn is_busy(&self) -> bool {
        millis(self.opened.elapsed()) < self.busy_until.load(Ordering::Relaxed) && !self.uptake.stands_still()
    }

    /// Where a step is done that is sent from now on.
    pub(super) fn place(&self) -> Place {
        Place { host: Arc::clone(&self.host), life: self.life.load(Ordering::Relaxed) }
    }

    /// What the server said, be it an error. With `asking` a server does it that only takes the slot over.
    pub(super) async fn send(&self, request: &Request, with_source: bool, asking: bool) -> Result<Value, Failure> {
        let mut connection = self.connection.clone();
        let answer = match request {
            Request::One(command) => send_one(&mut connection, command, asking).await,
            Request::Call(call) if with_source => send_one(&mut connection, &call.with_source(), asking).await,
            Request::Call(call) => send_one(&mut connection, call.command(), asking).await,
            // What goes to such a server goes there one by one.
            Request::Many(commands) => {
                connection.send_packed_commands(commands, 0, commands.len()).await.map(Value::Array)
            }
        }?;
        self.answers.fetch_add(1, Ordering::Relaxed);
        Ok(answer)
    }
}

/// A server that is still taking the slot over does only what comes right after this word, whose own answer is left out.
async fn send_one(connection: &mut MultiplexedConnection, command: &Cmd, asking: bool) -> RedisResult<Value> {
    if !asking {
        return connection.send_packed_command(command).await;
    }
    let mut commands = Pipeline::with_capacity(2);
    commands.cmd("ASKING").add_command(command.clone());
    Ok(connection.send_packed_commands(&commands, 0, 2).await?.pop().unwrap_or(Value::Nil))
}

impl State {
    pub(super) fn is_line(&self, number: u64) -> bool {
        match self {
            Self::Up(line) => line.number == number,
            Self::Down { .. } => false,
        }
    }
}

/// Ends the use of a line, unless it has been replaced already.
pub(super) fn hang_up(state: &watch::Sender<State>, number: u64, reason: Option<Arc<OpenError>>) {
    state.send_if_modified(|state| match state {
        State::Up(line) if line.number == number => {
            *state = State::Down { since: Some(Instant::now()), reason };
            true
        }
        State::Up(_) | State::Down { .. } => false,
    });
}

/// Resolves when a line is no longer in use.
pub(super) async fn given_up(mut state: watch::Receiver<State>, number: u64) {
    while state.borrow_and_update().is_line(number) && state.changed().await.is_ok() {}
}

pub(super) fn no_line(reason: Option<Arc<OpenError>>) -> StoreError {
    match reason {
        None => StoreError::Away("there is no connection to Redis".into()),
        Some(reason) => match &*reason {
            OpenError::Lost(loss) => StoreError::LostMemory(Box::new(loss.clone())),
            OpenError::Credentials(error) | OpenError::Refused(error) | OpenError::TakesNoWrites(error) => {
                StoreError::Refused(format!("{reason}: {}", words_of(error)))
            }
            _ if reason.may_pass() => StoreError::Away(Box::new(reason)),
            reason => StoreError::Refused(reason.to_string()),
        },
    }
}
