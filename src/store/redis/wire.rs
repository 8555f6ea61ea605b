//! From a host to a connection of the client library: TCP, TLS where the URL says so, and the greeting.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::redis_url::Host;
use crate::store::redis::bounds::Bounded;
use crate::store::redis::fitness::OpenError;
use crate::store::redis::gathered::Gathered;
use crate::store::redis::line::Uptake;

/// Requests that may wait to be written; the library's 50 would make callers queue for each other.
const QUEUE: usize = 1024;

/// How servers of one kind are spoken to: by TLS or not, and as whom.
#[derive(Clone)]
pub(super) struct Wiring {
    tls: Option<TlsConnector>,
    login: RedisConnectionInfo,
}

/// A connection with the task that reads and writes it; when that goes, all that wait for an answer are told.
pub(super) struct Wired {
    pub(super) connection: MultiplexedConnection,
    pub(super) uptake: Uptake,
    _driver: AbortOnDropHandle<()>,
}

impl Wiring {
    pub(super) fn new(tls: Option<Arc<ClientConfig>>, login: RedisConnectionInfo) -> Self {
        Self { tls: tls.map(TlsConnector::from), login }
    }

    /// The same, as somebody else.
    pub(super) fn with_login(&self, login: RedisConnectionInfo) -> Self {
        Self { login, ..self.clone() }
    }

    /// # Errors
    /// Nobody is there, or one side does not trust the other.
    pub(super) async fn connect(&self, host: &Host) -> Result<Wired, OpenError> {
        let stream = TcpStream::connect((host.name.as_str(), host.port)).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let Some(tls) = &self.tls else { return self.greet(stream).await };
        let name = ServerName::try_from(host.name.clone()).map_err(|error| OpenError::Tls(error.into()))?;
        let mut stream = tls.connect(name, stream).await.map_err(unreachable)?;
        hear_of(&mut stream).await.map_err(unreachable)?;
        self.greet(stream).await
    }

    async fn greet<S>(&self, stream: S) -> Result<Wired, OpenError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        let uptake = Uptake::new();
        let stream = Gathered::new(Bounded::new(stream), uptake.clone());
        let (connection, driver) = MultiplexedConnection::new_with_config(&self.login, stream, config).await?;
        Ok(Wired { connection, uptake, _driver: AbortOnDropHandle::new(tokio::spawn(driver)) })
    }
}

/// With TLS 1.3 a client that is not trusted learns of it only when it reads, and the client library would keep that to
/// itself. Whatever the server says to this is an answer.
async fn hear_of(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    stream.write_all(b"PING\r\n").await?;
    while stream.read_u8().await? != b'\n' {}
    Ok(())
}

fn unreachable(error: io::Error) -> OpenError {
    if is_about_trust(&error) { OpenError::Tls(error.into()) } else { OpenError::Unreachable(error.into()) }
}

/// Whether TLS is what failed, and not the network under it.
pub(super) fn is_about_trust(error: &(dyn Error + 'static)) -> bool {
    let of_tls = |error: &io::Error| error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    let mut error = Some(error);
    while let Some(link) = error {
        if link.is::<rustls::Error>() || link.downcast_ref::<io::Error>().is_some_and(of_tls) {
            return true;
        }
        error = link.source();
    }
    false
}
