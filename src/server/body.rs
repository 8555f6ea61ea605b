//! Bodies in both directions: a request's, read whole within limits, and an answer's, whole or as it comes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::engine::answer::{self, Piece};
use crate::engine::buffers::{Buffers, Held};
use crate::engine::problem::{Code, Problem};
use crate::upstream::{Switched, drop_ours, may_be_trailer};

/// Any error of a streaming body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long an overloaded gateway asks its callers to stay away.
const OVERLOADED_FOR: Duration = Duration::from_secs(1);

/// Bytes a second that a body which is read whole has to bring, after its first idle time.
const LEAST_RATE: u64 = 1024;

/// Bounds on the reading of one request body.
#[derive(Clone, Debug)]
pub struct BodyLimits {
    /// Bytes of one body.
    pub size: u64,
    /// Between two pieces of it.
    pub idle: Duration,
    /// Room that all bodies share.
    pub buffers: Buffers,
}

/// A request body that was read to its end. Its room is given back when `held` is dropped.
#[derive(Debug)]
pub struct Buffered {
    pub bytes: Bytes,
    pub held: Held,
}

/// Why a request body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is longer than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("no byte of the body came for {} ms", .0.as_millis())]
    Stalled(Duration),
    #[error("the body comes slower than {LEAST_RATE} bytes a second")]
    TooSlow,
    #[error("the gateway's buffers are full")]
    NoRoom,
    /// Malformed, or cut short.
    #[error("the body cannot be read")]
    Broken(#[source] BoxError),
    #[error("`{0}` stands behind the body, where nobody reads it or somebody takes it for what stood before")]
    Trailer(HeaderName),
}

/// Reads a body whole.
///
/// A declared length is judged, and its room taken, before the first byte is asked for: a caller that waits for
/// `100 Continue` is refused without sending anything. A body that came in one piece is not copied.
///
/// # Errors
/// See [`BodyError`]; what was read is gone then, and the connection should end.
pub async fn read_body<B>(body: B, limits: &BodyLimits) -> Result<Buffered, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    match read_or_leave(body, limits).await? {
        Reading::Whole(buffered) => Ok(buffered),
        Reading::Longer(_) => Err(BodyError::TooLarge { limit: limits.size }),
    }
}

/// Reads a body whole, or finds it longer than the limit; what was read of it then is not lost.
///
/// # Errors
/// See [`BodyError`], all but `TooLarge`.
pub async fn read_or_leave<B>(body: B, limits: &BodyLimits) -> Result<Reading<B>, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let declared = body.size_hint().lower();
    if declared > limits.size {
        return Ok(Reading::Longer(Longer { read: VecDeque::new(), rest: body }));
    }
    let held = limits.buffers.take(declared).ok_or(BodyError::NoRoom)?;
    Gathering { declared, length: 0, pieces: Pieces::None, held }.run(body, limits).await
}

/// What came of reading a body up to a limit.
pub enum Reading<B> {
    Whole(Buffered),
    Longer(Longer<B>),
}

/// A body that is longer than a limit, from its first byte.
pub struct Longer<B> {
    read: VecDeque<Bytes>,
    rest: B,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Longer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.read.pop_front() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.read.is_empty() { self.rest.size_hint() } else { SizeHint::default() }
    }
}

/// # Errors
/// A frame has trailers of a name that is read before the body, in general or as one of the `reserved`. A service may take
/// `_` for `-`.
pub fn check_trailers(frame: &Frame<Bytes>, reserved: &[HeaderName]) -> Result<(), BodyError> {
    let is_reserved = |name: &HeaderName| {
        let name = name.as_str().replace('_', "-");
        reserved.iter().any(|reserved| reserved.as_str() == name)
    };
    let mut names = frame.trailers_ref().into_iter().flat_map(HeaderMap::keys);
    let refused = names.find(|name| !may_be_trailer(name) || is_reserved(name));
    refused.map_or(Ok(()), |name| Err(BodyError::Trailer(name.clone())))
}

/// A body while it is read.
struct Gathering {
    declared: u64,
    length: u64,
    pieces: Pieces,
    held: Held,
}

enum Pieces {
    None,
    One(Bytes),
    Many(BytesMut),
}

