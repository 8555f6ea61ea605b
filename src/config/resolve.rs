//! Routes: each value from its strongest layer.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::operation::meaning::Rules;
use crate::retry::RetryPolicy;
use crate::retry::breaker::{BreakerPolicy, FailureRate};
use crate::retry::budget::Budget;

use super::error::{ConfigError, Problem};
use super::explain::{Origin, RouteExplained};
use super::layers::Layers;
use super::policy::Policy;
use super::reader::{Reader, Section, Stated};
use super::services::{RECEIPTS, Service, TOMBSTONES};
use super::{
    Callers, ClientKey, Compare, Concurrency, DuplicateWindow, Forward, InFlight, Ingredient, KeyFormat, KeyMode,
    KeyRules, OnChangedPayload, OnLargeBody, OnStoreDown, PayloadRules, Rate, Rates, Route, RouteMatch, RouteTable,
    Upstream, check, grammar, identity, schema,
};

const MIB: u64 = 1 << 20;

/// What routes take their values from.
pub(super) struct Sources<'f> {
    pub(super) callers: &'f Callers,
    /// As the rules of identity state it.
    pub(super) scope: &'f str,
    pub(super) store: &'f Policy,
    /// Whether several gateways may use the store.
    pub(super) has_fleet: bool,
    pub(super) defaults: &'f Policy,
    pub(super) policies: &'f [(String, Policy)],
    pub(super) services: &'f [Service],
}

/// A `[[routes]]` entry as it stands in the file.
struct Entry<'f> {
    section: Section<'f>,
    name: Option<Stated<String>>,
    /// Absent where its path is missing or refused: it would then seem to match everything.
    matches: Option<RouteMatch>,
    upstream: Option<Stated<String>>,
    upstream_path: Option<Stated<String>>,
    policy: Option<Stated<String>>,
    own: Policy,
}

/// `[policies.NAME]`, by name.
pub(super) fn policies(reader: &mut Reader<'_>, root: &Section<'_>) -> Vec<(String, Policy)> {
    let entries = reader.named(root, "policies");
    let read = entries.iter().map(|entry| {
        let section = reader.section(&entry.node, format!("policies.{}", entry.key), &schema::POLICY);
        (entry.key.clone(), Policy::read(reader, &section))
    });
    read.collect()
}

/// All routes in the order in which they are tried, and where their values come from.
pub(super) fn routes(
    reader: &mut Reader<'_>,
    root: &Section<'_>,
    sources: &Sources<'_>,
) -> (RouteTable, Vec<RouteExplained>) {
    let nodes = reader.tables(root, "routes");
    if nodes.is_empty() && !root.states("routes") {
        reader.errors.push(root.refused("routes", Problem::Missing("at least one [[routes]]")));
    }
    let mut read: Vec<(Arc<Route>, RouteExplained)> = Vec::new();
    for node in nodes {
        let section = reader.section(node, "routes".to_owned(), &schema::ROUTE);
        let entry = Entry::read(reader, section);
        entry.refuse_rival(reader, &read);
        read.extend(entry.resolve(reader, sources));
    }
    let (routes, mut explained): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    let table = RouteTable::new(routes);
    let position = |name: &str| table.0.iter().position(|route| route.name == name);
    explained.sort_by_key(|route: &RouteExplained| position(&route.name));
    (table, explained)
}

impl<'f> Entry<'f> {
    fn read(reader: &mut Reader<'_>, section: Section<'f>) -> Self {
        Self {
            name: reader.required(&section, "name", "it is part of the identity of every key", grammar::name),
            matches: read_match(reader, &section),
            upstream: reader.required(&section, "upstream", "the name of one of the [upstreams]", grammar::name),
            upstream_path: reader.text(&section, "upstream_path", grammar::upstream_path),
            policy: reader.text(&section, "policy", grammar::name),
            own: Policy::read(reader, &section),
            section,
        }
    }

    /// Two routes of one name would share their keys; of two with the same match only one would ever be taken.
    fn refuse_rival(&self, reader: &mut Reader<'_>, earlier: &[(Arc<Route>, RouteExplained)]) {
        if let Some(name) = self.name.as_ref().filter(|name| earlier.iter().any(|(route, _)| route.name == name.value))
        {
            let problem = "the name is part of key identity, so each route has its own";
            reader.errors.push(name.refused(Problem::Twice(problem.into())));
        }
        if let Some((rival, _)) =
            self.matches.as_ref().and_then(|own| earlier.iter().find(|(route, _)| route.matches.ties_with(own)))
        {
            let problem = format!("route `{}` has the same match, and neither would come first", rival.name);
            reader.errors.push(self.section.refused("match", Problem::Contradiction(problem.into())));
        }
    }

