//! Gives a call its name: which key is in force, what the upstream gets as key, and what the call is compared by.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use tracing::warn;

use crate::config::{ClientKey as ClientKeyRule, DuplicateWindow, Forward, KeyMode, KeyRules, OnChangedPayload, Route};
use crate::engine::answer::{Answer, Content, Execution, Marks};
use crate::engine::call::{Call, NamedCall};
use crate::engine::conclusion::Conclusion;
use crate::engine::problem::{Code, Problem};
use crate::engine::{Engine, Lane, refusal};
use crate::operation::admission::Repeat;
use crate::operation::fingerprint::Asked;
use crate::operation::key::{self, ClientKey, Ingredient, KeyError, Missing, PayloadIn, bucket_of_stamped, sole_value};
use crate::operation::payload::Payload;
use crate::operation::{Alike, Fingerprint, Identity, KeySource, OperationId, Scope};
use crate::store::Found;

/// The key in force, before the operation has a name.
struct Key {
    text: String,
    source: KeySource,
    /// What a client sent and an upstream may get byte for byte.
    verbatim: Option<String>,
    /// Session and step alone name the call.
    by_step: bool,
    /// See [`NamedCall::other_key`].
    other: Option<String>,
    alike: Option<Alike>,
}

/// What is known of a call before its key is chosen.
struct Facts {
    fingerprint: Fingerprint,
    session: Option<String>,
    step: Option<String>,
    derived: Result<[u8; 32], Missing>,
    by_step: bool,
    /// What would be derived if another payload of a step meant the opposite.
    other: Option<[u8; 32]>,
}

/// What can be said of a call's name without a store: the key it would have, unless it gets a fresh one.
pub struct Sighted {
    pub key: Option<SightedKey>,
    pub fingerprint: Fingerprint,
}

/// A key that a call would have whenever it came.
pub struct SightedKey {
    pub text: String,
    pub source: KeySource,
    /// As the upstream would get it.
    pub upstream: Option<String>,
}

/// Where a key comes from that is made up for one call.
pub fn source_of_fresh_keys(route: &Route) -> KeySource {
    match route.duplicate_window {
        DuplicateWindow::Off | DuplicateWindow::Unresolved => KeySource::Stamped,
        DuplicateWindow::For(_) => KeySource::Window,
    }
}

/// Looks at a call without naming it.
///
/// # Errors
/// The client's key is malformed.
pub fn sight(call: &Call) -> Result<Sighted, KeyError> {
    let client = ClientKey::parse(&call.headers, &call.route.key.header)?;
    let facts = Facts::of(call);
    let key = chosen(&call.route.key, client, &facts).map(|key| SightedKey {
        upstream: upstream_key(call, &key),
        source: key.source,
        text: key.text,
    });
    Ok(Sighted { key, fingerprint: facts.fingerprint })
}

/// The key that an unguarded call takes along where the client's own must not reach the upstream as it is. A malformed
/// one is none.
pub fn passing_key(route: &Route, scope: &Scope, headers: &mut HeaderMap) -> Option<String> {
    if route.key.forward == Forward::Verbatim {
        return None;
    }
    let client = ClientKey::parse(headers, &route.key.header).ok().flatten();
    headers.remove(&route.key.header);
    // By its own name for it, too, the service would take a caller's own key.
    headers.remove(route.key.header_upstream());
    route.key.upstream_header.as_ref()?;
    client.map(|client| key::forwarded(scope, &route.name, client.as_str(), route.key.format))
}

impl Engine {
    /// Chooses the key and names the operation. The key header itself goes no further: what goes upstream is added at
    /// the send.
    pub(super) fn name(&self, mut call: Call) -> Result<NamedCall, Box<Answer>> {
        let rules = &call.route.key;
        let client = ClientKey::parse(&call.headers, &rules.header)
            .map_err(|error| refuse(Code::KeyInvalid, error.to_string()))?;
        if let Some(name) = garbled(&call) {
            let detail = format!("`{name}` has to come once, as UTF-8 text; a key is made from it.");
            return Err(refuse(Code::KeyInvalid, detail));
        }
        let facts = Facts::of(&call);
        if let Some(lane) = self.lane(&call.route) {
            notice_lone_session(lane, &call, &facts);
        }
        let key = match chosen(rules, client, &facts) {
            Some(key) => key,
            None if rules.mode == KeyMode::Required => return Err(key_missing(rules, &facts)),
            None => self.stamp(&call, &facts),
        };
        let scope = call.scope.digest();
        let bucket = key.alike.map(|alike| alike.digest[0]);
        let id = OperationId::of(scope, &call.route.name, &key.text, bucket);
        let identity = Arc::new(Identity {
            scope: call.scope.clone(),
            route: call.route.name.clone(),
            upstream_key: upstream_key(&call, &key),
            source: key.source,
            fingerprint: facts.fingerprint,
            session: facts.session,
            step: facts.step,
            alike: key.alike.filter(|_| compares_unnamed(&call)),
            rules: call.route.rules,
            key: key.text,
        });
        Arc::make_mut(&mut call.headers).remove(&call.route.key.header);
        if let Some(lane) = self.lane(&call.route) {
            lane.counters.keys(identity.source).add();
        }
        let credentials = call.credentials();
        Ok(NamedCall { call, id, identity, named_by_step: key.by_step, other_key: key.other, credentials })
    }

