//! What a caller is told where nothing is sent: the rows of the claim table as answers.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::config::Route;
use crate::engine::answer::{Compensation, Execution, Marks};
use crate::engine::call::NamedCall;
use crate::engine::conclusion::Conclusion;
use crate::engine::gates::Refused;
use crate::engine::limits::OverRate;
use crate::engine::problem::{Code, LostAnswer, Problem};
use crate::operation::admission::{Admission, Repeat};
use crate::operation::transition::IllegalTransition;
use crate::operation::{Identity, Kept, Operation, OperationId, State, StateName};
use crate::retry::pause::Whom;
use crate::store::{Damage, Found, StoreError, Unreadable};

/// When to ask again for something that is under way.
const SOON: Duration = Duration::from_secs(1);
/// When to ask again for something that a person has to do first.
const LATER: Duration = Duration::from_secs(30);

const LOOK: &str = "An operator finds more in GET /v1/status and in the log.";

const LOST_MEMORY: &str = "Nothing was sent. Tell the operator that the gateway's store has lost its memory; do not repeat \
                           the call with a new key, because it may already have run.";

const NO_KEY: &str = "Nothing was sent. Tell the operator that the gateway has no key for what is stored of this call; do not \
                      repeat it with a new key, because it may already have run.";

const IN_FLIGHT: &str =
    "Wait as Retry-After says, then send the same call with the same key again; never with a new one.";

const NOT_LOOKED_UP: &str =
    "Wait as Retry-After says, then ask again; until then take the call for one that may have run.";

const NO_ROOM: &str = "Send the same call again after Retry-After; if that is refused as well, tell the operator: unknown \
                       operations free no place by themselves, and a person has to look at them.";

const FINDS_OUT: &str = "Send the same call again with the same key, the Idempotency-Key of this answer: it finds out what \
                         became of it, and never runs twice.";

const MAY_RUN_TWICE: &str = "Send the same call again with the same key, the Idempotency-Key of this answer: the service may \
                             get it twice without harm.";

const CUT: &str = "The call ran, but its answer was cut.";

const NOT_KEPT: &str = "The call ran, but its answer was not kept: it was longer than max_receipt of the route, or found no \
                        room beside other answers (server.buffers).";

const KEY_REUSED: &str = "This key was already used for a request with another method, target, header or body.";

/// The marks of an operation that nobody looked at yet.
pub fn marks(id: OperationId, identity: &Identity, execution: Execution) -> Marks {
    Marks {
        operation: Some(id),
        key: Some((identity.key.clone(), identity.source)),
        execution: Some(execution),
        ..Marks::default()
    }
}

/// The marks of a record as it stands.
pub fn marks_of(operation: &Operation) -> Marks {
    let compensation = match operation.state.name() {
        StateName::Compensating => Some(Compensation::Running),
        StateName::Compensated => Some(Compensation::Done),
        _ => None,
    };
    Marks {
        attempts: operation.attempts,
        prior_outcome_unknown: operation.state.settled().is_some_and(|settled| settled.after_doubt),
        compensation,
        ..marks(operation.id, &operation.identity, execution_of(operation))
    }
}

/// `Oncegate-Execution` of a record.
pub fn execution_of(operation: &Operation) -> Execution {
    match operation.state.name() {
        StateName::Claimed | StateName::Sent | StateName::Waiting => Execution::InProgress,
        StateName::Succeeded | StateName::Failed | StateName::Compensating | StateName::Compensated => {
            Execution::Executed
        }
        StateName::Unknown => Execution::Unknown,
        StateName::NotExecuted | StateName::Rejected | StateName::Abandoned if operation.is_disputed() => {
            Execution::Unknown
        }
        StateName::Abandoned if operation.may_have_run => Execution::Unknown,
        StateName::NotExecuted | StateName::AwaitingApproval | StateName::Rejected | StateName::Abandoned => {
            Execution::NotExecuted
        }
    }
}

