//! What must not pass the door: everything that two hops could read in two ways, byte by byte over real sockets.

use crate::support::client::tell;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::ScriptedUpstream;

on! { [memory]
    s06_what_frames_a_request_in_two_ways_is_refused
    s06_a_chunk_or_trailer_that_may_be_misread_is_refused
    s06_what_is_not_http_is_refused
    s07_a_request_without_exactly_one_host_is_refused
    s08_only_paths_of_our_own_are_taken
    s12_headers_that_name_a_call_cannot_be_hidden
    s14_a_request_that_has_gone_far_enough_ends_here
    s34_a_path_that_may_be_read_as_another_routes_is_refused
    what_is_unusual_and_plain_passes
}

/// A request that stands behind each row, and must never be read.
const BEHIND: &str = "POST /behind HTTP/1.1\r\nHost: gw\r\nContent-Length: 0\r\n\r\n";

const POST: &str = "POST /charges HTTP/1.1\r\nHost: gw\r\nIdempotency-Key: k-1\r\n";

/// What was asked, the bytes of it, and the status of the answer.
type Row<'r> = (&'r str, String, u16);

/// Each row gets its status with a reason, and the connection ends; nothing is sent, claimed or read behind it.
#[track_caller]
fn refused(gateway: &Gateway, upstream: &ScriptedUpstream, rows: &[Row<'_>]) {
    for (name, request, status) in rows {
        let answer = tell(gateway.address(), format!("{request}{BEHIND}").as_bytes());
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{name}: {answer}"));
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{name}: {answer}");
        assert!(head.contains("\r\nconnection: close"), "{name}: {answer}");
        let told: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{name}: {answer}"));
        assert_eq!(told["status"], *status, "{name}");
        assert!(["invalid-request", "key-invalid", "method-not-allowed"].iter().any(|code| told["code"] == *code));
    }
    assert!(upstream.seen().is_empty(), "{:?}", upstream.seen());
    assert_eq!(gateway.operations("").len(), 0, "something was claimed");
}

fn refused_by_a_new_gateway(ground: &Ground, rows: &[Row<'_>]) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(ground);
    refused(&gateway, &upstream, rows);
}

fn post<'r>(name: &'r str, lines_and_body: &str, status: u16) -> Row<'r> {
    (name, format!("{POST}{lines_and_body}"), status)
}

