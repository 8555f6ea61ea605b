//! The reader's own service: answers each POST with the number of the charge.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Serves until the test ends, and tells where.
pub(crate) fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, connection) in (1..).zip(listener.incoming()) {
            // A gateway that is ended in mid-call is not this service's failure.
            connection.and_then(|stream| answer(stream, number)).unwrap_or_default();
        }
    });
    address
}

fn answer(stream: TcpStream, number: u32) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    let body = format!("{{\"id\": \"ch_{number}\"}}\n");
    let head = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nConnection: close\r\n";
    let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    reader.into_inner().write_all(answer.as_bytes())
}
