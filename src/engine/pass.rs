//! Calls that nobody records: reads, and writes that their route lets through. They stream both ways, and they are
//! retried by the same rules, as far as their body allows.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use tokio::time::{Instant, sleep, timeout_at};

use crate::clock::millis;
use crate::config::Route;
use crate::engine::answer::{Answer, Body, Content, Execution, Marks, Unguarded};
use crate::engine::attempt::{ATTEMPT, TIMEOUT, UNASKED, freshness, from_upstream, insert, meant_status, route_lines};
use crate::engine::problem::{Code, Problem};
use crate::engine::{Engine, Lane, refusal};
use crate::operation::Cause;
use crate::operation::admission::Repeat;
use crate::operation::outcome::{Outcome, Silence, classify};
use crate::retry::decide::{self, Decision, Ending, Situation, Stop, decide};
use crate::retry::retry_after;
use crate::upstream::{ReceivedBody, SendBody, SendError};

/// A request that goes through without a record.
pub struct Passage {
    pub route: Arc<Route>,
    pub method: Method,
    /// Path and query as they go upstream.
    pub target: String,
    pub headers: HeaderMap,
    pub body: SendBody,
    /// The key that goes along, if there is one.
    pub key: Option<String>,
    /// Why a write goes unguarded; `None` for a read.
    pub unguarded: Option<Unguarded>,
    /// No attempt starts later.
    pub deadline: Instant,
}

/// The state of a passage between two attempts.
struct Progress {
    uri: Uri,
    repeat: Repeat,
    tries: decide::Run,
    may_have_run: bool,
    new_connection: bool,
}

/// One attempt of it.
struct Passed {
    outcome: Outcome,
    answer: Option<(StatusCode, HeaderMap, ReceivedBody)>,
    failure: String,
}

impl Engine {
    /// Sends a request through. Dropping the future closes the upstream's connection.
    pub(super) async fn pass(&self, mut passage: Passage) -> Answer {
        let Some(lane) = self.lane(&passage.route) else { return unsendable(&passage) };
        if let Some(reason) = passage.unguarded {
            lane.counters.unguarded(reason).add();
        }
        let Some(mut progress) = prepare(&mut passage) else { return unsendable(&passage) };
        loop {
            progress.tries = progress.tries.next_try();
            let passed = attempt(lane, &passage, &progress).await;
            match self.decide_passage(&passage, &progress, &passed) {
                Decision::Retry { wait, ended, new_connection, run } => {
                    progress.may_have_run |= ended.may_have_run;
                    progress.tries = run;
                    progress.new_connection = new_connection;
                    if let Some((_, _, body)) = passed.answer {
                        body.discard().await;
                    }
                    sleep(wait).await;
                }
                Decision::End { ending, stop } => {
                    return finish(&passage, &progress, passed, (ending, stop));
                }
            }
        }
    }

    fn decide_passage(&self, passage: &Passage, progress: &Progress, passed: &Passed) -> Decision {
        let headers = passed.answer.as_ref().map(|(_, headers, _)| headers);
        let situation = Situation {
            fact: classify(&passed.outcome),
            repeat: progress.repeat,
            deletes: passage.method == Method::DELETE,
            may_have_run: progress.may_have_run,
            committed: false,
            vetoed: headers.is_some_and(retry_after::vetoes),
            replayable: !passage.body.is_taken(),
            hint: headers.and_then(|headers| retry_after::hint(headers, self.store().now())),
            left: passage.deadline.saturating_duration_since(Instant::now()),
            run: progress.tries,
        };
        self.shared.entropy.with(|rng| decide(&situation, &passage.route.retry, rng))
    }
}

/// A with-key upstream that gets no key is an unsafe one.
fn prepare(passage: &mut Passage) -> Option<Progress> {
    let route = passage.route.clone();
    let own = route_lines(&passage.headers, &route, passage.key.as_deref())?;
    insert(&mut passage.headers, own);
    let key_header = route.key.header_upstream();
    let repeat = match route.repeat_for(&passage.method) {
        Repeat::WithKey if !passage.headers.contains_key(key_header) => Repeat::Unsafe,
        repeat => repeat,
    };
    let uri = passage.target.parse().ok()?;
    Some(Progress { uri, repeat, tries: decide::Run::default(), may_have_run: false, new_connection: false })
}

