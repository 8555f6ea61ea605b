//! One attempt: connect, make the intent durable, send once, read the head.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, VIA};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout, timeout_at};

use crate::clock::{Timestamp, millis};
use crate::config::{Route, Upstream};
use crate::crash_point::{self, Point};
use crate::engine::buffers::Held;
use crate::engine::gates::{Permit, whom};
use crate::engine::judge::Judgement;
use crate::engine::owner::WriteError;
use crate::engine::report::Told;
use crate::engine::run::{Dispatch, Run};
use crate::operation::Cause;
use crate::operation::admission::Repeat;
use crate::operation::outcome::{Outcome, Silence, status_of_grpc};
use crate::retry::deadline;
use crate::retry::decide::Stop;
use crate::retry::pause::Whom;
use crate::upstream::{
    Connection, Freshness, KEPT, ReceivedBody, SendBody, SendError, drop_ours, keep_trailers, remove_hop_by_hop, via,
};

pub(super) const ATTEMPT: HeaderName = HeaderName::from_static("oncegate-attempt");
const TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout-ms");
/// Less than this cannot be told.
const LEAST_TOLD: Duration = Duration::from_millis(1);

/// An answer that switches to a protocol which nobody asked for is none.
pub(super) const UNASKED: &str = "the upstream switched to a protocol that nobody asked for";

/// In the head of an answer without a body, or in its trailers.
const GRPC_STATUS: [&str; 2] = ["grpc-status", "oncegate-trailer-grpc-status"];
/// `google.rpc.Code`, for what nobody knows the status of.
const GRPC_UNKNOWN: u16 = 2;

/// Header lines that come to those of a request.
type Lines = Vec<(HeaderName, HeaderValue)>;

/// Its parts are for the moment at which they come.
const EVENTS: &[u8] = b"text/event-stream";

/// The same where nobody knows how long the body is.
const RECORDS: [&[u8]; 6] = [
    b"application/x-ndjson",
    b"application/ndjson",
    b"application/jsonl",
    b"application/json-seq",
    b"application/stream+json",
    b"application/vnd.amazon.eventstream",
];

/// `no`: the upstream's word to proxies that would collect its answer.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The request as every attempt of a run sends it.
pub struct Outgoing {
    pub method: Method,
    uri: Uri,
    headers: Arc<HeaderMap>,
    credentials: Lines,
    own: Lines,
    body: Bytes,
}

/// What an attempt came to.
pub struct Attempted {
    pub outcome: Outcome,
    pub answer: Option<UpstreamAnswer>,
    /// What was made of it; what its head said counts even if the body is cut.
    pub judgement: Judgement,
    /// What came of a body that was cut.
    pub part: Bytes,
    /// In the words of the layer that failed, for log and problem.
    pub failure: Option<String>,
}

/// A body that broke off.
struct Cut {
    part: Bytes,
    failure: String,
}

/// An upstream's answer, with as much of its body as was read.
pub struct UpstreamAnswer {
    pub head: Head,
    pub body: AnswerBody,
}

/// What comes before the body.
pub struct Head {
    pub status: StatusCode,
    pub headers: HeaderMap,
}

/// How much of a body is here.
pub enum AnswerBody {
    Unread(ReceivedBody),
    Whole(Bytes),
    /// Longer than a receipt may be or the buffers hold, or a stream of events.
    Long(Unfinished),
}

/// A body of which the rest is still coming.
pub struct Unfinished {
    pub read: Bytes,
    pub rest: ReceivedBody,
}

impl Outgoing {
    /// The stored request with the caller's credentials, the configured headers, and the key that the upstream gets.
    pub(super) fn new(dispatch: &Dispatch, key: Option<&str>) -> Option<Self> {
        let Dispatch { route, request, credentials, .. } = dispatch;
        Some(Self {
            method: Method::from_bytes(request.method.as_bytes()).ok()?,
            uri: request.target.parse().ok()?,
            own: route_lines(&request.headers, route, key)?,
            headers: without(&request.headers, credentials),
            credentials: credentials.clone(),
            body: request.body.clone(),
        })
    }

