//! HTTP/2 by prior knowledge: what a client may do at once, how it is bounded, and what it cannot do.

use h2::client::{SendRequest, handshake};
use h2::{Reason, RecvStream};

use super::*;

/// Longer than a busy machine is late.
const PATIENCE: Duration = Duration::from_secs(1);

const CHUNK: &[u8] = &[b'x'; 64 << 10];
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `GET / http`, all three from the static table, and `:authority: gw`.
const GET: &[u8] = b"\x82\x84\x86\x41\x02gw";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A frame as it came.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Client {
    /// Says that it speaks HTTP/2, with these settings.
    async fn greet(&mut self, settings: &[u8]) {
        self.send(PREFACE).await;
        self.send(frame(SETTINGS, 0, 0, settings)).await;
    }

    /// The next frame, or nothing once the gateway has closed.
    async fn frame(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        timeout(LONG, self.0.read_exact(&mut head)).await.expect("the connection stays open and silent").ok()?;
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number: u32, byte| number << 8 | u32::from(*byte));
        let mut payload = vec![0; number(&head[..3]) as usize];
        self.0.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind: head[3], stream: number(&head[5..]), payload })
    }

    /// The reason of the next frame of this kind, passing over others.
    async fn reason_of(&mut self, kind: u8) -> Option<Reason> {
        loop {
            let frame = self.frame().await?;
            if frame.kind == kind {
                let at = if kind == GOAWAY { 4 } else { 0 };
                return Some(u32::from_be_bytes(frame.payload[at..at + 4].try_into().unwrap()).into());
            }
        }
    }

    /// The reason for which the gateway ends the connection while `frames` keep coming.
    async fn flood(mut self, frames: impl Fn(u32) -> Vec<u8>) -> Option<Reason> {
        self.greet(&[]).await;
        for number in 0..20_000 {
            if self.0.write_all(&frames(number)).await.is_err() {
                break;
            }
        }
        self.reason_of(GOAWAY).await
    }
}

impl Gateway {
    /// A client that does everything right.
    async fn speak(&self) -> SendRequest<Bytes> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (client, connection) = handshake(stream).await.unwrap();
        tokio::spawn(connection);
        client.ready().await.unwrap()
    }
}

fn get(path: &str) -> Request<()> {
    Request::builder().uri(format!("http://gw{path}")).body(()).unwrap()
}

async fn text(mut body: RecvStream) -> Result<String, h2::Error> {
    let mut text = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len()).unwrap();
        text.extend_from_slice(&piece);
    }
    Ok(String::from_utf8(text).unwrap())
}

/// Status and body of the answer.
async fn ask(client: &mut SendRequest<Bytes>, request: Request<()>, body: &'static [u8]) -> (u16, String) {
    let (answer, mut upload) = client.send_request(request, body.is_empty()).unwrap();
    if !body.is_empty() {
        upload.send_data(Bytes::from_static(body), true).unwrap();
    }
    let answer = answer.await.unwrap();
    (answer.status().as_u16(), text(answer.into_body()).await.unwrap())
}

/// Nor is it looked at again and again.
#[tokio::test]
async fn a_preface_that_ends_half_way_is_not_waited_for() {
    let gateway = Gateway::with(Limits { header_timeout: LONG * 6, ..limits() }, 10, LONG);
    for (start, answer) in [(&PREFACE[..1], "none"), (&PREFACE[..23], "400")] {
        let mut client = gateway.connect().await;
        client.send(start).await;
        client.0.shutdown().await.unwrap();
        assert_eq!(status(&client.rest().await), answer);
    }
}

#[tokio::test]
async fn requests_of_one_connection_do_not_wait_for_one_another() {
    let gateway = Gateway::start();
    let mut client = gateway.speak().await;
    let (slow, _) = client.send_request(get("/slow"), true).unwrap();
    gateway.echo.waiting.notified().await;
    let post = Request::post("http://gw/fast").body(()).unwrap();
    assert_eq!(ask(&mut client, post, b"four").await, (200, "/fast:4".to_owned()));
    gateway.echo.go.notify_one();
    let slow = slow.await.unwrap();
    assert_eq!((slow.version(), slow.status()), (http::Version::HTTP_2, StatusCode::OK));
    assert_eq!(text(slow.into_body()).await.unwrap(), "/slow:0");
}

