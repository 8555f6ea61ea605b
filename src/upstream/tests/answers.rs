//! Answers that come whole, in all the ways HTTP/1 has for that, and what the upstream got.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame};

use super::peer::Seen;
use super::*;

#[tokio::test]
async fn target_headers_and_body_arrive_as_given_with_one_framing() {
    let mut peer = Peer::answers(b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\nX-B: \xe9\r\n\r\ndone").await;
    let mut request = post();
    request.headers_mut().insert("transfer-encoding", "gzip".parse().unwrap());
    request.headers_mut().insert("content-length", "99".parse().unwrap());
    request.headers_mut().insert("x-a", http::HeaderValue::from_bytes(b"caf\xe9").unwrap());

    let response = send(&client(&peer), request).await.unwrap();

    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["x-b"].as_bytes(), b"\xe9");
    assert_eq!(text(response).await, "done");
    peer.sees(Seen::Connected).await;
    let seen = peer.sees_request().await;
    assert!(seen.starts_with("POST /charges?a=%2F HTTP/1.1\r\n"), "{seen}");
    assert_eq!(seen.matches("content-length").count(), 1, "{seen}");
    assert!(seen.contains("content-length: 8\r\n") && seen.ends_with("\r\n\r\namount=1"), "{seen}");
    assert!(!seen.contains("transfer-encoding"), "{seen}");
}

#[tokio::test]
async fn only_methods_that_mean_a_body_say_that_theirs_is_empty() {
    let mut peer = Peer::answers(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let client = client(&peer);
    peer_sees_length(&client, &mut peer, request(Method::POST, ""), Some("0")).await;
    peer_sees_length(&client, &mut peer, request(Method::GET, ""), None).await;
    peer_sees_length(&client, &mut peer, request(Method::DELETE, ""), None).await;
    peer_sees_length(&client, &mut peer, request(Method::GET, "query"), Some("5")).await;
}

async fn peer_sees_length(client: &Client, peer: &mut Peer, request: Request<SendBody>, length: Option<&str>) {
    send(client, request).await.unwrap();
    let mut seen = peer.seen.recv().await;
    if seen == Some(Seen::Connected) {
        seen = peer.seen.recv().await;
    }
    let Some(Seen::Request(seen)) = seen else { panic!("{seen:?}") };
    let found = seen.lines().find_map(|line| line.strip_prefix("content-length: "));
    assert_eq!(found, length, "{seen}");
    assert!(!seen.contains("transfer-encoding"), "{seen}");
}

/// One frame, without telling how long it is.
struct Unsized(Option<Bytes>);

impl Body for Unsized {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[tokio::test]
async fn a_stream_of_unknown_length_is_chunked_whatever_the_method() {
    let mut peer = Peer::answers(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let body = SendBody::streaming(Unsized(Some(Bytes::from_static(b"part"))));
    let kept = body.clone();
    assert!(!kept.is_taken());

    send(&client(&peer), request(Method::GET, "").map(|_| body)).await.unwrap();

    peer.sees(Seen::Connected).await;
    let seen = peer.sees_request().await;
    assert!(seen.ends_with("\r\n\r\n4\r\npart\r\n0\r\n\r\n"), "{seen}");
    assert!(kept.is_taken());
}

#[tokio::test]
async fn informational_answers_are_skipped() {
    let early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let peer = Peer::answers(early).await;
    let response = send(&client(&peer), post()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("link"));
    assert_eq!(text(response).await, "ok");
}

#[tokio::test]
async fn an_upgrade_nobody_asked_for_is_an_answer_and_ends_the_connection() {
    let peer = Peer::answers(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n").await;
    let client = client(&peer);
    let response = send(&client, post()).await.unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(text(response).await, "");
    assert_eq!(client.pool.len(), 0);
}

#[tokio::test]
async fn answers_without_a_body_free_the_connection_at_once() {
    let bodiless: [(Method, &[u8]); 3] = [
        (Method::DELETE, b"HTTP/1.1 204 No Content\r\n\r\n"),
        (Method::GET, b"HTTP/1.1 304 Not Modified\r\nContent-Length: 900\r\n\r\n"),
        (Method::HEAD, b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"),
    ];
    for (method, answer) in bodiless {
        let peer = Peer::answers(answer).await;
        let client = client(&peer);
        let _response = send(&client, request(method, "")).await.unwrap();
        assert_eq!(client.pool.len(), 1);
    }
}

#[tokio::test]
async fn a_body_without_a_length_ends_with_the_connection() {
    for answer in [&b"HTTP/1.0 200 OK\r\n\r\nold"[..], b"HTTP/1.1 200 OK\r\n\r\nold"] {
        let peer = Peer::answers_and_closes(answer).await;
        let client = client(&peer);
        assert_eq!(text(send(&client, post()).await.unwrap()).await, "old");
        assert_eq!(client.pool.len(), 0);
    }
}

#[tokio::test]
async fn a_connection_that_speaks_http_1_0_is_not_used_again() {
    let peer = Peer::answers(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok").await;
    let client = client(&peer);
    assert_eq!(text(send(&client, post()).await.unwrap()).await, "ok");
    assert_eq!(client.pool.len(), 0);
}

#[tokio::test]
async fn trailers_pass_and_the_connection_is_free_with_them() {
    let answer =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n";
    let peer = Peer::answers(answer).await;
    let client = client(&peer);
    let mut body = send(&client, post()).await.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ok");
    let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["x-sum"], "7");
    assert_eq!(client.pool.len(), 1);
}