/// Somebody is at work on the key.
pub fn in_progress(id: OperationId, identity: &Identity) -> Conclusion {
    let detail = "Another request with this key is being made right now; this one was not sent.";
    let problem = Problem::new(Code::InProgress, detail).with_retry_after(SOON);
    Conclusion::Problem { problem, marks: marks(id, identity, Execution::InProgress) }
}

/// A copy of the call stands in line for its turn, and has more time than this one.
pub fn in_line(named: &NamedCall) -> Conclusion {
    let detail = "Another request with this key stands in line here and is sent when its turn comes; this one was not.";
    let problem = Problem::new(Code::InProgress, detail).with_retry_after(SOON);
    Conclusion::Problem { problem, marks: marks(named.id, &named.identity, Execution::InProgress) }
}

/// The record is at work, or waits for its time.
pub fn waiting(operation: &Operation, now: Timestamp) -> Conclusion {
    let Some(left) = operation.parked_until().map(|at| at.since(now)) else {
        return in_progress(operation.id, &operation.identity);
    };
    let detail = "The call waits for its time, and is sent when that has come. This one was not sent.";
    let problem = Problem::new(Code::InProgress, detail).with_retry_after(left.max(SOON));
    Conclusion::Problem { problem, marks: marks_of(operation) }
}

/// Whoever has the key of its request can go on with it, and this gateway cannot.
pub fn left_to_others(operation: &Operation) -> Conclusion {
    let detail = "The call may have run, and the request that is stored of it takes a key that this gateway does not have; \
                  it is left for a while to one that has it. This one was not sent.";
    let problem = Problem::new(Code::InProgress, detail).with_retry_after(SOON);
    Conclusion::Problem { problem, marks: marks_of(operation) }
}

/// The key names another request. Nothing of that request is shown.
pub fn other_request(named: &NamedCall) -> Conclusion {
    let problem = if named.named_by_step {
        Problem::new(Code::PayloadChanged, "This session and step were already used for a call with another payload.")
    } else {
        Problem::new(Code::KeyReused, KEY_REUSED)
    };
    Conclusion::Problem { problem, marks: marks(named.id, &named.identity, Execution::NotExecuted) }
}

/// The task that made the call ended without a word.
pub fn owner_lost(id: OperationId, identity: &Identity) -> Conclusion {
    let problem = Problem::new(
        Code::OutcomeUnknown,
        "The gateway lost track of this call in an internal error; its record says what is known once the lease is over.",
    )
    .with_status(502);
    Conclusion::Problem { problem, marks: marks(id, identity, Execution::Unknown) }
}

/// A step that the table of edges refuses is a fault of ours; nothing was sent on its account.
pub fn internal(named: &NamedCall, error: &IllegalTransition) -> Conclusion {
    tracing::error!(operation = %named.id, %error, "illegal transition refused");
    in_progress(named.id, &named.identity)
}

/// The store did not take the claim, or what it holds of the call cannot be read.
pub fn store_unavailable(named: &NamedCall, error: &StoreError) -> Conclusion {
    let may_have_run = error.unreadable().is_some() || matches!(error, StoreError::LostMemory(_));
    let execution = if may_have_run { Execution::Unknown } else { Execution::NotExecuted };
    Conclusion::Problem { problem: store_problem(error), marks: marks(named.id, &named.identity, execution) }
}

/// The call is being made here, and the store cannot say whether somebody else has ended it.
pub fn in_flight_without_store(named: &NamedCall, error: &StoreError) -> Conclusion {
    known_without_store(marks(named.id, &named.identity, Execution::InProgress), error)
}

/// The store was read, and what it said came to `so_far`; now it does not answer.
pub fn unsent_without_store(named: &NamedCall, so_far: Execution, error: &StoreError) -> Conclusion {
    match so_far {
        Execution::NotExecuted => store_unavailable(named, error),
        so_far => known_without_store(marks(named.id, &named.identity, so_far), error),
    }
}

/// The record was read at `now`, and then the store took no step: what the record said is what is known.
pub fn met_without_store(operation: &Operation, now: Timestamp, error: &StoreError) -> Conclusion {
    known_without_store(Marks { execution: Some(execution_at(operation, now)), ..marks_of(operation) }, error)
}

