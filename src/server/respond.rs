//! Answers as they go out: the headers that say what the gateway knows, and problems in a form that every client shows.

use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, LOCATION, RETRY_AFTER, TRAILER, VIA,
    WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::Body as _;
use hyper::ext::ReasonPhrase;
use serde::Serialize;

use crate::engine::answer::{Answer, Body, Compensation, Content, Marks, Unguarded};
use crate::engine::problem::{Code, Problem};
use crate::retry::decide::Stop;
use crate::retry::retry_after::seconds_for;
use crate::server::body::ResponseBody;
use crate::server::document::{Accepted, Document};
use crate::upstream::trailer_name;

const OURS: &str = "oncegate-";
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const SOURCE: HeaderName = HeaderName::from_static("oncegate-source");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const KEY_SOURCE: HeaderName = HeaderName::from_static("oncegate-key-source");
const OPERATION: HeaderName = HeaderName::from_static("oncegate-operation");
const EXECUTION: HeaderName = HeaderName::from_static("oncegate-execution");
const ATTEMPTS: HeaderName = HeaderName::from_static("oncegate-attempts");
const GUARDED: HeaderName = HeaderName::from_static("oncegate-guarded");
const EARLIER: HeaderName = HeaderName::from_static("oncegate-earlier");
const STOP: HeaderName = HeaderName::from_static("oncegate-stop");
const RECEIPT: HeaderName = HeaderName::from_static("oncegate-receipt");
const PRIOR_OUTCOME: HeaderName = HeaderName::from_static("oncegate-prior-outcome");
const COMPENSATION: HeaderName = HeaderName::from_static("oncegate-compensation");
/// Of the draft of the IETF, with the one quota that a route has.
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
/// For a status that has no usual words: hyper would make some up.
const NO_REASON: ReasonPhrase = ReasonPhrase::from_static(b"");
const SHOULD_RETRY: [&str; 2] = ["x-should-retry", "stripe-should-retry"];

/// An answer of the engine, to a request of this method.
pub fn answer(answer: Answer, method: &Method) -> Response<ResponseBody> {
    let marks = answer.marks;
    match answer.content {
        Content::Upstream { status, headers, mut body } => {
            let reason = match &mut body {
                Body::Passed { reason, .. } => reason.take(),
                Body::Whole(_) | Body::Live(_) | Body::Switched(_) => None,
            };
            let mut response = upstream(status, headers, body.into(), method, &marks);
            if let Some(reason) = reason {
                response.extensions_mut().insert(reason);
            }
            response
        }
        Content::Accepted => accepted(&marks),
        Content::Problem(told) => problem(told, &marks),
    }
}

/// The answer of a call at an address of the gateway's own, where each caller finds what is his. What the service says of
/// caches is of its own address, and a cache in front of the gateway would give this one to anybody.
pub fn receipt(answered: Answer, method: &Method) -> Response<ResponseBody> {
    let mut response = answer(answered, method);
    let headers = response.headers_mut();
    let names: Vec<HeaderName> = headers.keys().filter(|name| speaks_to_caches(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Some caches go by a line of their own, and not by `Cache-Control` then (RFC 9213).
fn speaks_to_caches(name: &HeaderName) -> bool {
    let text = name.as_str();
    text.ends_with("cache-control") || matches!(text, "expires" | "pragma" | "surrogate-control" | "x-accel-expires")
}

/// The call is being made: where its answer can be asked for.
fn accepted(marks: &Marks) -> Response<ResponseBody> {
    let told = Accepted::of(marks);
    let mut response = json(StatusCode::ACCEPTED, &told);
    let headers = response.headers_mut();
    tell(headers, LOCATION, &told.location);
    headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static("respond-async"));
    mark(headers, marks);
    response
}

/// An upstream's answer, without its hop-by-hop headers. The lines that stay keep their order.
pub fn upstream(
    status: StatusCode,
    mut headers: HeaderMap,
    mut body: ResponseBody,
    method: &Method,
    marks: &Marks,
) -> Response<ResponseBody> {
    let trailers = drop_ours(&mut headers);
    if *method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        // Content-Length stays: it speaks of a body that is not here.
        body = ResponseBody::Empty;
    } else if matches!(body, ResponseBody::Empty | ResponseBody::Whole(_)) {
        frame(&mut headers, &body, &trailers);
    }
    if marks.stop.is_some() && !marks.calls_back(&headers) {
        do_not_retry(&mut headers);
    }
    if !trailers.is_empty() {
        body = body.with_trailers(trailers);
    }
    mark(&mut headers, marks);
    headers.insert(SOURCE, HeaderValue::from_static("upstream"));
    // A receipt does not remember how the answer came.
    headers.entry(VIA).or_insert(HeaderValue::from_static("1.1 oncegate"));
    response(status, headers, body)
}

/// Says what comes of a body that is here as a whole, instead of what came when it was read.
fn frame(headers: &mut HeaderMap, body: &ResponseBody, trailers: &HeaderMap) {
    headers.remove(TRAILER);
    if trailers.is_empty() {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.size_hint().lower()));
    } else {
        headers.remove(CONTENT_LENGTH);
        headers.extend(trailers.keys().map(|name| (TRAILER, HeaderValue::from_name(name.clone()))));
    }
}