    fn resolve(&self, reader: &mut Reader<'_>, sources: &Sources<'_>) -> Option<(Arc<Route>, RouteExplained)> {
        let service = self.service(reader, sources.services);
        let policy = self.policy(reader, sources.policies);
        let (name, matches, service) = (self.name.as_ref()?.value.clone(), self.matches.clone()?, service?);
        let mut stack = vec![(Origin::Store, sources.store)];
        stack.extend(service.dialect.iter().map(|(word, policy)| (Origin::Dialect(word), policy)));
        stack.push((Origin::Defaults, sources.defaults));
        stack.extend(service.presets.iter().rev().map(|preset| (Origin::Preset(preset.word), &preset.policy)));
        stack.push((Origin::Upstream(service.upstream.name.clone()), &service.policy));
        stack.extend(policy.map(|(name, policy)| (Origin::Policy(name.clone()), policy)));
        stack.push((Origin::Route, &self.own));
        let mut layers = Layers::new(stack);
        let named = (name, matches);
        let mut route = self.route(named, &service.upstream, sources.callers, &mut layers, &mut reader.errors);
        route.rules = identity::digest(&route, sources.scope);
        route.destination = identity::destination(&route);
        if let (false, true, Some(shared)) =
            (sources.has_fleet, route.rates.shared, layers.stated(|policy| &policy.limit.shared))
        {
            let problem = "the store is for one gateway; those of one Redis can share a rate";
            reader.errors.push(shared.refused(Problem::Contradiction(problem.into())));
        }
        check::check(&self.section, &route, &layers, &mut reader.errors);
        let settings = service.explained.iter().cloned().chain(layers.explained).collect();
        let explained = RouteExplained { name: route.name.clone(), settings };
        Some((Arc::new(route), explained))
    }

    fn service<'s>(&self, reader: &mut Reader<'_>, services: &'s [Service]) -> Option<&'s Service> {
        let asked = self.upstream.as_ref()?;
        let found = services.iter().find(|service| service.upstream.name == asked.value);
        if found.is_none() {
            let names = services.iter().map(|service| service.upstream.name.as_str());
            reader.errors.push(asked.refused(unknown_name("[upstreams]", names)));
        }
        found
    }

    fn policy<'s>(
        &self,
        reader: &mut Reader<'_>,
        policies: &'s [(String, Policy)],
    ) -> Option<(&'s String, &'s Policy)> {
        let asked = self.policy.as_ref()?;
        let found = policies.iter().find(|(name, _)| *name == asked.value);
        if found.is_none() {
            let names = policies.iter().map(|(name, _)| name.as_str());
            reader.errors.push(asked.refused(unknown_name("[policies]", names)));
        }
        found.map(|(name, policy)| (name, policy))
    }

    fn route<'l>(
        &self,
        (name, matches): (String, RouteMatch),
        upstream: &Arc<Upstream>,
        callers: &Callers,
        layers: &mut Layers<'l>,
        errors: &mut Vec<ConfigError>,
    ) -> Route {
        let effect = layers.pick_optional("effect", Some("by method"), |policy| &policy.effect);
        let repeat = layers.pick_optional("repeat", Some("by method"), |policy| &policy.repeat);
        let receipts = layers.choose("receipts", RECEIPTS, |policy| &policy.receipts);
        let tombstones = layers.choose("tombstones", TOMBSTONES, |policy| &policy.tombstones);
        let (receipts, tombstones) = layers.pick_ordered(receipts, tombstones, errors);
        Route {
            name,
            matches,
            upstream: upstream.clone(),
            upstream_path: self.upstream_path.as_ref().map(|stated| stated.value.clone()),
            effect,
            repeat,
            receipts,
            tombstones,
            max_body: layers.pick("max_body", MIB, |policy| &policy.max_body),
            on_large_body: layers.pick("on_large_body", OnLargeBody::Reject, |policy| &policy.on_large_body),
            max_receipt: layers.pick("max_receipt", MIB, |policy| &policy.max_receipt),
            in_flight: layers.pick("in_flight", InFlight::Wait, |policy| &policy.in_flight),
            in_flight_wait: layers.pick("in_flight_wait", Duration::from_secs(5), |policy| &policy.in_flight_wait),
            duplicate_window: layers
                .pick("duplicate_window", DuplicateWindow::Unresolved, |policy| &policy.duplicate_window),
            on_store_down: layers.pick("on_store_down", OnStoreDown::Reject, |policy| &policy.on_store_down),
            key: key_rules(layers, upstream, callers),
            payload: payload_rules(layers),
            retry: retry_policy(layers, errors),
            rates: rates(layers, errors),
            concurrency: Concurrency {
                most: layers.pick("limit.concurrency", 128, |policy| &policy.limit.concurrency),
                queue: layers.pick("limit.queue", 0, |policy| &policy.limit.queue),
            },
            breaker: breaker_policy(layers, errors),
            classify: Rules(layers.collect("classify", |policy| &policy.classify)),
            rules: [0; 8],
            destination: [0; 8],
        }
    }
}

