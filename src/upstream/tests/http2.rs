//! Upstreams that speak HTTP/2: what is shared, what is proven, and what a request that is given up leaves behind.

use std::sync::atomic::{AtomicUsize, Ordering};

use h2::server::{SendResponse, handshake};
use h2::{Reason, RecvStream};
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::peer::{Line, Seen, read_request};
use super::*;
use crate::tls::authority::Authority;
use crate::tls::{Identity, client_config, server_config};

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS_FRAME: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const LONG: Duration = Duration::from_secs(10);

fn over_http2(peer: &Peer) -> Client {
    client_of(peer.endpoint(), None, None, Settings { protocol: Protocol::Http2, ..SETTINGS })
}

pub(super) type Asked = (Request<RecvStream>, SendResponse<Bytes>);

/// A service whose requests the test answers one by one, and the number of its connections.
pub(super) async fn service(max_streams: u32) -> (Peer, mpsc::UnboundedReceiver<Asked>, Arc<AtomicUsize>) {
    let (ask, asked) = mpsc::unbounded_channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let peer = Peer::plays(move |line: Line| {
        let (ask, count) = (ask.clone(), Arc::clone(&count));
        async move {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve(line.stream, max_streams, ask));
        }
    })
    .await;
    (peer, asked, connections)
}

async fn serve(stream: TcpStream, max_streams: u32, ask: mpsc::UnboundedSender<Asked>) {
    let mut builder = h2::server::Builder::new();
    let mut connection = builder.max_concurrent_streams(max_streams).handshake(stream).await.unwrap();
    while let Some(Ok(asked)) = connection.accept().await {
        ask.send(asked).ok();
    }
}

pub(super) fn answer(mut asked: SendResponse<Bytes>, text: &'static str) {
    let response = Response::builder().status(201).body(()).unwrap();
    asked.send_response(response, false).unwrap().send_data(Bytes::from_static(text.as_bytes()), true).unwrap();
}

async fn read(mut body: RecvStream) -> Vec<u8> {
    let mut read = Vec::new();
    while let Some(Ok(piece)) = body.data().await {
        body.flow_control().release_capacity(piece.len()).unwrap();
        read.extend_from_slice(&piece);
    }
    read
}

/// A connection of HTTP/2 in raw frames.
struct Raw(TcpStream);

impl Raw {
    async fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat();
        self.0.write_all(&frame).await.ok();
    }

    /// Greets, answers settings and pings, and waits for the head of the next request; its stream.
    async fn request(&mut self) -> Option<u32> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.ok()?;
            if head == *b"PRI * HTT" {
                self.0.read_exact(&mut [0; 15]).await.ok()?;
                self.frame(SETTINGS_FRAME, 0, 0, &[]).await;
                continue;
            }
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            self.0.read_exact(&mut payload).await.ok()?;
            match (head[3], head[4]) {
                (SETTINGS_FRAME, 0) => self.frame(SETTINGS_FRAME, ACK, 0, &[]).await,
                (PING, 0) => self.frame(PING, ACK, 0, &payload).await,
                (HEADERS, _) => return Some(u32::from_be_bytes(head[5..].try_into().unwrap())),
                _ => {}
            }
        }
    }

    async fn go_away(&mut self, last: u32, reason: Reason) {
        let payload = [last.to_be_bytes(), u32::from(reason).to_be_bytes()].concat();
        self.frame(GOAWAY, 0, 0, &payload).await;
    }

    async fn reset(&mut self, stream: u32, reason: Reason) {
        self.frame(RST_STREAM, 0, stream, &u32::from(reason).to_be_bytes()).await;
    }
}

/// What an upstream does to a stream instead of answering.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Reset(Reason),
    /// Says goodbye to the streams below this many before it, and closes.
    GoAway(u32, Reason),
    Head(&'static [u8]),
    Close,
}

async fn outcome_of(end: Ends) -> SendError {
    let peer = Peer::plays(move |line: Line| async move {
        let mut raw = Raw(line.stream);
        while let Some(stream) = raw.request().await {
            match end {
                Ends::Reset(reason) => raw.reset(stream, reason).await,
                Ends::GoAway(before, reason) => return raw.go_away(stream - before, reason).await,
                Ends::Head(block) => raw.frame(HEADERS, 5, stream, block).await,
                Ends::Close => return,
            }
        }
    })
    .await;
    send(&over_http2(&peer), post()).await.map(drop).unwrap_err()
}

