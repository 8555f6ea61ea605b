//! What a route does with a call: the values of its tables, by the words of the file.

use std::num::NonZeroU32;
use std::time::Duration;

use http::HeaderName;

pub use crate::operation::key::{Ingredient, KeyFormat};
pub use crate::operation::payload::{Compare, Ignored};

/// Whether a call is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Read,
    Write,
}

/// What happens to a body beyond `max_body`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLargeBody {
    Reject,
    PassUnguarded,
}

/// What a repeat gets while the first call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    Wait,
    Reject,
}

/// When an identical call without a key of its own counts as the same operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateWindow {
    Off,
    Unresolved,
    For(Duration),
}

/// What happens to a guarded call while the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreDown {
    Reject,
    Pass,
}

/// `[routes.key]`.
#[derive(Clone, Debug)]
pub struct KeyRules {
    pub mode: KeyMode,
    pub client_key: ClientKey,
    pub forward: Forward,
    pub header: HeaderName,
    pub session_header: HeaderName,
    pub step_header: HeaderName,
    pub from: Vec<Ingredient>,
    pub on_changed_payload: OnChangedPayload,
    /// Headers that belong to the identity.
    pub headers: Vec<HeaderName>,
    /// `None`: the upstream gets no made key.
    pub upstream_header: Option<HeaderName>,
    pub format: KeyFormat,
}

impl KeyRules {
    /// Under which name a key goes upstream, if one does.
    pub fn header_upstream(&self) -> &HeaderName {
        self.upstream_header.as_ref().unwrap_or(&self.header)
    }
}

/// What happens where neither the client nor the call itself gives a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyMode {
    Stamp,
    Required,
    Off,
}

/// How far a client's own key is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKey {
    Trust,
    PreferDerived,
    Ignore,
}

/// Which key the upstream gets in place of a client's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    Verbatim,
    Made,
}

/// What another payload for the same session and step means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnChangedPayload {
    Run,
    Reject,
    /// `reject` where the call is unsafe to repeat, else `run`.
    ByRepeat,
}

/// `[routes.payload]`.
#[derive(Clone, Debug)]
pub struct PayloadRules {
    pub compare: Compare,
    /// Left out of key and fingerprint.
    pub ignore: Vec<Ignored>,
    /// Without the stored request nobody but the first owner can send again.
    pub store_request: bool,
}

/// `[routes.limit]`: sends under way at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    pub most: u32,
    /// Calls that may wait for a place.
    pub queue: u32,
}

/// So many calls in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub count: NonZeroU32,
    pub period: Duration,
    /// At once.
    pub burst: NonZeroU32,
}

/// `[routes.limit]`: the rates of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    pub all: Option<Rate>,
    /// Of each scope.
    pub each: Option<Rate>,
    /// Calls that may wait for their turn.
    pub queue: u32,
    /// All gateways of a store keep the rates together.
    pub shared: bool,
}
