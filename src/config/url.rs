//! URLs of upstreams and stores.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use http::uri::Authority;
use http::{HeaderValue, Uri};

use super::grammar;
use super::units::Accepts;
use super::{Proxy, StoreUrl};
use crate::redis_url::{Misread, RedisUrl, unescape};

/// Where an upstream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) tls: bool,
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// As it stands in the URL.
    pub(super) authority: String,
    /// Without a slash at its end.
    pub(super) base_path: String,
}

impl Address {
    /// Whether whoever listens there gets the calls.
    pub(super) fn is_at(&self, listen: SocketAddr) -> bool {
        let is_here = match self.host.parse::<IpAddr>() {
            Ok(ip) => ip == listen.ip() || (ip.is_loopback() && listen.ip().is_unspecified()),
            Err(_) => localhost_leads_to(listen.ip()) && self.host.eq_ignore_ascii_case("localhost"),
        };
        is_here && self.port == listen.port()
    }

    /// Stands in for an address that was refused; a configuration with errors is never used.
    pub(super) fn nowhere() -> Self {
        Self { tls: false, host: String::new(), port: 0, authority: String::new(), base_path: String::new() }
    }
}

/// The name has one address in each family.
fn localhost_leads_to(ip: IpAddr) -> bool {
    ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST || ip.is_unspecified()
}

/// `http://` or `https://`, a host, perhaps a port and a path.
pub(super) fn upstream(text: &str) -> Result<Address, Accepts> {
    let accepts = || Accepts::from("a URL such as \"http://127.0.0.1:9000\" or \"https://payments.internal/v1\"");
    if text.parse::<Authority>().is_ok() {
        return Err("a URL that begins with its scheme, such as \"http://127.0.0.1:9000\"".into());
    }
    let uri: Uri = text.parse().map_err(|_| accepts())?;
    let (tls, default_port) = match uri.scheme_str() {
        Some("http") => (false, 80),
        Some("https") => (true, 443),
        Some(_) | None => return Err(accepts()),
    };
    if text.contains(['?', '#']) {
        return Err("a URL without query and fragment: what the caller sends is appended to it".into());
    }
    let authority = uri.authority().ok_or_else(accepts)?;
    if authority.as_str().contains('@') {
        return Err("a URL without user and password; a credential belongs in `headers`".into());
    }
    Ok(Address {
        tls,
        host: host_of(authority).ok_or_else(accepts)?.to_owned(),
        port: port_of(authority).ok_or_else(accepts)?.unwrap_or(default_port),
        authority: authority.as_str().to_owned(),
        base_path: grammar::base_path(uri.path())?,
    })
}

/// Where alerts are posted, with path and query.
pub(super) fn receiver(text: &str) -> Result<(Address, String), Accepts> {
    let accepts =
        || Accepts::from("a URL such as \"https://hooks.internal/oncegate\", without user, password and fragment");
    let address = upstream(text.split('?').next().unwrap_or_default()).map_err(|_| accepts())?;
    let uri: Uri = text.parse().map_err(|_| accepts())?;
    match uri.path_and_query() {
        Some(target) if !text.contains('#') => Ok((address, target.as_str().to_owned())),
        Some(_) | None => Err(accepts()),
    }
}

/// `memory:`, `file:PATH`, or one of a Redis.
pub(super) fn store(text: &str) -> Result<StoreUrl, Accepts> {
    let accepts = || Accepts::from(format!("\"memory:\", \"file:PATH\", or {}", Misread::Scheme));
    match text.split_once(':').ok_or_else(accepts)? {
        ("memory", "") => Ok(StoreUrl::Memory),
        ("file", path) if !path.is_empty() && !path.ends_with('/') && !path.contains('\0') => {
            Ok(StoreUrl::File(PathBuf::from(path)))
        }
        (scheme, _) if scheme.starts_with("redis") => {
            RedisUrl::parse(text).map(StoreUrl::Redis).map_err(|misread| misread.to_string().into())
        }
        (_, _) => Err(accepts()),
    }
}

