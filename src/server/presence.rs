//! Whether a client is still there while nobody reads from it.
//!
//! hyper does not look at a connection while it waits for an answer, lest a client that has said everything and shut its
//! side down loses what is made for it. A client that has left looks the same; but what is told to one that has left
//! comes back as an error. So only silence has to be bounded.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::engine::call::Presence;

/// How long a client that has shut its side down may hear nothing before it is taken for one that has left.
pub(super) const SILENCE: Duration = Duration::from_millis(500);

/// Bytes that are read ahead at most.
const LOOK_AHEAD: usize = 1024;

/// Hands on what was read of a stream ahead of its reader; false once there is no more of it.
pub(super) fn take_ahead(ahead: &mut impl Buf, buffer: &mut ReadBuf<'_>) -> bool {
    let (is_there, room) = (ahead.has_remaining(), buffer.remaining());
    buffer.put(ahead.take(room));
    is_there
}

/// Reads from a client, and looks after it while nobody else does.
#[derive(Default)]
pub(super) struct Lookout {
    presence: Presence,
    /// Came while nobody asked for it.
    ahead: BytesMut,
    /// The last read found nothing, so that its reader is woken by what comes, an end included.
    is_reading: bool,
    /// Runs while a client that has shut its side down hears nothing.
    silence: Option<Pin<Box<Sleep>>>,
}

impl Lookout {
    /// Where to say whether the connection is to end with its client.
    pub(super) fn presence(&self) -> Presence {
        self.presence.clone()
    }

    pub(super) fn into_ahead(self) -> BytesMut {
        self.ahead
    }

    /// For whoever reads on the connection.
    pub(super) fn poll_read(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = match take_ahead(&mut self.ahead, buffer) {
            true => Poll::Ready(Ok(())),
            false => Pin::new(stream).poll_read(context, buffer),
        };
        self.is_reading = read.is_pending();
        read
    }

    /// Something was written to the client.
    pub(super) fn told(&mut self) {
        self.silence = None;
    }

    /// Looks for the end of the client's side while nobody reads. What comes instead is kept for the reader, who is woken:
    /// it may be waiting for nothing else.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) fn look(&mut self, stream: &mut (impl AsyncRead + Unpin), context: &mut Context<'_>) -> io::Result<()> {
        if self.is_reading || !self.ahead.is_empty() || !self.presence.is_asked_for() {
            return Ok(());
        }
        if self.silence.is_none() {
            let mut space = [const { MaybeUninit::uninit() }; LOOK_AHEAD];
            let mut buffer = ReadBuf::uninit(&mut space);
            let Poll::Ready(read) = Pin::new(stream).poll_read(context, &mut buffer) else { return Ok(()) };
            read?;
            if !buffer.filled().is_empty() {
                self.ahead.extend_from_slice(buffer.filled());
                context.waker().wake_by_ref();
                return Ok(());
            }
        }
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(SILENCE)));
        match silence.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}
