//! The byte stream below HTTP, and the count that tells whether anything of a request left this process.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::address::Address;
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
    /// Where it leads, if that is a place of the network.
    pub(super) address: Option<Arc<Address>>,
}

impl Wire {
    /// Counts what `io` itself takes. A write that fails must have taken nothing, as with sockets.
    pub fn new(io: impl Io + 'static) -> Self {
        let (counted, written) = Counted::new(io);
        Self { io: Box::new(counted), written, http2: false, address: None }
    }

    /// For TLS, which buffers: what counts is what the stream below it has taken. `let_in` if the handshake was over for the
    /// other side, too, before it was for us: until TLS 1.2.
    pub(super) fn counted_below(io: impl Io + 'static, written: Written, http2: bool, let_in: bool) -> Self {
        let io = Entrance { stream: io, let_in, written: written.clone() };
        Self { io: Box::new(io), written, http2, address: None }
    }

    pub(super) fn to(self, address: Arc<Address>) -> Self {
        Self { address: Some(address), ..self }
    }
}

/// What has become of the bytes that the transport was given, and of those that it gave.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    read: AtomicU64,
    shut_out: AtomicBool,
}

impl Written {
    /// That the transport has taken so far; it only grows.
    pub(super) fn bytes(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.0.read.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether the other side ended the connection over our certificate before it said anything else. TLS 1.3 lets a
    /// client write before it is let in; what it wrote was not read then (RFC 8446, section 4.4.4).
    pub(super) fn is_shut_out(&self) -> bool {
        self.0.shut_out.load(Ordering::Relaxed)
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
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.written.0.read.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        outcome
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

/// TLS in which the other side may still be looking at our certificate.
struct Entrance<S> {
    stream: S,
    let_in: bool,
    written: Written,
}

impl<S: AsyncRead + Unpin> AsyncRead for Entrance<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let entrance = &mut *self;
        let read = ready!(Pin::new(&mut entrance.stream).poll_read(cx, buffer));
        match &read {
            Ok(()) => entrance.let_in = true,
            Err(error) if !entrance.let_in && is_about_our_certificate(error) => {
                entrance.written.0.shut_out.store(true, Ordering::Relaxed);
            }
            Err(_) => {}
        }
        Poll::Ready(read)
    }
}

fn is_about_our_certificate(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref());
    matches!(
        error,
        Some(rustls::Error::AlertReceived(
            AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRequired
                | AlertDescription::UnknownCA
        ))
    )
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Entrance<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
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
