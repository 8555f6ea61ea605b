//! How a byte stream to an upstream comes about. A simulation puts its own [`Connector`] here.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{CertificateError, ClientConfig, InvalidMessage, ProtocolVersion};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::address::Address;
use super::name::{Host, NameError};
use super::tunnel::{Proxy, ProxyError};
use super::wire::{Counted, Wire};
use crate::protocol::Protocol;
use crate::tls::offering;

/// As ALPN names it.
const HTTP2: &[u8] = b"h2";

/// How long an address may be silent before the next one is tried beside it (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);

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
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("{address} refused the connection")]
    Refused { address: SocketAddr, source: io::Error },
    #[error("cannot connect: {0}")]
    Io(#[source] io::Error),
    #[error("no connection after {after:?}")]
    Timeout { after: Duration },
    #[error("{host} is no name that a certificate can be checked against")]
    ServerName { host: String, source: InvalidDnsNameError },
    #[error("the TLS handshake failed: {}{}", .0, advice(.0))]
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

fn advice(error: &io::Error) -> &'static str {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match error {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "; `ca_file` of the upstream says which authorities are trusted"
        }
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "; it does not speak TLS: should the url begin with http://?"
        }
        Some(_) | None => "",
    }
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

    /// Told of every request, so that a name is followed although all requests find a connection.
    fn renew(&self) {}
}

/// TCP to one endpoint, with TLS where that says so.
pub struct TcpConnector {
    /// The endpoint's, or the proxy's.
    host: Host,
    tls: Option<TlsConnector>,
    /// Offers HTTP/1.1 alone.
    http1: Option<TlsConnector>,
    proxy: Option<Proxy>,
}

impl TcpConnector {
    /// Goes through `proxy`, if there is one. `tls` is what [`client_config`](crate::tls::client_config) makes; without it
    /// no endpoint with TLS is reached. The addresses of a name are looked up again after `dns_ttl`.
    pub fn new(endpoint: &Endpoint, tls: Option<Arc<ClientConfig>>, proxy: Option<Proxy>, dns_ttl: Duration) -> Self {
        let (host, port) = match &proxy {
            Some(proxy) => (&proxy.host, proxy.port),
            None => (&endpoint.host, endpoint.port),
        };
        let http1 = tls.as_deref().map(|tls| TlsConnector::from(offering(tls, Protocol::Http1.offer())));
        Self { host: Host::new(host, port, dns_ttl), tls: tls.map(TlsConnector::from), http1, proxy }
    }

    #[cfg(test)]
    pub(super) fn by_name(host: Host) -> Self {
        Self { host, tls: None, http1: None, proxy: None }
    }

    async fn open(&self, endpoint: &Endpoint, tls: Option<&TlsConnector>) -> Result<Wire, ConnectError> {
        let (stream, address) = match &self.proxy {
            Some(proxy) => proxy.tunnel(&self.host, endpoint).await?,
            None => dial(&self.host).await?,
        };
        if !endpoint.tls {
            return Ok(Wire::new(stream).to(address));
        }
        let unprepared = || ConnectError::Tls(io::ErrorKind::Unsupported.into());
        Ok(secure(tls.ok_or_else(unprepared)?, &endpoint.host, stream).await?.to(address))
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

    fn renew(&self) {
        self.host.renew();
    }
}

/// The first connection that comes about; the last error if none does.
pub(super) async fn dial(host: &Host) -> Result<(TcpStream, Arc<Address>), ConnectError> {
    let dialed = race(alternating(&host.addresses().await?)).await;
    if dialed.is_err() {
        host.doubt();
    }
    dialed
}

/// Both families in turn, each in the resolver's order, so that one that leads nowhere does not hold up the other
/// (RFC 8305, section 4).
pub(super) fn alternating(addresses: &[Arc<Address>]) -> Vec<Arc<Address>> {
    let family = addresses.first().map(|address| address.socket.is_ipv4());
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.iter().cloned().partition(|address| Some(address.socket.is_ipv4()) == family);
    let mut second = second.into_iter();
    let mut order: Vec<_> = first.into_iter().flat_map(|address| [Some(address), second.next()]).flatten().collect();
    order.extend(second);
    order
}

/// Tries one address after the other, the next when one has failed or is slow. What did not win is closed: nothing was
/// written to it.
async fn race(addresses: Vec<Arc<Address>>) -> Result<(TcpStream, Arc<Address>), ConnectError> {
    let (mut next, mut tries) = (addresses.into_iter(), JoinSet::new());
    let mut failure = ConnectError::Io(io::ErrorKind::AddrNotAvailable.into());
    loop {
        if let Some(address) = next.next() {
            tries.spawn(connect(address));
        }
        match timeout(HEAD_START, tries.join_next()).await {
            Ok(Some(Ok(Ok(connected)))) => return Ok(connected),
            Ok(Some(Ok(Err(failed)))) => failure = failed,
            Ok(None) => return Err(failure),
            Ok(Some(Err(_))) | Err(_) => {}
        }
    }
}

async fn connect(address: Arc<Address>) -> Result<(TcpStream, Arc<Address>), ConnectError> {
    let connected = TcpStream::connect(address.socket).await;
    let stream = connected.map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused => ConnectError::Refused { address: address.socket, source },
        _ => ConnectError::Io(source),
    })?;
    stream.set_nodelay(true).map_err(ConnectError::Io)?;
    Ok((stream, address))
}

async fn secure(tls: &TlsConnector, host: &str, stream: TcpStream) -> Result<Wire, ConnectError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|source| ConnectError::ServerName { host: host.to_owned(), source })?;
    let (counted, written) = Counted::new(stream);
    let stream = tls.connect(name, counted).await.map_err(ConnectError::Tls)?;
    let session = stream.get_ref().1;
    let http2 = session.alpn_protocol() == Some(HTTP2);
    let let_in = session.protocol_version() != Some(ProtocolVersion::TLSv1_3);
    Ok(Wire::counted_below(stream, written, http2, let_in))
}
