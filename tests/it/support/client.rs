//! A raw HTTP/1.1 client: it sends what it is told byte for byte, shows what came, and may hang up in between.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use socket2::SockRef;

use crate::support::PATIENCE;

/// A request in the making.
#[derive(Clone)]
pub struct Call {
    address: SocketAddr,
    method: String,
    target: String,
    /// Header lines without their ends, as they go out.
    lines: Vec<Vec<u8>>,
    body: Option<Vec<u8>>,
}

impl Call {
    pub fn new(address: SocketAddr, method: &str, target: &str) -> Self {
        let lines = vec![format!("Host: {address}").into_bytes()];
        Self { address, method: method.to_owned(), target: target.to_owned(), lines, body: None }
    }

    pub fn key(self, key: impl AsRef<[u8]>) -> Self {
        self.header("Idempotency-Key", key)
    }

    pub fn session(self, session: &str, step: &str) -> Self {
        self.header("X-Session-Id", session).header("X-Step-Index", step)
    }

    /// One more line; a name may come twice, and a value may be any bytes.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.lines.push([name.as_bytes(), b": ", value.as_ref()].concat());
        self
    }

    pub fn json(self, body: impl Into<Vec<u8>>) -> Self {
        self.body("application/json", body)
    }

    pub fn body(mut self, media_type: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self.header("Content-Type", media_type)
    }

    /// To the answer, on a connection of its own.
    #[track_caller]
    pub fn send(&self) -> Answer {
        self.begin().answer()
    }

    /// As `send`, by somebody who expects no answer: from a gateway that may be dead, or stand still for `patience`.
    ///
    /// # Errors
    /// There was no whole answer.
    pub fn try_send(&self, patience: Duration) -> io::Result<Answer> {
        let stream = TcpStream::connect_timeout(&self.address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        let mut connection = Connection { reader: BufReader::new(stream) };
        connection.write(self)?;
        let answer = connection.read(self.method == "HEAD")?;
        if answer.is_whole { Ok(answer) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// The request is out, and nobody reads the answer yet.
    #[track_caller]
    pub fn begin(&self) -> Pending {
        let mut connection = Connection::open(self.address);
        connection.write(self).unwrap();
        Pending { connection, headless: self.method == "HEAD" }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        let length = self.body.as_ref().map(|body| format!("Content-Length: {}", body.len()).into_bytes());
        for line in self.lines.iter().chain(&length) {
            bytes.extend([line.as_slice(), b"\r\n"].concat());
        }
        bytes.extend(b"\r\n");
        bytes.extend(self.body.iter().flatten());
        bytes
    }
}

/// Everything that comes back for `bytes` until the gateway closes the connection.
#[track_caller]
pub fn tell(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&answer)));
    answer
}

/// A request whose answer is still to be read.
pub struct Pending {
    connection: Connection,
    headless: bool,
}

impl Pending {
    #[track_caller]
    pub fn answer(mut self) -> Answer {
        self.connection.read(self.headless).unwrap()
    }

    /// Leaves without a good-bye: the connection is reset.
    pub fn hang_up(self) {
        let stream = self.connection.reader.into_inner();
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// A connection for one request after another.
pub struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    #[track_caller]
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    #[track_caller]
    pub fn send(&mut self, call: &Call) -> Answer {
        self.write(call).unwrap();
        self.read(call.method == "HEAD").unwrap()
    }

    fn write(&mut self, call: &Call) -> io::Result<()> {
        self.reader.get_mut().write_all(&call.bytes())
    }

    fn read(&mut self, headless: bool) -> io::Result<Answer> {
        let status_line = read_line(&mut self.reader)?;
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        let headers = read_headers(&mut self.reader)?;
        let mut answer = Answer { status, headers, body: Vec::new(), is_whole: true };
        if !headless && !matches!(status, 204 | 304) {
            answer.is_whole = read_body(&mut self.reader, &answer.headers, &mut answer.body);
        }
        Ok(answer)
    }
}

/// What came, as it came.
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The body did not break off.
    pub is_whole: bool,
}

impl Answer {
    /// The only line of that name.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.lines(name);
        assert!(lines.len() <= 1, "{name} came more than once: {self:?}");
        lines.first().copied()
    }

    /// All lines of that name, in order.
    pub fn lines(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub fn is_replay(&self) -> bool {
        self.header("Idempotent-Replayed") == Some("true")
    }

    pub fn operation(&self) -> &str {
        self.header("Oncegate-Operation").unwrap_or_else(|| panic!("names no operation: {self:?}"))
    }

    pub fn execution(&self) -> Option<&str> {
        self.header("Oncegate-Execution")
    }

    /// In whole seconds, as every client understands it.
    pub fn retry_after(&self) -> Option<u64> {
        self.header("Retry-After").map(|seconds| seconds.parse().unwrap())
    }

    /// An answer of the upstream, with this status and whole.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert!(self.is_whole && self.status == status, "{status} expected: {self:?}");
        assert_eq!(self.header("Oncegate-Source"), Some("upstream"), "{self:?}");
        self
    }

    /// A problem of the gateway's own, in the form that every problem has.
    #[track_caller]
    pub fn expect_problem(self, status: u16, code: &str) -> Self {
        assert!(self.is_whole && self.status == status, "{status} {code} expected: {self:?}");
        assert_eq!(self.header("Content-Type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.header("Cache-Control"), Some("no-store"), "{self:?}");
        assert_eq!(self.header("Oncegate-Source"), Some("gateway"), "{self:?}");
        let told = self.json();
        assert_eq!((&told["code"], &told["status"]), (&code.into(), &status.into()), "{self:?}");
        assert_eq!(told["type"], format!("/.oncegate/problems/{code}"), "{self:?}");
        assert_eq!((&told["error"]["type"], &told["error"]["code"]), (&"oncegate".into(), &code.into()), "{self:?}");
        let (advice, message) = (told["advice"].as_str().unwrap(), told["error"]["message"].as_str().unwrap());
        assert!(!advice.is_empty() && message.contains(advice), "{self:?}");
        self
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (whole: {})", self.status, self.is_whole)?;
        self.headers.iter().try_for_each(|(name, value)| writeln!(f, "{name}: {value}"))?;
        write!(f, "{}", String::from_utf8_lossy(&self.body))
    }
}

/// Header lines up to the empty one.
pub fn read_headers(reader: &mut impl BufRead) -> io::Result<Vec<(String, String)>> {
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader)?;
        let Some((name, value)) = line.split_once(':') else { return Ok(headers) };
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
}

/// A line without its end.
pub fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\r\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.truncate(line.len() - 2);
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Reads a body as its head frames it; false if it breaks off.
pub fn read_body(reader: &mut impl BufRead, headers: &[(String, String)], body: &mut Vec<u8>) -> bool {
    let value = |name: &str| headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    match (value("transfer-encoding"), value("content-length")) {
        (Some(_), _) => read_chunks(reader, body).is_ok(),
        (None, Some(length)) => {
            let length: u64 = length.parse().unwrap();
            reader.take(length).read_to_end(body).is_ok() && body.len() as u64 == length
        }
        (None, None) => reader.read_to_end(body).is_ok(),
    }
}

fn read_chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let size = usize::from_str_radix(&read_line(reader)?, 16).map_err(io::Error::other)?;
        let mut chunk = vec![0; size];
        reader.read_exact(&mut chunk)?;
        read_line(reader)?;
        body.extend(&chunk);
        if size == 0 {
            return Ok(());
        }
    }
}
