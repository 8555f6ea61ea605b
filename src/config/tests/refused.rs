//! Exact messages: they are what a user has.

use proptest::prelude::*;

use super::*;

/// Each case is more lines behind the least file, whose route begins in line 4, and everything that is said about them.
pub(super) fn refuses(cases: &[(&str, &str)]) {
    for (lines, message) in cases {
        assert_eq!(errors(&format!("{LEAST}{lines}\n")), *message, "{lines}");
    }
}

#[test]
fn a_value_is_answered_with_what_is_accepted() {
    refuses(VALUES);
}

#[test]
fn another_word_is_answered_with_ours() {
    refuses(WORDS);
}

#[test]
fn values_that_cannot_hold_together() {
    refuses(TOGETHER);
}

#[test]
fn services_that_cannot_be() {
    refuses(SERVICES);
}

#[test]
fn what_the_contract_has_and_this_version_has_not_is_said_plainly() {
    for (table, keys) in [
        ("upstreams.main", &["listen"][..]),
        ("routes.payload", &["redact", "schema"]),
        ("routes", &["approval", "reconcile", "compensate"]),
        ("defaults", &["approval", "reconcile", "compensate"]),
        ("policies.p", &["approval"]),
    ] {
        for key in keys {
            let name = table.strip_prefix("routes").map_or(table.to_owned(), |rest| format!("routes.0{rest}"));
            let variable = format!("ONCEGATE__{}__{key}", name.replace('.', "__").to_uppercase());
            let refused = Config::parse(LEAST, "gateway.toml", &environment(&[(&variable, "1")]));
            let message = format!("{variable}: {table}.{key}: `{key}` is not in this version");
            assert_eq!(refused.err().map(|errors| errors.to_string()), Some(message));
        }
    }
    for key in ["operators", "trace"] {
        let message = format!("gateway.toml:1:1: {key}: `{key}` is not in this version");
        assert_eq!(errors(&format!("{key} = 1\n{LEAST}")), message);
    }
}

#[test]
fn a_file_without_routes_or_without_being_there_is_refused() {
    assert_eq!(errors(""), "gateway.toml: routes: missing; at least one [[routes]]");
    let missing = Config::load(std::path::Path::new("/no/such.toml"), &Environment::default());
    let message = missing.err().map(|errors| errors.to_string()).unwrap_or_default();
    assert!(message.starts_with("/no/such.toml: cannot be read: "), "{message}");
}

#[test]
fn all_errors_are_reported_in_the_order_of_the_file() {
    let text = "[server]\nthreads = 0\n[upstreams.main]\nurl = \"x\"\n[[routes]]\nname = \"\"\nupstream = \"main\"\n\
                match = { path = \"a\" }\nsize = 1\n[log]\nlevel = \"loud\"\n";
    let lines: Vec<String> = errors(text).lines().map(|line| line.split(": ").next().unwrap().to_owned()).collect();
    assert_eq!(
        lines,
        [
            "gateway.toml:2:11",
            "gateway.toml:4:7",
            "gateway.toml:6:8",
            "gateway.toml:8:18",
            "gateway.toml:9:1",
            "gateway.toml:11:9"
        ]
    );
}

#[test]
fn depth_is_bounded() {
    for (open, close) in [("[", "]"), ("{ a = ", "}")] {
        let text = format!("x = {}1{}\n", open.repeat(100_000), close.repeat(100_000));
        assert!(errors(&text).contains("gateway.toml:1:"));
    }
    let key = vec!["a"; 100_000].join(".");
    assert!(errors(&format!("{key} = 1\n")).contains("gateway.toml"));
}

