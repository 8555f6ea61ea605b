//! The timers of a connection, on a paused clock and an upstream in memory.

use std::future::pending;

use async_trait::async_trait;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::peer::read_request;
use super::*;

/// Hands the other end of each connection to the test.
struct Memory(mpsc::UnboundedSender<DuplexStream>);

#[async_trait]
impl Connector for Memory {
    async fn connect(&self, _endpoint: &Endpoint) -> Result<Wire, ConnectError> {
        let (ours, theirs) = duplex(1 << 16);
        self.0.send(theirs).ok();
        Ok(Wire::new(ours))
    }
}

struct Stuck;

#[async_trait]
impl Connector for Stuck {
    async fn connect(&self, _endpoint: &Endpoint) -> Result<Wire, ConnectError> {
        pending().await
    }
}

fn endpoint() -> Endpoint {
    Endpoint { tls: false, host: "memory".to_owned(), port: 80 }
}

fn in_memory() -> (Client, mpsc::UnboundedReceiver<DuplexStream>) {
    let (opened, peers) = mpsc::unbounded_channel();
    (Client::new(Arc::new(Memory(opened)), endpoint(), SETTINGS), peers)
}

/// One answered request; returns the upstream's end of its connection.
async fn answered(client: &Client, peers: &mut mpsc::UnboundedReceiver<DuplexStream>) -> DuplexStream {
    answered_with("", client, peers).await
}

