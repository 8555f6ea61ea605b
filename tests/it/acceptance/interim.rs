//! What comes before an answer: informational ones, and the word that a body may come.

use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::raw::{Raw, RawService};

on! { [memory]
    what_is_said_before_an_answer_is_told_at_once
    a_body_waits_until_its_service_asks_for_it
    a_refusal_spares_the_caller_his_body
    a_body_that_nobody_asked_for_yet_is_for_the_next_attempt
    a_service_that_never_asks_gets_the_body_all_the_same
    a_guarded_body_is_asked_for_by_the_gateway
    a_body_that_was_asked_for_gets_a_last_word
    nothing_of_an_attempt_that_is_repeated_is_in_the_answer
}

const HINT: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n";
const TOLD: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\r\n";
const DONE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";
const EXPECTING: &str = "POST /a HTTP/1.1\r\nHost: gw\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";

fn unguarded(service: &RawService, ground: &Ground) -> Gateway {
    Settings::towards(&service.url()).route("key.mode = 'off'").start(ground)
}

fn asks(gateway: &Gateway, request: &str) -> Raw {
    let mut caller = Raw::connect(gateway.address());
    caller.says(request);
    caller
}

fn what_is_said_before_an_answer_is_told_at_once(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service, &ground);
    for method in ["GET", "POST"] {
        let mut caller = asks(&gateway, &format!("{method} /a HTTP/1.1\r\nHost: gw\r\nContent-Length: 0\r\n\r\n"));
        let (mut upstream, _head) = service.takes();
        for _ in 0..2 {
            upstream.says(HINT);
            assert_eq!(caller.until("\r\n\r\n"), TOLD);
        }
        upstream.says(format!("HTTP/1.1 102 Processing\r\n\r\n{DONE}"));
        assert_eq!(caller.until("\r\n\r\n"), "HTTP/1.1 102 Processing\r\n\r\n");
        assert!(caller.until("ok").starts_with("HTTP/1.1 200 OK\r\n"));
        drop(upstream);
    }
    let mut old = asks(&gateway, "GET /a HTTP/1.0\r\nHost: gw\r\n\r\n");
    let (mut upstream, _head) = service.takes();
    upstream.says(format!("{HINT}{DONE}"));
    assert!(old.until("ok").starts_with("HTTP/1.0 200 OK\r\n"));
}

fn a_body_waits_until_its_service_asks_for_it(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service, &ground);
    let mut caller = asks(&gateway, EXPECTING);
    let (mut upstream, head) = service.takes();
    assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
    caller.sees_nothing();
    upstream.says(CONTINUE);
    assert_eq!(caller.until("\r\n\r\n"), CONTINUE);
    caller.says("body");
    assert_eq!(upstream.until("body"), "body");
    upstream.says(DONE);
    caller.until("ok");
}

fn a_refusal_spares_the_caller_his_body(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service, &ground);
    let mut caller = asks(&gateway, EXPECTING);
    let (mut upstream, _head) = service.takes();
    upstream.says("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
    assert!(caller.until("no").starts_with("HTTP/1.1 401 "), "not asked for its body");
    upstream.stays();
}

fn a_body_that_nobody_asked_for_yet_is_for_the_next_attempt(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service, &ground);
    let mut caller = asks(&gateway, EXPECTING);
    let (mut busy, _head) = service.takes();
    busy.says("HTTP/1.1 429 Too Many Requests\r\nRetry-After-Ms: 1\r\nContent-Length: 0\r\n\r\n");
    let (mut upstream, head) = service.takes();
    assert!(head.contains("\r\nexpect: 100-continue\r\n") && head.contains("\r\noncegate-attempt: 2\r\n"), "{head}");
    upstream.says(CONTINUE);
    assert_eq!(caller.until("\r\n\r\n"), CONTINUE);
    caller.says("body");
    assert_eq!(upstream.until("body"), "body");
    upstream.says(DONE);
    assert!(caller.until("ok").starts_with("HTTP/1.1 200 OK\r\n"), "asked for once");
    busy.stays();
}

fn a_service_that_never_asks_gets_the_body_all_the_same(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service, &ground);
    let mut caller = asks(&gateway, EXPECTING);
    let (mut upstream, _head) = service.takes();
    assert_eq!(caller.until("\r\n\r\n"), CONTINUE);
    caller.says("body");
    upstream.until("body");
    upstream.says(DONE);
    caller.until("ok");
}

fn a_guarded_body_is_asked_for_by_the_gateway(ground: Ground) {
    let service = RawService::start();
    let gateway = Settings::towards(&service.url()).start(&ground);
    let mut caller = asks(&gateway, EXPECTING);
    assert_eq!(caller.until("\r\n\r\n"), CONTINUE);
    caller.says("body");
    let (mut upstream, head) = service.takes();
    assert!(!head.contains("expect"), "{head}");
    upstream.until("body");
    upstream.says(format!("{HINT}{DONE}"));
    assert!(caller.until("ok").starts_with("HTTP/1.1 200 OK\r\n"), "a receipt has no place for hints");
}

/// envoyproxy/envoy#12131. The service sees that nobody waits for it any more.
fn a_body_that_was_asked_for_gets_a_last_word(ground: Ground) {
    for mode in ["off", "stamp"] {
        let service = RawService::start();
        let settings = Settings::towards(&service.url()).route(&format!("key.mode = '{mode}'"));
        let gateway = settings.route("retry.attempt_timeout = '300ms'").start(&ground);
        let mut caller = asks(&gateway, EXPECTING);
        let asked = (mode == "off").then(|| {
            let (mut upstream, _head) = service.takes();
            upstream.says(CONTINUE);
            upstream
        });
        assert_eq!(caller.until("\r\n\r\n"), CONTINUE);
        caller.says("body");
        let mut upstream = asked.unwrap_or_else(|| service.takes().0);
        upstream.until("body");
        let told = caller.until("\r\n\r\n");
        assert!(told.starts_with("HTTP/1.1 504 ") && told.contains("\r\noncegate-execution: unknown\r\n"), "{told}");
        upstream.stays();
    }
}

fn nothing_of_an_attempt_that_is_repeated_is_in_the_answer(ground: Ground) {
    let service = RawService::start();
    let gateway = Settings::towards(&service.url()).start(&ground);
    let mut caller = asks(&gateway, "GET /a HTTP/1.1\r\nHost: gw\r\n\r\n");
    let (mut busy, _head) = service.takes();
    busy.says(format!(
        "{HINT}HTTP/1.1 503 Busy\r\nSet-Cookie: a=1\r\nRetry-After-Ms: 1\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"
    ));
    assert_eq!(caller.until("\r\n\r\n"), TOLD);
    let (mut upstream, head) = service.takes();
    assert!(head.contains("\r\noncegate-attempt: 2\r\n"), "{head}");
    upstream.says(DONE);
    let told = caller.until("ok");
    assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{told}");
    assert!(!told.contains("set-cookie") && !told.contains("link:") && !told.contains("retry-after"), "{told}");
}