fn rates(layers: &mut Layers<'_>, errors: &mut Vec<ConfigError>) -> Rates {
    let burst = layers.stated(|policy| &policy.limit.burst);
    let all = layers.pick_optional("limit.rate", None, |policy| &policy.limit.rate).map(|(count, period)| Rate {
        burst: layers.pick("limit.burst", count, |policy| &policy.limit.burst),
        count,
        period,
    });
    refuse_without(burst, all.is_some(), "`rate`", errors);
    let burst = layers.stated(|policy| &policy.limit.burst_per_scope);
    let each = layers.pick_optional("limit.rate_per_scope", None, |policy| &policy.limit.rate_per_scope);
    let each = each.map(|(count, period)| Rate {
        burst: layers.pick("limit.burst_per_scope", count, |policy| &policy.limit.burst_per_scope),
        count,
        period,
    });
    refuse_without(burst, each.is_some(), "`rate_per_scope`", errors);
    let (queue, shared) =
        (layers.stated(|policy| &policy.limit.rate_queue), layers.stated(|policy| &policy.limit.shared));
    if all.is_none() && each.is_none() {
        refuse_without(queue, false, "`rate` or `rate_per_scope`", errors);
        refuse_without(shared.filter(|shared| shared.value), false, "`rate` or `rate_per_scope`", errors);
        return Rates::default();
    }
    Rates {
        all,
        each,
        queue: layers.pick("limit.rate_queue", 0, |policy| &policy.limit.rate_queue),
        shared: layers.pick("limit.shared", false, |policy| &policy.limit.shared),
    }
}

fn refuse_without<T>(stated: Option<&Stated<T>>, is_limited: bool, what: &str, errors: &mut Vec<ConfigError>) {
    let problem = || Problem::Contradiction(format!("nothing limits the rate: {what} has to stand beside it").into());
    errors.extend(stated.filter(|_| !is_limited).map(|stated| stated.refused(problem())));
}

fn read_match(reader: &mut Reader<'_>, parent: &Section<'_>) -> Option<RouteMatch> {
    let section = &reader.child(parent, "match", &schema::MATCH);
    let what = "a prefix by whole segments; \"/\" matches everything";
    let path = reader.required(section, "path", what, grammar::match_path);
    let methods = reader.list(section, "methods", grammar::method);
    if let Some(empty) = methods.as_ref().filter(|methods| methods.value.is_empty()) {
        reader.errors.push(empty.refused(Problem::Accepts("at least one method; without the key all of them".into())));
    }
    let host = reader.text(section, "host", grammar::host);
    let headers = matched_headers(reader, section);
    Some(RouteMatch {
        path: path?.value,
        host: host.map(|stated| stated.value),
        methods: methods.map(|stated| stated.value),
        headers,
    })
}

fn matched_headers(reader: &mut Reader<'_>, section: &Section<'_>) -> Vec<(HeaderName, HeaderValue)> {
    let headers =
        reader.pairs(section, "headers", |name, text| Ok((grammar::header(name)?, grammar::header_value(&text.text)?)));
    headers.into_iter().map(|stated| stated.value).collect()
}

