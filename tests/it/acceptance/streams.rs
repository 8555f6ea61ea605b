//! Bodies that are passed on while they come, in both directions.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use http::Request;

use crate::acceptance::http2::with_client;
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::raw::{Raw, RawService};

on! { [memory]
    each_event_goes_on_as_it_comes_and_its_head_before_it
    an_upload_goes_on_piece_by_piece_and_may_be_answered_before_its_end
    a_stream_may_outlive_every_deadline
    an_upload_may_outlive_every_deadline
    a_stream_that_falls_silent_is_broken_off
    an_upload_that_falls_silent_ends_the_call
    a_reader_that_stands_still_holds_the_service_up
    a_service_that_stands_still_holds_the_upload_up
    an_answer_to_half_an_upload_reaches_its_caller
    a_service_learns_at_once_that_its_caller_is_gone
    a_caller_that_has_said_everything_is_not_gone
    answers_without_a_body_end_with_their_head
    a_caller_that_reads_nothing_holds_no_receipt_up
    a_break_is_no_end_to_a_caller_that_knows_no_chunks
    a_repeat_in_the_middle_of_a_stream_is_told_to_wait_and_then_has_it_all
    trailers_may_be_as_long_as_a_head
}

on! { [memory file redis]
    c25_s24_a_caller_that_leaves_a_stream_finds_all_of_it_in_the_receipt
}

const EVENTS: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const SHORT: Duration = Duration::from_millis(300);
const LARGE: usize = 64 << 20;

fn unguarded(service: &RawService) -> Settings {
    Settings::towards(&service.url()).route("key.mode = 'off'")
}

fn asks(gateway: &Gateway, head: &str) -> Raw {
    let mut caller = Raw::connect(gateway.address());
    caller.says(format!("{head}\r\nHost: gw\r\n\r\n"));
    caller
}

fn each_event_goes_on_as_it_comes_and_its_head_before_it(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service).start(&ground);
    for method in ["GET", "POST"] {
        let mut caller = asks(&gateway, &format!("{method} /events HTTP/1.1"));
        let (mut upstream, _head) = service.takes();
        upstream.says(EVENTS);
        let head = caller.until("\r\n\r\n");
        assert!(head.contains("content-type: text/event-stream\r\n") && !head.contains("content-length"), "{head}");
        for event in ["data: 1\n\n", ": still here\n\n", "data: 2\n\n"] {
            upstream.says_chunk(event);
            assert!(caller.until("\n\n").ends_with(event));
        }
        upstream.says("0\r\n\r\n");
        assert_eq!(caller.until("0\r\n\r\n"), "\r\n0\r\n\r\n");
    }
}

fn an_upload_goes_on_piece_by_piece_and_may_be_answered_before_its_end(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service).start(&ground);
    let mut caller = asks(&gateway, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked");
    caller.says_chunk("first");
    let (mut upstream, _head) = service.takes();
    assert_eq!(upstream.until("first\r\n"), "5\r\nfirst\r\n");
    upstream.says(EVENTS);
    for piece in ["one", "two", "three"] {
        upstream.says_chunk(piece);
        caller.until(piece);
        caller.says_chunk(piece);
        upstream.until(piece);
    }
    caller.says("0\r\n\r\n");
    assert_eq!(upstream.until("0\r\n\r\n"), "\r\n0\r\n\r\n");
    upstream.says("0\r\n\r\n");
    caller.until("\r\n0\r\n\r\n");
}

fn a_stream_may_outlive_every_deadline(ground: Ground) {
    let service = RawService::start();
    let settings = unguarded(&service).route("retry.deadline = '1s'").route("retry.attempt_timeout = '1s'");
    let gateway = settings.start(&ground);
    let mut caller = asks(&gateway, "GET /events HTTP/1.1");
    let (mut upstream, _head) = service.takes();
    upstream.says(EVENTS);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        upstream.says_chunk("data: 1\n\n");
        caller.until("data: 1\n\n");
        thread::sleep(Duration::from_millis(100));
    }
    upstream.says("0\r\n\r\n");
    caller.until("\r\n0\r\n\r\n");
}

