//! The TLS handshake with a client, and what it tells of it.

use std::io;
use std::sync::Arc;

use http::{Request, Response};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::engine::answer::Marks;
use crate::engine::problem::{Code, Problem};
use crate::server::body::ResponseBody;
use crate::server::listener::{Peer, Transport};
use crate::server::request_body::RequestBody;
use crate::server::respond;

/// First byte of a TLS connection: a handshake record (RFC 8446, section 5.1). No HTTP request begins with it.
const HANDSHAKE: u8 = 22;

/// What new connections are greeted with; other certificates may take its place at any time.
pub type Certificates = watch::Receiver<Arc<ServerConfig>>;

/// How a connection goes on.
pub(super) enum Greeted {
    Http1(Secured, Transport),
    Http2(Secured, Transport),
    /// The client does not speak TLS; it has not been answered yet.
    Plain(TcpStream),
}

/// A connection that is encrypted from now on.
pub(super) type Secured = Box<TlsStream<TcpStream>>;

/// Waits for a client and shakes hands with it. The caller bounds the time.
///
/// # Errors
/// Why there is no connection, and the stream on which the client has been told.
pub(super) async fn greet(stream: TcpStream, certificates: &Certificates) -> Result<Greeted, (io::Error, TcpStream)> {
    let mut first = [HANDSHAKE];
    match stream.peek(&mut first).await {
        Ok(_) if first == [HANDSHAKE] => {}
        Ok(_) => return Ok(Greeted::Plain(stream)),
        Err(error) => return Err((error, stream)),
    }
    let current = Arc::clone(&certificates.borrow());
    let stream = TlsAcceptor::from(current).accept(stream).into_fallible().await?;
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    let transport = certificate.map_or(Transport::Tls, |shown| Transport::MutualTls { holder: holder(shown) });
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let stream = Box::new(stream);
    Ok(if is_http2 { Greeted::Http2(stream, transport) } else { Greeted::Http1(stream, transport) })
}

/// Who can show the certificate: whoever has the key to it, also after a renewal that leaves the key as it is.
fn holder(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let key = ParsedCertificate::try_from(certificate).map(|parsed| parsed.subject_public_key_info());
    match key {
        Ok(key) => Sha256::digest(&key).into(),
        Err(_) => Sha256::digest(certificate).into(),
    }
}

/// What a client is told that speaks plain HTTP where TLS is spoken.
pub(super) async fn spoke_plainly(_: Request<RequestBody>, _: Peer) -> Response<ResponseBody> {
    let detail = "This port speaks TLS: the URL begins with https://.";
    respond::problem(Problem::new(Code::InvalidRequest, detail), &Marks::default())
}