/// As [`execution_of`]; nobody is at work where the lease is over at `now`.
pub fn execution_at(operation: &Operation, now: Timestamp) -> Execution {
    let may_have_run = operation.may_have_run || operation.state.name() == StateName::Sent;
    match execution_of(operation) {
        Execution::InProgress if may_have_run && operation.is_ownerless(now) => Execution::Unknown,
        execution => execution,
    }
}

fn known_without_store(marks: Marks, error: &StoreError) -> Conclusion {
    let earlier = earlier(marks.execution);
    let problem = if error.unreadable().is_some() || matches!(error, StoreError::LostMemory(_)) {
        store_problem(error)
    } else {
        Problem::new(Code::StoreUnavailable, format!("This request was not sent: {error}.{earlier}"))
            .with_advice(IN_FLIGHT)
            .with_retry_after(SOON)
    };
    Conclusion::Problem { problem, marks }
}

/// What has to be said beside "this one was not sent".
fn earlier(execution: Option<Execution>) -> &'static str {
    match execution {
        Some(Execution::InProgress) => " An earlier one with this key is running, and it may have run by now.",
        Some(Execution::Executed | Execution::Unknown) => " An earlier one with this key may have run.",
        Some(Execution::NotExecuted) | None => "",
    }
}

/// Nobody can look the call up now.
pub fn look_up_problem(error: &StoreError) -> Problem {
    if error.unreadable().is_some() {
        return store_problem(error);
    }
    let detail = format!("The gateway cannot look this up now: {error}. This says nothing about the call.");
    Problem::new(Code::StoreUnavailable, detail).with_advice(NOT_LOOKED_UP).with_retry_after(SOON)
}

/// A store that does not answer, or whose record cannot be read, as a problem.
pub fn store_problem(error: &StoreError) -> Problem {
    if matches!(error, StoreError::LostMemory(_)) {
        let detail = format!(
            "This request was not sent: {error}. Calls are taken again when an operator has looked at it and says \
             POST /v1/store/accept-loss on the admin listener."
        );
        return Problem::new(Code::StoreUnavailable, detail).with_advice(LOST_MEMORY).with_retry_after(LATER);
    }
    match error.unreadable() {
        Some(why) => unreadable(why),
        None => {
            let problem = Problem::new(Code::StoreUnavailable, format!("This request was not sent: {error}."));
            Problem { store_away: true, ..problem.with_retry_after(SOON) }
        }
    }
}

/// As [`store_problem`], for a call of which an attempt went out and came to nothing.
pub fn store_problem_between_attempts(error: &StoreError) -> Problem {
    let detail = format!("The call did not run, and no further attempt was sent: {error}.");
    Problem { detail, ..store_problem(error) }
}

/// What is stored of the call cannot be read, so nobody here can tell what became of it.
fn unreadable(why: Unreadable) -> Problem {
    match why {
        Unreadable::Damaged(_) => Problem::new(
            Code::ResultUnavailable,
            format!("Nothing was sent: what is stored of this call cannot be read, for {why}. It may have run. {LOOK}"),
        ),
        Unreadable::NoKey(_) => {
            let detail = format!("The call was not sent: what is stored of it cannot be read, for {why}.");
            Problem::new(Code::StoreUnavailable, detail).with_advice(NO_KEY).with_retry_after(LATER)
        }
        Unreadable::TooNew(_) => {
            let detail = format!("The call was not sent: what is stored of it cannot be read, for {why}.");
            Problem::new(Code::RecordTooNew, detail).with_retry_after(SOON)
        }
    }
}

/// What is stored of the call does not make a request any more; its owner has it, and sends nothing.
pub fn unsendable(operation: &Operation) -> Conclusion {
    let detail = format!(
        "The stored request of {} cannot be sent on route `{}` as it is now.",
        operation.id, operation.identity.route
    );
    let (code, execution) = match operation.may_have_run {
        true => (Code::OutcomeUnknown, Execution::Unknown),
        false => (Code::UpstreamFailed, Execution::NotExecuted),
    };
    let problem = Problem::new(code, detail).with_status(502);
    Conclusion::Problem { problem, marks: Marks { execution: Some(execution), ..marks_of(operation) } }
}

