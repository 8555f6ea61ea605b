//! The one connection of a store, as its steps see it.
//!
//! A request is sent as often as its deadline allows, for all of them are safe to send twice. The client library's own
//! timeouts are off: they cost a system call each, and they leave a silent connection in place.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::entropy::Entropy;
use crate::store::StoreError;
use crate::store::redis::clock::ServerClock;
use crate::store::redis::epoch::Epoch;
use crate::store::redis::failure::{Failure, Remedy, Trail};
use crate::store::redis::fitness::OpenError;
use crate::store::redis::keeper::{self, Dialer, jitter};
use crate::store::redis::line::{Line, State, hang_up, no_line};
use crate::store::redis::scripts::Request;

/// Before a request is sent again to a server that said "not now".
const PAUSE: Duration = Duration::from_millis(25);

/// A connection that comes back.
pub(super) struct Connection {
    state: Arc<watch::Sender<State>>,
    timeout: Duration,
    entropy: Entropy,
    epoch: Arc<Epoch>,
    /// For what has to be asked of a server that is not in use.
    dialer: Dialer,
    _keeper: AbortOnDropHandle<()>,
}

impl Connection {
    /// Connects, and goes on trying in the background if the server is away. Needs a tokio runtime, which it stays on.
    ///
    /// # Errors
    /// The URL is wrong, or the server answered and must not be used.
    pub(super) async fn open(
        url: &str,
        timeout: Duration,
        clock: Arc<ServerClock>,
        entropy: Entropy,
        epoch: Arc<Epoch>,
    ) -> Result<Self, OpenError> {
        let dialer = Dialer::new(url, timeout, clock, Arc::clone(&epoch))?;
        let (state, _keeper) = keeper::start(dialer.clone(), entropy.clone()).await?;
        Ok(Self { state, timeout, entropy, epoch, dialer, _keeper })
    }

    /// An operator says that calls are to be taken again by a store that has lost its memory; false if it has not.
    ///
    /// # Errors
    /// The server does not answer, or must not be used for another reason.
    pub(super) async fn accept_loss(&self) -> Result<bool, StoreError> {
        let accepting = async {
            let opened = self.dialer.connect().await?;
            self.epoch.accept(&opened.line).await
        };
        match timeout_at(self.deadline(), accepting).await {
            Ok(accepted) => accepted.map_err(|error| no_line(Some(Arc::new(error)))),
            Err(_elapsed) => Err(StoreError::Timeout),
        }
    }

    /// Has the server examined anew before anything else goes to it.
    pub(super) fn examine_anew(&self) {
        let number = match &*self.state.borrow() {
            State::Up(line) => Some(line.number),
            State::Down { .. } => None,
        };
        number.into_iter().for_each(|number| self.replace(number));
    }

    /// When a step that begins now has to be over.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Sends until there is an answer that `read` takes, or a "no", or the deadline.
    ///
    /// # Errors
    /// `Refused` only if no send can have been done.
    pub(super) async fn ask<T>(
        &self,
        deadline: Instant,
        request: &Request,
        read: impl Fn(Value) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let mut trail = Trail::default();
        let mut outstanding = None;
        let asking = self.ask_on(request, read, &mut trail, &mut outstanding);
        if let Ok(answer) = timeout_at(deadline, asking).await {
            return match answer {
                Ok(answer) => Ok(answer),
                Err(Some(error)) => Err(trail.end_with(error)),
                Err(None) => Err(trail.end()),
            };
        }
        match outstanding {
            Some(send) => {
                self.replace_if_silent(&send);
                Err(StoreError::Timeout)
            }
            None => Err(trail.end()),
        }
    }

    /// `Err(None)`: the last failure on the trail is the end of it.
    async fn ask_on<T>(
        &self,
        request: &Request,
        read: impl Fn(Value) -> Result<T, Failure>,
        trail: &mut Trail,
        outstanding: &mut Option<Outstanding>,
    ) -> Result<T, Option<StoreError>> {
        let mut with_source = false;
        loop {
            let line = self.line().await?;
            *outstanding = Some(Outstanding { line: line.number, answers: line.answers.load(Ordering::Relaxed) });
            let answer = line.send(request, with_source).await;
            *outstanding = None;
            let failure = match answer.and_then(&read) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let remedy = failure.remedy();
            trail.note(failure);
            match remedy {
                Remedy::GiveUp => return Err(None),
                Remedy::Pause => sleep(PAUSE + jitter(&self.entropy, PAUSE)).await,
                Remedy::Reconnect => self.replace(line.number),
                Remedy::LoadScript => with_source = true,
                Remedy::Examine => {
                    self.replace(line.number);
                    return Err(None);
                }
            }
        }
    }

    /// The line, once there is one. An outage that lasts is answered at once, so that callers do not pile up.
    async fn line(&self) -> Result<Line, StoreError> {
        if let State::Up(line) = &*self.state.borrow() {
            return Ok(line.clone());
        }
        let mut state = self.state.subscribe();
        loop {
            match &*state.borrow_and_update() {
                State::Up(line) => return Ok(line.clone()),
                State::Down { reason: Some(reason), .. } if reason.is_loss() => {
                    return Err(no_line(Some(reason.clone())));
                }
                State::Down { since: Some(since), .. } if since.elapsed() < self.timeout => {}
                State::Down { reason, .. } => return Err(no_line(reason.clone())),
            }
            if state.changed().await.is_err() {
                return Err(no_line(None));
            }
        }
    }

    fn replace(&self, number: u64) {
        hang_up(&self.state, number, None);
    }

    fn replace_if_silent(&self, send: &Outstanding) {
        let silent = match &*self.state.borrow() {
            State::Up(line) => line.number == send.line && line.answers.load(Ordering::Relaxed) == send.answers,
            State::Down { .. } => false,
        };
        if silent {
            self.replace(send.line);
        }
    }
}

/// A send without an answer yet: over which line, and how many answers that had brought before.
struct Outstanding {
    line: u64,
    answers: u64,
}
