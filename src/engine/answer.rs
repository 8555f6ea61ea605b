//! What a call comes to: an upstream's answer or a problem, and everything the gateway says about it.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::ext::ReasonPhrase;
use tokio::sync::mpsc;

use crate::engine::gates::Place;
use crate::engine::problem::{Code, Problem};
use crate::operation::{KeySource, OperationId};
use crate::retry::decide::Stop;
use crate::retry::retry_after::calls_back;
use crate::upstream::{ReceivedBody, Switched};

/// The end of a call as its caller sees it.
pub struct Answer {
    pub content: Content,
    pub marks: Marks,
}

impl Answer {
    /// Whether the store was away before anything was sent.
    pub fn is_for_want_of_store(&self) -> bool {
        let unsent = self.marks.attempts == 0 && self.marks.execution == Some(Execution::NotExecuted);
        matches!(&self.content, Content::Problem(problem) if problem.store_away) && unsent
    }

    /// Whether it only says that the call is under way.
    pub fn is_in_progress(&self) -> bool {
        matches!(&self.content, Content::Problem(problem) if problem.code == Code::InProgress)
    }
}

/// Who wrote the answer, and what it says.
pub enum Content {
    Upstream {
        status: StatusCode,
        headers: HeaderMap,
        body: Body,
    },
    /// The call is being made, and its answer can be asked for by the name of the operation.
    Accepted,
    Problem(Problem),
}

/// The body of an upstream's answer.
pub enum Body {
    Whole(Bytes),
    /// Longer than a receipt may be: piece by piece as it comes, the last one held back until the end is durable.
    Live(mpsc::Receiver<Piece>),
    /// An unguarded answer, straight from the upstream, with the words beside its status if they are its own.
    Passed {
        body: ReceivedBody,
        reason: Option<ReasonPhrase>,
        /// Given back when the body has ended.
        place: Option<Place>,
    },
    /// Behind a 101: the stream that the upstream's connection has become.
    Switched(Box<Switched>),
}

/// A part of a live answer. A channel that closes without [`Piece::End`], for whatever reason, was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Data(Bytes),
    /// Behind the last byte.
    Trailers(HeaderMap),
    End,
}

/// What the gateway says beside the answer, header by header.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    pub operation: Option<OperationId>,
    /// The key in force, and the rule that gave it.
    pub key: Option<(String, KeySource)>,
    pub execution: Option<Execution>,
    pub attempts: u32,
    pub stop: Option<Stop>,
    pub replayed: bool,
    /// A true answer that could not be kept.
    pub receipt_none: bool,
    pub earlier: Option<OperationId>,
    /// An earlier try of this call may have done it.
    pub prior_outcome_unknown: bool,
    pub unguarded: Option<Unguarded>,
    pub compensation: Option<Compensation>,
}

impl Marks {
    /// Whether an answer of the upstream with these lines calls its caller back. One that ends several attempts does not: a
    /// client that came back when it is told to would multiply them.
    pub fn calls_back(&self, headers: &HeaderMap) -> bool {
        let has_tried_again = self.stop.is_some() && self.attempts > 1;
        !has_tried_again && calls_back(headers)
    }
}

/// `Oncegate-Execution`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    Executed,
    NotExecuted,
    Unknown,
    InProgress,
}

impl Execution {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::NotExecuted => "not-executed",
            Self::Unknown => "unknown",
            Self::InProgress => "in-progress",
        }
    }
}

/// Why a write went unguarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unguarded {
    Store,
    BodySize,
    Off,
}

impl Unguarded {
    /// The value of `Oncegate-Guarded`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "no; reason=store",
            Self::BodySize => "no; reason=body-size",
            Self::Off => "no; reason=off",
        }
    }
}

/// `Oncegate-Compensation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compensation {
    Running,
    Done,
}

impl Compensation {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
        }
    }
}
