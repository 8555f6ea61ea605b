//! The one URL that says where a Redis is: a server, a master that sentinels name, or a cluster.
//!
//! `redis://`, `redis+sentinel://`, `redis+cluster://`; with `rediss` all of it speaks TLS, the sentinels too.

use std::fmt;
use std::net::Ipv6Addr;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Where a Redis is, and who we are there. Its `Debug` and `Display` keep user and password to themselves.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    pub layout: Layout,
    pub tls: bool,
    pub user: Option<String>,
    pub password: Option<String>,
    /// A cluster has only number 0.
    pub database: u16,
}

/// How the servers of a Redis stand to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    Server(Host),
    /// The master of that name, wherever the sentinels say it is.
    Sentinel {
        sentinels: Vec<Host>,
        master: String,
    },
    /// Any of its nodes; they know the others.
    Cluster {
        seeds: Vec<Host>,
    },
}

/// A place to connect to: a name, or an address without brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    pub name: String,
    pub port: u16,
}

/// What would be accepted instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misread {
    #[error("redis://, rediss://, redis+sentinel://, redis+cluster://, rediss+sentinel:// or rediss+cluster://")]
    Scheme,
    #[error("redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]")]
    Server,
    #[error("redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],.../MASTER_NAME[/DATABASE]")]
    Sentinel,
    #[error("redis+cluster://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],... (a cluster has no databases)")]
    Cluster,
}

impl RedisUrl {
    /// # Errors
    /// It is not such a URL; the error says what one looks like.
    pub fn parse(text: &str) -> Result<Self, Misread> {
        let (scheme, rest) = text.split_once("://").ok_or(Misread::Scheme)?;
        let (tls, kind) = match scheme {
            "redis" => (false, Misread::Server),
            "rediss" => (true, Misread::Server),
            "redis+sentinel" => (false, Misread::Sentinel),
            "rediss+sentinel" => (true, Misread::Sentinel),
            "redis+cluster" => (false, Misread::Cluster),
            "rediss+cluster" => (true, Misread::Cluster),
            _ => return Err(Misread::Scheme),
        };
        parse(rest, tls, kind).ok_or(kind)
    }

    /// The plainest one: a server without TLS or password.
    pub fn server(host: Host) -> Self {
        Self { layout: Layout::Server(host), tls: false, user: None, password: None, database: 0 }
    }

    const fn scheme(&self) -> &'static str {
        match (&self.layout, self.tls) {
            (Layout::Server(_), false) => "redis",
            (Layout::Server(_), true) => "rediss",
            (Layout::Sentinel { .. }, false) => "redis+sentinel",
            (Layout::Sentinel { .. }, true) => "rediss+sentinel",
            (Layout::Cluster { .. }, false) => "redis+cluster",
            (Layout::Cluster { .. }, true) => "rediss+cluster",
        }
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme())?;
        if self.password.is_some() {
            f.write_str("***@")?;
        }
        match &self.layout {
            Layout::Server(host) => write!(f, "{host}")?,
            Layout::Sentinel { sentinels, master } => write!(f, "{}/{master}", joined(sentinels))?,
            Layout::Cluster { seeds } => f.write_str(&joined(seeds))?,
        }
        if self.database == 0 { Ok(()) } else { write!(f, "/{}", self.database) }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

impl Host {
    /// `HOST`, `HOST:PORT` or `[IPV6]:PORT`.
    pub fn parse(text: &str, default_port: u16) -> Option<Self> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                address.parse::<Ipv6Addr>().ok()?;
                (address, port)
            }
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port > 0)?,
            None if port.is_empty() => default_port,
            None => return None,
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        (!name.is_empty() && name.bytes().all(is_name)).then(|| Self { name: name.to_owned(), port })
    }

    /// `HOST:PORT` as servers write it: an IPv6 address stands there without brackets.
    pub fn parse_announced(text: &str) -> Option<Self> {
        let (name, port) = text.rsplit_once(':')?;
        (!name.is_empty()).then_some(Self { name: name.to_owned(), port: port.parse().ok()? })
    }
}

