//! Calls that nobody records: reads, and writes that their route lets through. They stream both ways, and they are
//! retried by the same rules, as far as their body allows.

use std::pin::pin;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use tokio::time::{Instant, sleep, timeout_at};

use crate::clock::Timestamp;
use crate::config::Route;
use crate::engine::answer::{Answer, Body, Content, Execution, Marks, Unguarded};
use crate::engine::attempt::{
    ATTEMPT, UNASKED, freshness, from_upstream, insert, is_over, is_stream, meant_status, route_lines,
    tell_what_is_left,
};
use crate::engine::gates::{Came, Entrant, Permit, Place, Refused, may_probe, whom};
use crate::engine::judge::Judgement;
use crate::engine::problem::{Code, Problem};
use crate::engine::status::Refusal;
use crate::engine::{Engine, Lane, refusal};
use crate::operation::admission::Repeat;
use crate::operation::outcome::{Fact, Outcome, Silence};
use crate::operation::{Cause, Scope};
use crate::retry::decide::{self, Decision, Ending, Situation, Stop};
use crate::retry::pause::Whom;
use crate::upstream::{
    ConnectError, Connection, LookedAhead, OnInterim, ReceivedBody, Reply, SendBody, SendError, Switched, set_upgrade,
    switches_as_asked,
};

/// Bytes of an answer that are held back from its caller where they decide what it means.
const LOOKED_AT: u64 = 64 * 1024;

const READ_IN_DOUBT: &str = "Send the same call again if it is still wanted: it counts as a read, so it may reach the service \
                             a second time.";

/// A request that goes through without a record.
pub struct Passage {
    pub route: Arc<Route>,
    /// Who waits for a place, where there is a line.
    pub scope: Scope,
    pub method: Method,
    /// Path and query as they go upstream.
    pub target: String,
    /// With an `Upgrade` where the caller would rather go on in another protocol.
    pub headers: HeaderMap,
    pub body: SendBody,
    /// Hears what the upstream says before its answer.
    pub interim: Option<OnInterim>,
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
    may_probe: bool,
    tries: decide::Run,
    /// Of these tries, those that had a connection to send on.
    sends: u32,
    may_have_run: bool,
    new_connection: bool,
}

/// One attempt of it.
struct Passed {
    outcome: Outcome,
    answer: Option<Response<Body>>,
    judgement: Judgement,
    failure: String,
}

/// How an attempt ends.
#[expect(clippy::large_enum_variant, reason = "the large one is what nearly all of them are")]
enum Tried {
    Passed(Passed),
    /// The upstream goes on in another protocol.
    Switched(HeaderMap, Box<Switched>),
}

impl Engine {
    /// A request that nobody records: a read, or a write that its route lets through. Dropping the future closes the
    /// upstream's connection.
    pub async fn unguarded(&self, mut passage: Passage) -> Answer {
        let Some(lane) = self.lane(&passage.route) else { return unsendable(&passage) };
        let Some(mut progress) = prepare(&mut passage) else { return unsendable(&passage) };
        let mut permit = match self.let_in(lane, &passage, &progress).await {
            Ok(permit) => permit,
            Err(problem) => return refused(&passage, problem),
        };
        if let Some(reason) = passage.unguarded {
            lane.counters.unguarded(reason).add();
        }
        loop {
            progress.tries = progress.tries.next_try();
            lane.gate.count(progress.tries.tries);
            let passed = match attempt(lane, &passage, &mut progress, &mut permit).await {
                Tried::Passed(passed) => self.judged(lane, &passage, &mut permit, passed).await,
                Tried::Switched(headers, stream) => {
                    let (fact, policy) = (&Fact::Final { status: 101 }, &passage.route.retry);
                    let came = Came { fact, hint: None, whom: &|| passage.whom(), policy };
                    self.report(&lane.gate, Some(&mut permit), &came);
                    return switched(&passage, &progress, headers, stream);
                }
            };
            let (fact, hint) = (passed.judgement.fact(&passed.outcome), passed.judgement.advice.hint);
            let came = Came { fact: &fact, hint, whom: &|| passage.whom(), policy: &passage.route.retry };
            // What its caller broke off says nothing about the upstream.
            if !passage.body.is_broken() {
                self.report(&lane.gate, Some(&mut permit), &came);
            }
            match self.decide_passage(lane, &passage, &progress, &passed) {
                Decision::Retry { wait, ended, new_connection, run, .. } => {
                    progress.may_have_run |= ended.may_have_run;
                    progress.tries = run;
                    progress.new_connection = new_connection;
                    drop(permit);
                    let last = passed.put_aside(&passage.body).await;
                    sleep(wait).await;
                    permit = match self.admit_passage(lane, &passage, &progress).await {
                        Ok(permit) => permit,
                        Err(gate) => {
                            let ending = without_answer(ended.cause, progress.may_have_run);
                            let stop = Some(gate.stop(&passage.route.retry));
                            return finish(&passage, &progress, last, (ending, stop));
                        }
                    };
                }
                Decision::End { ending, stop } => {
                    return finish(&passage, &progress, passed.holding(permit.take_place()), (ending, stop));
                }
            }
        }
    }

