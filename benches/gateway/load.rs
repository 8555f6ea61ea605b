//! Clients that call as fast as they are answered.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::Failure;
use crate::gateway::Gateway;

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
    fn request(&self) -> Result<Request<Full<Bytes>>, http::Error> {
        let number = CALLS.fetch_add(1, Ordering::Relaxed);
        let request = Request::builder().uri(&self.path).header("host", "bench").header("content-type", "text/plain");
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
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..connections {
            let mut client = connect(gateway.address).await?;
            exchange(&mut client, call).await?;
            clients.push(client);
        }
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

type Client = SendRequest<Full<Bytes>>;

async fn connect(address: SocketAddr) -> Result<Client, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (client, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn call_until(end: Instant, mut client: Client, call: Call) -> Result<Vec<Duration>, Failure> {
    let mut waits = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        exchange(&mut client, &call).await?;
        waits.push(begun.elapsed());
    }
    Ok(waits)
}

async fn exchange(client: &mut Client, call: &Call) -> Result<(), Failure> {
    client.ready().await?;
    let answer = client.send_request(call.request()?).await?;
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