/// The scope has as many unfinished operations as it may.
pub fn too_many_open(named: &NamedCall, most: u64) -> Conclusion {
    let detail = format!(
        "This caller has {most} unfinished operations, as many as store.max_open allows; this call was not sent. \
         Those that run end by themselves; unknown ones stay (GET /v1/operations?state=unknown on the admin port)."
    );
    let problem = Problem::new(Code::RateLimited, detail).with_advice(NO_ROOM).with_retry_after(SOON);
    Conclusion::Problem { problem, marks: marks(named.id, &named.identity, Execution::NotExecuted) }
}

/// The route's own limit is used up; `execution` is what came of the call before.
pub fn rate_limited(named: &NamedCall, execution: Execution, over: OverRate) -> Conclusion {
    let mut problem = rate_problem(&named.call.route, over);
    problem.detail += earlier(Some(execution));
    Conclusion::Problem { problem, marks: marks(named.id, &named.identity, execution) }
}

/// A gate of its upstream does not let the call through; `execution` is what came of it before.
pub(super) fn held_back(named: &NamedCall, execution: Execution, refused: Refused) -> Conclusion {
    let mut problem = gate_problem(&named.call.route, refused);
    problem.detail += earlier(Some(execution));
    Conclusion::Problem { problem, marks: marks(named.id, &named.identity, execution) }
}

/// A gate of an upstream, as a problem.
pub(super) fn gate_problem(route: &Route, refused: Refused) -> Problem {
    let upstream = &route.upstream.name;
    match refused {
        Refused::Paused(whom, wait) => {
            let whose = match whom {
                Whom::Everybody => "",
                Whom::Holder(_) => " with this credential",
            };
            let detail = format!("Calls to `{upstream}`{whose} are paused; this one was not sent.");
            Problem::new(Code::RateLimited, detail).with_retry_after(wait)
        }
        Refused::BreakerOpen(last, wait) => {
            let last = last.map(|cause| format!(" (last: {cause})")).unwrap_or_default();
            let detail = format!(
                "Upstream `{upstream}` has failed time and again{last}, so nothing is sent to it for a while; this call \
                 was not."
            );
            Problem::new(Code::BreakerOpen, detail).with_retry_after(wait)
        }
        Refused::OverBudget => {
            let detail =
                format!("Upstream `{upstream}` has had its share of retries (retry.budget); this one was not sent.");
            Problem::new(Code::Overloaded, detail).with_retry_after(refused.wait())
        }
        Refused::Full => {
            let detail = format!(
                "Route `{}` has as many calls under way as it may (limit.concurrency); this one was not sent.",
                route.name
            );
            Problem::new(Code::Overloaded, detail).with_retry_after(SOON)
        }
    }
}

/// The route's own limit, as a problem.
pub fn rate_problem(route: &Route, over: OverRate) -> Problem {
    let whose = if over.by_caller { "of this caller (limit.rate_per_scope)" } else { "(limit.rate)" };
    let detail = format!("Route `{}` takes no more calls {whose} now; this one was not sent.", route.name);
    Problem { quota_used_up: true, ..Problem::new(Code::RateLimited, detail).with_retry_after(over.wait) }
}

/// A call without a key of its own, while an identical one is unresolved.
pub fn unresolved_alike(named: &NamedCall, found: &Found, now: Timestamp) -> Conclusion {
    let operation = &found.operation;
    let rule = named.resend_rule();
    let detail = format!(
        "An identical call without a key is {} as operation {}; this one was not sent.",
        operation.state.name(),
        operation.id
    );
    let code = match operation.state.name() {
        StateName::AwaitingApproval => Code::AwaitingApproval,
        _ => Code::OutcomeUnknown,
    };
    let problem = match operation.admit(None, &rule, now) {
        Admission::ClaimAgain | Admission::TakeOver => found_out(Problem::new(code, detail), rule.repeat),
        _ => Problem::new(code, detail),
    };
    Conclusion::Problem { problem, marks: marks_of(operation) }
}

