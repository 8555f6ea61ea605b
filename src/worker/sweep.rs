//! Once a second: owners that went away, and records whose time is over.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::engine::recover::Look;
use crate::operation::OperationId;
use crate::store::StoreError;
use crate::telemetry::story;

const EVERY: Duration = Duration::from_secs(1);
/// A crash of a busy gateway leaves many at once; the rest is seen to in the next second.
const OPERATIONS: usize = 1024;
/// Looks at the same time.
const AT_ONCE: usize = 32;
const EXPIRED: usize = 1024;
/// Records that nobody here can read; beyond this number they are looked at again.
const UNREADABLE: usize = 4096;
/// How long those for which nothing can be done now are left alone.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Runs until `stop`. A store that does not answer is asked again in the next second.
pub async fn sweep(engine: Arc<Engine>, stop: CancellationToken) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut aside, mut outage) = (Aside::default(), Outage::default());
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        recover_due(&engine, &mut aside, &mut outage).await;
        purge(&engine).await;
        engine.shared().limits.forget();
    }
}

/// Whether the store takes its steps. The log says it once when that changes, and at the start if it does not.
#[derive(Default)]
struct Outage(Option<Instant>);

impl Outage {
    fn begins(&mut self, engine: &Engine, error: &StoreError) {
        let is_away = !matches!(error, StoreError::LostMemory(_));
        let warning = is_away.then(|| format!("store: {error}; guarded calls are refused"));
        engine.shared().status.warn("store away", warning.into_iter().collect());
        if self.0.is_none() {
            self.0 = Some(Instant::now());
            tracing::warn!(
                error = story(error),
                "store away: guarded calls get 503 store-unavailable and are not sent; reads pass"
            );
        }
    }

    /// A store that is read again may still take no step: after a failover its replicas are away. A step is asked for
    /// only here, for it is a write.
    async fn ends(&mut self, engine: &Engine) {
        let Some(since) = self.0 else { return };
        if engine.store().ping().await.is_ok() {
            self.0 = None;
            engine.shared().status.warn("store away", Vec::new());
            let away_ms = crate::clock::millis(since.elapsed());
            tracing::info!(away_ms, "store back: guarded calls are made again");
        }
    }
}

/// Records that stay first in line, and must not keep the others back.
#[derive(Default)]
struct Aside {
    /// Those of a newer version for as long as an upgrade takes.
    unreadable: HashSet<OperationId>,
    /// For which nothing can be done now, with the time of the last look.
    later: HashMap<OperationId, Instant>,
}

impl Aside {
    fn forget_old(&mut self) {
        if self.unreadable.len() > UNREADABLE {
            self.unreadable.clear();
        }
        self.later.retain(|_, seen| seen.elapsed() < LOOK_AGAIN);
    }

    fn len(&self) -> usize {
        self.unreadable.len() + self.later.len()
    }

    fn has(&self, id: &OperationId) -> bool {
        self.unreadable.contains(id) || self.later.contains_key(id)
    }
}

async fn recover_due(engine: &Arc<Engine>, aside: &mut Aside, outage: &mut Outage) {
    aside.forget_old();
    let due = engine.store().due(OPERATIONS + aside.len()).await;
    match &due {
        Err(error) => outage.begins(engine, error),
        Ok(_) => outage.ends(engine).await,
    }
    tell_of_loss(engine, due.as_ref().err());
    let Ok(due) = due else { return };
    let mut looks = JoinSet::new();
    for id in due.into_iter().filter(|id| !aside.has(id)).collect::<Vec<_>>() {
        if looks.len() >= AT_ONCE {
            note(looks.join_next().await, aside);
        }
        let engine = Arc::clone(engine);
        looks.spawn(async move { (id, engine.recover(id).await) });
    }
    while let Some(look) = looks.join_next().await {
        note(Some(look), aside);
    }
}

/// A store that has lost its memory waits for an operator, who looks at the status.
fn tell_of_loss(engine: &Engine, error: Option<&StoreError>) {
    let lost = error.filter(|error| matches!(error, StoreError::LostMemory(_)));
    let warning = |error| format!("{error}; guarded calls are refused until POST /v1/store/accept-loss");
    engine.shared().status.warn("store memory", lost.map(warning).into_iter().collect());
}

type Looked = Result<(OperationId, Result<Look, StoreError>), tokio::task::JoinError>;

fn note(looked: Option<Looked>, aside: &mut Aside) {
    let Some(Ok((id, looked))) = looked else { return };
    match looked {
        Ok(Look::Done) => {}
        Ok(Look::Later) => drop(aside.later.insert(id, Instant::now())),
        Err(error) => {
            tracing::warn!(operation = %id, %error, "not recovered yet");
            if error.unreadable().is_some() {
                aside.unreadable.insert(id);
            }
        }
    }
}

async fn purge(engine: &Arc<Engine>) {
    match engine.store().purge(EXPIRED).await {
        Ok(0) => {}
        Ok(removed) => tracing::debug!(removed, "expired records removed"),
        Err(error) => tracing::debug!(%error, "expired records not removed"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_seen_to_now_is_looked_at_again_after_a_while() {
        let (mut aside, id) = (Aside::default(), OperationId::from_bytes([7; 20]));
        note(Some(Ok((id, Ok(Look::Later)))), &mut aside);
        advance(LOOK_AGAIN - Duration::from_millis(1)).await;
        aside.forget_old();
        assert!(aside.has(&id));
        advance(Duration::from_millis(1)).await;
        aside.forget_old();
        assert!(!aside.has(&id));
    }
}
