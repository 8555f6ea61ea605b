//! The body of an answer on its way down.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::connection::Line;
use super::pool::Pool;

/// Bytes of an unwanted body that are read to keep its connection; beyond them a new connection is cheaper.
const DISCARD_LIMIT: u64 = 64 * 1024;

/// How long we wait for the rest of an unwanted body.
const DISCARD_WAIT: Duration = Duration::from_millis(100);

/// Idle timeouts beyond this are endless, and sums with it do not overflow.
const ENDLESS: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Why the body of an answer is not whole.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the upstream cut its answer short")]
    Cut(#[source] hyper::Error),
    #[error("the upstream sent nothing for {limit:?} in the middle of its answer")]
    Idle { limit: Duration },
}

/// A body that is still coming in, with the connection it comes on.
///
/// The connection goes back to the pool once the body has ended cleanly. On an error, and when the body is dropped
/// before its end, the connection is closed.
pub struct ReceivedBody {
    incoming: Incoming,
    line: Option<Box<Line>>,
    /// None if the connection cannot be used again.
    pool: Option<Arc<Pool>>,
    idle: IdleTimer,
}

impl ReceivedBody {
    pub(super) fn new(incoming: Incoming, line: Box<Line>, pool: Option<Arc<Pool>>, idle_timeout: Duration) -> Self {
        let mut body = Self { incoming, line: Some(line), pool, idle: IdleTimer::new(idle_timeout) };
        if body.incoming.is_end_stream() {
            body.finish();
        }
        body
    }

    /// Reads a short rest, so that the connection can be used again, and closes it otherwise. Takes a tenth of a second
    /// at most.
    pub async fn discard(self) {
        let expected = self.size_hint().lower();
        if expected <= DISCARD_LIMIT {
            timeout(DISCARD_WAIT, self.drain()).await.unwrap_or_default();
        }
    }

    async fn drain(mut self) {
        let mut left = DISCARD_LIMIT;
        while let Some(Ok(frame)) = self.frame().await {
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return,
            }
        }
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

    fn fail(&mut self, error: BodyError) -> Option<Result<Frame<Bytes>, BodyError>> {
        self.line = None;
        Some(Err(error))
    }
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = this.poll_incoming(cx) else {
            ready!(this.idle.poll_elapsed(cx));
            let limit = this.idle.limit;
            return Poll::Ready(this.fail(BodyError::Idle { limit }));
        };
        this.idle.stop();
        match frame {
            Some(Ok(frame)) => {
                // A reader need not come back after the last byte or the trailers, and usually does not.
                if frame.is_trailers() || this.incoming.is_end_stream() {
                    this.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => Poll::Ready(this.fail(BodyError::Cut(error))),
            None => {
                this.finish();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
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
