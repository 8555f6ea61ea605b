//! Which route a call takes, and what holds on it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::Upstream;
use super::rules::{
    Concurrency, DuplicateWindow, Effect, InFlight, KeyRules, OnLargeBody, OnStoreDown, PayloadRules, Rates,
};
use crate::operation::admission::Repeat;
use crate::operation::meaning::Rules;
use crate::retry::RetryPolicy;
use crate::retry::breaker::BreakerPolicy;

/// All routes, in the order in which they are tried: longest path first.
#[derive(Clone, Debug)]
pub struct RouteTable(pub Vec<Arc<Route>>);

/// One `[[routes]]` entry with every value it takes from defaults, policy and upstream.
#[derive(Clone, Debug)]
pub struct Route {
    /// Part of the identity of every key.
    pub name: String,
    pub matches: RouteMatch,
    pub upstream: Arc<Upstream>,
    /// Replaces the matched prefix; `None` keeps the target as it came.
    pub upstream_path: Option<String>,
    pub effect: Option<Effect>,
    pub repeat: Option<Repeat>,
    pub receipts: Duration,
    pub tombstones: Duration,
    pub max_body: u64,
    pub on_large_body: OnLargeBody,
    pub max_receipt: u64,
    pub in_flight: InFlight,
    pub in_flight_wait: Duration,
    pub duplicate_window: DuplicateWindow,
    pub on_store_down: OnStoreDown,
    pub key: KeyRules,
    pub payload: PayloadRules,
    pub retry: RetryPolicy,
    pub rates: Rates,
    pub concurrency: Concurrency,
    pub breaker: BreakerPolicy,
    /// `[[routes.classify]]` of all layers, and what the upstream's dialect knows.
    pub classify: Rules,
    /// Digest of everything that is part of key identity on this route.
    pub rules: [u8; 8],
    /// Digest of everything by which the upstream knows a call again, beside its key.
    pub destination: [u8; 8],
}

/// `match`: every condition has to hold.
#[derive(Clone, Debug)]
pub struct RouteMatch {
    /// A prefix by whole segments; `/` matches everything.
    pub path: String,
    /// Without a port; compared without case.
    pub host: Option<String>,
    pub methods: Option<Vec<Method>>,
    /// Each has to be there with exactly this value.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl RouteTable {
    /// Puts routes in the order in which they are tried: longest path first, then those that ask for more.
    pub(super) fn new(mut routes: Vec<Arc<Route>>) -> Self {
        routes.sort_by_key(|route| Reverse(route.matches.rank()));
        Self(routes)
    }

    /// The first route whose every condition holds. A longer path whose other conditions fail gives way to a shorter one.
    ///
    /// `path` is the raw path of the target, without its query: `/%70ay` is not `/pay`, for what goes upstream is not
    /// decoded either. `host` may carry a port.
    pub fn find(&self, method: &Method, host: &str, path: &str, headers: &HeaderMap) -> Option<&Arc<Route>> {
        self.0.iter().find(|route| route.matches.holds(method, host, path, headers))
    }

    /// The route of that name.
    pub fn named(&self, name: &str) -> Option<&Arc<Route>> {
        self.0.iter().find(|route| route.name == name)
    }
}

impl Route {
    /// What a second send of a call with this method means: the route's word, else the upstream's, else the method's.
    pub fn repeat_for(&self, method: &Method) -> Repeat {
        self.repeat.or(self.upstream.repeat).unwrap_or_else(|| repeat_of(method))
    }

    /// The same for a call that has no key to show to an upstream which honours them: reads do no harm.
    pub fn repeat_without_key(&self, method: &Method) -> Repeat {
        match (self.repeat_for(method), effect_of(method)) {
            (Repeat::WithKey, Effect::Read) => Repeat::Harmless,
            (Repeat::WithKey, Effect::Write) => Repeat::Unsafe,
            (repeat @ (Repeat::Harmless | Repeat::Unsafe), _) => repeat,
        }
    }

    /// Whether a call with this method is guarded: the route's word, else the method's.
    pub fn effect_for(&self, method: &Method) -> Effect {
        self.effect.unwrap_or_else(|| effect_of(method))
    }
}

impl RouteMatch {
    /// Whether a call meets every condition.
    pub fn holds(&self, method: &Method, host: &str, path: &str, headers: &HeaderMap) -> bool {
        self.holds_path(path)
            && self.methods.as_ref().is_none_or(|methods| methods.contains(method))
            && self.host.as_ref().is_none_or(|asked| asked.eq_ignore_ascii_case(without_port(host)))
            && self.headers.iter().all(|(name, value)| headers.get_all(name).iter().any(|found| found == value))
    }

    /// Whether some call meets both, without one asking for more than the other: neither would come first.
    pub(super) fn ties_with(&self, other: &Self) -> bool {
        self.rank() == other.rank()
            && self.path == other.path
            && self.host == other.host
            && self.headers.iter().all(|header| other.headers.contains(header))
            && shares_method(self.methods.as_deref(), other.methods.as_deref())
    }

    fn holds_path(&self, path: &str) -> bool {
        match path.strip_prefix(self.path.trim_end_matches('/')) {
            Some(rest) => self.path == "/" || rest.is_empty() || rest.starts_with('/'),
            None => false,
        }
    }

    fn rank(&self) -> (usize, bool, bool, usize) {
        (self.path.len(), self.host.is_some(), self.methods.is_some(), self.headers.len())
    }
}

fn shares_method(left: Option<&[Method]>, right: Option<&[Method]>) -> bool {
    match (left, right) {
        (Some(left), Some(right)) => left.iter().any(|method| right.contains(method)),
        (None, _) | (_, None) => true,
    }
}

/// `host:port` and `[::1]:port` without the port. `host.` is `host`, with its root named.
fn without_port(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        Some(_) | None => host,
    };
    name.strip_suffix('.').unwrap_or(name)
}

/// RFC 9110, section 9.2.2, but for unknown methods nothing is promised.
fn repeat_of(method: &Method) -> Repeat {
    match method.as_str() {
        "GET" | "HEAD" | "OPTIONS" | "TRACE" | "QUERY" | "PUT" | "DELETE" => Repeat::Harmless,
        _ => Repeat::Unsafe,
    }
}

fn effect_of(method: &Method) -> Effect {
    match method.as_str() {
        "GET" | "HEAD" | "OPTIONS" | "QUERY" => Effect::Read,
        _ => Effect::Write,
    }
}