fn an_upload_may_outlive_every_deadline(ground: Ground) {
    let service = RawService::start();
    let settings = unguarded(&service).route("retry.deadline = '1s'").route("retry.attempt_timeout = '1s'");
    let gateway = settings.start(&ground);
    let mut caller = asks(&gateway, "POST /slow HTTP/1.1\r\nTransfer-Encoding: chunked");
    let (mut upstream, _head) = service.takes();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        caller.says_chunk("piece");
        upstream.until("piece\r\n");
        thread::sleep(Duration::from_millis(100));
    }
    caller.says("0\r\n\r\n");
    upstream.until("0\r\n\r\n");
    let told = caller.until("\r\n\r\n");
    assert!(told.starts_with("HTTP/1.1 504 ") && told.contains("oncegate-execution: unknown"), "{told}");
    assert!(start.elapsed() >= Duration::from_millis(2500), "the service has its time when it has the whole call");
}

fn a_stream_that_falls_silent_is_broken_off(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service).top("upstreams.payments.idle_timeout = '1s'").start(&ground);
    let mut caller = asks(&gateway, "GET /events HTTP/1.1");
    let (mut upstream, _head) = service.takes();
    upstream.says(EVENTS);
    upstream.says_chunk("data: 1\n\n");
    caller.until("data: 1\n\n");
    assert!(!String::from_utf8(caller.rest().0).unwrap().contains("0\r\n\r\n"), "an end that was none");
    upstream.stays();
}

fn an_upload_that_falls_silent_ends_the_call(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service).top("server.body_idle_timeout = '300ms'").start(&ground);
    let mut caller = asks(&gateway, "POST /slow HTTP/1.1\r\nContent-Length: 100");
    caller.says("half");
    let (mut upstream, _head) = service.takes();
    upstream.until("half");
    assert!(caller.until("\r\n\r\n").starts_with("HTTP/1.1 408 "));
    upstream.stays();
}

/// Writes until nobody takes any more, and gives back how much went.
fn writes_until_it_is_held_up(stream: &mut Raw) -> usize {
    stream.0.set_write_timeout(Some(SHORT)).unwrap();
    let (piece, mut written) = ([b'x'; 64 << 10], 0);
    while written < LARGE {
        match stream.0.write(&piece[..piece.len().min(LARGE - written)]) {
            Ok(length) => written += length,
            Err(_would_block) => break,
        }
    }
    written
}

fn writes_the_rest(mut stream: Raw, written: usize) -> thread::JoinHandle<Raw> {
    stream.0.set_write_timeout(None).unwrap();
    thread::spawn(move || {
        stream.says(vec![b'x'; LARGE - written]);
        stream
    })
}

fn reads_all(stream: &mut Raw) {
    let mut body = vec![0; LARGE];
    stream.0.read_exact(&mut body).unwrap();
    assert!(body.iter().all(|byte| *byte == b'x'));
}

fn a_reader_that_stands_still_holds_the_service_up(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service).start(&ground);
    let mut caller = asks(&gateway, "GET /large HTTP/1.1");
    let (mut upstream, _head) = service.takes();
    upstream.says(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"));
    let before = gateway.resident_memory();
    let written = writes_until_it_is_held_up(&mut upstream);
    assert!(written < LARGE / 2, "{written} bytes went nowhere");
    let rest = writes_the_rest(upstream, written);
    caller.until("\r\n\r\n");
    reads_all(&mut caller);
    rest.join().unwrap();
    assert!(gateway.resident_memory() < before + (8 << 20), "{} after {before}", gateway.resident_memory());
}

fn a_service_that_stands_still_holds_the_upload_up(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service).route("max_body = '1GiB'").start(&ground);
    let mut caller = asks(&gateway, &format!("POST /large HTTP/1.1\r\nContent-Length: {LARGE}"));
    let (mut upstream, _head) = service.takes();
    let before = gateway.resident_memory();
    let written = writes_until_it_is_held_up(&mut caller);
    assert!(written < LARGE / 2, "{written} bytes went nowhere");
    let rest = writes_the_rest(caller, written);
    reads_all(&mut upstream);
    upstream.says("HTTP/1.1 204 No Content\r\n\r\n");
    assert!(rest.join().unwrap().until("\r\n\r\n").starts_with("HTTP/1.1 204 "));
    assert!(gateway.resident_memory() < before + (8 << 20), "{} after {before}", gateway.resident_memory());
}

