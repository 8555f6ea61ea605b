//! A person's words about a dead letter: that the call is to be made after all, with the request of its first call and
//! under its key, or that it is given up.

use std::sync::Arc;

use tokio::time::Instant;

use crate::config::Route;
use crate::engine::Engine;
use crate::engine::call::{resend_rule, retention};
use crate::engine::flight::{Pilot, Seat};
use crate::engine::gates::Permit;
use crate::engine::owner::ADOPTIONS;
use crate::engine::problem::{Code, Problem};
use crate::engine::recover::{Alone, entrant, method};
use crate::engine::refusal;
use crate::engine::unreadable::KeptRequest;
use crate::operation::admission::Repeat;
use crate::operation::dead_letter::Next;
use crate::operation::transition::{Change, IllegalTransition, Opening};
use crate::operation::{Operation, OperationId, StateName, StoredRequest};
use crate::store::{StoreError, Written};

const NOT_KEPT: &str = "The request of its first call is not stored any more, so there is nothing to send. The call has to be \
                        made again by its caller, with the same key.";

const ANOTHER_KEY: &str =
    "Its request is encrypted with a key that this gateway does not have: ask a gateway that has it.";

const NEEDS_CALLER: &str = "Its caller's credential went with it, and is not stored. The call has to be made again by its \
                            caller, with the same key; or give the upstream a credential in its `headers`.";

impl Engine {
    /// Begins a new run of an operation that did not run, and gives back the operation as it stands then. What cannot be
    /// sent is said at once.
    ///
    /// # Errors
    /// `conflict` where it is not to be made, with the reason; `not-found`; `overloaded`, and what the store says.
    pub async fn redrive(self: &Arc<Self>, id: OperationId) -> Result<Operation, Problem> {
        let operation = self.of_operator(id).await?;
        may_be_redriven(&operation)?;
        let route = &operation.identity.route;
        let unknown = || conflict(format!("Its route `{route}` is not in this gateway's file."));
        let route = self.shared.config.routes.named(route).cloned().ok_or_else(unknown)?;
        let request = self.kept_request(id).await.map_err(|error| refusal::store_problem(&error))?;
        let request = match request {
            KeptRequest::Here(request) => request,
            KeptRequest::Strange => return Err(conflict(ANOTHER_KEY)),
            KeptRequest::Gone => return Err(conflict(NOT_KEPT)),
        };
        if request.had_credential {
            return Err(conflict(NEEDS_CALLER));
        }
        // A repeat in line has not begun.
        self.shared.flights.overtake(id, operation.identity.fingerprint);
        let Seat::Pilot(pilot) = self.shared.flights.enter(id, operation.identity.fingerprint) else {
            return Err(conflict("Somebody is making the call right now."));
        };
        self.begin_anew(pilot, operation, route, request).await
    }

    async fn begin_anew(
        self: &Arc<Self>,
        pilot: Pilot,
        operation: Operation,
        route: Arc<Route>,
        request: StoredRequest,
    ) -> Result<Operation, Problem> {
        let Some(room) = self.shared.buffers.take(request.body.len() as u64) else {
            return Err(Problem::new(Code::Overloaded, "There is no room for its body now (server.buffers)."));
        };
        let permit = self.admit_redrive(&route, &operation, &request).await?;
        let since = Instant::now();
        let deadline = since + route.retry.deadline;
        let rule = resend_rule(&route, &method(&request), &operation.identity);
        let opening = Opening::of(rule.repeat);
        let claim = |operation: &Operation| {
            operation.claim_again(self.ownership(&route, deadline, operation.accepted), opening, self.step())
        };
        let written = self.write_word(operation, claim).await;
        let (change, written) = written.map_err(|error| conflict(error.to_string()))?;
        match written {
            Ok(Written::Applied) => {}
            Ok(Written::Refused(found)) => {
                may_be_redriven(&found.operation)?;
                return Err(conflict("Somebody else has just seen to it, and the call did not run: look at it again."));
            }
            Ok(Written::Gone) => return Err(gone()),
            Err(error) => {
                let Operation { identity, accepted, .. } = &change.operation;
                let keep = retention(&route, rule.repeat, identity, *accepted);
                self.withdraw((keep, Next::Person), change, &error);
                return Err(refusal::store_problem(&error));
            }
        }
        tracing::info!(operation = %change.operation.id, route = %route.name, "redriven by an operator");
        let begun = change.operation.clone();
        let (owner, permit) = (self.owner(change.operation, since), Some(permit));
        self.run_alone(Alone { pilot, owner, route, request, deadline, room, permit });
        Ok(begun)
    }

