//! Which lines pass.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::*;

fn headers(lines: &[(&str, &[u8])]) -> HeaderMap {
    let parse = |(name, value): &(&str, &[u8])| {
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap())
    };
    lines.iter().map(parse).collect()
}

fn names(headers: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    names
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a [u8]> {
    headers.get_all(name).into_iter().map(HeaderValue::as_bytes).collect()
}

fn name(name: &str) -> HeaderName {
    HeaderName::from_bytes(name.as_bytes()).unwrap()
}

#[test]
fn what_connection_lists_goes_with_it() {
    let mut lines = headers(&[
        ("Connection", b"close, X-Foo ,,not a name"),
        ("Connection", b"Idempotency-Key"),
        ("X-Foo", b"1"),
        ("X-Foo", b"2"),
        ("Idempotency-Key", b"k"),
        ("Keep-Alive", b"timeout=5"),
        ("Proxy-Connection", b"keep-alive"),
        ("Proxy-Authorization", b"Basic eA=="),
        ("TE", b"trailers"),
        ("Trailer", b"x-sum"),
        ("Transfer-Encoding", b"chunked"),
        ("Upgrade", b"h2c"),
        ("Accept", b"*/*"),
    ]);
    let listed: Vec<_> = connection_names(&lines).collect();
    assert_eq!(listed, ["close", "x-foo", "idempotency-key"]);
    remove_hop_by_hop(&mut lines);
    assert_eq!(names(&lines), ["accept", "trailer"]);
}

#[test]
fn lines_of_one_name_keep_order_count_and_bytes() {
    let mut lines = headers(&[("Link", b"</b>"), ("X-Name", b"caf\xe9"), ("Link", b"</a>"), ("Upgrade", b"x")]);
    remove_hop_by_hop(&mut lines);
    drop_ours(&mut lines);
    assert_eq!(values(&lines, "link"), [&b"</b>"[..], b"</a>"]);
    assert_eq!(values(&lines, "x-name"), [b"caf\xe9"]);
}

#[test]
fn copies_of_our_own_lines_are_dropped() {
    let mut lines = headers(&[
        ("Oncegate-Attempt", b"1"),
        ("oncegate-anything", b"1"),
        ("Idempotent-Replayed", b"true"),
        ("Idempotency-Key", b"k"),
        ("X-Oncegate", b"1"),
    ]);
    drop_ours(&mut lines);
    assert_eq!(names(&lines), ["idempotency-key", "x-oncegate"]);
}

fn hop(trusted: bool, host: &HeaderValue) -> Hop<'_> {
    static PEER: HeaderValue = HeaderValue::from_static("10.0.0.9");
    Hop { peer: &PEER, scheme: "https", host: Some(host), trusted }
}

#[test]
fn the_way_so_far_is_believed_from_a_trusted_peer_only() {
    let host = HeaderValue::from_static("gateway.example");
    let claimed = [
        ("X-Forwarded-For", &b"1.1.1.1"[..]),
        ("X-Forwarded-For", b"2.2.2.2, \xe9"),
        ("X-Forwarded-Proto", b"http"),
        ("X-Forwarded-Host", b"shop.example"),
        ("X-Forwarded-Port", b"80"),
        ("Forwarded", b"for=1.1.1.1"),
        ("X-Real-IP", b"1.1.1.1"),
    ];

    let mut trusted = headers(&claimed);
    forwarded(&mut trusted, hop(true, &host));
    assert_eq!(values(&trusted, "x-forwarded-for"), [b"1.1.1.1, 2.2.2.2, \xe9, 10.0.0.9"]);
    assert_eq!(values(&trusted, "x-forwarded-proto"), [b"http"]);
    assert_eq!(values(&trusted, "x-forwarded-host"), [b"shop.example"]);
    assert!(trusted.contains_key("forwarded"));

    let mut stranger = headers(&claimed);
    forwarded(&mut stranger, hop(false, &host));
    assert_eq!(names(&stranger).len(), 3);
    assert_eq!(values(&stranger, "x-forwarded-for"), [b"10.0.0.9"]);
    assert_eq!(values(&stranger, "x-forwarded-proto"), [b"https"]);
    assert_eq!(values(&stranger, "x-forwarded-host"), [b"gateway.example"]);
}

