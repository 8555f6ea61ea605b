//! Connections that leave HTTP: WebSocket and whatever else a client and a service agree on.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::raw::{Raw, RawService};

on! { [memory]
    a_websocket_is_joined_with_its_service
    s22_nothing_goes_on_before_the_service_has_switched
    s22_a_guarded_call_is_not_upgraded_and_not_claimed
    s22_a_way_past_the_gateway_is_not_offered
    an_upgrade_that_the_service_declines_is_a_call_like_any_other
    a_switch_that_nobody_asked_for_is_no_answer
    an_end_of_one_side_is_an_end_for_the_other_and_no_more
    a_side_that_breaks_off_takes_the_other_along
    a_tunnel_in_which_nothing_moves_is_closed
    a_tunnel_outlives_every_deadline_and_is_not_asked_for_again
    a_tunnel_keeps_its_place_and_ends_with_the_drain
    s08_a_forward_proxy_is_what_this_is_not
}

const ASKED: &str = "GET /chat HTTP/1.1\r\nHost: gw\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const SWITCHES: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn gateway(service: &RawService, ground: &Ground) -> Gateway {
    Settings::towards(&service.url()).start(ground)
}

fn asks(gateway: &Gateway, request: &str) -> Raw {
    let mut caller = Raw::connect(gateway.address());
    caller.says(request);
    caller
}

/// Both ends of a tunnel.
fn tunnel(gateway: &Gateway, service: &RawService) -> (Raw, Raw) {
    let mut caller = asks(gateway, ASKED);
    let (mut upstream, _head) = service.takes();
    upstream.says(SWITCHES);
    assert!(caller.until("\r\n\r\n").starts_with("HTTP/1.1 101 "));
    (caller, upstream)
}

fn a_websocket_is_joined_with_its_service(ground: Ground) {
    let service = RawService::start();
    let gateway = gateway(&service, &ground);
    let mut caller = asks(&gateway, ASKED);
    let (mut upstream, asked) = service.takes();
    for line in ["connection: upgrade", "upgrade: websocket", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="] {
        assert_eq!(asked.matches(&format!("\r\n{line}\r\n")).count(), 1, "{asked}");
    }
    assert!(!asked.contains("keep-alive"), "{asked}");

    upstream.says(format!("{SWITCHES}\x01hello"));
    let told = caller.until("\x01hello");
    for line in ["connection: upgrade", "upgrade: websocket", "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="] {
        assert_eq!(told.matches(&format!("\r\n{line}\r\n")).count(), 1, "{told}");
    }
    assert!(!told.contains("content-length") && !told.contains("transfer-encoding"), "{told}");
    for round in 0..3 {
        caller.says(format!("\0ping {round}"));
        upstream.until(&format!("\0ping {round}"));
        upstream.says(format!("pong {round}\r\n\r\n"));
        caller.until(&format!("pong {round}\r\n\r\n"));
    }
}