impl Gathering {
    async fn run<B>(mut self, mut body: B, limits: &BodyLimits) -> Result<Reading<B>, BodyError>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError>,
    {
        let start = Instant::now();
        loop {
            let idle = Instant::now() + limits.idle;
            let slow = start + limits.idle + Duration::from_millis(self.length.saturating_mul(1000) / LEAST_RATE);
            let late = if slow < idle { BodyError::TooSlow } else { BodyError::Stalled(limits.idle) };
            match timeout_at(slow.min(idle), body.frame()).await.map_err(|_elapsed| late)? {
                None => return Ok(Reading::Whole(self.finish())),
                Some(Err(error)) => return Err(BodyError::Broken(error.into())),
                // Trailers of a request are dropped: a repeat could not bring them again.
                Some(Ok(frame)) => {
                    check_trailers(&frame, &[])?;
                    let piece = frame.into_data().unwrap_or_default();
                    if self.length + piece.len() as u64 > limits.size {
                        let read = VecDeque::from([self.finish().bytes, piece]);
                        return Ok(Reading::Longer(Longer { read, rest: body }));
                    }
                    self.add(piece)?;
                }
            }
        }
    }

    fn add(&mut self, piece: Bytes) -> Result<(), BodyError> {
        let before = self.length.max(self.declared);
        self.length += piece.len() as u64;
        if !self.held.grow(self.length.saturating_sub(before)) {
            return Err(BodyError::NoRoom);
        }
        self.pieces = std::mem::replace(&mut self.pieces, Pieces::None).and(piece, self.declared);
        Ok(())
    }

    fn finish(self) -> Buffered {
        let bytes = match self.pieces {
            Pieces::None => Bytes::new(),
            Pieces::One(piece) => piece,
            Pieces::Many(pieces) => pieces.freeze(),
        };
        Buffered { bytes, held: self.held }
    }
}

impl Pieces {
    /// `declared` is room that was already taken, so it may be allocated at once.
    fn and(self, piece: Bytes, declared: u64) -> Self {
        match self {
            pieces if piece.is_empty() => pieces,
            Self::None => Self::One(piece),
            Self::One(first) => {
                let room = usize::try_from(declared).unwrap_or(0).max(first.len() + piece.len());
                let mut all = BytesMut::with_capacity(room);
                all.extend_from_slice(&first);
                all.extend_from_slice(&piece);
                Self::Many(all)
            }
            Self::Many(mut all) => {
                all.extend_from_slice(&piece);
                Self::Many(all)
            }
        }
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        let detail = error.to_string();
        match error {
            BodyError::TooLarge { .. } => Self::new(Code::BodyTooLarge, detail),
            BodyError::Stalled(_) | BodyError::TooSlow => Self::new(Code::InvalidRequest, detail).with_status(408),
            BodyError::NoRoom => Self::new(Code::Overloaded, detail).with_retry_after(OVERLOADED_FOR),
            BodyError::Trailer(_) => Self::new(Code::InvalidRequest, detail),
            BodyError::Broken(source) => Self::new(Code::InvalidRequest, format!("{detail}: {}", root(&*source))),
        }
    }
}

/// What went wrong first; what stands above it says where.
fn root<'e>(mut error: &'e (dyn std::error::Error + 'static)) -> &'e dyn std::error::Error {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

/// What goes out as an answer's body.
pub enum ResponseBody {
    Empty,
    Whole(Bytes),
    /// Whole, with what comes behind it.
    Trailed(Bytes, HeaderMap),
    Trailers(HeaderMap),
    /// From an owner that holds back the end until the receipt is durable.
    Live(mpsc::Receiver<Piece>),
    /// An upstream's answer that nobody keeps, as it comes.
    Stream(UnsyncBoxBody<Bytes, BoxError>),
    /// None: behind its head, a 101, the connection is joined with this one.
    Switched(Box<Switched>),
    /// About to break the connection.
    Broken(BoxError),
}

impl ResponseBody {
    /// An upstream's answer that nobody keeps.
    pub fn stream<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self::Stream(body.map_err(Into::into).boxed_unsync())
    }

    /// Puts trailers behind a body that is here.
    pub fn with_trailers(self, trailers: HeaderMap) -> Self {
        match self {
            Self::Whole(bytes) => Self::Trailed(bytes, trailers),
            Self::Empty => Self::Trailers(trailers),
            other => other,
        }
    }

    /// The upstream's side of a connection that leaves HTTP.
    pub fn take_switched(&mut self) -> Option<Box<Switched>> {
        match std::mem::replace(self, Self::Empty) {
            Self::Switched(stream) => Some(stream),
            body => {
                *self = body;
                None
            }
        }
    }
}

impl From<answer::Body> for ResponseBody {
    fn from(body: answer::Body) -> Self {
        match body {
            answer::Body::Whole(bytes) => bytes.into(),
            answer::Body::Live(pieces) => Self::Live(pieces),
            answer::Body::Passed { body, place, .. } => Self::stream(body.map_err(move |error| {
                // The body has it until it is gone.
                let _held = &place;
                error
            })),
            answer::Body::Switched(stream) => Self::Switched(stream),
        }
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::Empty } else { Self::Whole(bytes) }
    }
}

