//! The masters of a cluster and the slots they serve.
//!
//! The map is asked for once a second and whenever it proves wrong. A master that is no longer in it loses its line. The
//! memory of a cluster is in all of its servers together, so its epoch is looked at here and not on each line.

use std::sync::{Arc, Mutex, PoisonError};

use redis::{Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use crate::clock::Timestamp;
use crate::store::StoreError;
use crate::store::redis::clock::ServerClock;
use crate::store::redis::epoch::Way;
use crate::store::redis::failure::{DETOUR, Redirect, Remedy};
use crate::store::redis::fitness::OpenError;
use crate::store::redis::keeper::{LOOK, Terms};
use crate::store::redis::line::{Line, no_line};
use crate::store::redis::map::Map;
use crate::store::redis::node::Node;
use crate::store::redis::replies;
use crate::store::redis::scripts::{Request, key_of};
use crate::store::redis::shares::Shares;
use crate::store::redis::slots::slot_of;

/// A cluster as the steps see it.
pub(super) struct Cluster {
    pub(super) map: watch::Sender<Map>,
    /// Rung when the map proves wrong.
    pub(super) is_wrong: Notify,
    /// Rung when a bucket has lost its marker.
    forgot: Notify,
    /// Why no step may be taken, whatever the map says.
    closed: Mutex<Option<Arc<OpenError>>>,
    pub(super) terms: Terms,
    /// Until there is a map.
    clock: ServerClock,
}

impl Cluster {
    /// Nothing is known yet.
    pub(super) fn new(terms: Terms) -> Self {
        let unexamined = OpenError::Unreachable("its memory was not examined yet".into());
        Self {
            map: watch::Sender::new(Map::default()),
            is_wrong: Notify::new(),
            forgot: Notify::new(),
            closed: Mutex::new(Some(Arc::new(unexamined))),
            terms,
            clock: ServerClock::new(),
        }
    }

    /// By the clock of the master of the first slot, so that all gateways go by the same one.
    pub(super) fn now(&self) -> Timestamp {
        self.now_at(0)
    }

    /// By the clock of the master of a slot.
    pub(super) fn now_at(&self, slot: u16) -> Timestamp {
        self.map.borrow().node_of(slot).map_or_else(|| self.clock.now(), |node| node.clock().now())
    }

    /// The line to the master of a slot, whoever that becomes meanwhile.
    ///
    /// # Errors
    /// There is none, or nobody may use it now.
    pub(super) async fn line(&self, slot: u16) -> Result<(Arc<Node>, Line), StoreError> {
        match self.closed() {
            Some(reason) => Err(no_line(Some(reason))),
            None => self.any_line(slot).await,
        }
    }

    async fn any_line(&self, slot: u16) -> Result<(Arc<Node>, Line), StoreError> {
        let mut changes = self.map.subscribe();
        loop {
            let (node, failure) = {
                let map = changes.borrow_and_update();
                (map.node_of(slot), map.failure.clone())
            };
            let Some(node) = node else { return Err(no_line(failure)) };
            tokio::select! {
                line = node.line() => return Ok((Arc::clone(&node), line?)),
                _ = changes.changed() => {}
            }
        }
    }

    /// The line that a server pointed to; for more than this request if the slot has moved for good.
    ///
    /// # Errors
    /// There is none.
    pub(super) async fn follow(&self, redirect: &Redirect) -> Result<(Arc<Node>, Line), StoreError> {
        let (now, mut pointed) = (self.now(), None);
        self.map.send_modify(|map| pointed = Some(map.redirect(redirect, &self.terms, now)));
        self.look_again();
        match pointed {
            Some(node) => node.line().await.map(|line| (node, line)),
            None => Err(no_line(None)),
        }
    }

    /// Something did not go as the map says.
    pub(super) fn look_again(&self) {
        self.is_wrong.notify_one();
    }

    /// Has the memory examined anew.
    pub(super) fn examine_anew(&self) {
        self.forgot.notify_one();
    }

    /// The commands by the server that has their keys.
    pub(super) fn shares(&self, commands: &Pipeline) -> Shares {
        let map = self.map.borrow();
        Shares::of(commands, |command| map.host_of(key_of(command).map_or(0, slot_of)))
    }

    /// What is asked about the epoch, which the state of it does not forbid.
    ///
    /// # Errors
    /// A server did not answer.
    pub(super) async fn send(&self, request: &Request, with_source: bool) -> Result<Value, OpenError> {
        let Request::Many(commands) = request else { return self.send_one(request, with_source).await };
        let mut shares = self.shares(commands);
        while let Some(share) = shares.next() {
            let answer = self.send_one(&share.request, with_source).await?;
            shares.answered(share, answer);
        }
        Ok(shares.all())
    }

    async fn send_one(&self, request: &Request, with_source: bool) -> Result<Value, OpenError> {
        let mut redirect = None::<Redirect>;
        loop {
            let asking = redirect.as_ref().is_some_and(|redirect| redirect.asking);
            let line = match redirect.take() {
                Some(redirect) => self.follow(&redirect).await,
                None => self.any_line(request.key().map_or(0, slot_of)).await,
            };
            let (_, line) = line.map_err(|error| OpenError::Unreachable(error.into()))?;
            let failure = match line.send(request, with_source, asking).await.and_then(replies::in_part) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            self.look_again();
            let Remedy::Follow(to) = failure.remedy() else { return Err(failure.into()) };
            sleep(DETOUR).await;
            redirect = Some(to);
        }
    }

    /// See [`Epoch::accept`](super::epoch::Epoch::accept).
    ///
    /// # Errors
    /// A server does not answer.
    pub(super) async fn accept_loss(&self) -> Result<bool, OpenError> {
        let accepted = self.terms.epoch.accept(&Way::Cluster(self)).await?;
        self.examine_anew();
        Ok(accepted)
    }

    /// Looks at the epoch and all its markers, and opens or closes the cluster by them. A server that does not answer
    /// closes nothing.
    ///
    /// # Errors
    /// It is closed now, or was never open.
    pub(super) async fn examine(&self) -> Result<(), Arc<OpenError>> {
        self.judge(self.terms.epoch.examine(&Way::Cluster(self))).await
    }

    /// The same without the markers, as long as it is open.
    async fn look(&self) -> Result<(), Arc<OpenError>> {
        match self.closed() {
            Some(_) => self.examine().await,
            None => self.judge(self.terms.epoch.look(&Way::Cluster(self))).await,
        }
    }

    async fn judge(&self, examining: impl Future<Output = Result<(), OpenError>>) -> Result<(), Arc<OpenError>> {
        let examined = timeout(self.terms.timeout, examining).await;
        let examined = examined.unwrap_or_else(|elapsed| Err(OpenError::Unreachable(elapsed.into())));
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        match examined {
            Ok(()) => *closed = None,
            Err(error) if error.is_loss() || closed.is_some() => *closed = Some(Arc::new(error)),
            Err(_) => {}
        }
        closed.clone().map_or(Ok(()), Err)
    }

    pub(super) async fn keep_examining(self: Arc<Self>) {
        loop {
            let has_forgotten = timeout(LOOK, self.forgot.notified()).await.is_ok();
            drop(if has_forgotten { self.examine().await } else { self.look().await });
        }
    }

    fn closed(&self) -> Option<Arc<OpenError>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
