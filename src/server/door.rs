//! What a request head has to be before anything looks at it.
//!
//! Whatever two hops could read differently is refused here, before a route is chosen: framing, Host, target, encoding.
//! Nothing is repaired. Limits that hyper has only in the large are exact here, and explained.

use std::fmt;
use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, TRANSFER_ENCODING, VIA};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use crate::config::{Callers, Config, Ingredient, Route, RouteTable};
use crate::engine::problem::{Code, Problem};
use crate::entropy::Entropy;
use crate::server::framing::Ambiguity;
use crate::upstream::{is_hop_by_hop, is_ours, tells_the_way};

/// Headers that are for the other end. Whoever names them in `Connection` wants a hop to drop them.
const END_TO_END: [&str; 6] = ["authorization", "content-length", "content-type", "cookie", "host", "x-api-key"];

/// Methods by which a request would be more than a request.
const NOT_TAKEN: [&str; 3] = ["CONNECT", "TRACE", "TRACK"];

/// Header lines of a request; hyper has the same limit for HTTP/1.
pub const MAX_FIELDS: usize = 100;

/// The name of this process in `Via`, by which it knows a request that it has already passed on.
#[derive(Clone, Debug)]
pub struct Instance {
    name: String,
    /// For a request of HTTP/1.0, of HTTP/1.1 and of HTTP/2.
    via: [HeaderValue; 3],
}

impl Instance {
    /// A new name for each process: gateways that stand behind one another are no loop.
    pub fn new(entropy: &Entropy) -> Self {
        let name = format!("oncegate-{:016x}", u64::from_be_bytes(entropy.bytes()));
        let via = ["1.0", "1.1", "2"].map(|version| HeaderValue::try_from(format!("{version} {name}")));
        let via = via.map(|via| via.unwrap_or(HeaderValue::from_static("1.1 oncegate")));
        Self { name, via }
    }

    /// The line to add to a request that came in `version`.
    pub fn via(&self, version: Version) -> HeaderValue {
        let [old, usual, new] = &self.via;
        match version {
            Version::HTTP_10 => old.clone(),
            Version::HTTP_2 => new.clone(),
            _ => usual.clone(),
        }
    }

    fn has_seen(&self, headers: &HeaderMap) -> bool {
        let lines = headers.get_all(VIA).iter().filter_map(|line| line.to_str().ok());
        lines.flat_map(|line| line.split(',')).any(|hop| hop.split_whitespace().nth(1) == Some(&self.name))
    }
}

/// The checks on a request head, with their limits.
#[derive(Clone, Debug)]
pub struct Door {
    max_header_bytes: usize,
    max_uri_bytes: usize,
    /// Where routes look for the client's key.
    key_headers: Vec<HeaderName>,
    /// What else names a call, its route or its caller, here or where it goes.
    naming_headers: Vec<HeaderName>,
    instance: Instance,
}

impl Door {
    /// A door with the limits of `[server]`, that knows which headers the routes go by.
    pub fn new(config: &Config, instance: Instance) -> Self {
        let keys = || config.routes.0.iter().map(|route| &route.key);
        let caller = match &config.callers {
            Callers::Header(name) => Some(name),
            Callers::None | Callers::Credential | Callers::Token(_) => None,
        };
        let named = keys().flat_map(|key| [&key.session_header, &key.step_header].into_iter().chain(&key.headers));
        let derived = keys().flat_map(|key| &key.from).filter_map(Ingredient::header);
        let matched = config.routes.0.iter().flat_map(|route| &route.matches.headers).map(|(name, _)| name);
        let added = config.routes.0.iter().flat_map(|route| &route.upstream.headers).map(|(name, _)| name);
        let upstream = keys().filter_map(|key| key.upstream_header.as_ref());
        Self {
            key_headers: distinct(keys().map(|key| &key.header)),
            naming_headers: distinct(named.chain(derived).chain(matched).chain(caller).chain(added).chain(upstream)),
            ..Self::with_limits(config.server.max_header_bytes, config.server.max_uri_bytes, instance)
        }
    }

