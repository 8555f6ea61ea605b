//! Listening sockets and the connections that come from them.
//!
//! Owns the life of a connection: how many there are, how long a head may take, how it ends when the gateway stops. What
//! a request means is the service's business.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as Socket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use hyper::server::conn::http1::{self, Parts};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Type};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::engine::call::Presence;
use crate::server::answers::Answers;
use crate::server::body::ResponseBody;
use crate::server::framing::{Ambiguity, Verdict};
use crate::server::handshake::{Certificates, Greeted, greet, spoke_plainly};
use crate::server::http2::{self, is_prior_knowledge};
use crate::server::interim::Interim;
use crate::server::request_body::RequestBody;
use crate::server::tunnel::Exit;
use crate::server::wire::Wire;

/// Connections that the kernel keeps for us while we are busy.
const BACKLOG: i32 = 1024;

/// How long accepting rests when the process has no descriptor or memory left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// The least that hyper takes as a buffer, and a good size to read bodies by.
const LEAST_BUFFER: usize = 64 * 1024;

/// Bounds on a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the first moment of the connection to its first byte, or to the end of a TLS handshake; from there, or the
    /// end of the last answer, to the end of a head. In HTTP/2: how long a connection may be without a request.
    pub header_timeout: Duration,
    /// How long a client may leave an answer unread.
    pub write_idle: Duration,
    /// How long requests may go on after the gateway was told to stop.
    pub drain: Duration,
    /// Bytes of a head as hyper lets it pass. Headers and target have narrower limits of their own at the door, where a
    /// refusal can be explained; beyond this one the answer is a bare 431.
    pub max_head: usize,
    /// Requests at once on a connection that speaks HTTP/2.
    pub max_concurrent_streams: u32,
}

impl From<&config::Server> for Limits {
    fn from(server: &config::Server) -> Self {
        Self {
            header_timeout: server.header_timeout,
            write_idle: server.body_idle_timeout,
            drain: server.drain,
            max_head: server.max_header_bytes.saturating_add(server.max_uri_bytes),
            max_concurrent_streams: u32::try_from(server.max_concurrent_streams.get()).unwrap_or(u32::MAX),
        }
    }
}

/// Who is at the other end, and whether the request came in a form that can be trusted.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// Its IP as `X-Forwarded-For` has it, made once for all requests of a connection.
    pub forwarded: HeaderValue,
    pub transport: Transport,
    /// Where to say that an answer ends with its caller; HTTP/2 tells of those who leave by itself.
    pub presence: Option<Presence>,
    /// Where to say what comes before the answer; hyper has no such place in HTTP/2.
    pub interim: Option<Interim>,
    /// Set if the head could be read in more than one way; it must not be answered with anything but 400.
    pub ambiguity: Option<Ambiguity>,
}

impl Peer {
    /// At the other end of a connection; no request has come yet.
    pub fn new(address: SocketAddr, transport: Transport) -> Self {
        let forwarded = HeaderValue::try_from(address.ip().to_canonical().to_string());
        let forwarded = forwarded.unwrap_or(HeaderValue::from_static("unknown"));
        Self { address, forwarded, transport, presence: None, interim: None, ambiguity: None }
    }
}

/// What lies between us and the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Plain,
    Tls,
    /// TLS, and the client has shown a certificate of `client_ca`. Its holder is a digest of the public key in it.
    MutualTls {
        holder: [u8; 32],
    },
}

impl Transport {
    /// The scheme of the URL that the client has used.
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::Plain => "http",
            Self::Tls | Self::MutualTls { .. } => "https",
        }
    }
}

