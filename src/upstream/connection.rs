//! One connection and one request on it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::ConnectError;
use super::address::Address;
use super::content::SendBody;
use super::http2::Slot;
use super::interim::OnInterim;
use super::pool::Pool;
use super::received::ReceivedBody;
use super::switched::Switched;
use super::wire::{Io, Wire, Written};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Bytes of an answer's head, or of its trailers, that we are willing to read; its fields are limited to 100 by the parser.
pub(super) const MAX_HEAD: usize = 64 * 1024;

/// What went wrong, mostly in the words of the library that speaks the protocol.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error(transparent)]
    Http1(#[from] hyper::Error),
    #[error(transparent)]
    Http2(#[from] h2::Error),
    /// Two hops could cut the body off at two places (RFC 9112, section 6.3).
    #[error("the body is framed in more than one way, or by a coding other than chunked")]
    Framing,
    #[error("informational answers go on without end")]
    Endless,
}

/// Bytes of informational answers before the answer itself.
const MOST_INTERIM: u64 = 4 * MAX_HEAD as u64;

/// What became of a request that got no answer.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Proven: the transport took not one byte of it.
    #[error("the connection ended before a byte of the request was written")]
    NotSent { source: HttpError },
    /// Proven by the upstream's own word: it did not look at the request.
    #[error("the upstream turned the request away before it looked at it")]
    Refused {
        #[source]
        cause: h2::Error,
    },
    /// Proven by the upstream's own word: the handshake was not over for it, so it read nothing that came behind.
    #[error("the upstream does not accept the certificate of the gateway, or wants one")]
    ShutOut {
        #[source]
        cause: HttpError,
    },
    /// Bytes were written and no answer came. The upstream may have acted on them.
    #[error("the connection ended after bytes of the request were written and before an answer")]
    MaybeSent {
        #[source]
        cause: HttpError,
    },
    /// An answer came, but its head is malformed or too large. The request was sent.
    #[error("the head of the answer is malformed or too large")]
    BadHead {
        #[source]
        cause: HttpError,
    },
}

/// What comes of a request for another protocol.
pub enum Reply {
    /// The upstream stays with HTTP.
    Answer(Response<ReceivedBody>),
    Switched(Response<Switched>),
}

/// A connection that is ready for one request.
pub struct Connection {
    carrier: Carrier,
    idle_timeout: Duration,
    interim: Option<OnInterim>,
}

/// What the request goes on.
enum Carrier {
    /// A connection of its own, for the time.
    Line { line: Box<Line>, pool: Arc<Pool>, reused: bool },
    /// A stream of HTTP/2.
    Slot(Slot),
}

impl Connection {
    pub(super) fn new(line: Box<Line>, pool: Arc<Pool>, reused: bool, idle_timeout: Duration) -> Self {
        Self { carrier: Carrier::Line { line, pool, reused }, idle_timeout, interim: None }
    }

    pub(super) fn shared(slot: Slot, idle_timeout: Duration) -> Self {
        Self { carrier: Carrier::Slot(slot), idle_timeout, interim: None }
    }

    /// Lets `interim` hear of the informational answers to the request; without it they are skipped.
    pub fn telling(self, interim: Option<OnInterim>) -> Self {
        Self { interim, ..self }
    }

    /// Whether it carried a request before.
    pub fn reused(&self) -> bool {
        match &self.carrier {
            Carrier::Line { reused, .. } => *reused,
            Carrier::Slot(slot) => slot.reused(),
        }
    }

