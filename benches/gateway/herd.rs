//! A service that turns everybody away for a moment, and the herd that comes back: when its calls arrive.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{HeaderMap, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Failure;

const CLIENTS: usize = 500;
/// What an answer takes, so that the others are under way when the first one comes.
const WORK: Duration = Duration::from_millis(50);
/// What a client waits for that is not told how long, before its second, third and fourth try; then it gives up.
const WAITS: [Duration; 3] = [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1)];
/// Of a client that is told each time when to come back.
const MOST_TRIES: usize = 20;
const BUCKET: Duration = Duration::from_millis(100);

/// What is wrong with the service at first.
#[derive(Clone, Copy)]
pub(crate) struct Illness {
    pub(crate) status: StatusCode,
    /// In its `Retry-After`.
    pub(crate) hint: Option<u64>,
    /// From the first call on.
    pub(crate) length: Duration,
}

/// Remembers when it was called.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    illness: Illness,
    arrivals: Arc<Mutex<Vec<Instant>>>,
}

impl Service {
    /// Starts it on a thread of its own, for as long as the process lives.
    pub(crate) fn start(illness: Illness) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(async { listener() })?;
        let service = Self { address: listener.local_addr()?, illness, arrivals: Arc::default() };
        let serving = service.clone();
        thread::Builder::new().name("service".into()).spawn(move || runtime.block_on(serving.serve(listener)))?;
        Ok(service)
    }

    async fn serve(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let this = self.clone();
            tokio::spawn(async move {
                let answer = service_fn(|request| this.answer(request));
                // Clients come and go.
                drop(server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await);
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let ill = self.note() < self.illness.length;
        drop(request.into_body().collect().await);
        sleep(WORK).await;
        let mut response = Response::new(Full::from("{}"));
        if ill {
            *response.status_mut() = self.illness.status;
            response.headers_mut().extend(self.illness.hint.map(|hint| (RETRY_AFTER, HeaderValue::from(hint))));
        }
        Ok(response)
    }

    /// How long after the first call this one comes.
    fn note(&self) -> Duration {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.push(Instant::now());
        arrivals[0].elapsed()
    }

    /// Since the first one.
    fn arrivals(&self) -> Vec<Duration> {
        let arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.iter().map(|arrival| *arrival - arrivals[0]).collect()
    }
}

/// With room for a herd of connections.
fn listener() -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    socket.listen(4096)
}

/// Lets all clients call at once, and come back until each has its answer or is told to stop.
pub(crate) fn run(address: SocketAddr, service: &Service) -> Result<Herd, Failure> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let start = Arc::new(Barrier::new(CLIENTS));
        let mut running = JoinSet::new();
        for number in 0..CLIENTS {
            let client = Client::connect(address, number).await?;
            running.spawn(client.call_until_answered(Arc::clone(&start)));
        }
        let mut waits = Vec::new();
        while let Some(done) = running.join_next().await {
            waits.extend(done??);
        }
        Ok(Herd { arrivals: service.arrivals(), waits, recovery: service.illness.length })
    })
}

/// Waits as it is told and to the millisecond, and all others do the same.
struct Client {
    sender: client::conn::http1::SendRequest<Full<Bytes>>,
    key: String,
}

impl Client {
    async fn connect(address: SocketAddr, number: usize) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, key: format!("charge-{number}") })
    }

    /// How long it took, unless there was nothing but refusals.
    async fn call_until_answered(mut self, start: Arc<Barrier>) -> Result<Option<Duration>, Failure> {
        start.wait().await;
        let begun = Instant::now();
        for attempt in 0..MOST_TRIES {
            let (status, headers) = self.call().await?;
            if status.is_success() {
                return Ok(Some(begun.elapsed()));
            }
            let Some(wait) = next_wait(&headers, attempt) else { return Ok(None) };
            sleep(wait).await;
        }
        Ok(None)
    }

    async fn call(&mut self) -> Result<(StatusCode, HeaderMap), Failure> {
        let request = Request::post("/charges").header("host", "bench").header("idempotency-key", &self.key);
        self.sender.ready().await?;
        let (head, body) = self.sender.send_request(request.body(Full::from("{}"))?).await?.into_parts();
        body.collect().await?;
        Ok((head.status, head.headers))
    }
}

fn next_wait(headers: &HeaderMap, attempt: usize) -> Option<Duration> {
    let told = headers.get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
    let stopped = headers.get("x-should-retry").is_some_and(|word| word == "false");
    told.map(Duration::from_secs).or_else(|| WAITS.get(attempt).copied().filter(|_| !stopped))
}

/// What came of it.
pub(crate) struct Herd {
    arrivals: Vec<Duration>,
    /// Of the clients that got what they wanted.
    waits: Vec<Duration>,
    /// When the service was well.
    recovery: Duration,
}

impl Herd {
    pub(crate) fn print(&self, case: &str) {
        let (sends, done, peak) = (self.arrivals.len(), self.waits.len(), self.peak_after_recovery());
        let (last, stopped) = (self.waits.iter().max().copied().unwrap_or_default(), CLIENTS - done);
        println!(
            "  {case}: {sends} sends, once it is well at most {peak} in 100 ms; {done} calls done after {:.1} s, {stopped} given up",
            last.as_secs_f64()
        );
        let longest = self.arrivals.iter().max().copied().unwrap_or_default();
        for bucket in (0u32..).map(|number| BUCKET * number).take_while(|bucket| *bucket <= longest) {
            let count = self.arrivals.iter().filter(|at| (bucket..bucket + BUCKET).contains(*at)).count();
            if count > 0 {
                println!("    {:4.1} s {count:4} {}", bucket.as_secs_f64(), "#".repeat(count.div_ceil(5)));
            }
        }
    }

    /// In any 100 ms.
    fn peak_after_recovery(&self) -> usize {
        let mut later: Vec<_> = self.arrivals.iter().filter(|arrival| **arrival >= self.recovery).collect();
        later.sort_unstable();
        let within = |at: usize| later[at..].iter().take_while(|arrival| ***arrival < *later[at] + BUCKET).count();
        (0..later.len()).map(within).max().unwrap_or(0)
    }
}
