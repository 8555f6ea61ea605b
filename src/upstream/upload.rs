//! The body of a request on its way up a stream of HTTP/2, as far as the upstream's windows let it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body;

use super::content::SendBody;

/// Ends when there is nothing more to send. Whether the request came to something, its answer says.
pub(super) struct Upload {
    stream: SendStream<Bytes>,
    body: SendBody,
    /// Taken from the body, and waiting for room.
    piece: Bytes,
    ended: bool,
}

impl Upload {
    pub(super) fn new(stream: SendStream<Bytes>, body: SendBody) -> Self {
        Self { stream, body, piece: Bytes::new(), ended: false }
    }

    /// Sends as much of the piece as there is room for. An error is also the answer's.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        while !self.piece.is_empty() {
            self.stream.reserve_capacity(self.piece.len());
            while self.stream.capacity() == 0 {
                if let Some(room) = ready!(self.stream.poll_capacity(cx)) {
                    room?;
                } else {
                    return Poll::Ready(Err(Reason::STREAM_CLOSED.into()));
                }
            }
            let part = self.piece.split_to(self.stream.capacity().min(self.piece.len()));
            self.ended = self.piece.is_empty() && self.body.is_end_stream();
            self.stream.send_data(part, self.ended)?;
        }
        Poll::Ready(Ok(()))
    }

    /// The next piece; false when all is said.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, h2::Error>> {
        if self.ended {
            return Poll::Ready(Ok(false));
        }
        match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            None => self.stream.send_data(Bytes::new(), true)?,
            Some(Err(_told_to_the_caller)) => self.stream.send_reset(Reason::CANCEL),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(piece) => {
                    self.piece = piece;
                    return Poll::Ready(Ok(true));
                }
                Err(frame) => self.stream.send_trailers(frame.into_trailers().unwrap_or_default())?,
            },
        }
        Poll::Ready(Ok(false))
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            if self.stream.poll_reset(cx)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_piece(cx))?;
            if !ready!(self.poll_next(cx))? {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl Future for Upload {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_all(cx).map(|_the_answer_tells| ())
    }
}
