//! How the end of a run reads: marks on the answer, problems that teach, one line in the log.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, Method, StatusCode};

use crate::engine::answer::{Execution, Marks};
use crate::engine::attempt::UpstreamAnswer;
use crate::engine::gates::Refused;
use crate::engine::problem::{Code, Problem};
use crate::engine::refusal;
use crate::engine::run::Run;
use crate::operation::admission::Repeat;
use crate::operation::outcome::{Outcome, Silence};
use crate::operation::{Receipt, State};
use crate::retry::decide::Stop;
use crate::retry::retry_after::Hint;
use crate::upstream::kept_for_replay;

/// What a run without a final answer has to tell.
pub(super) struct Told {
    pub answer: Option<UpstreamAnswer>,
    /// When to come back, if the answer says so.
    pub hint: Option<Hint>,
    /// The gate that let nothing through, which says when to come back itself.
    pub refused: Option<Refused>,
    pub failure: Option<String>,
    pub outcome: Outcome,
    pub stop: Option<Stop>,
}

impl Told {
    /// Whether its caller comes back by himself.
    pub(super) fn calls_back(&self, marks: &Marks) -> bool {
        let is_called = |answer: &UpstreamAnswer| marks.calls_back(&answer.head.headers);
        self.refused.is_some() || (self.hint.is_some() && self.answer.as_ref().is_some_and(is_called))
    }
}

impl Run<'_> {
    /// What is kept of an answer: everything that is not for one client or one moment. A length that speaks of a body that
    /// is not here cannot be made anew.
    pub(super) fn receipt_of(&self, status: StatusCode, headers: &HeaderMap, body: &Bytes) -> Receipt {
        let tells_length = self.outgoing.method == Method::HEAD || status == StatusCode::NOT_MODIFIED;
        let is_kept = |name: &HeaderName| kept_for_replay(name) || (tells_length && name == CONTENT_LENGTH);
        let kept = headers.iter().filter(|(name, _)| is_kept(name));
        let headers: HeaderMap = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
        Receipt { status: status.as_u16(), headers: headers.into(), body: body.clone() }
    }

    pub(super) fn marks(&self, execution: Execution, stop: Option<Stop>) -> Marks {
        let operation = &self.owner.operation;
        Marks {
            attempts: self.sends,
            stop,
            earlier: self.earlier,
            ..refusal::marks(operation.id, &operation.identity, execution)
        }
    }

    /// What the caller is told where the upstream said nothing.
    pub(super) fn problem(&self, doubtful: bool, told: &Told) -> Problem {
        if let Some(refused) = told.refused.filter(|_| !doubtful) {
            return refusal::gate_problem(&self.route, refused);
        }
        let failure = told.failure.as_deref().unwrap_or("no usable answer came");
        let timed_out = told.outcome == Outcome::Silent(Silence::Timeout) || told.stop == Some(Stop::Deadline);
        let status = if timed_out { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::BAD_GATEWAY };
        let code = match (doubtful, timed_out) {
            (true, _) => Code::OutcomeUnknown,
            (false, true) => Code::UpstreamTimeout,
            (false, false) => Code::UpstreamFailed,
        };
        let advice = match doubtful {
            true => self.why_not_again(told.stop),
            false if self.sends == 0 && self.tries.tries > 0 => {
                format!(" Tries without a connection: {}.", self.tries.tries)
            }
            false => String::new(),
        };
        let problem = Problem::new(code, format!("{failure}.{advice}")).with_status(status.as_u16());
        if doubtful { self.left_in_doubt(problem) } else { problem }
    }

    /// Where the same bytes can be sent under the same key once more, its caller is told so.
    pub(super) fn left_in_doubt(&self, problem: Problem) -> Problem {
        let is_kept = self.route.payload.store_request;
        if is_kept { refusal::found_out(problem, self.repeat_now()) } else { problem }
    }

    fn repeat_now(&self) -> Repeat {
        self.rule.repeat_at(self.owner.operation.first_sent_at, self.owner.store().now())
    }

    fn why_not_again(&self, stop: Option<Stop>) -> String {
        let upstream = &self.route.upstream.name;
        let repeat_now = self.repeat_now();
        match (self.rule.repeat, stop) {
            (Repeat::Unsafe, _) => format!(
                " Not sent again: bytes of the call had gone out, and upstream `{upstream}` has repeat = \"unsafe\" here; if it honours Idempotency-Key, say repeat = \"with-key\"."
            ),
            (Repeat::WithKey | Repeat::Harmless, _) if repeat_now == Repeat::Unsafe => {
                format!(" Not sent again: upstream `{upstream}` may have forgotten the key by now (key_retention).")
            }
            (Repeat::WithKey | Repeat::Harmless, Some(stop)) => {
                format!(
                    " No further try to upstream `{upstream}` now ({}); the same call with the same key is sent on.",
                    stop.as_str()
                )
            }
            (Repeat::WithKey | Repeat::Harmless, None) => String::new(),
        }
    }

    /// The one line of an operation.
    pub(super) fn log_end(&self, status: Option<u16>, failure: Option<&str>) {
        let operation = &self.owner.operation;
        tracing::info!(
            operation = %operation.id,
            route = %operation.identity.route,
            key_source = operation.identity.source.as_str(),
            state = operation.state.name().as_str(),
            attempts = operation.attempts,
            status,
            failure,
            "operation ended"
        );
        if let State::Unknown { cause, .. } = operation.state {
            tracing::warn!(operation = %operation.id, upstream = %self.route.upstream.name, %cause, "nobody knows whether it ran");
        }
    }
}
