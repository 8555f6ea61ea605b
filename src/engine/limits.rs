//! Rates of routes, for all callers together and for each, counted by governor on tokio's clock. What is over the rate is
//! told so at once, unless the route lets calls wait for their turn.

use std::collections::HashMap;
use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::HashMapStateStore;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::time::{Instant, sleep};

use crate::config::{Rate, Rates, RouteTable};
use crate::operation::Scope;
use crate::store::{Pace, Store};

type ForAll = RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Moment>>;
type ForEach = RateLimiter<Scope, HashMapStateStore<Scope>, TokioClock, NoOpMiddleware<Moment>>;

/// The limiters of all routes that have one, shared by all threads.
#[derive(Clone, Default)]
pub struct Limits(Arc<HashMap<String, Limiter>>);

/// The rates of one route.
struct Limiter {
    all: Option<ForAll>,
    each: Option<ForEach>,
    rates: Rates,
    waiting: AtomicU32,
}

/// Whose rate.
#[derive(Clone, Copy)]
enum Whose<'a> {
    All,
    Each(&'a Scope),
}

/// More than a rate allows.
#[derive(Clone, Copy, Debug)]
pub struct OverRate {
    /// Until the next call would be taken.
    pub wait: Duration,
    /// Of this caller alone, and not of all.
    pub by_caller: bool,
}

/// A place among those that wait; a drop gives it back.
struct Place<'a>(&'a AtomicU32);

impl Limits {
    pub fn of(routes: &RouteTable) -> Self {
        let limited = routes.0.iter().filter_map(|route| Some((route.name.clone(), Limiter::new(&route.rates)?)));
        Self(Arc::new(limited.collect()))
    }

    /// Whether the route is limited at all.
    pub fn has(&self, route: &str) -> bool {
        self.0.contains_key(route)
    }

    /// Takes one call of the route's rates, in time for `until`.
    ///
    /// # Errors
    /// Whose rate it is beyond, and how long until the next one would be taken.
    pub async fn take(&self, store: &dyn Store, route: &str, scope: &Scope, until: Instant) -> Result<(), OverRate> {
        let Some(limiter) = self.0.get(route) else { return Ok(()) };
        let mut place = None;
        // A caller who is over his own rate takes nothing from the others.
        for whose in [Whose::Each(scope), Whose::All] {
            while let Err(wait) = limiter.take(store, route, whose).await {
                place = place.or_else(|| limiter.line_up());
                if place.is_none() || Instant::now() + wait >= until {
                    return Err(OverRate { wait, by_caller: matches!(whose, Whose::Each(_)) });
                }
                sleep(wait).await;
            }
        }
        Ok(())
    }

    /// Forgets callers who have not come for so long that they have their whole rate again.
    pub fn forget(&self) {
        self.0.values().filter_map(|limiter| limiter.each.as_ref()).for_each(RateLimiter::retain_recent);
    }
}

impl Limiter {
    fn new(rates: &Rates) -> Option<Self> {
        let all = rates.all.and_then(quota).map(|quota| RateLimiter::direct_with_clock(quota, TokioClock));
        let each = rates.each.and_then(quota).map(|quota| RateLimiter::hashmap_with_clock(quota, TokioClock));
        let is_limited = all.is_some() || each.is_some();
        is_limited.then(|| Self { all, each, rates: *rates, waiting: AtomicU32::new(0) })
    }

    /// Of the fleet's rate where there is one. A store that is away leaves each gateway to its own.
    async fn take(&self, store: &dyn Store, route: &str, whose: Whose<'_>) -> Result<(), Duration> {
        let rate = match whose {
            Whose::All => self.rates.all,
            Whose::Each(_) => self.rates.each,
        };
        if let (true, Some(rate)) = (self.rates.shared, rate)
            && let Ok(told) = store.take(&whose.name(route), pace(rate)).await
        {
            return told.map_or(Ok(()), Err);
        }
        let refused = match whose {
            Whose::All => self.all.as_ref().map_or(Ok(()), |all| all.check()),
            Whose::Each(scope) => self.each.as_ref().map_or(Ok(()), |each| each.check_key(scope)),
        };
        refused.map_err(|until| until.wait_time_from(TokioClock.now()))
    }

    fn line_up(&self) -> Option<Place<'_>> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = Place(&self.waiting);
        (before < self.rates.queue).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Whose<'_> {
    /// In the store.
    fn name(self, route: &str) -> String {
        match self {
            Self::All => format!("rate:{route}"),
            Self::Each(scope) => {
                let digest: String = scope.digest().iter().map(|byte| format!("{byte:02x}")).collect();
                format!("rate:{route}:{digest}")
            }
        }
    }
}

