//! What happens to an operation whose owner went away and whom no caller asks for: taken over, or ended.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use tokio::time::Instant;

use crate::config::Route;
use crate::crash_point::{self, Point};
use crate::engine::Engine;
use crate::engine::buffers::Held;
use crate::engine::call::{resend_rule, retention};
use crate::engine::claim::FirstCaller;
use crate::engine::flight::{Pilot, Seat};
use crate::engine::gates::{Entrant, Permit, may_probe, whom};
use crate::engine::owner::Owner;
use crate::engine::run::{Dispatch, waits_on};
use crate::engine::unreadable::KeptRequest;
use crate::operation::admission::{Admission, Repeat, ResendRule};
use crate::operation::{Operation, OperationId, StateName, StoredRequest};
use crate::retry::decide::LEAST_TRY;
use crate::retry::pause::SOON;
use crate::store::{StoreError, Written};

/// A route that is not in our configuration may be in another gateway's, who can go on with it.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(60);
/// How long a flight of this process has to notice that its operation has no owner.
const OWN_FLIGHT: Duration = Duration::from_secs(1);

/// What came of a look at an operation whose owner is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is seen to, or needs nothing.
    Done,
    /// There is nothing to be done for a while: its route is not ours, or a gate holds it back.
    Later,
}

/// An owner with all that he needs to go on by himself.
pub(super) struct Alone {
    pub pilot: Pilot,
    pub owner: Owner,
    pub route: Arc<Route>,
    pub request: StoredRequest,
    pub deadline: Instant,
    /// What its body takes.
    pub room: Held,
    /// Where it came through the gates already.
    pub permit: Option<Permit>,
}

impl Engine {
    /// Looks at one operation whose lease ended. Goes on with it if that is safe and still wanted, else ends it.
    ///
    /// # Errors
    /// The store did not answer; the next sweep tries again.
    pub async fn recover(self: &Arc<Self>, id: OperationId) -> Result<Look, StoreError> {
        let read = self.store.read(id).await.inspect_err(|error| self.note_unreadable(id, error));
        let Some(found) = read? else { return Ok(Look::Done) };
        let operation = found.operation;
        if self.is_long_lost(&operation) {
            self.shared.flights.give_up(id, operation.identity.fingerprint);
        }
        // Of a repeat in line, which may stand there for long.
        self.shared.flights.overtake(id, operation.identity.fingerprint);
        let Seat::Pilot(pilot) = self.shared.flights.enter(id, operation.identity.fingerprint) else {
            return Ok(Look::Done);
        };
        let kept = self.kept_request(id).await?;
        let is_strange = matches!(kept, KeptRequest::Strange);
        let request = kept.here();
        let route = self.shared.config.routes.named(&operation.identity.route).cloned();
        let rule = self.resend_rule(&operation, request.as_ref());
        if (route.is_none() || is_strange) && self.is_left_to_others(&operation) {
            return Ok(Look::Later);
        }
        self.see_to(pilot, operation, rule, route, request).await
    }

    /// Under which an operation may be sent again: not at all where its request or its route is not here.
    pub(super) fn resend_rule(&self, operation: &Operation, request: Option<&StoredRequest>) -> ResendRule {
        let route = self.shared.config.routes.named(&operation.identity.route);
        route
            .zip(request)
            .map_or(ResendRule::NONE, |(route, request)| resend_rule(route, &method(request), &operation.identity))
    }

    /// Whether another gateway, which has what this one lacks to go on, is still to be waited for.
    pub(super) fn is_left_to_others(&self, operation: &Operation) -> bool {
        let since = operation.due().map_or(operation.deadline, |due| operation.deadline.max(due));
        self.store.now() < since.after(LEFT_TO_OTHERS)
    }

    async fn see_to(
        self: &Arc<Self>,
        pilot: Pilot,
        operation: Operation,
        rule: ResendRule,
        route: Option<Arc<Route>>,
        request: Option<StoredRequest>,
    ) -> Result<Look, StoreError> {
        match (operation.admit(None, &rule, self.store.now()), route, request) {
            (Admission::TakeOver, Some(route), Some(request))
                if operation.may_go_on_alone(&request, &rule, self.store.now()) =>
            {
                if self.is_held_back(&operation, &rule, &route, &request) {
                    return Ok(Look::Later);
                }
                self.go_on(pilot, operation, route, request).await?;
            }
            (Admission::TakeOver | Admission::Lapse, route, _) => {
                self.end_without_owner(&operation, route.as_deref(), rule.repeat).await?;
            }
            _ => {}
        }
        Ok(Look::Done)
    }