#[tokio::test]
async fn a_request_and_its_answer_come_whole() {
    let (peer, mut asked, _) = service(10).await;
    let client = over_http2(&peer);
    let sending = tokio::spawn(async move { send(&client, post()).await.unwrap() });
    let (request, mut respond) = asked.recv().await.unwrap();
    assert_eq!(request.uri(), "http://upstream/charges?a=%2F");
    assert_eq!((request.method(), request.version()), (&Method::POST, http::Version::HTTP_2));
    assert_eq!(request.headers().len(), 1, "{:?}", request.headers());
    assert_eq!(request.headers()["content-length"], "8");
    assert_eq!(read(request.into_body()).await, b"amount=1");
    let head = Response::builder().status(201).header("content-length", "4").body(()).unwrap();
    let mut body = respond.send_response(head, false).unwrap();
    body.send_data(Bytes::from_static(b"made"), false).unwrap();
    body.send_trailers(http::HeaderMap::from_iter([(http::HeaderName::from_static("x-end"), "1".parse().unwrap())]))
        .unwrap();
    let answer = sending.await.unwrap();
    assert_eq!((answer.status(), http_body::Body::size_hint(answer.body()).exact()), (StatusCode::CREATED, Some(4)));
    let whole = answer.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["x-end"], "1");
    assert_eq!(whole.to_bytes(), "made");
}

#[tokio::test]
async fn requests_share_a_connection_until_the_upstream_allows_no_more() {
    let (peer, mut asked, connections) = service(2).await;
    let client = over_http2(&peer);
    let mut sent = Vec::new();
    for expected in [1, 1, 2] {
        let client = client.clone();
        sent.push(tokio::spawn(async move { text(send(&client, post()).await.unwrap()).await }));
        let (request, respond) = asked.recv().await.unwrap();
        assert_eq!(connections.load(Ordering::Relaxed), expected);
        tokio::spawn(async move {
            read(request.into_body()).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            answer(respond, "ok");
        });
    }
    for sent in sent {
        assert_eq!(sent.await.unwrap(), "ok");
    }
}

