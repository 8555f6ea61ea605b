//! Which header lines pass the gateway, in both directions, and which are its own. Pure; the lines of one name keep
//! their order, and all lines their bytes, also those that are not ASCII.

use bytes::Bytes;
use http::header::{CONNECTION, TE, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use crate::credential::{Lifetime, lifetime};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The names that `Connection` lines list, which are the connection's business only (RFC 9110, section 7.6.1). The
/// door may refuse a request that lists a name it relies on. Tokens that are no header names are left out.
pub fn connection_names(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> + '_ {
    let tokens = headers.get_all(CONNECTION).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    tokens.filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok())
}

/// The protocols that a request would rather go on in (RFC 9110, section 7.8), without those that would carry HTTP past
/// the gateway: `h2c`, `TLS/1.0` and the like are ignored, as a server may ignore them. `None` if nothing is left.
pub fn asked_protocols(headers: &HeaderMap) -> Option<HeaderValue> {
    if !headers.contains_key(UPGRADE) || !connection_names(headers).any(|name| name == UPGRADE) {
        return None;
    }
    let asked: Vec<_> = protocols(headers).filter(|protocol| !carries_http(protocol)).collect();
    HeaderValue::from_bytes(&asked.join(&b", "[..])).ok().filter(|asked| !asked.is_empty())
}

/// Whether `headers`, of a 101, switch to nothing but what `asked` offers.
pub fn switches_as_asked(headers: &HeaderMap, asked: &HeaderValue) -> bool {
    let offered = |protocol: &[u8]| list(asked).any(|offer| offer.eq_ignore_ascii_case(protocol));
    headers.contains_key(UPGRADE) && protocols(headers).all(offered)
}

/// Asks for other protocols, or names the one that is switched to. `Upgrade` is for the next hop only, so it stands with
/// the `Connection` that says so, after [`remove_hop_by_hop`].
pub fn set_upgrade(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocols);
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers.get_all(UPGRADE).into_iter().flat_map(list)
}

fn list(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}

fn carries_http(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
    [&b"h2c"[..], b"h2", b"http", b"tls"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Removes what belongs to one connection: the fixed names and all that `Connection` lists. Must run before any line
/// of our own is added, lest a client strip it by listing its name.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let listed: Vec<_> = connection_names(headers).collect();
    remove_where(headers, |name| is_hop_by_hop(name) || listed.contains(name));
}

/// Names that never go from one connection to another. `Proxy-Authorization` and `Proxy-Authenticate` are among them:
/// RFC 9110 (section 11.7) lets a proxy relay them, but this is a gateway, and what is meant for a proxy before it is
/// none of the upstream's business.
pub fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Whether whoever is at the other end of this hop takes what stands behind a body (RFC 9110, section 6.5.1).
pub fn takes_trailers(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(TE).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    codings.map(<[u8]>::trim_ascii).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

/// Begins the name under which a trailer stands among the header lines of a kept answer. It is one of our own, so that no
/// upstream can say it, and an older version of the gateway leaves it out.
const TRAILER: &str = "oncegate-trailer-";

/// Puts trailers beside the header lines, as they are kept. A name that makes no sense there is left out.
pub fn keep_trailers(headers: &mut HeaderMap, trailers: &HeaderMap) {
    for (name, value) in trailers.iter().filter(|(name, _)| kept_for_replay(name)) {
        if let Ok(name) = HeaderName::try_from(format!("{TRAILER}{name}")) {
            headers.append(name, value.clone());
        }
    }
}

/// What [`keep_trailers`] put there under `name`.
pub fn trailer_name(name: &HeaderName) -> Option<HeaderName> {
    name.as_str().strip_prefix(TRAILER).and_then(|trailer| HeaderName::try_from(trailer).ok())
}

/// Names that only the gateway may write.
pub fn is_ours(name: &HeaderName) -> bool {
    name.as_str().starts_with("oncegate-") || name.as_str() == "idempotent-replayed"
}

/// Removes inbound copies of our own lines.
pub fn drop_ours(headers: &mut HeaderMap) {
    remove_where(headers, is_ours);
}

/// From whom and how a request came to us.
#[derive(Clone, Copy, Debug)]
pub struct Hop<'a> {
    /// Its address.
    pub peer: &'a HeaderValue,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// What the client asked for.
    pub host: Option<&'a HeaderValue>,
    /// The peer is a proxy whose account of the way so far is believed.
    pub trusted: bool,
}

/// The line that says who passed an answer on that came in `version` (RFC 9110, section 7.6.3).
pub fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_10 => "1.0 oncegate",
        Version::HTTP_2 => "2 oncegate",
        _ => "1.1 oncegate",
    })
}

