//! What to write instead of a key that is not known.

use super::error::Problem;
use super::schema::{self, Schema};
use super::tree::Value;
use super::units;

/// What another word of the field means here.
enum Meaning {
    /// `max_attempts`, which is so many more than the other word's number.
    Attempts {
        more: i64,
    },
    /// A duration of this key.
    Duration(&'static str),
    /// A `rate` in this period.
    Rate(&'static str),
    /// This key, with a value of another form.
    Key(&'static str),
    /// The same, only in tables that have it: the word is a key of others.
    Here(&'static str),
    Said(&'static str),
}

/// The words of other gateways, clients and libraries. Compared without case, `_` and `-`.
const OTHER_WORDS: [(&[&str], Meaning); 31] = [
    (&["num_retries", "retries", "max_retries", "retry_count", "retry_limit"], Meaning::Attempts { more: 1 }),
    (&["attempts", "tries", "max_tries", "retry_attempts", "total_attempts"], Meaning::Attempts { more: 0 }),
    (
        &["timeout", "timeout_ms", "per_try_timeout", "per_try_timeout_ms", "try_timeout", "request_timeout"],
        Meaning::Duration("attempt_timeout"),
    ),
    (&["read_timeout", "upstream_timeout", "response_timeout", "send_timeout"], Meaning::Duration("attempt_timeout")),
    (&["total_timeout", "overall_timeout", "retry_timeout", "max_elapsed_time"], Meaning::Duration("deadline")),
    (&["backoff", "backoff_ms", "initial_backoff", "initial_interval"], Meaning::Duration("base_interval")),
    (&["min_backoff", "base_delay", "base_delay_ms", "retry_delay", "base_ms"], Meaning::Duration("base_interval")),
    (&["max_backoff", "max_backoff_ms", "max_delay", "max_delay_ms", "cap_ms"], Meaning::Duration("max_interval")),
    (&["max_retry_after", "retry_after_cap", "retry_after_limit"], Meaning::Duration("retry_after_max")),
    (&["connection_timeout", "dial_timeout", "connect_timeout_ms"], Meaning::Duration("connect_timeout")),
    (&["dns_refresh_rate", "dns_refresh", "resolve_interval", "resolver_valid"], Meaning::Duration("dns_ttl")),
    (&["keepalive_timeout", "stream_idle_timeout"], Meaning::Duration("idle_timeout")),
    (&["ttl", "ttl_ms", "expiry", "expires", "retention", "receipt_ttl"], Meaning::Duration("receipts")),
    (&["tombstone_ttl"], Meaning::Duration("tombstones")),
    (&["lock_ttl", "lease_ttl", "lock_timeout", "lease_ms"], Meaning::Duration("lease")),
    (&["drain_timeout", "shutdown_timeout", "graceful_timeout", "grace_period"], Meaning::Duration("drain")),
    (&["rps", "qps", "requests_per_second", "per_second", "rate_limit"], Meaning::Rate("s")),
    (&["rpm", "requests_per_minute", "per_minute"], Meaning::Rate("m")),
    (&["max_fails", "failure_threshold", "consecutive_5xx", "max_failures"], Meaning::Key("consecutive_failures")),
    (&["break_duration", "reset_timeout", "fail_timeout", "base_ejection_time"], Meaning::Duration("open_for")),
    (&["bind", "bind_address", "address", "addr", "port"], Meaning::Key("listen")),
    (&["host"], Meaning::Here("listen")),
    (&["max_body_size", "client_max_body_size", "max_request_bytes", "body_limit"], Meaning::Key("max_body")),
    (&["http2_max_concurrent_streams", "max_streams", "h2_streams"], Meaning::Key("max_concurrent_streams")),
    (&["backend", "target", "cluster", "service"], Meaning::Key("upstream")),
    (&["rewrite", "prefix_rewrite", "strip_prefix", "strip_path"], Meaning::Key("upstream_path")),
    (&["redis", "redis_url", "dsn", "base_url", "endpoint", "proxy_pass"], Meaning::Key("url")),
    (&["prefix", "paths", "path_prefix", "location"], Meaning::Key("path")),
    (
        &["retry_on", "retry_statuses", "retriable_status_codes", "retryable_status_codes", "idempotent"],
        Meaning::Said("what may be repeated follows from `repeat` of the upstream"),
    ),
    (
        &["jitter", "multiplier", "backoff_multiplier", "backoff_factor"],
        Meaning::Said("waits double with full jitter, between `base_interval` and `max_interval` in [routes.retry]"),
    ),
    (
        &["idempotency_key", "idempotency_key_header", "key_header", "idempotency"],
        Meaning::Said(
            "the header with the client's key is `header` in [routes.key], and `mode` says whether it must come",
        ),
    ),
];

/// Why `key` is not accepted in this table, and what to write.
pub(super) fn unknown_key(schema: &Schema, key: &str, value: &Value) -> Problem {
    let is_later = |schema: &Schema| schema.later.contains(&key);
    if is_later(schema) || home_of(key).is_none() && schema::ALL.into_iter().any(is_later) {
        return Problem::NotInThisVersion(key.to_owned());
    }
    Problem::UnknownKey { key: key.to_owned(), advice: advice(schema, key, value) }
}

fn advice(schema: &Schema, key: &str, value: &Value) -> String {
    if let Some(meaning) = meaning_of(key).filter(|meaning| meaning.holds_in(schema)) {
        return meaning.advice(schema, key, value);
    }
    if let Some(near) = schema.keys.iter().find(|known| is_near(known, key)) {
        return format!("did you mean `{near}`? {} accepts {}", schema.name, listed(schema.keys));
    }
    if let Some(home) = home_of(key) {
        return format!("it belongs in {}; {} accepts {}", home.name, schema.name, listed(schema.keys));
    }
    format!("{} accepts {}", schema.name, listed(schema.keys))
}

impl Meaning {
    fn holds_in(&self, schema: &Schema) -> bool {
        match self {
            Self::Here(key) => schema.keys.contains(key),
            Self::Attempts { .. } | Self::Duration(_) | Self::Rate(_) | Self::Key(_) | Self::Said(_) => true,
        }
    }

    fn advice(&self, schema: &Schema, word: &str, value: &Value) -> String {
        match self {
            Self::Attempts { more } => format!("here {}, the first send counts", attempts(schema, *more, value)),
            Self::Duration(key) => format!("here {}", duration(schema, key, word, value)),
            Self::Rate(period) => format!("here {}", with_value(schema, "rate", rate_of(value, period))),
            Self::Key(key) | Self::Here(key) => format!("here {}", with_value(schema, key, None)),
            Self::Said(text) => (*text).to_owned(),
        }
    }
}

fn attempts(schema: &Schema, more: i64, value: &Value) -> String {
    let count = match value {
        Value::Integer(number) if *number >= 0 => number.checked_add(more).map(|count| count.max(1).to_string()),
        Value::Integer(_) | Value::Text(_) | Value::Boolean(_) | Value::Other(_) | Value::List(_) | Value::Table(_) => {
            None
        }
    };
    with_value(schema, "max_attempts", count)
}

/// A duration with a unit is taken over as it is, and so is a number whose name says milliseconds.
fn duration(schema: &Schema, key: &str, word: &str, value: &Value) -> String {
    let known = match value {
        Value::Text(text) => units::duration(text).ok().map(units::duration_text),
        Value::Integer(number) if *number > 0 && squashed(word).ends_with("ms") => Some(format!("{number}ms")),
        Value::Integer(_) | Value::Boolean(_) | Value::Other(_) | Value::List(_) | Value::Table(_) => None,
    };
    match known {
        Some(known) => with_value(schema, key, Some(format!("\"{known}\""))),
        None => format!("{}, a duration such as \"250ms\" or \"10s\"", with_value(schema, key, None)),
    }
}

fn rate_of(value: &Value, period: &str) -> Option<String> {
    match value {
        Value::Integer(number) if *number > 0 => Some(format!("\"{number}/{period}\"")),
        Value::Integer(_) | Value::Text(_) | Value::Boolean(_) | Value::Other(_) | Value::List(_) | Value::Table(_) => {
            None
        }
    }
}

/// `key = value`, and the table where it belongs unless that is the one at hand.
fn with_value(schema: &Schema, key: &str, value: Option<String>) -> String {
    let line = value.map_or_else(|| format!("`{key}`"), |value| format!("`{key} = {value}`"));
    match home_of(key) {
        Some(home) if !schema.keys.contains(&key) => format!("{line} in {}", home.name),
        Some(_) | None => line,
    }
}

fn meaning_of(key: &str) -> Option<&'static Meaning> {
    let asked = squashed(key);
    OTHER_WORDS.iter().find(|(words, _)| words.iter().any(|word| squashed(word) == asked)).map(|(_, meaning)| meaning)
}

fn home_of(key: &str) -> Option<&'static Schema> {
    schema::ALL.into_iter().find(|schema| schema.keys.contains(&key))
}

fn listed(keys: &[&str]) -> String {
    keys.join(", ")
}

fn squashed(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect()
}

/// A third of a word may be wrong: `listn`, `max_atempts`, `maxAttempts`.
fn is_near(known: &str, key: &str) -> bool {
    const LONGEST: usize = 64;
    key.len() <= LONGEST && edit_distance(&squashed(known), &squashed(key)) <= known.len() / 3
}

/// Insertions, deletions and replacements that turn one word into the other (Levenshtein).
fn edit_distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.chars().count()).collect();
    for (index, from) in left.chars().enumerate() {
        let mut diagonal = index;
        let mut last = index + 1;
        let mut next = vec![last];
        for (to, above) in right.chars().zip(row.iter().skip(1)) {
            last = (diagonal + usize::from(from != to)).min(above + 1).min(last + 1);
            diagonal = *above;
            next.push(last);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("listen", "listen"), 0);
        assert_eq!(edit_distance("listen", "listn"), 1);
    }

    #[test]
    fn no_key_of_the_file_is_also_another_word_there() {
        for schema in schema::ALL {
            for key in schema.keys.iter().chain(schema.later) {
                let shadowed = matches!(meaning_of(key), Some(Meaning::Key(other) | Meaning::Duration(other)) if schema.keys.contains(other));
                assert!(!shadowed, "{key} of {} is read as another word", schema.name);
            }
        }
    }

    #[test]
    fn every_meaning_is_a_key_of_the_file() {
        for (words, meaning) in &OTHER_WORDS {
            match meaning {
                Meaning::Duration(key) | Meaning::Key(key) | Meaning::Here(key) => {
                    assert!(home_of(key).is_some(), "{words:?}")
                }
                Meaning::Attempts { .. } | Meaning::Rate(_) | Meaning::Said(_) => {}
            }
        }
    }
}