    /// By what the upstream knows the caller.
    pub(super) fn whom(&self, upstream: &Upstream) -> Whom {
        whom(upstream, self.headers.iter().chain(self.credentials.iter().map(|(name, value)| (name, value))))
    }

    fn request(&self, attempt: u32, left: Duration) -> Request<SendBody> {
        let mut request = Request::new(SendBody::Full(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = HeaderMap::clone(&self.headers);
        let headers = request.headers_mut();
        headers.extend(self.credentials.iter().cloned());
        insert(headers, self.own.iter().cloned());
        headers.insert(ATTEMPT, HeaderValue::from(attempt));
        tell_what_is_left(headers, left);
        request
    }
}

/// Whether an upstream would have no time to speak of.
pub(super) fn is_over(deadline: Instant) -> bool {
    deadline.saturating_duration_since(Instant::now()) < LEAST_TOLD
}

/// How long the upstream has, to those who look at it. Zero would be no limit.
pub(super) fn tell_what_is_left(headers: &mut HeaderMap, left: Duration) {
    let left = left.max(LEAST_TOLD);
    headers.insert(TIMEOUT, HeaderValue::from(millis(left)));
    if headers.contains_key(deadline::GRPC_TIMEOUT)
        && let Ok(left) = HeaderValue::try_from(deadline::grpc_timeout_text(left))
    {
        headers.insert(deadline::GRPC_TIMEOUT, left);
    }
}

/// What every request to the route's upstream carries beside the caller's own `headers`, or in their place.
pub(super) fn route_lines(headers: &HeaderMap, route: &Route, key: Option<&str>) -> Option<Lines> {
    let upstream = &route.upstream;
    let mut lines = upstream.headers.clone();
    let has_host = headers.contains_key(HOST) || lines.iter().any(|(name, _)| name == HOST);
    if !upstream.keeps_client_host || !has_host {
        lines.push((HOST, HeaderValue::from_str(&upstream.authority).ok()?));
    }
    if let Some(key) = key {
        lines.push((route.key.header_upstream().clone(), HeaderValue::from_str(key).ok()?));
    }
    Some(lines)
}

/// The caller's credentials of now stand in for those that are kept.
fn without(kept: &Arc<HeaderMap>, credentials: &Lines) -> Arc<HeaderMap> {
    let mut headers = Arc::clone(kept);
    for (name, _) in credentials.iter().filter(|(name, _)| kept.contains_key(name)) {
        Arc::make_mut(&mut headers).remove(name);
    }
    headers
}

pub(super) fn insert(headers: &mut HeaderMap, lines: impl IntoIterator<Item = (HeaderName, HeaderValue)>) {
    for (name, value) in lines {
        headers.insert(name, value);
    }
}

impl Run<'_> {
    /// One try. The intent to send is durable before the first byte goes, and the lease is looked at right before it.
    ///
    /// # Errors
    /// The intent could not be made durable: nothing was sent.
    pub(super) async fn attempt(&mut self) -> Result<Attempted, WriteError> {
        self.tries = self.tries.next_try();
        self.lane.gate.count(self.tries.tries);
        let counted = std::mem::take(&mut self.counted);
        crash_point::reached(Point::BeforeConnect);
        let connection = match self.connect().await {
            Ok(connection) => connection,
            Err(attempted) => return Ok(attempted),
        };
        crash_point::reached(Point::AfterConnect);
        self.intend(counted).await?;
        match self.too_late() {
            Some(attempted) => Ok(attempted),
            None => Ok(self.send(connection).await),
        }
    }

    async fn connect(&mut self) -> Result<Connection, Attempted> {
        let freshness = freshness(self.rule.repeat, self.new_connection);
        let connecting = pin!(timeout_at(self.deadline, self.lane.client.checkout(freshness)));
        match self.owner.holding(connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(Attempted::not_sent(Cause::Connect, error)),
            Err(_elapsed) => {
                Err(Attempted::not_sent(Cause::Deadline, "the deadline was over before a connection was there"))
            }
        }
    }

    /// The write that opened the run may have counted its first attempt, and that one only. The lease is looked at when
    /// the intent is durable: whoever stood still meanwhile may have lost it.
    async fn intend(&mut self, counted: bool) -> Result<(), WriteError> {
        if !counted {
            let lease = self.owner.lease();
            self.owner.write(|operation, step| operation.mark_sent(lease, step)).await?;
        }
        self.owner.ready_to_send().await
    }

    /// Checked right before the first byte, for the store took its time: nothing begins after the deadline, and a repeat
    /// that the upstream no longer knows as one would run anew.
    fn too_late(&self) -> Option<Attempted> {
        let operation = &self.owner.operation;
        if !operation.may_be_sent(&self.rule, self.owner.store().now()) {
            return Some(Attempted::not_sent(Cause::Unsendable, "the upstream may have forgotten the key by now"));
        }
        is_over(self.deadline)
            .then(|| Attempted::not_sent(Cause::Deadline, "the deadline was over before the first byte could go"))
    }

    async fn send(&mut self, connection: Connection) -> Attempted {
        let reused = connection.reused();
        let now = Instant::now();
        let until = self.deadline.min(now + self.route.retry.attempt_timeout);
        let request =
            self.outgoing.request(self.owner.operation.attempts, self.deadline.saturating_duration_since(now));
        self.lane.counters.attempts.add();
        self.sends += 1;
        crash_point::reached(Point::BeforeSend);
        let sent = self.owner.holding(pin!(timeout_at(until, connection.send(request)))).await;
        let attempted = match sent {
            Ok(Ok(response)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                Attempted::bare(Outcome::BadHead, UNASKED)
            }
            Ok(Ok(response)) => Attempted::answered(response, &self.route, self.owner.store().now()),
            Ok(Err(error)) => Attempted::failed(&error, reused),
            Err(_elapsed) => Attempted::silent(Silence::Timeout, "no answer within the attempt timeout"),
        };
        tracing::debug!(
            operation = %self.owner.operation.id,
            attempt = self.owner.operation.attempts,
            outcome = ?attempted.outcome,
            failure = attempted.failure,
            "attempt"
        );
        attempted
    }

    /// Reads the body of an answer that would end the run, or of one that is judged by it, as far as a receipt goes. A cut
    /// one is another outcome.
    pub(super) async fn read(&mut self, mut attempted: Attempted) -> Attempted {
        let Some(answer) = attempted.answer.take() else { return attempted };
        let UpstreamAnswer { mut head, body } = answer;
        let AnswerBody::Unread(body) = body else {
            return Attempted { answer: Some(UpstreamAnswer { head, body }), ..attempted };
        };
        match self.read_body(body, &mut head.headers).await {
            Ok(body) => {
                let outcome = Outcome::Answer { status: head.status_with(&body) };
                if attempted.judgement.wants_body || outcome != attempted.outcome {
                    let (route, now) = (&self.route, self.owner.store().now());
                    let judgement = attempted.judgement;
                    attempted.judgement = judgement.of_body(route, &outcome, &head.headers, body.here(), now);
                }
                attempted.outcome = outcome;
                if matches!(body, AnswerBody::Whole(_)) {
                    drop(self.permit.as_mut().and_then(Permit::take_place));
                }
                attempted.answer = Some(UpstreamAnswer { head, body });
            }
            Err(Cut { part, failure }) => {
                attempted.outcome = match head.lacks_status() {
                    true => Outcome::Silent(Silence::Closed),
                    false => Outcome::Cut { status: head.status.as_u16() },
                };
                (attempted.part, attempted.failure) = (part, Some(failure));
            }
        }
        attempted
    }

    /// As much of it as a receipt takes. Nobody else waits for what comes of an answer that takes its time.
    async fn read_body(&mut self, body: ReceivedBody, headers: &mut HeaderMap) -> Result<AnswerBody, Cut> {
        let limit = (!is_stream(headers, &body)).then_some(self.route.max_receipt);
        self.room = self.engine.shared.buffers.for_answer();
        let mut reading = pin!(collect(body, limit, headers, &mut self.room));
        let soon = pin!(timeout(self.route.retry.attempt_timeout, &mut reading));
        if let Ok(read) = self.owner.holding(soon).await {
            return read;
        }
        self.permit.iter_mut().for_each(Permit::let_go);
        self.owner.holding(reading).await
    }
}

impl Head {
    /// What the answer means by its end. One of gRPC that has none to show counts as UNKNOWN.
    fn status_with(&self, body: &AnswerBody) -> u16 {
        match body {
            AnswerBody::Whole(_) => self.last_status(),
            AnswerBody::Unread(_) | AnswerBody::Long(_) => meant_status(self.status, &self.headers),
        }
    }

