//! `gateway.toml` as types that cannot be wrong.
//!
//! Reading (a strict mirror of the file, with spans) and resolving (defaults, policies, cross checks) happen here; what
//! leaves this module needs no further check. The names are those of the file.

mod alerts;
mod certificates;
mod check;
mod classify;
mod describe;
mod error;
mod explain;
mod grammar;
mod hint;
mod identity;
mod layers;
mod load;
mod moves;
mod overrides;
mod policy;
mod presets;
mod reader;
mod resolve;
mod route;
mod rules;
mod schema;
mod server_tls;
mod services;
mod store_access;
mod target;
mod template;
mod text;
mod tree;
mod units;
mod url;
mod words;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use rustls::ClientConfig;

use crate::operation::admission::Repeat;
use crate::protocol::Protocol;
use crate::redis_url::RedisUrl;
use crate::retry::dialect::Dialect;
use crate::sealing_key::SealingKey;

pub use self::alerts::{AlertFormat, Alerts, GroupBy, Receiver};
pub use self::certificates::ClientTls;
pub use self::error::{ConfigError, ConfigErrors, Problem};
pub use self::identity::{IdentityChanges, ON_CHANGED_PAYLOAD};
pub use self::load::UpstreamMode;
pub use self::route::{Route, RouteMatch, RouteTable};
pub use self::rules::{
    ClientKey, Compare, Concurrency, DuplicateWindow, Effect, Forward, Ignored, InFlight, Ingredient, KeyFormat,
    KeyMode, KeyRules, OnChangedPayload, OnLargeBody, OnStoreDown, PayloadRules, Rate, Rates,
};
pub use self::server_tls::{CertificateError, ServerTls};
pub use self::target::upstream_target;
pub use self::template::init_template;
pub use self::text::Environment;
pub use self::tree::Place;
pub use self::units::duration_text;

/// The whole of `gateway.toml`, resolved.
#[derive(Clone, Debug)]
pub struct Config {
    pub server: Server,
    pub store: StoreSettings,
    pub callers: Callers,
    pub routes: RouteTable,
    /// Who is told of operations that need a person, if anybody is.
    pub alerts: Option<Alerts>,
    pub log: Log,
    /// Where the values of each route come from, in the order of the routes.
    explained: Vec<explain::RouteExplained>,
    /// Variables that look like settings and are not read.
    near_misses: Vec<String>,
}

/// `[server]`: where the gateway listens, and the bounds of what it takes in.
#[derive(Clone, Debug)]
pub struct Server {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    pub health: SocketAddr,
    pub header_timeout: Duration,
    pub body_idle_timeout: Duration,
    pub drain: Duration,
    pub max_connections: NonZeroUsize,
    /// Requests at once on one connection that speaks HTTP/2.
    pub max_concurrent_streams: NonZeroUsize,
    pub max_header_bytes: usize,
    pub max_uri_bytes: usize,
    pub threads: NonZeroUsize,
    /// Bytes that all buffered bodies together may take.
    pub buffers: u64,
    pub trusted_proxies: Vec<Network>,
    /// Of `listen`; without it agents speak plain HTTP.
    pub tls: Option<ServerTls>,
}

/// A block of addresses, `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub address: IpAddr,
    pub prefix: u8,
}

impl Network {
    /// Whether an address lies in the block. An IPv4 address in its IPv6 form counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(block), IpAddr::V4(asked)) => {
                same_prefix(u32::from(block).into(), u32::from(asked).into(), 32, self.prefix)
            }
            (IpAddr::V6(block), IpAddr::V6(asked)) => same_prefix(block.into(), asked.into(), 128, self.prefix),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

/// Whether two addresses of `width` bits agree in their first `prefix` bits.
fn same_prefix(left: u128, right: u128, width: u32, prefix: u8) -> bool {
    let differing = left ^ right;
    differing.checked_shr(width - width.min(prefix.into())).unwrap_or(0) == 0
}

