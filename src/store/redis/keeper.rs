//! Makes the connection of a store, looks after it, and makes another when it is given up.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::clock::millis;
use crate::entropy::Entropy;
use crate::redis_url::Host;
use crate::store::redis::clock::ServerClock;
use crate::store::redis::epoch::{Epoch, Way};
use crate::store::redis::fitness::{self, OpenError};
use crate::store::redis::line::{Line, State, given_up, hang_up};
use crate::store::redis::sentinel::Sentinels;
use crate::store::redis::wire::{Wired, Wiring};

/// How often the clock is read and the server looked at. Always armed and never later than a request's deadline, this
/// also spares the runtime a wake-up for each of those deadlines.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Before the second try for a connection, and at most before any other.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(500);

/// How servers are reached and how long anything with them may take.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) wiring: Wiring,
    pub(super) timeout: Duration,
    pub(super) entropy: Entropy,
    pub(super) epoch: Arc<Epoch>,
    /// How many replicas have to have a step before it counts.
    pub(super) replicas: Option<usize>,
}

/// Who says where the server is.
#[derive(Clone)]
pub(super) enum Whereabouts {
    Fixed(Host),
    /// The map of a cluster, which names another one when this is no master any more.
    Mapped(Host),
    Named(Sentinels),
}

impl fmt::Display for Whereabouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(host) | Self::Mapped(host) => host.fmt(f),
            Self::Named(sentinels) => write!(f, "{}, by its sentinels", sentinels.master_name()),
        }
    }
}

/// Sees to it that there is a line. Its task ends with its handle.
pub(super) struct Keeper {
    dialer: Dialer,
    state: Arc<watch::Sender<State>>,
    /// Tries in a row that led to no line worth the name.
    failures: u32,
}

impl Keeper {
    pub(super) fn new(dialer: Dialer, state: Arc<watch::Sender<State>>) -> Self {
        Self { dialer, state, failures: 0 }
    }

    pub(super) fn spawn(self, opened: Option<Opened>) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(self.keep(opened)))
    }

    async fn keep(mut self, mut opened: Option<Opened>) {
        loop {
            if let Some(opened) = opened.take() {
                self.stay_with(opened).await;
            }
            sleep(self.backoff()).await;
            match self.dialer.dial().await {
                Ok(next) => opened = Some(next),
                Err(error) => self.note(error),
            }
        }
    }

    /// Until the line is given up, by this task or by a caller. A server that ends every connection at once is tried
    /// no faster than one that is away.
    async fn stay_with(&mut self, opened: Opened) {
        let since = Instant::now();
        let line = opened.line.clone();
        self.state.send_replace(State::Up(line.clone()));
        tokio::select! {
            () = given_up(self.state.subscribe(), line.number) => {}
            error = self.dialer.look_after(&line) => {
                tracing::warn!(server = %self.dialer.whereabouts, %error, "gave up the connection to Redis");
                hang_up(&self.state, line.number, Some(Arc::new(error)));
            }
        }
        self.failures = if since.elapsed() < MAX_BACKOFF { self.failures.saturating_add(1) } else { 0 };
    }

    fn note(&mut self, error: OpenError) {
        let server = &self.dialer.whereabouts;
        match (self.failures, error.is_loss()) {
            (0, true) => tracing::warn!(%server, %error, "Redis answers and is not used"),
            (0, false) => tracing::warn!(%server, %error, "no connection to Redis"),
            (_, true | false) => {}
        }
        self.failures = self.failures.saturating_add(1);
        self.state.send_modify(|state| {
            if let State::Down { reason, .. } = state {
                *reason = Some(Arc::new(error));
            }
        });
    }

    fn backoff(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        match self.failures {
            0 => Duration::ZERO,
            _ => jitter(&self.dialer.terms.entropy, FIRST_BACKOFF.saturating_mul(1 << doublings).min(MAX_BACKOFF)),
        }
    }
}

/// A line with what it stands on.
pub(super) struct Opened {
    pub(super) line: Line,
    _wired: Wired,
}

/// Makes lines.
#[derive(Clone)]
pub(super) struct Dialer {
    whereabouts: Whereabouts,
    terms: Terms,
    clock: Arc<ServerClock>,
    dialed: u64,
}

impl Dialer {
    pub(super) fn new(whereabouts: Whereabouts, terms: Terms, clock: Arc<ServerClock>) -> Self {
        Self { whereabouts, terms, clock, dialed: 0 }
    }