    async fn let_in(&self, lane: &Lane, passage: &Passage, progress: &Progress) -> Result<Permit, Problem> {
        let route = &passage.route;
        let gate_problem = |refused: Refused| {
            refused.reason().into_iter().for_each(|reason| lane.counters.refused(reason).add());
            refusal::gate_problem(route, refused)
        };
        if self.shared.limits.has(&route.name) {
            lane.gate.turn_away(&entrant(passage, progress)).map_err(gate_problem)?;
            let taken = self.take_rate(route, &passage.scope, passage.deadline).await;
            taken
                .inspect_err(|_| lane.counters.refused(Refusal::Rate).add())
                .map_err(|over| refusal::rate_problem(route, over))?;
        }
        self.admit_passage(lane, passage, progress).await.map_err(gate_problem)
    }

    /// By the head of the answer, and where that is not enough by the begin of its body, which stays with the rest.
    async fn judged(&self, lane: &Lane, passage: &Passage, permit: &mut Permit, mut passed: Passed) -> Passed {
        let now = self.store().now();
        if let Some(answer) = &passed.answer {
            passed.judgement = Judgement::of_head(&passage.route, &passed.outcome, answer.headers(), now);
        }
        if passed.judgement.wants_body {
            passed.look_into_body(passage, permit, now).await;
        }
        lane.counters.note(&passed.judgement);
        passed
    }

    /// A call that nobody records waits for a pause, before its first attempt and between two.
    async fn admit_passage(&self, lane: &Lane, passage: &Passage, progress: &Progress) -> Result<Permit, Refused> {
        if let Some(permit) = lane.gate.admit_at_once(progress.may_probe) {
            return Ok(permit);
        }
        Box::pin(self.pass_gates(&lane.gate, &entrant(passage, progress))).await
    }

    fn decide_passage(&self, lane: &Lane, passage: &Passage, progress: &Progress, passed: &Passed) -> Decision {
        let advice = passed.judgement.advice;
        let situation = Situation {
            fact: passed.judgement.fact(&passed.outcome),
            repeat: progress.repeat,
            deletes: passage.method == Method::DELETE,
            may_have_run: progress.may_have_run,
            vetoed: advice.vetoed,
            promoted: advice.promoted,
            replayable: !passage.body.is_taken(),
            hint: advice.hint,
            may_park: false,
            left: passage.deadline.saturating_duration_since(Instant::now()),
            run: progress.tries,
        };
        lane.gate.decide(&situation, progress.may_probe, &passage.route.retry, &self.shared.entropy)
    }
}