/// A problem of the gateway's own. Where it leaves the request unread the connection ends with it.
pub fn problem(problem: Problem, marks: &Marks) -> Response<ResponseBody> {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut headers = HeaderMap::with_capacity(16);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(wait) = retry_after(&problem) {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds_for(wait)));
        if problem.quota_used_up {
            tell(&mut headers, RATE_LIMIT, format_args!("\"rate\";r=0;t={}", seconds_for(wait)));
        }
    }
    if is_final(&problem) {
        do_not_retry(&mut headers);
    }
    if problem.code == Code::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"oncegate\""));
    }
    if problem.code == Code::MethodNotAllowed {
        headers.insert(ALLOW, HeaderValue::from_static(METHODS));
    }
    if ends_connection(problem.code) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    mark(&mut headers, marks);
    headers.insert(SOURCE, HeaderValue::from_static("gateway"));
    let body = serde_json::to_vec(&Document::of(&problem, marks)).unwrap_or_default();
    response(status, headers, Bytes::from(body).into())
}

/// Whether nothing that came behind such a request is read: it was not read to its end, or not in one way only.
fn ends_connection(code: Code) -> bool {
    use Code::{BodyTooLarge, InvalidRequest, KeyInvalid, MethodNotAllowed, Overloaded};
    matches!(code, InvalidRequest | KeyInvalid | MethodNotAllowed | BodyTooLarge | Overloaded)
}

/// To an `OPTIONS` that must not be passed on (RFC 9110, section 7.6.2).
pub fn options() -> Response<ResponseBody> {
    let lines = [(ALLOW, HeaderValue::from_static(METHODS)), (SOURCE, HeaderValue::from_static("gateway"))];
    response(StatusCode::OK, HeaderMap::from_iter(lines), ResponseBody::Empty)
}

/// One of the gateway's own addresses does not take the method.
pub fn wrong_method(allow: &'static str) -> Response<ResponseBody> {
    let detail = format!("This address of the gateway takes {allow} only.");
    let told =
        Problem::new(Code::MethodNotAllowed, detail).with_advice("Ask this address by a method that Allow names.");
    let mut response = problem(told, &Marks::default());
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// JSON of the gateway's own addresses.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response<ResponseBody> {
    document(status, "application/json", serde_json::to_vec(value).unwrap_or_default())
}

/// A page or document of the gateway's own; never kept by a cache.
pub fn document(status: StatusCode, media_type: &'static str, text: Vec<u8>) -> Response<ResponseBody> {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(SOURCE, HeaderValue::from_static("gateway"));
    response(status, headers, Bytes::from(text).into())
}

fn response(status: StatusCode, headers: HeaderMap, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    if status.canonical_reason().is_none() {
        response.extensions_mut().insert(NO_REASON);
    }
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// What only the gateway may say, an upstream must not seem to say. Trailers that were kept among it are given back.
fn drop_ours(headers: &mut HeaderMap) -> HeaderMap {
    headers.remove(REPLAYED);
    let ours: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(OURS)).cloned().collect();
    let mut trailers = HeaderMap::new();
    for name in ours {
        if let Some(trailer) = trailer_name(&name) {
            trailers.extend(headers.get_all(&name).iter().map(|value| (trailer.clone(), value.clone())));
        }
        headers.remove(name);
    }
    trailers
}