    /// A call that its gates would only put off is not taken over for that: it waits as it is, without an event. Not for long,
    /// for it must not be taken for one that was left to others, nor stay in the way of what is due later.
    fn is_held_back(&self, operation: &Operation, rule: &ResendRule, route: &Route, request: &StoredRequest) -> bool {
        let entrant = || Entrant {
            deadline: Instant::now() + route.retry.deadline,
            patience: route.retry.retry_after_max,
            is_new: false,
            ..entrant(operation, rule, route, request)
        };
        let now = self.store.now();
        let is_parked = operation.state.name() == StateName::Waiting && waits_on(operation, now);
        let is_fresh = operation.due().is_some_and(|due| now < due.after(LEFT_TO_OTHERS / 2));
        let lane = self.lane(route).filter(|_| is_parked && is_fresh);
        lane.is_some_and(|lane| lane.gate.would_refuse(&entrant()).is_some())
    }

    /// A flight of ours whose lease another took may wait for its answer for long, and does not see that the other is
    /// lost, too.
    fn is_long_lost(&self, operation: &Operation) -> bool {
        operation.due().is_some_and(|until| until.after(OWN_FLIGHT) <= self.store.now())
    }

    async fn go_on(
        self: &Arc<Self>,
        pilot: Pilot,
        operation: Operation,
        route: Arc<Route>,
        request: StoredRequest,
    ) -> Result<(), StoreError> {
        let (mut room, length) = (self.shared.buffers.for_stored(), request.body.len() as u64);
        if !self.shared.buffers.could_hold(length) {
            return self.end_without_owner(&operation, Some(&route), Repeat::Unsafe).await;
        }
        if !room.grow(length) {
            tracing::warn!(operation = %operation.id, "no room for its body yet (server.buffers)");
            return Ok(());
        }
        let since = Instant::now();
        let deadline = since + route.retry.deadline;
        let Ok(change) = operation.take_over(self.ownership(&route, deadline, false), self.step()) else {
            return Ok(());
        };
        crash_point::reached(Point::BeforeRecovery);
        if self.store.write(&change).await? != Written::Applied {
            return Ok(());
        }
        crash_point::reached(Point::AfterRecovery);
        let (id, name, state) = (operation.id, &route.name, operation.state.name());
        match operation.parked_until() {
            Some(_) => tracing::info!(operation = %id, route = %name, "its time has come"),
            None => tracing::info!(operation = %id, route = %name, %state, "taken over"),
        }
        let owner = self.owner(change.operation, since);
        self.run_alone(Alone { pilot, owner, route, request, deadline, room, permit: None });
        Ok(())
    }

    /// A run without its caller, as a task of its own.
    pub(super) fn run_alone(self: &Arc<Self>, alone: Alone) {
        let Alone { pilot, owner, route, request, deadline, room, permit } = alone;
        pilot.running();
        let engine = Arc::clone(self);
        self.shared.tasks.spawn(async move {
            let credentials = Vec::new();
            let dispatch = Dispatch { route, request, credentials, deadline, earlier: None, permit };
            let conclusion = engine.run(&pilot, owner, dispatch, &mut FirstCaller::nobody()).await;
            pilot.land(conclusion);
            drop(room);
        });
    }

    async fn end_without_owner(
        &self,
        operation: &Operation,
        route: Option<&Route>,
        repeat: Repeat,
    ) -> Result<(), StoreError> {
        let keep = route.map_or_else(
            || self.default_retention(),
            |route| retention(route, repeat, &operation.identity, operation.accepted),
        );
        let Ok(change) = operation.lapse(keep, self.step()) else { return Ok(()) };
        crash_point::reached(Point::BeforeLapse);
        if self.store.write(&change).await? == Written::Applied {
            crash_point::reached(Point::AfterLapse);
            self.count_lapse(&change.operation);
            let state = change.operation.state.name();
            let (id, name) = (operation.id, &operation.identity.route);
            match route {
                Some(_) => tracing::warn!(operation = %id, route = %name, %state, "owner lost"),
                None => tracing::warn!(operation = %id, route = %name, %state, "ended: its route is not in this file"),
            }
        }
        Ok(())
    }

    /// An operation has ended without an owner who counts it.
    pub(super) fn count_lapse(&self, ended: &Operation) {
        if ended.state.name() == StateName::Unknown {
            self.count_unknown(&ended.identity.route);
        }
        let lane = self.lanes.get(&ended.identity.route).filter(|_| ended.dead_letter().is_some());
        lane.iter().for_each(|lane| lane.counters.dead_letters.add());
    }

    /// An operation ends `unknown` without a run that counts it.
    pub(super) fn count_unknown(&self, route: &str) {
        self.lanes.get(route).iter().for_each(|lane| lane.counters.unknown.add());
    }
}

/// A call without its caller, who goes through the gates at once or not at all.
pub(super) fn entrant(operation: &Operation, rule: &ResendRule, route: &Route, request: &StoredRequest) -> Entrant {
    Entrant {
        may_probe: may_probe(rule.repeat),
        whom: whom(&route.upstream, request.headers.iter()),
        scope: operation.identity.scope.clone(),
        deadline: Instant::now() + LEAST_TRY + SOON,
        patience: Duration::ZERO,
        is_new: true,
    }
}

pub(super) fn method(request: &StoredRequest) -> Method {
    Method::from_bytes(request.method.as_bytes()).unwrap_or(Method::POST)
}
