//! Rates that the gateways of one store keep together, counted in one process.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::store::Pace;

/// By name, the microsecond in which the call after the last one is due.
#[derive(Default)]
pub(super) struct Paces(Mutex<HashMap<String, u64>>);

impl Paces {
    /// Takes one call, or says after what time one would be taken.
    pub(super) fn take(&self, name: &str, pace: Pace, now: Timestamp) -> Option<Duration> {
        let now = now.0.saturating_mul(1000);
        let interval = pace.interval_micros();
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Before it grows; as often as that, looking through it costs next to nothing.
        if paces.len() == paces.capacity() {
            paces.retain(|_, due| *due > now);
            let kept = paces.len();
            paces.reserve(kept + 1);
        }
        let following = paces.get(name).copied().unwrap_or(now).max(now).saturating_add(interval);
        let ahead = (following - now).saturating_sub(interval.saturating_mul(pace.burst.into()));
        if ahead > 0 {
            return Some(Duration::from_micros(ahead));
        }
        paces.insert(name.to_owned(), following);
        None
    }
}