/// `http://`, perhaps a user and a password, and a host.
pub(super) fn proxy(text: &str) -> Result<Proxy, Accepts> {
    let accepts = || {
        Accepts::from(
            "a URL such as \"http://egress:3128\" or \"http://USER:PASSWORD@egress:3128\"; what goes to an https:// \
             upstream is encrypted inside the tunnel",
        )
    };
    let uri: Uri = text.parse().map_err(|_| accepts())?;
    if uri.scheme_str() != Some("http") || !matches!(uri.path(), "" | "/") || text.contains(['?', '#']) {
        return Err(accepts());
    }
    let authority = uri.authority().ok_or_else(accepts)?;
    let (login, address) = match authority.as_str().rsplit_once('@') {
        Some((login, address)) => (Some(login), address),
        None => (None, authority.as_str()),
    };
    Ok(Proxy {
        host: host_of(authority).ok_or_else(accepts)?.to_owned(),
        port: port_of(authority).ok_or_else(accepts)?.unwrap_or(80),
        authority: address.to_owned(),
        authorization: login.map(|login| basic(login).ok_or_else(accepts)).transpose()?,
    })
}

/// The credentials of a URL as `Basic` puts them (RFC 7617, section 2).
fn basic(login: &str) -> Option<HeaderValue> {
    let (user, password) = login.split_once(':')?;
    let (user, password) = (unescape(user)?, unescape(password)?);
    if user.contains(':') {
        return None;
    }
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64.encode(format!("{user}:{password}")))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn host_of(authority: &Authority) -> Option<&str> {
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then_some(host)
}

/// `Some(None)` where the URL states no port, `None` where it states one that cannot be.
fn port_of(authority: &Authority) -> Option<Option<u16>> {
    let host_and_port = authority.as_str().rsplit('@').next()?;
    match host_and_port.strip_prefix(authority.host())? {
        "" => Some(None),
        stated => {
            let port: u16 = stated.strip_prefix(':')?.parse().ok()?;
            (port > 0).then_some(Some(port))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_scheme_host_port_and_path() {
        let address = upstream("https://payments.internal/v1/").unwrap();
        assert!(address.tls);
        assert_eq!((address.host.as_str(), address.port), ("payments.internal", 443));
        assert_eq!((address.authority.as_str(), address.base_path.as_str()), ("payments.internal", "/v1"));
    }

    #[test]
    fn an_ipv6_host_loses_its_brackets_and_its_authority_keeps_them() {
        let address = upstream("http://[::1]:9000").unwrap();
        assert_eq!((address.host.as_str(), address.port, address.authority.as_str()), ("::1", 9000, "[::1]:9000"));
        assert_eq!(address.base_path, "");
    }

    #[test]
    fn a_proxy_is_host_port_and_credentials() {
        let plain = proxy("http://egress").unwrap();
        assert_eq!((plain.host.as_str(), plain.port, &plain.authorization), ("egress", 80, &None));
        let known = proxy("http://agent%40x:p%3Ass%2F@[::1]:3128/").unwrap();
        assert_eq!((known.host.as_str(), known.port, known.authority.as_str()), ("::1", 3128, "[::1]:3128"));
        assert_eq!(known.authorization.as_ref().unwrap(), "Basic YWdlbnRAeDpwOnNzLw==");
        assert!(!format!("{known:?}").contains("YWdl"));
        for wrong in
            ["egress:3128", "https://egress", "socks5://egress", "http://egress/x", "http://egress?x", "http://me@h"]
        {
            assert!(proxy(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn urls_that_could_mean_two_things_are_refused() {
        for wrong in [
            "",
            "127.0.0.1:9000",
            "ftp://a",
            "http://",
            "http://a:0",
            "http://a:99999",
            "http://a:",
            "http://user:pw@a",
            "http://a/x?y=1",
            "http://a/#x",
            "http://a/../b",
            "http://a/%2e%2E/b",
            "http://a//b",
        ] {
            assert!(upstream(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stores() {
        assert_eq!(store("memory:"), Ok(StoreUrl::Memory));
        assert_eq!(store("file:data/x.db"), Ok(StoreUrl::File(PathBuf::from("data/x.db"))));
        for redis in ["redis://127.0.0.1:6379", "rediss://:pw@host/3", "redis+sentinel://a,b/m", "redis+cluster://a,b"]
        {
            assert_eq!(store(redis), Ok(StoreUrl::Redis(RedisUrl::parse(redis).unwrap())));
        }
        for wrong in
            ["", "memory", "file:", "redis://", "redis:x", "redis://h/x", "redis://h:x", "redisx://h", "pg://h"]
        {
            assert!(store(wrong).is_err(), "{wrong}");
        }
    }
}
