//! What stands between calls and an upstream, whatever route and thread they are on: it bounds what an outage can cost.
//!
//! The rules are in `retry` and pure; here they are kept, and told the time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::engine::status::Counter;
use crate::entropy::Entropy;
use crate::retry::RetryPolicy;
use crate::retry::budget::{Budget, Ledger};
use crate::retry::decide::{Decision, Situation, Stop, decide};

/// The gates of all upstreams, by their names.
#[derive(Default)]
pub struct Gates(Mutex<BTreeMap<String, Arc<Gate>>>);

/// The gate of one upstream.
pub struct Gate {
    /// From which its moments are counted.
    begin: Instant,
    ledger: Mutex<Ledger>,
    /// Retries that the budget did not pay for.
    refused_retries: Counter,
}

impl Gates {
    /// The gate of an upstream: the same one for the same name.
    pub fn of(&self, upstream: &str) -> Arc<Gate> {
        Arc::clone(locked(&self.0).entry(upstream.to_owned()).or_insert_with(|| Arc::new(Gate::new())))
    }

    /// All of them as they stand now.
    pub fn snapshot(&self) -> BTreeMap<String, GateSnapshot> {
        locked(&self.0).iter().map(|(name, gate)| (name.clone(), gate.snapshot())).collect()
    }
}

impl Gate {
    fn new() -> Self {
        Self { begin: Instant::now(), ledger: Mutex::default(), refused_retries: Counter::default() }
    }

    /// Counts an attempt of a run; the first ones are what retries are a share of.
    pub fn count(&self, tries: u32) {
        if tries == 1 {
            locked(&self.ledger).begin(self.now());
        }
    }

    /// What follows an attempt, within the upstream's budget.
    pub fn decide(&self, situation: &Situation, policy: &RetryPolicy, entropy: &Entropy) -> Decision {
        let decision = entropy.with(|rng| decide(situation, policy, rng));
        if !decision.is_charged(&situation.run) || self.withdraw(&policy.budget) {
            return decision;
        }
        self.refused_retries.add();
        situation.stopped(Stop::Budget)
    }

    fn withdraw(&self, budget: &Budget) -> bool {
        locked(&self.ledger).withdraw(budget, self.now())
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn snapshot(&self) -> GateSnapshot {
        let [first_attempts, retries] = locked(&self.ledger).sums(self.now());
        let budget = BudgetSnapshot { first_attempts, retries, refused_retries: self.refused_retries.get() };
        GateSnapshot { budget }
    }
}

/// The gate of one upstream at one moment.
#[derive(Debug, Serialize)]
pub struct GateSnapshot {
    pub budget: BudgetSnapshot,
}

/// Of the last five seconds, but for what was refused: that is counted since the start.
#[derive(Debug, Serialize)]
pub struct BudgetSnapshot {
    pub first_attempts: u64,
    pub retries: u64,
    pub refused_retries: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
