//! How many retries one upstream is given: a share of its traffic, and a few for when there is little of it.
//!
//! A retry counts when it is scheduled, so that those that wait are known to the next one that asks.

use std::time::Duration;

use crate::retry::window::Window;

/// How far back the ledger looks: as long as a floor may be saved up, and then spent at once.
pub const SPAN: Duration = Duration::from_secs(5);

/// `routes.retry.budget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Retries for each hundred first attempts.
    pub percent: u32,
    /// Retries in each second beside these.
    pub per_second: u32,
}

/// First attempts and retries of one upstream in the last seconds, whatever route they took.
#[derive(Clone, Debug)]
pub struct Ledger(Window<2>);

impl Ledger {
    /// Nothing was sent yet.
    pub fn new() -> Self {
        Self(Window::new(SPAN))
    }

    /// A run makes its first attempt.
    pub fn begin(&mut self, now: Duration) {
        self.0.add([1, 0], now);
    }

    /// Charges a retry; false if the budget has none left, and then nothing is charged.
    pub fn withdraw(&mut self, budget: &Budget, now: Duration) -> bool {
        let [first, retries] = self.0.sums(now);
        // In hundredths of a retry.
        let share = first.saturating_mul(budget.percent.into());
        let floor = u64::from(budget.per_second).saturating_mul(SPAN.as_secs() * 100);
        let is_left = retries.saturating_mul(100) < share.saturating_add(floor);
        if is_left {
            self.0.add([0, 1], now);
        }
        is_left
    }

    /// First attempts and retries in the last seconds.
    pub fn sums(&self, now: Duration) -> [u64; 2] {
        self.0.sums(now)
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILT_IN: Budget = Budget { percent: 20, per_second: 3 };

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn withdrawn(ledger: &mut Ledger, budget: Budget, asked: usize, now: Duration) -> usize {
        (0..asked).filter(|_| ledger.withdraw(&budget, now)).count()
    }

    #[test]
    fn retries_are_a_share_of_the_traffic_above_a_floor() {
        let mut ledger = Ledger::new();
        assert_eq!(withdrawn(&mut ledger, BUILT_IN, 100, ms(0)), 15);
        (0..200).for_each(|_| ledger.begin(ms(10)));
        assert_eq!(withdrawn(&mut ledger, BUILT_IN, 100, ms(20)), 40);
        assert_eq!(ledger.sums(ms(20)), [200, 55]);
    }

    #[test]
    fn a_lone_call_gets_all_its_retries() {
        let mut ledger = Ledger::new();
        ledger.begin(ms(0));
        for at in [100, 400, 900, 2900] {
            assert!(ledger.withdraw(&BUILT_IN, ms(at)), "{at}");
        }
    }

    #[test]
    fn in_the_long_run_the_floor_is_what_it_says() {
        let mut ledger = Ledger::new();
        let retries: usize = (0..600).map(|tick| withdrawn(&mut ledger, BUILT_IN, 10, ms(tick * 100))).sum();
        assert!((175..=195).contains(&retries), "{retries} in a minute");
    }

    #[test]
    fn a_budget_of_nothing_gives_nothing() {
        let mut ledger = Ledger::new();
        (0..1000).for_each(|_| ledger.begin(ms(0)));
        assert_eq!(withdrawn(&mut ledger, Budget { percent: 0, per_second: 0 }, 9, ms(0)), 0);
        let wide = Budget { percent: u32::MAX, per_second: u32::MAX };
        assert_eq!(withdrawn(&mut ledger, wide, 5000, ms(0)), 5000);
    }
}
