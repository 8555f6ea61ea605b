//! Everything that is not a route: where to listen, where to store, who calls, and what is behind.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::credential::is_credential;
use crate::protocol::Protocol;
use crate::retry::dialect::Dialect;
use crate::sealing_key::SealingKey;

use super::error::{ConfigError, Problem};
use super::explain::Explained;
use super::policy::Policy;
use super::presets::{self, Preset, Presets};
use super::reader::{Reader, Section, Stated, or};
use super::text::Text;
use super::units::{self, Accepts};
use super::words::{Word, one_of, word};
use super::{
    CallerToken, Callers, Durability, Log, LogFormat, Secret, Server, ServerTls, StoreSettings, StoreUrl, Upstream,
    certificates, grammar, schema, server_tls, store_access, url,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

pub(super) const RECEIPTS: Duration = Duration::from_secs(24 * 3_600);
pub(super) const TOMBSTONES: Duration = Duration::from_secs(30 * 86_400);

/// An upstream and what it says about its routes.
pub(super) struct Service {
    pub(super) upstream: Arc<Upstream>,
    pub(super) policy: Policy,
    /// The first one named is the strongest.
    pub(super) presets: Vec<Preset>,
    /// What is known of its dialect.
    pub(super) dialect: Option<(&'static str, Policy)>,
    /// What its presets give it beside the values of its routes.
    pub(super) explained: Vec<Explained>,
}

pub(super) fn server(reader: &mut Reader<'_>, root: &Section<'_>) -> Server {
    let section = &reader.child(root, "server", &schema::SERVER);
    let [listen, admin, health] = addresses(reader, section);
    Server {
        listen,
        admin,
        health,
        header_timeout: or(reader.text(section, "header_timeout", units::duration), Duration::from_secs(10)),
        body_idle_timeout: or(reader.text(section, "body_idle_timeout", units::duration), Duration::from_secs(15)),
        drain: or(reader.text(section, "drain", units::duration_or_zero), Duration::from_secs(30)),
        max_connections: count(reader, section, "max_connections", 10_000, 1_000_000),
        max_concurrent_streams: count(reader, section, "max_concurrent_streams", 100, 10_000),
        max_header_bytes: bytes(reader, section, "max_header_bytes", (8 * KIB, 32 * KIB, MIB)),
        max_uri_bytes: bytes(reader, section, "max_uri_bytes", (64, 8 * KIB, 60 * KIB)),
        threads: count(reader, section, "threads", 1, 256),
        buffers: or(reader.text(section, "buffers", |text| units::size_within(text, 1, 1_024 * GIB)), 256 * MIB),
        trusted_proxies: or(reader.list(section, "trusted_proxies", grammar::network), Vec::new()),
        tls: server_tls::read(reader, section),
    }
}

pub(super) fn store(reader: &mut Reader<'_>, root: &Section<'_>) -> (StoreSettings, Policy) {
    let section = &reader.child(root, "store", &schema::STORE);
    let policy = Policy::of_store(reader, section);
    let url = or(reader.text(section, "url", url::store), StoreUrl::File(PathBuf::from("data/oncegate.db")));
    let tombstones = policy.tombstones.as_ref().map_or(TOMBSTONES, |stated| stated.value);
    let durability = durability(reader, section, &url);
    let encryption = encryption(reader, section, &url);
    let settings = StoreSettings {
        namespace: namespace(reader, section, &url),
        tls: store_access::tls(reader, section, &url),
        replicas: store_access::replicas(reader, section, durability),
        sentinel_login: store_access::sentinel_login(reader, section, &url),
        url,
        receipts: policy.receipts.as_ref().map_or(RECEIPTS.min(tombstones), |stated| stated.value),
        tombstones,
        lease: or(reader.text(section, "lease", lease), Duration::from_secs(10)),
        timeout: or(reader.text(section, "timeout", units::duration), Duration::from_secs(1)),
        durability,
        max_open: count(reader, section, "max_open", 100_000, 100_000_000),
        encryption,
    };
    (settings, policy)
}

pub(super) fn callers(reader: &mut Reader<'_>, root: &Section<'_>, server: &Server) -> Callers {
    let section = &reader.child(root, "callers", &schema::CALLERS);
    let tokens = tokens(reader, section);
    let stated = reader.text(section, "scope", grammar::scope);
    let off_loopback = !server.listen.ip().is_loopback();
    let Some(scope) = stated else {
        refuse_absent_scope(reader, section, off_loopback);
        return Callers::None;
    };
    let knows_clients = server.tls.as_ref().is_some_and(ServerTls::asks_clients);
    let trusts_nobody = off_loopback && server.trusted_proxies.is_empty() && !knows_clients;
    refuse_scope(reader, &scope, trusts_nobody, section.states("tokens"));
    match scope.value {
        Callers::Token(_) => Callers::Token(tokens.into_iter().map(|token| token.value).collect()),
        Callers::None | Callers::Credential | Callers::Header(_) => scope.value,
    }
}

pub(super) fn upstreams(reader: &mut Reader<'_>, root: &Section<'_>, listen: SocketAddr) -> Vec<Service> {
    let entries = reader.named(root, "upstreams");
    let read = entries.iter().map(|entry| {
        let section = reader.section(&entry.node, format!("upstreams.{}", entry.key), &schema::UPSTREAM);
        upstream(reader, &section, &entry.key, listen)
    });
    read.collect()
}

pub(super) fn log(reader: &mut Reader<'_>, root: &Section<'_>) -> Log {
    let section = &reader.child(root, "log", &schema::LOG);
    Log {
        level: or(reader.text(section, "level", grammar::level), tracing::Level::INFO),
        format: or(reader.text(section, "format", word), LogFormat::Auto),
    }
}

/// Each kind of store has words of its own; the first is what it does unless told otherwise.
fn durability(reader: &mut Reader<'_>, section: &Section<'_>, url: &StoreUrl) -> Option<Durability> {
    let stated = reader.text(section, "durability", word::<Durability>);
    let known: &[Durability] = match url {
        StoreUrl::Memory => &[],
        StoreUrl::File(_) => &[Durability::Fsync, Durability::Os],
        StoreUrl::Redis(_) => &[Durability::Single, Durability::Replicas],
    };
    match stated {
        Some(stated) if !known.contains(&stated.value) => {
            let accepts = match known {
                [] => "memory: keeps nothing that could be lost; leave it out".into(),
                words => one_of(words.iter().map(|value| value.word())),
            };
            reader.errors.push(stated.refused(Problem::Contradiction(accepts)));
            None
        }
        stated => stated.map(|stated| stated.value).or_else(|| known.first().copied()),
    }
}

/// `listen`, `admin` and `health`: three places, the second on loopback.
fn addresses(reader: &mut Reader<'_>, section: &Section<'_>) -> [SocketAddr; 3] {
    let [listen, admin, health] = [("listen", 8080), ("admin", 8081), ("health", 8082)]
        .map(|(key, port)| Listener::read(reader, section, key, port));
    if !admin.address.ip().is_loopback() {
        let accepts = "a loopback address: off loopback it needs operators with tokens, which are not in this version";
        reader.errors.push(admin.refused(section, Problem::Accepts(accepts.into())));
    }
    for (earlier, later) in [(&listen, &admin), (&listen, &health), (&admin, &health)] {
        if earlier.collides_with(later) {
            let problem = format!("another address than that of `{}`, {}", earlier.key, earlier.address);
            reader.errors.push(later.refused(section, Problem::Contradiction(problem.into())));
        }
    }
    [listen.address, admin.address, health.address]
}

/// An address to listen on, stated or built in.
struct Listener {
    key: &'static str,
    stated: Option<Stated<SocketAddr>>,
    address: SocketAddr,
}

impl Listener {
    fn read(reader: &mut Reader<'_>, section: &Section<'_>, key: &'static str, port: u16) -> Self {
        let stated = reader.text(section, key, grammar::socket);
        let built_in = SocketAddr::from(([127, 0, 0, 1], port));
        Self { key, address: stated.as_ref().map_or(built_in, |stated| stated.value), stated }
    }

    /// Port 0 is a free port, another one each time.
    fn collides_with(&self, other: &Self) -> bool {
        let (left, right) = (self.address, other.address);
        let overlaps = left.ip() == right.ip() || left.ip().is_unspecified() || right.ip().is_unspecified();
        left.port() == right.port() && left.port() != 0 && overlaps
    }

    fn refused(&self, section: &Section<'_>, problem: Problem) -> ConfigError {
        match &self.stated {
            Some(stated) => stated.refused(problem),
            None => section.refused(self.key, problem),
        }
    }
}

fn count(reader: &mut Reader<'_>, section: &Section<'_>, key: &str, built_in: usize, most: usize) -> NonZeroUsize {
    let parse = |number: i64| {
        let count = usize::try_from(number).ok().filter(|count| *count <= most).and_then(NonZeroUsize::new);
        count.ok_or_else(|| format!("between 1 and {most}").into())
    };
    or(reader.number(section, key, parse), NonZeroUsize::MIN.saturating_add(built_in - 1))
}

fn bytes(reader: &mut Reader<'_>, section: &Section<'_>, key: &str, bounds: (u64, u64, u64)) -> usize {
    let (least, built_in, most) = bounds;
    let size = or(reader.text(section, key, |text| units::size_within(text, least, most)), built_in);
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn lease(text: &str) -> Result<Duration, Accepts> {
    match units::duration(text)? {
        lease if lease >= Duration::from_millis(50) => Ok(lease),
        _ => Err("at least \"50ms\": an owner has to renew it in time".into()),
    }
}

fn encryption(reader: &mut Reader<'_>, section: &Section<'_>, url: &StoreUrl) -> Vec<SealingKey> {
    let parse = |text: &Text| {
        let keys = SealingKey::parse_lines(&text.text);
        keys.map_err(|error| format!("one key a line, the first of which encrypts; {error}").into())
    };
    let stated = reader.secret(section, "encryption", parse);
    if let (Some(stated), StoreUrl::Memory) = (&stated, url) {
        let problem = "memory: keeps nothing that could be read later; take the key away or name another store";
        reader.errors.push(stated.refused(Problem::Contradiction(problem.into())));
    }
    or(stated, Vec::new())
}

fn namespace(reader: &mut Reader<'_>, section: &Section<'_>, url: &StoreUrl) -> String {
    let stated = reader.text(section, "namespace", grammar::namespace);
    match (stated, url) {
        (Some(stated), _) => stated.value,
        (None, StoreUrl::Memory | StoreUrl::File(_)) => "oncegate".to_owned(),
        (None, StoreUrl::Redis(_)) if section.states("namespace") => String::new(),
        (None, StoreUrl::Redis(_)) => {
            let problem = Problem::Missing("with Redis it keeps the keys of several gateways apart");
            reader.errors.push(section.refused("namespace", problem));
            String::new()
        }
    }
}

fn tokens(reader: &mut Reader<'_>, section: &Section<'_>) -> Vec<Stated<CallerToken>> {
    let mut tokens: Vec<Stated<CallerToken>> = Vec::new();
    for node in reader.tables(section, "tokens") {
        let entry = reader.section(node, "callers.tokens".to_owned(), &schema::TOKEN);
        let name = reader.required(&entry, "name", "a name for the caller", grammar::name);
        let token = reader.secret(&entry, "token", |text| grammar::token(&text.text));
        if token.is_none() && !entry.states("token") {
            reader
                .errors
                .push(entry.refused("token", Problem::Missing("the caller's token, best as { env = \"NAME\" }")));
        }
        let (Some(name), Some(token)) = (name, token) else { continue };
        if tokens.iter().any(|known| known.value.token.0 == token.value) {
            reader.errors.push(entry.refused("token", Problem::Twice("each token belongs to one caller".into())));
        }
        tokens.push(token.map(|token| CallerToken { name: name.value, token: Secret(token) }));
    }
    tokens
}

fn refuse_absent_scope(reader: &mut Reader<'_>, section: &Section<'_>, off_loopback: bool) {
    let problem = match (off_loopback, section.states("tokens")) {
        _ if section.states("scope") => return,
        (true, _) => "off loopback it must be stated: none, credential, header:NAME or token",
        (false, true) => "[[callers.tokens]] are read with scope = \"token\" only",
        (false, false) => return,
    };
    reader.errors.push(section.refused("scope", Problem::Missing(problem)));
}

fn refuse_scope(reader: &mut Reader<'_>, scope: &Stated<Callers>, trusts_nobody: bool, states_tokens: bool) {
    let problem = match &scope.value {
        Callers::Header(_) if trusts_nobody => {
            "off loopback a scope header is believed from `trusted_proxies` or clients with a certificate only, and [server] \
             has neither `trusted_proxies` nor `tls.client_ca`"
        }
        Callers::Token(_) if !states_tokens => "needs at least one [[callers.tokens]]",
        Callers::None | Callers::Credential | Callers::Header(_) if states_tokens => {
            "[[callers.tokens]] are read with scope = \"token\" only"
        }
        Callers::None | Callers::Credential | Callers::Header(_) | Callers::Token(_) => return,
    };
    reader.errors.push(scope.refused(Problem::Contradiction(problem.into())));
}

fn upstream(reader: &mut Reader<'_>, section: &Section<'_>, name: &str, listen: SocketAddr) -> Service {
    let mut presets = Presets::read(reader, section, name);
    let stated = reader.text(section, "url", url::upstream);
    let address = presets.or("upstream.url", stated, |preset| &preset.url);
    refuse_address(reader, section, address.as_ref(), &presets, listen);
    let stated = reader.text(section, "key_retention", units::duration);
    let key_retention = presets.or("upstream.key_retention", stated, |preset| &preset.key_retention);
    let dialect = reader.text(section, "dialect", word);
    let dialect = or(presets.or("upstream.dialect", dialect, |preset| &preset.dialect), Dialect::Generic);
    let is_plain = address.as_ref().is_some_and(|address| !address.value.tls);
    let client_tls =
        certificates::read(reader, section, is_plain.then_some("only an https:// upstream has a certificate"));
    let address = address.map_or_else(url::Address::nowhere, |address| address.value);
    let policy = Policy::of_upstream(reader, section);
    let upstream = Upstream {
        name: name.to_owned(),
        tls: address.tls,
        host: address.host,
        port: address.port,
        authority: address.authority,
        base_path: address.base_path,
        repeat: policy.repeat.as_ref().map(|stated| stated.value),
        key_retention: or(key_retention, Duration::from_secs(24 * 3_600)),
        settle: or(reader.text(section, "settle", units::duration_or_zero), Duration::from_secs(60)),
        protocol: or(reader.text(section, "protocol", word), Protocol::Auto),
        dns_ttl: or(reader.text(section, "dns_ttl", units::duration), Duration::from_secs(5)),
        connect_timeout: or(reader.text(section, "connect_timeout", units::duration), Duration::from_secs(3)),
        idle_timeout: or(reader.text(section, "idle_timeout", units::duration), Duration::from_secs(60)),
        keeps_client_host: reader.text(section, "host", client_host).is_some(),
        client_tls,
        proxy: reader.text(section, "proxy", url::proxy).map(|stated| stated.value),
        headers: added_headers(reader, section),
        dialect,
    };
    let dialect = presets::of_dialect(reader, dialect);
    Service { upstream: Arc::new(upstream), policy, presets: presets.list, dialect, explained: presets.taken }
}

/// Somewhere, and not here. A proxy may know another service by the same address.
fn refuse_address(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    address: Option<&Stated<url::Address>>,
    presets: &Presets<'_>,
    listen: SocketAddr,
) {
    let problem = match address {
        Some(stated) if !section.states("proxy") && stated.value.is_at(listen) => {
            let problem = "the gateway itself listens there (server.listen); name the service behind it";
            stated.refused(Problem::Contradiction(problem.into()))
        }
        None if section.states("url") => return,
        None if !presets.list.is_empty() => {
            let missing =
                "this preset is of what stands before a service: say where that is (without a file: --upstream URL)";
            section.refused("url", Problem::Missing(missing))
        }
        None if !section.states("preset") => section.refused("url", Problem::Missing("where the upstream is")),
        Some(_) | None => return,
    };
    reader.errors.push(problem);
}

fn client_host(text: &str) -> Result<(), Accepts> {
    let accepts = "\"client\" for the caller's own Host; without it the upstream gets the authority of its URL";
    if text == "client" { Ok(()) } else { Err(accepts.into()) }
}

fn added_headers(reader: &mut Reader<'_>, section: &Section<'_>) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::new();
    for stated in reader.pairs(section, "headers", added_header) {
        if headers.iter().any(|(name, _)| *name == stated.value.0) {
            reader.errors.push(section.refused("headers", Problem::Twice("header names have no case".into())));
        }
        headers.push(stated.value);
    }
    headers
}

fn added_header(name: &str, text: &Text) -> Result<(HeaderName, HeaderValue), Accepts> {
    let name = grammar::header(name)?;
    let mut value = grammar::header_value(&text.text)?;
    value.set_sensitive(text.is_secret || is_credential(&name) || sounds_secret(&name));
    Ok((name, value))
}

/// Wider than what is asked of a caller's lines: nothing is lost by keeping one of our own to ourselves.
fn sounds_secret(name: &HeaderName) -> bool {
    let marks = ["auth", "cookie", "key", "token", "secret", "signature", "password"];
    marks.iter().any(|mark| name.as_str().contains(mark))
}