fn s22_nothing_goes_on_before_the_service_has_switched(ground: Ground) {
    const EARLY: &str = "GET /admin HTTP/1.1\r\nHost: gw\r\n\r\n";
    let service = RawService::start();
    let gateway = gateway(&service, &ground);

    let mut caller = asks(&gateway, &format!("{ASKED}{EARLY}"));
    let (mut upstream, _head) = service.takes();
    upstream.sees_nothing();
    upstream.says(SWITCHES);
    caller.until("\r\n\r\n");
    assert_eq!(upstream.until(EARLY), EARLY, "to the service alone, and after its 101");
    drop((caller, upstream));

    let mut caller = asks(&gateway, &format!("{ASKED}{EARLY}"));
    let (mut upstream, _head) = service.takes();
    upstream.says("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
    assert!(caller.until("no").starts_with("HTTP/1.1 403 "));
    let next = upstream.until("\r\n\r\n");
    assert!(next.starts_with("GET /admin ") && next.contains("via: "), "a request of its own: {next}");
}

fn s22_a_guarded_call_is_not_upgraded_and_not_claimed(ground: Ground) {
    let service = RawService::start();
    let unguarded = "[[routes]]\nname = 'open'\nmatch.path = '/open'\nupstream = 'payments'\nkey.mode = 'off'";
    let gateway = Settings::towards(&service.url()).and(unguarded).start(&ground);

    let mut caller = asks(&gateway, &format!("{}hello", ASKED.replacen("GET", "POST", 1)));
    let told = caller.until("\r\n\r\n");
    assert!(told.starts_with("HTTP/1.1 501 ") && told.contains("connection: close"), "{told}");
    assert!(told.contains("oncegate-execution: not-executed") && gateway.operations("").is_empty(), "{told}");

    let mut caller = asks(&gateway, &ASKED.replacen("GET /chat", "POST /open", 1));
    let (mut upstream, _head) = service.takes();
    upstream.says(SWITCHES);
    assert!(caller.until("\r\n\r\n").contains("oncegate-guarded: no; reason=off"));
    caller.says("hello");
    upstream.until("hello");
}

/// Clients of the Java library ask for `h2c` with every call, and take the answer that comes instead.
fn s22_a_way_past_the_gateway_is_not_offered(ground: Ground) {
    let service = RawService::start();
    let gateway = gateway(&service, &ground);
    for protocol in ["h2c", "TLS/1.0", "HTTP/2.0"] {
        for method in ["GET", "POST"] {
            let settings = "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__";
            let mut caller = asks(
                &gateway,
                &format!(
                    "{method} / HTTP/1.1\r\nHost: gw\r\n{settings}\r\nUpgrade: {protocol}\r\nContent-Length: 0\r\n\r\n"
                ),
            );
            let (mut upstream, asked) = service.takes();
            assert!(!asked.contains("upgrade") && !asked.contains("http2-settings"), "{asked}");
            upstream.says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
            assert!(caller.until("ok").starts_with("HTTP/1.1 200 "));
        }
    }
    let mut caller = asks(&gateway, &ASKED.replacen("websocket", "h2c, websocket", 1));
    let (mut upstream, asked) = service.takes();
    assert!(asked.contains("\r\nupgrade: websocket\r\n"), "{asked}");
    upstream.says(SWITCHES);
    caller.until("\r\n\r\n");
}

fn an_upgrade_that_the_service_declines_is_a_call_like_any_other(ground: Ground) {
    let service = RawService::start();
    let gateway = gateway(&service, &ground);
    let mut caller = asks(&gateway, ASKED);
    let (mut upstream, _head) = service.takes();
    upstream.says("HTTP/1.1 426 Upgrade Required\r\nUpgrade: foo/2\r\nContent-Length: 2\r\n\r\nno");
    assert!(caller.until("no").starts_with("HTTP/1.1 426 "));

    caller.says("GET /next HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n");
    assert!(upstream.until("\r\n\r\n").starts_with("GET /next "), "both connections go on");
    upstream.says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (told, end) = caller.rest();
    assert!(told.ends_with(b"ok") && end.is_ok());
}

fn a_switch_that_nobody_asked_for_is_no_answer(ground: Ground) {
    let service = RawService::start();
    let gateway = Settings::towards(&service.url()).route("retry.max_attempts = 1").start(&ground);
    for (asked, switches) in [
        ("GET / HTTP/1.1\r\nHost: gw\r\n\r\n", SWITCHES),
        ("GET / HTTP/1.1\r\nHost: gw\r\nUpgrade: websocket\r\n\r\n", SWITCHES),
        ("GET / HTTP/1.0\r\nHost: gw\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", SWITCHES),
        (ASKED, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\nConnection: Upgrade\r\n\r\n"),
        (ASKED, "HTTP/1.1 101 Switching Protocols\r\n\r\n"),
    ] {
        let mut caller = asks(&gateway, asked);
        let (mut upstream, _head) = service.takes();
        upstream.says(switches);
        let told = caller.until("\r\n\r\n");
        assert_eq!(told.get(8..13), Some(" 502 "), "{asked}: {told}");
        upstream.stays();
    }
}

fn an_end_of_one_side_is_an_end_for_the_other_and_no_more(ground: Ground) {
    let service = RawService::start();
    let gateway = gateway(&service, &ground);
    let (mut caller, mut upstream) = tunnel(&gateway, &service);
    caller.says("last words");
    caller.ends();
    assert_eq!(upstream.rest().0, b"last words");
    upstream.says("an answer");
    upstream.ends();
    assert_eq!(caller.rest().0, b"an answer");

    let (mut caller, mut upstream) = tunnel(&gateway, &service);
    upstream.ends();
    assert_eq!(caller.rest().0, b"");
    caller.says("one more thing");
    upstream.until("one more thing");
}

fn a_side_that_breaks_off_takes_the_other_along(ground: Ground) {
    let service = RawService::start();
    let gateway = gateway(&service, &ground);
    let (caller, mut upstream) = tunnel(&gateway, &service);
    caller.resets();
    upstream.stays();
    let (mut caller, upstream) = tunnel(&gateway, &service);
    upstream.resets();
    caller.stays();
}

fn a_tunnel_in_which_nothing_moves_is_closed(ground: Ground) {
    let service = RawService::start();
    let gateway = Settings::towards(&service.url()).top("upstreams.payments.idle_timeout = '1s'").start(&ground);
    let (mut caller, mut upstream) = tunnel(&gateway, &service);
    upstream.says("ping");
    caller.until("ping");
    caller.stays();
    upstream.stays();
}

/// traefik/traefik#13513.
fn a_tunnel_outlives_every_deadline_and_is_not_asked_for_again(ground: Ground) {
    const DEADLINE: Duration = Duration::from_millis(300);
    let service = RawService::start();
    let settings = Settings::towards(&service.url()).route("retry.deadline = '300ms'");
    let gateway = settings.route("retry.attempt_timeout = '300ms'").start(&ground);
    let (mut caller, mut upstream) = tunnel(&gateway, &service);
    let since = Instant::now();
    while since.elapsed() < 2 * DEADLINE {
        caller.says("ping");
        upstream.until("ping");
        upstream.says("pong");
        caller.until("pong");
        thread::sleep(DEADLINE / 3);
    }
    upstream.resets();
    caller.stays();
    let mut next = asks(&gateway, "GET /next HTTP/1.1\r\nHost: gw\r\n\r\n");
    let (mut upstream, head) = service.takes();
    assert!(head.starts_with("GET /next "), "{head}");
    upstream.says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    next.until("ok");
}

fn a_tunnel_keeps_its_place_and_ends_with_the_drain(ground: Ground) {
    let service = RawService::start();
    let settings = Settings::towards(&service.url()).top("server.max_connections = 2").top("server.drain = '700ms'");
    let mut gateway = settings.start(&ground);
    let tunnels = [tunnel(&gateway, &service), tunnel(&gateway, &service)];
    let mut late = asks(&gateway, "GET / HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n");
    late.sees_nothing();
    let [first, (mut second, mut end)] = tunnels;
    drop(first);
    let (mut upstream, _head) = service.takes();
    upstream.says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    late.until("ok");

    gateway.terminate();
    eventually("draining", || (gateway.readiness().status == 503).then_some(()));
    second.says("still here");
    end.until("still here");
    second.stays();
    end.stays();
    assert!(gateway.exit().success());
}

fn s08_a_forward_proxy_is_what_this_is_not(ground: Ground) {
    let service = RawService::start();
    let gateway = gateway(&service, &ground);
    let mut caller = asks(&gateway, "CONNECT gw:443 HTTP/1.1\r\nHost: gw:443\r\n\r\nhello");
    let told = caller.until("\r\n\r\n");
    assert!(told.starts_with("HTTP/1.1 405 ") && told.contains("allow: GET, "), "{told}");
}
