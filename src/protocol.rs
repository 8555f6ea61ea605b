//! What is spoken to an upstream: a word that the configuration and the connections share.

/// Which HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2 where ALPN agrees on it, else HTTP/1.1.
    Auto,
    Http1,
    /// HTTP/2 only; without TLS the upstream is known to speak it.
    Http2,
}

impl Protocol {
    /// What an upstream is offered by ALPN, best first.
    pub const fn offer(self) -> &'static [&'static str] {
        match self {
            Self::Auto => &["h2", "http/1.1"],
            Self::Http1 => &["http/1.1"],
            Self::Http2 => &["h2"],
        }
    }
}
