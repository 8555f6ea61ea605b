//! One run of an operation by its owner: attempt, decide, wait, and again, until it ends.
//!
//! First runs, repeats and recovery after a crash all go through here. Exits: the last write gives the lease up; a
//! crash or a lost lease leaves the record to whoever looks at it next.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::clock::{Timestamp, millis};
use crate::config::Route;
use crate::crash_point::{self, Point};
use crate::engine::attempt::{Attempted, Outgoing};
use crate::engine::buffers::Held;
use crate::engine::call::{resend_rule, retention};
use crate::engine::claim::FirstCaller;
use crate::engine::conclusion::Conclusion;
use crate::engine::flight::Pilot;
use crate::engine::gates::{Came, Entrant, Permit, Refused, may_probe};
use crate::engine::owner::{Owner, WriteError};
use crate::engine::refusal;
use crate::engine::report::Told;
use crate::engine::settle::Word;
use crate::engine::{Engine, Lane};
use crate::operation::admission::ResendRule;
use crate::operation::outcome::Outcome;
use crate::operation::transition::{Ended, Retention};
use crate::operation::{Cause, Operation, OperationId, State, StateName, StoredRequest};
use crate::retry::decide::{self, Decision, LEAST_TRY, LONGEST_PARKING, LONGEST_PUT_OFF, Situation, Stop};
use crate::retry::pause::Whom;
use crate::store::Found;

/// A send that never began, for its intent could not be made durable.
const UNSENT: Ended = Ended { cause: Cause::Store, may_have_run: false };

/// An owner with everything that its attempts need.
pub struct Run<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) lane: &'a Lane,
    /// Whose passengers wait for the end.
    pub(super) pilot: &'a Pilot,
    pub(super) owner: Owner,
    pub(super) route: Arc<Route>,
    pub(super) outgoing: Outgoing,
    pub(super) rule: ResendRule,
    pub(super) keep: Retention,
    pub(super) deadline: Instant,
    pub(super) tries: decide::Run,
    /// For the next attempt, or the one under way.
    pub(super) permit: Option<Permit>,
    /// Of these tries, those that had a connection to send on; of earlier owners all that were counted.
    pub(super) sends: u32,
    /// What the body of the present answer takes.
    pub(super) room: Held,
    /// The next attempt must not use a pooled connection.
    pub(super) new_connection: bool,
    /// The write that opened the run has counted its first attempt.
    pub(super) counted: bool,
    /// The same session and step ran before with another payload.
    pub(super) earlier: Option<OperationId>,
    pub(super) looking: Option<JoinHandle<Option<OperationId>>>,
}

/// What an owner is to send, where, and until when.
pub(super) struct Dispatch {
    pub route: Arc<Route>,
    pub request: StoredRequest,
    /// The caller's own; a run without its caller has none.
    pub credentials: Vec<(HeaderName, HeaderValue)>,
    pub deadline: Instant,
    /// The look for an earlier call of the same step, which goes on beside the run.
    pub earlier: Option<JoinHandle<Option<OperationId>>>,
    /// For the first attempt, where its caller came through the gates.
    pub permit: Option<Permit>,
}

impl Engine {
    /// The run of an owner, from wherever its record stands to its end.
    pub(super) async fn run(
        self: &Arc<Self>,
        pilot: &Pilot,
        owner: Owner,
        dispatch: Dispatch,
        caller: &mut FirstCaller,
    ) -> Conclusion {
        let outgoing = Outgoing::new(&dispatch, owner.operation.identity.upstream_key.as_deref());
        if let (Some(lane), Some(outgoing)) = (self.lane(&dispatch.route), outgoing) {
            return Run::new(self, lane, pilot, (owner, dispatch), outgoing).run(caller).await;
        }
        self.end_unsendable(pilot, owner, &dispatch.route).await
    }
}

impl<'a> Run<'a> {
    /// A run that begins, or goes on from where an earlier owner stopped.
    fn new(
        engine: &'a Arc<Engine>,
        lane: &'a Lane,
        pilot: &'a Pilot,
        (owner, dispatch): (Owner, Dispatch),
        outgoing: Outgoing,
    ) -> Self {
        let Dispatch { route, deadline, earlier, permit, .. } = dispatch;
        let operation = &owner.operation;
        let counted = operation.opened_with_send();
        let tries = operation.attempts_of_run().saturating_sub(u32::from(counted));
        Self {
            engine,
            lane,
            pilot,
            keep: retention(&route, route.repeat_for(&outgoing.method), &operation.identity, operation.accepted),
            rule: resend_rule(&route, &outgoing.method, &operation.identity),
            tries: decide::Run::after(tries),
            permit,
            sends: tries,
            room: engine.shared.buffers.for_answer(),
            new_connection: false,
            counted,
            earlier: None,
            looking: earlier,
            owner,
            route,
            outgoing,
            deadline,
        }
    }

