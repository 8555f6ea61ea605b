//! What stands between calls and an upstream, whatever route and thread they are on: it bounds what an outage can cost.
//!
//! The rules are in `retry` and pure; here they are kept, and told the time.

mod circuit;
pub mod command;
mod entry;
mod look;
mod pausing;
mod places;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::config::{self, Route};
use crate::engine::status::Counter;
use crate::entropy::Entropy;
use crate::operation::Cause;
use crate::operation::admission::Repeat;
use crate::operation::outcome::Fact;
use crate::retry::RetryPolicy;
use crate::retry::breaker::{BreakerPolicy, Ticket, health};
use crate::retry::budget::{Budget, Ledger};
use crate::retry::decide::{Decision, Situation, Stop, decide};
use circuit::{Circuit, CircuitSnapshot};
pub(super) use entry::{Came, Entrant, Refused, whom};
use pausing::{Canary, PauseSnapshot, Pausing};
pub use places::Place;
use places::Places;

/// The gates of all upstreams and routes, by their names.
#[derive(Default)]
pub struct Gates {
    upstreams: Mutex<BTreeMap<String, Arc<Upstream>>>,
    routes: Mutex<BTreeMap<String, Arc<Places>>>,
    /// By the address of the service: upstreams with other names may lead to the same one.
    pauses: Mutex<BTreeMap<String, Arc<Pausing>>>,
}

/// What all routes to one upstream share.
struct Upstream {
    name: String,
    /// From which its moments are counted.
    begin: Instant,
    ledger: Mutex<Ledger>,
    /// Retries that the budget did not pay for.
    refused_retries: Counter,
    /// One for each way in which its routes want it.
    circuits: Mutex<Vec<Arc<Circuit>>>,
    pausing: Arc<Pausing>,
}

/// The way of one route to its upstream.
#[derive(Clone)]
pub struct Gate {
    upstream: Arc<Upstream>,
    /// `None` where nothing opens it.
    circuit: Option<Arc<Circuit>>,
    /// Of the route itself.
    places: Arc<Places>,
}

/// Leave for one attempt. A drop without a report says nothing about the upstream.
pub struct Permit {
    /// Until the report.
    circuit: Option<(Arc<Circuit>, Ticket)>,
    /// Of the pauses that this attempt ends, if all goes well.
    canaries: Vec<Canary>,
    /// Until the body of the answer has ended.
    place: Option<Place>,
    since: Instant,
}

impl Gates {
    /// The gate of a route. Those to one upstream share what they can.
    pub fn of(&self, route: &Route) -> Gate {
        let name = &route.upstream.name;
        let pausing = self.pauses_of(&route.upstream);
        let upstream = || Arc::new(Upstream::new(name, pausing));
        let upstream = Arc::clone(locked(&self.upstreams).entry(name.clone()).or_insert_with(upstream));
        let places = || Arc::new(Places::new(route.concurrency));
        let places = Arc::clone(locked(&self.routes).entry(route.name.clone()).or_insert_with(places));
        Gate { circuit: upstream.circuit(&route.breaker, &route.name), upstream, places }
    }

    fn pauses_of(&self, upstream: &config::Upstream) -> Arc<Pausing> {
        let scheme = if upstream.tls { "https" } else { "http" };
        let place = format!("{scheme}://{}", upstream.authority);
        let pausing = || Arc::new(Pausing::new(place.clone()));
        Arc::clone(locked(&self.pauses).entry(place.clone()).or_insert_with(pausing))
    }

    fn all(&self) -> Vec<Arc<Pausing>> {
        locked(&self.pauses).values().map(Arc::clone).collect()
    }

    /// How many calls of each route are at its upstream, how many wait for that, and how many were refused.
    pub fn places(&self) -> BTreeMap<String, PlacesSnapshot> {
        let of = |places: &Arc<Places>| {
            let (under_way, queued) = places.counts();
            PlacesSnapshot { under_way, queued, refused: places.refused.get() }
        };
        locked(&self.routes).iter().map(|(name, places)| (name.clone(), of(places))).collect()
    }

    /// All of them as they stand now.
    pub fn snapshot(&self) -> BTreeMap<String, GateSnapshot> {
        locked(&self.upstreams).iter().map(|(name, upstream)| (name.clone(), upstream.snapshot())).collect()
    }
}

impl Upstream {
    fn new(name: &str, pausing: Arc<Pausing>) -> Self {
        Self {
            name: name.to_owned(),
            begin: Instant::now(),
            ledger: Mutex::default(),
            refused_retries: Counter::default(),
            circuits: Mutex::default(),
            pausing,
        }
    }