    /// The same where the body is over, and its trailers are among the headers.
    pub(super) fn last_status(&self) -> u16 {
        if self.lacks_status() { status_of_grpc(GRPC_UNKNOWN) } else { meant_status(self.status, &self.headers) }
    }

    /// Whether what came of the call is still to be said, behind the body. gRPC-Web says it in the body itself.
    pub(super) fn lacks_status(&self) -> bool {
        let is_web =
            self.headers.get(CONTENT_TYPE).is_some_and(|it| it.as_bytes().starts_with(b"application/grpc-web"));
        self.status == StatusCode::OK && is_grpc(&self.headers) && !is_web && grpc_status(&self.headers).is_none()
    }
}

impl Unfinished {
    /// Whether a receipt may still come of it. Where reading began and was broken off, it was too long for one or found no
    /// room.
    pub(super) fn may_be_kept(&self) -> bool {
        self.read.is_empty()
    }
}

impl Attempted {
    fn answered(response: Response<ReceivedBody>, route: &Route, now: Timestamp) -> Self {
        crash_point::reached(Point::AfterHead);
        let (head, body) = response.into_parts();
        let headers = from_upstream(head.version, head.headers);
        let outcome = Outcome::Answer { status: meant_status(head.status, &headers) };
        let judgement = Judgement::of_head(route, &outcome, &headers, now);
        let head = Head { status: head.status, headers };
        let answer = UpstreamAnswer { head, body: AnswerBody::Unread(body) };
        Self { outcome, answer: Some(answer), judgement, part: Bytes::new(), failure: None }
    }

