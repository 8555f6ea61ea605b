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
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::time::{Interval, interval};

use crate::Failure;

const LONGEST: usize = 1 << 20;
const EVERY: Duration = Duration::from_millis(100);
/// From which both ends of a stream count.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Starts it on a thread of its own, for as long as the process lives.
pub(crate) fn start() -> Result<SocketAddr, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    thread::Builder::new().name("service".into()).spawn(move || runtime.block_on(serve(listener)))?;
    Ok(address)
}

async fn serve(listener: TcpListener) {
    let bytes = Bytes::from(vec![b'x'; LONGEST]);
    while let Ok((stream, _)) = listener.accept().await {
        let bytes = bytes.clone();
        let service = service_fn(move |request| answer(request, bytes.clone()));
        let connection =
            stream.set_nodelay(true).map(|()| http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Ok(connection) = connection {
                // Clients come and go.
                drop(connection.await);
            }
        });
    }
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
