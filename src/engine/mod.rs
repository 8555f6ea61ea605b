//! The life of a call: claim, attempt, decide, settle.
//!
//! Owns the order of things: intent is durable before the first byte goes upstream, and the receipt is durable before
//! the client sees the answer end. What may happen is decided in `operation` and `retry`; here it is done.

pub mod accept;
pub mod answer;
pub mod attempt;
pub mod buffers;
pub mod call;
pub mod claim;
pub mod conclusion;
pub mod flight;
pub mod gates;
pub mod headroom;
pub mod judge;
pub mod limits;
pub mod live;
pub mod lookup;
pub mod meet;
pub mod name;
pub mod owner;
pub mod pass;
pub mod problem;
pub mod recover;
pub mod redrive;
pub mod refusal;
pub mod report;
pub mod run;
pub mod scopes;
pub mod settle;
pub mod status;
pub mod unreadable;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::config::{Callers, Config, OnStoreDown, Route, upstream_target};
use crate::engine::answer::{Answer, Execution, Unguarded};
use crate::engine::buffers::Buffers;
use crate::engine::call::{Call, NamedCall};
use crate::engine::conclusion::Conclusion;
use crate::engine::flight::{Flights, Pilot};
use crate::engine::gates::{Gate, Gates, Permit, Refused, may_probe};
use crate::engine::headroom::Headroom;
use crate::engine::limits::{Limits, OverRate};
use crate::engine::owner::Owner;
use crate::engine::pass::Passage;
use crate::engine::scopes::Scopes;
use crate::engine::status::{Refusal, RouteStatus, Status};
use crate::entropy::Entropy;
use crate::operation::admission::{Admission, Repeat};
use crate::operation::transition::{Ownership, Retention, Step};
use crate::operation::{Operation, OwnerId, Scope, WriteId};
use crate::retry::inbound;
use crate::store::{Store, StoreError};
use crate::upstream::{Client, SendBody};

/// Claims that are taken back at the same time; the rest is left to the end of its lease.
const WITHDRAWALS: usize = 1024;

/// What all runtime threads of a process share.
pub struct Shared {
    pub config: Arc<Config>,
    pub flights: Flights,
    pub limits: Limits,
    pub headroom: Headroom,
    pub scopes: Scopes,
    /// Room for the bodies of requests and answers.
    pub buffers: Buffers,
    /// Places for claims that are being taken back from a store that did not answer.
    pub withdrawals: Arc<Semaphore>,
    pub status: Arc<Status>,
    pub gates: Arc<Gates>,
    pub entropy: Entropy,
    /// Guarded calls: they outlive their callers, and draining waits for them.
    pub tasks: TaskTracker,
}

impl Shared {
    /// Nothing is under way yet.
    pub fn new(config: Arc<Config>, entropy: Entropy) -> Self {
        Self {
            flights: Flights::default(),
            limits: Limits::of(&config.routes),
            headroom: Headroom::new(config.store.max_open.get() as u64),
            scopes: Scopes::default(),
            buffers: Buffers::new(config.server.buffers),
            withdrawals: Arc::new(Semaphore::new(WITHDRAWALS)),
            status: Arc::new(Status::new()),
            gates: Arc::default(),
            tasks: TaskTracker::new(),
            entropy,
            config,
        }
    }
}

/// One runtime thread's engine: its own store connection and its own pools.
pub struct Engine {
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    /// By the name of the route.
    lanes: HashMap<String, Lane>,
}

/// What a route's calls use on one thread.
pub struct Lane {
    pub client: Client,
    pub counters: Arc<RouteStatus>,
    /// Of its upstream, and of all threads.
    pub gate: Gate,
}

impl Engine {
    pub fn new(shared: Arc<Shared>, store: Arc<dyn Store>, lanes: HashMap<String, Lane>) -> Arc<Self> {
        Arc::new(Self { shared, store, lanes })
    }

    /// A write on a guarded route: named, let through the gates, claimed, and made at most once.
    pub async fn guarded(self: &Arc<Self>, call: Call) -> Answer {
        let named = match self.name(call) {
            Ok(named) => named,
            Err(refused) => return *refused,
        };
        self.notice_scope(&named);
        if let Some(refused) = self.unkeepable(&named) {
            return refused.answer();
        }
        let route = Arc::clone(&named.call.route);
        let answer = match route.on_store_down {
            OnStoreDown::Reject => self.through_gates(named).await,
            OnStoreDown::Pass => Box::pin(self.through_gates_or_pass(named)).await,
        };
        if answer.marks.replayed
            && let Some(lane) = self.lane(&route)
        {
            lane.counters.replays.add();
        }
        if answer.is_for_want_of_store() {
            self.note_refusal(&route, Refusal::Store);
        }
        answer
    }

