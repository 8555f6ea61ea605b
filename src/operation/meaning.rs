//! What a route's own rules say of an answer, before the table is asked.
//!
//! Owns the conditions of `[[routes.classify]]` and the facts that come of them. A rule that has to see a body which is
//! not here leaves the answer open: nothing is ever made of a body that nobody has read.

use std::fmt;

use http::{HeaderMap, HeaderName};

use super::outcome::{Fact, Outcome, classify};
use super::payload::Pointer;
use super::payload::json::{self, Value};

/// `as`: what an answer means, whatever its status says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// The first try of this very call still runs there.
    Busy,
    /// The upstream wants less traffic, and ran nothing.
    Throttled,
    /// Nothing ran.
    NotExecuted,
    /// Nothing ran, for the credential is no good: not sent again with the same one.
    Denied,
    /// It ran: the last word of the service.
    Executed,
    /// The service says no: its last word, too.
    Failed,
    /// Nobody can tell.
    Unknown,
}

/// The rules of a route, in the order in which they are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(pub Vec<Rule>);

/// One `[[routes.classify]]`: all of its conditions have to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Any of these; any status if empty.
    pub statuses: Vec<Statuses>,
    pub headers: Vec<(HeaderName, HeaderTest)>,
    pub json: Vec<(Pointer, JsonTest)>,
    pub meaning: Meaning,
}

/// A range of statuses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statuses {
    pub first: u16,
    pub last: u16,
}

/// What has to hold of one line of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderTest {
    Present,
    Equals(String),
    StartsWith(String),
}

/// What has to hold of a member of a JSON body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonTest {
    /// Anything but `null` is there.
    Present,
    /// The value is one of these, by their canonical texts.
    OneOf(Vec<Vec<u8>>),
    /// It is a string with this in it.
    Contains(String),
}

/// How much of a body can be looked at.
#[derive(Clone, Copy, Debug)]
pub enum Look<'a> {
    /// It has not been read yet.
    NotYet,
    Json(&'a Value<'a>),
    /// It is no JSON, or nobody can look into it.
    Nothing,
}

/// What the rules say of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Said {
    /// No rule fits: the table decides.
    #[default]
    Nothing,
    Means(Meaning),
    /// That depends on a body which is not here.
    Open,
}

impl Meaning {
    pub const ALL: [Self; 7] =
        [Self::Busy, Self::Throttled, Self::NotExecuted, Self::Denied, Self::Executed, Self::Failed, Self::Unknown];

    /// The word of `as`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Throttled => "throttled",
            Self::NotExecuted => "not-executed",
            Self::Denied => "denied",
            Self::Executed => "executed",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }

    /// Whether the answer is the last word on the call, and becomes its receipt.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Executed | Self::Failed => true,
            Self::Busy | Self::Throttled | Self::NotExecuted | Self::Denied | Self::Unknown => false,
        }
    }

    /// Whether it says that nothing ran.
    const fn is_harmless(self) -> bool {
        match self {
            Self::Throttled | Self::NotExecuted | Self::Denied => true,
            Self::Busy | Self::Unknown | Self::Executed | Self::Failed => false,
        }
    }

    /// Whether the call may have run, or still run, without a last word to show for it.
    pub const fn leaves_doubt(self) -> bool {
        match self {
            Self::Busy | Self::Unknown => true,
            Self::Throttled | Self::NotExecuted | Self::Denied | Self::Executed | Self::Failed => false,
        }
    }
}

impl Rules {
    /// What the first rule says that fits. One that cannot be judged yet hides those behind it.
    pub fn say(&self, status: u16, headers: &HeaderMap, look: Look<'_>) -> Said {
        let mut is_hidden = false;
        for rule in self.0.iter().filter(|rule| rule.fits_head(status, headers)) {
            match look {
                // Whoever made an exception for such an answer would not have it sent again.
                _ if rule.json.is_empty() && is_hidden && rule.meaning.is_harmless() => {
                    return Said::Means(Meaning::Unknown);
                }
                _ if rule.json.is_empty() => return Said::Means(rule.meaning),
                Look::NotYet => return Said::Open,
                Look::Json(body) if rule.fits_body(body) => return Said::Means(rule.meaning),
                Look::Json(_) => {}
                Look::Nothing => is_hidden |= !rule.meaning.is_harmless(),
            }
        }
        Said::Nothing
    }
}