/// A with-key upstream that gets no key is an unsafe one for all but reads. A switch that was begun is not begun anew,
/// for nobody knows what the first one opened.
fn prepare(passage: &mut Passage) -> Option<Progress> {
    let (route, switches) = (passage.route.clone(), passage.headers.contains_key(UPGRADE));
    let own = route_lines(&passage.headers, &route, passage.key.as_deref())?;
    insert(&mut passage.headers, own);
    let key_header = route.key.header_upstream();
    let repeat = match route.repeat_for(&passage.method) {
        _ if switches => Repeat::Unsafe,
        _ if !passage.headers.contains_key(key_header) => route.repeat_without_key(&passage.method),
        repeat => repeat,
    };
    // A read changes nothing, whatever its route says of repeats.
    let may_probe = may_probe(repeat) || (passage.unguarded.is_none() && !switches);
    let (uri, tries) = (passage.target.parse().ok()?, decide::Run::default());
    Some(Progress { uri, repeat, may_probe, tries, sends: 0, may_have_run: false, new_connection: false })
}

fn entrant(passage: &Passage, progress: &Progress) -> Entrant {
    Entrant {
        may_probe: progress.may_probe,
        whom: passage.whom(),
        scope: passage.scope.clone(),
        deadline: passage.deadline,
        patience: passage.route.retry.retry_after_max,
        is_new: progress.tries.tries == 0,
    }
}

async fn attempt(lane: &Lane, passage: &Passage, progress: &mut Progress, permit: &mut Permit) -> Tried {
    let connection = match timeout_at(passage.deadline, checkout(lane, passage, progress)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Tried::Passed(Passed::not_sent(Cause::Connect, false, error)),
        Err(_elapsed) => return Tried::Passed(Passed::too_late()),
    };
    if is_over(passage.deadline) {
        return Tried::Passed(Passed::too_late());
    }
    let reused = connection.reused();
    lane.counters.attempts.add();
    progress.sends += 1;
    Tried::Passed(match headed(passage, permit, pin!(exchange(connection, passage, progress))).await {
        Some(Ok(Reply::Switched(response))) => return switch(passage, response),
        Some(Ok(Reply::Answer(response))) => Passed::answered(response),
        Some(Err(error @ SendError::NotSent { .. })) => Passed::not_sent(Cause::Connect, reused, error),
        Some(Err(error @ SendError::ShutOut { .. })) => Passed::not_sent(Cause::Connect, false, error),
        Some(Err(error @ SendError::Refused { .. })) => Passed::bare(Outcome::TurnedAway, error),
        Some(Err(error @ SendError::MaybeSent { .. })) => Passed::bare(Outcome::Silent(Silence::Closed), error),
        Some(Err(error @ SendError::BadHead { .. })) => Passed::bare(Outcome::BadHead, error),
        None => Passed::bare(Outcome::Silent(Silence::Timeout), "no answer within the attempt timeout"),
    })
}

/// The begin of a body, as far as it comes before the deadline. Nobody else waits for one that takes its time.
async fn begun(passage: &Passage, permit: &mut Permit, answer: &mut Response<Body>) -> LookedAhead {
    let mut looking = pin!(look_ahead(answer));
    let soon = passage.deadline.min(Instant::now() + passage.route.retry.attempt_timeout);
    if let Ok(looked) = timeout_at(soon, &mut looking).await {
        return looked;
    }
    permit.let_go();
    timeout_at(passage.deadline, looking).await.unwrap_or(LookedAhead::Longer)
}

async fn look_ahead(answer: &mut Response<Body>) -> LookedAhead {
    let is_stream = match answer.body() {
        Body::Passed { body, .. } => is_stream(answer.headers(), body),
        Body::Whole(_) | Body::Live(_) | Body::Switched(_) => true,
    };
    match answer.body_mut() {
        Body::Passed { body, .. } if !is_stream => body.look_ahead(LOOKED_AT).await,
        _ => LookedAhead::Longer,
    }
}

