//! Answers that are longer than a receipt may be, and streams of events: told while they come.
//!
//! The upstream is read to its end whether or not the client is still there, and the client sees the end only after it
//! is durable; until then what would show it is held back.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::crash_point::{self, Point};
use crate::engine::answer::{Answer, Body, Content, Execution, Marks, Piece};
use crate::engine::attempt::{Head, Unfinished};
use crate::engine::buffers::Held;
use crate::engine::claim::FirstCaller;
use crate::engine::conclusion::Conclusion;
use crate::engine::owner::Owner;
use crate::engine::problem::{Code, Problem};
use crate::engine::refusal;
use crate::engine::run::Run;
use crate::engine::settle::{Durable, Word};
use crate::operation::transition::Verdict;
use crate::operation::{Kept, Settled};
use crate::upstream::keep_trailers;

/// Pieces that wait for a slow client.
const PIECES: usize = 16;

/// What has come of a live answer.
struct Tape {
    digest: Sha256,
    length: u64,
    /// All of it, while a receipt can hold it and there is room.
    kept: Option<Vec<u8>>,
    limit: u64,
    room: Held,
}

impl Tape {
    fn new(limit: u64, room: Held) -> Self {
        Self { digest: Sha256::new(), length: 0, kept: Some(Vec::new()), limit, room }
    }

    fn add(&mut self, piece: &[u8]) {
        self.digest.update(piece);
        self.length += piece.len() as u64;
        match &mut self.kept {
            Some(kept) if self.length <= self.limit && self.room.grow(piece.len() as u64) => {
                kept.extend_from_slice(piece);
            }
            _ => self.kept = None,
        }
    }
}

/// The client's end of a live answer.
struct Listener {
    sender: mpsc::Sender<Piece>,
    /// Bytes until the client sees the end by its `Content-Length`; without one only a last chunk tells, and no piece
    /// has to wait for the next.
    left: Option<u64>,
    /// The piece with which the client would see it.
    held: Option<Bytes>,
    /// Told with the end.
    trailers: Option<HeaderMap>,
}

impl Listener {
    /// Passes a piece on, unless it is the last one. A client that is gone takes nothing from the call.
    async fn hear(&mut self, owner: &mut Owner, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.left = self.left.map(|left| left.saturating_sub(piece.len() as u64));
        if self.left == Some(0) {
            self.held = Some(piece);
        } else if !self.sender.is_closed() {
            owner.holding(self.sender.send(Piece::Data(piece))).await.unwrap_or_default();
            crash_point::reached(Point::InLiveBody);
        }
    }

    /// Lets the client see the end. A listener that is dropped instead leaves an answer that was cut.
    async fn end(self) {
        let last = self.held.map(Piece::Data).into_iter().chain(self.trailers.map(Piece::Trailers));
        for piece in last.chain([Piece::End]) {
            self.sender.send(piece).await.unwrap_or_default();
        }
    }
}

impl Run<'_> {
    /// A final answer that is told while it comes and becomes a receipt, or a tombstone if it is too long or is cut.
    pub(super) async fn settle_live(
        &mut self,
        (verdict, after_doubt): (Verdict, bool),
        Head { status, mut headers }: Head,
        unfinished: Unfinished,
        caller: &mut FirstCaller,
    ) -> Conclusion {
        let marks = Marks { prior_outcome_unknown: after_doubt, ..self.marks(Execution::Executed, None) };
        let mut listener = tell(caller, status, headers.clone(), &unfinished, marks.clone());
        let mut tape = Tape::new(self.route.max_receipt, self.engine.shared.buffers.for_answer());
        let whole = self.record(unfinished, &mut tape, &mut listener).await;
        if let Some(trailers) = &listener.trailers {
            keep_trailers(&mut headers, trailers);
        }
        let digest = tape.digest.finalize().into();
        let (kept, receipt) = match (whole, tape.kept) {
            (true, Some(body)) => (Kept::Whole, Some(self.receipt_of(status, &headers, &body.into()))),
            (true, None) => (Kept::TooLarge, None),
            (false, _) => (Kept::Cut, None),
        };
        let settled = Settled { after_doubt, ..self.settled(status, tape.length, digest, kept) };
        let word = self.word(Word::Settle { verdict, settled, receipt: receipt.clone() });
        let durable = self.make_durable(&word).await;
        if whole && matches!(durable, Durable::Yes) {
            self.engine.shared.tasks.spawn(listener.end());
        }
        match (durable, receipt) {
            (Durable::Yes, Some(receipt)) => Conclusion::Receipt { receipt, marks },
            (Durable::Yes, None) => Conclusion::Problem { problem: refusal::unavailable(&self.owner.operation), marks },
            (Durable::Superseded(found), _) => self.superseded(&found),
            (Durable::NotYet, _) => {
                self.keep_settling(word);
                let detail = "The call ran, and its long answer went to its caller; the store could not keep it yet.";
                Conclusion::Problem { problem: Problem::new(Code::ResultUnavailable, detail), marks }
            }
        }
    }

    /// A long answer that becomes no receipt.
    pub(super) async fn pass_live(
        &mut self,
        Head { status, headers }: Head,
        unfinished: Unfinished,
        marks: Marks,
        caller: &mut FirstCaller,
    ) -> Conclusion {
        let mut listener = tell(caller, status, headers, &unfinished, marks.clone());
        let mut tape = Tape::new(0, self.engine.shared.buffers.for_answer());
        let whole = self.record(unfinished, &mut tape, &mut listener).await;
        if whole {
            self.engine.shared.tasks.spawn(listener.end());
        }
        let detail = format!("The service answered {status} at a length that goes to one caller only.");
        Conclusion::Problem { problem: Problem::new(Code::UpstreamFailed, detail), marks }
    }

    /// Reads to the end; false if the upstream cut it.
    async fn record(&mut self, unfinished: Unfinished, tape: &mut Tape, listener: &mut Listener) -> bool {
        let Unfinished { read, mut rest } = unfinished;
        tape.add(&read);
        listener.hear(&mut self.owner, read).await;
        while let Some(frame) = self.owner.holding(rest.frame()).await {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(piece)) => {
                    tape.add(&piece);
                    listener.hear(&mut self.owner, piece).await;
                }
                Ok(Err(frame)) => listener.trailers = frame.into_trailers().ok(),
                Err(error) => {
                    tracing::warn!(operation = %self.owner.operation.id, %error, "live answer cut");
                    return false;
                }
            }
        }
        true
    }
}

fn tell(
    caller: &mut FirstCaller,
    status: StatusCode,
    headers: HeaderMap,
    unfinished: &Unfinished,
    marks: Marks,
) -> Listener {
    let (sender, receiver) = mpsc::channel(PIECES);
    let left = unfinished.rest.size_hint().exact().map(|rest| rest + unfinished.read.len() as u64);
    let content = Content::Upstream { status, headers, body: Body::Live(receiver) };
    caller.answer(|| Answer { content, marks });
    Listener { sender, left, held: None, trailers: None }
}
