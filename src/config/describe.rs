//! What a configuration comes to, for `oncegate check`.

use std::fmt::{self, Write};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, absolute};

use http::Method;

use super::explain::{RouteExplained, Shown};
use super::rules::{Effect, Forward, KeyMode};
use super::units;
use super::words::Word;
use super::{Callers, Config, Durability, Route, StoreUrl, Upstream};
use crate::operation::admission::Repeat;
use crate::protocol::Protocol;
use crate::sealing_key::SealingKey;

const SHORT_TOKEN: usize = 16;

impl Config {
    /// The routes in the order in which they are tried, each value with its origin, then what deserves a second look.
    /// Without secrets.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        match self.write(&mut text) {
            Ok(()) | Err(fmt::Error) => text,
        }
    }

    /// What is accepted but promises less than it seems to, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.store.url == StoreUrl::Memory {
            warnings.push("store: memory: keeps its promises within the life of this process only".to_owned());
        }
        if let StoreUrl::File(path) = &self.store.url
            && let key = key_path(path)
            && fs::metadata(&key).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
        {
            warnings.push(format!("store: others than its owner can read or write {key}; `chmod 600` it"));
        }
        if self.store.durability == Some(Durability::Os) {
            warnings.push(
                "store: durability = \"os\" survives a kill, but a power loss takes about the last second: those calls \
                 may run again"
                    .to_owned(),
            );
        }
        if matches!(self.callers, Callers::None) && !self.server.listen.ip().is_loopback() {
            warnings
                .push("callers: with scope = \"none\" everybody who reaches `listen` shares the same keys".to_owned());
        }
        if let Callers::Token(tokens) = &self.callers {
            let short = tokens.iter().filter(|token| token.token.0.len() < SHORT_TOKEN);
            warnings.extend(short.map(|token| {
                format!(
                    "callers: a token of {} is shorter than {SHORT_TOKEN} characters and may be guessed",
                    token.name
                )
            }));
        }
        warnings.extend(self.near_misses.iter().map(|name| {
            format!(
                "environment: {name} is not read; settings are named with two underscores, as ONCEGATE__SERVER__LISTEN"
            )
        }));
        for (route, explained) in self.routes.0.iter().zip(&self.explained) {
            let all = self.warnings_of(route).chain(self.idle_settings(route, explained));
            warnings.extend(all.map(|warning| format!("route {}: {warning}", route.name)));
        }
        warnings
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        let server = &self.server;
        writeln!(text, "listen   {} (admin {}, health {})", server.listen, server.admin, server.health)?;
        let (connections, streams) = (server.max_connections, server.max_concurrent_streams);
        writeln!(text, "bounds   {connections} connections, in HTTP/2 {streams} streams on each")?;
        server.tls.as_ref().map_or(Ok(()), |tls| writeln!(text, "tls      {tls}"))?;
        let store = &self.store;
        write!(text, "store    {}", store.url.with_whole_path())?;
        store.namespace_in_redis().map_or(Ok(()), |namespace| write!(text, ", namespace {namespace}"))?;
        write!(text, ", max_open {}", store.max_open)?;
        write!(text, ", lease {}, timeout {}", store.lease.shown(), store.timeout.shown())?;
        store.durability.map_or(Ok(()), |durability| write!(text, ", durability {}", durability.word()))?;
        store.replicas.map_or(Ok(()), |replicas| write!(text, " ({replicas})"))?;
        writeln!(text)?;
        if let Some(at_rest) = self.at_rest() {
            writeln!(text, "at rest  {at_rest}")?;
        }
        writeln!(text, "callers  {}", self.callers)?;
        self.alerts.as_ref().map_or(Ok(()), |alerts| writeln!(text, "alerts   {alerts}"))?;
        for (route, explained) in self.routes.0.iter().zip(&self.explained) {
            write_route(text, route, explained)?;
        }
        for (index, warning) in self.warnings().iter().enumerate() {
            let gap = if index == 0 { "\n" } else { "" };
            writeln!(text, "{gap}warning: {warning}")?;
        }
        Ok(())
    }

    /// How receipts and requests lie in the store; of keys their ids.
    fn at_rest(&self) -> Option<String> {
        match (self.store.encryption.as_slice(), &self.store.url) {
            (_, StoreUrl::Memory) => None,
            ([], StoreUrl::File(path)) => Some(key_beside(path)),
            ([], StoreUrl::Redis(_)) => Some("not encrypted".to_owned()),
            ([first], _) => Some(format!("encrypted with key {}", first.id())),
            ([first, older @ ..], _) => {
                let older: Vec<_> = older.iter().map(|key| key.id().to_string()).collect();
                Some(format!("encrypted with key {}, read also with {}", first.id(), older.join(", ")))
            }
        }
    }

    fn warnings_of(&self, route: &Route) -> impl Iterator<Item = String> {
        let declared = route.repeat.or(route.upstream.repeat);
        let shares_credential = match self.callers {
            Callers::None => false,
            Callers::Token(_) | Callers::Header(_) => true,
            Callers::Credential => route.upstream.carries_credential(),
        };
        let name = &route.upstream.name;
        [
            (declared.is_none() && guards_unsafe(route)).then(|| {
                format!(
                    "writes go to upstream {name}, which does not state `repeat`: what may have run ends unknown and \
                     is not retried; say repeat = \"with-key\" if it honours the key, \"harmless\" if a second run does no \
                     harm (without a file: --repeat)"
                )
            }),
            (declared == Some(Repeat::WithKey) && route.key.upstream_header.is_none()).then(|| {
                format!("upstream {name} is with-key, but upstream_header = \"off\" sends it none of our keys")
            }),
            (shares_credential && route.key.forward == Forward::Verbatim).then(|| {
                format!("equal keys of two callers meet at upstream {name}, which sees one credential for all")
            }),
            sends_credential_in_clear(&route.upstream)
                .then(|| format!("a credential goes to upstream {name} in the clear, by plain http")),
            (route.max_body > self.server.buffers / 4 * 3)
                .then(|| "`max_body` is more than server.buffers hold for all requests together".to_owned()),
        ]
        .into_iter()
        .flatten()
    }
}

