//! Where a call landed, in a form that all who waited for it can have.

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use crate::engine::answer::{Answer, Body, Content, Marks};
use crate::engine::problem::{Code, Problem};
use crate::operation::Receipt;
use crate::upstream::kept_for_replay;

/// The end of a run, or of the look at a record that needed none.
#[derive(Clone, Debug)]
pub enum Conclusion {
    /// A settled answer: everybody but the one who made the call gets it as a replay.
    Receipt {
        receipt: Receipt,
        marks: Marks,
    },
    /// The upstream's last answer of a run that ended without a receipt.
    Answer {
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
        marks: Marks,
    },
    Problem {
        problem: Problem,
        marks: Marks,
    },
}

impl Conclusion {
    /// What somebody gets who did not make the call himself: nothing that was meant for the one who did.
    pub fn answer(&self) -> Answer {
        match self {
            Self::Receipt { receipt, marks } => replay(receipt, marks.clone()),
            Self::Answer { status, headers, body, marks } => {
                Answer { content: upstream(*status, for_others(headers), body), marks: marks.clone() }
            }
            Self::Problem { problem, marks } => {
                Answer { content: Content::Problem(problem.clone()), marks: marks.clone() }
            }
        }
    }

    /// What the one gets who made the call.
    pub fn first_answer(&self) -> Answer {
        match self {
            Self::Answer { status, headers, body, marks } => {
                Answer { content: upstream(*status, headers.clone(), body), marks: marks.clone() }
            }
            Self::Receipt { .. } | Self::Problem { .. } => self.answer(),
        }
    }

    /// Whether it only says that somebody else is still at work.
    pub fn is_in_progress(&self) -> bool {
        matches!(self, Self::Problem { problem, .. } if problem.code == Code::InProgress)
    }
}

fn replay(receipt: &Receipt, marks: Marks) -> Answer {
    let marks = Marks { replayed: true, ..marks };
    let status = StatusCode::from_u16(receipt.status).unwrap_or(StatusCode::OK);
    Answer { content: upstream(status, HeaderMap::clone(&receipt.headers), &receipt.body), marks }
}

fn upstream(status: StatusCode, headers: HeaderMap, body: &Bytes) -> Content {
    Content::Upstream { status, headers, body: Body::Whole(body.clone()) }
}

/// When to come back is for all who wait for the same answer.
fn for_others(headers: &HeaderMap) -> HeaderMap {
    let told = headers.iter().filter(|(name, _)| kept_for_replay(name) || *name == RETRY_AFTER);
    told.map(|(name, value)| (name.clone(), value.clone())).collect()
}
