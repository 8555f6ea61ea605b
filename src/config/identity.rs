//! What names an operation on a route. A change here starts new keys, so it is counted, listed and warned about.

use sha2::{Digest, Sha256};

use crate::operation::admission::Repeat;

use super::explain::Shown;
use super::moves::moves;
use super::{Callers, Config, OnChangedPayload, Route, Server, ServerTls, Upstream};

/// The fingerprint's version is part of the rules: another one compares other values.
const FINGERPRINT_VERSION: &str = "1";

/// The one rule that may change without a loss: a call is looked up under both forms of its derived key.
pub const ON_CHANGED_PAYLOAD: &str = "key.on_changed_payload";

/// First bytes of the SHA-256 over the canonical text of a route's identity rules.
pub(super) fn digest(route: &Route, scope: &str) -> [u8; 8] {
    digest_of(&rules(route, scope))
}

/// First bytes of the SHA-256 over where a call goes, as whom, and under which name its key. Credentials are left out: they
/// are renewed, and whose they are cannot be seen.
pub(super) fn destination(route: &Route) -> [u8; 8] {
    let Upstream { tls, host, port, keeps_client_host, headers, .. } = &*route.upstream;
    let mut place = vec![
        ("upstream", format!("{tls} {} {port}", host.to_ascii_lowercase())),
        ("host", keeps_client_host.to_string()),
        ("key", route.key.header_upstream().to_string()),
    ];
    let as_whom = headers.iter().filter(|(_, value)| !value.is_sensitive());
    place.extend(as_whom.map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into_owned())));
    place.sort();
    digest_of(&place)
}

fn digest_of(rules: &[(&str, String)]) -> [u8; 8] {
    let mut hash = Sha256::new();
    hash.update(b"oncegate-rules-1");
    for (key, value) in rules {
        for part in [*key, value.as_str()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    let [a, b, c, d, e, f, g, h, ..] = <[u8; 32]>::from(hash.finalize());
    [a, b, c, d, e, f, g, h]
}

/// What differs between two configurations in how calls are named, one line each.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IdentityChanges {
    /// Calls get another key than before, so a repeat of an earlier one may run again.
    pub new_keys: Vec<String>,
    /// Calls from before are found all the same.
    pub still_found: Vec<String>,
}

impl Config {
    /// Every change between two configurations in how calls are named.
    pub fn changes_of_identity(old: &Self, new: &Self) -> IdentityChanges {
        let mut changes = IdentityChanges::default();
        let [old_scope, new_scope] = [old, new].map(|config| scope(&config.callers, &config.server));
        for before in &old.routes.0 {
            let name = &before.name;
            let Some(after) = new.routes.named(name) else {
                changes.new_keys.push(format!("route {name}: gone; under another name its calls get new keys"));
                continue;
            };
            let pairs = rules(before, &old_scope).into_iter().zip(rules(after, &new_scope));
            for ((key, was), (_, is)) in pairs.filter(|((_, before), (_, after))| before != after) {
                let kind = if key == ON_CHANGED_PAYLOAD { &mut changes.still_found } else { &mut changes.new_keys };
                kind.push(format!("route {name}: {key} was {was}, is {is}"));
            }
        }
        if let (Some(was), Some(is)) = (old.store.namespace_in_redis(), new.store.namespace_in_redis())
            && was != is
        {
            changes.new_keys.push(format!("store.namespace was {was}, is {is}"));
        }
        changes.new_keys.extend(moves(old, new));
        changes
    }

    /// What names a call on `route`, by the names of the file.
    pub fn identity_rules(&self, route: &Route) -> Vec<(&'static str, String)> {
        rules(route, &scope(&self.callers, &self.server))
    }

    /// Digests of all rules under which keys were made that the present ones find.
    pub fn rules_of_found_keys(&self, route: &Route) -> [[u8; 8]; 3] {
        ["run", "reject", "by method"].map(|word| {
            let mut rules = self.identity_rules(route);
            for (_, rule) in rules.iter_mut().filter(|(key, _)| *key == ON_CHANGED_PAYLOAD) {
                word.clone_into(rule);
            }
            digest_of(&rules)
        })
    }
}

/// The rules by the names of the file, always the same ones in the same order.
fn rules(route: &Route, scope: &str) -> Vec<(&'static str, String)> {
    let key = &route.key;
    vec![
        ("name", route.name.clone()),
        ("callers.scope", scope.to_owned()),
        ("key.client_key", key.client_key.shown()),
        ("key.header", key.header.shown()),
        ("key.session_header", key.session_header.shown()),
        ("key.step_header", key.step_header.shown()),
        ("key.from", key.from.shown()),
        ("key.headers", sorted(&key.headers)),
        ("key.format", key.format.shown()),
        (ON_CHANGED_PAYLOAD, on_changed_payload(route).to_owned()),
        ("payload.compare", route.payload.compare.shown()),
        ("payload.ignore", sorted(&route.payload.ignore)),
        ("fingerprint", FINGERPRINT_VERSION.to_owned()),
    ]
}

/// How callers are told apart, with what of theirs comes without being asked for in `[callers]`.
pub(super) fn scope(callers: &Callers, server: &Server) -> String {
    match callers {
        Callers::None => "none".to_owned(),
        Callers::Credential if server.tls.as_ref().is_some_and(ServerTls::asks_clients) => {
            "credential with certificates".to_owned()
        }
        Callers::Credential => "credential".to_owned(),
        Callers::Header(name) => format!("header:{name}"),
        Callers::Token(_) => "token".to_owned(),
    }
}

/// What the setting comes to: with "reject" the payload is no part of the record's name.
fn on_changed_payload(route: &Route) -> &'static str {
    match (route.key.on_changed_payload, route.repeat.or(route.upstream.repeat)) {
        (OnChangedPayload::Run, _) => "run",
        (OnChangedPayload::Reject, _) | (OnChangedPayload::ByRepeat, Some(Repeat::Unsafe)) => "reject",
        (OnChangedPayload::ByRepeat, Some(Repeat::WithKey | Repeat::Harmless)) => "run",
        (OnChangedPayload::ByRepeat, None) => "by method",
    }
}

/// The order of a set says nothing. Quotes keep `["a, b"]` and `["a", "b"]` apart.
fn sorted<T: Shown>(set: &[T]) -> String {
    let mut items: Vec<String> = set.iter().map(|item| format!("{:?}", item.shown())).collect();
    items.sort();
    format!("[{}]", items.join(", "))
}
