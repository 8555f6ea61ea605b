//! What an operator asks of the list of operations.

use crate::clock::Timestamp;
use crate::clock::moment;
use crate::operation::{Operation, StateName};

/// Operations on one page, unless asked otherwise, and at most.
const USUAL_LIMIT: usize = 100;
const LARGEST_LIMIT: usize = 500;

/// Those that an operation of this version comes to.
const STATES: [StateName; 8] = [
    StateName::Claimed,
    StateName::Sent,
    StateName::Waiting,
    StateName::Succeeded,
    StateName::Failed,
    StateName::NotExecuted,
    StateName::Unknown,
    StateName::Abandoned,
];

/// The query of `GET /v1/operations`. What is not asked for is not looked at.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub states: Vec<StateName>,
    pub route: Option<String>,
    pub session: Option<String>,
    /// Made then or later.
    pub since: Option<Timestamp>,
    /// Whether it is an open dead letter.
    pub dead: Option<bool>,
    pub limit: usize,
    pub cursor: Option<String>,
}

/// The query cannot be understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFilter {
    #[error("`{0}` is not a filter; there are state, route, session, since, dead, limit and cursor")]
    Unknown(String),
    #[error("`{0}` is not a state; states are {states}", states = STATES.map(StateName::as_str).join(", "))]
    State(String),
    #[error("since is a time such as 2026-01-31T12:00:00Z, milliseconds since 1970, or how long ago: 90s, 15m, 1h, 7d")]
    Since,
    #[error("dead is true or false")]
    Dead,
    #[error("limit is a number from 1 to {LARGEST_LIMIT}")]
    Limit,
}

impl Filter {
    /// Reads a query; `now` is what `since=1h` counts from.
    ///
    /// # Errors
    /// A name or a value that is not known: a filter that is silently left out would show the wrong list.
    pub fn read(query: Option<&str>, now: Timestamp) -> Result<Self, BadFilter> {
        let mut filter = Self { limit: USUAL_LIMIT, ..Self::default() };
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        for (name, value) in pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))) {
            filter.set(name, plain(value), now)?;
        }
        Ok(filter)
    }

    fn set(&mut self, name: &str, value: String, now: Timestamp) -> Result<(), BadFilter> {
        match name {
            "state" => self.states = states(&value)?,
            "route" => self.route = Some(value),
            "session" => self.session = Some(value),
            "since" => self.since = Some(moment::parse(&value, now).ok_or(BadFilter::Since)?),
            "dead" => self.dead = Some(value.parse().map_err(|_| BadFilter::Dead)?),
            "limit" => self.limit = limit(&value).ok_or(BadFilter::Limit)?,
            "cursor" => self.cursor = Some(value),
            _ => return Err(BadFilter::Unknown(name.to_owned())),
        }
        Ok(())
    }

    /// Whether the operation belongs on the list.
    pub fn takes(&self, operation: &Operation) -> bool {
        let (identity, state) = (&operation.identity, operation.state.name());
        (self.states.is_empty() || self.states.contains(&state))
            && self.route.as_ref().is_none_or(|route| *route == identity.route)
            && self.session.as_ref().is_none_or(|session| identity.session.as_ref() == Some(session))
            && self.since.is_none_or(|since| operation.created_at >= since)
            && self.dead.is_none_or(|dead| dead == operation.dead_letter().is_some())
    }

    /// Whether nothing that is older than this one can belong on the list.
    pub fn ends_before(&self, operation: &Operation) -> bool {
        self.since.is_some_and(|since| operation.created_at < since)
    }
}

fn states(value: &str) -> Result<Vec<StateName>, BadFilter> {
    value.split(',').map(|name| StateName::parse(name).ok_or_else(|| BadFilter::State(name.to_owned()))).collect()
}

fn limit(value: &str) -> Option<usize> {
    value.parse().ok().filter(|limit| (1..=LARGEST_LIMIT).contains(limit))
}

/// A value of a query as it was meant; what is no valid escape stays as it is.
pub(super) fn plain(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, next) = match (first, escape(after)) {
            (b'%', Some(escaped)) => escaped,
            (b'+', _) => (b' ', after),
            (other, _) => (*other, after),
        };
        bytes.push(byte);
        rest = next;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The byte that two hexadecimal digits stand for, and what follows them.
fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let (digits, rest) = text.split_at_checked(2)?;
    let digits = std::str::from_utf8(digits).ok()?;
    Some((u8::from_str_radix(digits, 16).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Cause, Kept, State};
    use crate::server::view::tests::{operation, settled};

    fn read(query: &str) -> Result<Filter, BadFilter> {
        Filter::read(Some(query), Timestamp(7_200_000))
    }

    #[test]
    fn every_filter_is_read() {
        let filter =
            read("state=unknown,waiting&route=a%2Fb&session=s+1&since=1h&dead=true&limit=5&cursor=x%3D").unwrap();
        let expected = Filter {
            states: vec![StateName::Unknown, StateName::Waiting],
            route: Some("a/b".to_owned()),
            session: Some("s 1".to_owned()),
            since: Some(Timestamp(3_600_000)),
            dead: Some(true),
            limit: 5,
            cursor: Some("x=".to_owned()),
        };
        assert_eq!(filter, expected);
        assert_eq!(Filter::read(None, Timestamp(0)).unwrap(), Filter { limit: 100, ..Filter::default() });
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert_eq!(read("stat=unknown"), Err(BadFilter::Unknown("stat".to_owned())));
        assert_eq!(read("state=done"), Err(BadFilter::State("done".to_owned())));
        assert_eq!(read("since=yesterday"), Err(BadFilter::Since));
        assert_eq!(read("dead=yes"), Err(BadFilter::Dead));
        for limit in ["0", "501", "-1", "x", ""] {
            assert_eq!(read(&format!("limit={limit}")), Err(BadFilter::Limit));
        }
    }

    #[test]
    fn an_operation_has_to_pass_all_of_them() {
        let unknown = operation("k", 1000, State::Unknown { cause: Cause::Closed, since: Timestamp(0) });
        let done = operation("k", 1000, State::Succeeded { settled: settled(Kept::Whole) });
        for (query, takes_unknown, takes_done) in [
            ("", true, true),
            ("dead=true", true, false),
            ("dead=false", false, true),
            ("state=succeeded", false, true),
            ("route=payments&session=s-1", true, true),
            ("route=other", false, false),
            ("session=s-1&dead=true", true, false),
            ("since=1000", true, true),
            ("since=1001", false, false),
        ] {
            let filter = read(query).unwrap();
            assert_eq!((filter.takes(&unknown), filter.takes(&done)), (takes_unknown, takes_done), "{query}");
        }
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(plain("100%"), "100%");
        assert_eq!(plain("%zz%4"), "%zz%4");
        assert_eq!(plain("%41%c3%a4"), "A\u{e4}");
    }
}