/// Whoever makes a live answer went away before its end.
#[derive(Debug, thiserror::Error)]
#[error("the answer was cut short")]
struct CutShort;

type Polled = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

impl ResponseBody {
    /// An error is told one poll late: hyper writes out what it has before it polls again, and forgets it on an error.
    /// A client should see at least the status of an answer that breaks.
    fn late(&mut self, polled: Polled, context: &mut Context<'_>) -> Polled {
        let Poll::Ready(Some(Err(error))) = polled else { return polled };
        *self = Self::Broken(error);
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// What only the gateway may say, a service does not say behind its body either.
fn without_ours(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    frame.trailers_mut().into_iter().for_each(drop_ours);
    frame
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let polled = match &mut *self {
            Self::Live(pieces) => pieces.poll_recv(context).map(|piece| match piece {
                Some(Piece::Data(bytes)) => Some(Ok(Frame::data(bytes))),
                Some(Piece::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
                Some(Piece::End) => None,
                None => Some(Err(CutShort.into())),
            }),
            Self::Stream(body) => Pin::new(body).poll_frame(context),
            Self::Trailed(bytes, trailers) => {
                let (bytes, trailers) = (std::mem::take(bytes), std::mem::take(trailers));
                *self = Self::Trailers(trailers);
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            Self::Empty | Self::Whole(_) | Self::Trailers(_) | Self::Broken(_) | Self::Switched(_) => {
                return Poll::Ready(match std::mem::replace(&mut *self, Self::Empty) {
                    Self::Whole(bytes) => Some(Ok(Frame::data(bytes))),
                    Self::Trailers(trailers) => Some(Ok(Frame::trailers(trailers))),
                    Self::Broken(error) => Some(Err(error)),
                    Self::Empty | Self::Trailed(..) | Self::Live(_) | Self::Stream(_) | Self::Switched(_) => None,
                });
            }
        };
        self.late(polled.map_ok(without_ours), context)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty | Self::Switched(_) => true,
            Self::Whole(_) | Self::Trailed(..) | Self::Trailers(_) | Self::Live(_) | Self::Broken(_) => false,
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty | Self::Switched(_) => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            // HTTP/1 has trailers behind chunks only, which are for bodies whose length is not known.
            Self::Trailed(..) | Self::Trailers(_) | Self::Live(_) | Self::Broken(_) => SizeHint::default(),
            Self::Stream(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Empty, Full};
    use tokio::time::sleep;

    use super::*;

    fn limits(size: u64, room: u64) -> BodyLimits {
        BodyLimits { size, idle: Duration::from_secs(15), buffers: Buffers::new(room) }
    }

    fn data(text: &'static str) -> Piece {
        Piece::Data(Bytes::from_static(text.as_bytes()))
    }

    /// A body of unknown length, as a chunked one is.
    fn chunked(texts: &[&'static str]) -> ResponseBody {
        live(texts.iter().map(|text| data(text)).chain([Piece::End]))
    }

    /// One that breaks off after `text`.
    fn cut(text: &'static str) -> ResponseBody {
        live([data(text)])
    }

    fn live(pieces: impl IntoIterator<Item = Piece>) -> ResponseBody {
        let (sender, rest) = mpsc::channel(16);
        for piece in pieces {
            sender.try_send(piece).unwrap();
        }
        ResponseBody::Live(rest)
    }

    #[tokio::test]
    async fn a_body_in_one_piece_is_not_copied() {
        let sent = Bytes::from(vec![7; 100]);
        let read = read_body(Full::new(sent.clone()), &limits(100, 200)).await.unwrap();
        assert_eq!(read.bytes.as_ptr(), sent.as_ptr());
    }

    #[tokio::test]
    async fn pieces_are_put_together_and_their_room_comes_back() {
        let limits = limits(100, 200);
        let read = read_body(chunked(&["one ", "two ", "three"]), &limits).await.unwrap();
        assert_eq!(read.bytes, "one two three");
        assert_eq!(limits.buffers.free(), 187);
        drop(read);
        assert_eq!(limits.buffers.free(), 200);
    }

    #[tokio::test]
    async fn no_body_takes_no_room() {
        let read = read_body(Empty::<Bytes>::new(), &limits(0, 0)).await.unwrap();
        assert!(read.bytes.is_empty());
    }

    #[tokio::test]
    async fn a_declared_length_over_the_limit_is_refused_before_anything_is_read() {
        let body = Full::new(Bytes::from(vec![0; 11]));
        let refused = read_body(body, &limits(10, 100)).await.unwrap_err();
        assert!(matches!(refused, BodyError::TooLarge { limit: 10 }));
        assert_eq!(Problem::from(refused).status, 413);
    }

    #[tokio::test]
    async fn an_undeclared_body_is_refused_where_it_passes_the_limit() {
        let limits = limits(8, 100);
        let refused = read_body(chunked(&["12345678", "9"]), &limits).await.unwrap_err();
        assert!(matches!(refused, BodyError::TooLarge { limit: 8 }));
        assert_eq!(limits.buffers.free(), 100);
    }

    #[tokio::test]
    async fn without_room_the_answer_is_to_come_back_later() {
        let declared = read_body(Full::new(Bytes::from(vec![0; 11])), &limits(100, 10)).await.unwrap_err();
        let undeclared = read_body(chunked(&["123456", "123456"]), &limits(100, 10)).await.unwrap_err();
        for refused in [declared, undeclared] {
            let problem = Problem::from(refused);
            assert_eq!((problem.status, problem.retry_after), (503, Some(Duration::from_secs(1))));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up_after_the_idle_time() {
        let (sender, rest) = mpsc::channel(1);
        sender.send(data("half")).await.unwrap();
        let body = ResponseBody::Live(rest);
        let start = Instant::now();
        let refused = read_body(body, &limits(100, 200)).await.unwrap_err();
        assert_eq!(start.elapsed(), Duration::from_secs(15));
        assert_eq!(Problem::from(refused).status, 408);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_given_up_soon_and_one_that_is_slow_is_not() {
        for (piece, status) in [("1", Some(408)), ("a kilobyte a second would be enough", None)] {
            let (sender, rest) = mpsc::channel(1);
            let start = Instant::now();
            let reading = tokio::spawn(async move { read_body(ResponseBody::Live(rest), &limits(1000, 4000)).await });
            for _ in 0..20 {
                sleep(if status.is_some() { Duration::from_secs(1) } else { Duration::from_millis(30) }).await;
                sender.send(data(piece)).await.ok();
            }
            sender.send(Piece::End).await.ok();
            let refused = reading.await.unwrap().err().map(|refused| Problem::from(refused).status);
            assert_eq!(refused, status);
            assert!(start.elapsed() < Duration::from_secs(21));
        }
    }

    #[tokio::test]
    async fn a_broken_body_is_the_requests_fault() {
        let problem = Problem::from(read_body(cut("half"), &limits(100, 200)).await.unwrap_err());
        assert_eq!((problem.status, problem.code), (400, Code::InvalidRequest));
    }

    #[tokio::test]
    async fn what_is_read_before_a_body_may_not_stand_behind_it() {
        for (name, status) in [("x-sum", None), ("content-length", Some(400)), ("idempotency-key", Some(400))] {
            let trailers = HeaderMap::from_iter([(HeaderName::from_static(name), "1".parse().unwrap())]);
            let body = Full::new(Bytes::from_static(b"abc")).with_trailers(std::future::ready(Some(Ok(trailers))));
            let refused = read_body(body, &limits(100, 200)).await.err();
            assert_eq!(refused.map(|refused| Problem::from(refused).status), status, "{name}");
        }
    }

    #[tokio::test]
    async fn a_body_over_the_limit_can_still_be_passed_on_whole() {
        let Reading::Longer(longer) = read_or_leave(chunked(&["1234", "5678", "90"]), &limits(6, 100)).await.unwrap()
        else {
            panic!("it is longer")
        };
        assert_eq!(longer.collect().await.unwrap().to_bytes(), "1234567890");
    }

    #[tokio::test]
    async fn a_live_body_is_told_as_it_comes() {
        assert_eq!(chunked(&["read", " and more"]).collect().await.unwrap().to_bytes(), "read and more");
    }

    #[tokio::test]
    async fn a_live_body_that_cannot_be_ended_is_an_error() {
        assert!(cut("half").collect().await.is_err());
    }

    #[tokio::test]
    async fn a_streamed_body_keeps_its_length() {
        let body = ResponseBody::stream(Full::new(Bytes::from_static(b"abc")));
        assert_eq!(body.size_hint().exact(), Some(3));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abc");
    }

    #[tokio::test]
    async fn a_service_says_nothing_of_ours_behind_its_body() {
        let lines = [("oncegate-execution", "executed"), ("x-sum", "7")];
        let trailers = HeaderMap::from_iter(lines.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())));
        let passed = Full::new(Bytes::from_static(b"ok")).with_trailers(std::future::ready(Some(Ok(trailers.clone()))));
        for body in [live([data("ok"), Piece::Trailers(trailers), Piece::End]), ResponseBody::stream(passed)] {
            let told = body.collect().await.unwrap().trailers().cloned().unwrap();
            assert_eq!((told.len(), told.get("x-sum").map(|sum| sum.as_bytes())), (1, Some(&b"7"[..])));
        }
    }
}
