//! A client's connection as hyper gets it: every byte is followed, no write waits for ever, and the end is gentle.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

use crate::engine::call::Presence;
use crate::server::answers::Answers;
use crate::server::bare;
use crate::server::framing::{Framing, Malformed, Verdict};
use crate::server::interim::Interim;
use crate::server::presence::Lookout;

/// How long a client may go on sending after our last byte. A socket that is closed with unread bytes is reset, and the
/// reset would take the answer (a 413, say) out of the client's hands.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// A stream whose bytes are followed by a [`Framing`].
pub struct Wire<S> {
    stream: S,
    framing: Framing,
    verdict: Arc<Verdict>,
    /// Nothing is read behind it.
    malformed: Option<Malformed>,
    /// Nothing that goes out on HTTP/2 is hyper's own.
    answers: Option<Arc<Answers>>,
    /// How many of them have left hyper's buffers.
    told: u64,
    /// What goes out in place of a refusal of hyper's own, which is the last that hyper writes.
    refusal: Bytes,
    interim: Interim,
    lookout: Lookout,
    /// How long the client may leave its receive buffer full.
    write_idle: Duration,
    /// Runs while a write waits.
    stall: Option<Pin<Box<Sleep>>>,
    /// Nobody lingers while the gateway stops.
    stop: CancellationToken,
    /// Runs since our side was shut down.
    linger: Option<Pin<Box<Sleep>>>,
}

impl<S> Wire<S> {
    /// `verdict` learns of ambiguous heads; what is written while there are no `answers` is hyper's own; a write that
    /// waits longer than `write_idle` is an error.
    pub fn new(
        stream: S,
        verdict: Arc<Verdict>,
        answers: Arc<Answers>,
        write_idle: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self {
            stream,
            framing: Framing::default(),
            verdict,
            malformed: None,
            answers: Some(answers),
            told: 0,
            refusal: Bytes::new(),
            interim: Interim::default(),
            lookout: Lookout::default(),
            write_idle,
            stall: None,
            stop,
            linger: None,
        }
    }

    /// Where to say whether the connection is to end with its client.
    pub fn presence(&self) -> Presence {
        self.lookout.presence()
    }

    /// Where to say what comes before an answer.
    pub fn interim(&self) -> Interim {
        self.interim.clone()
    }

    /// The stream as it is below HTTP, with what was read of it ahead.
    pub fn into_parts(self) -> (S, BytesMut) {
        (self.stream, self.lookout.into_ahead())
    }

    /// The same for HTTP/2, which has a framing of its own.
    pub fn of_http2(stream: S, write_idle: Duration, stop: CancellationToken) -> Self {
        let (framing, answers) = (Framing::none(), None);
        Self { framing, answers, ..Self::new(stream, Arc::default(), Arc::default(), write_idle, stop) }
    }

    /// Puts an explained refusal in the place of a bare one.
    fn explains(&mut self, written: &[u8]) -> bool {
        if self.answers.as_ref().is_none_or(|answers| answers.begun() != self.told) {
            return false;
        }
        let Some(refusal) = bare::explained(written, &self.framing, &self.verdict) else { return false };
        self.refusal = refusal;
        true
    }

    /// hyper's buffers are empty, as always when it flushes: of the answers that it has whole no byte is still to come.
    fn flushed(&mut self) {
        if let Some(ended) = self.answers.as_ref().and_then(|answers| answers.all_ended()) {
            self.told = ended;
        }
    }

