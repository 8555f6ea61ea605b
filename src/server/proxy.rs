//! The agents' door: one request from its head to its answer.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{EXPECT, HOST, MAX_FORWARDS, TE, TRAILER, UPGRADE, VIA};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{Effect, KeyMode, OnLargeBody, Route, upstream_target};
use crate::engine::Engine;
use crate::engine::answer::{Content, Execution, Marks, Unguarded};
use crate::engine::call::{Call, Presence};
use crate::engine::lookup::View;
use crate::engine::name::passing_key;
use crate::engine::pass::Passage;
use crate::engine::problem::{Code, Problem};
use crate::operation::Scope;
use crate::retry::deadline;
use crate::server::body::{BodyError, BodyLimits, BoxError, Reading, ResponseBody, read_body, read_or_leave};
use crate::server::caller::CallerRule;
use crate::server::door::{Door, Instance, find_route};
use crate::server::interim::Interim;
use crate::server::listener::Peer;
use crate::server::lookup::{self, KeyQuestion, NoQuestion, Question};
use crate::server::passing::Passing;
use crate::server::request_body::RequestBody;
use crate::server::{pages, respond};
use crate::upstream::{
    Hop, OnInterim, SendBody, asked_protocols, drop_ours, forwarded, remove_hop_by_hop, set_upgrade, takes_trailers,
};

/// Paths under which the gateway speaks for itself.
pub const OWN_PATHS: &str = "/.oncegate/";
/// Bytes of a question by key.
const MAX_QUESTION: u64 = 16 * 1024;

/// Everything that a request of an agent needs, for one runtime thread.
pub struct Proxy {
    engine: Arc<Engine>,
    door: Door,
    /// Headers that no trailer may stand for.
    reserved: Arc<[HeaderName]>,
    instance: Instance,
    callers: CallerRule,
}

/// Who asks, and whether he is still there.
struct Caller {
    scope: Scope,
    presence: Option<Presence>,
    /// Where he hears what comes before an answer.
    interim: Option<Interim>,
}

impl Proxy {
    pub fn new(engine: Arc<Engine>, instance: Instance) -> Self {
        let config = &engine.shared().config;
        let (door, callers) = (Door::new(config, instance.clone()), CallerRule::new(config));
        let reserved = door.reserved().cloned().collect();
        Self { engine, door, reserved, instance, callers }
    }

    /// Answers one request. Reads stream through; writes are read whole before anything is claimed.
    ///
    /// The long ways are in boxes: the layers of the connection copy this future several times before it begins.
    pub async fn handle(&self, request: Request<RequestBody>, peer: Peer) -> Response<ResponseBody> {
        let (mut head, body) = request.into_parts();
        if let Err(problem) = self.door.check(&head, peer.ambiguity) {
            return refuse(problem);
        }
        if ends_here(&mut head) {
            return respond::options();
        }
        if let Some(page) = pages::answer(&head.method, head.uri.path()) {
            return page;
        }
        let scope = match self.callers.scope(&mut head.headers, &peer) {
            Ok(scope) => scope,
            Err(problem) => return refuse(problem),
        };
        if head.uri.path().starts_with(OWN_PATHS) {
            return Box::pin(self.speak(head, body, &scope)).await;
        }
        let route = match self.route(&head) {
            Ok(route) => route,
            Err(problem) => return refuse(problem),
        };
        self.prepare(&mut head, &peer);
        self.engine.count(&route, &head.headers);
        let interim = peer.interim.filter(|_| head.version == Version::HTTP_11);
        let caller = Caller { scope, presence: peer.presence, interim };
        match (route.effect_for(&head.method), route.key.mode) {
            (Effect::Read, _) => Box::pin(self.pass(route, head, body, caller, None)).await,
            (Effect::Write, KeyMode::Off) => Box::pin(self.pass(route, head, body, caller, Some(Unguarded::Off))).await,
            (Effect::Write, KeyMode::Stamp | KeyMode::Required) if head.headers.contains_key(UPGRADE) => {
                refuse_unsent(no_upgrade(&route))
            }
            (Effect::Write, KeyMode::Stamp | KeyMode::Required) => {
                Box::pin(self.guard(route, head, body, caller)).await
            }
        }
    }

