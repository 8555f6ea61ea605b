//! The payment service of the demo: takes charges, honours `Idempotency-Key`, and has bad moments.
//!
//! It counts what it really does, and knows nothing of agents, gateways or the story.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::ledger::{BUSY_SECONDS, Deed, Ledger, Mishap, Work};

/// The same for every service, by the number of the request: with whom it talks makes no difference.
const MISHAPS: [Mishap; 3] = [Mishap::Slow, Mishap::AnswerLost, Mishap::TooBusy];

/// A running payment service. It ends when this is dropped.
pub(super) struct Service {
    address: SocketAddr,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

struct Shared {
    ledger: Mutex<Ledger>,
    deed_done: Notify,
}

/// The connection breaks instead of an answer.
#[derive(Debug, thiserror::Error)]
#[error("the answer is lost")]
struct AnswerLost;

impl Service {
    /// A service on a free port of this machine, with all its mishaps ahead.
    pub(super) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { ledger: Mutex::new(Ledger::new(MISHAPS)), deed_done: Notify::new() });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, _task: AbortOnDropHandle::new(task) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many charges it made.
    pub(super) fn charges(&self) -> u32 {
        self.shared.ledger().charges()
    }

    /// What it did since the last time somebody asked.
    pub(super) fn deeds(&self) -> Vec<Deed> {
        self.shared.ledger().take_deeds()
    }

    /// Until it has done something that nobody has asked for yet.
    pub(super) async fn at_work(&self) {
        while !self.shared.ledger().has_deeds() {
            self.shared.deed_done.notified().await;
        }
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(converse(stream, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

/// A connection that breaks is part of the story.
async fn converse(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request| answer(request, Arc::clone(&shared)));
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.unwrap_or_default();
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Full<Bytes>>, AnswerLost> {
    let key = request.headers().get("idempotency-key").map(|key| key.as_bytes().to_owned());
    let body = request.into_body().collect().await.map_err(|_| AnswerLost)?.to_bytes();
    let deed = shared.ledger().take(key, body);
    shared.deed_done.notify_one();
    match deed.mishap {
        Some(Mishap::Slow) => pending().await,
        Some(Mishap::AnswerLost) => Err(AnswerLost),
        Some(Mishap::TooBusy) | None => Ok(response(deed.work)),
    }
}

fn response(work: Work) -> Response<Full<Bytes>> {
    let (status, body) = match work {
        Work::Charged(charge) | Work::Known(charge) => (StatusCode::CREATED, format!("{{\"id\": \"ch_{charge}\"}}\n")),
        Work::Refused => (StatusCode::TOO_MANY_REQUESTS, "{\"error\": \"too busy\"}\n".to_owned()),
        Work::KeyReused => {
            (StatusCode::UNPROCESSABLE_ENTITY, "{\"error\": \"this key was used for another request\"}\n".to_owned())
        }
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if work == Work::Refused {
        response.headers_mut().insert(RETRY_AFTER, BUSY_SECONDS.into());
    }
    response
}
