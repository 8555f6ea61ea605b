//! Ownership of one operation: the record as its owner knows it, and the lease that keeps others away.
//!
//! Exits: the last write of a run gives the lease up with the state that needs none. A crash or a drop leaves the lease
//! to run out; whoever looks at the record then decides by its state. A lost lease is noticed at the next write, which
//! the store refuses.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::crash_point::{self, Point};
use crate::engine::status::RouteStatus;
use crate::entropy::Entropy;
use crate::operation::dead_letter::{Letter, Next};
use crate::operation::transition::{Change, Ended, IllegalTransition, LateAnswer, Retention, Step};
use crate::operation::{EventKind, Operation, WriteId};
use crate::store::{Found, Store, StoreError, Written};

/// An ambiguous write of ours may have been applied, or a note of an alert; we take the record as it is and try again, but
/// not for ever.
pub(super) const ADOPTIONS: usize = 3;
/// Of a lease that is too short before a send. A store that is slow once may be fast the next time.
const RENEWALS: usize = 3;

/// The one who may write an operation.
#[derive(Clone)]
pub struct Owner {
    pub operation: Operation,
    store: Arc<dyn Store>,
    entropy: Entropy,
    lease: Duration,
    /// By the monotonic clock, counted from before the write that took or renewed the lease.
    held_until: Instant,
    counters: Arc<RouteStatus>,
}

/// Why a write of the owner did not take place.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It may have been done; the same owner may try again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Somebody else owns the operation now, or has ended it.
    #[error("the lease was lost; the record is in state {}", .0.operation.state.name())]
    Fenced(Box<Found>),
    #[error("the record is gone")]
    Gone,
    #[error(transparent)]
    Illegal(#[from] IllegalTransition),
}

impl Owner {
    /// Owns `operation` since a write that was begun at `since`.
    pub fn new(
        store: Arc<dyn Store>,
        entropy: Entropy,
        lease: Duration,
        operation: Operation,
        since: Instant,
        counters: Arc<RouteStatus>,
    ) -> Self {
        Self { operation, store, entropy, lease, held_until: since + lease, counters }
    }

    /// Changes the record. A refusal that shows an earlier write of ours is not one: we go on from there.
    ///
    /// # Errors
    /// See [`WriteError`]; only `Store` may be tried again.
    pub async fn write(
        &mut self,
        transition: impl Fn(&Operation, Step) -> Result<Change, IllegalTransition>,
    ) -> Result<(), WriteError> {
        let written = self.try_write(transition).await;
        if let Err(WriteError::Fenced(found)) = &written {
            self.count_refusal(found);
        }
        written
    }

    /// Brings an answer. The record may have moved on: if it is an unknown of just this attempt, the answer ends it;
    /// else the answer becomes an event of the record, which stays as it is.
    ///
    /// # Errors
    /// As [`Owner::write`].
    pub async fn write_answer(
        &mut self,
        status: u16,
        transition: impl Fn(&Operation, Step) -> Result<Change, IllegalTransition>,
    ) -> Result<(), WriteError> {
        let sender = self.operation.sender;
        let owner = sender.map_or(self.operation.fence.owner, |sender| sender.owner);
        let mut written = self.try_write(&transition).await;
        for _ in 0..ADOPTIONS {
            if let Err(WriteError::Fenced(found)) = &written
                && sender.is_some_and(|sender| found.operation.takes_evidence_of(sender))
            {
                self.operation = found.operation.clone();
                written = Box::pin(self.try_write(&transition)).await;
            }
        }
        if let Err(WriteError::Fenced(found)) = &written {
            self.count_refusal(found);
            Box::pin(self.tell_late(LateAnswer { owner, status }, found.operation.clone())).await;
        }
        written
    }

    /// Brings the end of a run without an answer that counts. If it leaves no doubt, it also ends an unknown that was made
    /// of this owner's last attempt when his lease was over: nobody else knows that the attempt came to nothing.
    ///
    /// # Errors
    /// As [`Owner::write`].
    pub async fn write_end(
        &mut self,
        ended: Ended,
        next: Next,
        keep: Retention,
        write: WriteId,
    ) -> Result<(), WriteError> {
        let ended = Ended { may_have_run: ended.may_have_run || self.operation.may_have_run, ..ended };
        let mut written =
            self.try_write(|operation, step| operation.end(ended, next, keep, Step { write, ..step })).await;
        for _ in 0..ADOPTIONS {
            if let Err(WriteError::Fenced(found)) = &written
                && !ended.may_have_run
                && found.operation.is_unknown_of(self.operation.fence.owner)
            {
                let unknown = found.operation.clone();
                written = Box::pin(self.retract(unknown, ended, keep, write)).await;
            }
        }
        if let Err(WriteError::Fenced(found)) = &written {
            self.count_refusal(found);
        }
        written
    }