fn an_answer_to_half_an_upload_reaches_its_caller(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service).route("max_body = '1GiB'").start(&ground);
    let mut caller = asks(&gateway, &format!("POST /large HTTP/1.1\r\nContent-Length: {LARGE}"));
    let (mut upstream, _head) = service.takes();
    caller.says("half");
    upstream.until("half");
    upstream.says("HTTP/1.1 413 Content Too Large\r\nContent-Length: 8\r\nConnection: close\r\n\r\ntoo much");
    let told = caller.until("too much");
    assert!(told.starts_with("HTTP/1.1 413 ") && told.contains("oncegate-source: upstream"), "{told}");
}

fn a_service_learns_at_once_that_its_caller_is_gone(ground: Ground) {
    const WITHIN: Duration = Duration::from_secs(5);
    let service = RawService::start();
    let gateway = unguarded(&service).start(&ground);
    for (method, told) in [("GET", ""), ("GET", EVENTS), ("POST", EVENTS)] {
        for resets in [true, false] {
            let mut caller = asks(&gateway, &format!("{method} /events HTTP/1.1"));
            let (mut upstream, _head) = service.takes();
            upstream.says(told);
            if !told.is_empty() {
                caller.until("\r\n\r\n");
            }
            if resets {
                caller.resets()
            } else {
                drop(caller)
            }
            let stayed = upstream.stays();
            assert!(stayed < WITHIN, "{method}, {told:?}, reset: {resets}: {stayed:?}");
        }
    }
}

fn a_caller_that_has_said_everything_is_not_gone(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service).start(&ground);
    for method in ["GET", "POST"] {
        let mut caller = asks(&gateway, &format!("{method} /all HTTP/1.1"));
        caller.ends();
        let (mut upstream, _head) = service.takes();
        upstream.says("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nall");
        let (told, end) = caller.rest();
        assert!(told.ends_with(b"all") && end.is_ok());
    }
}

