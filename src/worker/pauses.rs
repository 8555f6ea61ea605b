//! What the fleet is held back from, heard often: another gateway sends into a pause no longer than this. A gateway that is
//! alone only forgets by it what ended long ago.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;

const EVERY: Duration = Duration::from_millis(50);

/// Runs until `stop`. While the store does not answer, each gateway goes by what it knows itself.
pub async fn follow(engine: Arc<Engine>, stop: CancellationToken) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = engine.look_at_pauses().await {
            tracing::debug!(%error, "no look at the pauses of other gateways");
        }
    }
}