    /// Until the store has taken it, the owner stays with what he knows: a next try begins there.
    async fn retract(
        &mut self,
        unknown: Operation,
        ended: Ended,
        keep: Retention,
        write: WriteId,
    ) -> Result<(), WriteError> {
        let known = std::mem::replace(&mut self.operation, unknown);
        let owner = known.fence.owner;
        let retract = |operation: &Operation, step| operation.retract(owner, ended, keep, Step { write, ..step });
        let written = self.try_write(retract).await;
        if written.is_err() {
            self.operation = known;
        }
        written
    }

    async fn try_write(
        &mut self,
        transition: impl Fn(&Operation, Step) -> Result<Change, IllegalTransition>,
    ) -> Result<(), WriteError> {
        for _ in 0..ADOPTIONS {
            let since = Instant::now();
            let step = Step { now: self.store.now(), write: WriteId(self.entropy.bytes()) };
            let change = transition(&self.operation, step)?;
            match self.store.write(&change).await? {
                Written::Applied => {
                    if change.event.as_ref().is_some_and(|event| event.kind == EventKind::LateAnswer) {
                        self.counters.late_answers.add();
                    }
                    let letter = |operation: &Operation| operation.dead.map(|letter| letter.since);
                    if change.letter() == Letter::Open && letter(&change.operation) != letter(&self.operation) {
                        self.counters.dead_letters.add();
                    }
                    self.operation = change.operation;
                    self.held_until = since + self.lease;
                    return Ok(());
                }
                Written::Refused(found) if found.operation.is_held_under(&self.operation.fence) => {
                    self.operation = self.operation.clone().resumed(found.operation);
                }
                Written::Refused(found) => return Err(WriteError::Fenced(found)),
                Written::Gone => return Err(WriteError::Gone),
            }
        }
        Err(WriteError::Store(StoreError::Timeout))
    }

    /// A record that has a lower token than ours has not moved on: our claim is still on its way to it.
    fn count_refusal(&self, found: &Found) {
        if found.operation.fence.token >= self.operation.fence.token {
            self.counters.fenced_writes.add();
        }
    }

    /// Nobody depends on the event, so a store that does not take it is not asked again.
    async fn tell_late(&self, answer: LateAnswer, mut record: Operation) {
        for _ in 0..ADOPTIONS {
            let step = Step { now: self.store.now(), write: WriteId(self.entropy.bytes()) };
            let Some(change) = record.tell_late(answer, step) else { return };
            match self.store.write(&change).await {
                Ok(Written::Refused(found)) => record = found.operation,
                Ok(Written::Applied) => {
                    if change.event.is_some_and(|event| event.kind == EventKind::Disputed) {
                        self.counters.dead_letters.add();
                    }
                    return;
                }
                Ok(Written::Gone) => return,
                Err(error) => return tracing::debug!(operation = %record.id, %error, "late answer not told"),
            }
        }
    }

    /// Drives `work` to its end and renews the lease beside it. A renewal that fails is tried again until the lease is
    /// over; then the work goes on without one, for what was sent cannot be unsent. It comes pinned: an argument that is
    /// pinned here would be twice in the future of whoever calls, and those of sends are large.
    pub async fn holding<T>(&mut self, mut work: impl Future<Output = T> + Unpin) -> T {
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.renew() => {}
            }
        }
    }

    /// Whether enough of the lease is left to begin a send: an owner that may stall before its first byte must not
    /// send when somebody else may already own the operation.
    pub fn may_send(&self) -> bool {
        self.held_until.saturating_duration_since(Instant::now()) >= self.lease / 4
    }

    /// Brings the lease back to its full length if a send could not begin otherwise.
    ///
    /// # Errors
    /// The lease could not be renewed, or its renewals take longer than it lasts.
    pub async fn ready_to_send(&mut self) -> Result<(), WriteError> {
        let lease = self.lease;
        for _ in 0..RENEWALS {
            if self.may_send() {
                return Ok(());
            }
            self.write(|operation, step| operation.renew(lease, step)).await?;
        }
        if self.may_send() { Ok(()) } else { Err(WriteError::Store(StoreError::Timeout)) }
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Sleeps until a third of the lease is gone, then renews it.
    async fn renew(&mut self) {
        let renew_at = self.held_until.checked_sub(self.lease * 2 / 3).unwrap_or_else(Instant::now);
        tokio::time::sleep_until(renew_at).await;
        // In a box, for the future of a renewal would be part of everything that an owner does meanwhile.
        Box::pin(self.renew_now()).await;
    }

    async fn renew_now(&mut self) {
        let lease = self.lease;
        crash_point::reached(Point::BeforeRenewal);
        match self.write(|operation, step| operation.renew(lease, step)).await {
            Ok(()) => crash_point::reached(Point::AfterRenewal),
            Err(WriteError::Store(error)) => {
                tracing::warn!(operation = %self.operation.id, %error, "lease not renewed");
                tokio::time::sleep(lease / 10).await;
            }
            Err(error) => {
                tracing::warn!(operation = %self.operation.id, %error, "lease lost");
                std::future::pending::<()>().await;
            }
        }
    }
}
