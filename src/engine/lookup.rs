//! What a caller may see of his own operations, and of nobody else's.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::problem::{Code, Problem};
use crate::engine::refusal;
use crate::engine::unreadable::KeptRequest;
use crate::operation::admission::{Admission, Repeat};
use crate::operation::key::bucket_of_stamped;
use crate::operation::{Operation, OperationId, Receipt, Scope, StateName};

const POLL: Duration = Duration::from_millis(100);

/// An operation as it stands at `now`, by the store's clock.
#[derive(Clone, Debug)]
pub struct View {
    pub operation: Operation,
    pub receipt: Option<Receipt>,
    pub now: Timestamp,
    /// Whether the service may get the call once more, where it is unknown.
    pub repeat: Repeat,
}

impl Engine {
    /// Looks an operation up; with `wait`, first waits that long for a running one to end.
    ///
    /// # Errors
    /// `not-found` for what is not there and for what is another caller's; `store-unavailable`.
    pub async fn look_up(&self, scope: &Scope, id: OperationId, wait: Duration) -> Result<View, Problem> {
        let (until, mut landed) = (Instant::now() + wait, false);
        loop {
            let view = self.view(scope, id).await?;
            let is_over = view.operation.is_ownerless(view.now) && view.operation.parked_until().is_none();
            if is_over || Instant::now() >= until {
                return Ok(view);
            }
            let flight = self
                .shared
                .flights
                .watch(id, view.operation.identity.fingerprint)
                .filter(|passenger| !landed && !passenger.is_in_line());
            landed = flight.is_some();
            match flight {
                Some(passenger) => drop(passenger.landing(until).await),
                // A flight may have landed long before the store knows of it.
                None => tokio::time::sleep_until(until.min(Instant::now() + POLL)).await,
            }
        }
    }

    /// Looks an operation up by route and key.
    ///
    /// # Errors
    /// As [`Engine::look_up`].
    pub async fn look_up_key(&self, scope: &Scope, route: &str, key: &str) -> Result<View, Problem> {
        let named = self.view(scope, OperationId::of(scope.digest(), route, key, None)).await;
        match (named, bucket_of_stamped(key)) {
            (Err(problem), Some(bucket)) if problem.code == Code::NotFound => {
                self.view(scope, OperationId::of(scope.digest(), route, key, Some(bucket))).await
            }
            (found, _) => found,
        }
    }

    async fn view(&self, scope: &Scope, id: OperationId) -> Result<View, Problem> {
        match self.store.read(id).await {
            Ok(Some(found)) if found.operation.identity.scope == *scope => {
                self.note_lost_receipt(&found).await;
                let (now, repeat) = (self.store.now(), self.repeat_of_unknown(&found.operation).await);
                Ok(View { operation: found.operation, receipt: found.receipt, now, repeat })
            }
            Ok(_) => Err(Problem::new(Code::NotFound, "No operation of this caller has that name.")),
            Err(error) => {
                self.note_unreadable(id, &error);
                Err(refusal::look_up_problem(&error))
            }
        }
    }

    /// What a repeat of an operation in doubt means.
    async fn repeat_of_unknown(&self, operation: &Operation) -> Repeat {
        if operation.state.name() != StateName::Unknown && !operation.is_disputed() {
            return Repeat::Unsafe;
        }
        let request = self.kept_request(operation.id).await.ok().and_then(KeptRequest::here);
        let rule = self.resend_rule(operation, request.as_ref());
        match operation.admit(None, &rule, self.store.now()) {
            Admission::ClaimAgain => rule.repeat,
            _ => Repeat::Unsafe,
        }
    }
}
