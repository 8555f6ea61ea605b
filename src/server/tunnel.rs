//! Where a connection goes on when HTTP is over on it: two streams of bytes, joined (RFC 9110, section 7.8).
//!
//! Nothing of the client's goes on before the upstream's 101 has been passed to it. An end of one side is passed on as
//! an end, the other direction goes on; an error, or silence for too long, closes both. The connection keeps its place
//! among `max_connections`, and is cut with all others when the time to drain is over.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep_until};

use crate::server::presence::take_ahead;
use crate::server::wire::Wire;
use crate::upstream::Switched;

/// The way out of HTTP for one client's connection.
#[derive(Default)]
pub struct Exit(Mutex<Onward>);

/// How a connection goes on when hyper has ended on it.
#[derive(Default)]
enum Onward {
    /// hyper has closed it.
    #[default]
    Closed,
    /// Another protocol was asked for and not granted. hyper leaves such a connection open, also when it has carried other
    /// requests since.
    Open,
    Joined(Box<Switched>),
}

impl Exit {
    /// A request that asked for another protocol was answered; `upstream` is there if the answer is a 101.
    pub fn open(&self, upstream: Option<Box<Switched>>) {
        *lock(&self.0) = upstream.map_or(Onward::Open, Onward::Joined);
    }

    /// Goes on where hyper has ended with `read` in its hands.
    pub async fn leave<S: AsyncRead + AsyncWrite + Unpin>(self, mut wire: Wire<S>, read: &[u8]) {
        let onward = std::mem::take(&mut *lock(&self.0));
        let ended = match onward {
            Onward::Closed => Ok(()),
            Onward::Open => wire.shutdown().await,
            Onward::Joined(upstream) => {
                let (stream, ahead) = wire.into_parts();
                join(stream, Bytes::from([read, &ahead].concat()), *upstream).await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection that had left HTTP ended early");
        }
    }
}

/// Until both sides have ended. `early` came from the client behind its request.
async fn join<S>(client: S, early: Bytes, upstream: Switched) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (last, idle) = (LastByte::now(), upstream.idle_timeout);
    let mut client = Side { early, stream: client, last: last.clone() };
    let mut upstream = Side { early: upstream.early, stream: upstream.io, last: last.clone() };
    tokio::select! {
        joined = copy_bidirectional(&mut client, &mut upstream) => joined.map(|_bytes| ()),
        () = last.is_older_than(idle) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// When a byte came last, from either side.
#[derive(Clone)]
struct LastByte(Arc<Mutex<Instant>>);

impl LastByte {
    fn now() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    async fn is_older_than(&self, idle: Duration) {
        loop {
            let end = *lock(&self.0) + idle;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// One of the two streams, with what was read of it already.
struct Side<S> {
    early: Bytes,
    stream: S,
    last: LastByte,
}

impl<S: AsyncRead + Unpin> AsyncRead for Side<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !take_ahead(&mut self.early, buffer) {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        }
        *lock(&self.last.0) = Instant::now();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Side<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};
    use tokio::time::sleep;

    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn only_silence_of_both_sides_ends_a_tunnel() {
        let (client, mut outside) = duplex(64);
        let (io, mut service) = duplex(64);
        let upstream = Switched { io: Box::new(io), early: Bytes::from_static(b"hi"), idle_timeout: IDLE };
        let tunnel = tokio::spawn(join(client, Bytes::from_static(b"ho"), upstream));
        let mut read = [0; 2];
        for _ in 0..3 {
            outside.read_exact(&mut read).await.unwrap();
            sleep(IDLE / 2).await;
            service.write_all(&read).await.unwrap();
        }
        service.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"ho");
        let start = Instant::now();
        assert_eq!(tunnel.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), IDLE);
    }
}
