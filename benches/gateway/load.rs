//! Clients that call as fast as they are answered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::Failure;
use crate::gateway::Gateway;
use crate::way::{HTTP1, Papers, Way};

const LENGTH: Duration = Duration::from_secs(2);

/// Of all cases of the process, so that no key comes twice unless it is meant to.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// What each client sends again and again.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) body: Bytes,
    pub(crate) key: Key,
}

/// Which call it is to the gateway.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    /// A read: nothing is kept of it.
    None,
    Fresh,
    /// One of so many, in turn.
    OneOf(u64),
}

impl Call {
    fn request(&self, way: Way) -> Result<Request<Full<Bytes>>, http::Error> {
        let number = CALLS.fetch_add(1, Ordering::Relaxed);
        let request = match way.http2 {
            true => Request::builder().uri(format!("{}://bench{}", way.scheme(), self.path)),
            false => Request::builder().uri(&self.path).header("host", "bench"),
        };
        let request = request.header("content-type", "text/plain");
        let request = match self.key {
            Key::None if self.body.is_empty() => request,
            Key::None => request.method("QUERY"),
            Key::Fresh => request.method("POST").header("idempotency-key", format!("fresh-{number}")),
            Key::OneOf(all) => request.method("POST").header("idempotency-key", format!("known-{}", number % all)),
        };
        request.body(Full::new(self.body.clone()))
    }
}

/// What clients and system saw of one case.
pub(crate) struct Measured {
    /// Sorted.
    waits: Vec<Duration>,
    cpu: Duration,
    memory: f64,
}

impl Measured {
    /// For a call.
    pub(crate) fn microseconds(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.waits.len().max(1) as f64
    }

    pub(crate) fn print(&self, case: &str) {
        let (cpu, each_second) = (self.microseconds(), self.waits.len() as f64 / LENGTH.as_secs_f64());
        let at = |share: f64| self.waits.get((self.waits.len() as f64 * share) as usize).copied().unwrap_or_default();
        let (half, most, memory) = (at(0.5), at(0.99), self.memory);
        println!(
            "  {case:34} CPU {cpu:7.1} us/call  p50 {half:9.2?}  p99 {most:9.2?}  {each_second:7.0} calls/s  {memory:6.1} MiB"
        );
    }
}

/// Lets `connections` clients make the call for two seconds, after one round that is not counted.
pub(crate) fn run(gateway: &Gateway, connections: usize, call: &Call) -> Result<Measured, Failure> {
    run_by(HTTP1, &Papers::made()?, gateway, connections, call)
}

/// The same over another protocol. The clients of HTTP/2 share one connection.
pub(crate) fn run_by(
    way: Way,
    papers: &Papers,
    gateway: &Gateway,
    clients: usize,
    call: &Call,
) -> Result<Measured, Failure> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let clients = ready(way, papers, gateway, clients, call).await?;
        let (before, end) = (gateway.cpu()?, Instant::now() + LENGTH);
        let mut running: JoinSet<_> = clients.into_iter().map(|client| call_until(end, client, call.clone())).collect();
        let mut waits = Vec::new();
        while let Some(done) = running.join_next().await {
            waits.extend(done??);
        }
        waits.sort_unstable();
        Ok(Measured { waits, cpu: gateway.cpu()?.saturating_sub(before), memory: gateway.memory()? })
    })
}

/// MiB of memory by which the gateway grows for so many connections that had one call each and are silent since then.
pub(crate) fn silent(
    way: Way,
    papers: &Papers,
    gateway: &Gateway,
    connections: usize,
    call: &Call,
) -> Result<f64, Failure> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let before = gateway.memory()?;
        let silent = ready(way, papers, gateway, connections, call).await?;
        let grown = gateway.memory()? - before;
        drop(silent);
        Ok(grown)
    })
}

/// Clients that have been answered once.
async fn ready(
    way: Way,
    papers: &Papers,
    gateway: &Gateway,
    count: usize,
    call: &Call,
) -> Result<Vec<Client>, Failure> {
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..count {
        let shared = clients.last().and_then(Client::share);
        let mut client = match shared {
            Some(shared) => shared,
            None => Client::connect(way, papers, gateway).await?,
        };
        client.exchange(call).await?;
        clients.push(client);
    }
    Ok(clients)
}

async fn call_until(end: Instant, mut client: Client, call: Call) -> Result<Vec<Duration>, Failure> {
    let mut waits = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        client.exchange(&call).await?;
        waits.push(begun.elapsed());
    }
    Ok(waits)
}

struct Client {
    way: Way,
    sender: Sender,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    async fn connect(way: Way, papers: &Papers, gateway: &Gateway) -> Result<Self, Failure> {
        let stream = TokioIo::new(papers.connect(gateway.address, way).await?);
        let sender = if way.http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(connection);
            Sender::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            Sender::Http1(sender)
        };
        Ok(Self { way, sender })
    }

    /// Another one on the same connection, where that is possible.
    fn share(&self) -> Option<Self> {
        match &self.sender {
            Sender::Http1(_) => None,
            Sender::Http2(sender) => Some(Self { way: self.way, sender: Sender::Http2(sender.clone()) }),
        }
    }

    async fn exchange(&mut self, call: &Call) -> Result<(), Failure> {
        let answer = self.send(call.request(self.way)?).await?;
        if answer.status() != StatusCode::OK {
            let (status, text) = (answer.status(), answer.into_body().collect().await?.to_bytes());
            return Err(format!("{status}: {}", String::from_utf8_lossy(&text)).into());
        }
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        Ok(())
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Failure> {
        match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
        }
    }
}
