//! Where a call landed, in a form that all who waited for it can have.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::engine::answer::{Answer, Body, Content, Marks};
use crate::engine::problem::{Code, Problem};
use crate::operation::Receipt;

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
    /// What somebody gets who did not make the call himself.
    pub fn answer(&self) -> Answer {
        match self {
            Self::Receipt { receipt, marks } => replay(receipt, marks.clone()),
            Self::Answer { status, headers, body, marks } => Answer {
                content: Content::Upstream {
                    status: *status,
                    headers: headers.clone(),
                    body: Body::Whole(body.clone()),
                },
                marks: marks.clone(),
            },
            Self::Problem { problem, marks } => {
                Answer { content: Content::Problem(problem.clone()), marks: marks.clone() }
            }
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
    Answer {
        content: Content::Upstream {
            status,
            headers: HeaderMap::clone(&receipt.headers),
            body: Body::Whole(receipt.body.clone()),
        },
        marks,
    }
}
