//! The body of a request on its way up.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::time::Instant;

/// Whatever a streaming body fails with.
type BodyFailure = Box<dyn Error + Send + Sync>;

/// What a request carries. A clone of a buffered body sends the same bytes again; a clone of a streaming one shares
/// the stream, so that a caller who kept one can send it after an attempt that took nothing from it.
#[derive(Clone, Debug)]
pub enum SendBody {
    /// Buffered bytes, possibly none.
    Full(Bytes),
    /// The caller's own stream, for calls that are not guarded.
    Streaming(Upload),
}

/// A body that can be read once.
#[derive(Clone)]
pub struct Upload(Arc<Source>);

struct Source {
    body: Mutex<UnsyncBoxBody<Bytes, BodyFailure>>,
    taken: Mutex<Option<Instant>>,
    is_broken: AtomicBool,
}

impl SendBody {
    /// For methods and calls without one.
    pub fn empty() -> Self {
        Self::Full(Bytes::new())
    }

    /// Reads `body` once, while it is sent.
    pub fn streaming<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyFailure>,
    {
        let body = Mutex::new(body.map_err(Into::into).boxed_unsync());
        Self::Streaming(Upload(Arc::new(Source { body, taken: Mutex::default(), is_broken: AtomicBool::new(false) })))
    }

    /// Whether the body is no longer whole, so that another attempt cannot send it.
    pub fn is_taken(&self) -> bool {
        self.taken_at().is_some()
    }

    /// When the last piece so far of a streaming body, its end included, was taken to be sent.
    pub fn taken_at(&self) -> Option<Instant> {
        match self {
            Self::Full(_) => None,
            Self::Streaming(upload) => *lock(&upload.0.taken),
        }
    }

    /// Whether a streaming body came to no good end: that is its caller's doing, and no upstream's.
    pub fn is_broken(&self) -> bool {
        match self {
            Self::Full(_) => false,
            Self::Streaming(upload) => upload.0.is_broken.load(Ordering::Relaxed),
        }
    }
}

impl Upload {
    fn body(&self) -> MutexGuard<'_, UnsyncBoxBody<Bytes, BodyFailure>> {
        lock(&self.0.body)
    }

    fn poll_frame(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFailure>>> {
        let frame = ready!(Pin::new(&mut *self.body()).poll_frame(cx));
        *lock(&self.0.taken) = Some(Instant::now());
        if matches!(frame, Some(Err(_))) {
            self.0.is_broken.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("taken", &self.0.taken).finish_non_exhaustive()
    }
}

impl Body for SendBody {
    type Data = Bytes;
    type Error = BodyFailure;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFailure>>> {
        match self.get_mut() {
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Streaming(upload) => upload.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_empty(),
            Self::Streaming(upload) => upload.body().is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Streaming(upload) => upload.body().size_hint(),
        }
    }
}
