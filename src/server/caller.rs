//! Who is asking: the scope of a request, by the rule of `[callers]`.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use crate::config::{Callers, Config, Network, Upstream};
use crate::credential::holder_lines;
use crate::engine::problem::{Code, Problem};
use crate::operation::Scope;
use crate::server::door::is_loopback;
use crate::server::listener::{Peer, Transport};

const BEARER: &[u8] = b"Bearer ";
/// What a browser says of the page behind a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Tells callers apart, and takes away what was meant for the gateway alone.
#[derive(Clone, Debug)]
pub struct CallerRule {
    callers: Callers,
    trusted: Vec<Network>,
    /// Everything that can reach a loopback listener is on this machine and believed.
    on_loopback: bool,
}

const FOREIGN_PAGE: &str = "A page of another site asks for a call that a credential of this gateway goes with. To let \
    pages in, say who may call (callers.scope) or which proxy is in front (server.trusted_proxies).";

const NAMELESS: &str = "Tell the operator: the proxy in front of this gateway has to write the header that names the caller, \
    once, and to be one that is believed (server.trusted_proxies).";

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

    /// Any page on the web can make a browser of this machine call us. Where whoever is on the machine is the one caller,
    /// it would spend the credential that the gateway adds.
    ///
    /// # Errors
    /// `invalid-request`, 403: a page of another site asks, and a credential would go with the call.
    pub fn check_page(&self, headers: &HeaderMap, upstream: &Upstream) -> Result<(), Problem> {
        let is_open = matches!(self.callers, Callers::None) && self.on_loopback && self.trusted.is_empty();
        if is_open && upstream.carries_credential() && is_of_foreign_page(headers) {
            return Err(Problem::new(Code::InvalidRequest, FOREIGN_PAGE).with_status(403));
        }
        Ok(())
    }

    /// Whether the certificate of `peer` is part of what tells him apart.
    pub fn goes_by_certificate(&self, peer: &Peer) -> bool {
        matches!(self.callers, Callers::Credential) && self.holder(peer).is_some()
    }

    /// Whose certificate came with the connection. That of a trusted proxy says nothing of those for whom it asks.
    fn holder(&self, peer: &Peer) -> Option<[u8; 32]> {
        match peer.transport {
            Transport::MutualTls { holder } if !self.trusts(peer.address.ip()) => Some(holder),
            Transport::MutualTls { .. } | Transport::Tls | Transport::Plain => None,
        }
    }

    /// The scope of a request. A token of the gateway's own is taken out of `headers`: it never goes upstream. A client
    /// that has shown its certificate is one of those who may say for whom they ask.
    ///
    /// # Errors
    /// `unauthenticated`: the rule asks for something that is not there.
    pub fn scope(&self, headers: &mut HeaderMap, peer: &Peer) -> Result<Scope, Problem> {
        match &self.callers {
            Callers::None => Ok(Scope::none()),
            Callers::Credential => Ok(by_credential(headers, self.holder(peer).as_ref())),
            Callers::Header(name) => {
                let has_certificate = matches!(peer.transport, Transport::MutualTls { .. });
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

/// The name of a client certificate among the credentials of a request: none that a header can have.
const CERTIFICATE: &str = "(certificate)";

/// Browsers say `Origin` with every write; with reads only, at best, what the page is to us.
fn is_of_foreign_page(headers: &HeaderMap) -> bool {
    if !headers.contains_key(ORIGIN) {
        return headers.get(FETCH_SITE).is_some_and(|site| site == "cross-site");
    }
    let authority = |origin: &HeaderValue| Some(origin.to_str().ok()?.split_once("://")?.1.to_owned());
    headers.get_all(ORIGIN).iter().any(|origin| !authority(origin).is_some_and(|host| is_loopback(&host)))
}

/// By all that tells one holder of credentials from another.
fn by_credential(headers: &HeaderMap, holder: Option<&[u8; 32]>) -> Scope {
    let certificate = holder.map(|holder| (CERTIFICATE, holder.as_slice()));
    let lines = holder_lines(headers.iter(), certificate.is_some());
    let lines: Vec<_> = certificate.into_iter().chain(lines).collect();
    match lines.as_slice() {
        [] => Scope::credential("anonymous", b""),
        [(name, value)] => Scope::credential(name, value),
        lines => {
            let names: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
            let values: Vec<[u8; 32]> = lines.iter().map(|(_, value)| digest(value)).collect();
            Scope::credential(&names.join("+"), &values.concat())
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
    Problem::new(Code::Unauthenticated, detail).with_advice(NAMELESS)
}

fn unknown_token() -> Problem {
    Problem::new(Code::Unauthenticated, "No token of this gateway was presented as `Authorization: Bearer TOKEN`.")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::LazyLock;

    use super::*;
    use crate::config::{CallerToken, Secret};

    static PEER: LazyLock<Peer> = LazyLock::new(|| peer(Transport::Tls));

    fn peer(transport: Transport) -> Peer {
        Peer::new((Ipv4Addr::LOCALHOST, 5000).into(), transport)
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
        assert_eq!(rule.scope(&mut old, &PEER).unwrap(), rule.scope(&mut new, &PEER).unwrap());
        assert!(old.is_empty());
        for wrong in ["Bearer ol", "Basic old", "Bearer", "old"] {
            assert!(rule.scope(&mut headers(&[("authorization", wrong)]), &PEER).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_scope_header_counts_only_from_where_it_is_believed() {
        let callers = Callers::Header(HeaderName::from_static("x-tenant"));
        let named = || headers(&[("x-tenant", "a")]);
        let mutual = peer(Transport::MutualTls { holder: [1; 32] });
        assert!(rule(callers.clone(), true).scope(&mut named(), &PEER).is_ok());
        assert!(rule(callers.clone(), false).scope(&mut named(), &PEER).is_err());
        assert!(rule(callers.clone(), false).scope(&mut named(), &mutual).is_ok());
        assert!(rule(callers.clone(), true).scope(&mut HeaderMap::new(), &PEER).is_err());
        let mut two = named();
        two.append("x-tenant", HeaderValue::from_static("b"));
        let refused = rule(callers, true).scope(&mut two, &PEER).unwrap_err();
        assert!(refused.advice.is_some_and(|advice| advice.contains("proxy in front")), "not a token: {refused:?}");
    }

    fn by_credential_of(lines: &[(&'static str, &'static str)]) -> Scope {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        rule(Callers::Credential, true).scope(&mut headers, &PEER).unwrap()
    }

    #[test]
    fn whatever_a_credential_is_called_it_tells_callers_apart() {
        for name in
            ["cookie", "proxy-authorization", "api-key", "x-auth-token", "x-goog-api-key", "cf-access-jwt-assertion"]
        {
            let [alice, bob] = ["alice", "bob"].map(|who| by_credential_of(&[(name, who)]));
            assert_ne!(alice, bob, "{name}");
            assert_ne!(alice, by_credential_of(&[]), "{name}");
        }
        let [one, two] =
            ["1", "2"].map(|user| by_credential_of(&[("authorization", "shared"), ("x-auth-token", user)]));
        assert_ne!(one, two);
    }

    #[test]
    fn every_line_of_a_credential_counts() {
        let both = by_credential_of(&[("authorization", "a"), ("authorization", "b")]);
        for other in [
            &[("authorization", "a")][..],
            &[("authorization", "b")],
            &[("authorization", "b"), ("authorization", "a")],
            &[("authorization", "a, b")],
        ] {
            assert_ne!(by_credential_of(other), both, "{other:?}");
        }
    }

    #[test]
    fn what_changes_by_itself_makes_no_new_caller() {
        let alone = by_credential_of(&[("authorization", "a")]);
        for line in [("cookie", "lb=7"), ("dpop", "proof"), ("stripe-signature", "t=1"), ("x-api-key", "")] {
            assert_eq!(by_credential_of(&[line, ("authorization", "a")]), alone, "{line:?}");
        }
    }

    #[test]
    fn scopes_of_older_versions_are_the_same() {
        assert_eq!(by_credential_of(&[("authorization", "k")]), Scope::credential("authorization", b"k"));
        assert_eq!(by_credential_of(&[("x-api-key", "k")]), Scope::credential("x-api-key", b"k"));
        let both = [digest(b"k"), digest(b"l")].concat();
        let of_both = by_credential_of(&[("x-api-key", "l"), ("authorization", "k")]);
        assert_eq!(of_both, Scope::credential("authorization+x-api-key", &both));
    }

    #[test]
    fn a_client_certificate_is_a_credential_unless_a_proxy_shows_its_own() {
        let with = |holder: u8| peer(Transport::MutualTls { holder: [holder; 32] });
        let scope = |rule: &CallerRule, lines, peer: &Peer| rule.scope(&mut headers(lines), peer).unwrap();
        let direct = rule(Callers::Credential, false);
        let alice = scope(&direct, &[], &with(1));
        assert_eq!(alice, scope(&direct, &[("cookie", "lb=7")], &with(1)));
        let token = &[("authorization", "k")];
        let others = [scope(&direct, &[], &with(2)), scope(&direct, token, &with(1)), scope(&direct, token, &PEER)];
        assert!(others.iter().all(|other| *other != alice), "{others:?}");
        assert_ne!(others[1], others[2]);
        assert!(direct.goes_by_certificate(&with(1)) && !direct.goes_by_certificate(&PEER));

        let trusted = vec![Network { address: PEER.address.ip(), prefix: 32 }];
        let behind_a_proxy = CallerRule { trusted, ..direct };
        assert_eq!(scope(&behind_a_proxy, token, &with(1)), scope(&behind_a_proxy, token, &with(2)));
        assert!(
            !behind_a_proxy.goes_by_certificate(&with(1)) && !rule(Callers::None, true).goes_by_certificate(&with(1))
        );
    }

    #[test]
    fn a_page_of_another_site_does_not_spend_our_credential() {
        let one = |name, value| headers(&[(name, value)]);
        for page in ["https://evil.example", "http://localhost.evil.example:8080", "null", "http://", "file://"] {
            assert!(is_of_foreign_page(&one("origin", page)), "{page}");
        }
        for page in ["http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]", "tauri://localhost"] {
            let mut headers = one("origin", page);
            headers.insert(FETCH_SITE, HeaderValue::from_static("cross-site"));
            assert!(!is_of_foreign_page(&headers), "{page}");
        }
        assert!(is_of_foreign_page(&headers(&[("origin", "http://localhost"), ("origin", "http://evil.example")])));
        assert!(is_of_foreign_page(&one("sec-fetch-site", "cross-site")));
        assert!(!is_of_foreign_page(&one("sec-fetch-site", "same-site")) && !is_of_foreign_page(&headers(&[])));
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
        .map(|mut headers| rule.scope(&mut headers, &PEER).unwrap());
        for (at, one) in scopes.iter().enumerate() {
            assert!(scopes[at + 1..].iter().all(|other| other != one));
        }
    }
}