async fn attempt(lane: &Lane, passage: &Passage, progress: &Progress) -> Passed {
    let checkout = lane.client.checkout(freshness(progress.repeat, progress.new_connection));
    let connection = match timeout_at(passage.deadline, checkout).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Passed::not_sent(Cause::Connect, false, error),
        Err(_elapsed) => return Passed::not_sent(Cause::Deadline, false, "the deadline was over"),
    };
    let reused = connection.reused();
    let until = passage.deadline.min(Instant::now() + passage.route.retry.attempt_timeout);
    lane.counters.attempts.add();
    match timeout_at(until, connection.send(request(passage, progress))).await {
        Ok(Ok(response)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            Passed::bare(Outcome::BadHead, UNASKED)
        }
        Ok(Ok(response)) => {
            let (head, body) = response.into_parts();
            let headers = from_upstream(head.headers);
            let outcome = Outcome::Answer { status: meant_status(head.status, &headers) };
            let answer = Some((head.status, headers, body));
            Passed { outcome, answer, failure: String::new() }
        }
        Ok(Err(error @ SendError::NotSent { .. })) => Passed::not_sent(Cause::Connect, reused, error),
        Ok(Err(error @ SendError::ShutOut { .. })) => Passed::not_sent(Cause::Connect, false, error),
        Ok(Err(error @ SendError::Refused { .. })) => Passed::bare(Outcome::TurnedAway, error),
        Ok(Err(error @ SendError::MaybeSent { .. })) => Passed::bare(Outcome::Silent(Silence::Closed), error),
        Ok(Err(error @ SendError::BadHead { .. })) => Passed::bare(Outcome::BadHead, error),
        Err(_elapsed) => Passed::bare(Outcome::Silent(Silence::Timeout), "no answer within the attempt timeout"),
    }
}

fn request(passage: &Passage, progress: &Progress) -> Request<SendBody> {
    let mut request = Request::new(passage.body.clone());
    *request.method_mut() = passage.method.clone();
    *request.uri_mut() = progress.uri.clone();
    *request.headers_mut() = passage.headers.clone();
    let left = passage.deadline.saturating_duration_since(Instant::now());
    request.headers_mut().insert(ATTEMPT, HeaderValue::from(progress.tries.tries));
    request.headers_mut().insert(TIMEOUT, HeaderValue::from(millis(left)));
    request
}

impl Passed {
    fn not_sent(cause: Cause, reused_connection: bool, failure: impl ToString) -> Self {
        Self::bare(Outcome::NotSent { cause, reused_connection }, failure)
    }

    fn bare(outcome: Outcome, failure: impl ToString) -> Self {
        Self { outcome, answer: None, failure: failure.to_string() }
    }
}

fn finish(passage: &Passage, progress: &Progress, passed: Passed, (ending, stop): (Ending, Option<Stop>)) -> Answer {
    let execution = match ending.ended() {
        None => Execution::Executed,
        Some(ended) if ended.may_have_run => Execution::Unknown,
        Some(_) => Execution::NotExecuted,
    };
    let marks = Marks {
        attempts: progress.tries.tries,
        stop,
        unguarded: passage.unguarded,
        execution: passage.unguarded.map(|_| execution),
        ..Marks::default()
    };
    let content = match passed.answer {
        Some((status, headers, body)) => Content::Upstream { status, headers, body: Body::Passed(body) },
        None => Content::Problem(problem(passage, &passed, execution)),
    };
    Answer { content, marks }
}

fn problem(passage: &Passage, passed: &Passed, execution: Execution) -> Problem {
    let deadline = Outcome::NotSent { cause: Cause::Deadline, reused_connection: false };
    let timed_out = passed.outcome == Outcome::Silent(Silence::Timeout) || passed.outcome == deadline;
    let status = if timed_out { 504 } else { 502 };
    let detail = format!("{} (upstream `{}`).", passed.failure, passage.route.upstream.name);
    let code = match (execution == Execution::Unknown && passage.unguarded.is_some(), timed_out) {
        (true, _) => Code::OutcomeUnknown,
        (false, true) => Code::UpstreamTimeout,
        (false, false) => Code::UpstreamFailed,
    };
    Problem::new(code, detail).with_status(status)
}

/// The route's own limit is used up.
pub(super) fn rate_limited(passage: &Passage, wait: Duration) -> Answer {
    let marks = Marks {
        unguarded: passage.unguarded,
        execution: passage.unguarded.map(|_| Execution::NotExecuted),
        ..Marks::default()
    };
    Answer { content: Content::Problem(refusal::rate_problem(&passage.route, wait)), marks }
}

fn unsendable(passage: &Passage) -> Answer {
    let detail = format!("Route `{}` leads to no target that can be sent.", passage.route.name);
    let content = Content::Problem(Problem::new(Code::InvalidRequest, detail));
    Answer { content, marks: Marks { unguarded: passage.unguarded, ..Marks::default() } }
}
