//! What an answer says about another try: whether, and when.

use http::HeaderMap;

use crate::clock::Timestamp;
use crate::operation::outcome::Fact;
use crate::operation::payload::json::Value;
use crate::retry::dialect::Dialect;
use crate::retry::rate_limit;
use crate::retry::retry_after::{self, Hint, Stated};

/// Read from hostile bytes: whatever they are, it is advice or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// Another try is forbidden.
    pub vetoed: bool,
    /// Another try is asked for.
    pub promoted: bool,
    pub hint: Option<Hint>,
    /// Something that should have named a wait does not.
    pub has_invalid_hint: bool,
}

impl Advice {
    /// The advice of an answer that came at `now` and means `fact`; `body` as far as it was looked at. What a limit has
    /// left matters only where it turned the call down.
    pub fn of(dialect: Dialect, fact: &Fact, headers: &HeaderMap, body: Option<&Value<'_>>, now: Timestamp) -> Self {
        let stated = retry_after::stated(headers, now);
        let stated = if is_shed(fact) { stated.or_else(|| limits(dialect, headers, body, now)) } else { stated };
        let stated = if fact.is_throttle() { stated.or_else(|| dialect.unstated()) } else { stated };
        Self {
            vetoed: retry_after::vetoes(headers),
            promoted: retry_after::promotes(headers),
            hint: stated.hint(),
            has_invalid_hint: stated.invalid,
        }
    }
}

/// Whether the head of such an answer names no wait, and its body may.
pub fn may_be_in_body(dialect: Dialect, fact: &Fact, headers: &HeaderMap, now: Timestamp) -> bool {
    dialect.speaks_in_bodies() && is_shed(fact) && retry_after::stated(headers, now).longest.is_none()
}

fn limits(dialect: Dialect, headers: &HeaderMap, body: Option<&Value<'_>>, now: Timestamp) -> Stated {
    let sent_at = retry_after::sent_at(headers, now);
    let in_body = || body.map_or_else(Stated::default, |body| dialect.in_body(body));
    rate_limit::items(headers).or_else(|| dialect.resets(headers, sent_at)).or_else(in_body)
}

/// Whether the upstream does not want the call now.
fn is_shed(fact: &Fact) -> bool {
    match fact {
        Fact::Throttled | Fact::Overloaded { .. } => true,
        Fact::Ruled { .. } => fact.is_throttle(),
        Fact::NotSent { .. }
        | Fact::TurnedAway
        | Fact::Silent(_)
        | Fact::Garbled
        | Fact::Cut { .. }
        | Fact::Refused { .. }
        | Fact::Misdirected
        | Fact::Unreached { .. }
        | Fact::ServerFailed { .. }
        | Fact::GatewayFailed { .. }
        | Fact::Denied { .. }
        | Fact::Final { .. } => false,
    }
}

#[cfg(test)]
mod tests;