#[tokio::test]
async fn a_preface_may_come_in_pieces_and_a_post_is_none() {
    let gateway = Gateway::start();
    for cut in [1, 3, 20] {
        let mut client = gateway.connect().await;
        client.send(&PREFACE[..cut]).await;
        tokio::task::yield_now().await;
        client.send([&PREFACE[cut..], &frame(SETTINGS, 0, 0, &[]), &frame(PING, 0, 0, b"12345678")].concat()).await;
        let mut kinds = Vec::new();
        while !kinds.contains(&PING) {
            kinds.push(client.frame().await.unwrap().kind);
        }
        assert_eq!(kinds.first(), Some(&SETTINGS), "{cut}");
    }
    let mut client = gateway.connect().await;
    client.send("P").await;
    tokio::task::yield_now().await;
    client.send("OST /1 HTTP/1.1\r\nHost: gw\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    assert_eq!(status(&client.rest().await), "200");
}

#[tokio::test]
async fn an_upgrade_to_http2_is_not_taken() {
    let answer = Gateway::start()
        .tell(
            "GET /1 HTTP/1.1\r\nHost: gw\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n\
            HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        )
        .await;
    assert_eq!((status(&answer), answer.matches("HTTP/1.1 ").count()), ("200", 1), "{answer}");
}

#[tokio::test]
async fn the_door_is_the_same() {
    let gateway = Gateway::start();
    let mut client = gateway.speak().await;
    let builder = || Request::builder().uri("http://gw/a");
    let many = (0..101).fold(builder(), |builder, _| builder.header("a", "b"));
    for (request, expected) in [
        (builder(), 200),
        (builder().header("host", "GW"), 200),
        (builder().header("host", "other"), 400),
        (Request::builder().uri("http://user@gw/a"), 400),
        (Request::builder().uri("http://gw/a/../b"), 400),
        (Request::builder().uri(format!("http://gw/{}", "a".repeat(300))), 414),
        (builder().header("a", "b".repeat(2000)), 431),
        (builder().header("expect", "wonders"), 417),
        (builder().method(Method::TRACE), 405),
        (many, 431),
    ] {
        let request = request.body(()).unwrap();
        let told = format!("{request:?}");
        let (status, body) = ask(&mut client, request, b"").await;
        assert_eq!(status, expected, "{told}: {body}");
        assert!(status == 200 || body.contains("\"code\""), "{told}: {body}");
    }
    assert_eq!(gateway.echo.served(), ["/a", "/a"]);
}

/// Malformed by RFC 9113, section 8.2.2: the stream ends and nothing of it is a request.
#[tokio::test]
async fn fields_of_a_connection_are_refused() {
    let gateway = Gateway::start();
    let mut client = gateway.connect().await;
    client.greet(&[]).await;
    for (stream, field) in [
        (1, &b"\x00\x0aconnection\x05close"[..]),
        (3, b"\x00\x11transfer-encoding\x07chunked"),
        (5, b"\x00\x02te\x04gzip"),
        (7, b"\x00\x07upgrade\x03foo"),
        (9, b"\x00\x05:path\x02/x"),
    ] {
        client.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, &[GET, field].concat())).await;
        assert_eq!(client.reason_of(RST_STREAM).await, Some(Reason::PROTOCOL_ERROR), "{field:?}");
    }
    assert_eq!(gateway.echo.served(), [""; 0]);
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused() {
    let gateway = Gateway::with(Limits { max_concurrent_streams: 2, ..limits() }, 10, LONG);
    let mut client = gateway.connect().await;
    client.greet(&[]).await;
    let announced = client.frame().await.unwrap();
    assert!(announced.payload.chunks(6).any(|setting| setting == [0, 3, 0, 0, 0, 2]), "{announced:?}");
    for stream in [1, 3, 5] {
        client.send(frame(HEADERS, END_HEADERS, stream, GET)).await;
    }
    assert_eq!(client.reason_of(RST_STREAM).await, Some(Reason::REFUSED_STREAM));
}

#[tokio::test]
async fn a_client_that_resets_its_stream_gives_up_the_request() {
    let gateway = Gateway::start();
    let mut client = gateway.speak().await;
    let (slow, mut upload) = client.send_request(get("/slow"), true).unwrap();
    gateway.echo.waiting.notified().await;
    assert_eq!(gateway.echo.under_way.busy(), 1);
    upload.send_reset(Reason::CANCEL);
    drop(slow);
    while gateway.echo.under_way.busy() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&mut client, get("/1"), b"").await.0, 200);
}

