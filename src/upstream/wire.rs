//! The byte stream below HTTP, and the count that tells whether anything of a request left this process.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::crash_point::{self, Point};

/// Whatever carries bytes both ways: a socket, TLS on a socket, or memory in a simulation.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// An open byte stream with the count of the bytes it has taken.
pub struct Wire {
    pub(super) io: Box<dyn Io>,
    pub(super) written: Written,
    /// Agreed by ALPN.
    pub(super) http2: bool,
}

impl Wire {
    /// Counts what `io` itself takes. A write that fails must have taken nothing, as with sockets.
    pub fn new(io: impl Io + 'static) -> Self {
        let (counted, written) = Counted::new(io);
        Self { io: Box::new(counted), written, http2: false }
    }

    /// For a stream that buffers, such as TLS: what counts is what the stream below it has taken.
    pub(super) fn counted_below(io: impl Io + 'static, written: Written, http2: bool) -> Self {
        Self { io: Box::new(io), written, http2 }
    }
}

/// Bytes that the transport has taken so far; it only grows.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(Arc<AtomicU64>);

impl Written {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Counts what goes out through it.
pub(super) struct Counted<S> {
    stream: S,
    written: Written,
}

impl<S> Counted<S> {
    pub(super) fn new(stream: S) -> (Self, Written) {
        let written = Written::default();
        (Self { stream, written: written.clone() }, written)
    }

    fn count(&self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = outcome {
            self.written.add(bytes);
            crash_point::reached(Point::AfterSend);
        }
        outcome
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.count(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.count(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
