//! A breaker among threads: its lock, its clock, its counts.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::locked;
use crate::engine::status::Counter;
use crate::entropy::Entropy;
use crate::operation::Cause;
use crate::retry::breaker::{Breaker, BreakerPolicy, Health, Ticket};

/// The breaker of one upstream, for all routes that want it the same way.
pub(super) struct Circuit {
    pub(super) policy: BreakerPolicy,
    upstream: String,
    routes: Mutex<BTreeSet<String>>,
    begin: Instant,
    breaker: Mutex<Breaker>,
    last_failure: Mutex<Option<Cause>>,
    openings: Counter,
    pub(super) refused: Counter,
}

impl Circuit {
    pub(super) fn new(upstream: &str, begin: Instant, policy: BreakerPolicy) -> Self {
        Self {
            policy,
            upstream: upstream.to_owned(),
            routes: Mutex::default(),
            begin,
            breaker: Mutex::new(Breaker::new(policy)),
            last_failure: Mutex::default(),
            openings: Counter::default(),
            refused: Counter::default(),
        }
    }

    /// A route goes through it.
    pub(super) fn is_of(&self, route: &str) {
        locked(&self.routes).insert(route.to_owned());
    }

    fn routes(&self) -> Vec<String> {
        locked(&self.routes).iter().cloned().collect()
    }

    pub(super) fn admit(&self, may_probe: bool) -> Result<Ticket, Duration> {
        locked(&self.breaker).admit(may_probe, self.now())
    }

    pub(super) fn look(&self, may_probe: bool) -> Result<(), Duration> {
        locked(&self.breaker).look(may_probe, self.now())
    }

    /// `cause`: what came of the attempt, in the words for operators.
    pub(super) fn report(&self, ticket: Ticket, health: Health, cause: Cause, entropy: &Entropy) {
        let spread = || u32::try_from(entropy.up_to(40)).unwrap_or(0);
        if matches!(health, Health::Failed | Health::Unreached) {
            *locked(&self.last_failure) = Some(cause);
        }
        let (upstream, now) = (&self.upstream, self.now());
        let mut breaker = locked(&self.breaker);
        let (before, _) = breaker.shown(now);
        let opens = breaker.report(ticket, health, now, spread);
        let (after, left) = breaker.shown(now);
        drop(breaker);
        if opens {
            self.openings.add();
            let open_for_ms = crate::clock::millis(left);
            let routes = self.routes().join(", ");
            tracing::warn!(upstream, routes, %cause, open_for_ms, "breaker open: calls get 503 breaker-open and are not sent");
        } else if after == "closed" && before != after {
            tracing::info!(upstream, routes = self.routes().join(", "), "breaker closed: calls are sent again");
        }
    }

    pub(super) fn last_failure(&self) -> Option<Cause> {
        *locked(&self.last_failure)
    }

    pub(super) fn give_back(&self, ticket: Ticket) {
        if ticket.is_probe {
            locked(&self.breaker).give_back(ticket);
        }
    }

    pub(super) fn snapshot(&self) -> CircuitSnapshot {
        let (state, left) = locked(&self.breaker).shown(self.now());
        CircuitSnapshot {
            routes: self.routes(),
            state,
            open_for_ms: crate::clock::millis(left),
            last_failure: self.last_failure().map(|cause| cause.to_string()),
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
    /// That it shuts.
    pub routes: Vec<String>,
    /// `closed`, `open` or `half-open`.
    pub state: &'static str,
    /// Until the first probe.
    pub open_for_ms: u64,
    /// Of an attempt, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// Since the start, as is the next.
    pub openings: u64,
    /// Attempts that were not let through.
    pub refused: u64,
}