fn mark(headers: &mut HeaderMap, marks: &Marks) {
    if let Some((key, source)) = &marks.key {
        tell(headers, IDEMPOTENCY_KEY, key);
        say(headers, KEY_SOURCE, Some(source.as_str()));
    }
    if let Some(operation) = marks.operation {
        tell(headers, OPERATION, operation);
    }
    if let Some(execution) = marks.execution {
        say(headers, EXECUTION, Some(execution.as_str()));
        headers.insert(ATTEMPTS, HeaderValue::from(marks.attempts));
    }
    say(headers, GUARDED, marks.unguarded.map(Unguarded::as_str));
    if let Some(earlier) = marks.earlier {
        tell(headers, EARLIER, earlier);
    }
    say(headers, REPLAYED, marks.replayed.then_some("true"));
    say(headers, STOP, marks.stop.map(Stop::as_str));
    say(headers, RECEIPT, marks.receipt_none.then_some("none"));
    say(headers, PRIOR_OUTCOME, marks.prior_outcome_unknown.then_some("unknown"));
    say(headers, COMPENSATION, marks.compensation.map(Compensation::as_str));
}

fn say(headers: &mut HeaderMap, name: HeaderName, value: Option<&'static str>) {
    if let Some(value) = value {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// A key is visible ASCII, and all else is ours: a value that is no header value cannot come here.
fn tell(headers: &mut HeaderMap, name: HeaderName, value: impl Display) {
    if let Ok(value) = HeaderValue::try_from(value.to_string()) {
        headers.insert(name, value);
    }
}

/// SDKs that retry by themselves obey these, and nothing else that says no.
fn do_not_retry(headers: &mut HeaderMap) {
    for name in SHOULD_RETRY {
        headers.insert(name, HeaderValue::from_static("false"));
    }
}

/// Whether a client's own retries could only do harm.
fn is_final(problem: &Problem) -> bool {
    problem.code != Code::InProgress && !matches!(problem.status, 429 | 503)
}

fn retry_after(problem: &Problem) -> Option<Duration> {
    problem.retry_after.or((!is_final(problem)).then_some(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::engine::answer::{Body, Execution};
    use crate::operation::{KeySource, OperationId};

    fn operation() -> OperationId {
        OperationId::of(&[0; 32], "payments", "k-1", None)
    }

    fn marks() -> Marks {
        Marks {
            operation: Some(operation()),
            key: Some(("k-1".to_owned(), KeySource::Client)),
            execution: Some(Execution::Executed),
            attempts: 2,
            ..Marks::default()
        }
    }

    fn upstream_says(status: u16, lines: &[(&'static str, &'static str)], marks: Marks) -> Response<ResponseBody> {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(*name, HeaderValue::from_static(value));
        }
        let content = Content::Upstream {
            status: StatusCode::from_u16(status).unwrap(),
            headers: map,
            body: Body::Whole(Bytes::from_static(b"{}")),
        };
        answer(Answer { content, marks }, &Method::POST)
    }

    fn gateway_says(told: Problem, marks: Marks) -> Response<ResponseBody> {
        answer(Answer { content: Content::Problem(told), marks }, &Method::POST)
    }

    fn header<'a>(response: &'a Response<ResponseBody>, name: &str) -> Option<&'a str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    fn name(name: &'static str) -> HeaderName {
        HeaderName::from_static(name)
    }

    fn names(response: &Response<ResponseBody>) -> Vec<&str> {
        let mut names: Vec<_> = response.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_guarded_answer_says_whose_it_is_and_what_became_of_the_call() {
        let response = upstream_says(201, &[("x-own", "1")], marks());
        let id = operation().to_string();
        for (name, value) in [
            ("idempotency-key", "k-1"),
            ("oncegate-key-source", "client"),
            ("oncegate-operation", id.as_str()),
            ("oncegate-execution", "executed"),
            ("oncegate-attempts", "2"),
            ("oncegate-source", "upstream"),
            ("via", "1.1 oncegate"),
            ("x-own", "1"),
        ] {
            assert_eq!(header(&response, name), Some(value), "{name}");
        }
        assert_eq!(response.headers().len(), 9, "and its length: {:?}", names(&response));
    }

    #[tokio::test]
    async fn who_may_go_is_told_where_to_ask() {
        let marks = Marks { execution: Some(Execution::InProgress), attempts: 0, ..marks() };
        let response = answer(Answer { content: Content::Accepted, marks }, &Method::POST);
        let location = format!("/.oncegate/operations/{}", operation());
        assert_eq!((response.status(), header(&response, "location")), (StatusCode::ACCEPTED, Some(&*location)));
        assert_eq!(header(&response, "preference-applied"), Some("respond-async"));
        assert_eq!(header(&response, "oncegate-execution"), Some("in-progress"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let said: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&said["location"], &said["key"]), (&location.into(), &"k-1".into()));
    }

    #[test]
    fn a_quota_that_is_used_up_says_when_it_has_room_again() {
        let refused = Problem::new(Code::RateLimited, "no more").with_retry_after(Duration::from_millis(2100));
        let told = Problem { quota_used_up: true, ..refused.clone() };
        assert_eq!(header(&gateway_says(told, marks()), "ratelimit"), Some("\"rate\";r=0;t=3"));
        assert_eq!(header(&gateway_says(refused, marks()), "ratelimit"), None);
    }

    #[test]
    fn every_mark_has_its_header() {
        let marks = Marks {
            stop: Some(Stop::Exhausted),
            replayed: true,
            receipt_none: true,
            earlier: Some(operation()),
            prior_outcome_unknown: true,
            unguarded: Some(Unguarded::BodySize),
            compensation: Some(Compensation::Done),
            ..marks()
        };
        let response = upstream_says(200, &[], marks);
        let id = operation().to_string();
        for (name, value) in [
            ("oncegate-stop", "exhausted"),
            ("idempotent-replayed", "true"),
            ("oncegate-receipt", "none"),
            ("oncegate-earlier", id.as_str()),
            ("oncegate-prior-outcome", "unknown"),
            ("oncegate-guarded", "no; reason=body-size"),
            ("oncegate-compensation", "done"),
        ] {
            assert_eq!(header(&response, name), Some(value), "{name}");
        }
    }

    #[test]
    fn an_unguarded_answer_is_left_as_it_is() {
        let response = upstream_says(200, &[("idempotency-key", "theirs")], Marks::default());
        assert_eq!(names(&response), ["content-length", "idempotency-key", "oncegate-source", "via"]);
    }

    #[test]
    fn an_upstream_cannot_speak_for_the_gateway() {
        let forged = [
            ("oncegate-execution", "not-executed"),
            ("oncegate-x", "1"),
            ("idempotent-replayed", "true"),
            ("oncegate-source", "gateway"),
            ("idempotency-key", "theirs"),
        ];
        let response = upstream_says(200, &forged, marks());
        assert_eq!(header(&response, "oncegate-execution"), Some("executed"));
        assert_eq!(header(&response, "oncegate-source"), Some("upstream"));
        assert_eq!(header(&response, "idempotency-key"), Some("k-1"));
        assert_eq!((header(&response, "oncegate-x"), header(&response, "idempotent-replayed")), (None, None));
    }

    #[tokio::test]
    async fn trailers_that_were_kept_come_behind_the_body() {
        for body in ["{}", ""] {
            let headers = HeaderMap::from_iter([(name("oncegate-trailer-grpc-status"), HeaderValue::from_static("0"))]);
            let whole = ResponseBody::from(Bytes::from_static(body.as_bytes()));
            let response = upstream(StatusCode::OK, headers, whole, &Method::POST, &marks());
            assert_eq!(header(&response, "oncegate-trailer-grpc-status"), None);
            assert_eq!(
                (header(&response, "trailer"), header(&response, "content-length")),
                (Some("grpc-status"), None)
            );
            let told = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
            assert_eq!(told.trailers().unwrap()["grpc-status"], "0");
            assert_eq!(told.to_bytes(), body);
        }
    }

    #[test]
    fn lines_of_one_name_stay_in_order() {
        let response =
            upstream_says(200, &[("set-cookie", "a=1"), ("via", "1.0 squid"), ("set-cookie", "b=2")], marks());
        let lines =
            |name| response.headers().get_all(name).iter().map(|line| line.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(lines("set-cookie"), ["a=1", "b=2"]);
        assert_eq!(lines("via"), ["1.0 squid"], "it came with what the answer was received");
    }

    #[test]
    fn head_and_bodiless_statuses_keep_the_length_they_speak_of() {
        let headers = || HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static("9757"))]);
        let body = || ResponseBody::from(Bytes::from_static(b"not to be sent"));
        for (status, method) in [(200, Method::HEAD), (304, Method::GET), (204, Method::DELETE)] {
            let status = StatusCode::from_u16(status).unwrap();
            let response = upstream(status, headers(), body(), &method, &Marks::default());
            assert!(matches!(response.body(), ResponseBody::Empty));
            assert_eq!(header(&response, "content-length"), Some("9757"));
        }
        let response = upstream(StatusCode::OK, headers(), body(), &Method::GET, &Marks::default());
        assert_eq!(header(&response, "content-length"), Some("14"));
    }

    #[test]
    fn an_answer_that_ended_our_retries_ends_the_clients_too_unless_it_names_a_time_and_was_the_only_one() {
        let stopped = |stop| Marks { stop: Some(stop), ..marks() };
        let at_once = |stop| Marks { attempts: 1, ..stopped(stop) };
        let should =
            |response: &Response<ResponseBody>| SHOULD_RETRY.map(|name| header(response, name).map(str::to_owned));
        let no = [Some("false".to_owned()), Some("false".to_owned())];
        use Stop::{Body, Breaker, Budget, Deadline, Exhausted, HintTooLong, Unsafe, Vetoed};
        let later = [("retry-after", "7")];
        for stop in [Exhausted, Vetoed, Unsafe, Body, HintTooLong, Deadline, Breaker, Budget] {
            assert_eq!(should(&upstream_says(500, &[], at_once(stop))), no, "{stop:?}");
            assert_eq!(should(&upstream_says(503, &later, stopped(stop))), no, "{stop:?}");
            assert_eq!(should(&upstream_says(503, &later, at_once(stop))), [None, None], "{stop:?}");
        }
        let vetoed = [("retry-after", "7"), ("x-should-retry", "false")];
        assert_eq!(should(&upstream_says(503, &vetoed, at_once(Vetoed))), no);
        assert_eq!(should(&upstream_says(500, &[], marks())), [None, None]);
    }

    /// agentgateway/agentgateway#3329.
    #[test]
    fn our_final_answers_stop_sdks_and_the_others_name_a_time() {
        for code in Code::ALL {
            let response = gateway_says(Problem::new(code, "so"), marks());
            let comes_back = matches!(code, Code::InProgress) || matches!(code.entry().status, 429 | 503);
            let expected = if comes_back { (None, Some("1")) } else { (Some("false"), None) };
            assert_eq!((header(&response, "x-should-retry"), header(&response, "retry-after")), expected, "{code:?}");
            assert_eq!(header(&response, "stripe-should-retry"), expected.0, "{code:?}");
        }
    }

    #[test]
    fn a_wait_is_rounded_up_to_whole_seconds() {
        let seconds = [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_999, 60)];
        for (millis, expected) in seconds {
            let told = Problem::new(Code::RateLimited, "so").with_retry_after(Duration::from_millis(millis));
            let response = gateway_says(told, Marks::default());
            assert_eq!(header(&response, "retry-after"), Some(expected.to_string().as_str()));
        }
    }

    #[test]
    fn a_problem_is_never_cached_and_ends_the_connection_only_where_the_request_stays_unread() {
        let response = gateway_says(Problem::new(Code::KeyReused, "so"), marks());
        assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
        assert_eq!(header(&response, "cache-control"), Some("no-store"));
        assert_eq!(header(&response, "oncegate-source"), Some("gateway"));
        assert_eq!(header(&response, "connection"), None);
        let response = gateway_says(Problem::new(Code::BodyTooLarge, "so"), Marks::default());
        assert_eq!(header(&response, "connection"), Some("close"));
        let response = gateway_says(Problem::new(Code::Unauthenticated, "so"), Marks::default());
        assert_eq!(header(&response, "www-authenticate"), Some("Bearer realm=\"oncegate\""));
    }
}