fn parse(rest: &str, tls: bool, kind: Misread) -> Option<RedisUrl> {
    if rest.contains(['?', '#']) {
        return None;
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, authority),
    };
    let (user, password) = login.map_or(Some((None, None)), credentials)?;
    let port = if kind == Misread::Sentinel { SENTINEL_PORT } else { PORT };
    let hosts: Vec<Host> = hosts.split(',').map(|host| Host::parse(host, port)).collect::<Option<_>>()?;
    let (layout, database) = match kind {
        Misread::Sentinel => {
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            let master = Some(master).filter(|master| is_master_name(master))?.to_owned();
            (Layout::Sentinel { sentinels: hosts, master }, database)
        }
        Misread::Cluster => (Layout::Cluster { seeds: hosts }, Some(path).filter(|path| path.is_empty())?),
        Misread::Server | Misread::Scheme => {
            let [host] = <[Host; 1]>::try_from(hosts).ok()?;
            (Layout::Server(host), path)
        }
    };
    let database = if database.is_empty() { 0 } else { database.parse().ok()? };
    Some(RedisUrl { layout, tls, user, password, database })
}

/// `USER:PASSWORD` or `:PASSWORD`, either with percent escapes.
fn credentials(login: &str) -> Option<(Option<String>, Option<String>)> {
    let (user, password) = login.split_once(':')?;
    let (user, password) = (unescape(user)?, unescape(password)?);
    (!password.is_empty()).then(|| (Some(user).filter(|user| !user.is_empty()), Some(password)))
}

/// The characters that Sentinel itself takes.
fn is_master_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
}

/// Text whose percent escapes are resolved; `None` if one is torn, or if it is not UTF-8 then.
pub fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(digit()? * 16 + digit()?);
    }
    String::from_utf8(bytes).ok()
}

fn joined(hosts: &[Host]) -> String {
    hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16) -> Host {
        Host { name: name.to_owned(), port }
    }

    #[test]
    fn a_server_has_a_default_port_and_a_database() {
        let url = RedisUrl::parse("redis://me:p%40ss@[::1]/3").unwrap();
        assert_eq!(url.layout, Layout::Server(host("::1", 6379)));
        assert_eq!((url.user.as_deref(), url.password.as_deref(), url.database), (Some("me"), Some("p@ss"), 3));
        assert_eq!(url.to_string(), "redis://***@[::1]:6379/3");
        assert!(!format!("{url:?}").contains("p@ss"));
        assert!(RedisUrl::parse("rediss://:pw@h:1/").unwrap().tls);
    }

    #[test]
    fn sentinels_name_a_master() {
        let url = RedisUrl::parse("rediss+sentinel://:pw@a,b:1/my-master/2").unwrap();
        let sentinels = vec![host("a", 26379), host("b", 1)];
        assert_eq!(url.layout, Layout::Sentinel { sentinels, master: "my-master".to_owned() });
        assert_eq!(url.to_string(), "rediss+sentinel://***@a:26379,b:1/my-master/2");
    }

    #[test]
    fn a_cluster_has_seeds() {
        let url = RedisUrl::parse("redis+cluster://a:1,b:2").unwrap();
        assert_eq!(url.layout, Layout::Cluster { seeds: vec![host("a", 1), host("b", 2)] });
        assert!(!url.tls);
        assert_eq!(url.to_string(), "redis+cluster://a:1,b:2");
    }

    #[test]
    fn servers_announce_addresses_without_brackets() {
        assert_eq!(Host::parse_announced("::1:7000"), Some(host("::1", 7000)));
        assert_eq!(Host::parse_announced(":7000"), None);
    }

    #[test]
    fn what_is_not_understood_is_answered_with_the_form_of_its_kind() {
        for (text, misread) in [
            ("localhost:6379", Misread::Scheme),
            ("http://h", Misread::Scheme),
            ("redis://", Misread::Server),
            ("redis://a,b", Misread::Server),
            ("redis://h/x", Misread::Server),
            ("redis://h:0", Misread::Server),
            ("redis://h:x", Misread::Server),
            ("redis://user@h", Misread::Server),
            ("redis://u:%zz@h", Misread::Server),
            ("rediss://h?insecure=1", Misread::Server),
            ("rediss://h/#insecure", Misread::Server),
            ("redis+sentinel://a,b", Misread::Sentinel),
            ("redis+sentinel://a,/m", Misread::Sentinel),
            ("redis+sentinel://a/m/x", Misread::Sentinel),
            ("redis+sentinel://a/my master", Misread::Sentinel),
            ("redis+cluster://a/1", Misread::Cluster),
            ("redis+cluster://[x]:1", Misread::Cluster),
        ] {
            assert_eq!(RedisUrl::parse(text), Err(misread), "{text}");
        }
    }
}
