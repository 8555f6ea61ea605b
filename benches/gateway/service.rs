//! The service behind the gateway: reads what it gets and answers with as many bytes as the path says.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

use crate::Failure;

const LONGEST: usize = 1 << 20;

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

async fn answer(request: Request<Incoming>, bytes: Bytes) -> Result<Response<Full<Bytes>>, Infallible> {
    let wanted = request.uri().path().rsplit('/').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    let mut body = request.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    Ok(Response::new(Full::new(bytes.slice(..wanted.min(LONGEST)))))
}
