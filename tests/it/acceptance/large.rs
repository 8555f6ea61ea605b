//! Bodies that are larger than anything that is kept of them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use crate::support::PATIENCE;
use crate::support::gateway::Settings;
use crate::support::ground::Ground;

on! { [memory]
    c9_a_large_body_streams_both_ways_at_flat_memory
}

const MEBIBYTE: usize = 1 << 20;
const LARGE: usize = 100 * MEBIBYTE;

/// Bytes by which the process may grow, for sockets' and allocator's sake.
const SLACK: u64 = 24 << 20;

/// A service for one call: it looks at the head, then does with the connection what it is told.
fn service<T: Send + 'static>(serve: impl FnOnce(&mut TcpStream) -> T + Send + 'static) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        read_head(&mut stream);
        serve(&mut stream)
    });
    (address, serving)
}

/// The head of a message, and nothing behind it.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

fn write_large(stream: &mut TcpStream) {
    let piece = vec![b'x'; MEBIBYTE];
    (0..LARGE / MEBIBYTE).for_each(|_| stream.write_all(&piece).unwrap());
}

/// How many of so many bytes came.
fn read_some(stream: &mut TcpStream, bytes: usize) -> usize {
    std::io::copy(&mut stream.take(bytes as u64), &mut std::io::sink()).unwrap() as usize
}

fn c9_a_large_body_streams_both_ways_at_flat_memory(ground: Ground) {
    let (address, serving) = service(|stream| {
        let read = read_some(stream, LARGE);
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").unwrap();
        write_large(stream);
        read
    });
    let settings = Settings::towards(&format!("http://{address}")).route("key.mode = 'off'");
    let gateway = settings.route("max_body = '100MiB'").start(&ground);
    let before = gateway.resident_memory();
    let is_flat = |when: &str| {
        let now = gateway.resident_memory();
        assert!(now < before + SLACK, "{when}: {before} bytes have become {now}");
    };

    let mut client = TcpStream::connect(gateway.address()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(client, "POST /charges HTTP/1.1\r\nHost: gw\r\nContent-Length: {LARGE}\r\n\r\n").unwrap();
    write_large(&mut client);
    is_flat("all is written");
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(read_some(&mut client, LARGE / 2), LARGE / 2);
    is_flat("half is read");
    assert_eq!(read_some(&mut client, LARGE / 2), LARGE / 2);
    assert_eq!(serving.join().unwrap(), LARGE);
}
