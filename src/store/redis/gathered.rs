//! What many steps say in one turn of the loop goes to the server together.
//!
//! The library flushes whenever it has eight kilobytes, which is four steps or so. Each of its writes is a system call
//! here and one in the server, and the server answers in as many pieces: at 32 connections this saves two in three.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::store::redis::line::Uptake;

/// Bytes with which the library flushes though it has more to say.
const FULL: usize = 8 << 10;
/// Bytes that wait at most before the server has to take some.
const MOST: usize = 256 << 10;

/// A connection that takes a flush of a full buffer for what it is: not the last of its turn.
pub(super) struct Gathered<S> {
    stream: S,
    uptake: Uptake,
    waiting: BytesMut,
    /// The last piece was as large as the library lets one become.
    was_full: bool,
}

impl<S> Gathered<S> {
    pub(super) fn new(stream: S, uptake: Uptake) -> Self {
        Self { stream, uptake, waiting: BytesMut::new(), was_full: false }
    }
}

impl<S: AsyncWrite + Unpin> Gathered<S> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.waiting))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => {
                    if self.waiting.len() > MOST {
                        self.uptake.goes_on();
                    }
                    self.waiting.advance(written);
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.waiting.len() >= MOST {
            ready!(self.poll_send(cx))?;
        }
        self.waiting.extend_from_slice(bytes);
        self.was_full = bytes.len() >= FULL;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.was_full) {
            // It may have been the last one all the same.
            cx.waker().wake_by_ref();
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// How much has arrived.
    async fn arrived(server: &mut DuplexStream) -> usize {
        let mut read = vec![0; 4 * MOST];
        tokio::select! {
            biased;
            read = server.read(&mut read) => read.unwrap(),
            () = std::future::ready(()) => 0,
        }
    }

    #[tokio::test]
    async fn full_pieces_wait_for_the_last_one_of_the_turn() {
        let (stream, mut server) = duplex(4 * MOST);
        let mut gathered = Gathered::new(stream, Uptake::new());
        for length in [FULL, FULL + 7] {
            gathered.write_all(&vec![b'a'; length]).await.unwrap();
            gathered.flush().await.unwrap();
            assert_eq!(arrived(&mut server).await, 0);
        }
        gathered.write_all(b"b").await.unwrap();
        gathered.flush().await.unwrap();
        assert_eq!(arrived(&mut server).await, 2 * FULL + 8);
    }

    #[tokio::test]
    async fn a_full_piece_that_was_the_last_goes_out_in_the_next_turn() {
        let (stream, mut server) = duplex(4 * MOST);
        let mut gathered = Gathered::new(stream, Uptake::new());
        gathered.write_all(&[b'a'; FULL]).await.unwrap();
        let mut turns = 0;
        std::future::poll_fn(|cx| {
            let flushed = Pin::new(&mut gathered).poll_flush(cx);
            turns += 1;
            if turns == 1 { Poll::Pending } else { flushed }
        })
        .await
        .unwrap();
        assert_eq!((turns, arrived(&mut server).await), (2, FULL), "the first turn has asked for another");
    }

    #[tokio::test]
    async fn a_server_that_takes_nothing_is_waited_for() {
        let (stream, mut server) = duplex(FULL);
        let mut gathered = Gathered::new(stream, Uptake::new());
        let pieces = MOST / FULL;
        for _ in 0..pieces {
            gathered.write_all(&[b'a'; FULL]).await.unwrap();
        }
        let write = tokio::spawn(async move {
            gathered.write_all(&[b'a'; FULL]).await.unwrap();
            gathered.shutdown().await.unwrap();
        });
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        write.await.unwrap();
        assert_eq!(all.len(), (pieces + 1) * FULL);
    }
}
