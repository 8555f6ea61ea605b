//! Which keys each table of the file has.

/// A table's keys: those that are read, and those of the contract that this version does not implement.
pub(super) struct Schema {
    /// As a user writes it: `[routes.retry]`.
    pub(super) name: &'static str,
    pub(super) keys: &'static [&'static str],
    pub(super) later: &'static [&'static str],
}

pub(super) const ROOT: Schema = Schema {
    name: "the file itself",
    keys: &["server", "store", "callers", "upstreams", "defaults", "policies", "routes", "alerts", "log"],
    later: &["operators", "trace"],
};

pub(super) const SERVER: Schema = Schema {
    name: "[server]",
    keys: &[
        "listen",
        "admin",
        "health",
        "header_timeout",
        "body_idle_timeout",
        "drain",
        "max_connections",
        "max_concurrent_streams",
        "max_header_bytes",
        "max_uri_bytes",
        "threads",
        "buffers",
        "trusted_proxies",
        "tls",
    ],
    later: &[],
};

pub(super) const SERVER_TLS: Schema = Schema { name: "[server.tls]", keys: &["cert", "key", "client_ca"], later: &[] };

pub(super) const STORE: Schema = Schema {
    name: "[store]",
    keys: &[
        "url",
        "namespace",
        "receipts",
        "tombstones",
        "lease",
        "timeout",
        "durability",
        "replicas",
        "max_open",
        "encryption",
        "ca_file",
        "client_cert",
        "client_key",
        "sentinel_user",
        "sentinel_password",
    ],
    later: &[],
};

pub(super) const CALLERS: Schema = Schema { name: "[callers]", keys: &["scope", "tokens"], later: &[] };

pub(super) const TOKEN: Schema = Schema { name: "[[callers.tokens]]", keys: &["name", "token"], later: &[] };

pub(super) const UPSTREAM: Schema = Schema {
    name: "[upstreams.NAME]",
    keys: &[
        "url",
        "repeat",
        "key_retention",
        "settle",
        "protocol",
        "dns_ttl",
        "connect_timeout",
        "idle_timeout",
        "host",
        "ca_file",
        "client_cert",
        "client_key",
        "proxy",
        "headers",
        "dialect",
        "preset",
    ],
    later: &["listen"],
};

pub(super) const DEFAULTS: Schema = Schema { name: "[defaults]", keys: &SHARED, later: SHARED_LATER };

pub(super) const POLICY: Schema = Schema { name: "[policies.NAME]", keys: &SHARED, later: SHARED_LATER };

/// What several routes may share.
const SHARED: [&str; 17] = [
    "effect",
    "repeat",
    "receipts",
    "tombstones",
    "max_body",
    "on_large_body",
    "max_receipt",
    "in_flight",
    "in_flight_wait",
    "duplicate_window",
    "on_store_down",
    "key",
    "payload",
    "retry",
    "limit",
    "breaker",
    "classify",
];

const SHARED_LATER: &[&str] = &["approval", "reconcile", "compensate"];

pub(super) const ROUTE: Schema = Schema { name: "[[routes]]", keys: &ROUTE_KEYS, later: SHARED_LATER };

/// What only a route itself can say, then what several may share.
const ROUTE_KEYS: [&str; 22] = joined(["name", "match", "upstream", "upstream_path", "policy"], SHARED);

const fn joined<const A: usize, const B: usize, const ALL: usize>(
    first: [&'static str; A],
    rest: [&'static str; B],
) -> [&'static str; ALL] {
    assert!(A + B == ALL);
    let mut all = [""; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < A { first[at] } else { rest[at - A] };
        at += 1;
    }
    all
}

pub(super) const MATCH: Schema =
    Schema { name: "[routes.match]", keys: &["path", "host", "methods", "headers"], later: &[] };

pub(super) const KEY: Schema = Schema {
    name: "[routes.key]",
    keys: &[
        "mode",
        "client_key",
        "forward",
        "header",
        "session_header",
        "step_header",
        "from",
        "on_changed_payload",
        "headers",
        "upstream_header",
        "format",
    ],
    later: &[],
};

pub(super) const PAYLOAD: Schema =
    Schema { name: "[routes.payload]", keys: &["compare", "ignore", "store_request"], later: &["redact", "schema"] };

pub(super) const RETRY: Schema = Schema {
    name: "[routes.retry]",
    keys: &[
        "max_attempts",
        "base_interval",
        "max_interval",
        "attempt_timeout",
        "deadline",
        "retry_after_max",
        "budget",
    ],
    later: &[],
};

pub(super) const BUDGET: Schema =
    Schema { name: "[routes.retry.budget]", keys: &["percent", "per_second"], later: &[] };

pub(super) const LIMIT: Schema = Schema {
    name: "[routes.limit]",
    keys: &["rate", "burst", "rate_per_scope", "burst_per_scope", "rate_queue", "shared", "concurrency", "queue"],
    later: &[],
};

pub(super) const BREAKER: Schema = Schema {
    name: "[routes.breaker]",
    keys: &["consecutive_failures", "failure_percent", "minimum_calls", "window", "open_for"],
    later: &[],
};

pub(super) const ALERTS: Schema = Schema {
    name: "[alerts]",
    keys: &[
        "url",
        "secret",
        "format",
        "group_by",
        "group_wait",
        "repeat_interval",
        "ca_file",
        "client_cert",
        "client_key",
    ],
    later: &[],
};

pub(super) const CLASSIFY: Schema =
    Schema { name: "[[routes.classify]]", keys: &["status", "headers", "json", "as"], later: &[] };

/// What a preset may say; nothing of it names a call.
pub(super) const PRESET: Schema =
    Schema { name: "a preset", keys: &["url", "repeat", "key_retention", "dialect", "classify"], later: &[] };

pub(super) const LOG: Schema = Schema { name: "[log]", keys: &["level", "format"], later: &[] };

/// Every table, the most usual home of a key first.
pub(super) const ALL: [&Schema; 18] = [
    &SERVER,
    &SERVER_TLS,
    &STORE,
    &UPSTREAM,
    &RETRY,
    &BUDGET,
    &KEY,
    &PAYLOAD,
    &LIMIT,
    &BREAKER,
    &CLASSIFY,
    &MATCH,
    &ROUTE,
    &CALLERS,
    &TOKEN,
    &ALERTS,
    &LOG,
    &ROOT,
];
