//! Which connections are used again, and what happens to those that died while nobody looked.

use tokio::sync::Notify;

use super::peer::Seen;
use super::*;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_connection_whose_answer_was_read_is_used_again() {
    let peer = Peer::answers(OK).await;
    let client = client(&peer);
    for (freshness, reused) in
        [(Freshness::Reuse, false), (Freshness::Reuse, true), (Freshness::Careful, true), (Freshness::Fresh, false)]
    {
        // Scripts run one after the other, so that a second connection is answered once the first is gone.
        let connection = client.checkout(freshness).await.unwrap();
        assert_eq!(connection.reused(), reused, "{freshness:?}");
        if !reused {
            client.pool.take(POOL_IDLE);
        }
        assert_eq!(text(connection.send(post()).await.unwrap()).await, "ok");
    }
}

/// Answers one request, then closes or resets on demand.
async fn peer_that_ends(on_demand: &Arc<Notify>, reset: bool) -> Peer {
    let on_demand = Arc::clone(on_demand);
    Peer::plays(move |mut line| {
        let on_demand = Arc::clone(&on_demand);
        async move {
            line.request().await;
            line.write(OK).await;
            on_demand.notified().await;
            if reset { line.reset() } else { line.close() }
        }
    })
    .await
}

#[tokio::test]
async fn a_pooled_connection_that_was_closed_is_not_given_out() {
    for reset in [false, true] {
        let now = Arc::new(Notify::new());
        let mut peer = peer_that_ends(&now, reset).await;
        let client = client(&peer);
        text(send(&client, post()).await.unwrap()).await;
        assert_eq!(client.pool.len(), 1);

        now.notify_one();
        while peer.seen.recv().await != Some(Seen::Closed) {}
        assert!(!client.checkout(Freshness::Careful).await.unwrap().reused());
    }
}

#[tokio::test]
async fn a_pooled_connection_that_dies_in_our_hands_was_provably_not_sent_on() {
    for reset in [false, true] {
        let now = Arc::new(Notify::new());
        let mut peer = peer_that_ends(&now, reset).await;
        let client = client(&peer);
        text(send(&client, post()).await.unwrap()).await;
        let connection = client.checkout(Freshness::Reuse).await.unwrap();
        assert!(connection.reused());

        now.notify_one();
        while peer.seen.recv().await != Some(Seen::Closed) {}
        let error = connection.send(post()).await.map(drop).unwrap_err();
        assert!(matches!(error, SendError::NotSent { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_streaming_body_survives_an_attempt_that_was_not_sent() {
    let now = Arc::new(Notify::new());
    let mut peer = peer_that_ends(&now, false).await;
    let client = client(&peer);
    text(send(&client, post()).await.unwrap()).await;
    let stale = client.checkout(Freshness::Reuse).await.unwrap();
    now.notify_one();
    while peer.seen.recv().await != Some(Seen::Closed) {}

    let body = SendBody::streaming(http_body_util::Full::new(Bytes::from_static(b"once")));
    let kept = body.clone();
    stale.send(post().map(|_| body)).await.map(drop).unwrap_err();
    assert!(!kept.is_taken());
    send(&client, post().map(|_| kept)).await.unwrap();
    peer.sees(Seen::Connected).await;
    assert!(peer.sees_request().await.ends_with("\r\n\r\nonce"));
}

#[tokio::test]
async fn bytes_that_nobody_asked_for_end_a_pooled_connection() {
    let now = Arc::new(Notify::new());
    let on_demand = Arc::clone(&now);
    let mut peer = Peer::plays(move |mut line| {
        let on_demand = Arc::clone(&on_demand);
        async move {
            line.request().await;
            line.write(OK).await;
            on_demand.notified().await;
            line.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await;
            line.request().await;
        }
    })
    .await;
    let client = client(&peer);
    text(send(&client, post()).await.unwrap()).await;
    now.notify_one();
    tokio::task::yield_now().await;
    assert!(!client.checkout(Freshness::Careful).await.unwrap().reused());
    peer.sees(Seen::Connected).await;
    peer.sees_request().await;
    peer.sees(Seen::Gone).await;
}

#[tokio::test]
async fn a_body_dropped_before_its_end_closes_and_a_discarded_one_does_not() {
    let peer = Peer::answers(OK).await;
    let client = client(&peer);
    drop(send(&client, post()).await.unwrap());
    assert_eq!(client.pool.len(), 0);

    assert!(send(&client, post()).await.unwrap().into_body().put_aside().await.is_some());
    assert_eq!(client.pool.len(), 1);
}

#[tokio::test]
async fn a_rest_too_long_to_discard_closes_the_connection() {
    const LONG: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 65537\r\n\r\n";
    let mut peer = Peer::answers(LONG).await;
    let client = client(&peer);
    assert_eq!(send(&client, post()).await.unwrap().into_body().put_aside().await, None);
    assert_eq!(client.pool.len(), 0);
    peer.sees(Seen::Connected).await;
    peer.sees_request().await;
    peer.sees(Seen::Gone).await;
}

#[tokio::test]
async fn an_answer_that_says_close_is_believed() {
    let peer = Peer::answers(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok").await;
    let client = client(&peer);
    assert_eq!(text(send(&client, post()).await.unwrap()).await, "ok");
    assert_eq!(client.pool.len(), 0);
}