fn key_rules(layers: &mut Layers<'_>, upstream: &Upstream, callers: &Callers) -> KeyRules {
    // Two scopes' equal keys would meet where the upstream may not tell the callers apart: the gateway or a proxy before
    // it speaks with one credential for all, or takes the callers' own away.
    let one_voice = upstream.carries_credential() || matches!(callers, Callers::Token(_) | Callers::Header(_));
    let forward = if one_voice { Forward::Made } else { Forward::Verbatim };
    let idempotency_key = HeaderName::from_static("idempotency-key");
    let from = vec![Ingredient::Session, Ingredient::Step, Ingredient::Payload];
    KeyRules {
        mode: layers.pick("key.mode", KeyMode::Stamp, |policy| &policy.key.mode),
        client_key: layers.pick("key.client_key", ClientKey::Trust, |policy| &policy.key.client_key),
        forward: layers.pick("key.forward", forward, |policy| &policy.key.forward),
        header: layers.pick("key.header", idempotency_key.clone(), |policy| &policy.key.header),
        session_header: layers
            .pick("key.session_header", HeaderName::from_static("x-session-id"), |policy| &policy.key.session_header),
        step_header: layers
            .pick("key.step_header", HeaderName::from_static("x-step-index"), |policy| &policy.key.step_header),
        from: layers.pick("key.from", from, |policy| &policy.key.from),
        on_changed_payload: layers
            .pick("key.on_changed_payload", OnChangedPayload::ByRepeat, |policy| &policy.key.on_changed_payload),
        headers: layers.pick("key.headers", Vec::new(), |policy| &policy.key.headers),
        upstream_header: layers
            .pick("key.upstream_header", Some(idempotency_key), |policy| &policy.key.upstream_header),
        format: layers.pick("key.format", KeyFormat::Hex, |policy| &policy.key.format),
    }
}

fn payload_rules(layers: &mut Layers<'_>) -> PayloadRules {
    PayloadRules {
        compare: layers.pick("payload.compare", Compare::Auto, |policy| &policy.payload.compare),
        ignore: layers.pick("payload.ignore", Vec::new(), |policy| &policy.payload.ignore),
        store_request: layers.pick("payload.store_request", true, |policy| &policy.payload.store_request),
    }
}

fn retry_policy(layers: &mut Layers<'_>, errors: &mut Vec<ConfigError>) -> RetryPolicy {
    let max_attempts = layers.pick("retry.max_attempts", 5, |policy| &policy.retry.max_attempts);
    let base = layers.choose("retry.base_interval", Duration::from_millis(250), |policy| &policy.retry.base_interval);
    let max = layers.choose("retry.max_interval", Duration::from_secs(20), |policy| &policy.retry.max_interval);
    let (base_interval, max_interval) = layers.pick_ordered(base, max, errors);
    let timeout =
        layers.choose("retry.attempt_timeout", Duration::from_secs(30), |policy| &policy.retry.attempt_timeout);
    let deadline = layers.choose("retry.deadline", Duration::from_secs(120), |policy| &policy.retry.deadline);
    let (attempt_timeout, deadline) = layers.pick_ordered(timeout, deadline, errors);
    RetryPolicy {
        max_attempts,
        base_interval,
        max_interval,
        attempt_timeout,
        deadline,
        retry_after_max: layers
            .pick("retry.retry_after_max", Duration::from_secs(60), |policy| &policy.retry.retry_after_max),
        budget: Budget {
            percent: layers.pick("retry.budget.percent", 20, |policy| &policy.retry.budget.percent),
            per_second: layers.pick("retry.budget.per_second", 3, |policy| &policy.retry.budget.per_second),
        },
    }
}

fn breaker_policy(layers: &mut Layers<'_>, errors: &mut Vec<ConfigError>) -> BreakerPolicy {
    BreakerPolicy {
        consecutive_failures: layers
            .pick("breaker.consecutive_failures", 5, |policy| &policy.breaker.consecutive_failures),
        failure_rate: failure_rate(layers, errors),
        open_for: layers.pick("breaker.open_for", Duration::from_secs(5), |policy| &policy.breaker.open_for),
    }
}

fn failure_rate(layers: &mut Layers<'_>, errors: &mut Vec<ConfigError>) -> Option<FailureRate> {
    let Some(percent) = layers.pick_optional("breaker.failure_percent", None, |policy| &policy.breaker.failure_percent)
    else {
        let problem =
            || Problem::Contradiction("no rate of failures opens it: `failure_percent` has to stand beside it".into());
        errors.extend(layers.stated(|policy| &policy.breaker.minimum_calls).map(|calls| calls.refused(problem())));
        errors.extend(layers.stated(|policy| &policy.breaker.window).map(|window| window.refused(problem())));
        return None;
    };
    Some(FailureRate {
        percent,
        minimum_calls: layers.pick("breaker.minimum_calls", 20, |policy| &policy.breaker.minimum_calls),
        window: layers.pick("breaker.window", Duration::from_secs(30), |policy| &policy.breaker.window),
    })
}

fn unknown_name<'n>(home: &str, names: impl Iterator<Item = &'n str>) -> Problem {
    let names = names.collect::<Vec<_>>().join(", ");
    let accepts = if names.is_empty() {
        format!("a name from {home}, which has none")
    } else {
        format!("one of {home}: {names}")
    };
    Problem::Accepts(accepts.into())
}