/// Tells the upstream who called. What a trusted peer said stays, with the peer added to `X-Forwarded-For`; what
/// anybody else said about the way here is dropped, in all its spellings, and replaced by what we saw.
pub fn forwarded(headers: &mut HeaderMap, hop: Hop<'_>) {
    if !hop.trusted {
        remove_where(headers, tells_the_way);
    }
    if let Some(way) = join(headers, &X_FORWARDED_FOR, hop.peer) {
        headers.insert(X_FORWARDED_FOR, way);
    }
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(hop.scheme));
    if let Some(host) = hop.host {
        headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
    }
}

/// Names that say from where and how a request came.
pub fn tells_the_way(name: &HeaderName) -> bool {
    matches!(name.as_str(), "forwarded" | "x-real-ip") || name.as_str().starts_with("x-forwarded-")
}

/// All lines of `name` as one list, with `last` at its end: many services look at one line only.
fn join(headers: &HeaderMap, name: &HeaderName, last: &HeaderValue) -> Option<HeaderValue> {
    if !headers.contains_key(name) {
        return Some(last.clone());
    }
    let lines: Vec<_> = headers.get_all(name).into_iter().chain([last]).map(HeaderValue::as_bytes).collect();
    HeaderValue::from_maybe_shared(Bytes::from(lines.join(&b", "[..]))).ok()
}

/// Whether a name may stand behind a body. What frames, routes, admits or describes a message is read before it
/// (RFC 9110, section 6.5.1), and a hop that merges trailers into its headers would take it for that.
pub fn may_be_trailer(name: &HeaderName) -> bool {
    let text = name.as_str();
    let is_read_before = matches!(
        text,
        "cache-control"
            | "content-encoding"
            | "content-length"
            | "content-range"
            | "content-type"
            | "expect"
            | "host"
            | "idempotency-key"
            | "max-forwards"
            | "range"
            | "set-cookie"
            | "trailer"
            | "via"
    );
    // A signature of the body may well stand behind it.
    let is_credential = matches!(lifetime(name), Some(Lifetime::Lasting | Lifetime::Session));
    let is_read_by_us = is_hop_by_hop(name) || is_ours(name) || is_credential || tells_the_way(name);
    !(is_read_before || is_read_by_us || text.starts_with("if-"))
}

/// Whether a line of an answer is stored and replayed. Names listed by `Connection` are gone by then
/// ([`remove_hop_by_hop`]); `Date`, `Content-Length`, `Trailer` and `Via` are made anew by each replay.
pub fn kept_for_replay(name: &HeaderName) -> bool {
    let text = name.as_str();
    let for_one_client = matches!(
        text,
        "authentication-info"
            | "clear-site-data"
            | "proxy-authentication-info"
            | "set-cookie"
            | "set-cookie2"
            | "www-authenticate"
    );
    let of_its_moment = matches!(
        text,
        "age" | "alt-svc" | "content-length" | "date" | "retry-after" | "server-timing" | "trailer" | "via"
    ) || ["ratelimit", "x-ratelimit"].iter().any(|start| text.starts_with(start));
    let ours = is_ours(name) && !text.starts_with(TRAILER);
    !(for_one_client || of_its_moment || is_hop_by_hop(name) || ours)
}

fn remove_where(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
    let names: Vec<_> = headers.keys().filter(|name| unwanted(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}
