//! Rates of routes, counted by governor on tokio's clock. A refusal is answered at once; nothing sleeps here.

use std::collections::HashMap;
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::time::Instant;

use crate::config::{RateLimit, RouteTable};

type Limiter = RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Moment>>;

/// The limiters of all routes that have one, shared by all threads.
#[derive(Clone, Default)]
pub struct Limits(Arc<HashMap<String, Limiter>>);

impl Limits {
    pub fn of(routes: &RouteTable) -> Self {
        let limited = routes.0.iter().filter_map(|route| Some((route.name.clone(), limiter(route.limit?)?)));
        Self(Arc::new(limited.collect()))
    }

    /// Whether the route is limited at all.
    pub fn has(&self, route: &str) -> bool {
        self.0.contains_key(route)
    }

    /// Takes one call of the route's rate.
    ///
    /// # Errors
    /// How long until the next one would be taken.
    pub fn take(&self, route: &str) -> Result<(), Duration> {
        let Some(limiter) = self.0.get(route) else { return Ok(()) };
        limiter.check().map_err(|refused| refused.wait_time_from(TokioClock.now()))
    }
}

fn limiter(limit: RateLimit) -> Option<Limiter> {
    let quota = Quota::with_period(limit.period / limit.rate.get())?.allow_burst(limit.burst);
    Some(RateLimiter::direct_with_clock(quota, TokioClock))
}

/// Tokio's clock, so that a paused test moves the limits, too.
#[derive(Clone, Copy, Debug)]
struct TokioClock;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment(Instant);

impl Clock for TokioClock {
    type Instant = Moment;

    fn now(&self) -> Moment {
        Moment(Instant::now())
    }
}

impl Add<Nanos> for Moment {
    type Output = Self;

    fn add(self, nanos: Nanos) -> Self {
        Self(self.0 + Duration::from(nanos))
    }
}

impl Reference for Moment {
    fn duration_since(&self, earlier: Self) -> Nanos {
        self.0.saturating_duration_since(earlier.0).into()
    }

    fn saturating_sub(&self, duration: Nanos) -> Self {
        Self(self.0.checked_sub(duration.into()).unwrap_or(self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn limits(rate: u32, burst: u32) -> Limits {
        let limit = RateLimit {
            rate: NonZeroU32::new(rate).unwrap(),
            period: Duration::from_secs(1),
            burst: NonZeroU32::new(burst).unwrap(),
        };
        Limits(Arc::new(HashMap::from([("r".to_owned(), limiter(limit).unwrap())])))
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_next_one_learns_how_long_to_wait() {
        let limits = limits(10, 2);
        assert!(limits.take("r").is_ok());
        assert!(limits.take("r").is_ok());
        let wait = limits.take("r").unwrap_err();
        assert!(wait <= Duration::from_millis(100) && wait > Duration::ZERO, "{wait:?}");
        tokio::time::advance(wait).await;
        assert!(limits.take("r").is_ok());
    }

    #[test]
    fn a_route_without_a_limit_takes_everything() {
        assert!(Limits::default().take("r").is_ok());
        assert!(!Limits::default().has("r"));
    }
}
