//! Asking several who should know, and believing the one with the latest news.
//!
//! Sentinels and the nodes of a cluster both number their decisions: whoever names the highest epoch has heard of the
//! last failover. One that was cut off goes on naming the master that was deposed.

use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::redis_url::Host;
use crate::store::redis::fitness::OpenError;
use crate::store::redis::wire::{Wired, Wiring};

/// One who may be asked, over a connection that is kept.
pub(super) struct Witness {
    pub(super) host: Host,
    wiring: Wiring,
    line: Mutex<Option<Wired>>,
}

/// What one of them said.
pub(super) struct Said<T> {
    pub(super) epoch: u64,
    pub(super) what: T,
}

impl Witness {
    pub(super) fn new(host: Host, wiring: Wiring) -> Self {
        Self { host, wiring, line: Mutex::new(None) }
    }

    /// The answers to all `questions`.
    ///
    /// # Errors
    /// There are none; the next question is asked over a new connection.
    pub(super) async fn ask(&self, questions: &Pipeline) -> Result<Vec<Value>, OpenError> {
        let mut line = self.line.lock().await;
        let wired = match line.take() {
            Some(wired) => wired,
            None => self.wiring.connect(&self.host).await?,
        };
        let mut connection = wired.connection.clone();
        let answers = connection.send_packed_commands(questions, 0, questions.len()).await?;
        let answers = answers.into_iter().map(Value::extract_error).collect::<Result<_, _>>()?;
        *line = Some(wired);
        Ok(answers)
    }
}

/// The latest news of those who answer: more than half of all that are asked, or as many as do within `patience`.
///
/// # Errors
/// Nobody had an answer; this is what the last one had instead.
pub(super) async fn freshest<T: Send + 'static>(
    mut asking: JoinSet<Result<Said<T>, OpenError>>,
    patience: Duration,
) -> Result<T, OpenError> {
    let (all, until) = (asking.len(), Instant::now() + patience);
    let (mut best, mut answers, mut failure) = (None::<Said<T>>, 0, None);
    while answers * 2 <= all {
        match timeout_at(until, asking.join_next()).await {
            Ok(Some(Ok(Ok(said)))) => {
                answers += 1;
                if best.as_ref().is_none_or(|best| best.epoch < said.epoch) {
                    best = Some(said);
                }
            }
            Ok(Some(Ok(Err(error)))) => failure = Some(error),
            Ok(Some(Err(_))) => {}
            Ok(None) | Err(_) => break,
        }
    }
    let silence = || OpenError::Unreachable("nobody who knows where the master is has answered".into());
    best.map(|best| best.what).ok_or_else(|| failure.unwrap_or_else(silence))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(asking: &mut JoinSet<Result<Said<&'static str>, OpenError>>, epoch: u64, what: &'static str) {
        asking.spawn(async move { Ok(Said { epoch, what }) });
    }

    #[tokio::test]
    async fn the_highest_epoch_is_believed() {
        let mut asking = JoinSet::new();
        for (epoch, what) in [(4, "old"), (5, "new"), (4, "old")] {
            say(&mut asking, epoch, what);
        }
        asking.spawn(async { Err(OpenError::Unreachable("gone".into())) });
        assert_eq!(freshest(asking, Duration::from_secs(9)).await.unwrap(), "new");
    }

    #[tokio::test(start_paused = true)]
    async fn the_silent_are_not_waited_for_longer_than_needed() {
        let mut asking = JoinSet::new();
        asking.spawn(std::future::pending::<Result<Said<()>, OpenError>>());
        assert!(matches!(freshest(asking, Duration::from_secs(1)).await, Err(OpenError::Unreachable(_))));
        let mut asking = JoinSet::new();
        say(&mut asking, 1, "a");
        asking.spawn(std::future::pending());
        assert_eq!(freshest(asking, Duration::from_secs(1)).await.unwrap(), "a");
    }
}
