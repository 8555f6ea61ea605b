//! The rates of one route in this process. governor takes from one rate at a time; a call takes from all of its own, or
//! from none.

use std::ops::Add;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::state::keyed::{HashMapStateStore, ShrinkableKeyedStateStore};
use governor::{Quota, RateLimiter};
use tokio::time::Instant;

use super::Whose;
use crate::config::{Rate, Rates};
use crate::store::TooMany;

type Limiter = RateLimiter<Whose, Cells, TokioClock, NoOpMiddleware<Moment>>;

/// What was taken from the rates of a route.
pub(super) struct Counted {
    all: Option<Limiter>,
    each: Option<Limiter>,
    /// A look at all rates and what is taken after it are one step.
    turn: Mutex<()>,
    is_look: Arc<AtomicBool>,
}

/// governor's own cells, which a look leaves as they are.
struct Cells {
    kept: HashMapStateStore<Whose>,
    is_look: Arc<AtomicBool>,
}

impl Counted {
    pub(super) fn of(rates: &Rates) -> Self {
        let is_look = Arc::<AtomicBool>::default();
        let limiter = |rate: Option<Rate>| {
            let cells = Cells { kept: HashMapStateStore::default(), is_look: Arc::clone(&is_look) };
            rate.and_then(quota).map(|quota| RateLimiter::new(quota, cells, TokioClock))
        };
        Self { all: limiter(rates.all), each: limiter(rates.each), turn: Mutex::default(), is_look }
    }

    /// Takes one call of each of these rates, or of none of them.
    ///
    /// # Errors
    /// The rate that is used up for the longest.
    pub(super) fn take<'a>(&self, rates: impl Iterator<Item = &'a Whose> + Clone) -> Result<(), TooMany> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_look.store(true, Ordering::Relaxed);
        let refused = rates
            .clone()
            .enumerate()
            .filter_map(|(rate, whose)| self.take_one(whose).err().map(|wait| TooMany { rate, wait }));
        let longest = refused.max_by_key(|refused| refused.wait);
        self.is_look.store(false, Ordering::Relaxed);
        longest.map_or(Ok(()), Err)?;
        // Time has only gone on since the look.
        rates.for_each(|whose| self.take_one(whose).unwrap_or_default());
        Ok(())
    }

    fn take_one(&self, whose: &Whose) -> Result<(), Duration> {
        let limiter = match whose {
            Whose::All => &self.all,
            Whose::Each(_) => &self.each,
        };
        let taken = limiter.as_ref().map_or(Ok(()), |limiter| limiter.check_key(whose));
        taken.map_err(|until| until.wait_time_from(TokioClock.now()))
    }

    /// Forgets the rates that are whole again.
    pub(super) fn forget(&self) {
        self.all.iter().chain(&self.each).for_each(RateLimiter::retain_recent);
        self.all.iter().chain(&self.each).for_each(RateLimiter::shrink_to_fit);
    }
}

impl StateStore for Cells {
    type Key = Whose;

    fn measure_and_replace<T, F, E>(&self, whose: &Whose, measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let is_look = self.is_look.load(Ordering::Relaxed);
        self.kept.measure_and_replace(whose, |before| {
            let (outcome, after) = measure(before)?;
            Ok((outcome, if is_look { before.unwrap_or_default() } else { after }))
        })
    }
}

impl ShrinkableKeyedStateStore<Whose> for Cells {
    fn retain_recent(&self, drop_below: Nanos) {
        self.kept.retain_recent(drop_below);
    }

    fn shrink_to_fit(&self) {
        self.kept.shrink_to_fit();
    }

    fn len(&self) -> usize {
        self.kept.len()
    }

    fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
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
    use crate::operation::Scope;

    #[tokio::test(start_paused = true)]
    async fn who_comes_no_more_is_forgotten_once_his_rate_is_whole() {
        let one = NonZeroU32::MIN;
        let each = Some(Rate { count: one, period: Duration::from_secs(1), burst: one });
        let counted = Counted::of(&Rates { each, ..Rates::default() });
        for name in ["a", "b"] {
            assert_eq!(counted.take([Whose::Each(Scope::named("test", name))].iter()), Ok(()));
        }
        let known = || counted.each.as_ref().unwrap().len();
        counted.forget();
        assert_eq!(known(), 2);
        tokio::time::advance(Duration::from_secs(2)).await;
        counted.forget();
        assert_eq!(known(), 0);
    }
}