/// The same with a header line more.
async fn answered_with(line: &str, client: &Client, peers: &mut mpsc::UnboundedReceiver<DuplexStream>) -> DuplexStream {
    let upstream = async {
        let mut peer = peers.recv().await.unwrap();
        read_request(&mut peer).await.unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\n{line}Content-Length: 2\r\n\r\nok");
        peer.write_all(answer.as_bytes()).await.unwrap();
        peer
    };
    let caller = async { text(send(client, post()).await.unwrap()).await };
    let (peer, answer) = tokio::join!(upstream, caller);
    assert_eq!(answer, "ok");
    peer
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_come_is_given_up_after_connect_timeout() {
    let client = Client::new(Arc::new(Stuck), endpoint(), SETTINGS);
    let start = Instant::now();
    let error = client.checkout(Freshness::Reuse).await.err().unwrap();
    assert!(matches!(error, ConnectError::Timeout { after } if after == SETTINGS.connect_timeout));
    assert_eq!(start.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn silence_in_a_body_is_measured_from_its_last_byte() {
    let (client, mut peers) = in_memory();
    let upstream = async {
        let mut peer = peers.recv().await.unwrap();
        read_request(&mut peer).await.unwrap();
        peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\none").await.unwrap();
        sleep(Duration::from_secs(59)).await;
        peer.write_all(b"two").await.unwrap();
        peer
    };
    let caller = async {
        let mut body = send(&client, post()).await.unwrap().into_body();
        for part in ["one", "two"] {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), part);
        }
        let last = Instant::now();
        let error = body.frame().await.unwrap().unwrap_err();
        assert!(matches!(error, BodyError::Idle { limit } if limit == SETTINGS.idle_timeout));
        assert_eq!(last.elapsed().as_secs(), 60);
    };
    let (mut peer, ()) = tokio::join!(upstream, caller);
    assert_eq!(read_request(&mut peer).await, None);
    assert_eq!(client.pool.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_not_held_against_the_upstream() {
    let (client, mut peers) = in_memory();
    let upstream = async {
        let mut peer = peers.recv().await.unwrap();
        read_request(&mut peer).await.unwrap();
        peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\none").await.unwrap();
        sleep(Duration::from_secs(130)).await;
        peer.write_all(b"two").await.unwrap();
    };
    let caller = async {
        let mut body = send(&client, post()).await.unwrap().into_body();
        body.frame().await.unwrap().unwrap();
        sleep(Duration::from_secs(100)).await;
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
    };
    tokio::join!(upstream, caller);
}

#[tokio::test(start_paused = true)]
async fn a_rest_that_does_not_come_is_not_waited_for() {
    let (client, mut peers) = in_memory();
    let upstream = async {
        let mut peer = peers.recv().await.unwrap();
        read_request(&mut peer).await.unwrap();
        peer.write_all(b"HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\none").await.unwrap();
        peer
    };
    let (_peer, response) = tokio::join!(upstream, send(&client, post()));
    let start = Instant::now();
    assert_eq!(response.unwrap().into_body().put_aside().await, None);
    assert_eq!(start.elapsed().as_millis(), 100);
    assert_eq!(client.pool.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn care_wants_a_connection_that_was_used_a_moment_ago() {
    let (client, mut peers) = in_memory();
    let _peer = answered(&client, &mut peers).await;
    sleep(CAREFUL_IDLE).await;
    assert!(!client.checkout(Freshness::Careful).await.unwrap().reused());
    assert!(client.checkout(Freshness::Reuse).await.unwrap().reused());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nobody_came_for_is_closed_without_being_asked() {
    let (client, mut peers) = in_memory();
    let mut peer = answered(&client, &mut peers).await;
    let start = Instant::now();
    assert_eq!(read_request(&mut peer).await, None);
    assert_eq!(start.elapsed(), POOL_IDLE);
    assert_eq!(client.pool.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unused_connection_is_too_old_at_pool_idle_even_before_the_sweep() {
    let (client, mut peers) = in_memory();
    let early = answered(&client, &mut peers).await;
    sleep(POOL_IDLE / 2).await;
    let _late = answered_again(&client, early).await;
    sleep(POOL_IDLE / 2).await;
    assert_eq!(client.pool.len(), 1);
    sleep(POOL_IDLE / 2).await;
    assert!(!client.checkout(Freshness::Reuse).await.unwrap().reused());
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_not_kept_for_as_long_as_the_upstream_says_that_it_keeps_it() {
    for (stated, milliseconds) in [
        ("", 4000),
        ("Keep-Alive: timeout=60\r\n", 4000),
        ("Keep-Alive: max=7, Timeout=2\r\n", 1600),
        ("Keep-Alive: timeout=1\r\n", 800),
        ("Keep-Alive: timeout=0\r\n", 0),
        ("Keep-Alive: timeout=soon\r\n", 4000),
    ] {
        for (pause, reused) in [(milliseconds - 1, true), (milliseconds, false)] {
            let Ok(pause) = u64::try_from(pause) else { continue };
            let (client, mut peers) = in_memory();
            let _peer = answered_with(stated, &client, &mut peers).await;
            sleep(Duration::from_millis(pause)).await;
            let connection = client.checkout(Freshness::Reuse).await.unwrap();
            assert_eq!(connection.reused(), reused, "{stated:?} after {pause} ms");
        }
    }
}

async fn answered_again(client: &Client, mut peer: DuplexStream) -> DuplexStream {
    let upstream = async {
        read_request(&mut peer).await.unwrap();
        peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        peer
    };
    let connection = client.checkout(Freshness::Reuse).await.unwrap();
    assert!(connection.reused());
    let (peer, response) = tokio::join!(upstream, connection.send(post()));
    assert_eq!(text(response.unwrap()).await, "ok");
    peer
}

#[tokio::test(start_paused = true)]
async fn no_more_than_max_idle_connections_are_kept() {
    let (client, mut peers) = in_memory();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(client.checkout(Freshness::Fresh).await.unwrap());
    }
    let mut ends = Vec::new();
    for connection in held {
        let upstream = async {
            let mut peer = peers.recv().await.unwrap();
            read_request(&mut peer).await.unwrap();
            peer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            peer
        };
        let (peer, response) = tokio::join!(upstream, connection.send(post()));
        response.unwrap();
        ends.push(peer);
    }
    assert_eq!(client.pool.len(), SETTINGS.max_idle);
}