    /// A door that takes this many bytes of header lines and of target.
    pub fn with_limits(max_header_bytes: usize, max_uri_bytes: usize, instance: Instance) -> Self {
        let key_headers = vec![HeaderName::from_static("idempotency-key")];
        Self { max_header_bytes, max_uri_bytes, key_headers, naming_headers: Vec::new(), instance }
    }

    /// Lets a head pass, or says why not.
    ///
    /// # Errors
    /// A problem `invalid-request` or `method-not-allowed`; the connection ends with its answer.
    pub fn check(&self, head: &Parts, ambiguity: Option<Ambiguity>) -> Result<(), Problem> {
        check_framing(&head.headers, ambiguity)?;
        check_http2(head)?;
        check_method(&head.method)?;
        self.check_size(&head.uri, &head.headers)?;
        check_target(&head.method, &head.uri)?;
        check_host(&head.uri, &head.headers)?;
        check_expectation(&head.headers)?;
        self.check_connection(&head.headers)?;
        self.check_twins(&head.headers)?;
        self.check_loop(&head.headers)
    }

    /// What no trailer may be called, for it was read before the body.
    pub fn reserved(&self) -> impl Iterator<Item = &HeaderName> {
        self.key_headers.iter().chain(&self.naming_headers)
    }

    fn check_size(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let target = uri.path().len() + uri.query().map_or(0, |query| query.len() + 1);
        if target > self.max_uri_bytes {
            return Err(
                refusal(format_args!("the target is longer than {} bytes", self.max_uri_bytes)).with_status(414)
            );
        }
        if headers.len() > MAX_FIELDS {
            return Err(refusal(format_args!("there are more than {MAX_FIELDS} header lines")).with_status(431));
        }
        let fields: usize =
            headers.iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum();
        if fields > self.max_header_bytes {
            return Err(
                refusal(format_args!("the headers are longer than {} bytes", self.max_header_bytes)).with_status(431)
            );
        }
        Ok(())
    }

    /// By bytes, as the lines are taken away later.
    fn check_connection(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let names = || END_TO_END.into_iter().chain(self.reserved().map(HeaderName::as_str));
        let lines =
            headers.get_all(CONNECTION).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        let mut options = lines.map(<[u8]>::trim_ascii);
        match options.find_map(|option| names().find(|name| option.eq_ignore_ascii_case(name.as_bytes()))) {
            Some(name) => Err(refusal(format_args!("Connection names {name}, which is not for this hop alone"))),
            None => Ok(()),
        }
    }

    /// A service that reads headers through CGI cannot tell `_` from `-`, and would take the twin for the real one.
    fn check_twins(&self, headers: &HeaderMap) -> Result<(), Problem> {
        for name in headers.keys().filter(|name| name.as_str().contains('_')) {
            let Ok(real) = HeaderName::try_from(name.as_str().replace('_', "-")) else { continue };
            let code = match () {
                () if self.key_headers.contains(&real) => Code::KeyInvalid,
                () if self.is_read(&real) => Code::InvalidRequest,
                () => continue,
            };
            let detail =
                format!("a header differs from `{real}` only in `_` and `-`; some services would read it as that");
            return Err(Problem::new(code, detail));
        }
        Ok(())
    }

    fn is_read(&self, name: &HeaderName) -> bool {
        END_TO_END.contains(&name.as_str())
            || self.naming_headers.contains(name)
            || is_hop_by_hop(name)
            || is_ours(name)
            || tells_the_way(name)
    }

    fn check_loop(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if self.instance.has_seen(headers) {
            return Err(refusal(
                "Via shows that this gateway has passed the request on before: an upstream's url leads back \
                here",
            )
            .with_status(508));
        }
        Ok(())
    }
}

fn distinct<'h>(names: impl Iterator<Item = &'h HeaderName>) -> Vec<HeaderName> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(name) {
            distinct.push(name.clone());
        }
    }
    distinct
}

fn refusal(detail: impl fmt::Display) -> Problem {
    Problem::new(Code::InvalidRequest, detail.to_string())
}