/// Opens a listening socket.
///
/// With `shared`, several sockets of this process can have the same address, and the kernel spreads connections over
/// them. Without it a second gateway on the address is an error, as it should be.
///
/// # Errors
/// The address is taken, not ours, or needs a privilege.
pub fn bind(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// One listening socket on one runtime.
pub struct Listener {
    socket: TcpListener,
    limits: Limits,
    places: Arc<Semaphore>,
    stop: CancellationToken,
    certificates: Option<Certificates>,
}

impl Listener {
    /// `places` are the connections that all listeners together may have. Beyond them a connection waits, accepted but
    /// unread, until another one ends; idle ones end after `header_timeout`, so there is always movement.
    ///
    /// # Errors
    /// The runtime cannot take the socket.
    pub fn new(socket: Socket, limits: Limits, places: Arc<Semaphore>, stop: CancellationToken) -> io::Result<Self> {
        Ok(Self { socket: TcpListener::from_std(socket)?, limits, places, stop, certificates: None })
    }

    /// Speaks TLS with those that are current when a connection comes; plain HTTP without any.
    pub fn with_certificates(self, certificates: Option<Certificates>) -> Self {
        Self { certificates, ..self }
    }

    /// Serves until `stop`, then lets running requests finish within `drain` and cuts the rest.
    pub async fn serve<S, F>(self, service: S)
    where
        S: Fn(Request<RequestBody>, Peer) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<ResponseBody>> + Send + 'static,
    {
        let (connections, cut) = (TaskTracker::new(), CancellationToken::new());
        while let Some((stream, address, place)) = self.stop.run_until_cancelled(self.next()).await {
            let connection = Connection {
                address,
                limits: self.limits,
                stop: self.stop.clone(),
                tasks: connections.clone(),
                cut: cut.clone(),
            };
            let (service, certificates) = (service.clone(), self.certificates.clone());
            connections.spawn(async move {
                connection.run(stream, certificates, service).await;
                drop(place);
            });
        }
        drop(self.socket);
        drain(connections, cut, self.limits.drain).await;
    }

    /// A place is asked for after the accept: a listener that waits for connections must not hold one that another
    /// listener needs.
    async fn next(&self) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            let (stream, address) = self.accept().await;
            if let Ok(place) = Arc::clone(&self.places).acquire_owned().await {
                return (stream, address, place);
            }
        }
    }

    async fn accept(&self) -> (TcpStream, SocketAddr) {
        let mut told = false;
        loop {
            match self.socket.accept().await {
                Ok(accepted) => return accepted,
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%error, "cannot accept connections; trying again");
                    }
                    sleep(EXHAUSTED_PAUSE).await;
                }
            }
        }
    }
}

/// Whether the next accept may well succeed at once.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

async fn drain(connections: TaskTracker, cut: CancellationToken, time: Duration) {
    connections.close();
    if timeout(time, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "the drain time is over; open connections are cut");
        cut.cancel();
        connections.wait().await;
    }
}

struct Connection {
    address: SocketAddr,
    limits: Limits,
    stop: CancellationToken,
    /// Where the streams of HTTP/2 run.
    tasks: TaskTracker,
    /// Ends what goes on after `stop`. It is looked at only there: each look is a lock in every turn of the connection.
    cut: CancellationToken,
}