#[test]
fn arguments_are_named_as_they_were_typed() {
    let mode = crate::config::UpstreamMode { repeat: Some("yes".to_owned()), ..Default::default() };
    let message = Config::for_upstream(mode, &Environment::default()).unwrap_err().to_string();
    assert_eq!(
        message,
        "without a file: upstreams.default.url: missing; where the upstream is\n\
         --repeat: upstreams.default.repeat = \"yes\": \"unsafe\", \"with-key\" or \"harmless\""
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Reading is total: whatever is cut out of a good file or put into it, there is an answer.
    #[test]
    fn no_text_makes_it_panic(at in 0..CONTRACT.len(), cut in 0..40_usize, put in "[\\PC\n\"\\[\\]{}=.]{0,12}") {
        let mut text: Vec<char> = CONTRACT.chars().collect();
        let end = (at + cut).min(text.len());
        text.splice(at..end, put.chars());
        let text: String = text.into_iter().collect();
        if let Err(errors) = parse(&text) {
            prop_assert!(!errors.errors.is_empty());
        }
    }
}

const VALUES: &[(&str, &str)] = &[
    (
        r#"retry.max_attempts = 0"#,
        r#"gateway.toml:8:22: routes.retry.max_attempts = 0: at least 1 (the first send counts)"#,
    ),
    (
        r#"retry.max_attempts = "3""#,
        r#"gateway.toml:8:22: routes.retry.max_attempts = "3": a whole number, without quotes"#,
    ),
    (r#"retry.max_attempts = 1001"#, r#"gateway.toml:8:22: routes.retry.max_attempts = 1001: at most 1000"#),
    (
        r#"[routes.retry]
deadline = 30"#,
        r#"gateway.toml:9:12: routes.retry.deadline = 30: a duration such as "250ms", "10s", "5m", "24h" or "30d""#,
    ),
    (
        r#"max_body = "1MB""#,
        r#"gateway.toml:8:12: routes.max_body = "1MB": a size such as "512B", "32KiB", "1MiB" or "1GiB""#,
    ),
    (r#"max_body = 5"#, r#"gateway.toml:8:12: routes.max_body = 5: a size such as "512B", "32KiB", "1MiB" or "1GiB""#),
    (r#"receipts = "0s""#, r#"gateway.toml:8:12: routes.receipts = "0s": longer than zero"#),
    (r#"limit.rate = "5""#, r#"gateway.toml:8:14: routes.limit.rate = "5": a rate such as "5/s", "100/m" or "1000/h""#),
    (r#"key.mode = "auto""#, r#"gateway.toml:8:12: routes.key.mode = "auto": "stamp", "required" or "off""#),
    (
        r#"key.on_changed_payload = "hold""#,
        r#"gateway.toml:8:26: routes.key.on_changed_payload = "hold": "run" or "reject"; "hold" comes with approvals, which are not in this version"#,
    ),
    (
        r#"key.from = []"#,
        r#"gateway.toml:8:12: routes.key.from = []: at least one ingredient, such as "session"; `mode` says what happens where none is there"#,
    ),
    (
        r#"key.from = ["session", "session"]"#,
        r#"gateway.toml:8:24: routes.key.from = "session": stated twice; once is enough"#,
    ),
    (
        r#"key.from = "session""#,
        r#"gateway.toml:8:12: routes.key.from = "session": a list of strings, such as ["..."]"#,
    ),
    (
        r#"key.from = ["user"]"#,
        r#"gateway.toml:8:13: routes.key.from = "user": "session", "step", "payload", "header:NAME", "json:/pointer", "form:field" or "query:name""#,
    ),
    (r#"key.headers = ["a b"]"#, r#"gateway.toml:8:16: routes.key.headers = "a b": the name of a header"#),
    (
        r#"payload.ignore = ["$.reason"]"#,
        r#"gateway.toml:8:19: routes.payload.ignore = "$.reason": a JSON pointer, such as "/reason" for what JSONPath calls $.reason"#,
    ),
    (
        r#"payload.ignore = ["/a~"]"#,
        r#"gateway.toml:8:19: routes.payload.ignore = "/a~": a JSON pointer such as "/order/id", with "~1" for a "/" in a name and "~0" for "~""#,
    ),
    (r#"payload.store_request = "no""#, r#"gateway.toml:8:25: routes.payload.store_request = "no": true or false"#),
    (r#"repeat = true"#, r#"gateway.toml:8:10: routes.repeat = true: "unsafe", "with-key" or "harmless""#),
    (r#"retry = 3"#, r#"gateway.toml:8:9: routes.retry = 3: a table"#),
    (
        r#"effect = { env = "NOPE" }"#,
        r#"gateway.toml:8:10: routes.effect = { env = "NOPE" }: the environment variable `NOPE` is not set, or not UTF-8"#,
    ),
    (
        r#"effect = { file = "/nope" }"#,
        r#"gateway.toml:8:10: routes.effect = { file = "/nope" }: the file `/nope` cannot be read: No such file or directory (os error 2)"#,
    ),
    (
        r#"upstream_path = "//evil""#,
        r#"gateway.toml:8:17: routes.upstream_path = "//evil": a path that begins with one "/""#,
    ),
    (
        r#"duplicate_window = "5""#,
        r#"gateway.toml:8:20: routes.duplicate_window = "5": "off", "unresolved" or a duration such as "250ms", "10s", "5m", "24h" or "30d""#,
    ),
    (r#"x = "#, r#"gateway.toml:8:5: string values must be quoted, expected literal string"#),
];

const WORDS: &[(&str, &str)] = &[
    (
        r#"[routes.retry]
num_retries = 3"#,
        r#"gateway.toml:9:1: routes.retry.num_retries: unknown key `num_retries`; here `max_attempts = 4`, the first send counts"#,
    ),
    (
        r#"num_retries = 3"#,
        r#"gateway.toml:8:1: routes.num_retries: unknown key `num_retries`; here `max_attempts = 4` in [routes.retry], the first send counts"#,
    ),
    (
        r#"maxRetries = 0"#,
        r#"gateway.toml:8:1: routes.maxRetries: unknown key `maxRetries`; here `max_attempts = 1` in [routes.retry], the first send counts"#,
    ),
    (
        r#"tries = 3"#,
        r#"gateway.toml:8:1: routes.tries: unknown key `tries`; here `max_attempts = 3` in [routes.retry], the first send counts"#,
    ),
    (
        r#"[routes.retry]
timeout_ms = 250"#,
        r#"gateway.toml:9:1: routes.retry.timeout_ms: unknown key `timeout_ms`; here `attempt_timeout = "250ms"`"#,
    ),
    (
        r#"[routes.retry]
per_try_timeout = "30s""#,
        r#"gateway.toml:9:1: routes.retry.per_try_timeout: unknown key `per_try_timeout`; here `attempt_timeout = "30s"`"#,
    ),
    (
        r#"[routes.retry]
timeout = 30"#,
        r#"gateway.toml:9:1: routes.retry.timeout: unknown key `timeout`; here `attempt_timeout`, a duration such as "250ms" or "10s""#,
    ),
    (
        r#"retry_on = [503]"#,
        r#"gateway.toml:8:1: routes.retry_on: unknown key `retry_on`; what may be repeated follows from `repeat` of the upstream"#,
    ),
    (
        r#"[routes.retry]
backoff = "1s""#,
        r#"gateway.toml:9:1: routes.retry.backoff: unknown key `backoff`; here `base_interval = "1s"`"#,
    ),
    (
        r#"[routes.limit]
rps = 5"#,
        r#"gateway.toml:9:1: routes.limit.rps: unknown key `rps`; here `rate = "5/s"`"#,
    ),
    (
        r#"[routes.limit]
requests_per_minute = 100"#,
        r#"gateway.toml:9:1: routes.limit.requests_per_minute: unknown key `requests_per_minute`; here `rate = "100/m"`"#,
    ),
    (
        r#"idempotency_key = "x""#,
        r#"gateway.toml:8:1: routes.idempotency_key: unknown key `idempotency_key`; the header with the client's key is `header` in [routes.key], and `mode` says whether it must come"#,
    ),
    (r#"ttl = "5m""#, r#"gateway.toml:8:1: routes.ttl: unknown key `ttl`; here `receipts = "5m"`"#),
    (
        r#"[server]
port = 80"#,
        r#"gateway.toml:9:1: server.port: unknown key `port`; here `listen`"#,
    ),
    (
        r#"[routes.retry]
max_atempts = 3"#,
        r#"gateway.toml:9:1: routes.retry.max_atempts: unknown key `max_atempts`; did you mean `max_attempts`? [routes.retry] accepts max_attempts, base_interval, max_interval, attempt_timeout, deadline, retry_after_max, budget"#,
    ),
    (
        r#"[routes.retry]
rate = "5/s""#,
        r#"gateway.toml:9:1: routes.retry.rate: unknown key `rate`; it belongs in [routes.limit]; [routes.retry] accepts max_attempts, base_interval, max_interval, attempt_timeout, deadline, retry_after_max, budget"#,
    ),
    (
        r#"[store]
zzzzzz = 1"#,
        r#"gateway.toml:9:1: store.zzzzzz: unknown key `zzzzzz`; [store] accepts url, namespace, receipts, tombstones, lease, timeout, durability, replicas, max_open, encryption, ca_file, client_cert, client_key, sentinel_user, sentinel_password"#,
    ),
    (
        r#"[log]
levell = "info""#,
        r#"gateway.toml:9:1: log.levell: unknown key `levell`; did you mean `level`? [log] accepts level, format"#,
    ),
];

const TOGETHER: &[(&str, &str)] = &[
    (
        r#"[routes.retry]
attempt_timeout = "5m""#,
        r#"gateway.toml:9:19: routes.retry.attempt_timeout = "5m": at most `deadline`, which is "120s" (built-in)"#,
    ),
    (
        r#"[routes.retry]
attempt_timeout = "50s"
deadline = "10s""#,
        r#"gateway.toml:9:19: routes.retry.attempt_timeout = "50s": at most `deadline`, which is "10s" (route)"#,
    ),
    (
        r#"retry.base_interval = "30s""#,
        r#"gateway.toml:8:23: routes.retry.base_interval = "30s": at most `max_interval`, which is "20s" (built-in)"#,
    ),
    (
        r#"receipts = "60d""#,
        r#"gateway.toml:8:12: routes.receipts = "60d": at most `tombstones`, which is "30d" (built-in)"#,
    ),
    (
        r#"limit.burst = 5"#,
        r#"gateway.toml:8:15: routes.limit.burst = 5: nothing limits the rate: `rate` has to stand beside it"#,
    ),
    (
        r#"on_store_down = "pass""#,
        r#"gateway.toml:8:17: routes.on_store_down = "pass": "pass" would let an unsafe call run twice: only with-key and harmless may pass (route `all`)"#,
    ),
    (
        r#"repeat = "with-key"
on_store_down = "pass""#,
        r#"gateway.toml:9:17: routes.on_store_down = "pass": "pass" needs a client's or derived key on a with-key upstream: say key.mode = "required" (route `all`)"#,
    ),
    (
        "repeat = \"with-key\"\non_store_down = \"pass\"\nkey = { mode = \"required\", upstream_header = \"off\" }",
        r#"gateway.toml:9:17: routes.on_store_down = "pass": "pass" needs the key to go upstream, and `upstream_header` is "off" (route `all`)"#,
    ),
    (r#"policy = "x""#, r#"gateway.toml:8:10: routes.policy = "x": a name from [policies], which has none"#),
    (
        r#"payload = { compare = "bytes", ignore = ["a"] }"#,
        r#"gateway.toml:8:41: routes.payload.ignore = ["a"]: bytes have no fields: say compare = "auto", "json", "form" or "multipart" (route `all`)"#,
    ),
    (
        r#"key.header = "X-Session-Id""#,
        r#"gateway.toml:8:14: routes.key.header = "X-Session-Id": `header`, `session_header` and `step_header` are three headers (route `all`)"#,
    ),
    (
        r#"key.headers = ["Idempotency-Key"]"#,
        r#"gateway.toml:8:15: routes.key.headers = ["Idempotency-Key"]: the header of the key itself needs no mention (route `all`)"#,
    ),
    (
        r#"repeat = "with-key"
[upstreams.other]
url = "http://127.0.0.1:1"
key_retention = "90s"
[[routes]]
name = "b"
match = { path = "/b" }
upstream = "other"
repeat = "with-key""#,
        r#"gateway.toml:16:10: routes.repeat = "with-key": `key_retention` of the upstream leaves no time for a re-send: it must exceed `attempt_timeout` + `settle` (route `b`)"#,
    ),
    (
        r#"[[routes]]
name = "b"
match = { path = "/" }
upstream = "main""#,
        r#"gateway.toml:8:1: routes.match: route `all` has the same match, and neither would come first"#,
    ),
    (
        r#"[[routes]]
name = "all"
match = { path = "/b" }
upstream = "mian""#,
        r#"gateway.toml:9:8: routes.name = "all": stated twice; the name is part of key identity, so each route has its own
gateway.toml:11:12: routes.upstream = "mian": one of [upstreams]: main"#,
    ),
    (
        r#"[[routes]]"#,
        r#"gateway.toml:8:1: routes.name: missing; it is part of the identity of every key
gateway.toml:8:1: routes.match.path: missing; a prefix by whole segments; "/" matches everything
gateway.toml:8:1: routes.upstream: missing; the name of one of the [upstreams]"#,
    ),
];

const SERVICES: &[(&str, &str)] = &[
    (
        r#"[upstreams.b]
url = "http://localhost:8080/v1""#,
        r#"gateway.toml:9:7: upstreams.b.url = "http://localhost:8080/v1": the gateway itself listens there (server.listen); name the service behind it"#,
    ),
    (
        r#"[server]
listen = "[::1]:8080"
[upstreams.b]
url = "http://localhost:8080""#,
        r#"gateway.toml:11:7: upstreams.b.url = "http://localhost:8080": the gateway itself listens there (server.listen); name the service behind it"#,
    ),
    (
        r#"[server]
admin = "0.0.0.0:1""#,
        r#"gateway.toml:9:9: server.admin = "0.0.0.0:1": a loopback address: off loopback it needs operators with tokens, which are not in this version"#,
    ),
    (
        r#"[server]
listen = "0.0.0.0:8081"
[callers]
scope = "none""#,
        r#"gateway.toml:8:1: server.admin: another address than that of `listen`, 0.0.0.0:8081"#,
    ),
    (
        r#"[server]
listen = "0.0.0.0:80""#,
        r#"gateway.toml: callers.scope: missing; off loopback it must be stated: none, credential, header:NAME or token"#,
    ),
    (
        r#"[server]
listen = "0.0.0.0:80"
[callers]
scope = "header:X-Agent""#,
        r#"gateway.toml:11:9: callers.scope = "header:X-Agent": off loopback a scope header is believed from `trusted_proxies` or clients with a certificate only, and [server] has neither `trusted_proxies` nor `tls.client_ca`"#,
    ),
    (
        r#"[server]
max_header_bytes = "1KiB""#,
        r#"gateway.toml:9:20: server.max_header_bytes = "1KiB": between "8KiB" and "1MiB""#,
    ),
    (
        r#"[server]
max_concurrent_streams = 0"#,
        r#"gateway.toml:9:26: server.max_concurrent_streams = 0: between 1 and 10000"#,
    ),
    (
        r#"[server]
threads = 0"#,
        r#"gateway.toml:9:11: server.threads = 0: between 1 and 256"#,
    ),
    (
        r#"[store]
max_open = 0"#,
        r#"gateway.toml:9:12: store.max_open = 0: between 1 and 100000000"#,
    ),
    (
        r#"[server]
trusted_proxies = ["10.0.0.0/33"]"#,
        r#"gateway.toml:9:20: server.trusted_proxies = "10.0.0.0/33": a network such as "10.0.0.0/8", or an address"#,
    ),
    (
        r#"[callers]
scope = "token""#,
        r#"gateway.toml:9:9: callers.scope = "token": needs at least one [[callers.tokens]]"#,
    ),
    (
        r#"[[callers.tokens]]
name = "a"
token = "t""#,
        r#"gateway.toml:8:3: callers.scope: missing; [[callers.tokens]] are read with scope = "token" only"#,
    ),
    (
        r#"[callers]
scope = "token"
[[callers.tokens]]
name = "a""#,
        r#"gateway.toml:10:1: callers.tokens.token: missing; the caller's token, best as { env = "NAME" }"#,
    ),
    (
        r#"[callers]
scope = "token"
[[callers.tokens]]
name = "a"
token = "t"
[[callers.tokens]]
name = "b"
token = "t""#,
        r#"gateway.toml:13:1: callers.tokens.token: stated twice; each token belongs to one caller"#,
    ),
    (
        r#"[store]
url = "redis://u:pw@h:1""#,
        r#"gateway.toml:8:1: store.namespace: missing; with Redis it keeps the keys of several gateways apart"#,
    ),
    (
        r#"[store]
url = "rediss://u:pw@h:x""#,
        r#"gateway.toml:9:7: store.url = "rediss://***@h:x": redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"#,
    ),
    (
        r#"[store]
url = "redis+sentinel://u:pw@a,b""#,
        r#"gateway.toml:9:7: store.url = "redis+sentinel://***@a,b": redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],.../MASTER_NAME[/DATABASE]"#,
    ),
    (
        r#"[store]
url = "redis+cluster://a/1""#,
        r#"gateway.toml:9:7: store.url = "redis+cluster://a/1": redis+cluster://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],... (a cluster has no databases)"#,
    ),
    (
        r#"[store]
url = "redis-cluster://a""#,
        r#"gateway.toml:9:7: store.url = "redis-cluster://a": redis://, rediss://, redis+sentinel://, redis+cluster://, rediss+sentinel:// or rediss+cluster://"#,
    ),
    (
        r#"[store]
url = "redis://h"
namespace = "n"
durability = "replicas""#,
        r#"gateway.toml:8:1: store.replicas: missing; how many replicas durability = "replicas" waits for: all there are"#,
    ),
    (
        r#"[store]
url = "redis://h"
namespace = "n"
replicas = 1"#,
        r#"gateway.toml:11:12: store.replicas = 1: waited for with durability = "replicas" only"#,
    ),
    (
        r#"[store]
url = "redis://h"
namespace = "n"
durability = "replicas"
replicas = 0"#,
        r#"gateway.toml:12:12: store.replicas = 0: between 1 and 16"#,
    ),
    (
        r#"[store]
url = "redis://h"
namespace = "n"
ca_file = "/dev/null""#,
        r#"gateway.toml:11:11: store.ca_file = "/dev/null": only a rediss://, rediss+sentinel:// or rediss+cluster:// store has certificates"#,
    ),
    (
        r#"[store]
url = "rediss://h"
namespace = "n"
ca_file = "/dev/null""#,
        r#"gateway.toml:11:11: store.ca_file = "/dev/null": a PEM file with at least one certificate: no certificate in the PEM file"#,
    ),
    (
        r#"[store]
url = "rediss://h"
namespace = "n"
client_key = "/dev/null""#,
        r#"gateway.toml:8:1: store.client_cert: missing; `client_cert` and `client_key` go together"#,
    ),
    (
        r#"[store]
url = "redis://h"
namespace = "n"
sentinel_password = "p""#,
        r#"gateway.toml:8:1: store.sentinel_password: only a redis+sentinel:// or rediss+sentinel:// store has sentinels"#,
    ),
    (
        r#"[store]
url = "redis+sentinel://h/m"
namespace = "n"
sentinel_user = "u""#,
        r#"gateway.toml:8:1: store.sentinel_password: missing; `sentinel_user` needs it, best as { env = "NAME" }"#,
    ),
    (
        r#"[store]
lease = "1ms""#,
        r#"gateway.toml:9:9: store.lease = "1ms": at least "50ms": an owner has to renew it in time"#,
    ),
    (
        r#"[store]
durability = "single""#,
        r#"gateway.toml:9:14: store.durability = "single": "fsync" or "os""#,
    ),
    (
        r#"[store]
durability = "sync""#,
        r#"gateway.toml:9:14: store.durability = "sync": "fsync", "os", "single" or "replicas""#,
    ),
    (
        r#"[store]
url = "redis://h"
namespace = "n"
durability = "os""#,
        r#"gateway.toml:11:14: store.durability = "os": "single" or "replicas""#,
    ),
    (
        r#"[store]
url = "memory:"
durability = "fsync""#,
        r#"gateway.toml:10:14: store.durability = "fsync": memory: keeps nothing that could be lost; leave it out"#,
    ),
    (r#"[upstreams.b]"#, r#"gateway.toml:8:1: upstreams.b.url: missing; where the upstream is"#),
    (
        r#"[upstreams.b]
url = "http://u:pw@h""#,
        r#"gateway.toml:9:7: upstreams.b.url = "http://***@h": a URL without user and password; a credential belongs in `headers`"#,
    ),
    (
        r#"[upstreams.b]
url = "https://h"
ca_file = "/dev/null""#,
        r#"gateway.toml:10:11: upstreams.b.ca_file = "/dev/null": a PEM file with at least one certificate: no certificate in the PEM file"#,
    ),
    (
        r#"[upstreams.b]
url = "http://h"
ca_file = "ca.pem""#,
        r#"gateway.toml:10:11: upstreams.b.ca_file = "ca.pem": only an https:// upstream has a certificate"#,
    ),
    (
        r#"[upstreams.b]
url = "http://h"
headers = { Host = "a", A = { env = "NO" }, B = "" }"#,
        r#"gateway.toml:10:20: upstreams.b.headers.Host: a header that is not about the connection or the length of the message
gateway.toml:10:29: upstreams.b.headers.A: the environment variable `NO` is not set, or not UTF-8
gateway.toml:10:49: upstreams.b.headers.B: visible ASCII characters and single spaces between them"#,
    ),
    (
        r#"[upstreams.b]
url = "http://h"
host = "h"
protocol = "h3""#,
        r#"gateway.toml:10:8: upstreams.b.host = "h": "client" for the caller's own Host; without it the upstream gets the authority of its URL
gateway.toml:11:12: upstreams.b.protocol = "h3": "auto", "http1" or "h2""#,
    ),
];
