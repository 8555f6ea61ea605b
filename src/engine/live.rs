//! Answers that are longer than a receipt may be, and streams of events: told while they come.
//!
//! The upstream is read to its end whether or not the client is still there, and the client sees the end only after it
//! is durable; until then what would show it is held back.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::crash_point::{self, Point};
use crate::engine::answer::{Answer, Body, Content, Execution, Marks, Piece};
use crate::engine::attempt::{Head, Unfinished};
use crate::engine::buffers::Held;
use crate::engine::claim::FirstCaller;
use crate::engine::conclusion::Conclusion;
use crate::engine::problem::{Code, Problem};
use crate::engine::refusal;
use crate::engine::run::Run;
use crate::engine::settle::{Durable, Word};
use crate::operation::dead_letter::Next;
use crate::operation::transition::{Ended, Verdict};
use crate::operation::{Cause, Kept, Settled};
use crate::upstream::{BodyError, keep_trailers};

/// Pieces on their way to the client.
const PIECES: usize = 16;

/// Bytes of a piece for a client that is behind, and by how many it may be behind in any case.
const LAG: usize = 64 * 1024;

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
            _ => {
                self.kept = None;
                self.room.give_back();
            }
        }
    }
}

/// The client's end of a live answer.
struct Listener {
    sender: mpsc::Sender<Piece>,
    /// Bytes until the client sees the end by its `Content-Length`; without one only a last chunk tells, and no piece
    /// has to wait for the next.
    left: Option<u64>,
    /// What the client was too slow for. In one piece: small ones would each keep the buffer that they were read into.
    behind: BytesMut,
    /// Of it, as far as there was any.
    room: Held,
    /// The piece with which the client would see the end.
    held: Option<Bytes>,
    /// Told with the end.
    trailers: Option<HeaderMap>,
}

impl Listener {
    /// Takes a piece for the client. One that is gone takes nothing from the call.
    fn hear(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.left = self.left.map(|left| left.saturating_sub(piece.len() as u64));
        if self.left == Some(0) {
            self.held = Some(piece);
            return;
        }
        match self.sender.try_reserve() {
            Ok(place) if self.behind.is_empty() => tell_piece(place, piece),
            Ok(_) | Err(TrySendError::Full(())) => {
                self.room.grow(piece.len() as u64);
                self.behind.extend_from_slice(&piece);
            }
            Err(TrySendError::Closed(())) => {}
        }
    }

    /// Hands on a part of what the client is behind, as soon as it takes it.
    async fn catch_up(&mut self) {
        match self.sender.reserve().await {
            Ok(place) => tell_piece(place, self.behind.split_to(self.behind.len().min(LAG)).freeze()),
            Err(_gone) => self.behind.clear(),
        }
        self.room.shrink_to(self.behind.len() as u64);
    }

    /// Whether more of the answer can be taken before the client has taken what it is behind: there is room for that.
    fn has_room(&self) -> bool {
        self.behind.len() as u64 <= self.room.bytes()
    }

    /// Tells the rest, and the end if it may be seen. Without it the answer was cut.
    async fn end(mut self, clean: bool) {
        while !self.behind.is_empty() {
            self.catch_up().await;
        }
        let last = self.held.take().map(Piece::Data).into_iter().chain(self.trailers.take().map(Piece::Trailers));
        for piece in last.chain([Piece::End]).filter(|_| clean) {
            self.sender.send(piece).await.unwrap_or_default();
        }
    }
}

fn tell_piece(place: mpsc::Permit<'_, Piece>, piece: Bytes) {
    place.send(Piece::Data(piece));
    crash_point::reached(Point::InLiveBody);
}

/// Reads to the end, and tells the client as it takes it. What can be kept whole does not wait for its reader while there
/// is room: who reads slowly must not cost the upstream its patience, and with it the receipt. Beyond that the upstream
/// waits; who reads nothing at all is given up by the server.
async fn relay(unfinished: Unfinished, tape: &mut Tape, listener: &mut Listener) -> Result<(), BodyError> {
    let Unfinished { read, mut rest } = unfinished;
    tape.add(&read);
    listener.hear(read);
    loop {
        let frame = tokio::select! {
            biased;
            () = listener.catch_up(), if !listener.behind.is_empty() => continue,
            frame = rest.frame(), if tape.kept.is_some() && listener.has_room() || listener.behind.len() < LAG => frame,
        };
        let Some(frame) = frame.transpose()? else { return Ok(()) };
        match frame.into_data() {
            Ok(piece) => {
                tape.add(&piece);
                listener.hear(piece);
            }
            Err(frame) => listener.trailers = frame.into_trailers().ok(),
        }
    }
}

