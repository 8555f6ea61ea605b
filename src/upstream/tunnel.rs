//! A proxy between us and an upstream. It is asked for a tunnel, whether the upstream speaks TLS or not, so that the
//! upstream gets the same bytes as without it.

use std::fmt;
use std::io;
use std::sync::Arc;

use http::HeaderValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::address::Address;
use super::connector::dial;
use super::name::Host;
use super::{ConnectError, Endpoint};

/// Bytes of its answer that a proxy may need.
const MAX_HEAD: usize = 16 * 1024;

/// A proxy that knows `CONNECT` (RFC 9110, section 9.3.6). It is spoken to in plain HTTP/1.1.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// A name or a literal address, without brackets.
    pub host: String,
    pub port: u16,
    /// What it gets as `Proxy-Authorization`.
    pub authorization: Option<HeaderValue>,
}

/// Why a proxy gave no tunnel. Nothing went to the upstream.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("cannot be reached: {0}")]
    Unreachable(#[source] Box<ConnectError>),
    #[error("broke off: {0}")]
    Io(#[from] io::Error),
    #[error("wants other credentials (407)")]
    Credentials,
    #[error("answers {status} when asked for {target}")]
    Refused { status: u16, target: String },
    #[error("does not answer as a proxy does")]
    Garbled,
}

impl Proxy {
    /// A stream to the upstream through the proxy, which is `host`. The name of the upstream is the proxy's to resolve. The
    /// caller bounds the time.
    ///
    /// # Errors
    /// The proxy is not there, or does not do it.
    pub(super) async fn tunnel(
        &self,
        host: &Host,
        endpoint: &Endpoint,
    ) -> Result<(TcpStream, Arc<Address>), ConnectError> {
        let tunnel = self.ask(host, &Target(endpoint).to_string()).await;
        tunnel.map_err(|source| ConnectError::Proxy { proxy: format!("{}:{}", self.host, self.port), source })
    }

    async fn ask(&self, host: &Host, target: &str) -> Result<(TcpStream, Arc<Address>), ProxyError> {
        let dialed = dial(host).await;
        let (mut stream, address) = dialed.map_err(|error| ProxyError::Unreachable(Box::new(error)))?;
        stream.write_all(&self.request(target)).await?;
        match status(&read_head(&mut stream).await?) {
            Some(200..=299) => Ok((stream, address)),
            Some(407) => Err(ProxyError::Credentials),
            Some(status) => Err(ProxyError::Refused { status, target: target.to_owned() }),
            None => Err(ProxyError::Garbled),
        }
    }

    fn request(&self, target: &str) -> Vec<u8> {
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
            request.extend_from_slice(&[b"Proxy-Authorization: ", authorization.as_bytes(), b"\r\n"].concat());
        }
        request.extend_from_slice(b"\r\n");
        request
    }
}

/// `host:port`, with the brackets that an IPv6 address needs there.
struct Target<'a>(&'a Endpoint);

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint { host, port, .. } = self.0;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Takes the head of the answer and not a byte behind it: that is the upstream's.
async fn read_head(stream: &mut TcpStream) -> Result<Vec<u8>, ProxyError> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut next = [0; 1024];
        let seen = stream.peek(&mut next).await?;
        let taken = up_to_the_end(&head, next.get(..seen).unwrap_or_default());
        if taken == 0 {
            return Err(ProxyError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let before = head.len();
        head.resize(before + taken, 0);
        stream.read_exact(head.get_mut(before..).unwrap_or_default()).await?;
        if head.len() > MAX_HEAD {
            return Err(ProxyError::Garbled);
        }
    }
    Ok(head)
}

/// How many of the `next` bytes belong to a head of which `head` is the beginning.
fn up_to_the_end(head: &[u8], next: &[u8]) -> usize {
    let known = head.get(head.len().saturating_sub(3)..).unwrap_or_default();
    let joined = [known, next].concat();
    let end = joined.windows(4).position(|window| window == b"\r\n\r\n");
    end.map_or(next.len(), |at| at + 4 - known.len())
}

/// Of `HTTP/1.1 200 Connection established`.
fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.splitn(3, ' ');
    let version = words.next()?;
    let status = words.next().filter(|status| version.starts_with("HTTP/1.") && status.len() == 3)?;
    status.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_ends_where_it_ends_in_whatever_pieces_it_comes() {
        let bytes = b"HTTP/1.1 200 OK\r\nVia: p\r\n\r\n\r\n\r\nrest";
        for cut in 0..27 {
            let (head, next) = bytes.split_at(cut);
            assert_eq!(cut + up_to_the_end(head, next), 27, "{cut}");
        }
        assert_eq!(up_to_the_end(b"", b"HTTP/1.1 200"), 12);
    }

    #[test]
    fn only_a_status_line_has_a_status() {
        assert_eq!(status(b"HTTP/1.0 200\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"), Some(407));
        for garbled in
            ["SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/1.1\r\n\r\n", "HTTP/2 200\r\n\r\n", "\r\n\r\n"]
        {
            assert_eq!(status(garbled.as_bytes()), None, "{garbled}");
        }
    }

    #[test]
    fn an_ipv6_upstream_stands_in_brackets() {
        let endpoint = Endpoint { tls: true, host: "::1".to_owned(), port: 443 };
        assert_eq!(Target(&endpoint).to_string(), "[::1]:443");
    }
}
