//! Answers that are told while they come.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method};
use oncegate::engine::answer::{Answer, Body, Content, Execution, Piece};
use oncegate::engine::problem::Code;
use oncegate::operation::{Kept, StateName as S};
use tokio::sync::mpsc;

use crate::rig::{Act, Ask, Fault, Gateway, Setup, Step, answers, secs};

const LONG: Setup = Setup { route: "max_receipt = \"1KiB\"", ..Setup::UNSAFE };
const PIECE: &[u8] = &[b'x'; 600];

/// What the upstream says, as the story goes on.
struct Speaker(mpsc::UnboundedSender<Bytes>);

impl Speaker {
    fn begins(head: &str) -> (Self, Act) {
        Self::answers("200 OK", head)
    }

    fn answers(status: &str, head: &str) -> (Self, Act) {
        let (sender, pieces) = mpsc::unbounded_channel();
        let speaker = Self(sender);
        speaker.says(format!("HTTP/1.1 {status}\r\n{head}\r\n\r\n").as_bytes());
        (speaker, Act::Streams(pieces))
    }

    fn says(&self, piece: &[u8]) {
        self.0.send(Bytes::copy_from_slice(piece)).unwrap();
    }
}

fn listen(answer: Answer) -> mpsc::Receiver<Piece> {
    match answer.content {
        Content::Upstream { body: Body::Live(pieces), .. } => pieces,
        _ => panic!("not live"),
    }
}

