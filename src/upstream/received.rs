//! The body of an answer on its way down.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::ahead::{Ahead, LookedAhead};
use super::connection::{HttpError, Line};
use super::http2::StreamBody;
use super::pool::Pool;

/// Bytes of an unwanted body that are read to keep its connection; beyond them a new connection is cheaper.
const DISCARD_LIMIT: u64 = 64 * 1024;

/// Bytes of one that may still be told, if nothing comes after it.
pub const KEPT: usize = 8 * 1024;

/// How long we wait for the rest of an unwanted body.
const DISCARD_WAIT: Duration = Duration::from_millis(100);

/// Idle timeouts beyond this are endless, and sums with it do not overflow.
pub(super) const ENDLESS: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Why the body of an answer is not whole.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the upstream cut its answer short")]
    Cut(#[source] HttpError),
    #[error("the upstream sent nothing for {limit:?} in the middle of its answer")]
    Idle { limit: Duration },
}

/// A body that is still coming in, with the connection it comes on.
///
/// The connection goes back to the pool once the body has ended cleanly. On an error, and when the body is dropped
/// before its end, the connection is closed; of one that is shared, the stream.
pub struct ReceivedBody {
    /// On the heap, for hardly any body has it.
    ahead: Option<Box<Ahead>>,
    source: Source,
    idle: IdleTimer,
}

enum Source {
    Line(LineBody),
    /// On the heap, so that an answer of HTTP/1 is no larger for it.
    Stream(Box<StreamBody>),
}

/// From a connection that carries nothing else meanwhile.
struct LineBody {
    incoming: Incoming,
    line: Option<Box<Line>>,
    /// None if the connection cannot be used again.
    pool: Option<Arc<Pool>>,
}

impl ReceivedBody {
    pub(super) fn new(incoming: Incoming, line: Box<Line>, pool: Option<Arc<Pool>>, idle_timeout: Duration) -> Self {
        let mut body = LineBody { incoming, line: Some(line), pool };
        if body.incoming.is_end_stream() {
            body.finish();
        }
        Self { ahead: None, source: Source::Line(body), idle: IdleTimer::new(idle_timeout) }
    }

    pub(super) fn of_stream(body: StreamBody, idle_timeout: Duration) -> Self {
        Self { ahead: None, source: Source::Stream(Box::new(body)), idle: IdleTimer::new(idle_timeout) }
    }

    /// Reads ahead until more than `most` bytes are here, or the end is. Nothing of it is lost: whoever takes the body has
    /// all of it, also if this is given up in between.
    pub async fn look_ahead(&mut self, most: u64) -> LookedAhead {
        loop {
            if self.ahead.as_ref().is_some_and(|ahead| ahead.length() > most) {
                return LookedAhead::Longer;
            }
            let frame = poll_fn(|cx| self.poll_coming(cx)).await;
            let ahead = self.ahead.get_or_insert_default();
            match frame {
                Some(Ok(frame)) => ahead.put(frame),
                Some(Err(error)) => {
                    ahead.end(Err(error));
                    return LookedAhead::Cut;
                }
                None => {
                    ahead.end(Ok(()));
                    return LookedAhead::Whole(ahead.whole());
                }
            }
        }
    }

    /// Reads a short rest, so that the connection can be used again, and closes it otherwise. Takes a tenth of a second
    /// at most. Gives back what was short enough to be kept, if it came whole.
    pub async fn put_aside(self) -> Option<Bytes> {
        let expected = self.size_hint().lower();
        if expected > DISCARD_LIMIT {
            return None;
        }
        timeout(DISCARD_WAIT, self.drain()).await.ok()?
    }

    async fn drain(mut self) -> Option<Bytes> {
        let (mut left, mut kept) = (DISCARD_LIMIT, Some(BytesMut::new()));
        while let Some(frame) = self.frame().await {
            let Ok(data) = frame.ok()?.into_data() else { continue };
            left = left.checked_sub(data.len() as u64)?;
            kept = kept.filter(|kept| kept.len() + data.len() <= KEPT);
            kept.iter_mut().for_each(|kept| kept.extend_from_slice(&data));
        }
        kept.map(BytesMut::freeze)
    }

    /// What comes behind all that was read ahead.
    fn poll_coming(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = self.poll_source(cx) {
            self.idle.stop();
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Cut)));
        }
        ready!(self.idle.poll_elapsed(cx));
        let limit = self.idle.limit;
        self.source.give_up(limit);
        Poll::Ready(Some(Err(BodyError::Idle { limit })))
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        match &mut self.source {
            Source::Line(body) => body.poll_frame(cx).map_err(HttpError::Http1),
            Source::Stream(body) => body.poll_frame(cx).map_err(HttpError::Http2),
        }
    }
}

impl Source {
    /// Closes the connection, or resets the stream when its owner drops it.
    fn give_up(&mut self, limit: Duration) {
        match self {
            Self::Line(body) => body.line = None,
            Self::Stream(body) => body.give_up(limit),
        }
    }
}

impl LineBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let frame = ready!(self.poll_incoming(cx));
        match &frame {
            // A reader need not come back after the last byte or the trailers, and usually does not.
            Some(Ok(frame)) if frame.is_trailers() || self.incoming.is_end_stream() => self.finish(),
            Some(Ok(_)) => {}
            Some(Err(_)) => self.line = None,
            None => self.finish(),
        }
        Poll::Ready(frame)
    }

    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        // The connection reads a body only when asked; the first poll asks, the second takes what came.
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        if let Some(line) = &mut self.line {
            line.drive(cx);
        }
        Pin::new(&mut self.incoming).poll_frame(cx)
    }

    fn finish(&mut self) {
        if let (Some(line), Some(pool)) = (self.line.take(), self.pool.take()) {
            pool.put(line);
        }
    }
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        match this.ahead.as_mut().and_then(|ahead| ahead.take()) {
            Some(frame) => Poll::Ready(frame),
            None => this.poll_coming(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_over = match &self.source {
            Source::Line(body) => body.incoming.is_end_stream(),
            Source::Stream(body) => body.is_end_stream(),
        };
        is_over && self.ahead.as_ref().is_none_or(|ahead| ahead.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        let coming = match &self.source {
            Source::Line(body) => body.incoming.size_hint(),
            Source::Stream(body) => body.size_hint(),
        };
        let Some(ahead) = &self.ahead else { return coming };
        let mut hint = SizeHint::new();
        hint.set_lower(coming.lower() + ahead.length());
        coming.upper().into_iter().for_each(|upper| hint.set_upper(upper + ahead.length()));
        hint
    }
}

/// Measures how long a reader has been waiting. A body that is there already never touches the timer, and a reader
/// that takes its time is not held against the upstream.
struct IdleTimer {
    limit: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl IdleTimer {
    fn new(limit: Duration) -> Self {
        Self { limit: limit.min(ENDLESS), sleep: None, waiting: false }
    }

    fn stop(&mut self) {
        self.waiting = false;
    }

    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !self.waiting {
            // Moving a deadline further away is cheap; making a timer for every wait is not.
            sleep.as_mut().reset(Instant::now() + limit);
            self.waiting = true;
        }
        sleep.as_mut().poll(cx)
    }
}
