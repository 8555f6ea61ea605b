//! Steps that count only when so many replicas have them.
//!
//! `WAIT` speaks of the writes of its own connection and blocks it. So there is one connection for it, and one small
//! write of its own for all steps that were done while the last `WAIT` ran: whoever has that write has theirs, if they
//! were done by the same server in the same life of it as a master. A server takes another replication id whenever it
//! becomes a master, so an id that was known before a step and is still there after the `WAIT` says that it was.

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Pipeline, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::clock::millis;
use crate::operation::{Operation, StateName};
use crate::redis_url::Host;
use crate::store::redis::fitness::{OpenError, Standing};
use crate::store::redis::wire::{Wired, Wiring};

/// Steps that may wait for one `WAIT`.
const BATCH: usize = 1024;

/// Where a step was done: by which server, and in which life of it as a master.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) host: Arc<Host>,
    pub(super) life: u64,
}

/// Why a step does not count.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Shortfall {
    #[error("of {needed} replicas that have to have it, {reached} did in time")]
    TooFew { reached: usize, needed: usize },
    #[error("the server is not the same master as before")]
    OtherMaster,
    #[error("the server did not say in time that its replicas have it")]
    Silent,
}

/// The replicas of one master.
pub(super) struct Replicas {
    queue: mpsc::Sender<Waiting>,
    _committer: AbortOnDropHandle<()>,
}

/// A step that was done and is not told yet.
struct Waiting {
    place: Place,
    /// Where the batch may write: a key of the slot of the step.
    key: String,
    verdict: oneshot::Sender<Result<(), Shortfall>>,
}

struct Committer {
    wiring: Wiring,
    timeout: Duration,
    needed: usize,
    line: Option<(Arc<Host>, Wired)>,
}

/// A claim that was lost by a failover before its `sent` write is one that nothing was sent for: that write is refused.
/// So is the one after a lost wait. All else is acted upon or told.
pub(super) fn must_last(operation: &Operation) -> bool {
    match operation.state.name() {
        StateName::Claimed | StateName::Waiting => false,
        StateName::AwaitingApproval
        | StateName::Sent
        | StateName::Succeeded
        | StateName::Failed
        | StateName::NotExecuted
        | StateName::Unknown
        | StateName::Rejected
        | StateName::Abandoned
        | StateName::Compensating
        | StateName::Compensated => true,
    }
}

impl Replicas {
    /// Of a master that is reached by `wiring`; `needed` of them have to have a step.
    pub(super) fn new(wiring: Wiring, timeout: Duration, needed: usize) -> Self {
        let (queue, waiting) = mpsc::channel(BATCH);
        let committer = Committer { wiring, timeout, needed, line: None };
        Self { queue, _committer: AbortOnDropHandle::new(tokio::spawn(committer.run(waiting))) }
    }

    /// Returns when enough replicas have what was done at `place` before now; `key` is one of the same slot.
    ///
    /// # Errors
    /// They have not, or it cannot be known.
    pub(super) async fn have(&self, place: Place, key: String, deadline: Instant) -> Result<(), Shortfall> {
        let (verdict, told) = oneshot::channel();
        let asking = async {
            self.queue.send(Waiting { place, key, verdict }).await.map_err(|_| Shortfall::Silent)?;
            told.await.unwrap_or(Err(Shortfall::Silent))
        };
        timeout_at(deadline, asking).await.unwrap_or(Err(Shortfall::Silent))
    }
}

impl Committer {
    /// Whoever comes while one `WAIT` runs shares the next.
    async fn run(mut self, mut queue: mpsc::Receiver<Waiting>) {
        let mut batch = Vec::new();
        while queue.recv_many(&mut batch, BATCH).await > 0 {
            let found = self.wait(&batch).await;
            for waiting in batch.drain(..) {
                let verdict = self.judge(&waiting.place, &found);
                // Whoever has gone away does not want to know.
                drop(waiting.verdict.send(verdict));
            }
        }
    }

    fn judge(&self, place: &Place, found: &Result<(usize, u64), Shortfall>) -> Result<(), Shortfall> {
        match found {
            Ok((_, life)) if *life != place.life => Err(Shortfall::OtherMaster),
            Ok((reached, _)) if *reached < self.needed => {
                Err(Shortfall::TooFew { reached: *reached, needed: self.needed })
            }
            Ok(_) => Ok(()),
            Err(shortfall) => Err(shortfall.clone()),
        }
    }

    /// How many replicas have all that was done before, and the life in which the server said so.
    async fn wait(&mut self, batch: &[Waiting]) -> Result<(usize, u64), Shortfall> {
        let Some(last) = batch.last() else { return Err(Shortfall::Silent) };
        let exchange = timeout(self.timeout, self.exchange(&last.place.host, &last.key)).await;
        match exchange {
            Ok(Ok((line, reached, life))) => {
                // Of another life, another server may be meant by now.
                self.line = (life == last.place.life).then_some(line);
                Ok((reached, life))
            }
            Ok(Err(error)) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "no answer to WAIT");
                Err(Shortfall::Silent)
            }
            Err(_elapsed) => Err(Shortfall::Silent),
        }
    }

    async fn exchange(&mut self, host: &Arc<Host>, key: &str) -> Result<((Arc<Host>, Wired), usize, u64), OpenError> {
        let wired = match self.line.take() {
            Some((known, wired)) if known == *host => wired,
            _ => self.wiring.connect(host).await?,
        };
        let mut commands = Pipeline::new();
        commands.cmd("SET").arg(key).arg(1);
        commands.cmd("WAIT").arg(self.needed).arg(millis(self.timeout * 3 / 4));
        commands.cmd("INFO").arg("replication");
        let answers = wired.connection.clone().send_packed_commands(&commands, 0, commands.len()).await?;
        let strange = || OpenError::Unreachable("WAIT had an answer that is none".into());
        let [written, reached, info] = <[Value; 3]>::try_from(answers).map_err(|_| strange())?;
        written.extract_error()?;
        let reached = usize::from_redis_value(reached.extract_error()?).map_err(|_| strange())?;
        let standing = Standing::of(info.extract_error()?)?;
        Ok(((Arc::clone(host), wired), reached, standing.life))
    }
}