    /// A caller's looks at his own operations.
    async fn speak(&self, head: Parts, body: RequestBody, scope: &Scope) -> Response<ResponseBody> {
        let path = head.uri.path();
        let view = match Question::read(&head.method, path, head.uri.query()) {
            None => return refuse(Problem::new(Code::NotFound, "The gateway has nothing at this address.")),
            Some(Err(NoQuestion::WrongMethod(allow))) => return respond::wrong_method(allow),
            Some(Err(NoQuestion::Problem(problem))) => return refuse(problem),
            Some(Ok(Question::Operation { id, wait })) => self.engine.look_up(scope, id, wait).await,
            Some(Ok(Question::Receipt { id, wait })) => {
                return match self.engine.receipt(scope, id, wait).await {
                    Ok(answer) => respond::receipt(answer, &head.method),
                    Err(problem) => refuse(problem),
                };
            }
            Some(Ok(Question::Key)) => self.look_up_key(body, scope).await,
        };
        match view {
            Ok(view) => lookup::answer(&view),
            Err(problem) => refuse(problem),
        }
    }

    async fn look_up_key(&self, body: RequestBody, scope: &Scope) -> Result<View, Problem> {
        let idle = self.engine.shared().config.server.body_idle_timeout;
        let limits = BodyLimits { size: MAX_QUESTION, idle, buffers: self.engine.shared().buffers.clone() };
        let body = read_body(body, &limits).await?;
        let asked = KeyQuestion::read(&body.bytes)?;
        self.engine.look_up_key(scope, &asked.route, &asked.key).await
    }

    fn route(&self, head: &Parts) -> Result<Arc<Route>, Problem> {
        let route = find_route(&self.engine.shared().config.routes, head)?;
        self.callers.check_page(&head.headers, &route.upstream).map(|()| route)
    }

    /// What belonged to the hop behind us goes, then comes what we say about it. A wish for another protocol stays.
    fn prepare(&self, head: &mut Parts, peer: &Peer) {
        let asked = asked_protocols(&head.headers).filter(|_| head.version == Version::HTTP_11);
        let takes_trailers = takes_trailers(&head.headers);
        remove_hop_by_hop(&mut head.headers);
        if let Some(protocols) = asked {
            set_upgrade(&mut head.headers, protocols);
        }
        if takes_trailers {
            head.headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        drop_ours(&mut head.headers);
        let host = head.headers.get(HOST).cloned();
        let (trusted, scheme) = (self.callers.trusts(peer.address.ip()), peer.transport.scheme());
        forwarded(&mut head.headers, Hop { peer: &peer.forwarded, scheme, host: host.as_ref(), trusted });
        head.headers.append(VIA, self.instance.via(head.version));
    }

    /// Streams both ways. `max_body` holds here, too, unless the route lets larger bodies through.
    async fn pass<B>(
        &self,
        route: Arc<Route>,
        mut head: Parts,
        body: B,
        caller: Caller,
        unguarded: Option<Unguarded>,
    ) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        if let Some(presence) = caller.presence {
            presence.ends_with_caller(true);
        }
        let limit = if unguarded == Some(Unguarded::BodySize) { u64::MAX } else { route.max_body };
        let body = match Passing::new(body, limit, self.engine.shared().config.server.body_idle_timeout) {
            Ok(body) => body.without_trailers(Arc::clone(&self.reserved)),
            Err(error) => return refuse_body(error),
        };
        let complaint = body.complaint();
        let (body, interim) = expecting(&mut head, body, caller.interim);
        let passage = Passage {
            target: upstream_target(&route, &target(&head)),
            deadline: run_deadline(&route, &head.headers),
            body: SendBody::streaming(body),
            interim,
            key: passing_key(&route, &caller.scope, &mut head.headers),
            method: head.method.clone(),
            headers: head.headers,
            unguarded,
            scope: caller.scope,
            route,
        };
        let answer = self.engine.unguarded(passage).await;
        match (&answer.content, complaint.take()) {
            (Content::Problem(_), Some(error)) => respond::problem(error.into(), &answer.marks),
            (Content::Problem(_) | Content::Accepted | Content::Upstream { .. }, _) => {
                respond::answer(answer, &head.method)
            }
        }
    }