#[tokio::test]
async fn those_who_come_together_wait_for_one_connection() {
    let (peer, mut asked, connections) = service(100).await;
    let client = over_http2(&peer);
    let all = (0..50).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { text(send(&client, post()).await.unwrap()).await })
    });
    let all: Vec<_> = all.collect();
    for _ in 0..50 {
        answer(asked.recv().await.unwrap().1, "ok");
    }
    for one in all {
        assert_eq!(one.await.unwrap(), "ok");
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_refused_stream_and_a_goodbye_that_does_not_reach_it_are_proof() {
    for end in [
        Ends::Reset(Reason::REFUSED_STREAM),
        Ends::GoAway(1, Reason::NO_ERROR),
        Ends::GoAway(1, Reason::ENHANCE_YOUR_CALM),
    ] {
        let error = outcome_of(end).await;
        assert!(matches!(error, SendError::Refused { .. }), "{end:?}: {error:?}");
    }
}

#[tokio::test]
async fn every_other_end_of_a_stream_is_doubt() {
    let reasons = [Reason::CANCEL, Reason::INTERNAL_ERROR, Reason::NO_ERROR, Reason::ENHANCE_YOUR_CALM];
    let ends = reasons.into_iter().flat_map(|reason| [Ends::Reset(reason), Ends::GoAway(0, reason)]);
    for end in ends.chain([Ends::Close, Ends::GoAway(0, Reason::REFUSED_STREAM)]) {
        let error = outcome_of(end).await;
        assert!(matches!(error, SendError::MaybeSent { .. }), "{end:?}: {error:?}");
    }
}

#[tokio::test]
async fn heads_that_are_no_heads_are_bad() {
    for block in [&b"\x88\x00\x0aconnection\x05close"[..], b"\x00\x07:status\x03abc", b"\xff\xff\xff"] {
        let error = outcome_of(Ends::Head(block)).await;
        assert!(matches!(error, SendError::BadHead { .. }), "{block:?}: {error:?}");
    }
}

#[tokio::test]
async fn whoever_is_sent_away_leaves_and_the_others_finish() {
    let (steps, asked) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let (step, ask) = (Arc::clone(&steps), Arc::clone(&asked));
    let mut peer = Peer::plays(move |line: Line| {
        let (step, ask) = (Arc::clone(&step), Arc::clone(&ask));
        async move {
            let mut connection = handshake(line.stream).await.unwrap();
            let (_, respond) = connection.accept().await.unwrap().unwrap();
            ask.notify_one();
            step.acquire().await.unwrap().forget();
            connection.graceful_shutdown();
            tokio::spawn(async move { while connection.accept().await.is_some() {} });
            step.acquire().await.unwrap().forget();
            answer(respond, "late");
        }
    })
    .await;
    let client = over_http2(&peer);
    let first = client.clone();
    let first = tokio::spawn(async move { text(send(&first, post()).await.unwrap()).await });
    peer.sees(Seen::Connected).await;
    asked.notified().await;
    steps.add_permits(1);
    while client.shared.slot(None).is_some() {
        tokio::task::yield_now().await;
    }
    steps.add_permits(1);
    assert_eq!(first.await.unwrap(), "late");
    drop(client.checkout(Freshness::Reuse).await);
    peer.sees(Seen::Connected).await;
}

#[tokio::test]
async fn a_connection_that_ended_unseen_is_proof() {
    let peer = Peer::plays(|line: Line| async move {
        let mut raw = Raw(line.stream);
        timeout(Duration::from_millis(200), raw.request()).await.ok();
    })
    .await;
    let connection = over_http2(&peer).checkout(Freshness::Fresh).await.unwrap();
    // Nobody polls sockets meanwhile, so that the end is known to the kernel only.
    std::thread::sleep(Duration::from_millis(20));
    tokio::time::sleep(Duration::from_millis(400)).await;
    let error = connection.send(post()).await.map(drop).unwrap_err();
    assert!(matches!(error, SendError::NotSent { .. }), "{error:?}");
}

#[tokio::test]
async fn an_upstream_that_does_not_speak_it_gets_nothing() {
    let mut peer = Peer::answers(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
    let client = over_http2(&peer);
    let error = client.checkout(Freshness::Reuse).await.err().unwrap();
    assert!(matches!(error, ConnectError::Http2(_)), "{error:?}");
    peer.sees(Seen::Connected).await;
    assert!(peer.sees_request().await.starts_with("PRI * HTTP/2.0\r\n\r\n"));
}

#[tokio::test]
async fn giving_up_resets_the_stream_and_nothing_else() {
    let (peer, mut asked, connections) = service(10).await;
    let client = over_http2(&peer);
    assert!(timeout(Duration::from_millis(100), send(&client, post())).await.is_err());
    let (_given_up, mut respond) = asked.recv().await.unwrap();
    let reason = std::future::poll_fn(|cx| respond.poll_reset(cx));
    assert_eq!(timeout(LONG, reason).await.unwrap().unwrap(), Reason::CANCEL);

    let other = client.clone();
    let other = tokio::spawn(async move { send(&other, post()).await.unwrap() });
    let (_, mut respond) = asked.recv().await.unwrap();
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    drop(other.await.unwrap());
    let reason = std::future::poll_fn(|cx| body.poll_reset(cx));
    assert_eq!(timeout(LONG, reason).await.unwrap().unwrap(), Reason::CANCEL);
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_connection_that_went_silent_is_left() {
    let mut peer = Peer::plays(|line: Line| async move {
        tokio::spawn(async move {
            let mut raw = Raw(line.stream);
            raw.request().await;
            // Open, and nobody reads or writes any more.
            std::future::pending::<()>().await;
        });
    })
    .await;
    let client = over_http2(&peer);
    for _ in 0..2 {
        assert!(timeout(2 * CAREFUL_IDLE, send(&client, post())).await.is_err());
        peer.sees(Seen::Connected).await;
    }
    assert!(client.shared.slot(None).is_none());
}

#[tokio::test]
async fn a_body_cut_short_says_so() {
    let (peer, mut asked, _) = service(10).await;
    let client = over_http2(&peer);
    for reason in [Reason::NO_ERROR, Reason::CANCEL, Reason::REFUSED_STREAM] {
        let sender = client.clone();
        let sent = tokio::spawn(async move { send(&sender, post()).await.unwrap().into_body() });
        let (_, mut respond) = asked.recv().await.unwrap();
        let mut body = respond.send_response(Response::new(()), false).unwrap();
        body.send_data(Bytes::from_static(b"half"), false).unwrap();
        let mut received = sent.await.unwrap();
        assert_eq!(received.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
        body.send_reset(reason);
        assert!(matches!(received.frame().await, Some(Err(BodyError::Cut(_)))), "{reason:?}");
    }
}

#[tokio::test]
async fn an_answer_that_nobody_reads_holds_up_no_other() {
    let (peer, mut asked, _) = service(10).await;
    let client = over_http2(&peer);
    let ask = |client: Client| tokio::spawn(async move { send(&client, post()).await.unwrap() });
    let slow = ask(client.clone());
    let (_, mut respond) = asked.recv().await.unwrap();
    let mut endless = respond.send_response(Response::new(()), false).unwrap();
    let unread = slow.await.unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    tokio::spawn(async move {
        loop {
            endless.reserve_capacity(1 << 14);
            let Some(Ok(room)) = std::future::poll_fn(|cx| endless.poll_capacity(cx)).await else { break };
            counted.fetch_add(room, Ordering::Relaxed);
            endless.send_data(Bytes::from(vec![0; room]), false).unwrap();
        }
    });
    for _ in 0..20 {
        let other = ask(client.clone());
        answer(asked.recv().await.unwrap().1, "ok");
        assert_eq!(text(other.await.unwrap()).await, "ok");
    }
    assert!(sent.load(Ordering::Relaxed) <= 256 << 10);
    drop(unread);
}

#[tokio::test]
async fn both_may_speak_at_once() {
    let (peer, mut asked, _) = service(10).await;
    let client = over_http2(&peer);
    let (pieces, body) = mpsc::unbounded_channel::<Bytes>();
    let request = Request::post("/").header("host", "upstream").body(SendBody::streaming(Pieces(body))).unwrap();
    let sent = tokio::spawn(async move { send(&client, request).await.unwrap() });
    let (request, mut respond) = asked.recv().await.unwrap();
    let mut down = respond.send_response(Response::new(()), false).unwrap();
    let received = sent.await.unwrap();
    // Nobody reads the answer, and the upload goes on.
    let mut up = request.into_body();
    for piece in ["one", "two"] {
        pieces.send(Bytes::from_static(piece.as_bytes())).unwrap();
        assert_eq!(timeout(LONG, up.data()).await.unwrap().unwrap().unwrap(), piece);
    }
    drop(pieces);
    assert_eq!(read(up).await, b"");
    down.send_data(Bytes::from_static(b"done"), true).unwrap();
    assert_eq!(text(received).await, "done");
}

struct Pieces(mpsc::UnboundedReceiver<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<std::io::Result<http_body::Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(http_body::Frame::data(piece))))
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_careful_call_asks_first() {
    let (peer, mut asked, connections) = service(10).await;
    let settings = Settings { protocol: Protocol::Http2, pool_idle: Duration::from_secs(3), ..SETTINGS };
    let client = client_of(peer.endpoint(), None, None, settings);
    for (pause, expected) in [(0, 1), (1100, 1), (4000, 2)] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let connection = client.checkout(Freshness::Careful).await.unwrap();
        let sent = tokio::spawn(async move { text(connection.send(post()).await.unwrap()).await });
        answer(asked.recv().await.unwrap().1, "ok");
        assert_eq!((sent.await.unwrap().as_str(), connections.load(Ordering::Relaxed)), ("ok", expected));
    }
}

/// A client of an upstream behind TLS that offers these protocols.
async fn behind_tls(offer: &[&str], protocol: Protocol) -> Client {
    let authority = Authority::made();
    let (certificates, key) = authority.issue("localhost");
    let identity = Identity { certificates: certificates.as_bytes(), key: key.as_bytes() };
    let acceptor = TlsAcceptor::from(server_config(identity, None, offer).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint { tls: true, host: "localhost".to_owned(), port: listener.local_addr().unwrap().port() };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = acceptor.accept(stream).await.unwrap();
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                let mut connection = handshake(stream).await.unwrap();
                while let Some(Ok((_, respond))) = connection.accept().await {
                    answer(respond, "h2");
                }
            } else if read_request(&mut stream).await.is_some() {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhttp/1.1").await.unwrap();
            }
        }
    });
    let config = client_config(Some(authority.pem().as_bytes()), None, protocol.offer()).unwrap();
    client_of(endpoint, Some(config), None, Settings { protocol, ..SETTINGS })
}

