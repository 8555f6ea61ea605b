//! How long to wait: full jitter, and a spread on top of what an upstream asked for.
//!
//! Owns the arithmetic. Everything is whole nanoseconds that saturate: no exponent, interval or hint overflows.

use std::time::Duration;

use rand::{Rng, RngExt};

/// Least base and floor after a throttle that named no wait: full jitter alone may draw nearly nothing.
const THROTTLE_FLOOR: Duration = Duration::from_secs(1);

/// Bounds of the spread above a hint.
const LEAST_SPREAD: Duration = Duration::from_millis(250);
const MOST_SPREAD: Duration = Duration::from_secs(5);

/// Exponential growth of the ceiling under which a wait is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    floor: Duration,
}

impl Backoff {
    /// Total: a base of zero or beyond `max`, which the configuration refuses, does no harm here.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, floor: Duration::ZERO }
    }

    /// The same after a throttle without a hint: base and floor are at least a second.
    pub fn throttled(self) -> Self {
        Self { base: self.base.max(THROTTLE_FLOOR), max: self.max.max(THROTTLE_FLOOR), floor: THROTTLE_FLOOR }
    }

    /// `min(max, base * 2^n)`; `n` is 0 for the first retry.
    pub fn ceiling(&self, n: u32) -> Duration {
        let grown = nanos(self.base).saturating_mul(2_u64.saturating_pow(n));
        Duration::from_nanos(grown).min(self.max)
    }

    /// A wait without a hint: `random(0, ceiling)`, not below the floor. It is drawn shorter where only `room` is left;
    /// `None` where even the floor does not fit.
    pub fn wait(&self, n: u32, room: Duration, rng: &mut impl Rng) -> Option<Duration> {
        if room < self.floor {
            return None;
        }
        Some(up_to(self.ceiling(n).min(room), rng).max(self.floor))
    }

    /// A wait for a hint: `hint + random(0, min(ceiling, max(250 ms, hint/10), 5 s))`, never below `hint`. The spread is
    /// drawn smaller where only `room` is left; `None` where the hint itself does not fit.
    pub fn wait_for(&self, hint: Duration, n: u32, room: Duration, rng: &mut impl Rng) -> Option<Duration> {
        let left = room.checked_sub(hint)?;
        let spread = LEAST_SPREAD.max(hint / 10).min(MOST_SPREAD).min(self.ceiling(n)).min(left);
        Some(hint.saturating_add(up_to(spread, rng)))
    }
}

/// Uniform in `0..=max`.
fn up_to(max: Duration, rng: &mut impl Rng) -> Duration {
    Duration::from_nanos(rng.random_range(0..=nanos(max)))
}

/// Whole nanoseconds up to 584 years; longer ones stay there.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
