//! Who is asking: the scope of a request, by the rule of `[callers]`.

use std::net::IpAddr;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use crate::config::{Callers, Config, Network};
use crate::engine::problem::{Code, Problem};
use crate::operation::Scope;
use crate::server::listener::{Peer, Transport};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const BEARER: &[u8] = b"Bearer ";

/// Tells callers apart, and takes away what was meant for the gateway alone.
#[derive(Clone, Debug)]
pub struct CallerRule {
    callers: Callers,
    trusted: Vec<Network>,
    /// Everything that can reach a loopback listener is on this machine and believed.
    on_loopback: bool,
}

impl CallerRule {
    pub fn new(config: &Config) -> Self {
        Self {
            callers: config.callers.clone(),
            trusted: config.server.trusted_proxies.clone(),
            on_loopback: config.server.listen.ip().is_loopback(),
        }
    }

    /// Whether what `peer` says about the way here is believed.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(peer))
    }

    /// The scope of a request. A token of the gateway's own is taken out of `headers`: it never goes upstream. A client
    /// that has shown its certificate is one of those who may say for whom they ask.
    ///
    /// # Errors
    /// `unauthenticated`: the rule asks for something that is not there.
    pub fn scope(&self, headers: &mut HeaderMap, peer: &Peer) -> Result<Scope, Problem> {
        match &self.callers {
            Callers::None => Ok(Scope::none()),
            Callers::Credential => Ok(by_credential(headers)),
            Callers::Header(name) => {
                let has_certificate = peer.transport == Transport::MutualTls;
                let believed = self.on_loopback || has_certificate || self.trusts(peer.address.ip());
                by_header(headers, name).filter(|_| believed).ok_or_else(|| nameless(name))
            }
            Callers::Token(tokens) => {
                let presented = headers.remove(AUTHORIZATION).and_then(|value| digest_of_bearer(&value));
                let mut known = tokens.iter().filter(|token| presented == Some(digest(token.token.0.as_bytes())));
                known.next_back().map(|token| Scope::named("token", &token.name)).ok_or_else(unknown_token)
            }
        }
    }
}

/// Both credentials together where there are both: one of them may be shared by many.
fn by_credential(headers: &HeaderMap) -> Scope {
    match (headers.get(AUTHORIZATION), headers.get(API_KEY)) {
        (None, None) => Scope::credential("anonymous", b""),
        (Some(authorization), None) => Scope::credential("authorization", authorization.as_bytes()),
        (None, Some(key)) => Scope::credential("x-api-key", key.as_bytes()),
        (Some(authorization), Some(key)) => {
            let both = [digest(authorization.as_bytes()), digest(key.as_bytes())].concat();
            Scope::credential("authorization+x-api-key", &both)
        }
    }
}

/// One line with a name in it; two lines are nobody's.
fn by_header(headers: &HeaderMap, name: &HeaderName) -> Option<Scope> {
    let mut lines = headers.get_all(name).iter();
    let only = std::str::from_utf8(lines.next()?.as_bytes()).ok()?;
    (lines.next().is_none() && !only.is_empty()).then(|| Scope::named("header", only))
}

/// Digests are compared instead of tokens, so that the time of a comparison tells nothing about a token.
fn digest_of_bearer(value: &HeaderValue) -> Option<[u8; 32]> {
    let (kind, token) = value.as_bytes().split_at_checked(BEARER.len())?;
    kind.eq_ignore_ascii_case(BEARER).then(|| digest(token))
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn nameless(name: &HeaderName) -> Problem {
    let detail = format!(
        "Callers are told apart by `{name}`, which was not there exactly once, or not from where it is believed."
    );
    Problem::new(Code::Unauthenticated, detail)
}

fn unknown_token() -> Problem {
    Problem::new(Code::Unauthenticated, "No token of this gateway was presented as `Authorization: Bearer TOKEN`.")
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::config::{CallerToken, Secret};

    const PEER: &Peer = &peer(Transport::Tls);

    const fn peer(transport: Transport) -> Peer {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5000);
        Peer { address, transport, ambiguity: None }
    }

    fn rule(callers: Callers, on_loopback: bool) -> CallerRule {
        CallerRule { callers, trusted: Vec::new(), on_loopback }
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_token_names_its_caller_and_goes_no_further() {
        let token = |name: &str, token: &str| CallerToken { name: name.into(), token: Secret(token.into()) };
        let rule = rule(Callers::Token(vec![token("bot", "old"), token("bot", "new"), token("other", "x")]), false);
        let mut old = headers(&[("authorization", "Bearer old")]);
        let mut new = headers(&[("authorization", "bearer new")]);
        assert_eq!(rule.scope(&mut old, PEER).unwrap(), rule.scope(&mut new, PEER).unwrap());
        assert!(old.is_empty());
        for wrong in ["Bearer ol", "Basic old", "Bearer", "old"] {
            assert!(rule.scope(&mut headers(&[("authorization", wrong)]), PEER).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_scope_header_counts_only_from_where_it_is_believed() {
        let callers = Callers::Header(HeaderName::from_static("x-tenant"));
        let named = || headers(&[("x-tenant", "a")]);
        assert!(rule(callers.clone(), true).scope(&mut named(), PEER).is_ok());
        assert!(rule(callers.clone(), false).scope(&mut named(), PEER).is_err());
        assert!(rule(callers.clone(), false).scope(&mut named(), &peer(Transport::MutualTls)).is_ok());
        assert!(rule(callers.clone(), true).scope(&mut HeaderMap::new(), PEER).is_err());
        let mut two = named();
        two.append("x-tenant", HeaderValue::from_static("b"));
        assert!(rule(callers, true).scope(&mut two, PEER).is_err());
    }

    #[test]
    fn equal_bytes_of_two_kinds_are_two_callers() {
        let rule = rule(Callers::Credential, true);
        let scopes = [
            headers(&[]),
            headers(&[("authorization", "k")]),
            headers(&[("x-api-key", "k")]),
            headers(&[("authorization", "k"), ("x-api-key", "k")]),
            headers(&[("authorization", "k"), ("x-api-key", "l")]),
        ]
        .map(|mut headers| rule.scope(&mut headers, PEER).unwrap());
        for (at, one) in scopes.iter().enumerate() {
            assert!(scopes[at + 1..].iter().all(|other| other != one));
        }
    }
}
