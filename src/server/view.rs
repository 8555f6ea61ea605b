//! An operation as JSON: the same members for the callers who own it and for operators.
//!
//! Never bodies, header values or scopes.

use serde::Serialize;

use crate::clock::moment::rfc3339;
use crate::engine::refusal::execution_of;
use crate::operation::{Event, EventKind, Identity, Kept, Operation, Settled, State, StateName, StoredRequest};
use crate::server::document::hex;

/// What anybody who may see an operation sees of it.
#[derive(Serialize)]
pub struct OperationView<'a> {
    id: String,
    key: &'a str,
    key_source: &'static str,
    route: &'a str,
    state: &'static str,
    execution: &'static str,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    created_at: String,
    changed_at: String,
    /// Before which no further attempt starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<String>,
    /// Why it stands where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// It needs a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter: Option<LetterView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ResultView>,
}

/// An open dead letter.
#[derive(Serialize)]
struct LetterView {
    /// One word for each kind, for grouping; `cause` says it in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    since: String,
    alerted_at: Option<String>,
}

/// What is kept of the final answer.
#[derive(Serialize)]
struct ResultView {
    status: u16,
    length: u64,
    kept: &'static str,
    digest: String,
}

impl<'a> OperationView<'a> {
    /// The operation as its record says.
    pub fn of(operation: &'a Operation) -> Self {
        let Identity { route, key, source, session, step, .. } = &*operation.identity;
        let (cause, not_before) = match &operation.state {
            State::NotExecuted { cause } | State::Unknown { cause, .. } => (Some(cause.to_string()), None),
            State::Waiting { not_before, .. } => (None, Some(rfc3339(*not_before))),
            State::Claimed { .. }
            | State::AwaitingApproval
            | State::Sent { .. }
            | State::Succeeded { .. }
            | State::Failed { .. }
            | State::Rejected
            | State::Abandoned
            | State::Compensating { .. }
            | State::Compensated { .. } => (None, None),
        };
        Self {
            id: operation.id.to_string(),
            key,
            key_source: source.as_str(),
            route,
            state: operation.state.name().as_str(),
            execution: execution_of(operation).as_str(),
            attempts: operation.attempts,
            session: session.as_deref(),
            step: step.as_deref(),
            created_at: rfc3339(operation.created_at),
            changed_at: rfc3339(operation.changed_at),
            not_before,
            cause,
            dead_letter: LetterView::of(operation),
            result: operation.state.settled().map(ResultView::of),
        }
    }
}

impl LetterView {
    fn of(operation: &Operation) -> Option<Self> {
        let letter = operation.dead_letter()?;
        Some(Self {
            reason: operation.letter_reason(),
            since: rfc3339(letter.since),
            alerted_at: letter.alerted_at.map(rfc3339),
        })
    }
}

impl ResultView {
    fn of(settled: &Settled) -> Self {
        let kept = match settled.kept {
            Kept::Whole => "whole",
            Kept::TooLarge => "too_large",
            Kept::Cut => "cut",
        };
        Self { status: settled.status, length: settled.length, kept, digest: hex(&settled.digest) }
    }
}

/// What operators see besides: by what the service knows the call.
#[derive(Serialize)]
pub struct SentView<'a> {
    /// The key that the service gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    /// The path that goes upstream, without its query.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    /// Empty for callers that have no name.
    #[serde(skip_serializing_if = "str::is_empty")]
    caller: &'a str,
}

impl<'a> SentView<'a> {
    /// Of the call to `upstream`, and of its request for as long as that is kept.
    pub fn of(operation: &'a Operation, upstream: Option<&'a str>, request: Option<&'a StoredRequest>) -> Self {
        let target = request.map(|request| request.target.as_str());
        Self {
            upstream_key: operation.identity.upstream_key.as_deref(),
            upstream,
            method: request.map(|request| request.method.as_str()),
            target: target.map(|target| target.split_once('?').map_or(target, |(path, _)| path)),
            caller: operation.identity.scope.caller(),
        }
    }
}

/// One step in the history of an operation.
#[derive(Serialize)]
pub struct EventView {
    at: String,
    kind: EventKind,
    from: Option<&'static str>,
    to: Option<&'static str>,
    attempts: u32,
    token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
}

