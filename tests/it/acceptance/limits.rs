//! What one client, or one answer, can take from the others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::client::{Connection, tell};
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};
use crate::support::{PATIENCE, eventually};

on! { [memory]
    s15_a_body_beyond_the_limit_is_not_held
    s16_whoever_is_slow_gives_his_place_back
    s17_a_full_gateway_still_answers_its_probes
    s17_silent_probers_keep_no_other_out
    s18_a_gateway_without_descriptors_rests_and_recovers
    s19_a_compressed_answer_stays_compressed
    answers_that_are_held_count_as_bodies_do
}

const MEBIBYTE: usize = 1 << 20;

/// Bytes by which the process may grow for other reasons.
const SLACK: u64 = 24 << 20;

fn s15_a_body_beyond_the_limit_is_not_held(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    let before = gateway.resident_memory();

    for _ in 0..4 {
        let body = vec![b'x'; 8 * MEBIBYTE];
        let declared = format!("Content-Length: {}\r\n\r\n", body.len());
        let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len());
        for lines in [declared, chunked] {
            let head = format!("POST /charges HTTP/1.1\r\nHost: gw\r\nIdempotency-Key: k-1\r\n{lines}");
            let answer = tell(gateway.address(), &[head.as_bytes(), &body].concat());
            assert!(answer.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&answer));
        }
    }

    assert!(gateway.resident_memory() < before + SLACK, "{before} bytes have become {}", gateway.resident_memory());
    assert_eq!((upstream.seen().len(), gateway.operations("").len()), (0, 0));
}

/// There is one place, so whoever comes next is served only when the slow one is gone.
fn s16_whoever_is_slow_gives_his_place_back(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let limits = Settings::of(&upstream).top("server.max_connections = 1").top("server.header_timeout = '300ms'");
    let gateway = limits.top("server.body_idle_timeout = '300ms'").start(&ground);
    let served = |number: &str| gateway.call("GET", number).header("Connection", "close").send().expect(201);
    let guarded = "POST /charges HTTP/1.1\r\nHost: gw\r\nIdempotency-Key: k-1\r\nContent-Length: 1000\r\n\r\n";

    let silent = TcpStream::connect(gateway.address()).unwrap();
    served("/1");
    let head = drip(&gateway, "", "GET / HTTP/1.1\r\nX-A: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    served("/2");
    assert_eq!(head.join().unwrap(), "");
    let body = drip(&gateway, guarded, &"x".repeat(900));
    served("/3");
    assert!(body.join().unwrap().starts_with("HTTP/1.1 408 "), "it never stood still, and would have taken a minute");
    upstream.then(Step::Reply(Reply::new(200).body(vec![b'x'; 32 * MEBIBYTE])));
    let mut deaf = TcpStream::connect(gateway.address()).unwrap();
    deaf.write_all(b"GET /large HTTP/1.1\r\nHost: gw\r\n\r\n").unwrap();
    served("/4");

    drop((silent, deaf));
    assert!(upstream.seen().iter().all(|seen| seen.method == "GET"), "half a body is no call");
    assert_eq!(gateway.operations("").len(), 0);
}

/// Says `start` at once and the rest byte by byte, until nobody listens; then what came back.
fn drip(gateway: &Gateway, start: &str, rest: &str) -> thread::JoinHandle<String> {
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(60))).unwrap();
    stream.write_all(start.as_bytes()).unwrap();
    let rest = rest.to_owned();
    thread::spawn(move || {
        let (mut answer, mut bytes, until) = (Vec::new(), rest.bytes(), Instant::now() + PATIENCE);
        while Instant::now() < until {
            let written = bytes.next().map_or(Ok(()), |byte| stream.write_all(&[byte]));
            let mut piece = [0; 4096];
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => answer.extend_from_slice(&piece[..length]),
                Err(_) if written.is_err() => break,
                Err(_) => {}
            }
        }
        String::from_utf8(answer).unwrap()
    })
}

