//! Agents that speak HTTP/2, and those that abuse it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use http::Request;

use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// `GET / http` and `:authority: gw`, as HPACK has them.
const GET: &[u8] = b"\x82\x84\x86\x41\x02gw";
const MIB: u64 = 1 << 20;

on! { [memory redis]
    c12_a_stream_that_the_service_turned_away_is_opened_again
    a_call_over_http2_is_made_once_like_any_other
    s23_a_guarded_call_is_seen_through_when_its_client_resets_the_stream
}

on! { [memory]
    s23_floods_end_their_connection_and_take_no_memory
}

fn a_call_over_http2_is_made_once_like_any_other(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    let url = format!("http://{}/charges", gateway.address());
    let curl = || {
        let output = Command::new("curl")
            .args(["-s", "--http2-prior-knowledge", "-H", "Idempotency-Key: k-1", "-d", "amount=1", "-D", "-"])
            .args(["-w", "\n%{http_version} %{response_code}", &url])
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };

    let (first, second) = (curl(), curl());

    assert!(first.ends_with("{\"id\": \"ch_1\"}\n2 201") && !first.contains("idempotent-replayed"), "{first}");
    assert!(second.ends_with("{\"id\": \"ch_1\"}\n2 201") && second.contains("idempotent-replayed: true"), "{second}");
    assert_eq!((upstream.effects(), upstream.only().body.as_slice()), (1, &b"amount=1"[..]));
    gateway.post("/charges").key("k-1").body("application/x-www-form-urlencoded", "amount=1").send().expect(201);
    assert_eq!(upstream.effects(), 1);
}

fn s23_a_guarded_call_is_seen_through_when_its_client_resets_the_stream(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let gateway = Settings::of(&upstream).start(&ground);

    let address = gateway.address();
    with_client(address, async |mut client| {
        let call = Request::post(format!("http://{address}/charges")).header("idempotency-key", "k-1");
        let call = call.header("content-type", "application/json");
        let (answer, mut body) = client.send_request(call.body(()).unwrap(), false).unwrap();
        body.send_data(Bytes::from_static(b"{}"), true).unwrap();
        while upstream.seen().is_empty() {
            tokio::task::yield_now().await;
        }
        body.send_reset(Reason::CANCEL);
        drop(answer);
        // The answer to another request shows that the gateway has read the reset.
        let other = Request::get(format!("http://{address}/.oncegate/operations/op_x")).body(()).unwrap();
        client.send_request(other, true).unwrap().0.await.unwrap();
    });
    upstream.release();

    assert_eq!(gateway.wait_for("succeeded").attempts(), 1);
    assert!(gateway.post("/charges").key("k-1").json("{}").send().expect(201).is_replay());
    assert_eq!(upstream.effects(), 1);
}

fn c12_a_stream_that_the_service_turned_away_is_opened_again(ground: Ground) {
    let refused: fn(u32) -> Vec<u8> = |stream| frame(3, 0, stream, &u32::from(Reason::REFUSED_STREAM).to_be_bytes());
    let goodbye: fn(u32) -> Vec<u8> = |_| frame(7, 0, 0, &[0; 8]);
    for (key, turns_away) in [("k-1", refused), ("k-2", goodbye)] {
        let (url, calls) = turning_away(turns_away);
        let gateway = Settings::towards(&url).top("upstreams.payments.protocol = 'h2'").start(&ground);

        let answer = gateway.charge(key).send().expect(201);

        assert_eq!((answer.is_replay(), answer.header("Oncegate-Attempts")), (false, Some("2")));
        assert!(gateway.charge(key).send().expect(201).is_replay());
        assert_eq!(calls.load(Ordering::Relaxed), 2, "one was turned away, one was taken");
    }
}

/// A service that turns its first call away, and the number of all that it saw.
fn turning_away(how: fn(u32) -> Vec<u8>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (url, calls) = (format!("http://{}", listener.local_addr().unwrap()), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let calls = Arc::clone(&counted);
            thread::spawn(move || drop(take_calls(stream, &calls, how)));
        }
    });
    (url, calls)
}

fn take_calls(mut stream: TcpStream, calls: &AtomicUsize, turns_away: fn(u32) -> Vec<u8>) -> io::Result<()> {
    let (mut preface, mut head) = ([0; 24], [0; 9]);
    stream.read_exact(&mut preface)?;
    stream.write_all(&frame(4, 0, 0, b""))?;
    loop {
        stream.read_exact(&mut head)?;
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload)?;
        let number = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let answer = match (head[3], head[4] & 1) {
            (1, _) if calls.fetch_add(1, Ordering::Relaxed) == 0 => turns_away(number),
            (1, _) => frame(1, 5, number, b"\x08\x03201"),
            (kind @ (4 | 6), 0) => frame(kind, 1, 0, if kind == 6 { &payload } else { b"" }),
            _ => continue,
        };
        stream.write_all(&answer)?;
    }
}

/// Runs `story` with a client of the gateway on a runtime of its own.
pub fn with_client(address: SocketAddr, story: impl AsyncFnOnce(SendRequest<Bytes>)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        story(client.ready().await.unwrap()).await
    })
}

/// CVE-2023-44487, RUSTSEC-2024-0332, RUSTSEC-2026-0258, CVE-2025-8671, and floods of SETTINGS and PING.
fn s23_floods_end_their_connection_and_take_no_memory(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway =
        Settings::of(&upstream).top("server.header_timeout = '1s'\nserver.body_idle_timeout = '1s'").start(&ground);
    gateway.call("GET", "/").send().expect(201);
    let before = gateway.resident_memory();

    thread::scope(|scope| {
        let start = |frames: &'static (dyn Fn(u32) -> Vec<u8> + Sync)| scope.spawn(|| flood(&gateway, frames));
        start(&|number| [frame(1, 5, odd(number), GET), frame(3, 0, odd(number), &8_u32.to_be_bytes())].concat());
        start(&|number| frame(if number == 0 { 1 } else { 9 }, 0, 1, &field()));
        start(&|number| if number == 0 { frame(1, 4, 1, GET) } else { frame(0, 0, 1, b"") });
        start(&|number| [frame(1, 4, odd(number), GET), frame(8, 0, odd(number), &[0; 4])].concat());
        start(&|_| frame(4, 0, 0, b"\0\x01\0\0\x10\0"));
        start(&|_| frame(6, 0, 0, b"12345678"));
    });

    let more = gateway.resident_memory().saturating_sub(before);
    assert!(more < 5 * MIB, "{more} bytes");
    gateway.charge("k-1").send().expect(201);
}

/// Sends frames until the gateway closes.
fn flood(gateway: &Gateway, frames: &dyn Fn(u32) -> Vec<u8>) {
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    let mut answers = stream.try_clone().unwrap();
    let reading = thread::spawn(move || answers.read_to_end(&mut Vec::new()));
    stream.write_all(PREFACE).unwrap();
    let closed = (0..).any(|number| stream.write_all(&frames(number)).is_err());
    assert!(closed);
    drop(reading.join().unwrap());
}

/// A large one, `a: bbb...`.
fn field() -> Vec<u8> {
    [&b"\x00\x01a\x7f\xf1\x2d"[..], &[b'b'; 6000]].concat()
}

/// The streams of a client.
fn odd(number: u32) -> u32 {
    2 * number + 1
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
