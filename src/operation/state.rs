//! The states of an operation and the table of legal edges between them.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::Timestamp;
use crate::operation::meaning::Meaning;
use crate::operation::receipt::Settled;

/// Timed ownership of a running operation. A lease that has ended gives nothing back: it only lets others look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// By the store's clock.
    pub until: Timestamp,
}

/// Where an operation stands; data only where it means something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Owned, nothing sent.
    Claimed { lease: Lease },
    /// Parked until a person decides; nobody owns it.
    AwaitingApproval,
    /// Owned, and the upstream may have run it.
    Sent { lease: Lease },
    /// Between two attempts; no attempt starts before `not_before`.
    Waiting { not_before: Timestamp, lease: Option<Lease> },
    /// A final answer that says it was done; the receipt is kept.
    Succeeded { settled: Settled },
    /// A final answer that says no; the receipt is kept.
    Failed { settled: Settled },
    /// Nothing ran: refused, never sent, or proven absent. The next call with the key runs.
    NotExecuted { cause: Cause },
    /// It may have run, and only evidence or a person ends that.
    Unknown { cause: Cause, since: Timestamp },
    /// A person said no, or the approval ran out.
    Rejected,
    /// A person gave it up.
    Abandoned,
    /// The undo of a success is under way.
    Compensating { settled: Settled },
    /// The success was undone.
    Compensated { settled: Settled },
}

/// Why an operation ended without a final answer, for events, problems and operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum Cause {
    /// No connection: name, refusal, connect timeout, TLS.
    Connect,
    /// The upstream's own word that it did not look at the request: a refused stream of HTTP/2, or a goodbye before it.
    TurnedAway,
    /// The connection ended after bytes were written and before an answer.
    Closed,
    /// No answer within the attempt timeout.
    Timeout,
    /// The head of the answer was not HTTP, or too large.
    BadAnswer,
    /// The upstream answered with this status.
    Status(u16),
    /// The same, and a rule says what that means. Stored as its word; see [`Cause::word`].
    #[serde(skip)]
    Ruled { status: u16, meaning: Meaning },
    /// The deadline of the run was over.
    Deadline,
    /// The owner's lease ended: it crashed, stalled or lost the store.
    OwnerLost,
    /// It was not begun, for the upstream is left alone or has no room: a pause, an open breaker, a full route, no budget.
    HeldBack,
    /// The store did not take the step that has to come before the send.
    Store,
    /// The call cannot be sent again as it was: its bytes, its credential, its route or the time for its key is gone.
    Unsendable,
    /// A reason that a newer version knows; a word without a value, or this one could not read it.
    #[serde(other)]
    Other,
}

/// How the word of a cause begins that a rule has made.
const RULED: &str = "ruled_";

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("no connection to the upstream"),
            Self::TurnedAway => f.write_str("the upstream turned the call away before it looked at it"),
            Self::Closed => f.write_str("the upstream closed the connection without an answer"),
            Self::Timeout => f.write_str("the upstream did not answer in time"),
            Self::BadAnswer => f.write_str("the upstream's answer was not valid HTTP"),
            Self::Status(status) => write!(f, "the upstream answered {status}"),
            Self::Ruled { status, meaning } => {
                write!(f, "the upstream answered {status}, which a rule calls {}", meaning.as_str())
            }
            Self::Deadline => f.write_str("the deadline was over"),
            Self::OwnerLost => f.write_str("the gateway that owned the call went away"),
            Self::HeldBack => f.write_str("a pause, an open breaker, a full route or an empty budget held it back"),
            Self::Store => f.write_str("the store did not take the step before the send"),
            Self::Unsendable => f.write_str("the call cannot be sent as it is stored"),
            Self::Other => f.write_str("a newer version of the gateway knows why"),
        }
    }
}

impl Cause {
    /// One word for each kind, to group by.
    pub fn word(self) -> String {
        match self {
            Self::Connect => "connect".to_owned(),
            Self::TurnedAway => "turned_away".to_owned(),
            Self::Closed => "closed".to_owned(),
            Self::Timeout => "timeout".to_owned(),
            Self::BadAnswer => "bad_answer".to_owned(),
            Self::Status(status) => format!("status_{status}"),
            Self::Ruled { status, meaning } => format!("{RULED}{}_{status}", meaning.as_str().replace('-', "_")),
            Self::Deadline => "deadline".to_owned(),
            Self::OwnerLost => "owner_lost".to_owned(),
            Self::HeldBack => "held_back".to_owned(),
            Self::Store => "store".to_owned(),
            Self::Unsendable => "unsendable".to_owned(),
            Self::Other => "other".to_owned(),
        }
    }

    /// Of a word that is stored in place of a value.
    fn of_word(word: &str) -> Option<Self> {
        let (meaning, status) = word.strip_prefix(RULED)?.rsplit_once('_')?;
        let meaning = Meaning::ALL.into_iter().find(|known| known.as_str().replace('-', "_") == meaning)?;
        Some(Self::Ruled { status: status.parse().ok()?, meaning })
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Ruled { .. } => serializer.serialize_str(&self.word()),
            known => Self::serialize(known, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Cause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StoredCause)
    }
}

/// A cause as it is stored: a word, or one with a value.
struct StoredCause;