fn check_framing(headers: &HeaderMap, ambiguity: Option<Ambiguity>) -> Result<(), Problem> {
    if let Some(ambiguity) = ambiguity {
        return Err(refusal(ambiguity.as_str()));
    }
    match headers.get(TRANSFER_ENCODING) {
        Some(coding) if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Err(refusal("Transfer-Encoding is something other than chunked").with_status(501))
        }
        Some(_) | None => Ok(()),
    }
}

/// What HTTP/1 has refused, or read in one way, by now.
fn check_http2(head: &Parts) -> Result<(), Problem> {
    if head.version != Version::HTTP_2 {
        return Ok(());
    }
    if head.headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(refusal(Ambiguity::TwoLengths.as_str()));
    }
    // The lines of a cookie were joined by us, and one of them may have been empty.
    let is_padded =
        |name: &HeaderName, value: &HeaderValue| name != COOKIE && value.as_bytes().trim_ascii().len() < value.len();
    match head.headers.iter().find(|(name, value)| is_padded(name, value)) {
        Some((name, _)) => Err(refusal(format_args!("there is white space around the value of {name}"))),
        None => Ok(()),
    }
}

fn check_method(method: &Method) -> Result<(), Problem> {
    if NOT_TAKEN.iter().any(|name| method.as_str().eq_ignore_ascii_case(name)) {
        return Err(Problem::new(Code::MethodNotAllowed, format!("{method} is not taken by a reverse proxy")));
    }
    Ok(())
}

fn check_target(method: &Method, uri: &Uri) -> Result<(), Problem> {
    if uri.path() == "*" && *method == Method::OPTIONS {
        return Ok(());
    }
    if !uri.path().starts_with('/') {
        return Err(refusal("the target is neither a path nor a full URL"));
    }
    if !matches!(uri.scheme_str(), None | Some("http" | "https")) {
        return Err(refusal("the target's scheme is neither http nor https"));
    }
    if uri.path_and_query().is_some_and(|target| target.as_str().bytes().any(|byte| byte <= b' ' || byte == 0x7f)) {
        return Err(refusal("the target has control characters"));
    }
    if uri.path().contains("%00") {
        return Err(refusal("the path has a NUL (%00), where some services would end it"));
    }
    if has_dot_segment(uri.path()) {
        return Err(refusal(
            "the path has a dot segment (. or .., plain or percent-encoded); send the path it leads to",
        ));
    }
    Ok(())
}

/// Whether a server behind us could walk up or stay in place: encoded dots and slashes count, a backslash counts as a
/// slash, and what follows a semicolon counts as a parameter, for there are servers that read them so.
fn has_dot_segment(path: &str) -> bool {
    if !path.contains('.') && !path.contains('%') {
        return false;
    }
    let path = decoded(path, |byte| matches!(byte, b'.' | b'/' | b';' | b'\\'));
    path.split(['/', '\\']).any(|segment| matches!(segment.split(';').next(), Some("." | "..")))
}

/// The route of a request. What goes upstream is not decoded, and a service that decodes it must not do what another
/// route guards.
///
/// # Errors
/// `no-route`, or `invalid-request` where the path may be read as that of another route.
pub fn find_route(routes: &RouteTable, head: &Parts) -> Result<Arc<Route>, Problem> {
    let path = head.uri.path();
    let host = head.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let find = |path: &str| routes.find(&head.method, host, path, &head.headers);
    let route = find(path).ok_or_else(|| no_route(head))?;
    let other = lenient_reading(path).and_then(|reading| find(&reading));
    match other.filter(|other| other.matches.path.len() > route.matches.path.len()) {
        Some(other) => Err(refusal(format_args!(
            "The path may be read as one of route `{}`; send it without escapes, empty segments and parameters.",
            other.name
        ))),
        None => Ok(Arc::clone(route)),
    }
}

fn no_route(head: &Parts) -> Problem {
    Problem::new(Code::NoRoute, format!("No route of gateway.toml matches {} {}.", head.method, head.uri.path()))
}