async fn checkout(lane: &Lane, passage: &Passage, progress: &Progress) -> Result<Connection, ConnectError> {
    if passage.headers.contains_key(UPGRADE) {
        return lane.client.checkout_to_switch().await;
    }
    lane.client.checkout(freshness(progress.repeat, progress.new_connection)).await
}

/// Waits for the head of the answer, as long as an attempt may take. An upload takes its own time, and each of its pieces
/// that goes out puts the end off: how long a piece may take is bounded on its way in. Nobody else waits for that.
async fn headed<T>(passage: &Passage, permit: &mut Permit, mut sending: impl Future<Output = T> + Unpin) -> Option<T> {
    let start = Instant::now();
    let patience = passage.deadline.saturating_duration_since(start).min(passage.route.retry.attempt_timeout);
    let mut until = start + patience;
    loop {
        if let Ok(answer) = timeout_at(until, &mut sending).await {
            return Some(answer);
        }
        let put_off = passage.body.taken_at().map(|taken| taken + patience);
        until = put_off.filter(|later| *later > until)?;
        permit.let_go();
    }
}

async fn exchange(connection: Connection, passage: &Passage, progress: &Progress) -> Result<Reply, SendError> {
    let request = request(passage, progress);
    if passage.headers.contains_key(UPGRADE) {
        return Box::pin(connection.switch(request)).await;
    }
    connection.telling(passage.interim.clone()).send(request).await.map(Reply::Answer)
}

/// A 101 must keep to what was asked for; its head is all that HTTP has to say on the connection.
fn switch(passage: &Passage, response: Response<Switched>) -> Tried {
    let (head, stream) = response.into_parts();
    let protocol = head.headers.get(UPGRADE).cloned();
    let as_asked = passage.headers.get(UPGRADE).is_some_and(|asked| switches_as_asked(&head.headers, asked));
    let Some(protocol) = protocol.filter(|_| as_asked) else {
        return Tried::Passed(Passed::bare(Outcome::BadHead, UNASKED));
    };
    let mut headers = from_upstream(head.version, head.headers);
    headers.remove(CONTENT_LENGTH);
    set_upgrade(&mut headers, protocol);
    Tried::Switched(headers, Box::new(stream))
}

fn switched(passage: &Passage, progress: &Progress, headers: HeaderMap, stream: Box<Switched>) -> Answer {
    let status = StatusCode::SWITCHING_PROTOCOLS;
    let content = Content::Upstream { status, headers, body: Body::Switched(stream) };
    Answer { content, marks: marks(passage, progress, None, Execution::Executed) }
}

fn request(passage: &Passage, progress: &Progress) -> Request<SendBody> {
    let mut request = Request::new(passage.body.clone());
    *request.method_mut() = passage.method.clone();
    *request.uri_mut() = progress.uri.clone();
    *request.headers_mut() = passage.headers.clone();
    let left = passage.deadline.saturating_duration_since(Instant::now());
    request.headers_mut().insert(ATTEMPT, HeaderValue::from(progress.tries.tries));
    tell_what_is_left(request.headers_mut(), left);
    request
}

impl Passage {
    fn whom(&self) -> Whom {
        whom(&self.route.upstream, self.headers.iter())
    }
}