fn s17_a_full_gateway_still_answers_its_probes(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).top("server.max_connections = 2").start(&ground);
    upstream.then(Step::Held(Reply::charge(1)));
    upstream.then(Step::Held(Reply::charge(2)));
    let (first, second) = (gateway.charge("k-1").begin(), gateway.charge("k-2").begin());
    upstream.wait_for(2);

    let third = gateway.charge("k-3").begin();
    for probe in ["/livez", "/readyz", "/metrics"] {
        assert_ne!(gateway.probe(probe).status, 503, "{probe}");
    }
    assert_eq!(gateway.operations("").len(), 2, "the third waits at the door");
    upstream.release();

    for call in [first, second] {
        call.answer().expect(201);
    }
    third.answer().expect(201);
}

fn s17_silent_probers_keep_no_other_out(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).top("server.header_timeout = '60s'").start(&ground);
    let silent: Vec<_> = (0..256).map(|_| TcpStream::connect(gateway.health()).unwrap()).collect();

    assert_eq!(gateway.probe("/livez").status, 200);
    drop(silent);
}

fn s18_a_gateway_without_descriptors_rests_and_recovers(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let settings = Settings::of(&upstream).with_descriptors(64).route("retry.max_attempts = 1");
    let gateway = settings.start(&ground);
    let mut kept = Connection::open(gateway.address());
    let page = gateway.call("GET", "/.oncegate/problems/");
    assert_eq!(kept.send(&page).status, 200);

    let crowd: Vec<_> = (0..100).map(|_| TcpStream::connect(gateway.address()).unwrap()).collect();
    eventually("a word about it", || gateway.log().contains("cannot accept connections").then_some(()));
    let refused = kept.send(&gateway.charge("k-1")).expect_problem(502, "upstream-failed");
    assert_eq!((refused.execution(), upstream.seen().len()), (Some("not-executed"), 0));
    let (since, worked) = (Instant::now(), gateway.processor_time());
    thread::sleep(Duration::from_millis(500));
    let share = (gateway.processor_time() - worked).as_secs_f64() / since.elapsed().as_secs_f64();
    assert!(share < 0.5, "it works {share} of the time on nothing");

    drop(crowd);
    let answer = gateway.charge("k-1").send().expect(201);
    assert_eq!((answer.is_replay(), answer.operation()), (false, refused.operation()));
    assert_eq!(upstream.seen().len(), 1);
}

fn s19_a_compressed_answer_stays_compressed(ground: Ground) {
    let bomb = compressed_zeros(128 * MEBIBYTE);
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    let before = gateway.resident_memory();
    upstream.then(Step::Reply(Reply::new(201).line("Content-Encoding: gzip").body(bomb.clone())));

    let (first, repeat) = (gateway.charge("k-1").send().expect(201), gateway.charge("k-1").send().expect(201));

    assert_eq!((first.is_replay(), repeat.is_replay()), (false, true));
    for answer in [first, repeat] {
        assert!(answer.body == bomb && answer.header("Content-Encoding") == Some("gzip"));
    }
    assert!(gateway.resident_memory() < before + SLACK);
}

fn compressed_zeros(length: usize) -> Vec<u8> {
    let command = format!("head -c {length} /dev/zero | gzip -9");
    let output = Command::new("sh").args(["-c", &command]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success() && output.stdout.len() < length / 500);
    output.stdout
}

/// What is not kept for want of room is told to its caller, and never made again.
fn answers_that_are_held_count_as_bodies_do(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).top("server.buffers = '64KiB'").start(&ground);
    let large = vec![b'x'; 100_000];
    upstream.then(Step::Reply(Reply::new(201).body(large.clone())));

    let first = gateway.charge("k-1").send().expect(201);
    let repeat = gateway.charge("k-1").send().expect_problem(409, "result-unavailable");

    assert!(first.body == large && first.header("Oncegate-Operation") == repeat.header("Oncegate-Operation"));
    gateway.charge("k-2").send().expect(201);
    assert!(gateway.charge("k-2").send().expect(201).is_replay(), "the room came back");
    assert_eq!(upstream.seen().len(), 2);
}
