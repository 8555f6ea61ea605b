//! Fields that say how much of a limit is left, and when there is more: `RateLimit`, and the older ones in two parts.
//!
//! An end counts only where nothing is left. One that is over already says nothing.

use http::{HeaderMap, HeaderName};

use crate::retry::retry_after::{Stated, scaled, values};
use crate::retry::{digits, split_unquoted};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// What is left, and when there is more.
const PAIRS: [(&str, HeaderName); 3] = [
    ("x-ratelimit-remaining", HeaderName::from_static("x-ratelimit-reset")),
    ("x-rate-limit-remaining", HeaderName::from_static("x-rate-limit-reset")),
    ("ratelimit-remaining", HeaderName::from_static("ratelimit-reset")),
];

/// A smaller number is a wait, a larger one a moment, and beyond the second bound one in milliseconds.
const LONGEST_WAIT: u64 = 30 * 86_400_000;
const MOMENTS_IN_MILLISECONDS: u64 = 100_000_000_000;

/// `RateLimit: "default";r=0;t=30` (draft-ietf-httpapi-ratelimit-headers-10), or as its earlier drafts had it, `limit=9,
/// remaining=0, reset=30`. Milliseconds.
pub(super) fn items(headers: &HeaderMap) -> Stated {
    let lines = values(headers, RATE_LIMIT);
    let read = |line: Option<&str>| match line {
        Some(line) => split_unquoted(line, ',').filter_map(item).chain(in_parts(line)).collect(),
        None => vec![None],
    };
    to_come(lines.flat_map(read))
}

/// The older fields, in milliseconds. `grace` is added to a moment.
pub(super) fn resets(headers: &HeaderMap, sent_at: i64, grace: u64) -> Stated {
    let spent = PAIRS.into_iter().filter(|(remaining, _)| is_spent(headers, remaining));
    let texts = spent.flat_map(|(_, reset)| values(headers, reset));
    to_come(texts.map(|text| reset(text?, sent_at, grace)))
}

/// The waits that are still to come: an end that is over says nothing.
pub(super) fn to_come(waits: impl Iterator<Item = Option<u64>>) -> Stated {
    waits.filter(|wait| *wait != Some(0)).collect()
}

/// Whether this field says that nothing is left.
pub(super) fn is_spent(headers: &HeaderMap, remaining: &str) -> bool {
    let mut lines = headers.get_all(remaining).iter().filter_map(|value| value.to_str().ok());
    lines.any(|line| scaled(line, 1) == Some(0))
}

/// Milliseconds from `sent_at` to a moment; one that is over asks for no wait.
pub(super) fn until(moment: i64, sent_at: i64) -> u64 {
    u64::try_from(moment.saturating_sub(sent_at)).unwrap_or(0)
}

/// The wait of one item of which nothing is left; `None` where the item says nothing of the kind.
fn item(text: &str) -> Option<Option<u64>> {
    let parameter = |name: &str| {
        let mut parameters = split_unquoted(text, ';').skip(1).filter_map(|part| part.split_once('='));
        parameters.find(|(found, _)| found.trim_ascii() == name).map(|(_, value)| value.trim_ascii())
    };
    (digits(parameter("r")?) == Some(0)).then(|| parameter("t").map(seconds))?
}

fn in_parts(line: &str) -> Option<Option<u64>> {
    let part = |name: &str| {
        let mut parts = line.split(',').filter_map(|part| part.split_once('='));
        parts.find(|(found, _)| found.trim_ascii() == name).map(|(_, value)| value.trim_ascii())
    };
    (digits(part("remaining")?) == Some(0)).then(|| part("reset").map(seconds))?
}

fn seconds(text: &str) -> Option<u64> {
    digits(text).map(|seconds| seconds.saturating_mul(1_000))
}

fn reset(text: &str, sent_at: i64, grace: u64) -> Option<u64> {
    let milliseconds = scaled(text, 1_000)?;
    if milliseconds < LONGEST_WAIT {
        return Some(milliseconds);
    }
    let moment = match milliseconds / 1_000 {
        number if number > MOMENTS_IN_MILLISECONDS => number,
        _ => milliseconds,
    };
    let moment = i64::try_from(moment.saturating_add(grace)).unwrap_or(i64::MAX);
    Some(until(moment, sent_at))
}

#[cfg(test)]
mod tests;