#[tokio::test]
async fn alpn_decides() {
    for (offer, protocol, spoken) in [
        (&["h2", "http/1.1"][..], Protocol::Auto, "h2"),
        (&["h2", "http/1.1"], Protocol::Http1, "http/1.1"),
        (&["h2", "http/1.1"], Protocol::Http2, "h2"),
        (&["http/1.1"], Protocol::Auto, "http/1.1"),
        (&[], Protocol::Auto, "http/1.1"),
    ] {
        let client = behind_tls(offer, protocol).await;
        assert_eq!(text(send(&client, post()).await.unwrap()).await, spoken, "{offer:?} {protocol:?}");
    }
    let error = behind_tls(&[], Protocol::Http2).await.checkout(Freshness::Reuse).await.err().unwrap();
    assert!(matches!(error, ConnectError::NoHttp2 { .. }), "{error:?}");
}

#[tokio::test]
async fn only_http_1_can_be_left_for_another_protocol() {
    for (protocol, spoken) in [(Protocol::Auto, "http/1.1"), (Protocol::Http1, "http/1.1"), (Protocol::Http2, "h2")] {
        let client = behind_tls(&["h2", "http/1.1"], protocol).await;
        let mut asked = request(Method::GET, "");
        set_upgrade(asked.headers_mut(), "websocket".parse().unwrap());
        let connection = client.checkout_to_switch().await.unwrap();
        let Reply::Answer(answer) = connection.switch(asked).await.unwrap() else { panic!("nobody switches here") };
        assert_eq!(text(answer).await, spoken);
    }
}