    /// Until the operation has an end that is durable, or belongs to somebody else.
    pub async fn run(&mut self, caller: &mut FirstCaller) -> Conclusion {
        self.wait_until_due().await;
        // A wait was begun for one more attempt, which may be one that does not count.
        let is_decided = self.owner.operation.state.name() == StateName::Waiting;
        if self.tries.tries >= self.route.retry.max_attempts && !is_decided {
            return Box::pin(self.give_up(None, caller)).await;
        }
        if let Err(refused) = self.enter().await {
            return match Box::pin(self.put_off(&refused)).await {
                Some(parked) => parked,
                None => Box::pin(self.give_up(Some(refused), caller)).await,
            };
        }
        loop {
            let attempted = match self.attempt().await {
                Ok(attempted) => attempted,
                Err(error) => return Box::pin(self.broken_off(error, UNSENT, caller)).await,
            };
            let (attempted, decision) = self.weigh(attempted).await;
            let is_charged = decision.is_charged(&self.tries);
            match decision {
                Decision::Retry { wait, ended, parked: true, .. } => {
                    drop(attempted.put_aside().await);
                    return Box::pin(self.park(wait, ended)).await;
                }
                Decision::Retry { wait, ended, new_connection, run, parked: false } => {
                    let last = attempted.put_aside().await;
                    self.room.give_back();
                    (self.new_connection, self.tries) = (new_connection, run);
                    if let Err(error) = self.pause(wait, ended).await {
                        return Box::pin(self.broken_off(error, ended, caller)).await;
                    }
                    if let Err(refused) = self.admit_retry(is_charged).await {
                        if let Some(parked) = Box::pin(self.put_off(&refused)).await {
                            return parked;
                        }
                        let told = last.told(Some(refused.stop(&self.route.retry)));
                        return Box::pin(self.end_without_receipt(ended, told, caller)).await;
                    }
                }
                Decision::End { ending, stop } => {
                    return self.end(attempted, ending, stop, caller).await;
                }
            }
        }
    }

    /// Ends a run before it sends anything: a gate holds it back, or earlier owners have used up its tries. Those go on
    /// counting, for a call that takes its gateway down is not sent for ever.
    async fn give_up(&mut self, refused: Option<Refused>, caller: &mut FirstCaller) -> Conclusion {
        let cause = refused.map_or(Cause::OwnerLost, |_| Cause::HeldBack);
        let stop = refused.map_or(Stop::Exhausted, |refused| refused.stop(&self.route.retry));
        let ended = Ended { cause, may_have_run: false };
        let reason = refused.and_then(|refused| refused.reason()).filter(|_| !self.owner.operation.may_have_run);
        reason.into_iter().for_each(|reason| self.lane.counters.refused(reason).add());
        let outcome = Outcome::NotSent { cause, reused_connection: false };
        let failure = Some(format!("{cause}, and this run has sent nothing"));
        let told = Told { answer: None, hint: None, refused, failure, outcome, stop: Some(stop) };
        self.end_without_receipt(ended, told, caller).await
    }

    /// A run that came through the gates has a permit. One that goes on with what another began waits for it, and has its
    /// retry paid for, which nobody did when it was put off until now.
    async fn enter(&mut self) -> Result<(), Refused> {
        while self.permit.is_none() {
            match self.admit().await {
                Err(Refused::BreakerOpen(_, wait)) if Instant::now() + wait + LEAST_TRY <= self.deadline => {
                    self.wait_for_breaker(Instant::now() + wait).await;
                }
                admitted => admitted?,
            }
        }
        let operation = &self.owner.operation;
        let was_parked = operation.accepted && operation.state.name() == StateName::Waiting && self.tries.tries > 0;
        self.pay(was_parked)
    }

    /// Until then, or until the calls of others have closed it.
    async fn wait_for_breaker(&mut self, until: Instant) {
        while Instant::now() < until && self.lane.gate.look(may_probe(self.rule.repeat)).is_err() {
            let next = until.min(Instant::now() + Duration::from_secs(1));
            self.owner.holding(pin!(sleep_until(next))).await;
        }
    }

    /// What somebody waits for was paid for when it was decided.
    async fn admit_retry(&mut self, is_charged: bool) -> Result<(), Refused> {
        self.admit().await?;
        self.pay(is_charged && self.owner.operation.accepted)
    }

    fn pay(&mut self, is_charged: bool) -> Result<(), Refused> {
        if is_charged && !self.lane.gate.charge(&self.route.retry.budget) {
            self.permit = None;
            return Err(Refused::OverBudget);
        }
        Ok(())
    }

    /// A retry waits for a pause and not for a breaker: there its upstream's last answer is worth more to the caller.
    async fn admit(&mut self) -> Result<(), Refused> {
        self.permit = self.lane.gate.admit_at_once(may_probe(self.rule.repeat));
        if self.permit.is_none() {
            let entrant = Entrant {
                may_probe: may_probe(self.rule.repeat),
                whom: self.whom(),
                scope: self.owner.operation.identity.scope.clone(),
                deadline: self.deadline,
                patience: self.route.retry.retry_after_max,
                is_new: false,
            };
            let entering = Box::pin(self.engine.pass_gates(&self.lane.gate, &entrant));
            self.permit = Some(self.owner.holding(entering).await?);
        }
        Ok(())
    }