    /// Takes up the record that the same call left under another name, under which it would run again: that of the other
    /// form of its derived key, from before `repeat` or `on_changed_payload` were changed, or that of a key which was
    /// stamped on it and is the client's own now.
    pub(super) async fn find_former(&self, named: &mut NamedCall) -> Result<(), Box<Conclusion>> {
        let other_form = named.other_key.take();
        let by_form = other_form.is_some();
        let Some((key, bucket)) = other_form.map(|key| (key, None)).or_else(|| stamped_before(&named.identity)) else {
            return Ok(());
        };
        if self.shared.flights.watch(named.id, named.identity.fingerprint).is_some() {
            return Ok(());
        }
        let id = OperationId::of(named.call.scope.digest(), &named.call.route.name, &key, bucket);
        let fingerprint = named.identity.fingerprint;
        let is_same = |found: &Found| found.operation.identity.fingerprint == fingerprint;
        let former = self.store.read(id).await.map_err(|error| {
            self.note_unreadable(id, &error);
            Box::new(refusal::store_unavailable(named, &error))
        })?;
        let Some(former) = former.filter(|found| !by_form || is_same(found)) else { return Ok(()) };
        let present = self.store.read(named.id).await.map_err(|error| {
            self.note_unreadable(named.id, &error);
            Box::new(refusal::met_without_store(&former.operation, self.store.now(), &error))
        })?;
        if !present.is_some_and(|found| is_same(&found)) {
            named.id = id;
            let identity = Arc::make_mut(&mut named.identity);
            identity.key = key;
            identity.upstream_key.clone_from(&former.operation.identity.upstream_key);
            named.named_by_step ^= by_form;
        }
        Ok(())
    }

    /// A fresh key, whose record lies beside those of identical calls.
    fn stamp(&self, call: &Call, facts: &Facts) -> Key {
        let source = source_of_fresh_keys(&call.route);
        let until = match call.route.duplicate_window {
            DuplicateWindow::Off | DuplicateWindow::Unresolved => None,
            DuplicateWindow::For(window) => Some(self.store.now().after(window)),
        };
        let digest = facts.fingerprint.alike(&call.scope, &call.route.name);
        let text = key::stamped(self.shared.entropy.bytes(), digest[0], call.route.key.format);
        Key { text, source, verbatim: None, by_step: false, other: None, alike: Some(Alike { digest, until }) }
    }
}

impl Facts {
    fn of(call: &Call) -> Self {
        let route = &call.route;
        let payload = Payload::read(route.payload.compare, &call.headers, &call.body);
        let digest = payload.digest(&route.payload.ignore);
        let session = sole_value(&call.headers, &route.key.session_header);
        let step = sole_value(&call.headers, &route.key.step_header);
        let asked = Asked {
            method: call.method.as_str(),
            target: &call.target,
            headers: &call.headers,
            identity: &route.key.headers,
            payload: &digest,
        };
        let derivation = key::Call {
            caller: call.scope.caller(),
            route: &route.name,
            session,
            step,
            method: call.method.as_str(),
            target: &call.target,
            headers: &call.headers,
            payload: &payload,
            digest: &digest,
        };
        let (payload_in, other) = payload_in(call);
        let [derived, other] = [payload_in, other].map(|form| key::derive(&derivation, &route.key.from, form));
        Self {
            fingerprint: Fingerprint::of(&asked),
            derived,
            by_step: payload_in == PayloadIn::FingerprintOnly && names_by_step(&route.key.from),
            other: other.ok().filter(|other| derived != Ok(*other)),
            session: session.map(str::to_owned),
            step: step.map(str::to_owned),
        }
    }
}

/// Whether a call without a key of its own may have to stop at an identical one. What may be made again in any order does
/// not stop at one that nobody can tell the end of: it is how its caller makes sure.
fn compares_unnamed(call: &Call) -> bool {
    match call.route.duplicate_window {
        DuplicateWindow::Off => false,
        DuplicateWindow::Unresolved => call.repeat() != Repeat::Harmless,
        DuplicateWindow::For(_) => true,
    }
}

