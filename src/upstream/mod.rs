//! Connections to the services behind the gateway: one pool for each, and errors that never lose the one bit that
//! matters, whether a byte may have been written.
//!
//! Nothing here retries. Every send is one call of [`Connection::send`], and connecting is apart from it, so that the
//! intent to send can be made durable in between. A connection has no task of its own: whoever sends or reads drives
//! it, therefore dropping the future or the body closes it. One of HTTP/2 is shared and has a task, and what is closed is
//! the stream. Nothing here ever follows a redirect or looks at a proxy setting of the environment: a proxy is stated in
//! the file, or there is none.

mod address;
mod ahead;
mod connection;
mod connector;
mod content;
mod headers;
mod http2;
mod interim;
mod name;
mod pool;
mod received;
mod switched;
mod tunnel;
mod upload;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task;
use tokio::time::{Instant, timeout};

pub use ahead::LookedAhead;
pub use connection::{Connection, HttpError, Reply, SendError};
pub use connector::{ConnectError, Connector, Endpoint, TcpConnector};
pub use content::SendBody;
pub use headers::{
    Hop, asked_protocols, connection_names, drop_ours, forwarded, is_hop_by_hop, is_ours, keep_trailers,
    kept_for_replay, may_be_trailer, remove_hop_by_hop, set_upgrade, switches_as_asked, takes_trailers, tells_the_way,
    trailer_name, via,
};
pub use interim::OnInterim;
pub use name::NameError;
pub use received::{BodyError, KEPT, ReceivedBody};
pub use switched::Switched;
pub use tunnel::{Proxy, ProxyError};
pub use wire::{Io, Wire};

use crate::protocol::Protocol;
use connection::Line;
use http2::{SharedLine, SharedLines, Slot};
use pool::Pool;

/// How long a connection may lie unused. The shortest keep-alive in common use is five seconds; a connection that the
/// upstream is about to close is the main source of needless doubt.
pub const POOL_IDLE: Duration = Duration::from_secs(4);

/// The same for [`Freshness::Careful`], where doubt costs a person's time and a new connection only a round trip.
pub const CAREFUL_IDLE: Duration = Duration::from_secs(1);

/// Unused connections kept for each upstream and thread.
pub const MAX_IDLE: usize = 128;

/// What one upstream is allowed to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For the name, the TCP connection and the TLS handshake together.
    pub connect_timeout: Duration,
    /// Between two bytes of an answer's body.
    pub idle_timeout: Duration,
    /// How long a connection may lie unused before it is closed instead of used, [`POOL_IDLE`] unless stated.
    pub pool_idle: Duration,
    /// Unused connections kept, [`MAX_IDLE`] unless stated.
    pub max_idle: usize,
    pub protocol: Protocol,
}

/// How new a connection has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Any that is alive as far as we know.
    Reuse,
    /// One that was used a moment ago and is still alive after the runtime looked at its sockets once more; else a new
    /// one. For calls that cannot be repeated after a lost answer.
    Careful,
    /// A new one.
    Fresh,
}

/// The way to one upstream, for one runtime thread. Cheap to clone; clones share the pool.
#[derive(Clone)]
pub struct Client {
    connector: Arc<dyn Connector>,
    endpoint: Arc<Endpoint>,
    settings: Settings,
    pool: Arc<Pool>,
    shared: Arc<SharedLines>,
    /// The last connection that was tried for did not come about.
    is_away: Arc<AtomicBool>,
}

impl Client {
    /// Opens nothing yet.
    pub fn new(connector: Arc<dyn Connector>, endpoint: Endpoint, settings: Settings) -> Self {
        let pool = Arc::new(Pool::new(settings.pool_idle, settings.max_idle));
        let shared = Arc::new(SharedLines::new(settings.protocol, endpoint.tls));
        Self { connector, endpoint: Arc::new(endpoint), settings, pool, shared, is_away: Arc::default() }
    }

