//! What may go wrong between a request and its answer, and what helps.
//!
//! The bit that must survive every turn: whether the server said no, or whether nobody knows.

use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::redis_url::Host;
use crate::store::{StoreError, Unreadable};

/// Before a redirection is followed: servers that point to each other are not to be asked in a hurry.
pub(super) const DETOUR: Duration = Duration::from_millis(2);

/// Why one send of a request did not lead to its answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The server said no, and will go on saying so.
    #[error("the server refused")]
    Refused(#[source] RedisError),
    /// The server said "not now".
    #[error("the server is not ready")]
    NotNow(#[source] RedisError),
    /// The server is not the one that takes writes, or cannot reach it.
    #[error("the server is no master")]
    Demoted(#[source] RedisError),
    /// Another server of the cluster serves this slot now; nothing was done here.
    #[error("another server of the cluster has the slot")]
    Moved(#[source] RedisError),
    /// Another server is taking this slot over and has the key already, or would create it.
    #[error("another server of the cluster takes the slot over")]
    Ask(#[source] RedisError),
    #[error("the server does not know the script")]
    NoScript,
    /// The connection ended; the server may have done it.
    #[error("the connection broke")]
    Broken(#[source] RedisError),
    /// The bucket does not have the epoch that is known here; nothing was written.
    #[error("the part of it that holds this key does not know its epoch")]
    Forgotten,
    /// An answer, but not to this request: the connection is out of step.
    #[error("the answer does not belong to the question")]
    Garbage,
    /// It is the answer, and it cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

/// What to do about a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    GiveUp,
    /// Send it again after a short pause.
    Pause,
    /// Send it again over another connection.
    Reconnect,
    /// Send it to the server that the cluster has named.
    Follow(Redirect),
    /// Send it again with the source of the script.
    LoadScript,
    /// Not again, and nothing else before the server was examined anew.
    Examine,
}

/// Where a cluster sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    pub(super) slot: u16,
    pub(super) host: Host,
    /// For this request only: the slot is on its way.
    pub(super) asking: bool,
}

impl Failure {
    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Self::Refused(_) | Self::Unreadable(_) => Remedy::GiveUp,
            Self::NotNow(_) => Remedy::Pause,
            Self::Demoted(_) | Self::Broken(_) | Self::Garbage => Remedy::Reconnect,
            Self::Moved(error) => redirect(error, false),
            Self::Ask(error) => redirect(error, true),
            Self::NoScript => Remedy::LoadScript,
            Self::Forgotten => Remedy::Examine,
        }
    }

    /// Whether the server may have done what it was asked.
    fn leaves_doubt(&self) -> bool {
        match self {
            Self::Broken(_) | Self::Garbage => true,
            Self::Refused(_)
            | Self::NotNow(_)
            | Self::Demoted(_)
            | Self::Moved(_)
            | Self::Ask(_)
            | Self::NoScript
            | Self::Forgotten
            | Self::Unreadable(_) => false,
        }
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::NoScript) => Self::NoScript,
            ErrorKind::Server(ServerErrorKind::Moved) => Self::Moved(error),
            ErrorKind::Server(ServerErrorKind::Ask) => Self::Ask(error),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading | ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown,
            ) => Self::NotNow(error),
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => Self::Demoted(error),
            ErrorKind::Extension if error.code() == Some("BUSY") => Self::NotNow(error),
            ErrorKind::Server(_) | ErrorKind::Extension => Self::Refused(error),
            _ => Self::Broken(error),
        }
    }
}

/// What became of the sends of one step so far.
#[derive(Debug, Default)]
pub(super) struct Trail {
    last: Option<Failure>,
    /// One of the sends may have been done.
    doubt: bool,
}

impl Trail {
    pub(super) fn note(&mut self, failure: Failure) {
        self.doubt |= failure.leaves_doubt();
        self.last = Some(failure);
    }

    /// The error of a step that failed once.
    pub(super) fn of(failure: Failure) -> StoreError {
        let mut trail = Self::default();
        trail.note(failure);
        trail.end()
    }

    /// The error of a step that ended with its last failure; without one it ran out of time.
    pub(super) fn end(self) -> StoreError {
        let error = match self.last {
            None | Some(Failure::NoScript) => StoreError::Timeout,
            Some(
                Failure::Refused(error)
                | Failure::NotNow(error)
                | Failure::Demoted(error)
                | Failure::Moved(error)
                | Failure::Ask(error),
            ) => StoreError::Refused(words_of(&error)),
            Some(failure @ (Failure::Broken(_) | Failure::Garbage)) => StoreError::Connection(failure.into()),
            Some(failure @ Failure::Forgotten) => StoreError::LostMemory(failure.into()),
            Some(Failure::Unreadable(unreadable)) => unreadable.into(),
        };
        without_false_no(error, self.doubt)
    }

    /// The error of a step that found no connection for another send.
    pub(super) fn end_with(self, error: StoreError) -> StoreError {
        without_false_no(error, self.doubt)
    }
}

/// A redirection that names nobody is one that may be tried again.
fn redirect(error: &RedisError, asking: bool) -> Remedy {
    let named = error.redirect_node().and_then(|(host, slot)| Some((Host::parse_announced(host)?, slot)));
    named.map_or(Remedy::Pause, |(host, slot)| Remedy::Follow(Redirect { slot, host, asking }))
}

/// A "no" to a second send says nothing about the first.
fn without_false_no(error: StoreError, doubt: bool) -> StoreError {
    match error {
        StoreError::Refused(_) | StoreError::Away(_) | StoreError::LostMemory(_) if doubt => {
            StoreError::Connection(error.into())
        }
        StoreError::Timeout
        | StoreError::Away(_)
        | StoreError::NoSuchPlace
        | StoreError::LostMemory(_)
        | StoreError::Unreplicated(_)
        | StoreError::Connection(_)
        | StoreError::Refused(_)
        | StoreError::RecordTooNew(_)
        | StoreError::Unencodable(_)
        | StoreError::Ended(_)
        | StoreError::Corrupt(_)
        | StoreError::NoKey(_) => error,
    }
}

/// The server's own words, as they stand in its manual.
pub(super) fn words_of(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> Failure {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        reply.extract_error().unwrap_err().into()
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        for (line, remedy) in [
            ("LOADING Redis is loading the dataset in memory", Remedy::Pause),
            ("BUSY Redis is busy running a script", Remedy::Pause),
            ("CLUSTERDOWN Hash slot not served", Remedy::Pause),
            ("READONLY You can't write against a read only replica.", Remedy::Reconnect),
            ("NOSCRIPT No matching script.", Remedy::LoadScript),
            ("OOM command not allowed when used memory > 'maxmemory'.", Remedy::GiveUp),
            ("MISCONF Redis is configured to save RDB snapshots", Remedy::GiveUp),
            ("NOREPLICAS Not enough good replicas to write.", Remedy::GiveUp),
            ("NOAUTH Authentication required.", Remedy::GiveUp),
            ("ERR anything else", Remedy::GiveUp),
        ] {
            assert_eq!(said(line).remedy(), remedy, "{line}");
        }
    }

    #[test]
    fn a_refusal_speaks_in_the_words_of_the_server() {
        let mut trail = Trail::default();
        trail.note(said("OOM command not allowed"));
        assert_eq!(trail.end().to_string(), "the store refused: OOM command not allowed");
    }

    #[test]
    fn a_no_after_a_lost_answer_is_no_proof() {
        let mut trail = Trail::default();
        trail.note(Failure::Garbage);
        trail.note(said("OOM command not allowed"));
        assert!(matches!(trail.end(), StoreError::Connection(_)));
    }
}
