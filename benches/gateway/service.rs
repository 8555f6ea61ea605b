//! The service behind the gateway: reads what it gets and answers with as many bytes as the path says, or with events that
//! tell when they were sent.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::time::{Interval, interval};
use tokio_rustls::TlsAcceptor;

use crate::Failure;
use crate::way::{HTTP1, Stream, Way};

const LONGEST: usize = 1 << 20;
const EVERY: Duration = Duration::from_millis(100);
/// From which both ends of a stream count.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Starts it on a thread of its own, for as long as the process lives.
pub(crate) fn start() -> Result<SocketAddr, Failure> {
    start_by(HTTP1, None)
}

/// The same over another protocol.
pub(crate) fn start_by(way: Way, acceptor: Option<TlsAcceptor>) -> Result<SocketAddr, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    thread::Builder::new().name("service".into()).spawn(move || runtime.block_on(serve(listener, way, acceptor)))?;
    Ok(address)
}

async fn serve(listener: TcpListener, way: Way, acceptor: Option<TlsAcceptor>) {
    let bytes = Bytes::from(vec![b'x'; LONGEST]);
    while let Ok((stream, _)) = listener.accept().await {
        let (bytes, acceptor) = (bytes.clone(), acceptor.clone());
        tokio::spawn(async move {
            // Clients come and go.
            drop(converse(stream, way, acceptor, bytes).await);
        });
    }
}

async fn converse(stream: TcpStream, way: Way, acceptor: Option<TlsAcceptor>, bytes: Bytes) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let stream: Box<dyn Stream> = match acceptor {
        Some(acceptor) => Box::new(acceptor.accept(stream).await?),
        None => Box::new(stream),
    };
    let service = service_fn(move |request| answer(request, bytes.clone()));
    let stream = TokioIo::new(stream);
    if way.http2 {
        http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await?;
    } else {
        http1::Builder::new().serve_connection(stream, service).await?;
    }
    Ok(())
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn answer(request: Request<Incoming>, bytes: Bytes) -> Result<Response<Body>, Infallible> {
    if request.uri().path() == "/events" {
        let mut response = Response::new(Events(interval(EVERY)).boxed_unsync());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        return Ok(response);
    }
    let wanted = request.uri().path().rsplit('/').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    let mut body = request.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    Ok(Response::new(Full::new(bytes.slice(..wanted.min(LONGEST))).boxed_unsync()))
}

/// One now and one each 100 ms, for ever.
struct Events(Interval);

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_tick(context).map(|_due| {
            let event = format!("data: {}\n\n", START.elapsed().as_nanos());
            Some(Ok(Frame::data(event.into())))
        })
    }
}

/// How long ago an event was sent.
pub(crate) fn age(event: &str) -> Option<Duration> {
    let sent = event.strip_prefix("data: ")?.strip_suffix("\n\n")?;
    Some(START.elapsed().saturating_sub(Duration::from_nanos(sent.parse().ok()?)))
}
