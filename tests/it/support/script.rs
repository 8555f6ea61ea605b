//! What a scripted service does to a call, what it says, and what it saw.

use std::io::{self, BufRead};
use std::time::{Duration, Instant};

use crate::support::client::{read_body, read_headers, read_line};

/// What happens to one call. All but a refusal (4xx) and `CloseUnread` have their effect.
#[derive(Clone)]
pub enum Step {
    Reply(Reply),
    /// Answered this much later.
    After(Duration, Reply),
    /// Answered on `release`.
    Held(Reply),
    /// Read, done, and the connection closed without a word.
    Close,
    /// On `release` the connection is closed without a word.
    HeldClose,
    /// A new connection is closed before a byte of it is read.
    CloseUnread,
    /// Answered with exactly these bytes; then the connection is closed.
    Raw(Vec<u8>),
}

/// An answer; `Content-Length` is added.
#[derive(Clone)]
pub struct Reply {
    status: u16,
    lines: Vec<String>,
    body: Vec<u8>,
}

impl Reply {
    pub fn new(status: u16) -> Self {
        Self { status, lines: Vec::new(), body: Vec::new() }
    }

    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    pub fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// What the service says of its own when a charge was made: another number for each.
    pub fn charge(number: usize) -> Self {
        let reply = Self::new(201).line(&format!("Location: /charges/ch_{number}"));
        reply.line("Content-Type: application/json").body(format!("{{\"id\": \"ch_{number}\"}}"))
    }

    /// It says that nothing was done.
    pub fn is_refusal(&self) -> bool {
        self.status / 100 == 4
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} Scripted\r\n", self.status);
        for line in &self.lines {
            head += &format!("{line}\r\n");
        }
        if self.status != 204 {
            head += &format!("Content-Length: {}\r\n", self.body.len());
        }
        [head.as_bytes(), b"\r\n", &self.body].concat()
    }
}

/// A call as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub at: Instant,
}

impl Seen {
    /// The only line of that name.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let first = lines.next().map(|(_, value)| value.as_str());
        assert!(lines.next().is_none(), "{name} came more than once: {self:?}");
        first
    }

    pub fn key(&self) -> Option<&str> {
        self.header("Idempotency-Key")
    }
}

/// Reads one call to its end.
pub fn read_call(reader: &mut impl BufRead) -> io::Result<Seen> {
    let line = read_line(reader)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (headers, mut body) = (read_headers(reader)?, Vec::new());
    let framed = headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("transfer-encoding"));
    if framed && !read_body(reader, &headers, &mut body) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Seen { method, target, headers, body, at: Instant::now() })
}
