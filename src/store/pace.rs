//! Rates that the gateways of one store keep together, counted in one process by the generic cell rate algorithm.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::store::{Pace, TooMany};

/// By name, the microsecond in which the call after the last one is due.
#[derive(Default)]
pub(super) struct Paces(Mutex<HashMap<String, u64>>);

impl Paces {
    /// Takes one call of each of these rates, or of none of them.
    ///
    /// # Errors
    /// The rate that is used up for the longest.
    pub(super) fn take(&self, rates: &[(String, Pace)], now: Timestamp) -> Result<(), TooMany> {
        let now = now.0.saturating_mul(1000);
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Before it grows; as often as that, looking through it costs next to nothing.
        if paces.capacity() - paces.len() < rates.len() {
            paces.retain(|_, due| *due > now);
            let kept = paces.len();
            paces.reserve(kept + rates.len());
        }
        let next =
            |name: &String, pace: Pace| paces.get(name).copied().unwrap_or(now).max(now).saturating_add(pace.micros());
        let following: Vec<u64> = rates.iter().map(|(name, pace)| next(name, *pace)).collect();
        let ahead = |(pace, following): (Pace, u64)| (following - now).saturating_sub(pace.whole_micros());
        let waits = rates.iter().map(|(_, pace)| *pace).zip(following.iter().copied()).map(ahead);
        if let Some((rate, wait)) = waits.enumerate().max_by_key(|(_, wait)| *wait).filter(|(_, wait)| *wait > 0) {
            return Err(TooMany { rate, wait: Duration::from_micros(wait) });
        }
        paces.extend(rates.iter().map(|(name, _)| name.clone()).zip(following));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(seconds: u64, burst: u32) -> Pace {
        Pace { interval: Duration::from_secs(seconds), burst }
    }

    #[test]
    fn what_one_rate_refuses_takes_nothing_from_another() {
        let (paces, at) = (Paces::default(), Timestamp);
        let both = |name: &str| [("all".to_owned(), pace(1, 1)), (name.to_owned(), pace(30, 2))];
        assert_eq!(paces.take(&both("other"), at(0)), Ok(()));
        for now in [0, 500] {
            let wait = Duration::from_millis(1000 - now);
            assert_eq!(paces.take(&both("own"), at(now)), Err(TooMany { rate: 0, wait }));
        }
        assert_eq!(paces.take(&both("own"), at(1000)), Ok(()));
        assert_eq!(paces.take(&both("own"), at(2000)), Ok(()));
        let longest = TooMany { rate: 1, wait: Duration::from_secs(29) };
        assert_eq!(paces.take(&both("own"), at(2000)), Err(longest), "the rate of all would be whole in a second");
        assert_eq!(paces.take(&both("other"), at(3000)), Ok(()), "it took nothing from that either");
    }
}
