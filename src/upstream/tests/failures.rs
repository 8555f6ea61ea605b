//! Answers that do not come or do not come whole: which error, and never the wrong side of "may have been sent".

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::peer::{Line, Seen};
use super::*;

async fn outcome_of(answer: &'static [u8]) -> SendError {
    let peer = Peer::answers_and_closes(answer).await;
    send(&client(&peer), post()).await.map(drop).unwrap_err()
}

#[tokio::test]
async fn a_close_after_the_request_was_read_may_have_run() {
    assert!(matches!(outcome_of(b"").await, SendError::MaybeSent { .. }));
}

#[tokio::test]
async fn a_close_seen_before_the_first_byte_is_proof() {
    let mut peer = Peer::plays(|line| async { line.close() }).await;
    let connection = client(&peer).checkout(Freshness::Fresh).await.unwrap();
    peer.sees(Seen::Connected).await;
    peer.sees(Seen::Closed).await;
    let error = connection.send(post()).await.map(drop).unwrap_err();
    assert!(matches!(error, SendError::NotSent { .. }), "{error:?}");
}

#[tokio::test]
async fn a_reset_after_the_request_was_read_may_have_run() {
    let peer = Peer::plays(|mut line| async {
        line.request().await;
        line.reset();
    })
    .await;
    let error = send(&client(&peer), post()).await.map(drop).unwrap_err();
    assert!(matches!(error, SendError::MaybeSent { .. }), "{error:?}");
}

#[tokio::test]
async fn half_a_head_may_have_run() {
    assert!(matches!(outcome_of(b"HTTP/1.1 200 OK\r\nContent-").await, SendError::MaybeSent { .. }));
}

#[tokio::test]
async fn heads_that_are_no_heads_are_bad() {
    for garbage in [
        &b"SSH-2.0-OpenSSH_9.2\r\n\r\n"[..],
        b"HTTP/1.1 2xx OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: one\r\n two\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: one\rSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: one\0two\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n: a\r\n\r\n",
    ] {
        let error = outcome_of(garbage).await;
        assert!(matches!(error, SendError::BadHead { .. }), "{garbage:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_head_of_a_mebibyte_or_of_101_fields_is_bad() {
    for (fields, length) in [(1, 1 << 20), (101, 1)] {
        let peer = Peer::plays(move |mut line| async move {
            line.request().await;
            let field = format!("x-a: {}\r\n", "a".repeat(length));
            let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", field.repeat(fields));
            // The gateway stops reading in the middle of it, so that the end may not be written.
            tokio::io::AsyncWriteExt::write_all(&mut line.stream, head.as_bytes()).await.ok();
        })
        .await;
        let error = send(&client(&peer), post()).await.map(drop).unwrap_err();
        assert!(matches!(error, SendError::BadHead { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn informational_answers_have_to_come_to_an_end() {
    let peer = Peer::plays(|mut line| async move {
        line.request().await;
        let interim = "HTTP/1.1 102 Processing\r\n\r\n".repeat(1000);
        while tokio::io::AsyncWriteExt::write_all(&mut line.stream, interim.as_bytes()).await.is_ok() {}
    })
    .await;
    let client = client(&peer);
    let error = send(&client, post()).await.map(drop).unwrap_err();
    assert!(matches!(error, SendError::BadHead { .. }), "{error:?}");
    assert_eq!(client.pool.len(), 0);
}

#[tokio::test]
async fn an_answer_with_something_behind_it_is_the_last_on_its_connection() {
    let two = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let peer = Peer::answers(two).await;
    let client = client(&peer);
    assert_eq!(text(send(&client, post()).await.unwrap()).await, "ok");
    assert_eq!(client.pool.len(), 0);
}

#[tokio::test]
async fn a_body_cut_short_says_so_and_its_connection_is_gone() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
    ] {
        let peer = Peer::answers_and_closes(answer).await;
        let client = client(&peer);
        let mut body = send(&client, post()).await.unwrap().into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
        assert!(matches!(body.frame().await.unwrap().unwrap_err(), BodyError::Cut(_)));
        assert_eq!(client.pool.len(), 0);
    }
}

#[tokio::test]
async fn giving_up_on_an_attempt_closes_its_connection() {
    let mut peer = Peer::plays(|mut line: Line| async move {
        line.request().await;
        line.request().await;
    })
    .await;
    let attempt = timeout(Duration::from_millis(50), send(&client(&peer), post())).await;
    assert!(attempt.is_err());
    peer.sees(Seen::Connected).await;
    peer.sees_request().await;
    peer.sees(Seen::Gone).await;
}

#[tokio::test]
async fn nobody_listening_is_refused() {
    let peer = Peer::answers(b"").await;
    let mut endpoint = peer.endpoint();
    endpoint.port = free_port().await;
    let client = client_of(endpoint, None, None, SETTINGS);
    let refused = client.checkout(Freshness::Reuse).await.err().unwrap();
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused:?}");
}

pub(super) async fn free_port() -> u16 {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

/// Takes so many bytes, then fails as a socket whose peer is gone does; nothing ever comes in.
struct Broken {
    takes: usize,
}

#[async_trait]
impl Connector for Broken {
    async fn connect(&self, _endpoint: &Endpoint) -> Result<Wire, ConnectError> {
        Ok(Wire::new(Broken { takes: self.takes }))
    }
}

impl AsyncRead for Broken {
    fn poll_read(self: Pin<&mut Self>, _cx: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Broken {
    fn poll_write(mut self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let taken = bytes.len().min(self.takes);
        self.takes -= taken;
        Poll::Ready(if taken > 0 { Ok(taken) } else { Err(io::ErrorKind::BrokenPipe.into()) })
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_write_that_took_nothing_is_proof_and_one_byte_is_doubt() {
    let endpoint = Endpoint { tls: false, host: "memory".to_owned(), port: 80 };
    let untouched = Client::new(Arc::new(Broken { takes: 0 }), endpoint.clone(), SETTINGS);
    let error = send(&untouched, post()).await.map(drop).unwrap_err();
    assert!(matches!(error, SendError::NotSent { .. }), "{error:?}");

    let touched = Client::new(Arc::new(Broken { takes: 1 }), endpoint, SETTINGS);
    let error = send(&touched, post()).await.map(drop).unwrap_err();
    assert!(matches!(error, SendError::MaybeSent { .. }), "{error:?}");
}