impl Run<'_> {
    /// A final answer that is told while it comes and becomes a receipt, or a tombstone if it is too long or is cut.
    pub(super) async fn settle_live(
        &mut self,
        (verdict, after_doubt): (Verdict, bool),
        mut head: Head,
        unfinished: Unfinished,
        caller: &mut FirstCaller,
    ) -> Conclusion {
        let (says_later, is_kept) = (head.lacks_status(), unfinished.may_be_kept());
        let execution = if says_later { Execution::InProgress } else { Execution::Executed };
        let marks = Marks { prior_outcome_unknown: after_doubt, ..self.marks(execution, None) };
        let first = Marks { receipt_none: !is_kept, ..marks.clone() };
        let mut listener = self.tell(caller, &head, &unfinished, first);
        let most = if is_kept { self.route.max_receipt } else { 0 };
        let mut tape = Tape::new(most, self.engine.shared.buffers.for_answer());
        let whole = self.record(unfinished, &mut tape, &mut listener).await;
        if let Some(trailers) = &listener.trailers {
            keep_trailers(&mut head.headers, trailers);
        }
        if says_later && !(whole && head.last_status() == StatusCode::OK.as_u16()) {
            return self.end_after_head(whole.then(|| head.last_status()), listener).await;
        }
        let digest = tape.digest.finalize().into();
        let (kept, receipt) = match (whole, tape.kept) {
            (true, Some(body)) => (Kept::Whole, Some(self.receipt_of(head.status, &head.headers, &body.into()))),
            (true, None) => (Kept::TooLarge, None),
            (false, _) => (Kept::Cut, None),
        };
        let settled = Settled { after_doubt, ..self.settled(head.status, tape.length, digest, kept) };
        let word = self.word(Word::Settle { verdict, settled, receipt: receipt.clone() });
        let durable = self.make_durable(&word).await;
        self.engine.shared.tasks.spawn(listener.end(whole && matches!(durable, Durable::Yes)));
        let marks = Marks { execution: Some(Execution::Executed), ..marks };
        match (durable, receipt) {
            (Durable::Yes, Some(receipt)) => Conclusion::Receipt { receipt, marks },
            (Durable::Yes, None) => Conclusion::Problem { problem: refusal::unavailable(&self.owner.operation), marks },
            (Durable::Superseded(found), _) => self.superseded(&found),
            (Durable::NotYet, _) => {
                self.keep_writing(word);
                let detail = "The call ran, and its long answer went to its caller; the store could not keep it yet.";
                Conclusion::Problem { problem: Problem::new(Code::ResultUnavailable, detail), marks }
            }
        }
    }

    /// The status that should have come behind the messages was none, or no good one. What was told cannot be taken back,
    /// so no other attempt follows.
    async fn end_after_head(&mut self, status: Option<u16>, listener: Listener) -> Conclusion {
        let cause = status.map_or(Cause::Closed, Cause::Status);
        let word = self.word(Word::End(Ended { cause, may_have_run: true }, Next::Person));
        let durable = self.make_durable(&word).await;
        self.engine.shared.tasks.spawn(listener.end(status.is_some() && matches!(durable, Durable::Yes)));
        match durable {
            Durable::Superseded(found) => return self.superseded(&found),
            Durable::NotYet => self.keep_writing(word),
            Durable::Yes => {}
        }
        self.lane.counters.unknown.add();
        let problem = refusal::unknown(&self.owner.operation);
        Conclusion::Problem { problem, marks: self.marks(Execution::Unknown, None) }
    }

    /// A long answer that becomes no receipt. The end of the run is written by now, or will be by a task: no lease is held.
    pub(super) async fn pass_live(
        &mut self,
        head: Head,
        unfinished: Unfinished,
        marks: Marks,
        caller: &mut FirstCaller,
    ) -> Conclusion {
        let status = head.status;
        let mut listener = self.tell(caller, &head, &unfinished, marks.clone());
        let mut tape = Tape::new(0, self.engine.shared.buffers.for_answer());
        let relayed = relay(unfinished, &mut tape, &mut listener).await;
        let whole = self.is_whole(relayed);
        self.engine.shared.tasks.spawn(listener.end(whole));
        let detail = format!("The service answered {status} at a length that goes to one caller only.");
        let code =
            if marks.execution == Some(Execution::Unknown) { Code::OutcomeUnknown } else { Code::UpstreamFailed };
        Conclusion::Problem { problem: Problem::new(code, detail).with_status(StatusCode::BAD_GATEWAY.as_u16()), marks }
    }

    /// Reads to the end; false if the upstream cut it.
    async fn record(&mut self, unfinished: Unfinished, tape: &mut Tape, listener: &mut Listener) -> bool {
        let relayed = self.owner.holding(pin!(relay(unfinished, tape, listener))).await;
        self.is_whole(relayed)
    }

    fn is_whole(&self, relayed: Result<(), BodyError>) -> bool {
        if let Err(error) = &relayed {
            tracing::warn!(operation = %self.owner.operation.id, %error, "live answer cut");
        }
        relayed.is_ok()
    }

    fn tell(&self, caller: &mut FirstCaller, head: &Head, unfinished: &Unfinished, marks: Marks) -> Listener {
        let (sender, receiver) = mpsc::channel(PIECES);
        let left = unfinished.rest.size_hint().exact().map(|rest| rest + unfinished.read.len() as u64);
        let (status, headers) = (head.status, head.headers.clone());
        caller.answer(|| Answer { content: Content::Upstream { status, headers, body: Body::Live(receiver) }, marks });
        let room = self.engine.shared.buffers.for_answer();
        Listener { sender, left, behind: BytesMut::new(), room, held: None, trailers: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::buffers::Buffers;

    #[tokio::test]
    async fn what_a_client_is_behind_takes_room_until_it_has_it() {
        const PIECE: Bytes = Bytes::from_static(&[0; 40]);
        let (buffers, (sender, mut pieces)) = (Buffers::new(100), mpsc::channel(1));
        let room = buffers.for_answer();
        let mut listener = Listener { sender, left: None, behind: BytesMut::new(), room, held: None, trailers: None };
        listener.hear(PIECE);
        assert_eq!((buffers.free(), listener.has_room()), (100, true));
        listener.hear(PIECE);
        assert_eq!((buffers.free(), listener.has_room()), (60, true));
        listener.hear(PIECE);
        assert_eq!((buffers.free(), listener.has_room()), (60, false));

        assert_eq!(pieces.recv().await, Some(Piece::Data(PIECE)));
        listener.catch_up().await;
        assert_eq!((buffers.free(), listener.has_room()), (100, true));
    }
}