/// The path as a lenient service may read it, if that is another one: escapes of visible characters resolved, slashes
/// merged, parameters left out.
fn lenient_reading(path: &str) -> Option<String> {
    if !path.contains(['%', '\\', ';']) && !path.contains("//") {
        return None;
    }
    let path = decoded(path, |byte| byte.is_ascii_graphic());
    let segments = path.split(['/', '\\']).filter_map(|segment| segment.split(';').next());
    Some(segments.filter(|segment| !segment.is_empty()).flat_map(|segment| ["/", segment]).collect())
}

/// The path with its escapes of `wanted` characters resolved, once, as the next hop would.
fn decoded(path: &str, wanted: fn(&u8) -> bool) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, escape)) = rest.split_once('%') {
        decoded.push_str(before);
        let byte = escape.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(wanted);
        decoded.push(byte.map_or('%', char::from));
        rest = if byte.is_some() { escape.get(2..).unwrap_or_default() } else { escape };
    }
    decoded + rest
}

fn check_host(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host,
        (None, _) => return Err(refusal("there is no Host")),
        (Some(_), Some(_)) => return Err(refusal("there is more than one Host")),
    };
    let Some(host) = host.to_str().ok().filter(|host| is_host(host)) else {
        return Err(refusal("Host is not host[:port]"));
    };
    match uri.authority().map(Authority::as_str) {
        Some(authority) if !authority.eq_ignore_ascii_case(host) => {
            Err(refusal("the target names another host than Host"))
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether the text is `host[:port]`: a name, an IPv4 address, or an IPv6 address in brackets.
pub fn is_host(text: &str) -> bool {
    let (host, port) = split_port(text);
    let valid = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_name(host.strip_suffix('.').unwrap_or(host)),
    };
    valid
        && port.is_none_or(|port| {
            port.bytes().all(|byte| byte.is_ascii_digit()) && (port.is_empty() || port.parse::<u16>().is_ok())
        })
}

/// An empty label, or what RFC 3986 allows beyond the characters of names (`%`, a comma), is read in many ways.
fn is_name(host: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_~".contains(&byte))
    };
    host.split('.').all(is_label)
}

/// Host and port of `host[:port]`; the colons of a bracketed address are its own.
pub fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        Some(_) | None => (text, None),
    }
}

/// Whether a `Host` leads to the machine that asks, whatever its names are made to lead to.
pub fn is_loopback(host: &str) -> bool {
    let name = split_port(host).0;
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    is_host(host) && (name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback()))
}