fn s06_what_frames_a_request_in_two_ways_is_refused(ground: Ground) {
    let old = "POST /charges HTTP/1.0\r\nHost: gw\r\nIdempotency-Key: k-1\r\n";
    let mut rows = vec![
        post("CL.TE", "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        post("TE.CL", "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n", 400),
        post("two equal lengths", "Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400),
        post("two lengths", "Content-Length: 0\r\nContent-Length: 5\r\n\r\n", 400),
        post("gzip, chunked", "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        post("chunked, chunked", "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501),
        post("chunked, identity", "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        post("two codings", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        post("two codings, one unknown", "Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("coding in HTTP/1.0", format!("{old}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400),
        ("codings in HTTP/1.0", format!("{old}Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"), 400),
        post("Expect", "Expect: wonders\r\nContent-Length: 0\r\n\r\n", 417),
        post("Expect, a list", "Expect: 100-continue, wonders\r\nContent-Length: 0\r\n\r\n", 417),
    ];
    for length in
        ["", "+5", "-0", "0x5", "5, 5", "5 5", "\u{b}5", "5;", "5.0", "18446744073709551615", "99999999999999999999"]
    {
        rows.push(post("length", "", 400));
        rows.last_mut().unwrap().1 += &format!("Content-Length: {length}\r\n\r\nhello");
    }
    for coding in ["", "xchunked", "chunkedx", "\"chunked\"", "chunked;q=1", "identity", "\u{b}chunked", "chunked,"] {
        rows.push(post("coding", "", 400));
        rows.last_mut().unwrap().1 += &format!("Transfer-Encoding: {coding}\r\n\r\n0\r\n\r\n");
    }
    refused_by_a_new_gateway(&ground, &rows);
}

fn s06_a_chunk_or_trailer_that_may_be_misread_is_refused(ground: Ground) {
    let rows = [
        "0x1\r\na\r\n0\r\n\r\n",
        "+1\r\na\r\n0\r\n\r\n",
        "-1\r\na\r\n0\r\n\r\n",
        " 1\r\na\r\n0\r\n\r\n",
        "1 \r\na\r\n0\r\n\r\n",
        "\r\na\r\n0\r\n\r\n",
        "g\r\na\r\n0\r\n\r\n",
        "1_0\r\na\r\n0\r\n\r\n",
        "fffffffffffffffff\r\na\r\n0\r\n\r\n",
        "ffffffffffffffff\r\na\r\n0\r\n\r\n",
        "1\na\r\n0\r\n\r\n",
        "1\r\r\na\r\n0\r\n\r\n",
        "1\r\na\n0\r\n\r\n",
        "1\r\nabc\r\n0\r\n\r\n",
        "1\r\na0\r\n\r\n",
        "1;x\na\r\n0\r\n\r\n",
        "1;x\ry\r\na\r\n0\r\n\r\n",
        "1;x\0\r\na\r\n0\r\n\r\n",
        "1 x\r\na\r\n0\r\n\r\n",
        "1\r\na\r\n0\n\r\n",
        "1\r\na\r\n0\r\n\n",
        "1\r\na\r\n0\r\nX: y\n\r\n",
        "1\r\na\r\n0\r\n X: y\r\n\r\n",
        "1\r\na\r\n0\r\nX : y\r\n\r\n",
        "1\r\na\r\n0\r\nX: \0\r\n\r\n",
        "1\r\na\r\n0\r\n: y\r\n\r\n",
        "1\r\na\r\n0\r\nContent-Length: 5\r\n\r\n",
        "1\r\na\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "1\r\na\r\n0\r\nHost: evil\r\n\r\n",
        "1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n",
        "1\r\na\r\n0\r\nIdempotency-Key: k-2\r\n\r\n",
        "1\r\na\r\n0\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n",
    ];
    let long = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(20_000));
    let zeros = format!("{}1\r\na\r\n0\r\n\r\n", "0".repeat(1 << 20));
    let rows = rows.into_iter().chain([long.as_str(), zeros.as_str()]);
    let rows: Vec<Row<'_>> =
        rows.map(|body| (body, format!("{POST}Transfer-Encoding: chunked\r\n\r\n{body}"), 400)).collect();
    refused_by_a_new_gateway(&ground, &rows);
}

fn s06_what_is_not_http_is_refused(ground: Ground) {
    let get = |line: &str| format!("GET /charges HTTP/1.1\r\nHost: gw\r\n{line}\r\n\r\n");
    let mut rows = vec![
        ("bare LF after the target", "GET / HTTP/1.1\nHost: gw\r\n\r\n".to_owned(), 400),
        ("bare LF after a header", "GET / HTTP/1.1\r\nHost: gw\nX: y\r\n\r\n".to_owned(), 400),
        ("bare LF at the end", "GET / HTTP/1.1\r\nHost: gw\r\n\n".to_owned(), 400),
        ("bare CR in the target", "GET /\ra HTTP/1.1\r\nHost: gw\r\n\r\n".to_owned(), 400),
        ("bare CR before the method", "\rGET / HTTP/1.1\r\nHost: gw\r\n\r\n".to_owned(), 400),
        ("space before the method", " GET / HTTP/1.1\r\nHost: gw\r\n\r\n".to_owned(), 400),
        ("two spaces", "GET  / HTTP/1.1\r\nHost: gw\r\n\r\n".to_owned(), 400),
        ("tabs", "GET\t/\tHTTP/1.1\r\nHost: gw\r\n\r\n".to_owned(), 400),
        ("space in the target", "GET /a b HTTP/1.1\r\nHost: gw\r\n\r\n".to_owned(), 400),
        ("NUL in the target", "GET /\0 HTTP/1.1\r\nHost: gw\r\n\r\n".to_owned(), 400),
        ("fragment", "GET /a#b HTTP/1.1\r\nHost: gw\r\n\r\n".to_owned(), 400),
        ("folded first header", "GET / HTTP/1.1\r\n Host: gw\r\n\r\n".to_owned(), 400),
        ("HTTP/0.9", "GET /\r\n\r\n".to_owned(), 400),
        ("HTTP/1.2", "GET / HTTP/1.2\r\nHost: gw\r\n\r\n".to_owned(), 400),
        ("http/1.1", "GET / http/1.1\r\nHost: gw\r\n\r\n".to_owned(), 400),
        ("101 headers", get(&["A: b"; 100].join("\r\n")), 431),
        ("33 KiB of headers", get(&format!("A: {}", "b".repeat(33 << 10))), 431),
        ("500 KiB of headers", get(&format!("A: {}", "b".repeat(500 << 10))), 431),
        ("8 KiB and a byte of target", format!("GET /{} HTTP/1.1\r\nHost: gw\r\n\r\n", "a".repeat(8 << 10)), 414),
        ("500 KiB of target", format!("GET /{} HTTP/1.1\r\nHost: gw\r\n\r\n", "a".repeat(500 << 10)), 414),
    ];
    for line in [
        "A: b\rc",
        "A: b\r",
        "A: b\0",
        "A: \u{1}",
        "A: \u{7f}",
        "A: b\r\n c",
        "A: b\r\n\tc",
        "A: b\r\n ",
        "A : b",
        "A\t: b",
        "Content-Length : 5",
        "A",
        ": b",
        "A B: c",
        "A\0: b",
        "A(b): c",
        "\u{e9}: b",
    ] {
        rows.push((line, get(line), 400));
    }
    refused_by_a_new_gateway(&ground, &rows);
}

fn s07_a_request_without_exactly_one_host_is_refused(ground: Ground) {
    let lines = [
        "",
        "Host: gw\r\nHost: gw\r\n",
        "Host: gw\r\nHost: evil\r\n",
        "Host:\r\n",
        "Host: a b\r\n",
        "Host: user@gw\r\n",
        "Host: gw/x\r\n",
        "Host: gw?x\r\n",
        "Host: gw#x\r\n",
        "Host: gw\\x\r\n",
        "Host: gw,evil\r\n",
        "Host: gw:http\r\n",
        "Host: gw:99999\r\n",
        "Host: http://gw\r\n",
        "Host: [::1\r\n",
        "Host: gw%00\r\n",
        "Host: gw..\r\n",
        "Host: \u{e9}\r\n",
    ];
    let rows: Vec<Row<'_>> =
        lines.iter().map(|line| (*line, format!("POST / HTTP/1.1\r\n{line}Content-Length: 0\r\n\r\n"), 400)).collect();
    refused_by_a_new_gateway(&ground, &rows);
}

fn s08_only_paths_of_our_own_are_taken(ground: Ground) {
    let rows = [
        ("POST http://evil/charges", 400),
        ("POST http://gw@evil/charges", 400),
        ("POST http://evil@gw/charges", 400),
        ("POST http://gw:81/charges", 400),
        ("POST ftp://gw/charges", 400),
        ("POST gw:80", 400),
        ("POST charges", 400),
        ("POST *", 400),
        ("POST /charges/../admin", 400),
        ("POST /charges/%2e%2E/admin", 400),
        ("POST /charges/..%2fadmin", 400),
        ("POST /charges/..%5Cadmin", 400),
        ("POST /charges\\..\\admin", 400),
        ("POST /charges/..;/admin", 400),
        ("POST /./charges", 400),
        ("POST /charges%00", 400),
        ("CONNECT gw:443", 405),
        ("CONNECT /charges", 405),
        ("TRACE /charges", 405),
        ("trace /charges", 405),
        ("TRACK /charges", 405),
    ];
    let rows: Vec<Row<'_>> = rows
        .iter()
        .map(|(start, status)| (*start, format!("{start} HTTP/1.1\r\nHost: gw\r\nContent-Length: 0\r\n\r\n"), *status))
        .collect();
    refused_by_a_new_gateway(&ground, &rows);
}

fn s12_headers_that_name_a_call_cannot_be_hidden(ground: Ground) {
    let lines = [
        "Idempotency-Key: k-1",
        "Idempotency-Key: k-2",
        "Idempotency_Key: k-1",
        "IDEMPOTENCY_KEY: k-1",
        "Content_Length: 5",
        "Transfer_Encoding: chunked",
        "X_Session_Id: s-1",
        "X-Step_Index: 1",
        "X_Account: acct_1",
        "X_Forwarded_For: 10.0.0.1",
        "Oncegate_Attempt: 7",
        "Connection: close, Idempotency-Key",
        "Connection: authorization",
        "Connection: x-session-id",
        "Connection: X-Account",
        "Connection: X-Tenant",
        "Connection: X-Env",
        "X_Tenant: t-1",
        "X_Env: a",
        "Connection: Content-Length",
    ];
    let rows: Vec<Row<'_>> =
        lines.iter().map(|line| (*line, format!("{POST}{line}\r\nContent-Length: 0\r\n\r\n"), 400)).collect();
    let upstream = ScriptedUpstream::start();
    let settings = Settings::of(&upstream).route("key.headers = ['X-Account']");
    let settings = settings
        .route("key.from = ['header:X-Tenant']")
        .and("[[routes]]\nname = 'test'\nmatch = { path = '/', headers = { X-Env = 'a' } }\nupstream = 'payments'");
    refused(&settings.start(&ground), &upstream, &rows);
}

fn s14_a_request_that_has_gone_far_enough_ends_here(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    let last = gateway.call("OPTIONS", "/charges").header("Max-Forwards", "0").send();
    assert_eq!((last.status, last.header("Oncegate-Source")), (200, Some("gateway")));
    assert!(last.header("Allow").is_some_and(|methods| methods.contains("POST")) && upstream.seen().is_empty());

    gateway.call("OPTIONS", "/charges").header("Max-Forwards", "3").send().expect(201);
    gateway.call("GET", "/charges").header("Max-Forwards", "0").send().expect(201);
    let seen = upstream.seen();
    assert_eq!((seen[0].header("Max-Forwards"), seen[1].header("Max-Forwards")), (Some("2"), Some("0")));

    let via = seen[0].header("Via").unwrap().to_owned();
    gateway.charge("k-1").header("Via", &via).send().expect_problem(508, "invalid-request");
    assert_eq!((upstream.seen().len(), gateway.operations("").len()), (2, 0));
}

fn s34_a_path_that_may_be_read_as_another_routes_is_refused(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let open = "[[routes]]\nname = 'open'\nmatch.path = '/open'\nupstream = 'payments'\nkey.mode = 'off'";
    let hosted = "[[routes]]\nname = 'hosted'\nmatch.path = '/charges'\nmatch.host = 'pay.test'\nupstream = 'payments'";
    let gateway = Settings::of(&upstream).route("key.mode = 'off'").and(open).and(hosted).start(&ground);
    let post = |host: &str, path: &str| format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n");

    let paths = ["/%63harges", "/charges%2Fx", "//charges", "/charges;v=1/x", "/charges%5cx", "/charges\\x"];
    let rows: Vec<Row<'_>> = paths.iter().map(|path| (*path, post("pay.test", path) + "\r\n", 400)).collect();
    refused(&gateway, &upstream, &rows);

    for (host, path) in [("PAY.test", "/charges"), ("pay.test.", "/charges"), ("Pay.Test.:80", "/charges//x%20y;z")] {
        let answer = tell(gateway.address(), (post(host, path) + "Connection: close\r\n\r\n").as_bytes());
        assert!(String::from_utf8_lossy(&answer).contains("oncegate-key-source: stamped"), "{host}{path} is guarded");
    }
    let answer = tell(gateway.address(), (post("gw", "//charges/%63") + "Connection: close\r\n\r\n").as_bytes());
    assert!(String::from_utf8_lossy(&answer).contains("oncegate-guarded: no; reason=off"));
    assert_eq!(upstream.seen().last().unwrap().target, "//charges/%63");
}

/// Strict is not narrow: what is unusual, and can be read in one way only, goes up as it came.
fn what_is_unusual_and_plain_passes(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    let requests = [
        ("GET http://gw/a?b", "Host: gw\r\n\r\n", "/a?b"),
        ("GET HTTP://GW", "Host: gw\r\n\r\n", "/"),
        ("GET http://gw?b", "Host: gw\r\n\r\n", "/?b"),
        ("GET //evil/a", "Host: gw\r\n\r\n", "//evil/a"),
        ("GET /a//b/%2541;c?../d", "Host: gw\r\n\r\n", "/a//b/%2541;c?../d"),
        ("GET /%C3%A9%zz%7e...?%00", "Host: gw\r\n\r\n", "/%C3%A9%zz%7e...?%00"),
        ("GET /{}|^[]\"", "Host: gw\r\n\r\n", "/{}|^[]\""),
        ("OPTIONS *", "Host: gw\r\n\r\n", "*"),
        (
            "POST /a",
            "hOST: my_host.:80\r\nmy_header: 1\r\ntransfer-ENCODING: Chunked\r\n\r\n1;a=\"b\"\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n",
            "/a",
        ),
        ("GET /a", "Host: [::1]:80\r\nTransfer-Encoding:\tchunked \r\n\r\n01\r\nx\r\n0\r\n\r\n", "/a"),
    ];
    for (start, rest, target) in requests {
        let seen = upstream.seen().len();
        let answer = tell(gateway.address(), format!("\r\n{start} HTTP/1.1\r\nConnection: close\r\n{rest}").as_bytes());
        assert!(answer.starts_with(b"HTTP/1.1 201 "), "{start}: {}", String::from_utf8_lossy(&answer));
        assert_eq!(upstream.seen()[seen].target, target);
        assert_eq!(upstream.seen()[seen].header("Host"), Some(upstream.address().to_string().as_str()));
    }
}