/// A call in doubt to a service that may get it again: whoever sends it under its own key finds out.
pub fn found_out(problem: Problem, repeat: Repeat) -> Problem {
    let advice = match repeat {
        Repeat::Unsafe => return problem,
        Repeat::WithKey => FINDS_OUT,
        Repeat::Harmless => MAY_RUN_TWICE,
    };
    Problem { retryable: true, ..problem.with_advice(advice) }
}

/// The row of the claim table for a record that nobody is going to move now.
pub fn of_record(found: &Found, row: Admission) -> Conclusion {
    let operation = &found.operation;
    let marks = marks_of(operation);
    let problem = match row {
        Admission::KeyReused => Problem::new(Code::KeyReused, KEY_REUSED),
        Admission::ClaimAgain => not_executed(operation),
        Admission::InProgress | Admission::TakeOver | Admission::Lapse => {
            return in_progress(operation.id, &operation.identity);
        }
        Admission::Replay => match (&found.receipt, found.lost) {
            (Some(receipt), _) => return Conclusion::Receipt { receipt: receipt.clone(), marks },
            (None, Some(Unreadable::Damaged(damage))) => lost_receipt(operation, damage),
            (None, Some(why @ (Unreadable::TooNew(_) | Unreadable::NoKey(_)))) => unreadable(why),
            (None, None) => Problem::new(Code::ResultExpired, "The call ran; its receipt has run out."),
        },
        Admission::Expired => Problem::new(Code::ResultExpired, "The call ran; its receipt has run out."),
        Admission::Unavailable(_) => unavailable(operation),
        Admission::Unknown => unknown(operation),
        Admission::AwaitingApproval => Problem::new(Code::AwaitingApproval, "The call waits for an operator."),
        Admission::Rejected => Problem::new(Code::Rejected, "An operator rejected the call."),
        Admission::Abandoned => Problem::new(Code::Abandoned, "An operator gave the call up."),
    };
    Conclusion::Problem { problem, marks }
}

/// It did not run. Whoever asks next makes the call anew.
fn not_executed(operation: &Operation) -> Problem {
    let why = match &operation.state {
        State::NotExecuted { cause } => format!("The call did not run: {cause}."),
        _ => "The call did not run, and its run was ended.".to_owned(),
    };
    Problem::new(Code::UpstreamFailed, why)
}

/// It ran, and its answer is not here.
pub fn unavailable(operation: &Operation) -> Problem {
    let is_cut = operation.state.settled().is_some_and(|settled| settled.kept == Kept::Cut);
    without_answer(operation, if is_cut { CUT } else { NOT_KEPT })
}

/// It ran, and its receipt is there, but so are too many answers that their callers have not read yet.
pub fn no_room() -> Problem {
    let detail = "The call ran, and there is no room now to tell its answer beside the others (server.buffers).";
    Problem::new(Code::Overloaded, detail).with_retry_after(SOON)
}

/// It ran, and its answer was kept and is damaged now.
fn lost_receipt(operation: &Operation, damage: Damage) -> Problem {
    without_answer(operation, format!("The call ran, but its stored answer cannot be read any more: {damage}. {LOOK}"))
}

fn without_answer(operation: &Operation, detail: impl Into<String>) -> Problem {
    let mut problem = Problem::new(Code::ResultUnavailable, detail);
    problem.lost = operation.state.settled().map(|settled| LostAnswer {
        status: settled.status,
        length: settled.length,
        digest: settled.digest,
    });
    problem
}

/// Nobody can say whether it ran.
pub fn unknown(operation: &Operation) -> Problem {
    let why = match &operation.state {
        State::Unknown { cause, .. } => format!("Not sent again: {cause}, and an attempt of the call may have run."),
        _ => "Not sent again: an earlier attempt may have run.".to_owned(),
    };
    Problem::new(Code::OutcomeUnknown, why)
}
