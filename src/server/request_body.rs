//! The body of a request as it comes, which may be left unread.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::server::wire::LINGER;

/// Bytes of a client, as long as somebody wants them.
///
/// In HTTP/2 a stream that is answered before its end is reset, and there are clients that go on sending and take the
/// reset for a failure instead of reading the answer. So what nobody wants is read for a while, as behind an answer that
/// ends a connection of HTTP/1; after that the stream is reset with `NO_ERROR` (RFC 9113, section 8.1).
pub struct RequestBody {
    incoming: Option<Incoming>,
    leftovers: Option<Leftovers>,
}

/// Where the rest of a body is read that nobody wants.
#[derive(Clone)]
pub(super) struct Leftovers {
    pub tasks: TaskTracker,
    /// Nobody lingers while the gateway stops.
    pub stop: CancellationToken,
}

impl RequestBody {
    /// In HTTP/1 the connection sees to what is left.
    pub(super) fn of_http1(incoming: Incoming) -> Self {
        Self { incoming: Some(incoming), leftovers: None }
    }

    pub(super) fn of_http2(incoming: Incoming, leftovers: Leftovers) -> Self {
        Self { incoming: Some(incoming), leftovers: Some(leftovers) }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let (Some(body), Some(leftovers)) = (self.incoming.take(), self.leftovers.take()) else { return };
        if body.is_end_stream() {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            leftovers.tasks.spawn_on(linger(body, leftovers.stop), &runtime);
        }
    }
}

async fn linger(mut body: Incoming, stop: CancellationToken) {
    let rest = async { while let Some(Ok(_unwanted)) = body.frame().await {} };
    stop.run_until_cancelled(timeout(LINGER, rest)).await.unwrap_or(Ok(())).unwrap_or_default();
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.incoming {
            Some(incoming) => Pin::new(incoming).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
