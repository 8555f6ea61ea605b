//! The connection of a store, as its steps see it: to one server, or to all of a cluster.
//!
//! A request is sent as often as its deadline allows, for all of them are safe to send twice. The client library's own
//! timeouts are off: they cost a system call each, and they leave a silent connection in place.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep, timeout_at};

use crate::clock::Timestamp;
use crate::entropy::Entropy;
use crate::redis_url::Layout;
use crate::store::StoreError;
use crate::store::redis::failure::{DETOUR, Failure, Redirect, Remedy, Trail};
use crate::store::redis::fitness::OpenError;
use crate::store::redis::keeper::{Terms, jitter};
use crate::store::redis::line::no_line;
use crate::store::redis::node::{Node, Outstanding};
use crate::store::redis::replicas::{Place, Shortfall};
use crate::store::redis::replies;
use crate::store::redis::scripts::Request;
use crate::store::redis::topology::Topology;
use crate::store::redis::wire::Wiring;

/// Before a request is sent again to a server that said "not now".
const PAUSE: Duration = Duration::from_millis(25);

/// A connection that comes back.
pub(super) struct Connection {
    topology: Topology,
    timeout: Duration,
    entropy: Entropy,
}

/// By which server a step was done.
pub(super) struct Done {
    node: Arc<Node>,
    place: Place,
}

impl Done {
    /// Returns when enough replicas have it; at once if none are waited for. `key` is one of the same slot.
    ///
    /// # Errors
    /// They have not, or it cannot be known.
    pub(super) async fn replicated(self, key: impl FnOnce() -> String, deadline: Instant) -> Result<(), Shortfall> {
        self.node.replicated(self.place, key, deadline).await
    }
}

impl Connection {
    /// Connects, and goes on trying in the background if the server is away. Needs a tokio runtime, which it stays on.
    /// `sentinels` is how those are spoken to.
    ///
    /// # Errors
    /// A server answered and must not be used.
    pub(super) async fn open(layout: Layout, terms: Terms, sentinels: &Wiring) -> Result<Self, OpenError> {
        let (timeout, entropy) = (terms.timeout, terms.entropy.clone());
        Ok(Self { topology: Topology::open(layout, terms, sentinels).await?, timeout, entropy })
    }

    /// An operator says that calls are to be taken again by a store that has lost its memory; false if it has not.
    ///
    /// # Errors
    /// The server does not answer, or must not be used for another reason.
    pub(super) async fn accept_loss(&self) -> Result<bool, StoreError> {
        match timeout_at(self.deadline(), self.topology.accept_loss()).await {
            Ok(accepted) => accepted.map_err(|error| no_line(Some(Arc::new(error)))),
            Err(_elapsed) => Err(StoreError::Timeout),
        }
    }

    /// See [`Topology::advice`].
    ///
    /// # Errors
    /// A server does not answer.
    pub(super) async fn advice(&self) -> Result<Vec<String>, StoreError> {
        timeout_at(self.deadline(), self.topology.advice()).await.unwrap_or(Err(StoreError::Timeout))
    }

    /// Has the memory of the servers examined anew before anything else goes to them.
    pub(super) fn examine_anew(&self) {
        self.topology.examine_anew();
    }

    /// When a step that begins now has to be over.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// The server's clock, as well as it can be known from here.
    pub(super) fn now(&self) -> Timestamp {
        self.topology.now()
    }

    /// The clock of the server that has `key`: those of a cluster may differ.
    pub(super) fn now_at(&self, key: impl FnOnce() -> String) -> Timestamp {
        self.topology.now_at(key)
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
        let Some(mut shares) = self.topology.shares(request) else {
            return self.ask_placed(deadline, request, read).await.map(|(answer, _)| answer);
        };
        while let Some(share) = shares.next() {
            let (answer, _) = self.ask_one(deadline, &share.request, replies::in_part).await?;
            shares.answered(share, answer);
        }
        read(shares.all()).map_err(Trail::of)
    }

    /// As [`Self::ask`] does, and says where it was done.
    ///
    /// # Errors
    /// The same.
    pub(super) async fn ask_placed<T>(
        &self,
        deadline: Instant,
        request: &Request,
        read: impl Fn(Value) -> Result<T, Failure>,
    ) -> Result<(T, Done), StoreError> {
        self.ask_one(deadline, request, |reply| read(replies::whole(reply)?)).await
    }

    async fn ask_one<T>(
        &self,
        deadline: Instant,
        request: &Request,
        read: impl Fn(Value) -> Result<T, Failure>,
    ) -> Result<(T, Done), StoreError> {
        let mut trail = Trail::default();
        let mut outstanding = None;
        let is_long = deadline > self.deadline();
        let asked = {
            let busy_until = is_long.then_some(deadline);
            let asking = pin!(self.ask_on(request, busy_until, read, &mut trail, &mut outstanding));
            timeout_at(deadline, asking).await
        };
        if let Ok(answer) = asked {
            return match answer {
                Ok(answer) => Ok(answer),
                Err(Some(error)) => Err(trail.end_with(error)),
                Err(None) => Err(trail.end()),
            };
        }
        match outstanding {
            Some(send) => {
                if send.replace_if_silent() {
                    self.topology.look_again();
                }
                Err(StoreError::Timeout)
            }
            None => Err(trail.end()),
        }
    }

    /// `Err(None)`: the last failure on the trail is the end of it.
    async fn ask_on<T>(
        &self,
        request: &Request,
        busy_until: Option<Instant>,
        read: impl Fn(Value) -> Result<T, Failure>,
        trail: &mut Trail,
        outstanding: &mut Option<Outstanding>,
    ) -> Result<(T, Done), Option<StoreError>> {
        let (mut with_source, mut redirect) = (false, None::<Redirect>);
        loop {
            let asking = redirect.as_ref().is_some_and(|redirect| redirect.asking);
            let (node, line) = match redirect.take() {
                Some(redirect) => self.topology.follow(&redirect).await?,
                None => self.topology.line(request).await?,
            };
            *outstanding = Some(Outstanding::over(&node, &line));
            busy_until.iter().for_each(|end| line.is_busy_until(*end));
            // The life of the server as it was known before the step.
            let place = line.place();
            let answer = line.send(request, with_source, asking).await;
            *outstanding = None;
            let failure = match answer.and_then(&read) {
                Ok(answer) => return Ok((answer, Done { node, place })),
                Err(failure) => failure,
            };
            let remedy = failure.remedy();
            trail.note(failure);
            match remedy {
                Remedy::GiveUp => return Err(None),
                Remedy::Pause => {
                    self.topology.look_again();
                    sleep(PAUSE + jitter(&self.entropy, PAUSE)).await;
                }
                Remedy::Reconnect => {
                    node.replace(line.number);
                    self.topology.look_again();
                }
                Remedy::Follow(to) => {
                    sleep(DETOUR).await;
                    redirect = Some(to);
                }
                Remedy::LoadScript => with_source = true,
                Remedy::Examine => {
                    self.topology.examine_anew();
                    return Err(None);
                }
            }
        }
    }
}