impl Rule {
    fn fits_head(&self, status: u16, headers: &HeaderMap) -> bool {
        let by_status = self.statuses.is_empty() || self.statuses.iter().any(|statuses| statuses.contain(status));
        by_status && self.headers.iter().all(|(name, test)| test.holds(headers, name))
    }

    fn fits_body(&self, body: &Value<'_>) -> bool {
        self.json.iter().all(|(pointer, test)| body.at(pointer).is_some_and(|value| test.holds(value)))
    }
}

impl Statuses {
    fn contain(self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }
}

impl HeaderTest {
    fn holds(&self, headers: &HeaderMap, name: &HeaderName) -> bool {
        headers.get_all(name).iter().any(|line| match self {
            Self::Present => true,
            Self::Equals(text) => line.as_bytes() == text.as_bytes(),
            Self::StartsWith(text) => line.as_bytes().starts_with(text.as_bytes()),
        })
    }
}

impl JsonTest {
    fn holds(&self, value: &Value<'_>) -> bool {
        match (self, value) {
            (Self::Present, value) => !matches!(value, Value::Null),
            (Self::OneOf(texts), value) => texts.contains(&value.canonical()),
            (Self::Contains(part), Value::String(text)) => text.contains(part),
            (
                Self::Contains(_),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_),
            ) => false,
        }
    }
}

/// What an attempt came to: by what the rules say of its answer, else by the table. A last word that broke off is none.
pub fn fact(outcome: &Outcome, said: Said) -> Fact {
    match (*outcome, said) {
        (Outcome::Answer { status }, Said::Means(meaning)) => {
            Fact::Ruled { status, meaning, by_rule: true, cut: false }
        }
        (Outcome::Cut { status }, Said::Means(meaning)) => {
            Fact::Ruled { status, meaning, by_rule: true, cut: meaning.is_final() }
        }
        (Outcome::Answer { status } | Outcome::Cut { status }, Said::Open) => {
            Fact::Ruled { status, meaning: Meaning::Unknown, by_rule: false, cut: false }
        }
        (Outcome::Answer { .. } | Outcome::Cut { .. }, Said::Nothing)
        | (Outcome::NotSent { .. } | Outcome::TurnedAway | Outcome::Silent(_) | Outcome::BadHead, _) => {
            classify(outcome)
        }
    }
}

/// The canonical text of a JSON value that is written out; `None` where it is none.
pub fn canonical_json(text: &str) -> Option<Vec<u8>> {
    json::read(text.as_bytes()).map(|value| value.canonical())
}

/// The canonical text of a string.
pub fn canonical_string(text: &str) -> Vec<u8> {
    let mut canonical = Vec::new();
    json::write_string(text, &mut canonical);
    canonical
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl fmt::Display for HeaderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => f.write_str("true"),
            Self::Equals(text) => write!(f, "{text:?}"),
            Self::StartsWith(text) => write!(f, "{:?}", format!("{text}*")),
        }
    }
}

impl fmt::Display for JsonTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => f.write_str("{ exists = true }"),
            Self::OneOf(texts) => {
                let texts: Vec<_> = texts.iter().map(|text| String::from_utf8_lossy(text)).collect();
                f.write_str(&texts.join(" or "))
            }
            Self::Contains(part) => write!(f, "{{ contains = {part:?} }}"),
        }
    }
}

/// The conditions; what they mean, a listing says by the words of the file.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statuses: Vec<_> = self.statuses.iter().map(Statuses::to_string).collect();
        let status = (!statuses.is_empty()).then(|| statuses.join(" "));
        let headers = self.headers.iter().map(|(name, test)| format!("{name}: {test}"));
        let json = self.json.iter().map(|(pointer, test)| format!("{pointer} = {test}"));
        f.write_str(&status.into_iter().chain(headers).chain(json).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests;