impl Config {
    /// Settings that seem to do something and do not.
    fn idle_settings(&self, route: &Route, explained: &RouteExplained) -> impl Iterator<Item = String> {
        let retry = &route.retry;
        let is_stated = explained.states("retry.retry_after_max") && retry.retry_after_max > retry.deadline;
        let is_one_caller = matches!(self.callers, Callers::None) && route.rates.each.is_some();
        [
            is_stated.then(|| {
                format!(
                    "`retry_after_max` is longer than `deadline` ({}), and no wait goes beyond that",
                    retry.deadline.shown()
                )
            }),
            is_one_caller
                .then(|| "`rate_per_scope` bounds all callers together: with scope = \"none\" they are one".to_owned()),
        ]
        .into_iter()
        .flatten()
    }
}

impl StoreUrl {
    /// As it would have to be stated in another folder.
    pub fn with_whole_path(&self) -> Self {
        match self {
            Self::File(path) => Self::File(absolute(path).unwrap_or_else(|_| path.clone())),
            Self::Memory | Self::Redis(_) => self.clone(),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Redis(url) => write!(f, "{url}"),
        }
    }
}

impl fmt::Display for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Credential => f.write_str("credential"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Token(tokens) => {
                let names: Vec<&str> = tokens.iter().map(|token| token.name.as_str()).collect();
                write!(f, "token ({})", names.join(", "))
            }
        }
    }
}

fn key_path(store: &Path) -> String {
    format!("{}.key", store.display())
}

/// The key that is made by itself, as far as it is there.
fn key_beside(store: &Path) -> String {
    let path = key_path(store);
    match fs::read_to_string(&path) {
        Ok(text) => match SealingKey::parse_lines(&text) {
            Ok(keys) => {
                let ids: Vec<_> = keys.iter().map(|key| key.id().to_string()).collect();
                format!("encrypted with key {} of {path}", ids.join(", "))
            }
            Err(error) => format!("no start: {path} holds one key a line: {error}"),
        },
        Err(error) if error.kind() != ErrorKind::NotFound => format!("no start: {path} cannot be read: {error}"),
        Err(_) if store.exists() => format!("no start if {} is encrypted: its key {path} is missing", store.display()),
        Err(_) => format!("encrypted with a key that the first start makes in {path}"),
    }
}

fn write_route(text: &mut String, route: &Route, explained: &RouteExplained) -> fmt::Result {
    let methods = route.matches.methods.as_ref().map_or_else(
        || "any method".to_owned(),
        |methods| methods.iter().map(Method::as_str).collect::<Vec<_>>().join(" "),
    );
    let upstream = &route.upstream;
    let scheme = if upstream.tls { "https" } else { "http" };
    let host = route.matches.host.as_deref().unwrap_or_default();
    writeln!(text, "\nroute {}: {methods} {host}{}", route.name, route.matches.path)?;
    let protocol = match upstream.protocol {
        Protocol::Auto => String::new(),
        stated @ (Protocol::Http1 | Protocol::Http2) => format!(", protocol {}", stated.word()),
    };
    let (authority, base_path, name) = (&upstream.authority, &upstream.base_path, &upstream.name);
    writeln!(text, "  to {scheme}://{authority}{base_path} (upstream {name}{protocol})")?;
    if let Some(tls) = upstream.client_tls.as_ref().filter(|tls| tls.is_stated()) {
        writeln!(text, "  over TLS that {tls}")?;
    }
    if let Some(proxy) = &upstream.proxy {
        let credentials = if proxy.authorization.is_some() { ", with credentials" } else { "" };
        writeln!(text, "  through the proxy http://{}{credentials}", proxy.authority)?;
    }
    let host = upstream.proxy.as_ref().map_or(&upstream.host, |proxy| &proxy.host);
    if host.parse::<IpAddr>().is_err() {
        writeln!(text, "  {host} is looked up again after {}", units::duration_text(upstream.dns_ttl))?;
    }
    let width = explained.settings.iter().map(|setting| setting.key.len()).max().unwrap_or_default();
    for setting in &explained.settings {
        writeln!(text, "  {:width$} {:28} {}", setting.key, setting.value, setting.origin)?;
    }
    Ok(())
}

fn guards_unsafe(route: &Route) -> bool {
    let post = [Method::POST];
    let methods = route.matches.methods.as_deref().unwrap_or(&post);
    let is_unsafe =
        |method: &Method| route.effect_for(method) == Effect::Write && route.repeat_for(method) == Repeat::Unsafe;
    route.key.mode != KeyMode::Off && methods.iter().any(is_unsafe)
}

fn sends_credential_in_clear(upstream: &Upstream) -> bool {
    let is_loopback = match upstream.host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => upstream.host.eq_ignore_ascii_case("localhost"),
    };
    !upstream.tls && !is_loopback && upstream.carries_credential()
}
