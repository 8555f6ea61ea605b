//! HTTP/2 to an upstream: connections that many requests share.
//!
//! Such a connection has a task, for it belongs to no request alone; the task moves bytes and nothing else. A request that
//! is given up resets its stream, and no request is ever sent by anybody but [`Slot::send`].

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, TRANSFER_ENCODING};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Request, Response, Uri, Version};
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::address::Address;
use super::connection::{HttpError, MAX_HEAD, SendError};
use super::content::SendBody;
use super::interim::OnInterim;
use super::upload::Upload;
use super::wire::{Io, Wire, Written};
use super::{CAREFUL_IDLE, ConnectError, Endpoint};
use crate::idleness::{Busy, Idleness};
use crate::protocol::Protocol;

/// Requests at once on one connection, if the upstream allows as many.
const STREAMS: usize = 100;

/// Bytes of an answer that may come ahead of whoever reads it. All streams together have as much as all of them, so that
/// one client that reads slowly holds up no other.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS as u32;

/// The connections to one upstream, on one thread.
pub(super) struct SharedLines {
    protocol: Protocol,
    lines: Mutex<Vec<Arc<SharedLine>>>,
    /// One is opened at a time: those who wait for it find room on it.
    opening: tokio::sync::Mutex<()>,
    /// What comes next is not likely to be HTTP/2, so that nobody need wait.
    unlikely: AtomicBool,
}

impl SharedLines {
    /// Without TLS nothing is agreed, and HTTP/2 is spoken only if it has to be.
    pub(super) fn new(protocol: Protocol, tls: bool) -> Self {
        let unlikely = match protocol {
            Protocol::Auto => !tls,
            Protocol::Http1 => true,
            Protocol::Http2 => false,
        };
        let opening = tokio::sync::Mutex::default();
        Self { protocol, lines: Mutex::default(), opening, unlikely: AtomicBool::new(unlikely) }
    }

    /// Whether a new stream is to become one of these.
    pub(super) fn takes(&self, wire: &Wire, endpoint: &Endpoint) -> Result<bool, ConnectError> {
        match self.protocol {
            Protocol::Http1 => Ok(false),
            Protocol::Http2 if endpoint.tls && !wire.http2 => {
                Err(ConnectError::NoHttp2 { host: endpoint.host.clone() })
            }
            Protocol::Http2 => Ok(true),
            Protocol::Auto => {
                self.unlikely.store(!wire.http2, Ordering::Relaxed);
                Ok(wire.http2)
            }
        }
    }

    /// Room on a connection that was opened at `since` or later, as far as is known.
    pub(super) fn slot(&self, since: Option<Instant>) -> Option<Slot> {
        let mut lines = self.lock();
        lines.retain(|line| line.is_alive());
        lines.iter().filter(|line| since.is_none_or(|since| line.opened >= since)).find_map(SharedLine::slot)
    }