/// What a client may send ahead is far less than this.
#[tokio::test]
async fn a_client_that_goes_on_sending_what_nobody_wants_is_heard_out_for_a_while() {
    let gateway = Gateway::start();
    let mut client = gateway.speak().await;
    for chunks in [20, u32::MAX] {
        let post = Request::builder().method("POST").uri("http://gw/").header("transfer", "late").body(()).unwrap();
        let (answer, mut upload) = client.send_request(post, false).unwrap();
        let mut end = Ok(());
        for number in 1..=chunks {
            upload.reserve_capacity(CHUNK.len());
            let room = std::future::poll_fn(|context| upload.poll_capacity(context)).await;
            end = room.unwrap_or(Err(Reason::NO_ERROR.into())).map(|_| ());
            if end.is_err() || upload.send_data(Bytes::from_static(CHUNK), number == chunks).is_err() {
                break;
            }
        }
        assert_eq!(answer.await.unwrap().status(), 413, "{chunks}");
        assert_eq!(end.is_ok(), chunks == 20, "{end:?}");
    }
    assert_eq!(ask(&mut client, get("/1"), b"").await.0, 200);
}

#[tokio::test]
async fn an_answer_that_cannot_be_ended_resets_its_stream() {
    let gateway = Gateway::start();
    let mut client = gateway.speak().await;
    let (answer, _) = client.send_request(get("/cut"), true).unwrap();
    let mut body = answer.await.unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "half");
    drop(gateway.echo.live.lock().unwrap().take());
    assert_eq!(body.data().await.unwrap().unwrap_err().reason(), Some(Reason::INTERNAL_ERROR));
    assert_eq!(ask(&mut client, get("/1"), b"").await.0, 200);
}

#[tokio::test]
async fn a_long_answer_comes_whole_and_one_that_is_not_taken_ends() {
    let gateway = Gateway::with(Limits { write_idle: PATIENCE, ..limits() }, 10, LONG);
    let mut client = gateway.speak().await;
    assert_eq!(ask(&mut client, get("/large"), b"").await.1.len(), LARGE);
    let (answer, _) = client.send_request(get("/large"), true).unwrap();
    let mut unread = answer.await.unwrap().into_body();
    // Nothing of the window is given back.
    let end = loop {
        if let Err(end) = unread.data().await.unwrap() {
            break end;
        }
    };
    assert_eq!(end.reason(), Some(Reason::CANCEL));
}

#[tokio::test]
async fn a_connection_without_a_request_is_sent_away_whatever_else_it_says() {
    let gateway = Gateway::with(Limits { header_timeout: PATIENCE, ..limits() }, 10, LONG);
    let silent = async {
        let mut client = gateway.connect().await;
        client.greet(&[]).await;
        client.reason_of(GOAWAY).await
    };
    let chatty = async {
        let mut client = gateway.connect().await;
        client.greet(&[]).await;
        loop {
            client.send(frame(PING, 0, 0, b"12345678")).await;
            client.send(frame(SETTINGS, 0, 0, &[])).await;
            match client.frame().await.unwrap() {
                Frame { kind: GOAWAY, payload, .. } => break Some(u32::from(payload[7]).into()),
                _ => continue,
            }
        }
    };
    let half = async {
        let mut client = gateway.connect().await;
        client.greet(&[]).await;
        client.send(frame(HEADERS, END_STREAM, 1, GET)).await;
        client.reason_of(GOAWAY).await
    };
    let ends = tokio::join!(silent, chatty, half);
    assert_eq!(ends, (Some(Reason::NO_ERROR), Some(Reason::NO_ERROR), Some(Reason::NO_ERROR)));
}

/// A client that is told to go away and stays.
#[tokio::test]
async fn a_connection_that_is_not_given_up_is_closed() {
    let gateway = Gateway::with(Limits { header_timeout: PATIENCE, write_idle: SHORT, ..limits() }, 10, LONG);
    let mut client = gateway.connect().await;
    client.greet(&[]).await;
    while client.frame().await.is_some() {}
}

