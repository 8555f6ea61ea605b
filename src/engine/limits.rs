//! Rates of routes, for all callers together and for each, counted by governor on tokio's clock. What is over a rate is told
//! so at once, unless the route lets calls wait for their turn.

mod counted;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::config::{Rate, Rates, RouteTable};
use crate::operation::Scope;
use crate::store::{Pace, Store, TooMany};
use counted::Counted;

/// The limiters of all routes that have one, shared by all threads.
#[derive(Clone, Default)]
pub struct Limits(Arc<HashMap<String, Limiter>>);

/// The rates of one route.
struct Limiter {
    rates: Rates,
    counted: Counted,
    lines: Lines,
}

/// How many wait for each rate: who is over his own does not stand in the way of the others.
#[derive(Default)]
struct Lines(Mutex<HashMap<Whose, u32>>);

/// Whose rate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Whose {
    All,
    Each(Scope),
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
struct Place<'a> {
    lines: &'a Lines,
    whose: Whose,
}

impl Limits {
    pub fn of(routes: &RouteTable) -> Self {
        let limited = routes.0.iter().filter_map(|route| Some((route.name.clone(), Limiter::new(&route.rates)?)));
        Self(Arc::new(limited.collect()))
    }

    /// Whether the route is limited at all.
    pub fn has(&self, route: &str) -> bool {
        self.0.contains_key(route)
    }

    /// Takes one call of all the rates that the route has, in time for `until`; what one of them refuses takes nothing from
    /// another.
    ///
    /// # Errors
    /// The rate that it is beyond for the longest, and how long until the next one would be taken.
    pub async fn take(&self, store: &dyn Store, route: &str, scope: &Scope, until: Instant) -> Result<(), OverRate> {
        let Some(limiter) = self.0.get(route) else { return Ok(()) };
        let rates = limiter.of(scope);
        let mut place: Option<Place<'_>> = None;
        while let Err(TooMany { rate, wait }) = limiter.take(store, route, &rates).await {
            let whose = rates.get(rate).map_or(Whose::All, |(whose, _)| whose.clone());
            let over = OverRate { wait, by_caller: whose != Whose::All };
            if Instant::now() + wait >= until {
                return Err(over);
            }
            place = place.filter(|place| place.whose == whose);
            place = place.or_else(|| limiter.lines.line_up(whose, limiter.rates.queue));
            if place.is_none() {
                return Err(over);
            }
            sleep(wait).await;
        }
        Ok(())
    }

    /// Forgets callers who have not come for so long that they have their whole rate again.
    pub fn forget(&self) {
        self.0.values().for_each(|limiter| limiter.counted.forget());
    }
}

impl Limiter {
    fn new(rates: &Rates) -> Option<Self> {
        let is_limited = rates.all.is_some() || rates.each.is_some();
        is_limited.then(|| Self { rates: *rates, counted: Counted::of(rates), lines: Lines::default() })
    }

    /// The rates that a call of this caller counts for.
    fn of(&self, scope: &Scope) -> Vec<(Whose, Pace)> {
        let all = self.rates.all.map(|rate| (Whose::All, pace(rate)));
        let each = self.rates.each.map(|rate| (Whose::Each(scope.clone()), pace(rate)));
        all.into_iter().chain(each).collect()
    }

    /// Of the fleet's rates where there are any. A store that is away leaves each gateway to its own.
    async fn take(&self, store: &dyn Store, route: &str, rates: &[(Whose, Pace)]) -> Result<(), TooMany> {
        if self.rates.shared {
            let named: Vec<_> = rates.iter().map(|(whose, pace)| (whose.name(route), *pace)).collect();
            if let Ok(told) = store.take(&named).await {
                return told;
            }
        }
        self.counted.take(rates.iter().map(|(whose, _)| whose))
    }
}

impl Lines {
    /// A place, if fewer than `most` wait for the same rate.
    fn line_up(&self, whose: Whose, most: u32) -> Option<Place<'_>> {
        let mut lines = self.lock();
        let waiting = lines.get(&whose).copied().unwrap_or_default();
        (waiting < most).then(|| {
            lines.insert(whose.clone(), waiting + 1);
            Place { lines: self, whose }
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Whose, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        if let Some(waiting) = lines.get_mut(&self.whose).filter(|waiting| **waiting > 1) {
            *waiting -= 1;
        } else {
            lines.remove(&self.whose);
        }
    }
}

impl Whose {
    /// In the store.
    fn name(&self, route: &str) -> String {
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
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_told_is_the_longest_wait_and_nothing_is_taken_for_it() {
        let limits = limits(rate(1, 1), rate(2, 2).map(|rate| Rate { period: Duration::from_secs(60), ..rate }), 0);
        assert!(take(&limits, "other").await.is_ok());
        for _ in 0..2 {
            let OverRate { wait, by_caller } = take(&limits, "own").await.unwrap_err();
            assert!(!by_caller && wait <= Duration::from_secs(1), "{wait:?}");
        }
        for _ in 0..2 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(take(&limits, "own").await.is_ok(), "as he was told");
        }
        let OverRate { wait, by_caller } = take(&limits, "own").await.unwrap_err();
        assert!(by_caller && wait > Duration::from_secs(28), "of two the longer: {wait:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_over_his_own_rate_does_not_stand_in_the_line_of_all() {
        let limits = limits(rate(10, 1), rate(1, 1).map(|rate| Rate { period: Duration::from_secs(60), ..rate }), 2);
        assert!(take(&limits, "hog").await.is_ok());
        let hog = |limits: Limits| async move {
            let until = Instant::now() + Duration::from_secs(90);
            limits.take(&store(), "r", &scope("hog"), until).await.map_err(|over| over.by_caller)
        };
        let hogs: Vec<_> = (0..4).map(|_| tokio::spawn(hog(limits.clone()))).collect();
        tokio::task::yield_now().await;
        let (a, b) = tokio::join!(take(&limits, "a"), take(&limits, "b"));
        assert!(a.is_ok() && b.is_ok(), "the line is theirs");
        let mut told = Vec::new();
        for hog in hogs {
            told.push(hog.await.unwrap());
        }
        told.sort();
        assert_eq!(told, [Ok(()), Err(true), Err(true), Err(true)], "two wait, and one of them has the time for it");
        assert!(limits.0["r"].lines.lock().is_empty());
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
        assert!(hurried.is_err() && limits.0["r"].lines.lock().is_empty());
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
