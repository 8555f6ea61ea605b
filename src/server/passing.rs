//! A request body that is passed on while it comes, within the same limits as one that is read whole.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderName;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::server::body::{BodyError, BoxError, check_trailers};

/// How long a body waits for `100 Continue`, as curl's does.
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

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
///
/// In HTTP/2 the end comes apart from the last byte. That byte is held until then: an upstream that knows the length
/// would answer at once, and the stream of a client that has not finished would be reset under it.
pub struct Passing<B> {
    body: B,
    size: u64,
    /// By its length, if it has one.
    declared: Option<u64>,
    held: Option<Frame<Bytes>>,
    /// What came behind a piece that was held.
    trailers: Option<Frame<Bytes>>,
    ended: bool,
    limit: u64,
    idle: Duration,
    stall: Option<Pin<Box<Sleep>>>,
    /// Names that no trailer may have.
    reserved: Arc<[HeaderName]>,
    /// Ends when the body may be asked for.
    gate: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
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
        let declared = body.size_hint().exact();
        let complaint = Complaint::default();
        Ok(Self {
            body,
            size: 0,
            declared,
            held: None,
            trailers: None,
            ended: false,
            limit,
            idle,
            stall: None,
            reserved: Arc::default(),
            gate: None,
            complaint,
        })
    }

    /// Nobody may say behind the body what these headers say before it.
    pub fn without_trailers(self, reserved: Arc<[HeaderName]>) -> Self {
        Self { reserved, ..self }
    }

    /// Not one byte is asked for before the upstream has `continued`, or has had its time to: some never say so.
    pub fn once(mut self, continued: CancellationToken) -> Self {
        self.gate = Some(Box::pin(async move {
            timeout(CONTINUE_WAIT, continued.cancelled_owned()).await.unwrap_or_default();
        }));
        self
    }

    /// Where to ask what was wrong, once the body is on its way.
    pub fn complaint(&self) -> Complaint {
        self.complaint.clone()
    }

    /// The next piece as it came; none of it stays out for longer than the idle time.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.stall = None;
            return Poll::Ready(frame.map(|frame| self.measure(frame)));
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(self.idle)));
        ready!(stall.as_mut().poll(context));
        Poll::Ready(Some(Err(self.complaint.note(BodyError::Stalled(self.idle)))))
    }

    /// The piece that was held, once the end behind it is here.
    fn poll_held(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        while let Some(frame) = ready!(self.poll_piece(context)).transpose()? {
            if frame.is_trailers() {
                self.trailers = Some(frame);
                break;
            }
        }
        self.ended = true;
        Poll::Ready(self.held.take().map(Ok))
    }

    fn is_last(&self, frame: &Frame<Bytes>) -> bool {
        frame.is_data() && self.declared == Some(self.size) && !self.body.is_end_stream()
    }

    fn measure(&mut self, frame: Result<Frame<Bytes>, B::Error>) -> Result<Frame<Bytes>, Stopped> {
        let frame = frame.map_err(|error| self.complaint.note(BodyError::Broken(error.into())))?;
        check_trailers(&frame, &self.reserved).map_err(|error| self.complaint.note(error))?;
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
        if let Some(gate) = &mut this.gate {
            ready!(gate.as_mut().poll(context));
            this.gate = None;
        }
        if this.held.is_some() {
            return this.poll_held(context);
        }
        if this.ended {
            return Poll::Ready(this.trailers.take().map(Ok));
        }
        match ready!(this.poll_piece(context)) {
            Some(Ok(frame)) if this.is_last(&frame) => {
                this.held = Some(frame);
                this.poll_held(context)
            }
            frame => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.trailers.is_none() && (self.ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.declared
            .map_or_else(|| self.body.size_hint(), |declared| SizeHint::with_exact(declared - self.size.min(declared)))
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

    /// Four bytes of a known length, and an end that comes apart from them.
    struct Late {
        pieces: mpsc::Receiver<Piece>,
        left: u64,
    }

    impl Body for Late {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            match ready!(self.pieces.poll_recv(cx)) {
                Some(Piece::Data(piece)) => {
                    self.left -= piece.len() as u64;
                    Poll::Ready(Some(Ok(Frame::data(piece))))
                }
                Some(Piece::Trailers(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                Some(Piece::End) | None => Poll::Ready(None),
            }
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.left)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_byte_waits_for_the_end() {
        for trailers in [None, Some(http::HeaderMap::from_iter([(http::header::ETAG, "1".parse().unwrap())]))] {
            let (sender, pieces) = mpsc::channel(16);
            let mut passing = Passing::new(Late { pieces, left: 4 }, 8, IDLE).unwrap();
            for piece in ["ab", "cd"] {
                sender.try_send(Piece::Data(Bytes::from_static(piece.as_bytes()))).unwrap();
            }
            assert_eq!(passing.frame().await.unwrap().unwrap().into_data().unwrap(), "ab");
            assert!(tokio::time::timeout(IDLE / 2, passing.frame()).await.is_err());
            for piece in trailers.clone().map(Piece::Trailers).into_iter().chain([Piece::End]) {
                sender.try_send(piece).unwrap();
            }
            let rest = passing.collect().await.unwrap();
            assert_eq!(rest.trailers(), trailers.as_ref());
            assert_eq!(rest.to_bytes(), "cd");
        }
    }

    #[tokio::test]
    async fn a_trailer_says_nothing_that_is_read_before_the_body() {
        let reserved: Arc<[HeaderName]> = [HeaderName::from_static("x-tenant")].into();
        for (name, passes) in [("x-tenant", false), ("x_tenant", false), ("x-checksum", true)] {
            let (sender, body) = open(&["1"]);
            let trailers = http::HeaderMap::from_iter([(HeaderName::from_static(name), "evil".parse().unwrap())]);
            for piece in [Piece::Trailers(trailers), Piece::End] {
                sender.try_send(piece).unwrap();
            }
            let passing = Passing::new(body, 8, IDLE).unwrap().without_trailers(Arc::clone(&reserved));
            let complaint = passing.complaint();
            assert_eq!(passing.collect().await.is_ok(), passes, "{name}");
            assert_eq!(matches!(complaint.take(), Some(BodyError::Trailer(_))), !passes, "{name}");
        }
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
