//! Streams of events that stay open: how late an event is when it has come through the gateway.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::{Method, Request};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::Failure;
use crate::gateway::Gateway;
use crate::service::age;

const LENGTH: Duration = Duration::from_secs(5);

/// Opens `streams` of events at `address`, and listens to all of them for five seconds. With a `gateway`, what each event
/// costs it comes with it.
pub(crate) fn run(
    address: SocketAddr,
    streams: usize,
    method: &Method,
    gateway: Option<&Gateway>,
) -> Result<Late, Failure> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut open = Vec::new();
        for number in 0..streams {
            open.push(stream(address, method, number).await?);
        }
        let (before, end) = (cpu(gateway)?, Instant::now() + LENGTH);
        let mut listening: JoinSet<_> = open.into_iter().map(|body| listen_until(end, body)).collect();
        let mut ages = Vec::new();
        while let Some(done) = listening.join_next().await {
            ages.extend(done??);
        }
        ages.sort_unstable();
        Ok(Late { ages, cpu: cpu(gateway)?.saturating_sub(before), memory: gateway.map_or(Ok(0.0), Gateway::memory)? })
    })
}

/// What came of it.
pub(crate) struct Late {
    /// Of each event when it arrived; sorted.
    ages: Vec<Duration>,
    cpu: Duration,
    memory: f64,
}

impl Late {
    pub(crate) fn print(&self, case: &str) {
        let at = |share: f64| self.ages.get((self.ages.len() as f64 * share) as usize).copied().unwrap_or_default();
        let (half, most, memory) = (at(0.5), at(0.99), self.memory);
        let cpu = self.cpu.as_secs_f64() * 1e6 / self.ages.len().max(1) as f64;
        let each_second = self.ages.len() as f64 / LENGTH.as_secs_f64();
        println!(
            "  {case:34} CPU {cpu:7.1} us/event p50 {half:9.2?}  p99 {most:9.2?}  {each_second:7.0} events/s {memory:6.1} MiB"
        );
    }
}

fn cpu(gateway: Option<&Gateway>) -> Result<Duration, Failure> {
    gateway.map_or(Ok(Duration::ZERO), Gateway::cpu)
}

async fn stream(address: SocketAddr, method: &Method, number: usize) -> Result<Incoming, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut client, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri("/events").header("host", "bench");
    let request = request.header("idempotency-key", format!("stream-{number}")).body(Empty::<Bytes>::new())?;
    Ok(client.send_request(request).await?.into_body())
}

async fn listen_until(end: Instant, mut body: Incoming) -> Result<Vec<Duration>, Failure> {
    let mut ages = Vec::new();
    while Instant::now() < end {
        let piece = body.frame().await.ok_or("a stream ended")??.into_data().unwrap_or_default();
        ages.extend(str::from_utf8(&piece)?.split_inclusive("\n\n").filter_map(age));
    }
    Ok(ages)
}