    /// A connection that is ready for one request: a pooled one, or a new one within `connect_timeout`.
    ///
    /// Dropping the future gives up a half-open connection; nothing of a request was written in any case.
    ///
    /// # Errors
    /// No connection could be made. All variants mean that nothing was sent.
    pub async fn checkout(&self, freshness: Freshness) -> Result<Connection, ConnectError> {
        self.connector.renew();
        // Whoever could not use what is there has no use for it later either.
        let since = (freshness != Freshness::Reuse).then(Instant::now);
        if let Some(connection) = self.reuse(freshness).await {
            return Ok(connection);
        }
        // In a box: the future of a request would be twice as large for what a pooled connection does without.
        let opened = match timeout(self.settings.connect_timeout, Box::pin(self.open(since))).await {
            Ok(opened) => opened,
            Err(_elapsed) => Err(ConnectError::Timeout { after: self.settings.connect_timeout }),
        };
        self.note(opened.as_ref().err());
        opened
    }

    /// The log hears of it when that changes, and not with every call.
    fn note(&self, error: Option<&ConnectError>) {
        let was_away = self.is_away.swap(error.is_some(), Ordering::Relaxed);
        let Endpoint { host, port, .. } = &*self.endpoint;
        match error {
            Some(error) if !was_away => tracing::warn!(host, port, %error, "no connection to an upstream"),
            None if was_away => tracing::info!(host, port, "connected to an upstream again"),
            Some(_) | None => {}
        }
    }

    /// A new connection on which another protocol can be asked for. That is one of HTTP/1.1; an upstream that speaks
    /// HTTP/2 only never switches.
    ///
    /// # Errors
    /// As with [`checkout`](Self::checkout).
    pub async fn checkout_to_switch(&self) -> Result<Connection, ConnectError> {
        if self.settings.protocol == Protocol::Http2 {
            return self.checkout(Freshness::Careful).await;
        }
        let opening = async { Line::open(self.connector.connect_http1(&self.endpoint).await?).await };
        match timeout(self.settings.connect_timeout, opening).await {
            Ok(opened) => opened.map(|line| self.connection(Box::new(line), false)),
            Err(_elapsed) => Err(ConnectError::Timeout { after: self.settings.connect_timeout }),
        }
    }

    async fn reuse(&self, freshness: Freshness) -> Option<Connection> {
        match freshness {
            Freshness::Reuse => self.shared_slot().or_else(|| self.pooled(self.settings.pool_idle)),
            Freshness::Careful => {
                // A close that already reached the kernel is seen only after the runtime has polled its sockets.
                task::yield_now().await;
                let longest = CAREFUL_IDLE.min(self.settings.pool_idle);
                match self.shared.slot(None) {
                    Some(slot) => {
                        let is_sound = slot.is_sound(longest, self.settings.connect_timeout).await;
                        is_sound.then(|| self.on(slot))
                    }
                    None => self.pooled(longest),
                }
            }
            Freshness::Fresh => None,
        }
    }

    fn shared_slot(&self) -> Option<Connection> {
        self.shared.slot(None).map(|slot| self.on(slot))
    }

    fn pooled(&self, longest: Duration) -> Option<Connection> {
        self.pool.take(longest).map(|line| self.connection(line, true))
    }

    /// A new connection; one that may be shared is opened once for all who wait for it.
    async fn open(&self, since: Option<Instant>) -> Result<Connection, ConnectError> {
        let turn = self.shared.turn().await;
        if turn.is_some()
            && let Some(slot) = self.shared.slot(since)
        {
            return Ok(self.on(slot));
        }
        let wire = self.connector.connect(&self.endpoint).await?;
        if self.shared.takes(&wire, &self.endpoint)? {
            let line = SharedLine::open(wire, self.endpoint.tls, self.settings.pool_idle).await?;
            let slot = line.slot().ok_or(ConnectError::NoRoom)?;
            self.shared.add(line);
            return Ok(self.on(slot));
        }
        Ok(self.connection(Box::new(Line::open(wire).await?), false))
    }

    fn on(&self, slot: Slot) -> Connection {
        Connection::shared(slot, self.settings.idle_timeout)
    }

    fn connection(&self, line: Box<Line>, reused: bool) -> Connection {
        Connection::new(line, Arc::clone(&self.pool), reused, self.settings.idle_timeout)
    }
}
