//! The protocols of a connection, and the papers that it takes.

use std::fs;
use std::net::SocketAddr;

use oncegate::tls::{Identity, client_config, server_config};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::Failure;

/// Every end is here.
const HOST: &str = "127.0.0.1";

#[derive(Clone, Copy, Default)]
pub(crate) struct Way {
    pub(crate) tls: bool,
    pub(crate) http2: bool,
}

pub(crate) const HTTP1: Way = Way { tls: false, http2: false };
pub(crate) const HTTP2: Way = Way { tls: false, http2: true };
pub(crate) const HTTPS1: Way = Way { tls: true, http2: false };
pub(crate) const HTTPS2: Way = Way { tls: true, http2: true };

impl Way {
    /// As `upstreams.NAME.protocol` says it, and ALPN.
    pub(crate) fn protocol(self) -> &'static str {
        if self.http2 { "h2" } else { "http1" }
    }

    pub(crate) fn scheme(self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    fn names(self) -> &'static [&'static str] {
        if self.http2 { &["h2"] } else { &["http/1.1"] }
    }
}

/// Whatever carries bytes both ways.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A certificate that gateway and service share, and that everybody trusts.
pub(crate) struct Papers {
    files: TempDir,
    certificate: String,
    key: String,
}

impl Papers {
    pub(crate) fn made() -> Result<Self, Failure> {
        let made = rcgen::generate_simple_self_signed([HOST.to_owned()])?;
        let papers =
            Self { files: tempfile::tempdir()?, certificate: made.cert.pem(), key: made.signing_key.serialize_pem() };
        fs::write(papers.path("cert.pem"), &papers.certificate)?;
        fs::write(papers.path("key.pem"), &papers.key)?;
        Ok(papers)
    }

    /// Where the gateway reads one of them.
    pub(crate) fn path(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    pub(crate) fn acceptor(&self, way: Way) -> Result<TlsAcceptor, Failure> {
        let identity = Identity { certificates: self.certificate.as_bytes(), key: self.key.as_bytes() };
        Ok(TlsAcceptor::from(server_config(identity, None, way.names())?))
    }

    /// A connection to the gateway.
    pub(crate) async fn connect(&self, address: SocketAddr, way: Way) -> Result<Box<dyn Stream>, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        if !way.tls {
            return Ok(Box::new(stream));
        }
        let config = client_config(Some(self.certificate.as_bytes()), None, way.names())?;
        let name = ServerName::try_from(HOST)?;
        Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
    }
}