    /// Leave by the gates, or none where that takes more than a moment: a person can come back.
    async fn admit_redrive(
        &self,
        route: &Route,
        operation: &Operation,
        request: &StoredRequest,
    ) -> Result<Permit, Problem> {
        let rule = resend_rule(route, &method(request), &operation.identity);
        let entrant = entrant(operation, &rule, route, request);
        let Some(lane) = self.lane(route) else { return Err(conflict("Its route cannot be sent to.")) };
        let admitted = Box::pin(self.pass_gates(&lane.gate, &entrant)).await;
        admitted.map_err(|refused| refusal::gate_problem(route, refused))
    }

    /// Gives an operation up, and gives it back as it stands then: its key is never sent again.
    ///
    /// # Errors
    /// `conflict` where it waits for nobody; `not-found`, and what the store says.
    pub async fn abandon(&self, id: OperationId) -> Result<Operation, Problem> {
        let operation = self.of_operator(id).await?;
        let keep = match self.shared.config.routes.named(&operation.identity.route) {
            Some(route) => retention(route, Repeat::Unsafe, &operation.identity, operation.accepted),
            None => self.default_retention(),
        };
        let was = operation.state.name();
        let written = self.write_word(operation, |operation| operation.abandon(keep, self.step())).await;
        let Ok((change, written)) = written else {
            return Err(conflict(format!("It is {was}: there is nothing to give up.")));
        };
        match written.map_err(|error| refusal::store_problem(&error))? {
            Written::Applied => {
                tracing::info!(operation = %id, %was, "given up by an operator");
                Ok(change.operation)
            }
            Written::Refused(found) if found.operation.state.name() == was => {
                Err(conflict("It has changed just now: look at it again."))
            }
            Written::Refused(found) => Err(conflict(format!("It is {} by now.", found.operation.state.name()))),
            Written::Gone => Err(gone()),
        }
    }

    /// Writes a person's word, and gives back what was asked of the store. That an alert has been noted meanwhile is no
    /// answer to it.
    async fn write_word(
        &self,
        mut operation: Operation,
        change: impl Fn(&Operation) -> Result<Change, IllegalTransition>,
    ) -> Result<(Change, Result<Written, StoreError>), IllegalTransition> {
        let mut left = ADOPTIONS;
        loop {
            let change = change(&operation)?;
            left -= 1;
            match self.store.write(&change).await {
                Ok(Written::Refused(found)) if left > 0 && operation.is_still(&found.operation) => {
                    operation = found.operation;
                }
                written => return Ok((change, written)),
            }
        }
    }

    /// An operation as an operator finds it.
    pub(super) async fn of_operator(&self, id: OperationId) -> Result<Operation, Problem> {
        let found = self.store.read(id).await.map_err(|error| {
            self.note_unreadable(id, &error);
            refusal::look_up_problem(&error)
        })?;
        found.map(|found| found.operation).ok_or_else(gone)
    }
}

fn may_be_redriven(operation: &Operation) -> Result<(), Problem> {
    let why = match operation.state.name() {
        StateName::NotExecuted if operation.is_disputed() => {
            "An answer came after its end, so that it may have run. Where the service honours keys, the same call with \
             the same key finds out; else look there. POST .../abandon gives it up."
        }
        StateName::NotExecuted => return Ok(()),
        StateName::Unknown => {
            "Nobody knows whether it ran. Where the service honours keys, the same call with the same key finds out; \
             else look there, for a call that may have run is not made again on a person's word alone. \
             POST .../abandon gives it up."
        }
        StateName::Claimed | StateName::Sent | StateName::Waiting => {
            "Somebody is making the call right now, or it waits for its time (not_before)."
        }
        StateName::Succeeded | StateName::Failed | StateName::Compensating | StateName::Compensated => "It has run.",
        StateName::AwaitingApproval => "It waits for an approval.",
        StateName::Rejected => "An operator rejected it.",
        StateName::Abandoned => "An operator gave it up.",
    };
    Err(conflict(why))
}

fn conflict(why: impl Into<String>) -> Problem {
    Problem::new(Code::Conflict, why)
}

fn gone() -> Problem {
    Problem::new(Code::NotFound, "There is no such operation, or its record has run out.")
}