/// Said once: an agent that was set up halfway looks well and is not protected.
fn notice_lone_session(lane: &Lane, call: &Call, facts: &Facts) {
    if facts.derived == Err(Missing::StepOfSession) && lane.counters.saw_session_without_step() {
        warn!(
            route = %call.route.name,
            step_header = %call.route.key.step_header,
            "calls carry a session but no step, so their keys cannot be derived"
        );
    }
}

/// The bucket of a client's key that may have been stamped on an earlier call of his, and told to him then.
fn stamped_before(identity: &Identity) -> Option<(String, Option<u8>)> {
    let bucket = bucket_of_stamped(&identity.key).filter(|_| identity.source == KeySource::Client)?;
    Some((identity.key.clone(), Some(bucket)))
}

/// Only where both are in the key do they name the call without its payload.
fn names_by_step(from: &[Ingredient]) -> bool {
    from.contains(&Ingredient::Session) && from.contains(&Ingredient::Step)
}

/// A session or step that is there and cannot be read: a call that means to be named must not go nameless.
fn garbled(call: &Call) -> Option<&HeaderName> {
    let KeyRules { session_header, step_header, from, .. } = &call.route.key;
    let named = [(Ingredient::Session, session_header), (Ingredient::Step, step_header)];
    let cannot_be_read = |name: &HeaderName| {
        let mut lines = call.headers.get_all(name).iter();
        lines.any(|line| !line.is_empty()) && sole_value(&call.headers, name).is_none()
    };
    named.into_iter().find(|(part, name)| from.contains(part) && cannot_be_read(name)).map(|(_, name)| name)
}

/// What another payload for the same session and step means, and its opposite.
fn payload_in(call: &Call) -> (PayloadIn, PayloadIn) {
    const RUNS: (PayloadIn, PayloadIn) = (PayloadIn::Key, PayloadIn::FingerprintOnly);
    const IS_REJECTED: (PayloadIn, PayloadIn) = (PayloadIn::FingerprintOnly, PayloadIn::Key);
    match call.route.key.on_changed_payload {
        OnChangedPayload::Run => RUNS,
        OnChangedPayload::Reject => IS_REJECTED,
        OnChangedPayload::ByRepeat => match call.repeat() {
            Repeat::Unsafe => IS_REJECTED,
            Repeat::WithKey | Repeat::Harmless => RUNS,
        },
    }
}

/// The client's key or the derived one, as the route ranks them. A key that an SDK made up for one call is the same for
/// that call's own retries only, so it never outranks a derived one.
fn chosen(rules: &KeyRules, client: Option<ClientKey>, facts: &Facts) -> Option<Key> {
    let derived = facts.derived.ok().map(|bytes| Key {
        text: rules.format.text(&bytes),
        source: KeySource::Derived,
        verbatim: None,
        by_step: facts.by_step,
        other: facts.other.map(|bytes| rules.format.text(&bytes)),
        alike: None,
    });
    let made_up = client.as_ref().is_some_and(ClientKey::is_made_by_sdk);
    let own = client.map(|client| Key {
        text: client.as_str().to_owned(),
        source: KeySource::Client,
        verbatim: client.verbatim().to_str().ok().map(str::to_owned),
        by_step: false,
        other: None,
        alike: None,
    });
    match rules.client_key {
        ClientKeyRule::Trust if !made_up => own.or(derived),
        ClientKeyRule::Trust | ClientKeyRule::PreferDerived => derived.or(own),
        ClientKeyRule::Ignore => derived,
    }
}

/// The key as the upstream gets it. Where the gateway's own credential goes along, equal keys of two scopes would meet
/// there, so each gets one of its own.
fn upstream_key(call: &Call, key: &Key) -> Option<String> {
    let rules = &call.route.key;
    match (rules.forward, &key.verbatim) {
        (Forward::Verbatim, Some(verbatim)) => Some(verbatim.clone()),
        _ if rules.upstream_header.is_none() => None,
        (Forward::Verbatim, None) => Some(key.text.clone()),
        (Forward::Made, _) => Some(key::forwarded(&call.scope, &call.route.name, &key.text, rules.format)),
    }
}

fn key_missing(rules: &KeyRules, facts: &Facts) -> Box<Answer> {
    let (header, session, step) = (&rules.header, &rules.session_header, &rules.step_header);
    let missing = match (&facts.session, &facts.step) {
        (Some(_), None) => format!(" The call has `{session}` and no `{step}`."),
        (None, Some(_)) => format!(" The call has `{step}` and no `{session}`."),
        (None, None) | (Some(_), Some(_)) => String::new(),
    };
    let wanted = format!("The route wants a key: send `{header}`, or `{session}` and `{step}` from which one is made.");
    refuse(Code::KeyMissing, wanted + &missing)
}

fn refuse(code: Code, detail: String) -> Box<Answer> {
    let marks = Marks { execution: Some(Execution::NotExecuted), ..Marks::default() };
    Box::new(Answer { content: Content::Problem(Problem::new(code, detail)), marks })
}
