//! The way to a service: through a proxy that the file names and no other, and what is said where it is barred.

use std::io::{Read, Write, copy};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::upstream::ScriptedUpstream;

on! { [memory]
    a_service_is_reached_through_its_proxy_and_no_other
    a_handshake_that_fails_is_told_and_did_not_run
}

/// Gives tunnels to `upstream` as long as `answers` last, and tells what it was asked for.
fn proxy(upstream: SocketAddr, answers: &'static [&'static str]) -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (told, asked) = channel();
    thread::spawn(move || {
        for (stream, answer) in listener.incoming().zip(answers) {
            let mut agent = stream.unwrap();
            told.send(head(&mut agent)).unwrap();
            agent.write_all(answer.as_bytes()).unwrap();
            if answer.contains(" 200 ") {
                join(agent, TcpStream::connect(upstream).unwrap());
            }
        }
    });
    (port, asked)
}

fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn join(one: TcpStream, other: TcpStream) {
    for (mut from, mut to) in [(one.try_clone().unwrap(), other.try_clone().unwrap()), (other, one)] {
        thread::spawn(move || {
            copy(&mut from, &mut to).ok();
            to.shutdown(Shutdown::Write).ok();
        });
    }
}

fn a_service_is_reached_through_its_proxy_and_no_other(ground: Ground) {
    const REFUSED: &str = "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
    let upstream = ScriptedUpstream::start();
    let (port, asked) = proxy(upstream.address(), &["HTTP/1.1 200 Yes\r\n\r\n", REFUSED, REFUSED]);
    let settings = Settings::of(&upstream).quick().route("retry.max_attempts = 2");
    let settings = settings.top(&format!("upstreams.payments.proxy = 'http://me:pw@127.0.0.1:{port}'"));
    let settings =
        settings.environment("HTTP_PROXY", "http://127.0.0.1:1").environment("http_proxy", "http://127.0.0.1:1");
    let gateway = settings.start(&ground);

    gateway.charge("k-1").header("Connection", "close").send().expect(201);
    let target = upstream.address();
    let tunnel = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic bWU6cHc=\r\n\r\n");
    assert_eq!(asked.recv().unwrap(), tunnel);
    assert_eq!(upstream.only().header("Proxy-Authorization"), None);

    let direct = Settings::of(&upstream).environment("HTTP_PROXY", "http://127.0.0.1:1").start(&ground);
    direct.charge("k-2").send().expect(201);
    assert_eq!(upstream.effects(), 2);

    let barred = settings.start(&ground).charge("k-3").send().expect_problem(502, "upstream-failed");
    assert!(barred.json()["detail"].as_str().unwrap().contains("wants other credentials (407)"), "{barred:?}");
    assert_eq!((barred.execution(), upstream.effects()), (Some("not-executed"), 2));
    assert!(!format!("{barred:?}{}", gateway.log()).contains("bWU6cHc"));
}

fn a_handshake_that_fails_is_told_and_did_not_run(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let settings = Settings::towards(&format!("https://{}", upstream.address())).quick();
    let failed = settings.start(&ground).charge("k-1").send().expect_problem(502, "upstream-failed");
    assert!(failed.json()["detail"].as_str().unwrap().contains("the TLS handshake failed: "), "{failed:?}");
    assert_eq!((failed.execution(), upstream.effects()), (Some("not-executed"), 0));
}
