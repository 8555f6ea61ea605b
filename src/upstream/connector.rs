//! How a byte stream to an upstream comes about. A simulation puts its own [`Connector`] here.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::address::resolve;
use super::tunnel::{Proxy, ProxyError};
use super::wire::{Counted, Wire};
use crate::protocol::Protocol;
use crate::tls::offering;

/// As ALPN names it.
const HTTP2: &[u8] = b"h2";

/// Where an upstream listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub tls: bool,
    /// A name or a literal address, without the brackets that IPv6 has in URLs.
    pub host: String,
    pub port: u16,
}

/// Why there is no connection. Nothing of a request was written, whatever the variant.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot resolve {host}")]
    Name { host: String, source: io::Error },
    #[error("{host} resolves to {address}, which is link-local or a metadata service")]
    Denied { host: String, address: IpAddr },
    #[error("{address} refused the connection")]
    Refused { address: SocketAddr, source: io::Error },
    #[error("cannot connect: {0}")]
    Io(#[source] io::Error),
    #[error("no connection after {after:?}")]
    Timeout { after: Duration },
    #[error("{host} is no name that a certificate can be checked against")]
    ServerName { host: String, source: InvalidDnsNameError },
    #[error("the TLS handshake failed: {0}")]
    Tls(#[source] io::Error),
    #[error("the proxy {proxy} {source}")]
    Proxy { proxy: String, source: ProxyError },
    #[error("HTTP cannot begin on the connection")]
    Http(#[source] hyper::Error),
    #[error("HTTP/2 cannot begin on the connection")]
    Http2(#[source] h2::Error),
    #[error("{host} does not speak HTTP/2")]
    NoHttp2 { host: String },
    #[error("the upstream takes no request on a new connection")]
    NoRoom,
}

/// Opens byte streams. Dropping the future gives up what is half open.
#[async_trait]
pub trait Connector: Send + Sync {
    /// One stream to `endpoint`, TLS included. The caller bounds the time.
    ///
    /// # Errors
    /// There is no stream.
    async fn connect(&self, endpoint: &Endpoint) -> Result<Wire, ConnectError>;

    /// The same where nothing is negotiated but HTTP/1.1.
    ///
    /// # Errors
    /// There is no stream.
    async fn connect_http1(&self, endpoint: &Endpoint) -> Result<Wire, ConnectError> {
        self.connect(endpoint).await
    }
}

/// TCP, with TLS where the endpoint says so.
pub struct TcpConnector {
    tls: Option<TlsConnector>,
    /// Offers HTTP/1.1 alone.
    http1: Option<TlsConnector>,
    proxy: Option<Proxy>,
}

impl TcpConnector {
    /// `tls` is what [`client_config`](crate::tls::client_config) makes; without it no endpoint with TLS is reached.
    pub fn new(tls: Option<Arc<ClientConfig>>) -> Self {
        let http1 = tls.as_deref().map(|tls| TlsConnector::from(offering(tls, Protocol::Http1.offer())));
        Self { tls: tls.map(TlsConnector::from), http1, proxy: None }
    }

    /// Goes through `proxy`, if there is one.
    pub fn through(self, proxy: Option<Proxy>) -> Self {
        Self { proxy, ..self }
    }

    async fn open(&self, endpoint: &Endpoint, tls: Option<&TlsConnector>) -> Result<Wire, ConnectError> {
        let stream = match &self.proxy {
            Some(proxy) => proxy.tunnel(endpoint).await?,
            None => dial(&resolve(&endpoint.host, endpoint.port).await?).await?,
        };
        if !endpoint.tls {
            return Ok(Wire::new(stream));
        }
        let unprepared = || ConnectError::Tls(io::ErrorKind::Unsupported.into());
        secure(tls.ok_or_else(unprepared)?, &endpoint.host, stream).await
    }
}

#[async_trait]
impl Connector for TcpConnector {
    async fn connect(&self, endpoint: &Endpoint) -> Result<Wire, ConnectError> {
        self.open(endpoint, self.tls.as_ref()).await
    }

    async fn connect_http1(&self, endpoint: &Endpoint) -> Result<Wire, ConnectError> {
        self.open(endpoint, self.http1.as_ref()).await
    }
}

/// The first address that answers; the last one's error if none does.
pub(super) async fn dial(addresses: &[SocketAddr]) -> Result<TcpStream, ConnectError> {
    let mut failure = ConnectError::Io(io::ErrorKind::AddrNotAvailable.into());
    for &address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(ConnectError::Io)?;
                return Ok(stream);
            }
            Err(source) if source.kind() == io::ErrorKind::ConnectionRefused => {
                failure = ConnectError::Refused { address, source };
            }
            Err(source) => failure = ConnectError::Io(source),
        }
    }
    Err(failure)
}

async fn secure(tls: &TlsConnector, host: &str, stream: TcpStream) -> Result<Wire, ConnectError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|source| ConnectError::ServerName { host: host.to_owned(), source })?;
    let (counted, written) = Counted::new(stream);
    let stream = tls.connect(name, counted).await.map_err(ConnectError::Tls)?;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
    Ok(Wire::counted_below(stream, written, http2))
}
