//! Every ten seconds: what an operator should change about how the store is set up.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;

const EVERY: Duration = Duration::from_secs(10);

/// Runs until `stop`. The log hears of each thing when it comes up; a store that does not answer changes nothing.
pub async fn watch(engine: Arc<Engine>, stop: CancellationToken) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Vec::new();
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        match engine.store().advice().await {
            Ok(advice) => {
                advice.iter().filter(|it| !told.contains(*it)).for_each(|it| tracing::warn!("{it}"));
                engine.shared().status.warn("store setup", advice.clone());
                told = advice;
            }
            Err(error) => tracing::debug!(%error, "the store did not say how it is set up"),
        }
    }
}
