//! Both ends of a connection, byte by byte: for what a client or a service says and sees in the middle of a message.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::support::PATIENCE;

const QUIET: Duration = Duration::from_millis(300);

/// One end of a connection.
pub struct Raw(pub TcpStream);

/// A service that does nothing by itself.
pub struct RawService(TcpListener);

impl RawService {
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        SockRef::from(&listener).set_read_timeout(Some(PATIENCE)).unwrap();
        Self(listener)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    /// The next connection, and all of the head of its first request.
    #[track_caller]
    pub fn takes(&self) -> (Raw, String) {
        let mut raw = Raw::of(self.0.accept().unwrap().0);
        let head = raw.until("\r\n\r\n");
        (raw, head)
    }
}

impl Raw {
    #[track_caller]
    pub fn connect(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).unwrap())
    }

    fn of(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    #[track_caller]
    pub fn says(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    /// One chunk of a body.
    #[track_caller]
    pub fn says_chunk(&mut self, text: &str) {
        self.says(format!("{:x}\r\n{text}\r\n", text.len()));
    }

    /// What comes up to and with `end`.
    #[track_caller]
    pub fn until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let mut byte = [0];
            let read = self.0.read(&mut byte).unwrap_or_else(|error| panic!("{error} after {}", show(&text)));
            assert_eq!(read, 1, "closed after {}", show(&text));
            text.push(byte[0]);
        }
        show(&text)
    }

    /// Nothing comes for a while that would be long for a byte on loopback.
    #[track_caller]
    pub fn sees_nothing(&mut self) {
        self.0.set_read_timeout(Some(QUIET)).unwrap();
        let mut byte = [0];
        let read = self.0.read(&mut byte);
        assert!(read.is_err(), "came: {byte:?}");
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    /// All that comes until the other side closes, and how it did.
    pub fn rest(&mut self) -> (Vec<u8>, io::Result<()>) {
        let mut bytes = Vec::new();
        let end = self.0.read_to_end(&mut bytes).map(|_| ());
        (bytes, end)
    }

    /// How long the other side stays.
    #[track_caller]
    pub fn stays(&mut self) -> Duration {
        let start = Instant::now();
        let (rest, end) = self.rest();
        let timed_out =
            end.is_err_and(|error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
        assert!(!timed_out, "still there after {}", show(&rest));
        start.elapsed()
    }

    /// Says no more, and listens on.
    pub fn ends(&self) {
        self.0.shutdown(Shutdown::Write).unwrap();
    }

    /// Leaves without a good-bye.
    pub fn resets(self) {
        SockRef::from(&self.0).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
