//! Calls that nobody records, with a body that comes while it is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, Response};
use http_body::{Body, Frame, SizeHint};
use oncegate::engine::Engine;
use oncegate::engine::answer::{Answer, Content};
use oncegate::engine::pass::Passage;
use oncegate::operation::Scope;
use oncegate::retry::decide::Stop;
use oncegate::upstream::{ConnectError, Connector, Endpoint, SendBody, Wire};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::rig::gateway::engine_before;
use crate::rig::upstream::streams;
use crate::rig::{Act, Gateway, Setup, answers, ms, secs};

/// What its client says of the length, and the pieces as they come.
struct Upload(u64, UnboundedReceiver<Bytes>);

impl Body for Upload {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = std::task::ready!(self.1.poll_recv(cx));
        self.0 -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

fn passage(engine: &Engine, body: SendBody) -> Passage {
    Passage {
        route: Arc::clone(&engine.shared().config.routes.0[0]),
        scope: Scope::none(),
        method: Method::PUT,
        target: "/v1/files/1".to_owned(),
        headers: HeaderMap::new(),
        body,
        interim: None,
        key: None,
        unguarded: None,
        deadline: Instant::now() + secs(60),
    }
}

fn status(answer: &Answer) -> u16 {
    match &answer.content {
        Content::Upstream { status, .. } => status.as_u16(),
        Content::Accepted => 202,
        Content::Problem(problem) => problem.status,
    }
}

/// As a client with `Expect: 100-continue` does it: the body comes when somebody asks for it.
#[tokio::test(start_paused = true)]
async fn an_upload_that_is_sent_again_is_whole() {
    for seed in 0..10 {
        let gateway = Gateway::seeded(seed, vec![Act::Hurries], Setup::HARMLESS);
        let (client, pieces) = unbounded_channel();
        let passage = passage(&gateway.engine, SendBody::streaming(Upload(10, pieces)));
        let engine = Arc::clone(&gateway.engine);
        let call = tokio::spawn(async move { engine.unguarded(passage).await });
        gateway.upstream.has_seen(1).await;
        sleep(ms(20)).await;
        client.send(Bytes::from_static(b"all of it!")).unwrap();

        assert_eq!(status(&call.await.unwrap()), 201, "seed {seed}");
        let seen = gateway.upstream.seen();
        assert_eq!((seen.len(), &seen[1].body[..]), (2, &b"all of it!"[..]), "seed {seed}");
    }
}

/// The service has all of it, and nobody kept it.
#[tokio::test(start_paused = true)]
async fn an_upload_that_is_gone_is_not_sent_again() {
    let gateway = Gateway::before(vec![answers(503).into()], Setup::HARMLESS);
    let (client, pieces) = unbounded_channel();
    client.send(Bytes::from(vec![b'x'; 65_537])).unwrap();
    let answer = gateway.engine.unguarded(passage(&gateway.engine, SendBody::streaming(Upload(65_537, pieces)))).await;
    assert_eq!((status(&answer), answer.marks.stop), (503, Some(Stop::Body)));
    let seen = gateway.upstream.seen();
    assert_eq!((seen.len(), seen[0].body.len()), (1, 65_537));
}

#[tokio::test(start_paused = true)]
async fn a_call_without_time_is_not_sent() {
    for (left, told, sends) in [(999, (504, Some(Stop::Deadline)), 0), (1000, (201, None), 1)] {
        let gateway = Gateway::before(Vec::new(), Setup { retry: "max_attempts = 1", ..Setup::HARMLESS });
        let deadline = Instant::now() + Duration::from_micros(left);
        let passage = Passage { deadline, ..passage(&gateway.engine, SendBody::Full(Bytes::new())) };
        let answer = gateway.engine.unguarded(passage).await;
        assert_eq!((status(&answer), answer.marks.stop), told);
        let seen = gateway.upstream.seen();
        assert_eq!(seen.len(), sends);
        assert!(seen.iter().all(|seen| seen.header("x-request-timeout-ms") == Some("1")));
    }
}

/// Speaks HTTP/2. Answers 503 by the head of its first request, and does not come to the end of that answer; of the
/// others it tells the bodies.
struct Hurried(UnboundedSender<Vec<u8>>);

#[async_trait]
impl Connector for Hurried {
    async fn connect(&self, _endpoint: &Endpoint) -> Result<Wire, ConnectError> {
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(hurry(theirs, self.0.clone()));
        Ok(Wire::new(ours))
    }
}

async fn hurry(stream: DuplexStream, told: UnboundedSender<Vec<u8>>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let mut first = None;
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let head = |status| Response::builder().status(status).body(()).unwrap();
        if first.is_none() {
            first = Some((respond.send_response(head(503), false).unwrap(), request));
            told.send(Vec::new()).unwrap();
            continue;
        }
        let told = told.clone();
        tokio::spawn(async move {
            let (mut body, mut read) = (request.into_body(), Vec::new());
            while let Some(Ok(piece)) = body.data().await {
                read.extend_from_slice(&piece);
            }
            told.send(read).unwrap();
            respond.send_response(head(201), true).unwrap();
        });
    }
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_is_sent_again_over_http2_is_whole() {
    let (tell, mut told) = unbounded_channel();
    let engine = engine_before(Hurried(tell), Setup { upstream: "protocol = \"h2\"", ..Setup::HARMLESS });
    let (client, pieces) = unbounded_channel();
    let passage = passage(&engine, SendBody::streaming(Upload(10, pieces)));
    let call = tokio::spawn(async move { engine.unguarded(passage).await });
    assert!(told.recv().await.unwrap().is_empty());
    sleep(ms(20)).await;
    client.send(Bytes::from_static(b"all of it!")).unwrap();
    drop(client);

    assert_eq!(told.recv().await.unwrap(), b"all of it!");
    assert_eq!(status(&call.await.unwrap()), 201);
}

/// The place of a call is taken until the last byte of its answer.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_still_read_takes_a_place() {
    let setup = Setup { limit: "concurrency = 1", ..Setup::HARMLESS };
    let gateway = Gateway::before(vec![], setup);
    let engine = Arc::clone(&gateway.engine);
    let call = async || engine.unguarded(passage(&engine, SendBody::Full(Bytes::new()))).await;
    let reading = call().await;
    assert_eq!(status(&reading), 201);
    assert_eq!(status(&call().await), 503);
    drop(reading);
    assert_eq!(status(&call().await), 201);
}

