//! A request body that is passed on while it comes, within the same limits as one that is read whole.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use crate::server::body::{BodyError, BoxError};

/// The body ends here, and what came of it must not be taken for the whole.
#[derive(Debug, thiserror::Error)]
#[error("the caller's body cannot be passed on")]
pub struct Stopped;

/// Why a body could not be passed on, for the one who answers its caller.
#[derive(Clone, Debug, Default)]
pub struct Complaint(Arc<Mutex<Option<BodyError>>>);

impl Complaint {
    /// What was wrong, if something was.
    pub fn take(&self) -> Option<BodyError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note(&self, error: BodyError) -> Stopped {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        Stopped
    }
}

/// A body with a limit on its size and on the time between two of its pieces.
pub struct Passing<B> {
    body: B,
    size: u64,
    limit: u64,
    idle: Duration,
    stall: Option<Pin<Box<Sleep>>>,
    complaint: Complaint,
}

impl<B> Passing<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    /// Bounds `body` to `limit` bytes and `idle` between two pieces.
    ///
    /// # Errors
    /// The declared length is over the limit; nothing was read.
    pub fn new(body: B, limit: u64, idle: Duration) -> Result<Self, BodyError> {
        if body.size_hint().lower() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        Ok(Self { body, size: 0, limit, idle, stall: None, complaint: Complaint::default() })
    }

    /// Where to ask what was wrong, once the body is on its way.
    pub fn complaint(&self) -> Complaint {
        self.complaint.clone()
    }

    fn measure(&mut self, frame: Result<Frame<Bytes>, B::Error>) -> Result<Frame<Bytes>, Stopped> {
        let frame = frame.map_err(|error| self.complaint.note(BodyError::Broken(error.into())))?;
        self.size += frame.data_ref().map_or(0, |data| data.len() as u64);
        if self.size > self.limit {
            return Err(self.complaint.note(BodyError::TooLarge { limit: self.limit }));
        }
        Ok(frame)
    }
}

impl<B> Body for Passing<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = Stopped;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.stall = None;
            return Poll::Ready(frame.map(|frame| this.measure(frame)));
        }
        let stall = this.stall.get_or_insert_with(|| Box::pin(sleep(this.idle)));
        ready!(stall.as_mut().poll(context));
        Poll::Ready(Some(Err(this.complaint.note(BodyError::Stalled(this.idle)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;
    use crate::engine::answer::Piece;
    use crate::server::body::ResponseBody;

    const IDLE: Duration = Duration::from_secs(15);

    /// A body that brings these pieces and then stays open.
    fn open(pieces: &[&'static str]) -> (mpsc::Sender<Piece>, ResponseBody) {
        let (sender, rest) = mpsc::channel(16);
        for piece in pieces {
            sender.try_send(Piece::Data(Bytes::from_static(piece.as_bytes()))).unwrap();
        }
        (sender, ResponseBody::Live(rest))
    }

    /// The complaint about a body that stays open.
    async fn complaint(pieces: &[&'static str]) -> BodyError {
        let (_sender, body) = open(pieces);
        complaint_about(body).await
    }

    async fn complaint_about(body: ResponseBody) -> BodyError {
        let passing = Passing::new(body, 8, IDLE).unwrap();
        let complaint = passing.complaint();
        assert!(passing.collect().await.is_err());
        complaint.take().unwrap()
    }

    #[tokio::test]
    async fn a_body_within_its_limits_passes_as_it_is() {
        let passing = Passing::new(Full::new(Bytes::from_static(b"12345678")), 8, IDLE).unwrap();
        let complaint = passing.complaint();
        assert_eq!(passing.size_hint().exact(), Some(8));
        assert_eq!(passing.collect().await.unwrap().to_bytes(), "12345678");
        assert!(complaint.take().is_none());
    }

    #[test]
    fn a_declared_length_over_the_limit_is_refused_before_anything_is_read() {
        let body = Full::new(Bytes::from_static(b"123456789"));
        assert!(matches!(Passing::new(body, 8, IDLE), Err(BodyError::TooLarge { limit: 8 })));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_answers_learns_what_was_wrong() {
        assert!(matches!(complaint(&["12345", "6789"]).await, BodyError::TooLarge { limit: 8 }));
        let (sender, cut) = open(&["12345"]);
        drop(sender);
        assert!(matches!(complaint_about(cut).await, BodyError::Broken(_)));
        let start = Instant::now();
        assert!(matches!(complaint(&["12345"]).await, BodyError::Stalled(IDLE)));
        assert_eq!(start.elapsed(), IDLE);
    }
}