    /// Sends `request` once and waits for the head of the answer, without a limit of its own.
    ///
    /// The target must be in origin form and `Host` present; how the body is framed is decided here, whatever
    /// `Content-Length` and `Transfer-Encoding` say. A 101 is an answer like any other: whoever asks for another protocol
    /// uses [`switch`](Self::switch).
    ///
    /// On success the connection lives on in the body; on an error it is closed. Dropping the future closes it too, and
    /// then the caller must assume that the request was sent. In HTTP/2 all this is said of the stream.
    ///
    /// # Errors
    /// There is no answer; the variant says whether the upstream may have seen the request.
    pub async fn send(self, mut request: Request<SendBody>) -> Result<Response<ReceivedBody>, SendError> {
        frame(&mut request);
        let idle_timeout = self.idle_timeout;
        match self.carrier {
            Carrier::Line { mut line, pool, .. } => {
                name_hop_by_hop(request.headers_mut());
                if let Some(interim) = self.interim {
                    interim.attach(&mut request);
                }
                let (response, _ended) = line.send(request).await?;
                Ok(receive(response, line, pool, idle_timeout))
            }
            Carrier::Slot(slot) => {
                let response = slot.send(request, self.interim).await?;
                Ok(response.map(|body| ReceivedBody::of_stream(body, idle_timeout)))
            }
        }
    }

    /// As [`send`](Self::send), for a request that asks for another protocol. A 101 to it comes with the stream. HTTP/2
    /// knows no `Upgrade`: there nothing is asked.
    ///
    /// # Errors
    /// As with `send`.
    pub async fn switch(self, mut request: Request<SendBody>) -> Result<Reply, SendError> {
        let idle_timeout = self.idle_timeout;
        let Carrier::Line { mut line, pool, .. } = self.carrier else {
            request.headers_mut().remove(CONNECTION);
            request.headers_mut().remove(UPGRADE);
            return self.send(request).await.map(Reply::Answer);
        };
        frame(&mut request);
        name_hop_by_hop(request.headers_mut());
        let (response, ended) = line.send(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Reply::Answer(receive(response, line, pool, idle_timeout)));
        }
        let driver = match ended {
            Some(driver) => driver,
            None => line.end().await,
        };
        let parts = driver.into_parts();
        let switched = Switched::new(parts.io.into_inner(), parts.read_buf, idle_timeout);
        Ok(Reply::Switched(response.map(|_nothing| switched)))
    }
}

/// The codec would go on in HTTP/1.0 itself, where a body of unknown length cannot be sent.
fn receive(
    response: Response<Incoming>,
    line: Box<Line>,
    pool: Arc<Pool>,
    idle_timeout: Duration,
) -> Response<ReceivedBody> {
    let pool = (response.version() != Version::HTTP_10).then_some(pool);
    response.map(|incoming| ReceivedBody::new(incoming, line, pool, idle_timeout))
}

