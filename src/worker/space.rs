//! Every ten seconds: how much of its space the store has used, and callers of theirs, said while there is still time to do something about it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::store::Space;

const EVERY: Duration = Duration::from_secs(10);
const HIGH: f64 = 0.70;
const CRITICAL: f64 = 0.85;

/// How soon somebody should do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Fine,
    High,
    Critical,
}

/// Runs until `stop`. Each level is told to the log once, when it is reached.
pub async fn watch(engine: Arc<Engine>, stop: CancellationToken) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Level::Fine;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        engine.look_at_headroom().await;
        match engine.store().space().await {
            Ok(space) => told = tell(&engine, space, told),
            Err(error) => tracing::debug!(%error, "the store did not say how full it is"),
        }
    }
}

fn tell(engine: &Engine, space: Option<Space>, told: Level) -> Level {
    let level = space.map_or(Level::Fine, level);
    let warning = space.filter(|_| level > Level::Fine).map(|space| {
        format!("store: {:.0} % of its space is used; when it is full, calls are refused", space.share() * 100.0)
    });
    match (&warning, level) {
        (Some(warning), Level::High) if told < level => tracing::warn!("{warning}"),
        (Some(warning), Level::Critical) if told < level => tracing::error!("{warning}"),
        (Some(_) | None, Level::Fine | Level::High | Level::Critical) => {}
    }
    engine.shared().status.warn("store space", warning.into_iter().collect());
    level
}

fn level(space: Space) -> Level {
    match space.share() {
        share if share >= CRITICAL => Level::Critical,
        share if share >= HIGH => Level::High,
        _ => Level::Fine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_are_where_operators_expect_them() {
        let of = |used| level(Space { used, limit: 1000 });
        assert_eq!([of(0), of(699), of(700), of(849), of(850), of(2000)].map(|level| level as u8), [0, 0, 1, 1, 2, 2]);
        assert_eq!(level(Space { used: 0, limit: 0 }), Level::Critical, "there is no room at all");
    }
}