    /// Waits for whoever is opening a connection, where that may help.
    pub(super) async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let helps = || !self.unlikely.load(Ordering::Relaxed);
        if !helps() {
            return None;
        }
        // Whoever was before us may have learned that it does not.
        Some(self.opening.lock().await).filter(|_| helps())
    }

    /// Lets others use a connection.
    pub(super) fn add(&self, line: Arc<SharedLine>) {
        self.lock().push(line);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<SharedLine>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection.
pub(super) struct SharedLine {
    sender: SendRequest<Bytes>,
    ping: tokio::sync::Mutex<PingPong>,
    scheme: Scheme,
    written: Written,
    address: Option<Arc<Address>>,
    opened: Instant,
    carried: AtomicBool,
    /// No request is begun here any more.
    retired: AtomicBool,
    /// When the upstream last showed that it is there.
    heard: Mutex<Instant>,
    idleness: Arc<Idleness>,
}

impl SharedLine {
    /// Waits until the upstream has answered in HTTP/2, for nothing may be sent to one that does not speak it. The
    /// connection closes when it has been without a request for `idle_for`.
    pub(super) async fn open(wire: Wire, tls: bool, idle_for: Duration) -> Result<Arc<Self>, ConnectError> {
        let (sender, mut connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEAD as u32)
            .enable_push(false)
            .handshake(wire.io)
            .await
            .map_err(ConnectError::Http2)?;
        let Some(ping) = connection.ping_pong() else { return Err(ConnectError::NoRoom) };
        let (now, idleness) = (Instant::now(), Idleness::new());
        tokio::spawn(drive(connection, Arc::clone(&idleness), idle_for));
        let line = Self {
            sender,
            ping: tokio::sync::Mutex::new(ping),
            scheme: if tls { Scheme::HTTPS } else { Scheme::HTTP },
            written: wire.written,
            address: wire.address,
            opened: now,
            carried: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            heard: Mutex::new(now),
            idleness,
        };
        line.ask().await.map_err(ConnectError::Http2)?;
        Ok(Arc::new(line))
    }

    async fn ask(&self) -> Result<(), h2::Error> {
        self.ping.lock().await.ping(Ping::opaque()).await?;
        self.hear();
        Ok(())
    }

    /// Whether the upstream still takes requests here: it did not close, it did not say that it is going away, it is not
    /// silent, and its name still leads here.
    fn is_alive(&self) -> bool {
        let is_gone = self.address.as_ref().is_some_and(|address| address.is_gone());
        let ready = self.sender.clone().poll_ready(&mut Context::from_waker(Waker::noop()));
        matches!(ready, Poll::Ready(Ok(()))) && !self.retired.load(Ordering::Relaxed) && !is_gone
    }

    /// Nothing has come since then, though something should have: the way may be cut, and other requests must not wait
    /// for the kernel to find out.
    fn doubt(&self, since: Instant) {
        if self.heard() < since {
            self.retired.store(true, Ordering::Relaxed);
        }
    }

    /// A place for one more request, if the upstream lets us have it.
    pub(super) fn slot(self: &Arc<Self>) -> Option<Slot> {
        let room = self.sender.current_max_send_streams().min(STREAMS);
        (self.idleness.busy() < room).then(|| Slot {
            busy: self.idleness.begin(),
            line: Arc::clone(self),
            reused: self.carried.swap(true, Ordering::Relaxed),
        })
    }

    fn hear(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn heard(&self) -> Instant {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends with the connection, or once nobody has needed it for `idle_for`.
async fn drive(connection: Connection<Box<dyn Io>>, idleness: Arc<Idleness>, idle_for: Duration) {
    let mut connection = pin!(connection);
    tokio::select! {
        end = connection.as_mut() => if let Err(error) = end {
            tracing::debug!(%error, "a connection to an upstream ended early");
        },
        () = idleness.lasts(idle_for) => {}
    }
}

/// A place for one request on a connection.
pub(super) struct Slot {
    line: Arc<SharedLine>,
    busy: Busy,
    reused: bool,
}

impl Slot {
    /// Whether the connection carried a request before.
    pub(super) fn reused(&self) -> bool {
        self.reused
    }

    /// Whether the upstream was heard of within `longest`, or answers a ping within `patience`.
    pub(super) async fn is_sound(&self, longest: Duration, patience: Duration) -> bool {
        let heard = self.line.heard();
        if heard.elapsed() < longest || matches!(timeout(patience, self.line.ask()).await, Ok(Ok(()))) {
            return true;
        }
        self.line.doubt(Instant::now());
        false
    }

    /// As [`Connection::send`](super::Connection::send), except that only the stream ends with an error.
    pub(super) async fn send(
        self,
        request: Request<SendBody>,
        interim: Option<OnInterim>,
    ) -> Result<Response<StreamBody>, SendError> {
        let (head, body) = self.in_http2(request);
        let before = self.line.written.bytes();
        let mut sender = self.line.sender.clone();
        let (answer, stream) = sender.send_request(head, body.is_none()).map_err(not_sent)?;
        let upload = body.map(|body| Upload::new(stream, body));
        let waiting = Waiting { line: Arc::clone(&self.line), since: Instant::now() };
        let answered = exchange(answer, upload, interim).await;
        self.line.hear();
        drop(waiting);
        match answered {
            Ok((response, upload)) => Ok(self.receive(response, upload)),
            Err(error) => Err(self.unanswered(error, before)),
        }
    }

    /// The head without what belongs to HTTP/1, and the body unless there is none.
    fn in_http2(&self, request: Request<SendBody>) -> (Request<()>, Option<SendBody>) {
        let (mut head, body) = request.into_parts();
        head.version = Version::HTTP_2;
        let host = head.headers.remove(HOST);
        let authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        let mut target = std::mem::take(&mut head.uri).into_parts();
        (target.scheme, target.authority) = (Some(self.line.scheme.clone()), authority);
        // Without an authority the request is refused below, unsent.
        head.uri = Uri::from_parts(target).unwrap_or_default();
        head.headers.remove(TRANSFER_ENCODING);
        if is_grpc(&head.headers) {
            head.headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        let is_empty = http_body::Body::is_end_stream(&body);
        (Request::from_parts(head, ()), (!is_empty).then_some(body))
    }

    /// What the end of a stream without an answer proves. REFUSED_STREAM, and a GOAWAY that does not reach the stream, are
    /// the upstream's word that it did not look at the request (RFC 9113, section 8.7); `h2` marks no other stream as
    /// ended by a GOAWAY from the other side.
    fn unanswered(&self, error: h2::Error, before: u64) -> SendError {
        let refused = error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM);
        if error.is_remote() && refused {
            return SendError::Refused { cause: error };
        }
        if self.line.written.is_shut_out() {
            return SendError::ShutOut { cause: HttpError::Http2(error) };
        }
        if self.line.written.bytes() == before {
            return not_sent(error);
        }
        match error.is_library() {
            true => SendError::BadHead { cause: error.into() },
            false => SendError::MaybeSent { cause: error.into() },
        }
    }

    fn receive(self, response: Response<RecvStream>, upload: Option<Upload>) -> Response<StreamBody> {
        // A client that reads after it has written all must not wait for itself.
        let upload = upload.map(|upload| AbortOnDropHandle::new(tokio::spawn(upload)));
        let length = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        response.map(|stream| StreamBody { stream, left: length, line: self.line, _busy: self.busy, _upload: upload })
    }
}

fn not_sent(source: h2::Error) -> SendError {
    SendError::NotSent { source: HttpError::Http2(source) }
}

/// A request without an answer so far. Whoever gives one up after a while leaves a connection on which nothing came.
struct Waiting {
    line: Arc<SharedLine>,
    since: Instant,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.since.elapsed() >= CAREFUL_IDLE {
            self.line.doubt(self.since);
        }
    }
}

/// The head of the answer, and the upload if it is not over by then.
async fn exchange(
    mut answer: ResponseFuture,
    mut upload: Option<Upload>,
    interim: Option<OnInterim>,
) -> Result<(Response<RecvStream>, Option<Upload>), h2::Error> {
    let response = std::future::poll_fn(|cx| {
        if let Some(interim) = &interim {
            while let Poll::Ready(Some(Ok(told))) = answer.poll_informational(cx) {
                interim.hear(told.status(), told.headers());
            }
        }
        if upload.as_mut().is_some_and(|upload| Pin::new(upload).poll(cx).is_ready()) {
            upload = None;
        }
        Pin::new(&mut answer).poll(cx)
    });
    let response = response.await?;
    Ok((response, upload))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|media| media.as_bytes().starts_with(b"application/grpc"))
}

/// The body of an answer. Dropped before its end it resets the stream.
pub(super) struct StreamBody {
    stream: RecvStream,
    /// By `Content-Length`.
    left: Option<u64>,
    line: Arc<SharedLine>,
    _busy: Busy,
    _upload: Option<AbortOnDropHandle<()>>,
}

impl StreamBody {
    /// The window is given back as the reader takes what came, and not before.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match ready!(self.stream.poll_data(cx)) {
            Some(Ok(data)) => {
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                self.line.hear();
                Poll::Ready(Some(self.stream.flow_control().release_capacity(data.len()).map(|()| Frame::data(data))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => {
                let trailers = ready!(self.stream.poll_trailers(cx));
                Poll::Ready(trailers.transpose().map(|trailers| trailers.map(Frame::trailers)))
            }
        }
    }

    /// Nothing came for `limit`.
    pub(super) fn give_up(&self, limit: Duration) {
        if let Some(since) = Instant::now().checked_sub(limit) {
            self.line.doubt(since);
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