    fn whom(&self) -> Whom {
        self.outgoing.whom(&self.route.upstream)
    }

    /// Decides by the head of an answer, unless that leaves open what it means; one that ends the run is read, and if its
    /// body is cut, or its trailers say something else, weighed again.
    async fn weigh(&mut self, attempted: Attempted) -> (Attempted, Decision) {
        let attempted = if attempted.is_open() { self.read(attempted).await } else { attempted };
        self.lane.counters.note(&attempted.judgement);
        let decision = self.decide(&attempted);
        if matches!(decision, Decision::Retry { .. }) || attempted.answer.is_none() {
            return (attempted, decision);
        }
        let by_head = attempted.outcome;
        let attempted = self.read(attempted).await;
        let decision = if attempted.outcome == by_head { decision } else { self.decide(&attempted) };
        (attempted, decision)
    }

    fn decide(&mut self, attempted: &Attempted) -> Decision {
        let (operation, entropy) = (&self.owner.operation, &self.engine.shared.entropy);
        let (now, advice) = (self.owner.store().now(), attempted.judgement.advice);
        let fact = attempted.judgement.fact(&attempted.outcome);
        let (outgoing, upstream, policy) = (&self.outgoing, &self.route.upstream, &self.route.retry);
        let came = Came { fact: &fact, hint: advice.hint, whom: &|| outgoing.whom(upstream), policy };
        self.engine.report(&self.lane.gate, self.permit.as_mut(), &came);
        let situation = Situation {
            fact,
            repeat: self.rule.repeat_at(operation.first_sent_at, now),
            deletes: self.outgoing.method == http::Method::DELETE,
            may_have_run: operation.may_have_run,
            vetoed: advice.vetoed,
            promoted: advice.promoted,
            replayable: true,
            hint: advice.hint,
            may_park: operation.accepted,
            left: self.deadline.saturating_duration_since(Instant::now()),
            run: self.tries,
        };
        self.lane.gate.decide(&situation, may_probe(situation.repeat), &self.route.retry, entropy)
    }

    /// The wait is in the record before it begins, so that whoever takes over keeps to it. Where nothing was sent and
    /// nothing is said to have been, the record has nothing to learn.
    async fn pause(&mut self, wait: Duration, ended: Ended) -> Result<(), WriteError> {
        let (lease, store) = (self.owner.lease(), self.owner.store().clone());
        self.permit = None;
        crash_point::reached(Point::BeforeWait);
        if self.owner.operation.state.name() == StateName::Sent {
            let not_before = store.now().after(wait);
            self.owner.write(|operation, step| operation.wait(ended, not_before, lease, step)).await?;
        }
        crash_point::reached(Point::InWait);
        self.owner.holding(pin!(sleep(wait))).await;
        crash_point::reached(Point::AfterWait);
        Ok(())
    }

    /// Nobody holds a wait that is longer than a run: whoever is there at its end goes on. Its caller has been told that
    /// the call will be made, so a store that does not take it now is asked until it does.
    async fn park(&mut self, wait: Duration, ended: Ended) -> Conclusion {
        let word = self.word(Word::Park(ended, self.owner.store().now().after(wait)));
        crash_point::reached(Point::BeforeWait);
        let written = word.write(&mut self.owner).await;
        let operation = &self.owner.operation;
        match written {
            Ok(()) if operation.parked_until().is_none() => {
                return self.superseded(&Found::new(operation.clone(), None));
            }
            Ok(()) => tracing::info!(operation = %operation.id, wait_ms = millis(wait), "parked"),
            Err(WriteError::Store(error)) => {
                tracing::warn!(operation = %operation.id, %error, "not parked yet");
                self.keep_writing(word);
            }
            Err(error) => return self.lost(error),
        }
        refusal::waiting(operation, self.owner.store().now())
    }

    /// A call that nobody waits for is not ended by a gate: it waits on.
    async fn put_off(&mut self, refused: &Refused) -> Option<Conclusion> {
        let (operation, now) = (&self.owner.operation, self.owner.store().now());
        if !waits_on(operation, now) {
            return None;
        }
        let not_before = now.after(refused.wait().min(LONGEST_PUT_OFF));
        if let Err(error) = self.owner.write(|operation, step| operation.put_off(not_before, step)).await {
            return Some(self.lost(error));
        }
        Some(refusal::waiting(&self.owner.operation, now))
    }

    /// An operation that was taken over in the middle of a wait keeps to it.
    async fn wait_until_due(&mut self) {
        if let State::Waiting { not_before, .. } = self.owner.operation.state {
            let wait = not_before.since(self.owner.store().now());
            self.owner.holding(pin!(sleep(wait))).await;
        }
    }
}

/// Whether a gate may put the call off: nobody waits for it, for a day at most.
pub(super) fn waits_on(operation: &Operation, now: Timestamp) -> bool {
    operation.accepted && now <= operation.created_at.after(LONGEST_PARKING)
}
