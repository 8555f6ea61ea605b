//! An upstream on a loopback socket that plays a script for each connection.

use std::future::Future;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::upstream::Endpoint;

pub(super) struct Peer {
    port: u16,
    pub(super) seen: mpsc::UnboundedReceiver<Seen>,
}

/// What the peer tells the test, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Connected,
    Request(String),
    /// Said by the script after it closed its socket.
    Closed,
    /// The gateway closed.
    Gone,
}

/// The peer's end of one connection.
pub(super) struct Line {
    pub(super) stream: TcpStream,
    told: mpsc::UnboundedSender<Seen>,
}

impl Peer {
    /// Runs `script` for each connection, one after the other.
    pub(super) async fn plays<F, Fut>(script: F) -> Self
    where
        F: Fn(Line) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (told, seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                told.send(Seen::Connected).ok();
                script(Line { stream, told: told.clone() }).await;
            }
        });
        Self { port, seen }
    }

    /// Answers every request with the same bytes and closes when the gateway does.
    pub(super) async fn answers(bytes: &'static [u8]) -> Self {
        Self::plays(move |mut line| async move {
            while line.request().await {
                line.write(bytes).await;
            }
        })
        .await
    }

    /// Answers one request with these bytes and closes.
    pub(super) async fn answers_and_closes(bytes: &'static [u8]) -> Self {
        Self::plays(move |mut line| async move {
            line.request().await;
            line.write(bytes).await;
            line.close();
        })
        .await
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint { tls: false, host: "127.0.0.1".to_owned(), port: self.port }
    }

    pub(super) async fn sees(&mut self, expected: Seen) {
        assert_eq!(self.seen.recv().await, Some(expected));
    }

    /// The next request, as text.
    pub(super) async fn sees_request(&mut self) -> String {
        match self.seen.recv().await {
            Some(Seen::Request(request)) => request,
            other => panic!("no request but {other:?}"),
        }
    }
}

impl Line {
    /// Reads one whole request; false if the gateway closed instead.
    pub(super) async fn request(&mut self) -> bool {
        let request = read_request(&mut self.stream).await;
        let more = request.is_some();
        self.told.send(request.map_or(Seen::Gone, Seen::Request)).ok();
        more
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        use tokio::io::AsyncWriteExt;
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(super) fn close(self) {
        drop(self.stream);
        self.told.send(Seen::Closed).ok();
    }

    /// Closes with a reset.
    pub(super) fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        self.close();
    }
}

/// One request with a `Content-Length`, a chunked body, or none.
pub(super) async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let chunked = head.contains("transfer-encoding: chunked");
            let ended = if chunked { body.ends_with("0\r\n\r\n") } else { true };
            if ended && body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(text);
            }
        }
        if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}
