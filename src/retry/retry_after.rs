//! What an upstream's answer says about trying again, and what ours says.
//!
//! Header values are hostile: whatever bytes they hold, the result is a hint or none, never a panic or a wrap.

use std::time::Duration;

use http::header::{AGE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::clock::Timestamp;
use crate::retry::{digits, http_date};

/// The finer fields, in milliseconds.
const FINE: [HeaderName; 3] = [
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("x-ms-retry-after-ms"),
    HeaderName::from_static("x-amz-retry-after"),
];
const SHOULD_RETRY: [HeaderName; 2] =
    [HeaderName::from_static("x-should-retry"), HeaderName::from_static("stripe-should-retry")];

/// Digits alone may be longer, for they only ever mean "too long".
const LONGEST_DECIMAL: usize = 128;

/// A wait that the upstream asked for: a lower bound. Beyond every range it is 584 million years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hint(pub Duration);

/// What the fields of an answer ask for, in milliseconds, and whether something in them is no wait at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stated {
    pub(super) longest: Option<u64>,
    pub(super) invalid: bool,
}

/// Of several values the largest valid one counts.
impl FromIterator<Option<u64>> for Stated {
    fn from_iter<I: IntoIterator<Item = Option<u64>>>(values: I) -> Self {
        values.into_iter().fold(Self::default(), |sum, value| Self {
            longest: sum.longest.max(value),
            invalid: sum.invalid || value.is_none(),
        })
    }
}

impl Stated {
    /// The same, or where it asks for nothing what `other` asks for. What was invalid stays so.
    pub(super) fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        if self.longest.is_some() {
            return self;
        }
        let other = other();
        Self { longest: other.longest, invalid: self.invalid || other.invalid }
    }

    pub(super) fn hint(self) -> Option<Hint> {
        self.longest.map(|wait| Hint(Duration::from_millis(wait)))
    }
}

/// Whether a caller who is given these lines comes back by himself: they name a time, and do not forbid it.
pub fn calls_back(headers: &HeaderMap) -> bool {
    let names_a_time = headers.contains_key(RETRY_AFTER) || FINE.iter().any(|name| headers.contains_key(name));
    names_a_time && !vetoes(headers)
}

/// The hint of an answer that came at `now`: `retry-after-ms` and its like, the finer ones, before `Retry-After`.
/// Negative numbers, junk and nothing are no hint.
pub(super) fn stated(headers: &HeaderMap, now: Timestamp) -> Stated {
    let fine = headers.iter().filter(|(name, _)| FINE.contains(name));
    let fine: Stated = fine.map(|(_, line)| text(line)).flat_map(|line| each(line, milliseconds)).collect();
    fine.or_else(|| retry_after(headers, now))
}

/// Whether the answer forbids another try.
pub(super) fn vetoes(headers: &HeaderMap) -> bool {
    says(headers, "false")
}

/// Whether the answer asks for another try.
pub(super) fn promotes(headers: &HeaderMap) -> bool {
    says(headers, "true") && !vetoes(headers)
}

fn says(headers: &HeaderMap, word: &str) -> bool {
    let mut lines = headers.iter().filter(|(name, _)| SHOULD_RETRY.contains(name));
    lines.any(|(_, line)| line.as_bytes().trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}

/// The lines of a field; `None` for one that is no text.
pub(super) fn values(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = Option<&str>> {
    headers.get_all(name).iter().map(text)
}

fn text(line: &HeaderValue) -> Option<&str> {
    str::from_utf8(line.as_bytes()).ok()
}

/// What `read` makes of each member of a line.
fn each(line: Option<&str>, read: fn(&str) -> Option<u64>) -> impl Iterator<Item = Option<u64>> {
    let members = line.map(|line| line.split(','));
    let is_no_text = members.is_none();
    members.into_iter().flatten().map(read).chain(is_no_text.then_some(None))
}

/// `Retry-After` of an answer of ours: whole seconds, rounded up, at least 1.
pub fn seconds_for(wait: Duration) -> u64 {
    let begun = u64::from(wait.subsec_nanos() > 0);
    wait.as_secs().saturating_add(begun).max(1)
}

/// Milliseconds, the largest over all lines and their members.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Stated {
    // Few answers have the line, and a date takes its time.
    if !headers.contains_key(RETRY_AFTER) {
        return Stated::default();
    }
    let sent_at = sent_at(headers, now);
    let read = |line: Option<&str>| match line {
        Some(line) => members(line, sent_at, now).collect(),
        None => vec![None],
    };
    values(headers, RETRY_AFTER).flat_map(read).collect()
}

/// The upstream's own clock, in milliseconds, so that dates mean the same however wrong it goes. An answer with `Age`
/// has lain in a cache and its `Date` is old.
pub(super) fn sent_at(headers: &HeaderMap, now: Timestamp) -> i64 {
    let stated = || http_date::parse(headers.get(DATE)?.to_str().ok()?, now);
    let date = if headers.contains_key(AGE) { None } else { stated() };
    date.map_or_else(|| i64::try_from(now.0).unwrap_or(i64::MAX), |seconds| seconds.saturating_mul(1000))
}

/// The members of one line. A list is split at commas, but the comma after a weekday belongs to a date.
fn members(line: &str, sent_at: i64, now: Timestamp) -> impl Iterator<Item = Option<u64>> {
    let mut parts = line.split(',');
    std::iter::from_fn(move || {
        let part = parts.next()?;
        if http_date::is_weekday(part) {
            return Some(
                parts.next().and_then(|rest| http_date::parse_after_weekday(rest, now)).map(|at| until(at, sent_at)),
            );
        }
        let date = || http_date::parse(part, now).map(|at| until(at, sent_at));
        Some(seconds(part).or_else(date))
    })
}

/// Milliseconds from `sent_at` to a date; a date that is over asks for no wait.
fn until(seconds: i64, sent_at: i64) -> u64 {
    u64::try_from(seconds.saturating_mul(1000).saturating_sub(sent_at)).unwrap_or(0)
}

fn seconds(text: &str) -> Option<u64> {
    scaled(text, 1000)
}

fn milliseconds(text: &str) -> Option<u64> {
    scaled(text, 1)
}

/// `digits` or `digits.digits` of a unit that is `unit` milliseconds long, rounded up to whole milliseconds.
pub(super) fn scaled(text: &str, unit: u64) -> Option<u64> {
    let text = text.trim_ascii();
    let Some((whole, fraction)) = text.split_once('.') else {
        return Some(digits(text)?.saturating_mul(unit));
    };
    if text.len() > LONGEST_DECIMAL {
        return None;
    }
    let part = thousandths(fraction)?.saturating_mul(unit).div_ceil(1000);
    Some(digits(whole)?.saturating_mul(unit).saturating_add(part))
}

/// `0.fraction` in thousandths, rounded up.
fn thousandths(fraction: &str) -> Option<u64> {
    digits(fraction)?;
    let places = fraction.bytes().map(|digit| u64::from(digit - b'0'));
    let kept = places.clone().chain([0, 0, 0]).take(3).fold(0, |sum, digit| sum * 10 + digit);
    let dropped = places.skip(3).any(|digit| digit > 0);
    Some(kept + u64::from(dropped))
}

#[cfg(test)]
mod tests;
