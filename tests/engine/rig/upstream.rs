//! An upstream in memory. It plays one act for each request, and writes down what it saw and when.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use oncegate::upstream::{ConnectError, Connector, Endpoint, Wire};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

/// What the upstream does next. The first four are for the next connection, the others for the next request.
pub enum Act {
    Refuses,
    /// Takes the connection, and closes it before it reads a byte.
    ClosesUnread,
    /// The connection takes this long to come.
    ConnectsAfter(Duration),
    /// The task that connects breaks.
    Panics,
    Answers(Reply),
    /// Reads the request, and closes.
    Closes,
    /// Reads the request, and never says a word.
    IsSilent,
    /// Says what is not HTTP.
    Babbles,
    /// Answers 503 by the head of a request, and does not come to the end of the answer.
    Hurries,
    /// Sends what comes through the channel, byte for byte, and closes at its end.
    Streams(mpsc::UnboundedReceiver<Bytes>),
}

/// One answer.
pub struct Reply {
    status: u16,
    after: Duration,
    headers: Vec<(&'static str, String)>,
    body: String,
    cut: bool,
}

/// An answer at once, with a body that names its status.
pub fn answers(status: u16) -> Reply {
    Reply { status, after: Duration::ZERO, headers: Vec::new(), body: format!("says {status}"), cut: false }
}

impl Reply {
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn body(self, body: &str) -> Self {
        Self { body: body.to_owned(), ..self }
    }

    /// Closes before the body is whole.
    pub fn cut(self) -> Self {
        Self { cut: true, ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        let length = self.body.len() + if self.cut { 10 } else { 0 };
        let mut text = format!("HTTP/1.1 {} Scripted\r\ncontent-length: {length}\r\n", self.status);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        format!("{text}\r\n{}", self.body).into_bytes()
    }
}

impl From<Reply> for Act {
    fn from(reply: Reply) -> Self {
        Self::Answers(reply)
    }
}

/// An answer of gRPC that begins at once, and goes on with what is sent.
pub fn grpc_stream() -> (mpsc::UnboundedSender<Bytes>, Act) {
    streams("application/grpc")
}

/// Ends it well.
pub const GRPC_END: Bytes = Bytes::from_static(b"0\r\ngrpc-status: 0\r\n\r\n");

/// An answer with a body in chunks, which are sent.
pub fn streams(media_type: &str) -> (mpsc::UnboundedSender<Bytes>, Act) {
    let (pieces, coming) = mpsc::unbounded_channel();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ntransfer-encoding: chunked\r\n\r\n");
    pieces.send(head.into()).expect("its other end is here");
    (pieces, Act::Streams(coming))
}

/// What a request came to, as far as an upstream can tell whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It ran, or was turned down for good, and the answer says so.
    Final,
    /// It did not run, and the answer says so.
    Refused,
    /// Nobody can know from the outside.
    Open,
}

impl Act {
    fn fate(&self) -> Fate {
        match self {
            Self::Answers(Reply { status: 401 | 403 | 407 | 408 | 421 | 425 | 429 | 521 | 523, .. }) => Fate::Refused,
            Self::Answers(Reply { status: 200..=499 | 501 | 505 | 511, .. }) => Fate::Final,
            _ => Fate::Open,
        }
    }

    /// When the answer leaves.
    fn delay(&self) -> Duration {
        match self {
            Self::Answers(reply) => reply.after,
            _ => Duration::ZERO,
        }
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Since the story began.
    pub at: Duration,
    pub fate: Fate,
    /// When it is known, if ever.
    pub decided: Duration,
    /// Which connection it came on.
    pub connection: usize,
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        value(&self.headers, name)
    }

    pub fn key(&self) -> Option<&str> {
        self.header("idempotency-key")
    }

    /// Everything that has to be the same in every attempt of an operation.
    pub fn request(&self) -> (&str, Option<&str>, &Bytes) {
        (&self.line, self.key(), &self.body)
    }
}

/// The upstream of a story. After its script it answers 201.
#[derive(Clone)]
pub struct Upstream(Arc<Stage>);

struct Stage {
    start: Instant,
    script: Mutex<VecDeque<Act>>,
    seen: watch::Sender<Vec<Seen>>,
    connections: Mutex<usize>,
}

impl Upstream {
    pub fn playing(script: Vec<Act>) -> Self {
        Self(Arc::new(Stage {
            start: Instant::now(),
            script: Mutex::new(script.into()),
            seen: watch::Sender::new(Vec::new()),
            connections: Mutex::new(0),
        }))
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.0.seen.borrow().clone()
    }