impl EventView {
    /// The event as it was recorded.
    pub fn of(event: &Event) -> Self {
        Self {
            at: rfc3339(event.at),
            kind: event.kind,
            from: event.from.map(StateName::as_str),
            to: event.to.map(StateName::as_str),
            attempts: event.attempts,
            token: event.token,
            cause: event.cause.map(|cause| cause.to_string()),
            status: event.status,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::clock::Timestamp;
    use crate::operation::{Cause, Fence, Fingerprint, KeySource, Lease, OperationId, OwnerId, Scope};

    /// An operation of route `payments` under `key`, made at `created_at`.
    pub(in crate::server) fn operation(key: &str, created_at: u64, state: State) -> Operation {
        let scope = Scope::named("token", "support-bot");
        Operation {
            id: OperationId::of(scope.digest(), "payments", key, None),
            identity: Arc::new(Identity {
                scope,
                route: "payments".to_owned(),
                key: key.to_owned(),
                upstream_key: Some("made-for-upstream".to_owned()),
                source: KeySource::Derived,
                fingerprint: Fingerprint { version: 1, digest: [9; 32] },
                session: Some("s-1".to_owned()),
                step: Some("3.1".to_owned()),
                alike: None,
                rules: [0; 8],
            }),
            state,
            fence: Fence::default(),
            attempts: 2,
            attempts_before: 0,
            may_have_run: false,
            first_sent_at: None,
            attempt_ended_at: None,
            sender: None,
            destination: None,
            deadline: Timestamp(0),
            created_at: Timestamp(created_at),
            changed_at: Timestamp(created_at + 1500),
            expires_at: None,
            events: 0,
            late_answers: 0,
            accepted: false,
            dead: None,
        }
    }

    pub(in crate::server) fn settled(kept: Kept) -> Settled {
        let receipt_until = Timestamp(10_000);
        Settled { status: 201, length: 14, digest: [0xcd; 32], kept, receipt_until, after_doubt: false }
    }

    fn written(operation: &Operation) -> Value {
        serde_json::to_value(OperationView::of(operation)).unwrap()
    }

    #[test]
    fn a_settled_operation_is_shown_without_its_scope_its_upstream_key_and_its_body() {
        let shown = operation("k-1", 0, State::Succeeded { settled: settled(Kept::Whole) });
        let expected = json!({
            "id": shown.id.to_string(),
            "key": "k-1",
            "key_source": "derived",
            "route": "payments",
            "state": "succeeded",
            "execution": "executed",
            "attempts": 2,
            "session": "s-1",
            "step": "3.1",
            "created_at": "1970-01-01T00:00:00.000Z",
            "changed_at": "1970-01-01T00:00:01.500Z",
            "result": { "status": 201, "length": 14, "kept": "whole", "digest": "cd".repeat(32) },
        });
        assert_eq!(written(&shown), expected);
    }

    #[test]
    fn an_operator_sees_by_what_the_service_knows_the_call_and_no_query() {
        let sent = operation("k-1", 0, State::Abandoned);
        let request = StoredRequest {
            method: "POST".to_owned(),
            target: "/v1/charges?token=secret".to_owned(),
            headers: Arc::default(),
            body: "secret".into(),
            had_credential: false,
        };
        let shown = serde_json::to_value(SentView::of(&sent, Some("payments"), Some(&request))).unwrap();
        let expected = json!({
            "upstream_key": "made-for-upstream",
            "upstream": "payments",
            "method": "POST",
            "target": "/v1/charges",
            "caller": "support-bot",
        });
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_end_without_an_answer_says_why() {
        let unknown = State::Unknown { cause: Cause::Status(503), since: Timestamp(0) };
        let shown = written(&operation("k", 0, unknown));
        assert_eq!(shown["cause"], "the upstream answered 503");
        let letter = json!({ "reason": "status_503", "since": "1970-01-01T00:00:00.000Z", "alerted_at": null });
        assert_eq!(shown["dead_letter"], letter);
        let waiting = State::Waiting { not_before: Timestamp(2000), lease: None };
        assert_eq!(written(&operation("k", 0, waiting))["not_before"], "1970-01-01T00:00:02.000Z");
    }

    #[test]
    fn what_was_given_up_in_doubt_stays_in_doubt() {
        let given_up = operation("k", 0, State::Abandoned);
        assert_eq!(written(&given_up)["execution"], "not-executed");
        assert_eq!(written(&Operation { may_have_run: true, ..given_up })["execution"], "unknown");
        let claimed = State::Claimed { lease: Lease { until: Timestamp(1) } };
        assert_eq!(written(&operation("k", 0, claimed))["execution"], "in-progress");
    }

    #[test]
    fn an_event_is_shown_without_its_owner() {
        let event = Event {
            revision: 2,
            at: Timestamp(1000),
            kind: EventKind::Unknown,
            from: Some(StateName::Sent),
            to: Some(StateName::Unknown),
            attempts: 1,
            token: 4,
            owner: OwnerId::default(),
            cause: Some(Cause::Timeout),
            status: None,
        };
        let expected = json!({
            "at": "1970-01-01T00:00:01.000Z",
            "kind": "unknown",
            "from": "sent",
            "to": "unknown",
            "attempts": 1,
            "token": 4,
            "cause": "the upstream did not answer in time",
        });
        assert_eq!(serde_json::to_value(EventView::of(&event)).unwrap(), expected);
    }
}