    /// A line to a server that is fit and still has its memory.
    pub(super) async fn dial(&mut self) -> Result<Opened, OpenError> {
        self.dialed += 1;
        let dialing = async {
            let opened = self.connect().await?;
            match self.whereabouts {
                // The memory of a cluster is in all of its servers together.
                Whereabouts::Mapped(_) => {}
                Whereabouts::Fixed(_) | Whereabouts::Named(_) => self.examine(&opened.line).await?,
            }
            Ok(opened)
        };
        let dialed = timeout(self.terms.timeout, dialing).await;
        dialed.unwrap_or_else(|elapsed| Err(OpenError::Unreachable(elapsed.into())))
    }

    async fn examine(&self, line: &Line) -> Result<(), OpenError> {
        self.terms.epoch.examine(&self.way(line)).await.map_err(|error| self.judge(error))
    }

    /// How the epoch is asked for over a line.
    pub(super) fn way<'l>(&'l self, line: &'l Line) -> Way<'l> {
        Way::Line(line, &self.clock)
    }

    /// A line to a server that is fit, whatever became of its memory.
    pub(super) async fn connect(&self) -> Result<Opened, OpenError> {
        let host = match &self.whereabouts {
            Whereabouts::Fixed(host) | Whereabouts::Mapped(host) => host.clone(),
            Whereabouts::Named(sentinels) => sentinels.master().await?,
        };
        let mut wired = self.terms.wiring.connect(&host).await?;
        fitness::examine(&mut wired.connection, &self.clock).await.map_err(|error| self.judge(error))?;
        let (connection, uptake) = (wired.connection.clone(), wired.uptake.clone());
        let line = Line::new(connection, uptake, self.dialed, host);
        if self.terms.replicas.is_some() {
            self.learn_life(&line).await?;
        }
        Ok(Opened { line, _wired: wired })
    }

    /// Where somebody else says which server is the master, one that is none is the past, and no mistake of anybody.
    fn judge(&self, error: OpenError) -> OpenError {
        match (&self.whereabouts, error) {
            (Whereabouts::Mapped(_) | Whereabouts::Named(_), OpenError::Replica) => OpenError::Deposed,
            (Whereabouts::Fixed(_) | Whereabouts::Mapped(_) | Whereabouts::Named(_), error) => error,
        }
    }

    /// Until the line turns out to be of no use. Sentinels are asked beside it: they know of a server that is frozen.
    async fn look_after(&self, line: &Line) -> OpenError {
        tokio::select! {
            error = self.keep_looking(line) => error,
            () = self.deposed(line) => OpenError::Deposed,
        }
    }

    async fn keep_looking(&self, line: &Line) -> OpenError {
        loop {
            sleep(LOOK.min(self.terms.timeout)).await;
            match timeout(self.terms.timeout, self.look_again(line)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return self.judge(error),
                Err(_) if line.is_busy() => {}
                Err(elapsed) => return OpenError::Unreachable(elapsed.into()),
            }
        }
    }

    async fn look_again(&self, line: &Line) -> Result<(), OpenError> {
        fitness::look_again(&mut line.connection.clone(), &self.clock).await?;
        if self.terms.replicas.is_some() {
            self.learn_life(line).await?;
        }
        match self.whereabouts {
            Whereabouts::Mapped(_) => Ok(()),
            Whereabouts::Fixed(_) | Whereabouts::Named(_) => self.terms.epoch.look(&self.way(line)).await,
        }
    }

    async fn learn_life(&self, line: &Line) -> Result<(), OpenError> {
        let standing = fitness::standing(&mut line.connection.clone()).await.map_err(|error| self.judge(error))?;
        line.life.store(standing.life, Ordering::Relaxed);
        Ok(())
    }

    /// Resolves when the sentinels name another master: one that was cut off still believes that it is one. Sentinels
    /// that do not answer depose nobody.
    async fn deposed(&self, line: &Line) {
        let Whereabouts::Named(sentinels) = &self.whereabouts else { return std::future::pending().await };
        loop {
            sleep(LOOK.min(self.terms.timeout)).await;
            if sentinels.master().await.is_ok_and(|master| master != *line.host) {
                return;
            }
        }
    }
}

/// Full jitter: anything up to `most`.
pub(super) fn jitter(entropy: &Entropy, most: Duration) -> Duration {
    Duration::from_millis(entropy.up_to(millis(most)))
}