impl<'de> Visitor<'de> for StoredCause {
    type Value = Cause;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("why an operation ended")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Cause, E> {
        Cause::of_word(word).map_or_else(|| Cause::deserialize(word.into_deserializer()), Ok)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Cause, A::Error> {
        Cause::deserialize(MapAccessDeserializer::new(map))
    }
}

/// A state without its data: what events, filters and the table of edges speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateName {
    Claimed,
    AwaitingApproval,
    Sent,
    Waiting,
    Succeeded,
    Failed,
    NotExecuted,
    Unknown,
    Rejected,
    Abandoned,
    Compensating,
    Compensated,
}

use StateName as S;

/// Everything that may follow a state. A change to the same state (a renewal, a take-over) is not an edge.
const fn followers(state: StateName) -> &'static [StateName] {
    match state {
        S::Claimed => &[S::Sent, S::Waiting, S::NotExecuted, S::Unknown, S::AwaitingApproval],
        S::AwaitingApproval => &[S::Waiting, S::Rejected],
        S::Sent => &[S::Succeeded, S::Failed, S::Waiting, S::NotExecuted, S::Unknown],
        S::Waiting => &[S::Sent, S::NotExecuted, S::Unknown],
        S::Unknown => &[S::Succeeded, S::Failed, S::Sent, S::NotExecuted, S::Abandoned],
        S::NotExecuted => &[S::Claimed, S::Sent, S::Abandoned],
        S::Succeeded => &[S::Compensating],
        S::Compensating => &[S::Compensated, S::Succeeded],
        S::Failed | S::Rejected | S::Abandoned | S::Compensated => &[],
    }
}

/// States in which a record may begin.
const FIRST: &[StateName] = &[S::Claimed, S::AwaitingApproval, S::Sent];

impl StateName {
    pub const ALL: [Self; 12] = [
        S::Claimed,
        S::AwaitingApproval,
        S::Sent,
        S::Waiting,
        S::Succeeded,
        S::Failed,
        S::NotExecuted,
        S::Unknown,
        S::Rejected,
        S::Abandoned,
        S::Compensating,
        S::Compensated,
    ];

    /// Whether the table has an edge `from -> self`; `None` stands for "no record yet".
    pub fn may_follow(self, from: Option<StateName>) -> bool {
        from.map_or(FIRST, followers).contains(&self)
    }

    /// The name in JSON, logs and filters.
    pub const fn as_str(self) -> &'static str {
        match self {
            S::Claimed => "claimed",
            S::AwaitingApproval => "awaiting_approval",
            S::Sent => "sent",
            S::Waiting => "waiting",
            S::Succeeded => "succeeded",
            S::Failed => "failed",
            S::NotExecuted => "not_executed",
            S::Unknown => "unknown",
            S::Rejected => "rejected",
            S::Abandoned => "abandoned",
            S::Compensating => "compensating",
            S::Compensated => "compensated",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl State {
    pub fn name(&self) -> StateName {
        match self {
            Self::Claimed { .. } => S::Claimed,
            Self::AwaitingApproval => S::AwaitingApproval,
            Self::Sent { .. } => S::Sent,
            Self::Waiting { .. } => S::Waiting,
            Self::Succeeded { .. } => S::Succeeded,
            Self::Failed { .. } => S::Failed,
            Self::NotExecuted { .. } => S::NotExecuted,
            Self::Unknown { .. } => S::Unknown,
            Self::Rejected => S::Rejected,
            Self::Abandoned => S::Abandoned,
            Self::Compensating { .. } => S::Compensating,
            Self::Compensated { .. } => S::Compensated,
        }
    }

    /// The lease of the owner, where there is one.
    pub fn lease(&self) -> Option<Lease> {
        match self {
            Self::Claimed { lease } | Self::Sent { lease } => Some(*lease),
            Self::Waiting { lease, .. } => *lease,
            Self::AwaitingApproval
            | Self::Succeeded { .. }
            | Self::Failed { .. }
            | Self::NotExecuted { .. }
            | Self::Unknown { .. }
            | Self::Rejected
            | Self::Abandoned
            | Self::Compensating { .. }
            | Self::Compensated { .. } => None,
        }
    }

    /// What is kept of the answer, where there is one.
    pub fn settled(&self) -> Option<&Settled> {
        match self {
            Self::Succeeded { settled }
            | Self::Failed { settled }
            | Self::Compensating { settled }
            | Self::Compensated { settled } => Some(settled),
            Self::Claimed { .. }
            | Self::AwaitingApproval
            | Self::Sent { .. }
            | Self::Waiting { .. }
            | Self::NotExecuted { .. }
            | Self::Unknown { .. }
            | Self::Rejected
            | Self::Abandoned => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for state in StateName::ALL {
            assert_eq!(StateName::parse(state.as_str()), Some(state));
        }
        assert_eq!(StateName::parse("done"), None);
    }

    #[test]
    fn nothing_leaves_an_end_but_what_the_contract_names() {
        for end in [S::Failed, S::Rejected, S::Abandoned, S::Compensated] {
            assert!(StateName::ALL.iter().all(|next| !next.may_follow(Some(end))), "{end}");
        }
        assert!(!S::Sent.may_follow(Some(S::Succeeded)));
        assert!(!S::Waiting.may_follow(Some(S::Unknown)));
        assert!(!S::NotExecuted.may_follow(None));
    }
}