    /// The route says that a call whose claim failed goes on unguarded: nothing was sent so far.
    async fn through_gates_or_pass(self: &Arc<Self>, named: NamedCall) -> Answer {
        let answer = self.through_gates(named.clone()).await;
        if !answer.is_for_want_of_store() || may_run_anew(&named) {
            return answer;
        }
        tracing::warn!(operation = %named.id, route = %named.call.route.name, "store away: call goes unguarded");
        let NamedCall { call, identity, .. } = named;
        call.presence.ends_with_caller(true);
        self.unguarded(Passage {
            target: upstream_target(&call.route, &call.target),
            method: call.method,
            headers: Arc::unwrap_or_clone(call.headers),
            body: SendBody::Full(call.body),
            interim: None,
            key: identity.upstream_key.clone(),
            unguarded: Some(Unguarded::Store),
            deadline: call.deadline,
            scope: call.scope,
            route: call.route,
        })
        .await
    }

    /// Counts a request of the route, whatever becomes of it, and whether its caller says that it is not the first one.
    pub fn count(&self, route: &Route, headers: &HeaderMap) {
        let Some(lane) = self.lane(route) else { return };
        lane.counters.calls.add();
        let earlier_tries = inbound::earlier_tries(headers);
        if earlier_tries > 0 {
            lane.counters.client_retries.add();
            tracing::info!(route = %route.name, earlier_tries, "a caller tries again by itself");
        }
    }

    fn note_refusal(&self, route: &Route, reason: Refusal) {
        self.lane(route).iter().for_each(|lane| lane.counters.refused(reason).add());
    }

    fn notice_scope(&self, named: &NamedCall) {
        let shared = &self.shared;
        if matches!(shared.config.callers, Callers::Credential) && shared.scopes.differ(named) {
            if let Some(lane) = self.lane(&named.call.route) {
                lane.counters.new_scopes.add();
            }
            tracing::info!(operation = %named.id, route = %named.call.route.name, "same key under a new scope");
        }
    }

