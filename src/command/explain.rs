//! `oncegate explain`: what the gateway would make of a request. Sends nothing and needs no store.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, InvalidHeaderName, InvalidHeaderValue};
use http::method::InvalidMethod;
use http::request::Parts;
use http::uri::{Authority, InvalidUri, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use tokio::time::Instant;

use crate::command::Source;
use crate::command::terminal::say;
use crate::config::{
    Compare, Config, ConfigErrors, Effect, Environment, Forward, KeyMode, OnLargeBody, Route, Server, ServerTls,
    duration_text, upstream_target,
};
use crate::engine::accept::unkeepable;
use crate::engine::call::{Call, Presence, retention_of};
use crate::engine::name::{SightedKey, sight, source_of_fresh_keys};
use crate::engine::problem::{Code, Problem};
use crate::entropy::Entropy;
use crate::operation::admission::Repeat;
use crate::operation::transition::Retention;
use crate::operation::{KeySource, OperationId, Scope};
use crate::retry::deadline;
use crate::server::caller::CallerRule;
use crate::server::door::{Door, Instance, find_route};
use crate::server::framing::Ambiguity;
use crate::server::listener::{Peer, Transport};
use crate::server::proxy::OWN_PATHS;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    source: Source,
    /// As in the request line.
    method: String,
    /// Path and query.
    target: String,
    /// A header line, `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header", value_name = "LINE")]
    headers: Vec<String>,
    /// The body; `@FILE` is what that file says.
    #[arg(short = 'd', long = "data", value_name = "TEXT", default_value = "")]
    data: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error("`{0}` is no method")]
    Method(String, #[source] InvalidMethod),
    #[error("`{0}` is no path with query")]
    Target(String, #[source] InvalidUri),
    #[error("{} cannot be read", path.display())]
    Body {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{0}` is no header line; write `Name: value`")]
    Line(String),
    #[error("`{0}` has no valid header name")]
    Name(String, #[source] InvalidHeaderName),
    #[error("`{0}` has no valid header value")]
    Value(String, #[source] InvalidHeaderValue),
}

/// Prints route, key, fingerprint and policy.
///
/// # Errors
/// The file or the request as it was typed is not valid.
pub fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode, ExplainError> {
    let config = arguments.source.load(environment)?;
    let head = head(arguments)?;
    if arguments.method.contains(|letter: char| letter.is_ascii_lowercase()) {
        say(format_args!("method       {}: methods have case, and services know them in capitals", arguments.method));
    }
    Ok(match explain(&config, head, body(&arguments.data)?) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Problem { status, code, detail, .. }) => {
            say(format_args!("refused      {status} {}, nothing is sent: {detail}", code.entry().code));
            ExitCode::FAILURE
        }
    })
}

fn body(data: &str) -> Result<Bytes, ExplainError> {
    let Some(path) = data.strip_prefix('@') else { return Ok(Bytes::copy_from_slice(data.as_bytes())) };
    fs::read(path).map(Bytes::from).map_err(|source| ExplainError::Body { path: path.into(), source })
}

/// The request as it was typed, to this machine unless it says another `Host`.
fn head(arguments: &Arguments) -> Result<Parts, ExplainError> {
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = Method::from_bytes(arguments.method.as_bytes())
        .map_err(|error| ExplainError::Method(arguments.method.clone(), error))?;
    head.uri = arguments.target.parse().map_err(|error| ExplainError::Target(arguments.target.clone(), error))?;
    head.headers = headers(&arguments.headers)?;
    let host = HeaderValue::try_from(head.uri.authority().map_or("localhost", Authority::as_str));
    head.headers.entry(HOST).or_insert(host.unwrap_or(HeaderValue::from_static("localhost")));
    // A URI has lost it by now.
    if arguments.target.contains('#') {
        head.extensions.insert(Ambiguity::Fragment);
    }
    Ok(head)
}

/// As the listener would find it.
fn route(config: &Config, head: &Parts) -> Result<Arc<Route>, Problem> {
    Door::new(config, Instance::new(&Entropy::seeded(0))).check(head, head.extensions.get().copied())?;
    if head.uri.path().starts_with(OWN_PATHS) {
        return Err(Problem::new(Code::NoRoute, "the gateway answers at this address by itself"));
    }
    let route = find_route(&config.routes, head)?;
    CallerRule::new(config).check_page(&head.headers, &route.upstream).map(|()| route)
}

/// A client on this machine, as the listener would let it in.
fn peer(server: &Server) -> Peer {
    let transport = match server.tls.as_ref().map(ServerTls::asks_clients) {
        None => Transport::Plain,
        Some(false) => Transport::Tls,
        Some(true) => Transport::MutualTls { holder: [0; 32] },
    };
    Peer::new((Ipv4Addr::LOCALHOST, 0).into(), transport)
}

fn headers(lines: &[String]) -> Result<HeaderMap, ExplainError> {
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| ExplainError::Line(line.clone()))?;
        let name: HeaderName = name.trim().parse().map_err(|error| ExplainError::Name(line.clone(), error))?;
        let value: HeaderValue = value.trim().parse().map_err(|error| ExplainError::Value(line.clone(), error))?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn print_route(route: &Route, method: &Method, target: &str) {
    let upstream = &route.upstream;
    let scheme = if upstream.tls { "https" } else { "http" };
    say(format_args!("route        {}", route.name));
    say(format_args!(
        "upstream     {}: {scheme}://{}{}",
        upstream.name,
        upstream.authority,
        upstream_target(route, target)
    ));
    say(format_args!("repeat       {}", route.repeat_for(method).as_str()));
}

/// Says what would become of the request.
///
/// # Errors
/// It would be refused.
fn explain(config: &Config, mut head: Parts, body: Bytes) -> Result<(), Problem> {
    let route = route(config, &head)?;
    let (rule, peer) = (CallerRule::new(config), peer(&config.server));
    let scope = rule.scope(&mut head.headers, &peer);
    let is_certified = rule.goes_by_certificate(&peer);
    let target = head.uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
    print_route(&route, &head.method, &target);
    let scope = scope?;
    say(format_args!("caller       {}", whose(&scope, is_certified)));
    match (route.effect_for(&head.method), route.key.mode) {
        (Effect::Read, _) => say(format_args!("decision     a read: passes through, nothing is claimed")),
        (Effect::Write, KeyMode::Off) => say(format_args!("decision     key.mode = \"off\": passes through unguarded")),
        (Effect::Write, _) if body.len() as u64 > route.max_body => return explain_large_body(&route),
        (Effect::Write, _) => {
            let call = call(route, scope, head, target, body);
            explain_guarded(config, &call, is_certified)?;
        }
    }
    Ok(())
}

fn call(route: Arc<Route>, scope: Scope, mut head: Parts, target: String, body: Bytes) -> Call {
    let deadline = Instant::now() + route.retry.deadline;
    let respond_async = deadline::take_async(&mut head.headers);
    let (method, headers, presence) = (head.method, head.headers.into(), Presence::default());
    Call { route, scope, method, target, headers, body, deadline, respond_async, room: None, presence }
}

fn whose(scope: &Scope, is_certified: bool) -> &'static str {
    match is_certified {
        true => "told apart, also by its certificate: without that no operation and no key made of it can be named",
        false if *scope == Scope::none() => "one for all (scope = \"none\")",
        false => "told apart",
    }
}

fn explain_large_body(route: &Route) -> Result<(), Problem> {
    let detail = format!("the body is longer than max_body ({} bytes)", route.max_body);
    match route.on_large_body {
        OnLargeBody::Reject => Err(Problem::new(Code::BodyTooLarge, detail)),
        OnLargeBody::PassUnguarded => {
            say(format_args!("decision     {detail}: passes through unguarded"));
            Ok(())
        }
    }
}

fn explain_guarded(config: &Config, call: &Call, is_certified: bool) -> Result<(), Problem> {
    let sighted = sight(call).map_err(|error| Problem::new(Code::KeyInvalid, error.to_string()))?;
    let source = match &sighted.key {
        Some(key) => key.source,
        None if call.route.key.mode == KeyMode::Required => {
            let detail = format!("no `{}`, and nothing to make a key from", call.route.key.header);
            return Err(Problem::new(Code::KeyMissing, detail));
        }
        None => source_of_fresh_keys(&call.route),
    };
    if let Some(refused) = unkeepable(call, &call.credentials(), &config.store) {
        return Err(refused);
    }
    print_key(call, sighted.key, source, is_certified);
    let digits: String = sighted.fingerprint.digest.iter().map(|byte| format!("{byte:02x}")).collect();
    say(format_args!("fingerprint  v{} {digits}", sighted.fingerprint.version));
    let says_no_type = call.route.payload.compare == Compare::Auto && !call.headers.contains_key(CONTENT_TYPE);
    if says_no_type && !call.body.is_empty() {
        say(format_args!(
            "payload      compared as bytes: no Content-Type (curl adds one by itself, explain does not)"
        ));
    }
    print_policy(config, call, source);
    Ok(())
}

fn print_key(call: &Call, key: Option<SightedKey>, source: KeySource, is_certified: bool) {
    let Some(key) = key else {
        let reach = match source {
            KeySource::Window => "identical calls within duplicate_window share it",
            KeySource::Stamped | KeySource::Client | KeySource::Derived => "it protects this call's own retries only",
        };
        return say(format_args!("key          a fresh one for each call ({}): {reach}", source.as_str()));
    };
    say(format_args!("key          {} ({})", key.text, source.as_str()));
    names(call, key, is_certified).iter().for_each(say);
}

/// What a key becomes, as far as that does not take a certificate that is not here.
fn names(call: &Call, key: SightedKey, is_certified: bool) -> Vec<String> {
    let id = OperationId::of(call.scope.digest(), &call.route.name, &key.text, None);
    let sent_as = match key.upstream {
        Some(_) if is_certified && call.route.key.forward == Forward::Made => None,
        Some(upstream) => Some(format!("sent as      {upstream} ({})", call.route.key.header_upstream())),
        None => Some("sent as      nothing: upstream_header = \"off\"".to_owned()),
    };
    let operation = (!is_certified).then(|| format!("operation    {id}"));
    sent_as.into_iter().chain(operation).collect()
}

fn print_policy(config: &Config, call: &Call, source: KeySource) {
    let (retry, keep) = (&call.route.retry, kept(call, source));
    let after_loss = match call.repeat() {
        Repeat::Unsafe => "ends outcome-unknown; nothing is sent again",
        Repeat::WithKey => "is sent again with the same key and bytes",
        Repeat::Harmless => "is sent again",
    };
    if let Some(wait) = call.respond_async {
        say(format_args!("answer       {}", told_where(wait)));
    }
    say(format_args!("lost answer  {after_loss}"));
    say(format_args!(
        "attempts     up to {}, {} each, {} in all",
        retry.max_attempts,
        duration_text(retry.attempt_timeout),
        duration_text(retry.deadline)
    ));
    say(format_args!(
        "kept         receipt {}, tombstone {}, in {}",
        duration_text(keep.receipts),
        duration_text(keep.tombstones),
        config.store.url.with_whole_path()
    ));
}

fn kept(call: &Call, source: KeySource) -> Retention {
    retention_of(&call.route, call.repeat(), source, call.respond_async.is_some())
}

/// What `Prefer: respond-async` does.
fn told_where(wait: Duration) -> String {
    let when = match wait {
        Duration::ZERO => "at once".to_owned(),
        wait => format!("unless it is there within {}", duration_text(wait)),
    };
    format!("202 with the Location where to ask for it, {when}; the call goes on without its caller, for up to 24h")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "upstreams.bank = { url = 'http://127.0.0.1:1', headers = { Authorization = 'Bearer ours' } }\n\
        routes = [{ name = 'bank', match = { path = '/' }, upstream = 'bank' },\n\
        { name = 'pay', match = { path = '/pay' }, upstream = 'bank' }]";

    fn typed(target: &str, line: &str) -> Parts {
        let arguments = Arguments {
            source: Source { config: "gateway.toml".into(), upstream: None, preset: None, repeat: None, store: None },
            method: "POST".to_owned(),
            target: target.to_owned(),
            headers: vec![line.to_owned()],
            data: String::new(),
        };
        head(&arguments).unwrap()
    }

    #[test]
    fn what_the_gateway_would_refuse_has_no_route() {
        let config = Config::parse(FILE, "gateway.toml", &Environment::default()).unwrap();
        for (target, line, expected) in [
            ("/pay/x", "X-A: b", Ok("pay")),
            ("http://gw/pay", "X-A: b", Ok("pay")),
            ("/pay", "Host: other", Ok("pay")),
            ("/a/../pay", "X-A: b", Err(400)),
            ("/%70ay", "X-A: b", Err(400)),
            ("/pay#f", "X-A: b", Err(400)),
            ("/.oncegate/problems/", "X-A: b", Err(404)),
            ("/pay", "Connection: Idempotency-Key", Err(400)),
            ("/pay", "Origin: https://evil.example", Err(403)),
        ] {
            let found = route(&config, &typed(target, line));
            let found = found.as_ref().map(|route| route.name.as_str()).map_err(|problem| problem.status);
            assert_eq!(found, expected, "{target} {line}");
        }
    }

    #[test]
    fn a_body_may_be_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "{}").unwrap();
        assert_eq!(body(&format!("@{}", file.path().display())).unwrap(), "{}");
        assert_eq!(body("a@b").unwrap(), "a@b");
        assert!(matches!(body("@/no/such"), Err(ExplainError::Body { .. })));
    }

    #[test]
    fn what_the_gateway_would_refuse_is_refused() {
        let strict = format!("{FILE}\ndefaults = {{ key.mode = 'required', max_body = '4B' }}");
        let forgetful = format!("{FILE}\ndefaults = {{ payload.store_request = false }}");
        for (file, line, data, expected) in [
            (FILE, "Idempotency-Key: a", "", None),
            (FILE, "X-A: b", "", None),
            (FILE, "Idempotency-Key: a b", "", Some(Code::KeyInvalid)),
            (&strict, "X-A: b", "", Some(Code::KeyMissing)),
            (&strict, "Idempotency-Key: a", "12345", Some(Code::BodyTooLarge)),
            (FILE, "Prefer: respond-async", "", None),
            (&forgetful, "Prefer: respond-async", "", Some(Code::InvalidRequest)),
        ] {
            let config = Config::parse(file, "gateway.toml", &Environment::default()).unwrap();
            let refused = explain(&config, typed("/pay", line), Bytes::from(data)).err().map(|problem| problem.code);
            assert_eq!(refused, expected, "{line} {data}");
        }
    }

    #[test]
    fn an_answer_for_later_is_promised_as_the_gateway_promises_it() {
        let redis = format!("{FILE}\nstore = {{ url = 'redis://127.0.0.1:1', namespace = 'n' }}");
        for (file, credential, wait, expected) in [
            (FILE, "x-api-key", "", Ok(86_400)),
            (&redis, "authorization", "", Ok(86_400)),
            (&redis, "x-api-key", "", Err(Code::InvalidRequest)),
            (FILE, "x-api-key", ", wait=5", Ok(86_400)),
        ] {
            let config = Config::parse(file, "gateway.toml", &Environment::default()).unwrap();
            let mut head = typed("/pay", &format!("Prefer: respond-async{wait}"));
            head.headers.insert(credential, HeaderValue::from_static("Bearer mine"));
            let call = call(route(&config, &head).unwrap(), Scope::none(), head, "/pay".to_owned(), Bytes::new());
            let refused = explain_guarded(&config, &call, false).map_err(|problem| problem.code);
            assert_eq!(refused.map(|()| kept(&call, KeySource::Stamped).receipts.as_secs()), expected, "{credential}");
            let waits = call.respond_async.map(told_where).unwrap();
            assert_eq!(waits.contains("unless it is there within 5s"), !wait.is_empty(), "{waits}");
        }
        let config = Config::parse(FILE, "gateway.toml", &Environment::default()).unwrap();
        let head = typed("/pay", "X-A: b");
        let call = call(route(&config, &head).unwrap(), Scope::none(), head, "/pay".to_owned(), Bytes::new());
        assert_eq!(kept(&call, KeySource::Stamped).receipts.as_secs(), 300);
    }

    #[test]
    fn what_takes_a_certificate_to_know_is_left_out() {
        for (forward, is_certified, expected) in
            [("made", false, &["sent as", "operation"][..]), ("made", true, &[]), ("verbatim", true, &["sent as"])]
        {
            let file = format!("{FILE}\ndefaults = {{ key.forward = '{forward}' }}");
            let config = Config::parse(&file, "gateway.toml", &Environment::default()).unwrap();
            let head = typed("/pay", "Idempotency-Key: a");
            let call = call(route(&config, &head).unwrap(), Scope::none(), head, "/pay".to_owned(), Bytes::new());
            let lines = names(&call, sight(&call).unwrap().key.unwrap(), is_certified);
            let said: Vec<_> = lines.iter().map(|line| line.split("  ").next().unwrap()).collect();
            assert_eq!(said, expected, "{forward} {is_certified}");
        }
    }
}