/// `[store]`; what it says about receipts and tombstones is already in the routes.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    pub url: StoreUrl,
    /// Part of every name in a Redis.
    pub namespace: String,
    pub receipts: Duration,
    pub tombstones: Duration,
    pub lease: Duration,
    pub timeout: Duration,
    /// Unfinished operations of one scope.
    pub max_open: NonZeroUsize,
    /// `memory:` has none.
    pub durability: Option<Durability>,
    /// How many replicas have to have a step; stated with [`Durability::Replicas`] and only then.
    pub replicas: Option<NonZeroUsize>,
    /// What every connection of `url` is made with, if that says TLS.
    pub tls: Option<Arc<ClientConfig>>,
    /// Of the sentinels, where they want one of their own.
    pub sentinel_login: Option<SentinelLogin>,
    /// Of receipts and stored requests: the first key encrypts, all decrypt. Empty if none is stated.
    pub encryption: Vec<SealingKey>,
}

impl StoreSettings {
    /// Whether a caller's credential may be kept with his call: sealed, or in memory only. A file has a key of its own.
    pub fn keeps_credentials(&self) -> bool {
        match self.url {
            StoreUrl::Memory | StoreUrl::File(_) => true,
            StoreUrl::Redis(_) => !self.encryption.is_empty(),
        }
    }

    /// The namespace, where it tells one memory from another.
    pub fn namespace_in_redis(&self) -> Option<&str> {
        match self.url {
            StoreUrl::Redis(_) => Some(&self.namespace),
            StoreUrl::Memory | StoreUrl::File(_) => None,
        }
    }
}

/// What a step of the store has to survive before it counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// `file:`: a power loss.
    Fsync,
    /// `file:`: a kill of the gateway; a power loss takes about the last second.
    Os,
    /// Redis: what the one server that took it survives.
    Single,
    /// Redis: the loss of that server, for `replicas` others have it, too.
    Replicas,
}

/// `store.sentinel_user` and `store.sentinel_password`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelLogin {
    pub user: Option<String>,
    pub password: Secret,
}

/// Which store keeps the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    Memory,
    File(PathBuf),
    Redis(RedisUrl),
}

impl StoreUrl {
    /// `memory`, `file` or `redis`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::File(_) => "file",
            Self::Redis(_) => "redis",
        }
    }
}

/// Text that must not reach a log: its `Debug` says nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// How callers are told apart.
#[derive(Clone, Debug)]
pub enum Callers {
    None,
    /// By a digest of the credentials that a request brings.
    Credential,
    /// By a header that a trusted hop writes.
    Header(HeaderName),
    /// By tokens of the gateway's own; they never go upstream.
    Token(Vec<CallerToken>),
}

/// One token of a named caller; a name may have two while it rotates.
#[derive(Clone, Debug)]
pub struct CallerToken {
    pub name: String,
    pub token: Secret,
}

/// A service behind the gateway.
#[derive(Clone, Debug)]
pub struct Upstream {
    pub name: String,
    pub tls: bool,
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
    /// `host[:port]` as it stands in the URL: the `Host` that the upstream gets.
    pub authority: String,
    /// Path of the URL without its last slash; put before every target.
    pub base_path: String,
    pub repeat: Option<Repeat>,
    pub key_retention: Duration,
    pub settle: Duration,
    pub protocol: Protocol,
    /// How long the addresses of `host`, or of the proxy's, are used before they are looked up again.
    pub dns_ttl: Duration,
    pub connect_timeout: Duration,
    pub idle_timeout: Duration,
    /// `host = "client"`: the caller's own `Host` goes upstream.
    pub keeps_client_host: bool,
    /// Of an `https://` upstream.
    pub client_tls: Option<ClientTls>,
    /// What its connections go through.
    pub proxy: Option<Proxy>,
    /// Added at send, never stored. Credentials among them are marked as sensitive.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How it says when to come back.
    pub dialect: Dialect,
}

/// A proxy that is asked for a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
    /// `host[:port]` as it stands in the URL.
    pub authority: String,
    /// For `Proxy-Authorization`, marked as sensitive.
    pub authorization: Option<HeaderValue>,
}

impl Upstream {
    /// Whether the gateway shows the service a credential of its own, a header or a certificate, which all its callers
    /// then share there. What a proxy is shown goes no further.
    pub fn carries_credential(&self) -> bool {
        let shows_certificate = self.client_tls.as_ref().is_some_and(ClientTls::shows_certificate);
        shows_certificate || self.headers.iter().any(|(_, value)| value.is_sensitive())
    }
}

/// `[log]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    pub level: tracing::Level,
    pub format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    Pretty,
    Json,
}