    fn lane(&self, route: &Route) -> Option<&Lane> {
        self.lanes.get(&route.name)
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A store that does not answer at a gate would not take a claim either, and each question may take its whole timeout.
    async fn through_gates(self: &Arc<Self>, mut named: NamedCall) -> Answer {
        if let Some(replay) = self.replay_at_hand(&named) {
            return replay;
        }
        if let Err(refused) = self.find_former(&mut named).await {
            return refused.answer();
        }
        match named.call.respond_async {
            None => {
                let deadline = named.call.deadline;
                self.fly(named, deadline).await
            }
            Some(wait) => Box::pin(self.fly_ahead(named, wait)).await,
        }
    }

    /// A receipt that needs no wait needs no flight, no claim and no task.
    fn replay_at_hand(&self, named: &NamedCall) -> Option<Answer> {
        let found = self.store.at_hand(named.id)?;
        let row = found.operation.admit(Some(&named.identity.fingerprint), &named.resend_rule(), self.store.now());
        let is_replay = row == Admission::Replay && found.receipt.is_some();
        is_replay.then(|| self.of_record(&found, row).answer())
    }

    /// The gates are for sends that may come, not for looks at the past: an existing record answers first, and needs no
    /// permit. One that has come while the call stood in line answers as well; else it is told what came of the call so far.
    async fn admit(&self, pilot: &Pilot, named: &NamedCall, until: Instant) -> Result<Option<Permit>, Box<Conclusion>> {
        let no_store = |error| Box::new(refusal::store_unavailable(named, &error));
        if !self.shared.limits.has(&named.call.route.name)
            && let Some(permit) = self.admit_at_once(named)
        {
            return Ok(Some(permit));
        }
        let Some(before) = self.before_send(named).await.map_err(no_store)? else { return Ok(None) };
        pilot.in_line();
        let passed = Box::pin(self.stand_in_line(named, until)).await;
        pilot.out_of_line();
        let turned_away = match passed {
            Ok(permit) => return Ok(permit),
            Err(turned_away) => turned_away,
        };
        let no_store = |error| Box::new(refusal::unsent_without_store(named, before, &error));
        let Some(so_far) = self.before_send(named).await.map_err(no_store)? else { return Ok(None) };
        turned_away.reason().into_iter().for_each(|reason| self.note_refusal(&named.call.route, reason));
        Err(Box::new(turned_away.told(named, so_far)))
    }

    fn admit_at_once(&self, named: &NamedCall) -> Option<Permit> {
        self.lane(&named.call.route)?.gate.admit_at_once(may_probe(named.repeat()))
    }

    /// What the gates turn away is not sent, so it must not use up a rate.
    async fn stand_in_line(&self, named: &NamedCall, until: Instant) -> Result<Option<Permit>, TurnedAway> {
        let Call { route, scope, .. } = &named.call;
        let Some(lane) = self.lane(route) else { return Ok(None) };
        if self.shared.limits.has(&route.name) {
            lane.gate.turn_away(&named.entrant(until)).map_err(TurnedAway::AtGate)?;
            self.take_rate(route, scope, until).await.map_err(TurnedAway::ByRate)?;
        }
        if let Some(permit) = self.admit_at_once(named) {
            return Ok(Some(permit));
        }
        let entered = self.pass_gates(&lane.gate, &named.entrant(until)).await;
        entered.map(Some).map_err(TurnedAway::AtGate)
    }

    async fn take_rate(&self, route: &Route, scope: &Scope, until: Instant) -> Result<(), OverRate> {
        self.shared.limits.take(self.store.as_ref(), &route.name, scope, until).await
    }

    /// What came of the call so far, if it would be sent now; `None` where it is answered without that.
    async fn before_send(&self, named: &NamedCall) -> Result<Option<Execution>, StoreError> {
        let Some(found) = self.store.read(named.id).await? else { return Ok(Some(Execution::NotExecuted)) };
        let now = self.store.now();
        let row = found.operation.admit(Some(&named.identity.fingerprint), &named.resend_rule(), now);
        let is_sent = matches!(row, Admission::ClaimAgain | Admission::TakeOver);
        Ok(is_sent.then(|| refusal::execution_at(&found.operation, now)))
    }

    fn owner(&self, operation: Operation, since: Instant) -> Owner {
        let lease = self.shared.config.store.lease;
        let route = &operation.identity.route;
        let counters = self.lanes.get(route).map(|lane| Arc::clone(&lane.counters));
        let counters = counters.unwrap_or_else(|| self.shared.status.route(route));
        Owner::new(self.store.clone(), self.shared.entropy.clone(), lease, operation, since, counters)
    }

    fn ownership(&self, route: &Route, deadline: Instant, accepted: bool) -> Ownership {
        let left = deadline.saturating_duration_since(Instant::now());
        Ownership {
            owner: OwnerId(self.shared.entropy.bytes()),
            lease: self.shared.config.store.lease,
            deadline: self.store.now().after(left),
            destination: route.destination,
            accepted,
        }
    }

    fn step(&self) -> Step {
        Step { now: self.store.now(), write: WriteId(self.shared.entropy.bytes()) }
    }

    fn default_retention(&self) -> Retention {
        let store = &self.shared.config.store;
        Retention { receipts: store.receipts, tombstones: store.tombstones, unknowns: None }
    }

    /// Between half and all of `wait`, so that gateways that began together do not stay together.
    fn jittered(&self, wait: Duration) -> Duration {
        let half = wait / 2;
        half + Duration::from_millis(self.shared.entropy.up_to(crate::clock::millis(half)))
    }
}

/// Why a call got no further than a line.
enum TurnedAway {
    ByRate(OverRate),
    AtGate(Refused),
}

impl TurnedAway {
    /// By which it is counted.
    fn reason(&self) -> Option<Refusal> {
        match self {
            Self::ByRate(_) => Some(Refusal::Rate),
            Self::AtGate(refused) => refused.reason(),
        }
    }

    fn told(self, named: &NamedCall, so_far: Execution) -> Conclusion {
        match self {
            Self::ByRate(over) => refusal::rate_limited(named, so_far, over),
            Self::AtGate(refused) => refusal::held_back(named, so_far, refused),
        }
    }
}

/// Whether an earlier run may have had the other form of the call's key, by which nobody can look without a store: its
/// upstream would take this one for another call.
fn may_run_anew(named: &NamedCall) -> bool {
    named.other_key.is_some() && named.repeat() != Repeat::Harmless
}
