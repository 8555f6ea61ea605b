//! Whether and when an attempt is followed by another: policy, pure and without a clock of its own.
//!
//! Facts come from `operation::outcome`; time left, randomness and headers are arguments. Nothing here sleeps or sends.

pub mod advice;
pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod deadline;
pub mod decide;
pub mod dialect;
pub mod http_date;
pub mod inbound;
pub mod pause;
mod rate_limit;
pub mod retry_after;
mod rfc3339;
pub mod window;

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use budget::Budget;

/// `[routes.retry]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Sends of one run, the first included.
    pub max_attempts: u32,
    pub base_interval: Duration,
    pub max_interval: Duration,
    pub attempt_timeout: Duration,
    pub deadline: Duration,
    /// A longer hint goes to the client at once.
    pub retry_after_max: Duration,
    pub budget: Budget,
}

/// A number of digits only, without sign; beyond the range it is the largest there is, which every bound turns down.
fn digits(text: &str) -> Option<u64> {
    let only_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    only_digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// The lines of a field that are ASCII text. Nothing that is read here may be anything else.
fn lines<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
}

/// Pieces between separators that stand outside quoted strings (RFC 9110, section 5.6.4).
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |character| {
        let literal = std::mem::take(&mut escaped);
        escaped = quoted && !literal && character == '\\';
        quoted ^= character == '"' && !literal;
        character == separator && !quoted
    })
}