#[tokio::test]
async fn a_stop_sends_clients_away_and_lets_their_requests_finish() {
    let gateway = Gateway::start();
    let mut client = gateway.connect().await;
    client.greet(&[]).await;
    client.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, &[&GET[..1], b"\x44\x05/slow", &GET[2..]].concat())).await;
    gateway.echo.waiting.notified().await;
    gateway.stop.cancel();
    assert_eq!(client.reason_of(GOAWAY).await, Some(Reason::NO_ERROR));
    gateway.echo.go.notify_one();
    let mut answered = false;
    while let Some(frame) = client.frame().await {
        match frame.kind {
            PING => client.send(super::http2::frame(PING, 1, 0, &frame.payload)).await,
            DATA => answered |= frame.payload == b"/slow:0",
            _ => {}
        }
    }
    assert!(answered);
    gateway.serving.await.unwrap();
}

#[tokio::test]
async fn a_connection_takes_one_place_whatever_its_streams() {
    let gateway = Gateway::with(limits(), 1, LONG);
    let mut client = gateway.speak().await;
    for _ in 0..5 {
        assert_eq!(ask(&mut client, get("/1"), b"").await.0, 200);
    }
    let mut second = gateway.connect().await;
    second.send("GET /2 HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n").await;
    let slow = client.send_request(get("/slow"), true).unwrap();
    gateway.echo.waiting.notified().await;
    assert!(!gateway.echo.served().contains(&"/2".to_owned()));
    drop((slow, client));
    second.until("/2:0").await;
}

/// CVE-2023-44487.
#[tokio::test]
async fn a_flood_of_resets_ends_the_connection() {
    let reset = |stream: u32| frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
    let gateway = Gateway::start();
    let flood = |number: u32| {
        let stream = 2 * number + 1;
        [frame(HEADERS, END_STREAM | END_HEADERS, stream, GET), reset(stream)].concat()
    };
    assert_eq!(gateway.connect().await.flood(flood).await, Some(Reason::ENHANCE_YOUR_CALM));
}

/// RUSTSEC-2024-0332.
#[tokio::test]
async fn a_flood_of_continuations_ends_the_connection() {
    let field = [&b"\x00\x01a\x7f\xf1\x2d"[..], &[b'b'; 6000]].concat();
    let flood = |number: u32| {
        let kind = if number == 0 { HEADERS } else { CONTINUATION };
        frame(kind, 0, 1, &field)
    };
    let reason = Gateway::start().connect().await.flood(flood).await;
    assert_eq!(reason, Some(Reason::ENHANCE_YOUR_CALM));
}

/// RUSTSEC-2026-0258.
#[tokio::test]
async fn a_flood_of_empty_data_ends_the_connection() {
    let flood = |number: u32| match number {
        0 => frame(HEADERS, END_HEADERS, 1, GET),
        _ => frame(DATA, 0, 1, &[]),
    };
    assert_eq!(Gateway::start().connect().await.flood(flood).await, Some(Reason::ENHANCE_YOUR_CALM));
}

/// CVE-2025-8671: the client makes the gateway reset its streams.
#[tokio::test]
async fn made_you_reset_ends_the_connection() {
    let flood = |number: u32| {
        let stream = 2 * number + 1;
        let nothing = frame(WINDOW_UPDATE, 0, stream, &[0; 4]);
        [frame(HEADERS, END_HEADERS, stream, GET), nothing].concat()
    };
    let reason = Gateway::start().connect().await.flood(flood).await;
    assert!(matches!(reason, Some(Reason::PROTOCOL_ERROR | Reason::ENHANCE_YOUR_CALM)), "{reason:?}");
}

#[tokio::test]
async fn streams_that_are_not_done_after_the_drain_time_are_cut() {
    let gateway = Gateway::with(Limits { drain: SHORT, ..limits() }, 10, LONG);
    let mut client = gateway.speak().await;
    let (answer, _upload) = client.send_request(get("/slow"), true).unwrap();
    gateway.echo.waiting.notified().await;
    gateway.stop.cancel();
    gateway.serving.await.unwrap();
    assert!(answer.await.is_err());
}