/// Gives the request the one framing that fits its body and method (RFC 9112, section 6; RFC 9110, section 8.6).
fn frame(request: &mut Request<SendBody>) {
    *request.version_mut() = Version::HTTP_11;
    let length = request.body().size_hint().exact();
    let is_for_bodies = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    let says_zero = is_for_bodies || request.headers().contains_key(CONTENT_LENGTH);
    let headers = request.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.remove(TRANSFER_ENCODING);
    match length {
        Some(0) if !says_zero => {}
        Some(length) => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        None => {
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
}

/// `TE` is for the next hop only, which has to be told so (RFC 9110, section 10.1.4). HTTP/2 knows no `Connection`.
fn name_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(TE) {
        headers.append(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// hyper takes the coding where there is a length, too, and folds lengths that are equal.
fn has_one_framing(headers: &HeaderMap) -> bool {
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => lengths <= 1,
        (Some(coding), None) => lengths == 0 && coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

/// `Keep-Alive: timeout=5, max=100` in seconds (RFC 2068, section 19.7.1.1; common in HTTP/1.1 too).
fn kept_for(headers: &HeaderMap) -> Option<Duration> {
    let parameters = headers.get(KEEP_ALIVE)?.to_str().ok()?.split(',');
    let mut pairs = parameters.filter_map(|parameter| parameter.split_once('='));
    let (_, seconds) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("timeout"))?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

type Driver = http1::Connection<TokioIo<Box<dyn Io>>, SendBody>;

/// An HTTP/1.1 connection and the future that moves its bytes, which runs only while somebody polls it.
pub(super) struct Line {
    sender: http1::SendRequest<SendBody>,
    /// Gone once the connection is over; polling it again would be wrong. In a box, for it is handed out by value.
    driver: Option<Box<Driver>>,
    written: Written,
    address: Option<Arc<Address>>,
    /// For how long the upstream keeps it open without a request, if it says so.
    pub(super) kept_for: Option<Duration>,
}

impl Line {
    pub(super) async fn open(wire: Wire) -> Result<Self, ConnectError> {
        let Wire { io, written, address, http2: _ } = wire;
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_header_size(MAX_HEAD)
            .handshake(TokioIo::new(io))
            .await
            .map_err(ConnectError::Http)?;
        Ok(Self { sender, driver: Some(Box::new(driver)), written, address, kept_for: None })
    }

    /// The answer, and the driver if it ended with it: behind a 101 the stream is in there.
    async fn send(
        &mut self,
        request: Request<SendBody>,
    ) -> Result<(Response<Incoming>, Option<Box<Driver>>), SendError> {
        let before = self.written.bytes();
        let (answer, ended) = self.exchange(request).await;
        let failed = match answer {
            Ok(response) if has_one_framing(response.headers()) => {
                self.kept_for = kept_for(response.headers());
                return Ok((response, ended));
            }
            Ok(_) => HttpError::Framing,
            Err(failed) => failed,
        };
        if self.written.is_shut_out() {
            return Err(SendError::ShutOut { cause: failed });
        }
        Err(match failed {
            HttpError::Http1(source) if self.written.bytes() == before => SendError::NotSent { source: source.into() },
            HttpError::Http1(cause) if !cause.is_parse() => SendError::MaybeSent { cause: cause.into() },
            cause => SendError::BadHead { cause },
        })
    }

    async fn exchange(
        &mut self,
        request: Request<SendBody>,
    ) -> (Result<Response<Incoming>, HttpError>, Option<Box<Driver>>) {
        let mut answer = pin!(self.sender.try_send_request(request));
        let (before, mut ended) = (self.written.bytes_read(), None);
        let answer = poll_fn(|cx| {
            ended = ended.take().or_else(|| drive(&mut self.driver, cx));
            let answered = match answer.as_mut().poll(cx) {
                // The end of a driver hands back what is still queued.
                Poll::Pending if ended.take().is_some() => answer.as_mut().poll(cx),
                answered => answered,
            };
            match answered {
                Poll::Pending if self.written.bytes_read() - before > MOST_INTERIM => {
                    Poll::Ready(Err(HttpError::Endless))
                }
                answered => answered.map_err(|unanswered| HttpError::Http1(unanswered.into_error())),
            }
        })
        .await;
        (answer, ended)
    }

    /// The driver, once it has nothing more to do.
    async fn end(&mut self) -> Box<Driver> {
        poll_fn(|cx| drive(&mut self.driver, cx).map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Moves bytes both ways as far as they go; wakes `cx` when there is more to do.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        drop(drive(&mut self.driver, cx));
    }

    /// Whether another request can be sent, as far as the runtime knows: it is open, and the name of the upstream still
    /// leads where it does. Afterwards no task is woken by this
    /// connection any more, nor kept in memory by it.
    pub(super) fn is_idle(&mut self) -> bool {
        drop(drive(&mut self.driver, &mut Context::from_waker(Waker::noop())));
        let is_gone = self.address.as_ref().is_some_and(|address| address.is_gone());
        self.driver.is_some() && self.sender.is_ready() && !is_gone
    }
}

/// A finished driver is given back, to be dropped at once: what is still queued is handed back then, and what still waits
/// for it gets its error.
fn drive(driver: &mut Option<Box<Driver>>, cx: &mut Context<'_>) -> Option<Box<Driver>> {
    match driver.as_mut().map(|driver| Pin::new(driver).poll(cx)) {
        Some(Poll::Ready(_told_to_the_sender_or_the_body)) => driver.take(),
        Some(Poll::Pending) | None => None,
    }
}