    async fn guard(
        &self,
        route: Arc<Route>,
        mut head: Parts,
        body: RequestBody,
        caller: Caller,
    ) -> Response<ResponseBody> {
        // It is we who read the body, and hyper says so.
        head.headers.remove(EXPECT);
        let idle = self.engine.shared().config.server.body_idle_timeout;
        let limits = BodyLimits { size: route.max_body, idle, buffers: self.engine.shared().buffers.clone() };
        let buffered = match read_or_leave(body, &limits).await {
            Ok(Reading::Whole(buffered)) => buffered,
            Ok(Reading::Longer(longer)) if route.on_large_body == OnLargeBody::PassUnguarded => {
                return Box::pin(self.pass(route, head, longer, caller, Some(Unguarded::BodySize))).await;
            }
            Ok(Reading::Longer(_)) => return refuse_body(BodyError::TooLarge { limit: limits.size }),
            Err(error) => return refuse_body(error),
        };
        let (method, deadline) = (head.method.clone(), run_deadline(&route, &head.headers));
        let respond_async = deadline::take_async(&mut head.headers);
        // They were dropped with the body's other framing.
        head.headers.remove(TRAILER);
        let call = Call {
            target: target(&head),
            route,
            scope: caller.scope,
            method: head.method,
            headers: head.headers.into(),
            body: buffered.bytes,
            deadline,
            respond_async,
            room: Some(Arc::new(buffered.held)),
            presence: caller.presence.unwrap_or_default(),
        };
        respond::answer(self.engine.guarded(call).await, &method)
    }
}

/// What the upstream says before its answer goes to the caller. `100 Continue` is hyper's to say, when the body is asked
/// for: if the caller waits for that, the body waits for the upstream's.
fn expecting<B>(head: &mut Parts, body: Passing<B>, interim: Option<Interim>) -> (Passing<B>, Option<OnInterim>)
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let Some(interim) = interim else {
        head.headers.remove(EXPECT);
        return (body, None);
    };
    let continued = head.headers.contains_key(EXPECT).then(CancellationToken::new);
    let body = match continued.clone() {
        Some(continued) => body.once(continued),
        None => body,
    };
    let hear = move |status, headers: &HeaderMap| match (status, &continued) {
        (StatusCode::CONTINUE, Some(continued)) => continued.cancel(),
        (StatusCode::CONTINUE, None) => {}
        _ => interim.say(status, headers),
    };
    (body, Some(OnInterim::new(hear)))
}

/// Path and query byte for byte. A full URL may leave its path out.
fn target(head: &Parts) -> String {
    match head.uri.path_and_query().map_or("/", PathAndQuery::as_str) {
        query if query.starts_with('?') => format!("/{query}"),
        target => target.to_owned(),
    }
}

/// Whether an `OPTIONS` has come as far as it may; if not, it has one hop less before it.
fn ends_here(head: &mut Parts) -> bool {
    if head.method != Method::OPTIONS {
        return false;
    }
    let hops = head.headers.get(MAX_FORWARDS).and_then(|hops| hops.to_str().ok()?.parse::<u32>().ok());
    if let Some(left) = hops.and_then(|hops| hops.checked_sub(1)) {
        head.headers.insert(MAX_FORWARDS, HeaderValue::from(left));
    }
    hops == Some(0)
}

fn run_deadline(route: &Route, headers: &HeaderMap) -> Instant {
    Instant::now() + deadline::of_run(route.retry.deadline, headers)
}

/// What goes over such a connection has no key and no receipt.
fn no_upgrade(route: &Route) -> Problem {
    let detail = format!(
        "Route `{}` guards this call, and nothing can guard what follows an Upgrade; ask without it, or say mode = \"off\" \
        in [routes.key] for a route of its own.",
        route.name
    );
    Problem::new(Code::InvalidRequest, detail).with_status(501)
}

fn refuse(problem: Problem) -> Response<ResponseBody> {
    respond::problem(problem, &Marks::default())
}

fn refuse_body(error: BodyError) -> Response<ResponseBody> {
    refuse_unsent(error.into())
}

fn refuse_unsent(problem: Problem) -> Response<ResponseBody> {
    let marks = Marks { execution: Some(Execution::NotExecuted), ..Marks::default() };
    respond::problem(problem, &marks)
}
