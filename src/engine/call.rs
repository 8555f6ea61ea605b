//! A request that reached the engine: routed, its caller known, its body read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::time::Instant;

use crate::config::{DuplicateWindow, Route, upstream_target};
use crate::credential::is_credential;
use crate::engine::buffers::Held;
use crate::engine::gates::{Entrant, may_probe, whom};
use crate::operation::admission::{Repeat, ResendRule};
use crate::operation::transition::Retention;
use crate::operation::{Identity, KeySource, OperationId, Scope, StoredRequest};
use crate::retry::decide::LEAST_TRY;

/// For a look at what became of a call without a key.
const STAMPED_LIFE: Duration = Duration::from_secs(5 * 60);

/// A write on a guarded route, before anything is known about its key.
#[derive(Clone, Debug)]
pub struct Call {
    pub route: Arc<Route>,
    pub scope: Scope,
    pub method: Method,
    /// Path and query as they came.
    pub target: String,
    /// As they go upstream: hop-by-hop headers and ours are gone, `Via` and `X-Forwarded-*` are there.
    pub headers: Arc<HeaderMap>,
    pub body: Bytes,
    /// No attempt starts later.
    pub deadline: Instant,
    /// How long the caller waits before he would rather be told where to ask for the answer; `None`: until it is there.
    pub respond_async: Option<Duration>,
    /// The room that the body takes, for as long as somebody may send it.
    pub room: Option<Arc<Held>>,
    /// Where to say how far the call depends on its caller.
    pub presence: Presence,
}

/// Whether what is under way is of no use to anybody once its caller is gone, for those who can see him go.
#[derive(Clone, Debug, Default)]
pub struct Presence(Arc<AtomicBool>);

impl Presence {
    /// Says it of what begins now.
    pub fn ends_with_caller(&self, ends: bool) {
        self.0.store(ends, Ordering::Relaxed);
    }

    pub fn is_asked_for(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A call whose operation is known.
#[derive(Clone, Debug)]
pub struct NamedCall {
    pub call: Call,
    pub id: OperationId,
    pub identity: Arc<Identity>,
    /// Another payload is not another use of the key, but another payload for the same session and step.
    pub named_by_step: bool,
    /// The derived key of the same call if `on_changed_payload` were the opposite: records outlive a change of it.
    pub other_key: Option<String>,
    /// The credentials that the call brought, to be sent with what is stored. Looked for once: there are fifty names to compare
    /// each header line with.
    pub credentials: Vec<(HeaderName, HeaderValue)>,
}

impl Call {
    pub fn repeat(&self) -> Repeat {
        self.route.repeat_for(&self.method)
    }

    /// The credentials that this call brought, to be sent with the stored request.
    pub fn credentials(&self) -> Vec<(HeaderName, HeaderValue)> {
        let credentials = self.headers.iter().filter(|(name, _)| is_credential(name));
        credentials.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Whether the upstream gets one of these `credentials` of the caller's, and not one of the configuration in its place.
    pub fn needs(&self, credentials: &[(HeaderName, HeaderValue)]) -> bool {
        let ours = &self.route.upstream.headers;
        credentials.iter().any(|(name, _)| !ours.iter().any(|(own, _)| own == name))
    }
}

impl NamedCall {
    /// What is kept of the request: everything but the caller's credentials, and these, too, if he does not stay.
    pub fn stored(&self) -> StoredRequest {
        let call = &self.call;
        let mut kept = Arc::clone(&call.headers);
        let stays = call.respond_async.is_none();
        for (name, _) in self.credentials.iter().filter(|_| stays) {
            Arc::make_mut(&mut kept).remove(name);
        }
        StoredRequest {
            method: call.method.to_string(),
            target: upstream_target(&call.route, &call.target),
            headers: kept,
            body: call.body.clone(),
            had_credential: stays && self.needs_credential(),
        }
    }

    /// Whether the caller goes, and his credential stays with the call.
    pub fn leaves_credential(&self) -> bool {
        self.call.respond_async.is_some() && self.needs_credential()
    }

    /// Whether the upstream gets a credential of the caller's.
    pub fn needs_credential(&self) -> bool {
        self.call.needs(&self.credentials)
    }

    /// What a second send of this very call means.
    pub fn repeat(&self) -> Repeat {
        self.resend_rule().repeat
    }

    pub fn resend_rule(&self) -> ResendRule {
        resend_rule(&self.call.route, &self.call.method, &self.identity)
    }

    /// For the first attempt, of a caller who stands in line until then.
    pub(super) fn entrant(&self, until: Instant) -> Entrant {
        let Call { route, headers, deadline, scope, .. } = &self.call;
        Entrant {
            may_probe: may_probe(self.repeat()),
            whom: whom(&route.upstream, headers.iter()),
            scope: scope.clone(),
            deadline: (until + LEAST_TRY).min(*deadline),
            patience: route.retry.retry_after_max,
            is_new: true,
        }
    }

    pub fn retention(&self) -> Retention {
        retention(&self.call.route, self.repeat(), &self.identity, self.call.respond_async.is_some())
    }

    /// The name under which the store remembers who used this session and step last; only for keys that have the
    /// payload in them.
    pub fn step_note(&self) -> Option<String> {
        let Identity { route, session, step, source, .. } = &*self.identity;
        let (session, step) = (session.as_deref()?, step.as_deref()?);
        if *source != KeySource::Derived || self.named_by_step {
            return None;
        }
        let name =
            OperationId::of(self.call.scope.digest(), route, &format!("{}:{session}:{step}", session.len()), None);
        Some(format!("step:{name}"))
    }
}

/// The rule under which a call may be sent once more. An upstream that honours keys and gets none honours nothing.
pub fn resend_rule(route: &Route, method: &Method, identity: &Identity) -> ResendRule {
    let repeat = match route.repeat_for(method) {
        Repeat::WithKey if identity.upstream_key.is_none() => Repeat::Unsafe,
        repeat => repeat,
    };
    ResendRule {
        repeat,
        key_retention: route.upstream.key_retention,
        attempt_timeout: route.retry.attempt_timeout,
        settle: route.upstream.settle,
        destination: route.destination,
    }
}

/// How long an operation's end is kept.
pub fn retention(route: &Route, repeat: Repeat, identity: &Identity, accepted: bool) -> Retention {
    retention_of(route, repeat, identity.source, accepted)
}

/// The same for a call whose key comes from `source`. Nobody can name a stamped key again but by looking its operation up,
/// which is what `accepted` says that somebody will do. Nobody needs the `unknown` of one without a name that may be made
/// again in any order: whoever wants it done does that.
pub fn retention_of(route: &Route, repeat: Repeat, source: KeySource, accepted: bool) -> Retention {
    let whole = Retention { receipts: route.receipts, tombstones: route.tombstones, unknowns: None };
    let within = |most: Duration| {
        let (receipts, tombstones) = (whole.receipts.min(most), whole.tombstones.min(most));
        Retention { receipts, tombstones, unknowns: (repeat == Repeat::Harmless).then_some(tombstones) }
    };
    match (source, route.duplicate_window) {
        _ if accepted => whole,
        (KeySource::Client | KeySource::Derived, _) => whole,
        (KeySource::Window, DuplicateWindow::For(window)) => within(window.max(STAMPED_LIFE)),
        (KeySource::Window | KeySource::Stamped, _) => within(STAMPED_LIFE),
    }
}