impl Passed {
    fn answered(response: Response<ReceivedBody>) -> Self {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Self::bare(Outcome::BadHead, UNASKED);
        }
        let (mut head, body) = response.into_parts();
        head.headers = from_upstream(head.version, head.headers);
        let outcome = Outcome::Answer { status: meant_status(head.status, &head.headers) };
        let body = Body::Passed { body, reason: head.extensions.remove(), place: None };
        let answer = Some(Response::from_parts(head, body));
        Self { outcome, answer, judgement: Judgement::default(), failure: String::new() }
    }

    /// The place that its body takes.
    fn holding(mut self, held: Option<Place>) -> Self {
        if let Some(Body::Passed { place, .. }) = self.answer.as_mut().map(Response::body_mut) {
            *place = held;
        }
        self
    }

    fn too_late() -> Self {
        Self::not_sent(Cause::Deadline, false, "the deadline was over")
    }

    fn not_sent(cause: Cause, reused_connection: bool, failure: impl ToString) -> Self {
        Self::bare(Outcome::NotSent { cause, reused_connection }, failure)
    }

    fn bare(outcome: Outcome, failure: impl ToString) -> Self {
        Self { outcome, answer: None, judgement: Judgement::default(), failure: failure.to_string() }
    }

    /// Judges by as much of the body as can be held back from the caller.
    async fn look_into_body(&mut self, passage: &Passage, permit: &mut Permit, now: Timestamp) {
        let Some(answer) = &mut self.answer else { return };
        let body = match begun(passage, permit, answer).await {
            LookedAhead::Whole(body) => Some(body),
            LookedAhead::Longer => None,
            LookedAhead::Cut => return self.outcome = self.outcome.cut(),
        };
        let (headers, body) = (answer.headers(), body.as_deref());
        self.judgement = self.judgement.of_body(&passage.route, &self.outcome, headers, body, now);
    }

    /// Without its connection: the answer stays if it is short, for the case that no further attempt is made. While it is
    /// read its exchange goes on with what is left of the request: a stream that is still whole must not be taken from by
    /// then, so that the next attempt has all of it.
    async fn put_aside(self, request: &SendBody) -> Self {
        let is_over = http_body::Body::is_end_stream(request) || matches!(request, SendBody::Full(_));
        let answer = self.answer.filter(|_| is_over);
        let Some(answer) = answer else { return Self { answer: None, ..self } };
        let (head, body) = answer.into_parts();
        let kept = match body {
            Body::Passed { body, .. } => body.put_aside().await,
            Body::Whole(body) => Some(body),
            Body::Live(_) | Body::Switched(_) => None,
        };
        Self { answer: kept.map(|body| Response::from_parts(head, Body::Whole(body))), ..self }
    }
}

/// The end of a run whose last answer is none to settle with.
fn without_answer(cause: Cause, may_have_run: bool) -> Ending {
    if may_have_run { Ending::Unknown(cause) } else { Ending::NotExecuted(cause) }
}

fn finish(passage: &Passage, progress: &Progress, passed: Passed, (ending, stop): (Ending, Option<Stop>)) -> Answer {
    let execution = match ending.ended() {
        None => Execution::Executed,
        Some(ended) if ended.may_have_run => Execution::Unknown,
        Some(_) => Execution::NotExecuted,
    };
    let content = match passed.answer {
        Some(answer) => {
            let (head, body) = answer.into_parts();
            Content::Upstream { status: head.status, headers: head.headers, body }
        }
        None => Content::Problem(problem(passage, &passed, execution)),
    };
    Answer { content, marks: marks(passage, progress, stop, execution) }
}

fn marks(passage: &Passage, progress: &Progress, stop: Option<Stop>, execution: Execution) -> Marks {
    Marks {
        attempts: progress.sends,
        stop,
        unguarded: passage.unguarded,
        execution: passage.unguarded.map(|_| execution),
        ..Marks::default()
    }
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
    let problem = Problem::new(code, detail).with_status(status);
    let is_read_in_doubt = execution == Execution::Unknown && passage.unguarded.is_none();
    if is_read_in_doubt { problem.with_advice(READ_IN_DOUBT) } else { problem }
}

/// A gate that it does not pass.
fn refused(passage: &Passage, problem: Problem) -> Answer {
    let marks = Marks {
        unguarded: passage.unguarded,
        execution: passage.unguarded.map(|_| Execution::NotExecuted),
        ..Marks::default()
    };
    Answer { content: Content::Problem(problem), marks }
}

fn unsendable(passage: &Passage) -> Answer {
    let detail = format!("Route `{}` leads to no target that can be sent.", passage.route.name);
    let content = Content::Problem(Problem::new(Code::InvalidRequest, detail));
    Answer { content, marks: Marks { unguarded: passage.unguarded, ..Marks::default() } }
}
