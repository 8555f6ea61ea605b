//! A client that speaks HTTP/2: many requests at once on one connection.
//!
//! Each stream is a task, for the others must go on while one waits. A client that resets its stream drops the task, as
//! closing the connection does in HTTP/1; what a guarded call has begun is not the task's to end.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{COOKIE, HOST};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;
use tokio::task_local;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::idleness::Idleness;
use crate::server::body::{BoxError, ResponseBody};
use crate::server::door::MAX_FIELDS;
use crate::server::listener::Limits;
use crate::server::request_body::{Leftovers, RequestBody};

/// How a client begins that knows that we speak HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a request body that one stream, and all of a connection, may send ahead of whoever reads them.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// The most of an answer that is handed over at once, so that a client which grants no window holds no more than this.
const PIECE: usize = 64 << 10;

/// What a field costs beside its bytes in the limit that HTTP/2 has for a head (RFC 9113, section 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// Whether the client opens with the preface of HTTP/2. Nothing is taken from the stream. The caller bounds the time.
///
/// # Errors
/// The socket failed.
pub(super) async fn is_prior_knowledge(stream: &TcpStream) -> io::Result<bool> {
    let mut start = [0; PREFACE.len()];
    loop {
        // Asked first: what is not there then never comes, and a stream that has ended would wake us for ever.
        let has_ended = stream.ready(Interest::READABLE).await?.is_read_closed();
        let length = stream.peek(&mut start).await?;
        let start = start.get(..length).unwrap_or_default();
        if start.is_empty() || !PREFACE.starts_with(start) {
            return Ok(false);
        }
        if length == PREFACE.len() || has_ended {
            return Ok(length == PREFACE.len());
        }
        // The part that is there must not wake us again; the next one will.
        stream.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into())).ok();
    }
}

/// What a connection needs of its listener.
pub(super) struct Connection {
    pub limits: Limits,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
    pub cut: CancellationToken,
}

impl Connection {
    /// Serves until the client closes. A connection without a request for `header_timeout`, or one that is to stop, is
    /// told to go away, and closed once nothing is under way on it.
    pub(super) async fn serve<IO, S, F>(self, wire: IO, service: S) -> hyper::Result<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
        S: Fn(Request<RequestBody>) -> F,
        F: Future<Output = Response<ResponseBody>> + Send + 'static,
    {
        let idleness = Idleness::new();
        let leftovers = Leftovers { tasks: self.tasks.clone(), stop: self.stop.clone() };
        let service = service_fn(move |mut request: Request<Incoming>| {
            name_host(request.uri().authority().cloned(), request.headers_mut());
            join_cookies(request.headers_mut());
            let answer = service(request.map(|body| RequestBody::of_http2(body, leftovers.clone())));
            async move { Ok::<_, Infallible>(answer.await.map(Paced::new)) }
        });
        let connection = self.http(&idleness).serve_connection(TokioIo::new(wire), service);
        let mut connection = pin!(connection);
        tokio::select! {
            end = connection.as_mut() => return end,
            () = self.stop.cancelled() => {}
            () = idleness.lasts(self.limits.header_timeout) => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            end = connection => end,
            () = idleness.lasts(self.limits.write_idle) => Ok(()),
            () = self.cut.cancelled() => Ok(()),
        }
    }

    fn http(&self, idleness: &Arc<Idleness>) -> Builder<Streams> {
        let streams = Streams {
            tasks: self.tasks.clone(),
            cut: self.cut.clone(),
            idleness: Arc::clone(idleness),
            write_idle: self.limits.write_idle,
        };
        let head = self.limits.max_head.saturating_add(MAX_FIELDS * FIELD_OVERHEAD);
        let mut builder = Builder::new(streams);
        builder
            .max_concurrent_streams(self.limits.max_concurrent_streams)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
            .max_send_buf_size(PIECE);
        builder
    }
}

/// What HTTP/2 says in `:authority` everybody behind this looks for in `Host` (RFC 9113, section 8.3.1). Where there are
/// both, the door compares them.
fn name_host(authority: Option<Authority>, headers: &mut HeaderMap) {
    let host = authority.and_then(|authority| HeaderValue::try_from(authority.as_str()).ok());
    if let Some(host) = host {
        headers.entry(HOST).or_insert(host);
    }
}

/// HTTP/2 lets a client split its cookies over several lines, which HTTP/1 does not know (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::try_from(lines.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Runs the streams of one connection. They end with their client's patience, with a cut, or when the client does not
/// take what it is given.
#[derive(Clone)]
struct Streams {
    tasks: TaskTracker,
    cut: CancellationToken,
    idleness: Arc<Idleness>,
    write_idle: Duration,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (cut, busy, limit) = (self.cut.clone(), self.idleness.begin(), self.write_idle);
        self.tasks.spawn(async move {
            let pace = Arc::new(Pace::default());
            tokio::select! {
                () = PACE.scope(Arc::clone(&pace), stream) => {}
                () = pace.stalls(limit) => tracing::debug!("a client left its answer unread"),
                () = cut.cancelled() => {}
            }
            drop(busy);
        });
    }
}

task_local! {
    /// Of the stream that the task runs.
    static PACE: Arc<Pace>;
}

/// Since when a stream has a piece that its client has not taken.
#[derive(Default)]
struct Pace(Mutex<Option<Instant>>);

impl Pace {
    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one piece has not been taken for `limit`; looks no more often than that.
    async fn stalls(&self, limit: Duration) {
        loop {
            match self.get() {
                None => sleep(limit).await,
                Some(since) => {
                    sleep_until(since + limit).await;
                    if self.get() == Some(since) {
                        return;
                    }
                }
            }
        }
    }
}

/// An answer in pieces that are counted as taken when the next one is asked for.
struct Paced {
    body: ResponseBody,
    /// Of a piece that was too large.
    rest: Bytes,
    pace: Option<Arc<Pace>>,
}

impl Paced {
    fn new(body: ResponseBody) -> Self {
        Self { body, rest: Bytes::new(), pace: PACE.try_with(Arc::clone).ok() }
    }

    fn piece(&mut self, mut data: Bytes) -> Frame<Bytes> {
        self.rest = data.split_off(data.len().min(PIECE));
        self.given(Some(Instant::now()));
        Frame::data(data)
    }

    fn given(&self, since: Option<Instant>) {
        if let Some(pace) = &self.pace {
            pace.set(since);
        }
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let paced = &mut *self;
        paced.given(None);
        if !paced.rest.is_empty() {
            let rest = std::mem::take(&mut paced.rest);
            return Poll::Ready(Some(Ok(paced.piece(rest))));
        }
        let polled = Pin::new(&mut paced.body).poll_frame(context);
        polled.map_ok(|frame| match frame.into_data() {
            Ok(data) => paced.piece(data),
            Err(trailers) => trailers,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        self.body.size_hint().exact().map_or_else(SizeHint::default, |body| SizeHint::with_exact(body + rest))
    }
}