    /// How many connections it has taken.
    pub fn connections(&self) -> usize {
        *self.0.connections.lock().unwrap()
    }

    /// Returns when so many requests have come.
    pub async fn has_seen(&self, count: usize) {
        let mut seen = self.0.seen.subscribe();
        let enough = seen.wait_for(|seen| seen.len() >= count);
        timeout(Duration::from_secs(3600), enough).await.expect("the request came").expect("the upstream is there");
    }

    /// The next act, if it is one for a connection.
    fn at_the_door(&self) -> Option<Act> {
        let mut script = self.0.script.lock().unwrap();
        match script.front() {
            Some(Act::Refuses | Act::ClosesUnread | Act::ConnectsAfter(_) | Act::Panics) => script.pop_front(),
            _ => None,
        }
    }

    fn next_act(&self) -> Act {
        self.0.script.lock().unwrap().pop_front().unwrap_or_else(|| answers(201).into())
    }

    fn count_connection(&self) -> usize {
        let mut connections = self.0.connections.lock().unwrap();
        *connections += 1;
        *connections
    }

    async fn serve(self, mut line: DuplexStream, connection: usize) {
        let mut read = BytesMut::new();
        while let Some(head) = read_head(&mut line, &mut read).await {
            let act = self.next_act();
            let body = match act {
                Act::Hurries => Bytes::new(),
                _ => match read_body(&head, &mut line, &mut read).await {
                    Some(body) => body,
                    None => return,
                },
            };
            let at = self.0.start.elapsed();
            let (fate, decided) = (act.fate(), at + act.delay());
            let seen = Seen { at, fate, decided, connection, line: head.line, headers: head.headers, body };
            self.0.seen.send_modify(|all| all.push(seen));
            if play(act, &mut line).await.is_err() {
                return;
            }
        }
    }
}

#[async_trait]
impl Connector for Upstream {
    async fn connect(&self, _endpoint: &Endpoint) -> Result<Wire, ConnectError> {
        match self.at_the_door() {
            Some(Act::Refuses) => return Err(ConnectError::Io(io::ErrorKind::ConnectionRefused.into())),
            Some(Act::ClosesUnread) => {
                self.count_connection();
                return Ok(Wire::new(duplex(1).0));
            }
            Some(Act::Panics) => panic!("scripted"),
            Some(Act::ConnectsAfter(wait)) => sleep(wait).await,
            _ => {}
        }
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(self.clone().serve(theirs, self.count_connection()));
        Ok(Wire::new(ours))
    }
}

/// An error ends the connection.
async fn play(act: Act, line: &mut DuplexStream) -> io::Result<()> {
    match act {
        Act::Answers(reply) => {
            sleep(reply.after).await;
            line.write_all(&reply.bytes()).await?;
            if reply.cut { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
        }
        Act::IsSilent => {
            line.read_u8().await?;
            Ok(())
        }
        Act::Hurries => {
            line.write_all(b"HTTP/1.1 503 Scripted\r\ncontent-length: 10\r\n\r\n").await?;
            sleep(Duration::from_secs(60)).await;
            Ok(())
        }
        Act::Babbles => line.write_all(b"200 OK and all that\r\n\r\n").await,
        Act::Streams(mut pieces) => {
            while let Some(piece) = pieces.recv().await {
                line.write_all(&piece).await?;
            }
            Err(io::ErrorKind::UnexpectedEof.into())
        }
        Act::Closes | Act::Refuses | Act::ClosesUnread | Act::ConnectsAfter(_) | Act::Panics => {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

struct Head {
    line: String,
    headers: Vec<(String, String)>,
}

/// `None` when the gateway has closed.
async fn read_head(line: &mut DuplexStream, read: &mut BytesMut) -> Option<Head> {
    let head_length = loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if line.read_buf(read).await.unwrap_or(0) == 0 {
            return None;
        }
    };
    Some(parsed(&read.split_to(head_length)))
}

/// By its `Content-Length`.
async fn read_body(head: &Head, line: &mut DuplexStream, read: &mut BytesMut) -> Option<Bytes> {
    let length = value(&head.headers, "content-length").map_or(0, |length| length.parse().unwrap());
    while read.len() < length {
        if line.read_buf(read).await.unwrap_or(0) == 0 {
            return None;
        }
    }
    Some(read.split_to(length).freeze())
}

fn parsed(head: &[u8]) -> Head {
    let text = std::str::from_utf8(head).unwrap();
    let mut lines = text.trim_end().split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let headers = lines.map(|line| line.split_once(": ").unwrap());
    Head { line, headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() }
}

fn value<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}