impl Connection {
    async fn run<S, F>(self, stream: TcpStream, certificates: Option<Certificates>, service: S)
    where
        S: Fn(Request<RequestBody>, Peer) -> F,
        F: Future<Output = Response<ResponseBody>> + Send + 'static,
    {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "the client's socket keeps delaying small writes");
        }
        let end = match certificates {
            None => self.plain(stream, service).await,
            // On the heap: a plain connection must not pay for the state of TLS.
            Some(certificates) => Box::pin(self.secure(stream, &certificates, service)).await,
        };
        if let Err(error) = end {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    async fn plain<S, F>(self, stream: TcpStream, service: S) -> hyper::Result<()>
    where
        S: Fn(Request<RequestBody>, Peer) -> F,
        F: Future<Output = Response<ResponseBody>> + Send + 'static,
    {
        let opening = timeout(self.limits.header_timeout, is_prior_knowledge(&stream));
        match self.stop.run_until_cancelled(opening).await {
            Some(Ok(Ok(true))) => Box::pin(self.http2(stream, Transport::Plain, service)).await,
            Some(Ok(Ok(false))) => self.http1(stream, Transport::Plain, service, |socket| socket).await,
            Some(Ok(Err(_)) | Err(_)) | None => Ok(()),
        }
    }

    /// Nobody waits for a handshake when the gateway stops.
    async fn secure<S, F>(self, stream: TcpStream, certificates: &Certificates, service: S) -> hyper::Result<()>
    where
        S: Fn(Request<RequestBody>, Peer) -> F,
        F: Future<Output = Response<ResponseBody>> + Send + 'static,
    {
        let greeting = timeout(self.limits.header_timeout, greet(stream, certificates));
        match self.stop.run_until_cancelled(greeting).await {
            Some(Ok(Ok(Greeted::Http2(stream, transport)))) => self.http2(stream, transport, service).await,
            Some(Ok(Ok(Greeted::Http1(stream, transport)))) => {
                self.http1(stream, transport, service, |stream| stream.get_ref().0).await
            }
            Some(Ok(Ok(Greeted::Plain(stream)))) => {
                self.http1(stream, Transport::Plain, spoke_plainly, |socket| socket).await
            }
            Some(Ok(Err((error, stream)))) => {
                tracing::debug!(peer = %self.address, %error, "a TLS handshake failed");
                let cut = self.cut.clone();
                cut.run_until_cancelled(self.part(stream)).await;
                Ok(())
            }
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// Lets the alert arrive that says why there is no connection.
    async fn part(self, stream: TcpStream) {
        let mut wire = Wire::new(stream, Arc::default(), Arc::default(), self.limits.write_idle, self.stop);
        if let Err(error) = wire.shutdown().await {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    async fn http1<IO, S, F>(
        self,
        stream: IO,
        transport: Transport,
        service: S,
        socket: impl FnOnce(&IO) -> &TcpStream,
    ) -> hyper::Result<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
        S: Fn(Request<RequestBody>, Peer) -> F,
        F: Future<Output = Response<ResponseBody>>,
    {
        let (verdict, answers) = (Arc::new(Verdict::default()), Arc::new(Answers::default()));
        let client = Peer::new(self.address, transport);
        let (exit, ends_by_closing) = (Exit::default(), AtomicBool::new(false));
        let (followed, told) = (Arc::clone(&verdict), Arc::clone(&answers));
        let wire = Wire::new(stream, followed, told, self.limits.write_idle, self.stop.clone());
        let (presence, interim) = (wire.presence(), wire.interim());
        let service = service_fn(|request: Request<Incoming>| {
            let answering = answers.begin();
            presence.ends_with_caller(false);
            interim.disturbed();
            ends_by_closing.store(request.version() == Version::HTTP_10, Ordering::Relaxed);
            let leaves = request.extensions().get::<OnUpgrade>().is_some();
            let (presence, interim) = (Some(presence.clone()), Some(interim.clone()));
            let ambiguity = verdict.on(answering.number());
            let peer = Peer { presence, interim, ambiguity, ..client.clone() };
            let (answer, exit) = (service(request.map(RequestBody::of_http1), peer), &exit);
            async move {
                let mut answer = answer.await;
                if leaves {
                    exit.open(answer.body_mut().take_switched());
                }
                Ok::<_, Infallible>(answer.map(|body| answering.with(body)))
            }
        });
        let mut connection = http(&self.limits).serve_connection(TokioIo::new(wire), service);
        let end = match self.stop.run_until_cancelled(&mut connection).await {
            Some(end) => end,
            None => {
                Pin::new(&mut connection).graceful_shutdown();
                let Some(end) = self.cut.run_until_cancelled(&mut connection).await else { return Ok(()) };
                end
            }
        };
        let Parts { io, read_buf, .. } = connection.into_parts();
        match &end {
            Ok(()) => {
                self.cut.run_until_cancelled(exit.leave(io.into_inner(), &read_buf)).await;
            }
            Err(error) if error.is_user() && ends_by_closing.into_inner() => {
                reset(socket(&io.into_inner().into_parts().0))
            }
            Err(_) => {}
        }
        end
    }

    async fn http2<IO, S, F>(self, stream: IO, transport: Transport, service: S) -> hyper::Result<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
        S: Fn(Request<RequestBody>, Peer) -> F,
        F: Future<Output = Response<ResponseBody>> + Send + 'static,
    {
        let client = Peer::new(self.address, transport);
        let wire = Wire::of_http2(stream, self.limits.write_idle, self.stop.clone());
        let connection = http2::Connection { limits: self.limits, stop: self.stop, tasks: self.tasks, cut: self.cut };
        connection.serve(wire, move |request| service(request, client.clone())).await
    }
}

/// Where only the end of the connection ends an answer, one that broke off must not look whole.
fn reset(socket: &TcpStream) {
    if let Err(error) = socket.set_zero_linger() {
        tracing::debug!(%error, "an answer that broke off may look whole to its client");
    }
}

/// hyper's own limit of 100 header fields stands; asking for it by name would cost an allocation for each head.
fn http(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_header_size(limits.max_head)
        .max_buf_size(LEAST_BUFFER.max(limits.max_head.saturating_add(1)))
        // A client that has said everything and waits for its answer is not gone.
        .half_close(true);
    builder
}

#[cfg(test)]
mod tests;
