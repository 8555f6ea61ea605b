//! Makes the connection of a store, looks after it, and makes another when it is given up.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::clock::millis;
use crate::entropy::Entropy;
use crate::store::redis::clock::ServerClock;
use crate::store::redis::epoch::Epoch;
use crate::store::redis::fitness::{self, OpenError};
use crate::store::redis::line::{Line, State, given_up, hang_up};

/// Requests that may wait to be written; the library's 50 would make callers queue for each other.
const QUEUE: usize = 1024;
/// How often the clock is read and the server looked at. Always armed and never later than a request's deadline, this
/// also spares the runtime a wake-up for each of those deadlines.
const LOOK: Duration = Duration::from_secs(1);
/// Before the second try for a connection, and at most before any other.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(500);

/// Connects, and goes on trying in the background if the server is away. The task ends with its handle.
///
/// # Errors
/// The URL is wrong, or the server answered and must not be used.
pub(super) async fn start(
    mut dialer: Dialer,
    entropy: Entropy,
) -> Result<(Arc<watch::Sender<State>>, AbortOnDropHandle<()>), OpenError> {
    let (state, opened) = match dialer.dial().await {
        Ok(opened) => (State::Up(opened.line.clone()), Some(opened)),
        Err(error) if error.may_pass() || error.is_loss() => {
            (State::Down { since: None, reason: Some(Arc::new(error)) }, None)
        }
        Err(error) => return Err(error),
    };
    let state = Arc::new(watch::Sender::new(state));
    let keeper = Keeper { dialer, state: state.clone(), entropy, failures: 0 };
    Ok((state, AbortOnDropHandle::new(tokio::spawn(keeper.keep(opened)))))
}

struct Keeper {
    dialer: Dialer,
    state: Arc<watch::Sender<State>>,
    entropy: Entropy,
    /// Tries in a row that led to no line worth the name.
    failures: u32,
}

impl Keeper {
    async fn keep(mut self, mut opened: Option<Opened>) {
        loop {
            if let Some(opened) = opened.take() {
                self.stay_with(opened).await;
            }
            sleep(self.backoff()).await;
            match self.dialer.dial().await {
                Ok(next) => opened = Some(next),
                Err(error) => self.note(error),
            }
        }
    }

    /// Until the line is given up, by this task or by a caller. A server that ends every connection at once is tried
    /// no faster than one that is away.
    async fn stay_with(&mut self, opened: Opened) {
        let since = Instant::now();
        let line = opened.line.clone();
        self.state.send_replace(State::Up(line.clone()));
        tokio::select! {
            () = given_up(self.state.subscribe(), line.number) => {}
            error = self.dialer.look_after(&line) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "gave up the connection to Redis");
                hang_up(&self.state, line.number, Some(Arc::new(error)));
            }
        }
        self.failures = if since.elapsed() < MAX_BACKOFF { self.failures.saturating_add(1) } else { 0 };
    }

    fn note(&mut self, error: OpenError) {
        if self.failures == 0 {
            tracing::warn!(error = &error as &dyn std::error::Error, "no connection to Redis");
        }
        self.failures = self.failures.saturating_add(1);
        self.state.send_modify(|state| {
            if let State::Down { reason, .. } = state {
                *reason = Some(Arc::new(error));
            }
        });
    }

    fn backoff(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        match self.failures {
            0 => Duration::ZERO,
            _ => jitter(&self.entropy, FIRST_BACKOFF.saturating_mul(1 << doublings).min(MAX_BACKOFF)),
        }
    }
}

/// A line with the task that reads and writes it; when that goes, all that wait for an answer are told.
pub(super) struct Opened {
    pub(super) line: Line,
    _driver: AbortOnDropHandle<()>,
}

/// Makes lines.
#[derive(Clone)]
pub(super) struct Dialer {
    target: ConnectionInfo,
    timeout: Duration,
    clock: Arc<ServerClock>,
    epoch: Arc<Epoch>,
    dialed: u64,
}

impl Dialer {
    /// # Errors
    /// The URL is wrong.
    pub(super) fn new(
        url: &str,
        timeout: Duration,
        clock: Arc<ServerClock>,
        epoch: Arc<Epoch>,
    ) -> Result<Self, OpenError> {
        let target = url.into_connection_info().map_err(OpenError::Url)?;
        Ok(Self { target, timeout, clock, epoch, dialed: 0 })
    }

    /// A line to a server that is fit and still has its memory.
    async fn dial(&mut self) -> Result<Opened, OpenError> {
        self.dialed += 1;
        let dialing = async {
            let opened = self.connect().await?;
            self.epoch.examine(&opened.line).await?;
            Ok(opened)
        };
        timeout(self.timeout, dialing).await.unwrap_or_else(|elapsed| Err(OpenError::Unreachable(elapsed.into())))
    }

    /// A line to a server that is fit, whatever became of its memory.
    pub(super) async fn connect(&self) -> Result<Opened, OpenError> {
        match self.target.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
                stream.set_nodelay(true).map_err(unreachable)?;
                self.greet(stream).await
            }
            ConnectionAddr::Unix(path) => self.greet(UnixStream::connect(path).await.map_err(unreachable)?).await,
            _ => Err(OpenError::Url((redis::ErrorKind::InvalidClientConfig, "only TCP and Unix sockets").into())),
        }
    }

    async fn greet<S>(&self, stream: S) -> Result<Opened, OpenError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        let settings = self.target.redis_settings();
        let (mut connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config).await?;
        let _driver = AbortOnDropHandle::new(tokio::spawn(driver));
        fitness::examine(&mut connection, &self.clock).await?;
        let line = Line { connection, number: self.dialed, answers: Arc::default() };
        Ok(Opened { line, _driver })
    }

    /// Until the line turns out to be of no use.
    async fn look_after(&self, line: &Line) -> OpenError {
        let mut connection = line.connection.clone();
        loop {
            sleep(LOOK.min(self.timeout)).await;
            let looking = async {
                fitness::look_again(&mut connection, &self.clock).await?;
                self.epoch.look(line).await
            };
            match timeout(self.timeout, looking).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error,
                Err(elapsed) => return OpenError::Unreachable(elapsed.into()),
            }
        }
    }
}

fn unreachable(error: io::Error) -> OpenError {
    OpenError::Unreachable(error.into())
}

/// Full jitter: anything up to `most`.
pub(super) fn jitter(entropy: &Entropy, most: Duration) -> Duration {
    Duration::from_millis(entropy.up_to(millis(most)))
}
