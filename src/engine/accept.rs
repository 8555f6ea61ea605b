//! `Prefer: respond-async` (RFC 7240, section 4.1): the caller is told where to ask as soon as the call is on record.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::config::StoreSettings;
use crate::engine::answer::{Answer, Content, Execution};
use crate::engine::call::{Call, NamedCall};
use crate::engine::conclusion::Conclusion;
use crate::engine::flight::Wait;
use crate::engine::problem::{Code, Problem};
use crate::engine::{Engine, refusal};
use crate::operation::admission::{Admission, ResendRule};
use crate::operation::{Fingerprint, OperationId, Scope};

/// As long as a caller stands in line who would not wait at all: enough for a turn on the ramp behind a pause.
const LEAST_IN_LINE: Duration = Duration::from_millis(500);
/// A seat that somebody else takes meanwhile is noticed as soon.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Between two looks at a seat that somebody has left.
const MOMENT: Duration = Duration::from_millis(10);

/// What a call with these `credentials` needs that would be lost with its caller, where he asks for the answer later.
pub fn unkeepable(call: &Call, credentials: &[(HeaderName, HeaderValue)], store: &StoreSettings) -> Option<Problem> {
    call.respond_async?;
    let why = if !call.route.payload.store_request {
        "the route keeps no requests (store_request = false)"
    } else if call.needs(credentials) && !store.keeps_credentials() {
        "the call brings a credential, and without store.encryption the gateway keeps none; an operator can state that, or \
         give the upstream a credential of the gateway's own (headers of the upstream)"
    } else {
        return None;
    };
    let problem = Problem::new(Code::InvalidRequest, format!("Prefer: respond-async cannot be granted here: {why}."));
    Some(problem.with_advice("Send the same call without Prefer: respond-async; nothing was sent for this one."))
}

impl Engine {
    /// The answer if it comes within `wait`, else where it can be asked for. The call itself goes on without its caller.
    pub(super) async fn fly_ahead(self: &Arc<Self>, named: NamedCall, wait: Duration) -> Answer {
        let (now, deadline) = (Instant::now(), named.call.deadline);
        let after = |wait| now.checked_add(wait).map_or(deadline, |until| until.min(deadline));
        let (until, in_line_until) = (after(wait), after(wait.max(LEAST_IN_LINE)));
        let (id, fingerprint) = (named.id, named.identity.fingerprint);
        let accepted = refusal::marks(id, &named.identity, Execution::InProgress);
        let mut flying = pin!(self.fly(named, in_line_until));
        let answer = tokio::select! {
            // It takes its place among the flights before anybody looks for it there.
            biased;
            answer = &mut flying => answer,
            () = self.goes_on(id, fingerprint, until) => return Answer { content: Content::Accepted, marks: accepted },
        };
        match answer.is_in_progress() && self.is_accepted(answer.marks.operation).await {
            true => Answer { content: Content::Accepted, marks: answer.marks },
            false => answer,
        }
    }

    /// Returns at `until`, or as soon after as the call is on record as one that goes on without its callers; never if it
    /// comes to an end without a run.
    async fn goes_on(&self, id: OperationId, fingerprint: Fingerprint, until: Instant) {
        loop {
            let departed = match self.shared.flights.watch(id, fingerprint) {
                Some(passenger) => timeout(LOOK_AGAIN, passenger.departure()).await.unwrap_or(Wait::Lost),
                None => Wait::Lost,
            };
            match departed {
                Wait::StillRunning => break,
                // Another one may take its place among the flights.
                Wait::Landed(_) | Wait::Lost => sleep(MOMENT).await,
            }
        }
        sleep_until(until).await;
        if !self.is_accepted(Some(id)).await {
            std::future::pending().await
        }
    }

    /// A call that was begun for somebody who waits ends with his wait, and may need what he has not left with it.
    async fn is_accepted(&self, id: Option<OperationId>) -> bool {
        let Some(id) = id else { return false };
        matches!(self.store.read(id).await, Ok(Some(found)) if found.operation.accepted)
    }

    /// The refusal of a call that has to be made without its caller, and cannot be.
    pub(super) fn unkeepable(&self, named: &NamedCall) -> Option<Conclusion> {
        let problem = unkeepable(&named.call, &named.credentials, &self.shared.config.store)?;
        Some(Conclusion::Problem { problem, marks: refusal::marks(named.id, &named.identity, Execution::NotExecuted) })
    }

    /// The receipt of a caller's own operation, by its name; with `wait`, first waits that long for a running one to end.
    ///
    /// # Errors
    /// As [`Engine::look_up`].
    pub async fn receipt(&self, scope: &Scope, id: OperationId, wait: Duration) -> Result<Answer, Problem> {
        let repeat = self.look_up(scope, id, wait).await?.repeat;
        let found = self.store.read(id).await.map_err(|error| refusal::look_up_problem(&error))?;
        let Some(found) = found else {
            return Err(Problem::new(Code::NotFound, "No operation of this caller has that name."));
        };
        let row = found.operation.admit(None, &ResendRule::NONE, self.store.now());
        let concluded = match row {
            Admission::InProgress => refusal::waiting(&found.operation, self.store.now()),
            row => self.of_record(&found, row),
        };
        Ok(match concluded {
            Conclusion::Problem { problem, marks } if row == Admission::Unknown => {
                Conclusion::Problem { problem: refusal::found_out(problem, repeat), marks }
            }
            concluded => concluded,
        }
        .answer())
    }
}