fn answers_without_a_body_end_with_their_head(ground: Ground) {
    let service = RawService::start();
    let gateway = unguarded(&service).start(&ground);
    let mut caller = Raw::connect(gateway.address());
    caller.says(
        "HEAD /1 HTTP/1.1\r\nHost: gw\r\n\r\nGET /2 HTTP/1.1\r\nHost: gw\r\n\r\nGET /3 HTTP/1.1\r\nHost: gw\r\n\r\n",
    );
    let (mut upstream, _head) = service.takes();
    upstream.says(EVENTS);
    let answers = ["HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"];
    for answer in answers {
        upstream.until("\r\n\r\n");
        upstream.says(answer);
    }
    for status in ["200", "204", "304"] {
        let head = caller.until("\r\n\r\n");
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
}

fn c25_s24_a_caller_that_leaves_a_stream_finds_all_of_it_in_the_receipt(ground: Ground) {
    let service = RawService::start();
    let gateway = Settings::towards(&service.url()).start(&ground);
    let call = gateway.charge("k-1");
    let caller = call.begin();
    let (mut upstream, _head) = service.takes();
    upstream.says(EVENTS);
    upstream.says_chunk("data: 1\n\n");
    upstream.says_chunk("data: 2\n\n");
    gateway.wait_for("sent");
    caller.hang_up();
    for event in 3..=5 {
        upstream.says_chunk(&format!("data: {event}\n\n"));
    }
    upstream.says("0\r\n\r\n");
    gateway.wait_for("succeeded");

    let replayed = call.send().expect(200);
    assert!(replayed.is_replay());
    let events: String = (1..=5).map(|event| format!("data: {event}\n\n")).collect();
    assert_eq!(
        (replayed.header("Content-Type"), replayed.body.as_slice()),
        (Some("text/event-stream"), events.as_bytes())
    );
}

fn a_caller_that_reads_nothing_holds_no_receipt_up(ground: Ground) {
    const BODY: usize = 16 << 20;
    let service = RawService::start();
    let settings = Settings::towards(&service.url()).route("max_receipt = '32MiB'");
    let gateway = settings.top("store.lease = '1s'").start(&ground);
    let mut caller = asks(&gateway, "POST /events HTTP/1.1\r\nIdempotency-Key: k-1\r\nConnection: close");
    let (mut upstream, _head) = service.takes();
    upstream.says(EVENTS);
    upstream.says(format!("{BODY:x}\r\n"));
    upstream.says(vec![b'x'; BODY]);
    upstream.says("\r\n0\r\n\r\n");
    gateway.wait_for("succeeded");

    let (told, end) = caller.rest();
    assert!(
        end.is_ok() && told.len() > BODY && told.ends_with(b"\r\n0\r\n\r\n"),
        "it has it all when it reads at last"
    );
}

fn a_break_is_no_end_to_a_caller_that_knows_no_chunks(ground: Ground) {
    let service = RawService::start();
    let open = "[[routes]]\nname = 'open'\nmatch.path = '/open'\nupstream = 'payments'\nkey.mode = 'off'";
    let gateway = Settings::towards(&service.url()).and(open).start(&ground);
    for (path, whole) in [("/open", true), ("/open", false), ("/guarded", true), ("/guarded", false)] {
        let mut caller = asks(&gateway, &format!("POST {path} HTTP/1.0"));
        let (mut upstream, _head) = service.takes();
        upstream.says(EVENTS);
        upstream.says_chunk("data: 1\n\n");
        caller.until("data: 1\n\n");
        upstream.says(if whole { "0\r\n\r\n" } else { "5\r\ndata" });
        upstream.ends();
        let (_, end) = caller.rest();
        assert_eq!(end.is_ok(), whole, "{path}: {end:?}");
    }
}

fn a_repeat_in_the_middle_of_a_stream_is_told_to_wait_and_then_has_it_all(ground: Ground) {
    let service = RawService::start();
    let gateway = Settings::towards(&service.url()).route("in_flight_wait = '300ms'").start(&ground);
    let call = gateway.charge("k-1");
    let caller = call.begin();
    let (mut upstream, _head) = service.takes();
    upstream.says(EVENTS);
    upstream.says_chunk("data: 1\n\n");

    call.send().expect_problem(409, "in-progress");
    upstream.says_chunk("data: 2\n\n");
    upstream.says("0\r\n\r\n");
    let first = caller.answer().expect(200);
    assert_eq!((first.body.as_slice(), first.is_replay()), (b"data: 1\n\ndata: 2\n\n".as_slice(), false));
    let replayed = eventually("the receipt", || Some(call.send()).filter(|answer| answer.status == 200));
    assert!(replayed.is_replay() && replayed.body == first.body);
}

/// How often a service answers, and then closes the connection.
fn answering(times: usize, answer: String) -> String {
    let service = RawService::start();
    let url = service.url();
    thread::spawn(move || {
        for _ in 0..times {
            let (mut upstream, _head) = service.takes();
            upstream.says(&answer);
            upstream.ends();
        }
    });
    url
}

fn trailers_may_be_as_long_as_a_head(ground: Ground) {
    let names = "x-0, x-1, x-2, x-3, x-4";
    let lines: String = names.split(", ").map(|name| format!("{name}: {}\r\n", "7".repeat(4000))).collect();
    let head =
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: {names}\r\n\r\n");
    for mode in ["off", "stamp"] {
        let url = answering(3, format!("{head}2\r\nok\r\n0\r\n{lines}\r\n"));
        let gateway = Settings::towards(&url).route(&format!("key.mode = '{mode}'")).start(&ground);
        for (version, takes_them) in [("1.0", false), ("1.1", true)] {
            let lines = "Content-Length: 0\r\nTE: trailers\r\nConnection: TE, close";
            let (told, end) = asks(&gateway, &format!("POST /charges HTTP/{version}\r\n{lines}")).rest();
            let told = String::from_utf8(told).unwrap();
            assert!(end.is_ok() && told.starts_with(&format!("HTTP/{version} 200 ")), "{mode} {end:?} {told:.200}");
            assert_eq!(told.contains("\r\nx-4: 777"), takes_them, "{mode} {version}");
        }
        let address = gateway.address();
        with_client(address, async |mut client| {
            let call = Request::post(format!("http://{address}/charges")).body(()).unwrap();
            let mut answer = client.send_request(call, true).unwrap().0.await.unwrap();
            while answer.body_mut().data().await.transpose().unwrap().is_some() {}
            let trailers = answer.body_mut().trailers().await.unwrap().unwrap();
            assert_eq!((trailers.len(), trailers["x-4"].len()), (5, 4000), "{mode}");
        });
    }
}