    fn circuit(&self, policy: &BreakerPolicy, route: &str) -> Option<Arc<Circuit>> {
        if !policy.may_open() {
            return None;
        }
        let mut circuits = locked(&self.circuits);
        let known = circuits.iter().find(|circuit| circuit.policy == *policy).map(Arc::clone);
        let circuit = known.unwrap_or_else(|| {
            let new = Arc::new(Circuit::new(&self.name, self.begin, *policy));
            circuits.push(Arc::clone(&new));
            new
        });
        circuit.is_of(route);
        Some(circuit)
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn snapshot(&self) -> GateSnapshot {
        let [first_attempts, retries] = locked(&self.ledger).sums(self.now());
        let budget = BudgetSnapshot { first_attempts, retries, refused_retries: self.refused_retries.get() };
        let breakers = locked(&self.circuits).iter().map(|circuit| circuit.snapshot()).collect();
        GateSnapshot { budget, breakers, pauses: self.pausing.snapshot() }
    }
}

impl Gate {
    /// Leave for an attempt where nothing holds it back.
    pub fn admit_at_once(&self, may_probe: bool) -> Option<Permit> {
        if self.upstream.pausing.has_any() {
            return None;
        }
        let mut permit = self.admit(may_probe).ok()?;
        permit.place = Some(self.places.take_at_once()?);
        Some(permit)
    }

    /// Whether the breaker would let an attempt through by now, or how long until that is worth asking. It takes nothing.
    pub(super) fn look(&self, may_probe: bool) -> Result<(), Duration> {
        self.circuit.as_ref().map_or(Ok(()), |circuit| circuit.look(may_probe))
    }

    /// Leave by the breaker, or how long until it is worth asking again.
    fn admit(&self, may_probe: bool) -> Result<Permit, Duration> {
        let circuit = match &self.circuit {
            Some(circuit) => Some((Arc::clone(circuit), circuit.admit(may_probe)?)),
            None => None,
        };
        Ok(Permit { circuit, canaries: Vec::new(), place: None, since: Instant::now() })
    }

    /// Counts an attempt of a run; the first ones are what retries are a share of.
    pub fn count(&self, tries: u32) {
        if tries == 1 {
            locked(&self.upstream.ledger).begin(self.upstream.now());
        }
    }

    /// What follows an attempt, as far as the gates let it. `may_probe`: the call is no harm to anybody as a probe.
    pub fn decide(&self, situation: &Situation, may_probe: bool, policy: &RetryPolicy, entropy: &Entropy) -> Decision {
        let decision = entropy.with(|rng| decide(situation, policy, rng));
        if matches!(decision, Decision::End { .. } | Decision::Retry { parked: true, .. }) {
            return decision;
        }
        if let Some((circuit, Err(wait))) = self.circuit.as_ref().map(|circuit| (circuit, circuit.look(may_probe))) {
            circuit.refused.add();
            return situation.put_off(decision, wait, Stop::Breaker);
        }
        // What may be put off is paid for when it is made.
        if situation.may_park || !decision.is_charged(&situation.run) || self.charge(&policy.budget) {
            return decision;
        }
        situation.stopped(Stop::Budget)
    }

    /// Has the budget pay for a retry.
    pub(super) fn charge(&self, budget: &Budget) -> bool {
        let is_paid = locked(&self.upstream.ledger).withdraw(budget, self.upstream.now());
        if !is_paid {
            self.upstream.refused_retries.add();
        }
        is_paid
    }

    /// The breaker has turned an attempt away.
    fn refused(&self, wait: Duration) -> Refused {
        self.circuit.iter().for_each(|circuit| circuit.refused.add());
        Refused::BreakerOpen(self.last_failure(), wait)
    }

    fn last_failure(&self) -> Option<Cause> {
        self.circuit.as_ref().and_then(|circuit| circuit.last_failure())
    }
}

impl Permit {
    /// The place, for as long as the body of the answer is on its way.
    pub(super) fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }

    /// Lets those go on who wait for what this attempt comes to, for it takes its time. What it comes to counts all the same.
    pub(super) fn let_go(&mut self) {
        self.canaries.iter().for_each(Canary::give_back);
        if let Some((circuit, ticket)) = &mut self.circuit {
            circuit.give_back(*ticket);
            ticket.is_probe = false;
        }
    }

    /// Says what the attempt came to. Only the first report counts.
    fn report(&mut self, fact: &Fact, policy: &RetryPolicy, entropy: &Entropy) {
        let Some((circuit, ticket)) = self.circuit.take() else { return };
        // A caller in a hurry must not shut an upstream for all.
        let had_its_time = self.since.elapsed() >= policy.attempt_timeout / 2;
        circuit.report(ticket, health(fact, had_its_time), fact.cause(), entropy);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some((circuit, ticket)) = self.circuit.take() {
            circuit.give_back(ticket);
        }
    }
}

/// A probe is a call that comes to no harm if it runs twice.
pub(super) fn may_probe(repeat: Repeat) -> bool {
    repeat != Repeat::Unsafe
}

/// The gates of one upstream at one moment.
#[derive(Debug, Serialize)]
pub struct GateSnapshot {
    pub budget: BudgetSnapshot,
    pub breakers: Vec<CircuitSnapshot>,
    pub pauses: Vec<PauseSnapshot>,
}

/// The places of a route at one moment.
#[derive(Debug, Serialize)]
pub struct PlacesSnapshot {
    pub under_way: u32,
    pub queued: usize,
    /// Since the start.
    pub refused: u64,
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
