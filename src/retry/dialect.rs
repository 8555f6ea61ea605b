//! How the services of one vendor say when to come back, beyond what all of them have in common.

use http::HeaderMap;

use crate::operation::payload::json::Value;
use crate::retry::rate_limit::{self, to_come, until};
use crate::retry::retry_after::{self, Stated, scaled};
use crate::retry::{digits, rfc3339};

/// GitHub asks for it after a secondary limit that names no wait.
const A_MINUTE: u64 = 60_000;

/// GitHub's resets are whole seconds, cut off.
const A_SECOND: u64 = 1_000;

/// Digits of a fraction that count.
const MOST_PLACES: usize = 9;

/// A longer text is no duration of Go.
const LONGEST_DURATION: usize = 64;

/// Units of Go's durations, in nanoseconds.
const GO_UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// `dialect` of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// What all services have in common.
    #[default]
    Generic,
    OpenAi,
    Anthropic,
    GitHub,
    Google,
    Stripe,
}

impl Dialect {
    /// Whether the wait after a failure may be in the body.
    pub(super) fn speaks_in_bodies(self) -> bool {
        match self {
            Self::Google => true,
            Self::Generic | Self::OpenAi | Self::Anthropic | Self::GitHub | Self::Stripe => false,
        }
    }

    /// What the body of a failure says in words of this dialect.
    pub(super) fn in_body(self, body: &Value<'_>) -> Stated {
        match self {
            Self::Google => retry_delays(body).collect(),
            Self::Generic | Self::OpenAi | Self::Anthropic | Self::GitHub | Self::Stripe => Stated::default(),
        }
    }

    /// What a throttle says in words of this dialect. `sent_at` is the upstream's clock, in milliseconds.
    pub(super) fn resets(self, headers: &HeaderMap, sent_at: i64) -> Stated {
        match self {
            Self::OpenAi => to_come(spent(headers, of_openai).map(|text| go_duration(text?))),
            Self::Anthropic => {
                let wait = |text: Option<&str>| rfc3339::parse(text?.trim_ascii()).map(|at| until(at, sent_at));
                to_come(spent(headers, of_anthropic).map(wait))
            }
            Self::GitHub => rate_limit::resets(headers, sent_at, A_SECOND),
            Self::Generic | Self::Google | Self::Stripe => rate_limit::resets(headers, sent_at, 0),
        }
    }

    /// The wait after a throttle that names none.
    pub(super) fn unstated(self) -> Stated {
        match self {
            Self::GitHub => Stated { longest: Some(A_MINUTE), invalid: false },
            Self::Generic | Self::OpenAi | Self::Anthropic | Self::Google | Self::Stripe => Stated::default(),
        }
    }
}

/// What every field says that names the end of a limit of which nothing is left: `remaining_of` has the name of the field
/// that says how much.
fn spent(headers: &HeaderMap, remaining_of: fn(&str) -> Option<String>) -> impl Iterator<Item = Option<&str>> {
    let names = headers.keys().filter(move |name| {
        let remaining = remaining_of(name.as_str());
        remaining.is_some_and(|remaining| rate_limit::is_spent(headers, &remaining))
    });
    names.flat_map(|name| retry_after::values(headers, name.clone()))
}

fn of_openai(reset: &str) -> Option<String> {
    reset.strip_prefix("x-ratelimit-reset-").map(|limit| format!("x-ratelimit-remaining-{limit}"))
}

fn of_anthropic(reset: &str) -> Option<String> {
    let limit = reset.strip_prefix("anthropic-ratelimit-")?.strip_suffix("-reset")?;
    Some(format!("anthropic-ratelimit-{limit}-remaining"))
}

/// Milliseconds, rounded up, of a duration of Go: `1h30m0s`, `7.66s`, `76ms`. `-1` and `0` say that nothing is known.
fn go_duration(text: &str) -> Option<u64> {
    match text.trim_ascii() {
        "-1" | "0" => Some(0),
        "" => None,
        text if text.len() > LONGEST_DURATION => None,
        mut rest => {
            let mut nanoseconds = 0_u128;
            while !rest.is_empty() {
                let (part, tail) = go_part(rest)?;
                (nanoseconds, rest) = (nanoseconds + part, tail);
            }
            Some(u64::try_from(nanoseconds.div_ceil(1_000_000)).unwrap_or(u64::MAX))
        }
    }
}

/// Nanoseconds of one number with its unit at the front of `text`, and what stands behind it.
fn go_part(text: &str) -> Option<(u128, &str)> {
    let is_number = |character: char| character.is_ascii_digit() || character == '.';
    let (number, rest) = text.split_at_checked(text.find(|character| !is_number(character))?)?;
    let (unit, rest) = rest.split_at_checked(rest.find(is_number).unwrap_or(rest.len()))?;
    let (_, scale) = GO_UNITS.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let places = fraction.get(..fraction.len().min(MOST_PLACES))?;
    let part = (u128::from(digits(places)?) * u128::from(*scale)).div_ceil(10_u128.pow(places.len() as u32));
    digits(fraction)?;
    Some((u128::from(digits(whole)?) * u128::from(*scale) + part, rest))
}

/// The delays that errors of Google name in their bodies, each in milliseconds: `google.rpc.RetryInfo` among the details
/// of the one error, or of each in a list.
fn retry_delays<'v>(body: &'v Value<'_>) -> impl Iterator<Item = Option<u64>> + 'v {
    let answers = match body {
        Value::Array(answers) => answers.as_slice(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            std::slice::from_ref(body)
        }
    };
    let details = answers.iter().filter_map(|answer| match answer.member("error")?.member("details")? {
        Value::Array(details) => Some(details.as_slice()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => None,
    });
    let delays = details.flatten().filter(|detail| is_retry_info(detail)).filter_map(|info| info.member("retryDelay"));
    delays.map(|delay| scaled(delay.text()?.strip_suffix('s')?, 1_000))
}

fn is_retry_info(detail: &Value<'_>) -> bool {
    detail.member("@type").and_then(Value::text).is_some_and(|name| name.ends_with("google.rpc.RetryInfo"))
}

#[cfg(test)]
mod tests;
