//! One server, or the master that sentinels name: the line to it as the steps see it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::store::StoreError;
use crate::store::redis::clock::ServerClock;
use crate::store::redis::fitness::{self, OpenError};
use crate::store::redis::keeper::{Dialer, Keeper, Terms, Whereabouts};
use crate::store::redis::line::{Line, State, hang_up, no_line};
use crate::store::redis::replicas::{Place, Replicas, Shortfall};

/// A line that comes back. Needs a tokio runtime, which it stays on.
pub(super) struct Node {
    state: Arc<watch::Sender<State>>,
    terms: Terms,
    clock: Arc<ServerClock>,
    /// For what has to be asked of a server that is not in use.
    dialer: Dialer,
    /// Whom its steps wait for.
    replicas: Option<Replicas>,
    _keeper: AbortOnDropHandle<()>,
}

/// A send without an answer yet: over which line, and how many answers that had brought before.
pub(super) struct Outstanding {
    node: Arc<Node>,
    line: u64,
    answers: u64,
}

impl Node {
    /// Connects, and goes on trying in the background if the server is away.
    ///
    /// # Errors
    /// The server answered and must not be used.
    pub(super) async fn open(whereabouts: Whereabouts, terms: Terms, clock: ServerClock) -> Result<Self, OpenError> {
        let clock = Arc::new(clock);
        let mut dialer = Dialer::new(whereabouts, terms.clone(), Arc::clone(&clock));
        let (state, opened) = match dialer.dial().await {
            Ok(opened) => (State::Up(opened.line.clone()), Some(opened)),
            Err(error) if error.may_pass() || error.is_loss() => {
                (State::Down { since: None, reason: Some(Arc::new(error)) }, None)
            }
            Err(error) => return Err(error),
        };
        let state = Arc::new(watch::Sender::new(state));
        let _keeper = Keeper::new(dialer.clone(), Arc::clone(&state)).spawn(opened);
        let replicas = replicas(&terms);
        Ok(Self { state, terms, clock, dialer, replicas, _keeper })
    }

    /// Connects in the background; callers wait for it as for one that was there a moment ago.
    pub(super) fn begin(whereabouts: Whereabouts, terms: Terms, clock: ServerClock) -> Self {
        let clock = Arc::new(clock);
        let dialer = Dialer::new(whereabouts, terms.clone(), Arc::clone(&clock));
        let state = Arc::new(watch::Sender::new(State::Down { since: Some(Instant::now()), reason: None }));
        let _keeper = Keeper::new(dialer.clone(), Arc::clone(&state)).spawn(None);
        let replicas = replicas(&terms);
        Self { state, terms, clock, dialer, replicas, _keeper }
    }

    pub(super) fn clock(&self) -> &ServerClock {
        &self.clock
    }

    /// The line, once there is one. An outage that lasts is answered at once, so that callers do not pile up.
    ///
    /// # Errors
    /// There is none.
    pub(super) async fn line(&self) -> Result<Line, StoreError> {
        if let State::Up(line) = &*self.state.borrow() {
            return Ok(line.clone());
        }
        let mut state = self.state.subscribe();
        loop {
            match &*state.borrow_and_update() {
                State::Up(line) => return Ok(line.clone()),
                State::Down { reason: Some(reason), .. } if reason.is_loss() => {
                    return Err(no_line(Some(Arc::clone(reason))));
                }
                State::Down { since: Some(since), .. } if since.elapsed() < self.terms.timeout => {}
                State::Down { reason, .. } => return Err(no_line(reason.clone())),
            }
            if state.changed().await.is_err() {
                return Err(no_line(None));
            }
        }
    }

    pub(super) fn replace(&self, number: u64) {
        hang_up(&self.state, number, None);
    }

    /// Has the server examined anew before anything else goes to it.
    pub(super) fn examine_anew(&self) {
        let number = match &*self.state.borrow() {
            State::Up(line) => Some(line.number),
            State::Down { .. } => None,
        };
        number.into_iter().for_each(|number| self.replace(number));
    }

    /// Returns when enough replicas have what was done at `place`; at once if none are waited for.
    ///
    /// # Errors
    /// They have not, or it cannot be known.
    pub(super) async fn replicated(
        &self,
        place: Place,
        key: impl FnOnce() -> String,
        deadline: Instant,
    ) -> Result<(), Shortfall> {
        match &self.replicas {
            Some(replicas) => replicas.have(place, key(), deadline).await,
            None => Ok(()),
        }
    }

    /// What an operator should change about it and its replicas, as far as it tells.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) async fn advice(&self) -> Result<Vec<String>, StoreError> {
        let line = self.line().await?;
        let advice = fitness::advice(&mut line.connection.clone(), &line.host, self.terms.replicas).await;
        advice.map_err(|error| no_line(Some(Arc::new(error))))
    }

    /// An operator's word that its memory is to be taken as it is; false if it has lost nothing.
    ///
    /// # Errors
    /// The server does not answer, or must not be used for another reason.
    pub(super) async fn accept_loss(&self) -> Result<bool, OpenError> {
        let opened = self.dialer.connect().await?;
        self.terms.epoch.accept(&self.dialer.way(&opened.line)).await
    }
}

fn replicas(terms: &Terms) -> Option<Replicas> {
    terms.replicas.map(|needed| Replicas::new(terms.wiring.clone(), terms.timeout, needed))
}

impl Outstanding {
    pub(super) fn over(node: &Arc<Node>, line: &Line) -> Self {
        Self { node: Arc::clone(node), line: line.number, answers: line.answers.load(Ordering::Relaxed) }
    }

    /// Gives the line up if it has brought no answer at all since; says whether it did.
    pub(super) fn replace_if_silent(&self) -> bool {
        let silent = match &*self.node.state.borrow() {
            State::Up(line) => {
                let has_answered = line.answers.load(Ordering::Relaxed) != self.answers;
                line.number == self.line && !has_answered && !line.is_busy()
            }
            State::Down { .. } => false,
        };
        if silent {
            self.node.replace(self.line);
        }
        silent
    }
}