#[test]
fn replays_keep_all_but_what_is_stale_or_meant_for_one_client() {
    let dropped = "Set-Cookie Set-Cookie2 WWW-Authenticate Proxy-Authenticate Authentication-Info \
        Proxy-Authentication-Info Clear-Site-Data Connection Keep-Alive Proxy-Connection TE Trailer Transfer-Encoding \
        Upgrade Date Content-Length Via Age Retry-After RateLimit RateLimit-Policy X-RateLimit-Remaining Server-Timing \
        Alt-Svc Oncegate-Execution Idempotent-Replayed";
    for header in dropped.split_whitespace() {
        assert!(!kept_for_replay(&name(header)), "{header}");
    }
    let kept = "Content-Type Content-Encoding Content-Language Content-Disposition Location ETag Last-Modified Link \
        Vary Cache-Control Server Idempotency-Key X-Request-Id X-Rate Set-Cookie-Policy";
    for header in kept.split_whitespace() {
        assert!(kept_for_replay(&name(header)), "{header}");
    }
}

#[test]
fn what_is_read_before_a_body_is_no_trailer() {
    for header in ["X-Sum", "ETag", "Server-Timing", "grpc-status", "Digest", "X-Signature"] {
        assert!(may_be_trailer(&name(header)), "{header}");
    }
    for header in ["Content-Length", "Host", "TE", "Trailer", "If-Match", "Cookie", "Via", "Oncegate-Stop", "X-Real-IP"]
    {
        assert!(!may_be_trailer(&name(header)), "{header}");
    }
}

#[test]
fn another_protocol_is_asked_for_only_where_connection_says_so() {
    let asked = |connection: &[u8], upgrade: &[u8]| {
        let asked = asked_protocols(&headers(&[("Connection", connection), ("Upgrade", upgrade)]));
        asked.map(|asked| asked.to_str().unwrap().to_owned())
    };
    assert_eq!(asked(b"keep-alive, UPGRADE", b"websocket").as_deref(), Some("websocket"));
    assert_eq!(asked(b"upgrade", b"foo/2 , ,bar").as_deref(), Some("foo/2, bar"));
    assert_eq!(asked(b"keep-alive", b"websocket"), None);
    assert_eq!(asked(b"upgrade", b""), None);
    assert_eq!(asked_protocols(&headers(&[("Connection", b"upgrade")])), None);
}

#[test]
fn a_protocol_that_carries_http_is_not_asked_for() {
    for protocol in [&b"h2c"[..], b"H2C", b"h2", b"HTTP/2.0", b"TLS/1.0", b"h2c, tls/1.0"] {
        assert_eq!(asked_protocols(&headers(&[("Connection", b"upgrade"), ("Upgrade", protocol)])), None);
    }
    let lines = headers(&[("Connection", b"upgrade"), ("Upgrade", b"h2c, websocket"), ("Upgrade", b"https-tunnel")]);
    assert_eq!(asked_protocols(&lines).unwrap(), "websocket, https-tunnel");
}

#[test]
fn a_switch_keeps_to_what_was_asked_for() {
    let asked = HeaderValue::from_static("foo/2, websocket");
    for (switched, as_asked) in
        [(&b"WebSocket"[..], true), (b"foo/2, websocket", true), (b"foo/1", false), (b"websocket, h2c", false)]
    {
        assert_eq!(switches_as_asked(&headers(&[("Upgrade", switched)]), &asked), as_asked, "{switched:?}");
    }
    assert!(!switches_as_asked(&headers(&[]), &asked));
}