fn check_expectation(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.get_all(EXPECT).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Err(refusal("Expect is something other than 100-continue").with_status(417));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn door() -> Door {
        let instance = Instance::new(&Entropy::seeded(1));
        let naming_headers = vec![HeaderName::from_static("x-session-id")];
        Door { naming_headers, ..Door::with_limits(1000, 100, instance) }
    }

    /// What the door says about a request: the status of its refusal, or 200.
    fn status(method: &str, target: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        door().check(&head, None).map_or_else(|problem| problem.status, |()| 200)
    }

    const HOST: (&str, &str) = ("host", "gw");

    #[test]
    fn what_names_a_call_where_it_goes_has_no_twin_either() {
        let text = "upstreams.u = { url = 'http://h', headers = { X-Account = 'main' } }\n\
                    routes = [{ name = 'r', match.path = '/', upstream = 'u', key.upstream_header = 'Request-Id' }]";
        let config = Config::parse(text, "gateway.toml", &crate::config::Environment::default()).unwrap();
        let door = Door::new(&config, Instance::new(&Entropy::seeded(1)));
        let refused = |name: &str, value: &str| {
            let request = Request::post("/").header("host", "gw").header(name, value);
            door.check(&request.body(()).unwrap().into_parts().0, None).err().map(|problem| problem.status)
        };
        for (name, value) in [("x_account", "other"), ("request_id", "k"), ("connection", "x-account, close")] {
            assert_eq!(refused(name, value), Some(400), "{name}");
        }
        assert_eq!(refused("x-other_account", "other"), None);
        assert!(door.reserved().any(|name| name == "x-account") && door.reserved().any(|name| name == "request-id"));
    }

    #[test]
    fn over_http2_a_value_has_no_white_space_around_it_and_a_body_one_length() {
        let refused = |lines: &[(&str, &str)]| {
            let request = Request::post("/").version(Version::HTTP_2).header("host", "gw");
            let request = lines.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            door().check(&request.body(()).unwrap().into_parts().0, None).is_err()
        };
        for value in [" a", "a ", "\ta", "a\t"] {
            assert!(refused(&[("x-tenant", value)]), "{value:?}");
        }
        assert!(refused(&[("content-length", "1"), ("content-length", "1")]));
        assert!(!refused(&[("content-length", "1"), ("x-tenant", "a b"), ("x-empty", "")]));
    }

    #[test]
    fn an_ordinary_request_passes() {
        assert_eq!(status("POST", "/payments/charges?x=..", &[HOST, ("expect", "100-Continue")]), 200);
        assert_eq!(status("QUERY", "/.well-known/a.b/..c", &[HOST, ("transfer-encoding", "Chunked")]), 200);
        assert_eq!(status("OPTIONS", "*", &[HOST]), 200);
    }

    #[test]
    fn a_host_is_there_once_and_is_only_a_host() {
        for host in ["gw", "gw:8080", "my_service:80", "127.0.0.1:1", "[::1]:8080", "[::1]", "gw:", "GW.", "a.b.:1"] {
            assert_eq!(status("GET", "/", &[("host", host)]), 200, "{host}");
        }
        for host in [
            "",
            ":80",
            "user:pw@gw",
            "gw:http",
            "gw:65536",
            "gw/x",
            "[::1",
            "::1",
            "[gw]",
            "a b",
            "a@b",
            "a,b",
            "gw%00",
            ".",
            ".gw",
            "gw..",
            "a..b",
        ] {
            assert_eq!(status("GET", "/", &[("host", host)]), 400, "{host}");
        }
        assert_eq!(status("GET", "/", &[]), 400);
        assert_eq!(status("GET", "/", &[HOST, HOST]), 400);
    }

    #[test]
    fn a_full_url_must_agree_with_host() {
        assert_eq!(status("GET", "http://GW/a", &[HOST]), 200);
        assert_eq!(status("GET", "http://other/a", &[HOST]), 400);
        assert_eq!(status("GET", "http://user@gw/a", &[HOST]), 400);
        assert_eq!(status("GET", "ftp://gw/a", &[HOST]), 400);
        assert_eq!(status("GET", "gw", &[HOST]), 400);
        assert_eq!(status("GET", "*", &[HOST]), 400);
    }

    #[test]
    fn a_forward_proxy_is_what_we_are_not() {
        assert_eq!(status("CONNECT", "gw:443", &[("host", "gw:443")]), 405);
        for method in ["TRACE", "trace", "TRACK", "Connect"] {
            assert_eq!(status(method, "/", &[HOST]), 405, "{method}");
        }
    }

    #[test]
    fn dot_segments_are_refused_in_every_spelling() {
        for path in [
            "/a/../b",
            "/..",
            "/.",
            "/a/./b",
            "/%2e%2e/",
            "/.%2E",
            "/a/%2E./b",
            "/a/..;x=1/b",
            "/a/..%3bx/b",
            "/a%2f..%2fb",
            "/a/..%5cb",
            "/x/..%2Fadmin",
        ] {
            assert_eq!(status("GET", path, &[HOST]), 400, "{path}");
        }
        for path in ["/a..b", "/...", "/a/.b", "/a/b.", "/%252e%252e/", "/a;../b", "/%", "/a%2"] {
            assert_eq!(status("GET", path, &[HOST]), 200, "{path}");
        }
    }

    #[test]
    fn a_nul_in_the_path_is_refused() {
        assert_eq!(status("GET", "/a%00b", &[HOST]), 400);
        assert_eq!(status("GET", "/a%0?b=%00", &[HOST]), 200);
    }

    #[test]
    fn a_path_is_read_leniently_where_somebody_may() {
        for (path, reading) in [
            ("/%70ay%2Fx", "/pay/x"),
            ("//pay///x/", "/pay/x"),
            ("/pay;v=1/x;", "/pay/x"),
            ("\\pay%5cx", "/pay/x"),
            ("/%2570ay", "/%70ay"),
            ("/a%20b%zz%", "/a%20b%zz%"),
        ] {
            assert_eq!(lenient_reading(path).as_deref(), Some(reading), "{path}");
        }
        assert_eq!(lenient_reading("/pay/x/"), None);
    }

    #[test]
    fn limits_are_exact() {
        assert_eq!(status("GET", &format!("/{}", "a".repeat(99)), &[HOST]), 200);
        assert_eq!(status("GET", &format!("/{}", "a".repeat(100)), &[HOST]), 414);
        assert_eq!(status("GET", &format!("/{}?{}", "a".repeat(49), "b".repeat(50)), &[HOST]), 414);
        let fits = "x".repeat(1000 - "host: gw\r\n".len() - "a: \r\n".len());
        assert_eq!(status("GET", "/", &[HOST, ("a", &fits)]), 200);
        assert_eq!(status("GET", "/", &[HOST, ("aa", &fits)]), 431);
    }

    #[test]
    fn codings_and_expectations_that_we_do_not_know_are_refused() {
        assert_eq!(status("POST", "/", &[HOST, ("transfer-encoding", "gzip, chunked")]), 501);
        assert_eq!(status("POST", "/", &[HOST, ("expect", "a-miracle")]), 417);
    }

    #[test]
    fn connection_does_not_take_the_key_away() {
        assert_eq!(status("POST", "/", &[HOST, ("connection", "close, X-Own")]), 200);
        assert_eq!(status("POST", "/", &[HOST, ("connection", "close, Idempotency-Key")]), 400);
        assert_eq!(status("POST", "/", &[HOST, ("connection", "close"), ("connection", "AUTHORIZATION")]), 400);
        assert_eq!(status("POST", "/", &[HOST, ("connection", "X-Session-ID")]), 400);
        assert_eq!(status("POST", "/", &[HOST, ("connection", "\u{e9}, authorization")]), 400);
    }

    #[test]
    fn a_twin_of_a_header_that_is_read_is_refused() {
        for name in
            ["content_length", "transfer_encoding", "x_forwarded-for", "x_session_id", "oncegate_attempt", "x-api_key"]
        {
            assert_eq!(status("POST", "/", &[HOST, (name, "1")]), 400, "{name}");
        }
        assert_eq!(status("POST", "/", &[HOST, ("my_header", "1"), ("x_request_id", "2")]), 200);
    }

    #[test]
    fn our_own_name_in_via_is_a_loop_and_another_gateways_is_not() {
        let ours = door().instance.via(Version::HTTP_2);
        let other = Instance::new(&Entropy::seeded(2)).via(Version::HTTP_11);
        assert_eq!(status("GET", "/", &[HOST, ("via", "1.0 squid"), ("via", other.to_str().unwrap())]), 200);
        assert_eq!(status("GET", "/", &[HOST, ("via", &format!("1.0 squid, {} (x)", ours.to_str().unwrap()))]), 508);
    }

    #[test]
    fn an_ambiguous_head_is_refused_with_its_reason() {
        let (head, ()) = Request::builder().uri("/").header("host", "gw").body(()).unwrap().into_parts();
        let problem = door().check(&head, Some(Ambiguity::TwoLengths)).unwrap_err();
        assert_eq!((problem.status, problem.detail.as_str()), (400, Ambiguity::TwoLengths.as_str()));
    }

    proptest! {
        #[test]
        fn what_passes_has_no_dot_segment_once_it_is_decoded(path in "(/|[.]|%2[eEfF]|%5[cC]|;|a){0,12}") {
            let plain = path.replace("%2e", ".").replace("%2E", ".").replace("%2f", "/").replace("%2F", "/");
            let plain = plain.replace("%5c", "/").replace("%5C", "/");
            let dots = plain.split('/').any(|part| part == "." || part == ".." || part.starts_with(".;") || part.starts_with("..;"));
            prop_assert_eq!(has_dot_segment(&path), dots);
        }
    }
}