fn pace(rate: Rate) -> Pace {
    Pace { interval: rate.period / rate.count.get(), burst: rate.burst.get() }
}

fn quota(rate: Rate) -> Option<Quota> {
    Some(Quota::with_period(rate.period / rate.count.get())?.allow_burst(rate.burst))
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
    use crate::store::memory::MemoryStore;

    fn rate(count: u32, burst: u32) -> Option<Rate> {
        let (count, burst) = (NonZeroU32::new(count).unwrap(), NonZeroU32::new(burst).unwrap());
        Some(Rate { count, period: Duration::from_secs(1), burst })
    }

    fn limits(all: Option<Rate>, each: Option<Rate>, queue: u32) -> Limits {
        let limiter = Limiter::new(&Rates { all, each, queue, shared: false }).unwrap();
        Limits(Arc::new(HashMap::from([("r".to_owned(), limiter)])))
    }

    fn store() -> MemoryStore {
        MemoryStore::new(crate::clock::Clock::system())
    }

    fn scope(name: &str) -> Scope {
        Scope::named("test", name)
    }

    async fn take(limits: &Limits, name: &str) -> Result<(), OverRate> {
        limits.take(&store(), "r", &scope(name), Instant::now() + Duration::from_secs(1)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_next_one_learns_how_long_to_wait() {
        let limits = limits(rate(10, 2), None, 0);
        assert!(take(&limits, "a").await.is_ok());
        assert!(take(&limits, "b").await.is_ok());
        let OverRate { wait, by_caller } = take(&limits, "c").await.unwrap_err();
        assert!(!by_caller && wait <= Duration::from_millis(100) && wait > Duration::ZERO, "{wait:?}");
        tokio::time::advance(wait).await;
        assert!(take(&limits, "c").await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn each_caller_has_a_rate_of_his_own_and_takes_nothing_beyond_it_from_the_others() {
        let limits = limits(rate(10, 3), rate(10, 1), 0);
        assert!(take(&limits, "a").await.is_ok());
        for _ in 0..9 {
            assert!(take(&limits, "a").await.unwrap_err().by_caller);
        }
        assert!(take(&limits, "b").await.is_ok() && take(&limits, "c").await.is_ok());
        assert!(!take(&limits, "d").await.unwrap_err().by_caller, "the rate of all");
        limits.forget();
        assert_eq!(limits.0["r"].each.as_ref().unwrap().len(), 4);
        tokio::time::advance(Duration::from_secs(1)).await;
        limits.forget();
        assert!(limits.0["r"].each.as_ref().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_can_wait_so_long_stands_in_line_as_far_as_it_goes() {
        let limits = limits(rate(10, 1), None, 2);
        let start = Instant::now();
        let callers: Vec<_> = (0..5)
            .map(|_| {
                let limits = limits.clone();
                tokio::spawn(async move { take(&limits, "a").await.is_ok() })
            })
            .collect();
        let mut passed = 0;
        for caller in callers {
            passed += usize::from(caller.await.unwrap());
        }
        assert_eq!(passed, 3, "one at once and two in line");
        assert!(start.elapsed() >= Duration::from_millis(200));
        let hurried = limits.take(&store(), "r", &scope("a"), Instant::now() + Duration::from_millis(50)).await;
        assert!(hurried.is_err() && limits.0["r"].waiting.load(Ordering::Relaxed) == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn gateways_of_one_store_keep_a_shared_rate_together() {
        let rates = Rates { all: rate(10, 2), shared: true, ..Rates::default() };
        let gateway = || Limits(Arc::new(HashMap::from([("r".to_owned(), Limiter::new(&rates).unwrap())])));
        let (one, other, fleet, scope) = (gateway(), gateway(), store(), scope("a"));
        let now = Instant::now();
        assert!(one.take(&fleet, "r", &scope, now).await.is_ok());
        assert!(other.take(&fleet, "r", &scope, now).await.is_ok());
        assert!(
            one.take(&fleet, "r", &scope, now).await.is_err() && other.take(&fleet, "r", &scope, now).await.is_err()
        );
    }

    #[tokio::test]
    async fn a_route_without_a_limit_takes_everything() {
        assert!(take(&Limits::default(), "a").await.is_ok());
        assert!(!Limits::default().has("r"));
    }
}