/// A call of a caller who may leave.
fn begun(gateway: &Gateway) -> JoinHandle<Answer> {
    let (engine, passage) = (Arc::clone(&gateway.engine), passage(&gateway.engine, SendBody::Full(Bytes::new())));
    tokio::spawn(async move { engine.unguarded(passage).await })
}

/// maximhq/bifrost#7035.
#[tokio::test(start_paused = true)]
async fn nothing_is_sent_for_a_caller_who_left_during_an_attempt_or_a_wait() {
    let setup = Setup { retry: "base_interval = \"20s\"\nattempt_timeout = \"4s\"", ..Setup::HARMLESS };
    for act in [answers(503).into(), Act::IsSilent] {
        let gateway = Gateway::before(vec![act], setup);
        let call = begun(&gateway);
        gateway.upstream.has_seen(1).await;
        call.abort();
        gateway.at(secs(60)).await;
        assert_eq!(gateway.upstream.seen().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_caller_leaves_makes_room_for_the_next() {
    let breaker = "consecutive_failures = 1\nopen_for = \"5s\"";
    let setup = Setup { breaker, retry: "max_attempts = 1", ..Setup::HARMLESS };
    let gateway = Gateway::before(vec![answers(502).into(), Act::IsSilent], setup);
    assert_eq!(status(&begun(&gateway).await.unwrap()), 502);
    gateway.at(secs(10)).await;
    let probe = begun(&gateway);
    gateway.upstream.has_seen(2).await;
    assert_eq!(status(&begun(&gateway).await.unwrap()), 503);
    probe.abort();
    assert!(probe.await.is_err());
    assert_eq!(status(&begun(&gateway).await.unwrap()), 201);
}

/// Any length, and nothing good behind the first piece.
struct BreaksOff(Option<Bytes>);

impl Body for BreaksOff {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = self.0.take().map(Frame::data);
        Poll::Ready(Some(piece.ok_or_else(|| std::io::ErrorKind::ConnectionReset.into())))
    }
}

#[tokio::test(start_paused = true)]
async fn uploads_that_break_off_say_nothing_about_the_upstream() {
    let setup = Setup { breaker: "consecutive_failures = 2", retry: "max_attempts = 1", ..Setup::HARMLESS };
    let gateway = Gateway::before(Vec::new(), setup);
    for _ in 0..3 {
        let body = SendBody::streaming(BreaksOff(Some(Bytes::from_static(b"half"))));
        assert_eq!(status(&gateway.engine.unguarded(passage(&gateway.engine, body)).await), 502);
    }
    let told = gateway.call("k").await;
    assert_eq!(told.status, 201, "the breaker is closed: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_canary_that_uploads_slowly() {
    let setup = Setup { retry: "max_attempts = 1\nattempt_timeout = \"2s\"", ..Setup::HARMLESS };
    let throttle = answers(429).with("retry-after", "1").into();
    let gateway = Gateway::before(vec![throttle], setup);
    assert_eq!(gateway.call("first").await.status, 429);
    gateway.at(secs(1)).await;
    let (client, pieces) = unbounded_channel();
    let passage = passage(&gateway.engine, SendBody::streaming(Upload(100, pieces)));
    let engine = Arc::clone(&gateway.engine);
    let slow = tokio::spawn(async move { engine.unguarded(passage).await });
    let trickle = tokio::spawn(async move {
        for _ in 0..100 {
            client.send(Bytes::from_static(b".")).unwrap();
            sleep(secs(1)).await;
        }
    });
    gateway.at(ms(1500)).await;
    let told = gateway.call("k").await;
    assert!(told.status == 201 && told.at < secs(5), "{told:?}");
    slow.abort();
    trickle.abort();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_judged_by_a_slow_body_holds_nobody_back() {
    let setup = Setup {
        route: r#"classify = [{ status = 200, json = { "/ok" = false }, as = "failed" }]"#,
        breaker: "consecutive_failures = 1\nopen_for = \"1s\"",
        retry: "max_attempts = 1\nattempt_timeout = \"2s\"",
        ..Setup::HARMLESS
    };
    let breaker = |gateway: &Gateway| gateway.engine.shared().gates.snapshot()["payments"].breakers[0].state;
    for first in [answers(502), answers(429).with("retry-after", "2")] {
        let (body, slow) = streams("application/json");
        let gateway = Gateway::before(vec![first.into(), slow], setup);
        gateway.call("first").await;
        gateway.at(secs(3)).await;
        let (engine, passage) = (Arc::clone(&gateway.engine), passage(&gateway.engine, SendBody::empty()));
        let slow = tokio::spawn(async move { engine.unguarded(passage).await });
        gateway.upstream.has_seen(2).await;
        body.send(Bytes::from_static(b"1\r\n{\r\n")).unwrap();
        gateway.at(secs(6)).await;
        let told = gateway.call("k").await;
        assert!(told.status == 201 && told.at < secs(7), "{told:?}");
        body.send(Bytes::from_static(b"1\r\n}\r\n0\r\n\r\n")).unwrap();
        assert_eq!((status(&slow.await.unwrap()), breaker(&gateway)), (200, "closed"));
    }
}