    fn written(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.lookout.told();
        }
        self.bounded(context, written)
    }

    /// Lets a write wait no longer than the idle time.
    fn bounded<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(self.write_idle)));
        ready!(stall.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> Wire<S> {
    /// Reads and forgets until the client is done too, or its time is over.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        let mut scrap = [0; 4096];
        while linger.as_mut().poll(context).is_pending() {
            let mut scrap = ReadBuf::new(&mut scrap);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut scrap));
            if read.is_err() || scrap.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = &mut *self;
        if let Some(malformed) = wire.malformed {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, malformed)));
        }
        let before = buffer.filled().len();
        ready!(wire.lookout.poll_read(&mut wire.stream, context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        if let Err(cut) = wire.framing.follow(read, &wire.verdict) {
            wire.malformed = Some(cut.malformed);
            buffer.set_filled(before + cut.heard);
            if cut.heard == 0 {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, cut.malformed)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Wire<S> {
    /// Writes what was said before an answer, of which not one byte may go first.
    fn poll_interim(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let interim = self.interim.clone();
        let Some(mut waiting) = interim.waiting() else { return Poll::Ready(Ok(())) };
        while !waiting.is_empty() {
            let written = Pin::new(&mut self.stream).poll_write(context, &waiting);
            waiting.advance(some(ready!(self.written(context, written))?)?);
        }
        interim.written();
        Poll::Ready(Ok(()))
    }
}

/// A stream that takes nothing would be asked for ever.
fn some(written: usize) -> io::Result<usize> {
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.interim.disturbed();
        ready!(self.poll_interim(context))?;
        if self.explains(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.interim.disturbed();
        ready!(self.poll_interim(context))?;
        if let [only] = slices
            && self.explains(only)
        {
            return Poll::Ready(Ok(only.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.refusal.is_empty() {
            let wire = &mut *self;
            let written = Pin::new(&mut wire.stream).poll_write(context, &wire.refusal);
            let written = some(ready!(wire.bounded(context, written))?)?;
            wire.refusal.advance(written);
        }
        ready!(self.poll_interim(context))?;
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        ready!(self.bounded(context, flushed))?;
        self.flushed();
        let wire = &mut *self;
        wire.interim.settled();
        Poll::Ready(wire.lookout.look(&mut wire.stream, context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            let shut_down = Pin::new(&mut self.stream).poll_shutdown(context);
            ready!(self.bounded(context, shut_down))?;
        }
        if !self.stop.is_cancelled() {
            ready!(self.poll_linger(context));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, DuplexStream, duplex};

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::server::framing::Ambiguity;
    use crate::server::presence::SILENCE;

    const IDLE: Duration = Duration::from_secs(15);

    fn wire() -> (Wire<DuplexStream>, DuplexStream, Arc<Verdict>, CancellationToken) {
        let (ours, theirs) = duplex(64);
        let (verdict, stop) = (Arc::new(Verdict::default()), CancellationToken::new());
        (Wire::new(ours, Arc::clone(&verdict), Arc::default(), IDLE, stop.clone()), theirs, verdict, stop)
    }

    #[tokio::test]
    async fn what_is_read_is_followed() {
        let (mut wire, mut client, verdict, _stop) = wire();
        client.write_all(b"GET /#a HTTP/1.1\r\n").await.unwrap();
        let mut read = [0; 64];
        assert_eq!(wire.read(&mut read).await.unwrap(), 18);
        assert_eq!(verdict.on(1), Some(Ambiguity::Fragment));
    }

    #[tokio::test]
    async fn what_is_said_before_an_answer_stands_between_two_and_in_none() {
        let (mut wire, mut client, _verdict, _stop) = wire();
        let interim = wire.interim();
        let say = || interim.say(StatusCode::PROCESSING, &HeaderMap::new());
        say();
        assert_eq!(wire.write(&[b'a'; 100]).await.unwrap(), 64);
        say();
        let mut read = [0; 64];
        client.read_exact(&mut read).await.unwrap();
        wire.write_all(&[b'a'; 3]).await.unwrap();
        wire.flush().await.unwrap();
        say();
        wire.write_all(b"b").await.unwrap();
        wire.flush().await.unwrap();
        let mut read = [0; 31];
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"aaaHTTP/1.1 102 Processing\r\n\r\nb");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_given_up() {
        let (mut wire, _client, _verdict, _stop) = wire();
        let start = Instant::now();
        let error = wire.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!((error.kind(), start.elapsed()), (io::ErrorKind::TimedOut, IDLE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_take_what_is_buffered_is_given_up() {
        let (ours, _theirs) = duplex(64);
        let mut wire = Wire::new(BufWriter::new(ours), Arc::default(), Arc::default(), IDLE, CancellationToken::new());
        wire.write_all(&[0; 100]).await.unwrap();
        let start = Instant::now();
        let error = wire.flush().await.unwrap_err();
        assert_eq!((error.kind(), start.elapsed()), (io::ErrorKind::TimedOut, IDLE));
    }

    #[tokio::test]
    async fn a_stream_that_takes_nothing_is_not_asked_for_ever() {
        for is_refusal in [false, true] {
            let full = io::Cursor::new(Box::<[u8]>::default());
            let stream = tokio::io::join(tokio::io::empty(), full);
            let mut wire = Wire::new(stream, Arc::default(), Arc::default(), IDLE, CancellationToken::new());
            wire.flush().await.unwrap();
            match is_refusal {
                true => wire.refusal = Bytes::from_static(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
                false => wire.interim().say(StatusCode::PROCESSING, &HeaderMap::new()),
            }
            assert_eq!(wire.flush().await.unwrap_err().kind(), io::ErrorKind::WriteZero);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_on_sending_is_heard_out_for_a_while() {
        let (mut wire, mut client, _verdict, _stop) = wire();
        let start = Instant::now();
        let (ended, sent) = tokio::join!(wire.shutdown(), client.write_all(&[0; 1000]));
        ended.unwrap();
        sent.unwrap();
        assert_eq!(start.elapsed(), LINGER);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_lingers_for_a_client_that_is_gone_or_while_the_gateway_stops() {
        let start = Instant::now();
        let (mut gone, client, _verdict, _stop) = wire();
        drop(client);
        gone.shutdown().await.unwrap();
        let (mut stopping, _client, _verdict, stop) = wire();
        stop.cancel();
        stopping.shutdown().await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    /// Waits until the client is taken for gone, and says how long that took.
    async fn missed(wire: &mut Wire<DuplexStream>) -> Duration {
        let start = Instant::now();
        let flushed = poll_fn(|cx| match Pin::new(&mut *wire).poll_flush(cx) {
            Poll::Ready(Err(gone)) => Poll::Ready(gone),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        });
        assert_eq!(flushed.await.kind(), io::ErrorKind::ConnectionAborted);
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_is_missed_where_its_answer_is_for_it_alone() {
        let (mut wire, client, _verdict, _stop) = wire();
        drop(client);
        wire.flush().await.unwrap();
        wire.presence().ends_with_caller(true);
        assert_eq!(missed(&mut wire).await, SILENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_said_everything_may_listen_as_long_as_there_is_something_to_hear() {
        let (mut wire, mut client, _verdict, _stop) = wire();
        wire.presence().ends_with_caller(true);
        client.shutdown().await.unwrap();
        for _ in 0..5 {
            wire.write_all(b"event").await.unwrap();
            assert!(timeout(SILENCE / 2, missed(&mut wire)).await.is_err());
        }
        assert_eq!(missed(&mut wire).await, SILENCE / 2);
    }

    #[tokio::test]
    async fn what_is_read_ahead_is_read_in_its_place() {
        let (mut wire, mut client, verdict, _stop) = wire();
        wire.presence().ends_with_caller(true);
        client.write_all(b"GET /").await.unwrap();
        wire.flush().await.unwrap();
        client.write_all(b"#a HTTP/1.1\r\n").await.unwrap();
        wire.flush().await.unwrap();
        let mut read = [0; 18];
        wire.read_exact(&mut read).await.unwrap();
        assert_eq!((&read, verdict.on(1)), (b"GET /#a HTTP/1.1\r\n", Some(Ambiguity::Fragment)));
    }
}