    fn failed(error: &SendError, reused: bool) -> Self {
        match error {
            SendError::NotSent { .. } => {
                Self::bare(Outcome::NotSent { cause: Cause::Connect, reused_connection: reused }, error)
            }
            SendError::ShutOut { .. } => Self::not_sent(Cause::Connect, error),
            SendError::Refused { .. } => Self::bare(Outcome::TurnedAway, error),
            SendError::MaybeSent { .. } => Self::silent(Silence::Closed, error),
            SendError::BadHead { .. } => Self::bare(Outcome::BadHead, error),
        }
    }

    fn not_sent(cause: Cause, failure: impl ToString) -> Self {
        Self::bare(Outcome::NotSent { cause, reused_connection: false }, failure)
    }

    fn silent(silence: Silence, failure: impl ToString) -> Self {
        Self::bare(Outcome::Silent(silence), failure)
    }

    fn bare(outcome: Outcome, failure: impl ToString) -> Self {
        let failure = Some(failure.to_string());
        Self { outcome, answer: None, judgement: Judgement::default(), part: Bytes::new(), failure }
    }

    /// Without its connection: the answer stays if it is short, for the case that no further attempt is made.
    pub async fn put_aside(self) -> Self {
        let Some(UpstreamAnswer { head, body }) = self.answer else { return self };
        let body = match body {
            AnswerBody::Unread(body) => body.put_aside().await,
            AnswerBody::Whole(body) => Some(body).filter(|body| body.len() <= KEPT),
            AnswerBody::Long(_) => None,
        };
        Self { answer: body.map(|body| UpstreamAnswer { head, body: AnswerBody::Whole(body) }), ..self }
    }

    /// Whether the head of its answer leaves open what it means: a rule asks for the body, or the trailers say it.
    pub(super) fn is_open(&self) -> bool {
        self.judgement.wants_body || self.answer.as_ref().is_some_and(|answer| answer.head.lacks_status())
    }