fn data(piece: Option<Piece>) -> Bytes {
    match piece {
        Some(Piece::Data(data)) => data,
        other => panic!("no data but {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_long_is_told_as_it_comes_and_ends_when_it_is_kept() {
    let (upstream, act) = Speaker::begins("content-length: 1800");
    let gateway = Gateway::before(vec![act], LONG);
    gateway.store.fails(Step::To(S::Succeeded), Fault::Slow(secs(5)), 1);
    upstream.says(PIECE);
    upstream.says(PIECE);
    let mut pieces = listen(gateway.open(Ask::keyed("k")).await);
    assert_eq!(data(pieces.recv().await).len(), 1200);

    upstream.says(PIECE);
    assert_eq!(data(pieces.recv().await), PIECE);
    assert!(gateway.elapsed() >= secs(5), "{:?}", gateway.elapsed());
    assert_eq!(pieces.recv().await, Some(Piece::End));
    let kept = gateway.kept("k").await.unwrap();
    let settled = kept.operation.state.settled().unwrap();
    assert_eq!((settled.kept, settled.length, kept.receipt), (Kept::TooLarge, 1800, None));
    assert_eq!(gateway.call("k").await.problem(), (409, Some(Code::ResultUnavailable)));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_has_ended_holds_no_lease_while_its_answer_is_told() {
    let (upstream, act) = Speaker::answers("401 Unauthorized", "content-length: 1800");
    let gateway = Gateway::before(vec![act], Setup { lease: "3s", ..LONG });
    gateway.store.fails(Step::To(S::NotExecuted), Fault::Unheard, 1);
    upstream.says(PIECE);
    upstream.says(PIECE);
    let mut pieces = listen(gateway.open(Ask::keyed("k")).await);
    assert_eq!(data(pieces.recv().await).len(), 1200);
    gateway.at(secs(10)).await;
    upstream.says(PIECE);
    assert_eq!(data(pieces.recv().await), PIECE);
    assert_eq!(pieces.recv().await, Some(Piece::End));

    assert_eq!(gateway.states("k").await.last(), Some(&S::NotExecuted));
    assert_eq!(gateway.store.count(Step::Renewal), 0);
    let counters = gateway.engine.shared().status.route("payments");
    assert_eq!(counters.fenced_writes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_event_does_not_wait_for_the_next_one() {
    let (upstream, act) = Speaker::begins("content-type: text/event-stream");
    let gateway = Gateway::before(vec![act], LONG);
    gateway.store.fails(Step::To(S::Succeeded), Fault::Slow(secs(5)), 1);
    let mut pieces = listen(gateway.open(Ask::keyed("k")).await);
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        upstream.says(event.as_bytes());
        assert_eq!(data(pieces.recv().await), event);
    }
    assert!(gateway.elapsed() < secs(1));

    drop(upstream);
    assert_eq!(pieces.recv().await, Some(Piece::End));
    assert!(gateway.elapsed() >= secs(5), "{:?}", gateway.elapsed());
    assert_eq!(gateway.call("k").await.says(), (200, "data: 1\n\ndata: 2\n\n", true));
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_receipt_is_refused_never_ends_cleanly() {
    for (head, heard) in [("content-length: 1800", 1200), ("x-length: unknown", 1800)] {
        let (upstream, act) = Speaker::begins(head);
        let setup = Setup { repeat: "with-key", lease: "1s", ..LONG };
        let owner = Gateway::before(vec![act, answers(200).body("other's").into()], setup);
        let other = owner.neighbour();
        other.worker();
        upstream.says(PIECE);
        upstream.says(PIECE);
        let caller = owner.caller(Ask::keyed("k"));
        owner.upstream.has_seen(1).await;
        owner.store.goes_away();
        other.has_become("k", S::Succeeded).await;
        owner.store.comes_back();

        upstream.says(PIECE);
        drop(upstream);
        let told = caller.await.unwrap();
        assert!(told.broken, "{head}");
        assert_eq!((told.status, told.body.len()), (200, heard), "{head}");
        assert_eq!(owner.call("k").await.says(), (200, "other's", true));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_acknowledgement_was_lost_ends_cleanly() {
    let (upstream, act) = Speaker::begins("content-length: 1200");
    let gateway = Gateway::before(vec![act], LONG);
    gateway.store.fails(Step::To(S::Succeeded), Fault::ReplyLost, 1);
    upstream.says(PIECE);
    upstream.says(PIECE);
    let told = gateway.call("k").await;
    assert_eq!((told.broken, told.body.len()), (false, 1200));
}

#[tokio::test(start_paused = true)]
async fn a_client_who_is_gone_takes_nothing_from_the_receipt() {
    let (upstream, act) = Speaker::begins("content-type: text/event-stream");
    let gateway = Gateway::before(vec![act], LONG);
    let pieces = listen(gateway.open(Ask::keyed("k")).await);
    upstream.says(b"data: 1\n\n");
    drop(pieces);
    for _ in 0..40 {
        tokio::task::yield_now().await;
        upstream.says(b"data: 2\n\n");
    }
    drop(upstream);
    gateway.has_become("k", S::Succeeded).await;
    let told = gateway.call("k").await;
    assert_eq!((told.status, told.body.len(), told.marks.replayed), (200, 41 * 9, true));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_cut_in_the_middle_is_broken_and_was_executed() {
    for setup in [LONG, Setup { repeat: "with-key", ..LONG }] {
        let (upstream, act) = Speaker::begins("content-length: 1800");
        let gateway = Gateway::before(vec![act], setup);
        upstream.says(PIECE);
        upstream.says(PIECE);
        let mut pieces = listen(gateway.open(Ask::keyed("k")).await);
        assert_eq!(data(pieces.recv().await).len(), 1200);
        drop(upstream);
        assert_eq!(pieces.recv().await, None);
        gateway.has_become("k", S::Succeeded).await;
        assert_eq!(gateway.kept("k").await.unwrap().operation.state.settled().unwrap().kept, Kept::Cut);
        assert_eq!(gateway.call("k").await.problem(), (409, Some(Code::ResultUnavailable)));
        assert_eq!(gateway.upstream.seen().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_outlives_a_long_stream_and_a_slow_client() {
    let (upstream, act) = Speaker::begins("content-type: text/event-stream");
    let gateway = Gateway::before(vec![act], Setup { lease: "1s", ..LONG });
    gateway.neighbour().worker();
    let mut pieces = listen(gateway.open(Ask::keyed("k")).await);
    for second in 1..60 {
        upstream.says(b"data: 1\n\n");
        gateway.at(secs(second)).await;
    }
    drop(upstream);
    while data(pieces.recv().await).len() < 9 {}
    let mut events = 1;
    while let Some(Piece::Data(_)) = pieces.recv().await {
        events += 1;
    }
    assert!(events > 16);
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Succeeded]);
}

#[tokio::test(start_paused = true)]
async fn the_length_of_a_body_that_is_not_there_is_replayed() {
    for head in ["content-length: 900", "content-length: 900\r\ncontent-type: text/event-stream"] {
        let (_upstream, act) = Speaker::begins(head);
        let gateway = Gateway::before(vec![act], Setup::UNSAFE);
        for replayed in [false, true] {
            let told = gateway.ask(Ask::keyed("k").method(Method::HEAD)).await;
            assert_eq!(told.says(), (200, "", replayed));
            assert_eq!(
                told.headers.get(CONTENT_LENGTH).map(HeaderValue::as_bytes),
                Some(b"900".as_slice()),
                "{told:?}"
            );
        }
        assert_eq!(gateway.upstream.seen().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_a_body_is_not_told_before_it_is_kept() {
    let (_upstream, act) = Speaker::begins("content-type: text/event-stream\r\ncontent-length: 0");
    let gateway = Gateway::before(vec![act], LONG);
    gateway.store.fails(Step::To(S::Succeeded), Fault::Slow(secs(5)), 1);
    let told = gateway.call("k").await;
    assert_eq!((told.says(), gateway.elapsed() >= secs(5)), ((200, "", false), true));
}

#[tokio::test(start_paused = true)]
async fn what_says_that_it_is_a_stream_is_told_from_its_head_on() {
    for head in
        ["content-type: Application/X-NDJSON; charset=utf-8", "content-type: text/plain\r\nX-Accel-Buffering: no"]
    {
        let (upstream, act) = Speaker::begins(head);
        let gateway = Gateway::before(vec![act], LONG);
        let mut pieces = listen(gateway.open(Ask::keyed("k")).await);
        assert!(gateway.elapsed() < Duration::from_millis(100), "{head}: {:?}", gateway.elapsed());
        upstream.says(b"{}\n");
        drop(upstream);
        assert_eq!((data(pieces.recv().await), pieces.recv().await), (b"{}\n"[..].into(), Some(Piece::End)));
    }
}

/// envoyproxy/envoy#3221: an attempt has its time until the head of its answer.
#[tokio::test(start_paused = true)]
async fn what_is_no_stream_is_kept_before_it_is_told_however_long_it_takes() {
    let impatient = Setup { retry: "attempt_timeout = \"50ms\"", ..LONG };
    for head in ["content-type: application/json", "content-type: application/x-ndjson\r\ncontent-length: 6"] {
        let (upstream, act) = Speaker::begins(head);
        let gateway = Gateway::before(vec![act], impatient);
        upstream.says(b"[1");
        let (answer, ()) = tokio::join!(gateway.open(Ask::keyed("k")), async {
            gateway.at(secs(10)).await;
            upstream.says(b", 2]");
            drop(upstream);
        });
        let Content::Upstream { body: Body::Whole(body), .. } = answer.content else {
            panic!("{head}: it was told live")
        };
        assert_eq!(body, "[1, 2]");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_holds_no_receipt_up() {
    const PIECES: usize = 200;
    let (upstream, act) = Speaker::begins("content-type: text/event-stream");
    let gateway = Gateway::before(vec![act], Setup::UNSAFE);
    let mut pieces = listen(gateway.open(Ask::keyed("k")).await);
    for _ in 0..PIECES {
        upstream.says(PIECE);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    drop(upstream);
    gateway.has_become("k", S::Succeeded).await;
    let mut heard = 0;
    while let Some(Piece::Data(piece)) = pieces.recv().await {
        heard += piece.len();
    }
    assert_eq!((heard, pieces.recv().await), (PIECES * PIECE.len(), None));
    assert_eq!(gateway.call("k").await.body.len(), heard);
}

#[tokio::test(start_paused = true)]
async fn who_joined_a_long_answer_that_settles_nothing_is_told_what_is_known() {
    for (status, told) in [(503, Code::OutcomeUnknown), (401, Code::UpstreamFailed)] {
        let act = answers(status).after(secs(1)).body(&"x".repeat(2000)).into();
        let gateway = Gateway::before(vec![act], LONG);
        let first = gateway.caller(Ask::keyed("k"));
        gateway.upstream.has_seen(1).await;
        assert_eq!(gateway.call("k").await.problem(), (502, Some(told)));
        let first = first.await.unwrap();
        assert_eq!((first.status, first.body.len()), (status, 2000));
    }
}

/// All bodies together have 4 KiB.
const NARROW: Setup = Setup { store: "\n[server]\nbuffers = \"4KiB\"", ..Setup::UNSAFE };

#[tokio::test(start_paused = true)]
async fn an_answer_that_finds_no_room_says_so_and_why() {
    let gateway = Gateway::before(vec![answers(200).body(&"x".repeat(3000)).into()], NARROW);
    let told = gateway.call("k").await;
    assert_eq!((told.status, told.body.len(), told.marks.receipt_none), (200, 3000, true));
    let again = gateway.call("k").await;
    assert_eq!(again.problem(), (409, Some(Code::ResultUnavailable)));
    assert!(again.says().1.contains("server.buffers"), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn receipts_that_nobody_takes_are_told_to_as_many_as_there_is_room_for() {
    let gateway = Gateway::before(vec![answers(200).body(&"x".repeat(1200)).into()], NARROW);
    assert_eq!(gateway.call("k").await.status, 200);

    let untaken = [gateway.open(Ask::keyed("k")).await, gateway.open(Ask::keyed("k")).await];
    assert!(untaken.iter().all(|answer| answer.marks.replayed));
    let refused = gateway.call("k").await;
    assert_eq!(refused.problem(), (503, Some(Code::Overloaded)));
    assert_eq!(refused.marks.execution, Some(Execution::Executed));
    drop(untaken);
    let told = gateway.call("k").await;
    assert!(told.marks.replayed && told.body.len() == 1200, "{told:?}");
    assert_eq!(gateway.upstream.seen().len(), 1);
}
