//! A breaker among threads: its lock, its clock, its counts.

use std::sync::Mutex;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::locked;
use crate::engine::status::Counter;
use crate::entropy::Entropy;
use crate::retry::breaker::{Breaker, BreakerPolicy, Health, Ticket};

/// The breaker of one upstream, for all routes that want it the same way.
pub(super) struct Circuit {
    pub(super) policy: BreakerPolicy,
    upstream: String,
    begin: Instant,
    breaker: Mutex<Breaker>,
    openings: Counter,
    pub(super) refused: Counter,
}

impl Circuit {
    pub(super) fn new(upstream: &str, begin: Instant, policy: BreakerPolicy) -> Self {
        Self {
            policy,
            upstream: upstream.to_owned(),
            begin,
            breaker: Mutex::new(Breaker::new(policy)),
            openings: Counter::default(),
            refused: Counter::default(),
        }
    }

    pub(super) fn admit(&self, may_probe: bool) -> Result<Ticket, Duration> {
        locked(&self.breaker).admit(may_probe, self.now())
    }

    pub(super) fn look(&self, may_probe: bool) -> Result<(), Duration> {
        locked(&self.breaker).look(may_probe, self.now())
    }

    pub(super) fn report(&self, ticket: Ticket, health: Health, entropy: &Entropy) {
        let spread = || u32::try_from(entropy.up_to(40)).unwrap_or(0);
        if locked(&self.breaker).report(ticket, health, self.now(), spread) {
            self.openings.add();
            tracing::warn!(upstream = self.upstream, "breaker open: calls get 503 breaker-open and are not sent");
        }
    }

    pub(super) fn give_back(&self, ticket: Ticket) {
        if ticket.is_probe {
            locked(&self.breaker).give_back(ticket);
        }
    }

    pub(super) fn snapshot(&self) -> CircuitSnapshot {
        let (state, left) = locked(&self.breaker).shown(self.now());
        CircuitSnapshot {
            state,
            open_for_ms: crate::clock::millis(left),
            openings: self.openings.get(),
            refused: self.refused.get(),
        }
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }
}

/// A breaker at one moment.
#[derive(Debug, Serialize)]
pub struct CircuitSnapshot {
    /// `closed`, `open` or `half-open`.
    pub state: &'static str,
    /// Until the first probe.
    pub open_for_ms: u64,
    /// Since the start, as is the next.
    pub openings: u64,
    /// Attempts that were not let through.
    pub refused: u64,
}