    /// What there is to tell of it where it is the last one.
    pub(super) fn told(self, stop: Option<Stop>) -> Told {
        let hint = self.judgement.advice.hint;
        Told { answer: self.answer, hint, refused: None, failure: self.failure, outcome: self.outcome, stop }
    }
}

impl AnswerBody {
    /// The whole of it, if that is here.
    fn here(&self) -> Option<&[u8]> {
        match self {
            Self::Whole(body) => Some(body),
            Self::Unread(_) | Self::Long(_) => None,
        }
    }

    /// All of it, or what it takes to tell it live.
    pub fn whole(self) -> Result<Bytes, Box<Unfinished>> {
        match self {
            Self::Whole(body) => Ok(body),
            Self::Long(unfinished) => Err(Box::new(unfinished)),
            Self::Unread(rest) => Err(Box::new(Unfinished { read: Bytes::new(), rest })),
        }
    }
}

/// How new the connection of an attempt has to be.
pub(super) fn freshness(repeat: Repeat, new_connection: bool) -> Freshness {
    match repeat {
        _ if new_connection => Freshness::Fresh,
        Repeat::Unsafe => Freshness::Careful,
        Repeat::WithKey | Repeat::Harmless => Freshness::Reuse,
    }
}

/// The headers of an answer that came in `version`, as they may go on to a client.
pub fn from_upstream(version: Version, mut headers: HeaderMap) -> HeaderMap {
    remove_hop_by_hop(&mut headers);
    drop_ours(&mut headers);
    headers.append(VIA, via(version));
    headers
}

/// The status that an answer means: gRPC says what came of a call in a status of its own, beside a 200, in the head or in
/// trailers that are kept.
pub(super) fn meant_status(status: StatusCode, headers: &HeaderMap) -> u16 {
    if status != StatusCode::OK || !is_grpc(headers) {
        return status.as_u16();
    }
    grpc_status(headers).map_or(status.as_u16(), status_of_grpc)
}

fn grpc_status(headers: &HeaderMap) -> Option<u16> {
    let said = GRPC_STATUS.iter().find_map(|name| headers.get(*name))?;
    Some(said.to_str().ok().and_then(|code| code.parse().ok()).unwrap_or(GRPC_UNKNOWN))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|media| media.as_bytes().starts_with(b"application/grpc"))
}

/// Whether nobody should wait for the end of a body: of events, of records one after another, or with a wish not to be
/// buffered that is meant for proxies like this one.
pub(super) fn is_stream(headers: &HeaderMap, body: &ReceivedBody) -> bool {
    let media = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let media = media.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if media.eq_ignore_ascii_case(EVENTS) {
        return !body.is_end_stream();
    }
    let unbuffered = headers.get(BUFFERING).is_some_and(|wish| wish.as_bytes().eq_ignore_ascii_case(b"no"));
    let goes_on = unbuffered || RECORDS.iter().any(|records| media.eq_ignore_ascii_case(records));
    goes_on && body.size_hint().exact().is_none()
}

/// Reads up to `limit`; nothing of a stream, which has none.
async fn collect(
    mut body: ReceivedBody,
    limit: Option<u64>,
    headers: &mut HeaderMap,
    room: &mut Held,
) -> Result<AnswerBody, Cut> {
    let Some(limit) = limit else {
        return Ok(AnswerBody::Long(Unfinished { read: Bytes::new(), rest: body }));
    };
    let mut read: Vec<Bytes> = Vec::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Err(Cut { part: joined(read), failure: error.to_string() }),
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                keep_trailers(headers, &frame.into_trailers().unwrap_or_default());
                continue;
            }
        };
        length += data.len() as u64;
        let fits = length <= limit && room.grow(data.len() as u64);
        read.push(data);
        crash_point::reached(Point::InBody);
        if !fits {
            room.give_back();
            return Ok(AnswerBody::Long(Unfinished { read: joined(read), rest: body }));
        }
    }
    Ok(AnswerBody::Whole(joined(read)))
}

/// One piece is the usual case, and is not copied.
fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        0 => Bytes::new(),
        1 => pieces.swap_remove(0),
        _ => pieces.concat().into(),
    }
}
