//! The agents' own look-ups: `GET /.oncegate/operations/{id}[?wait=10s]`, the same with `/receipt` for the answer itself,
//! and `POST /.oncegate/operations/lookup`.
//!
//! Reads the question and writes the answer. Who asks, and what that caller may see, is settled by the engine in
//! between.

use std::time::Duration;

use http::{Method, Response, StatusCode};
use serde::{Deserialize, Serialize};

use crate::clock::moment::duration;
use crate::engine::lookup::View;
use crate::engine::problem::{Code, Problem};
use crate::operation::admission::Repeat;
use crate::operation::{OperationId, State};
use crate::server::body::ResponseBody;
use crate::server::respond;
use crate::server::view::OperationView;

const ADDRESS: &str = "/.oncegate/operations/";
const BY_KEY: &str = "lookup";
const RECEIPT: &str = "/receipt";

/// The longest that a look-up holds its connection.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Question {
    Operation {
        id: OperationId,
        /// How long to wait for its end.
        wait: Duration,
    },
    /// Its answer, as a replay.
    Receipt {
        id: OperationId,
        /// How long to wait for its end.
        wait: Duration,
    },
    /// By route and key, which are in the body.
    Key,
}

/// A key and the route that it was used on.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyQuestion {
    pub route: String,
    pub key: String,
}

/// Why there is no question.
#[derive(Debug)]
pub enum NoQuestion {
    Problem(Problem),
    /// The address takes this method only.
    WrongMethod(&'static str),
}

impl Question {
    /// Reads a request's head; `None` if the path is not one of a look-up.
    pub fn read(method: &Method, path: &str, query: Option<&str>) -> Option<Result<Self, NoQuestion>> {
        let name = path.strip_prefix(ADDRESS)?;
        Some(match name {
            BY_KEY if *method == Method::POST => Ok(Self::Key),
            BY_KEY => Err(NoQuestion::WrongMethod("POST")),
            _ if !matches!(*method, Method::GET | Method::HEAD) => Err(NoQuestion::WrongMethod("GET, HEAD")),
            _ => Self::by_name(name, query).map_err(NoQuestion::Problem),
        })
    }

    fn by_name(name: &str, query: Option<&str>) -> Result<Self, Problem> {
        let (name, is_receipt) = name.strip_suffix(RECEIPT).map_or((name, false), |name| (name, true));
        let id = name.parse().map_err(|error| Problem::new(Code::NotFound, format!("{error}")))?;
        let wait = wait(query)?;
        Ok(if is_receipt { Self::Receipt { id, wait } } else { Self::Operation { id, wait } })
    }
}

impl KeyQuestion {
    /// Reads the body of a look-up by key.
    ///
    /// # Errors
    /// `invalid-request` if it is not `{"route": ..., "key": ...}`.
    pub fn read(body: &[u8]) -> Result<Self, Problem> {
        serde_json::from_slice(body).map_err(|error| {
            Problem::new(Code::InvalidRequest, format!("the body is not {{\"route\": ..., \"key\": ...}}: {error}"))
        })
    }
}

fn wait(query: Option<&str>) -> Result<Duration, Problem> {
    let Some(text) = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("wait="))) else {
        return Ok(Duration::ZERO);
    };
    let wait = duration(text).ok_or_else(|| Problem::new(Code::InvalidRequest, "wait is a duration such as 10s"))?;
    Ok(wait.min(LONGEST_WAIT))
}

/// The answer to a question.
pub fn answer(view: &View) -> Response<ResponseBody> {
    let shown = Shown { operation: OperationView::of(&view.operation), next: next(view) };
    respond::json(StatusCode::OK, &shown)
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    operation: OperationView<'a>,
    /// One sentence on what to do now.
    next: String,
}

/// It names the address of the operation: by its key it was asked for at another one.
fn next(view: &View) -> String {
    let address = format!("{ADDRESS}{}", view.operation.id);
    let said = match &view.operation.state {
        State::Waiting { .. } if view.operation.parked_until().is_some_and(|due| due > view.now) => {
            "The call waits until not_before and goes on by itself then; ask again after that."
        }
        State::Claimed { .. } | State::Sent { .. } | State::Waiting { .. } => {
            return format!(
                "Ask GET {address}?wait=10s, or repeat the call with the same key: it joins the running one, or says when that \
                 is due."
            );
        }
        State::AwaitingApproval => "Wait for a person to approve or reject the call, then repeat it with the same key.",
        State::Succeeded { .. } | State::Failed { .. } | State::Compensating { .. } | State::Compensated { .. } => {
            match &view.receipt {
                Some(_) => {
                    return format!(
                        "Get this answer at {address}{RECEIPT}, or repeat the call with the same key; nothing is sent for \
                         either."
                    );
                }
                None => "The call ran and its answer is no longer here; read the result from the service itself.",
            }
        }
        State::NotExecuted { .. } if !view.operation.is_disputed() => {
            "Nothing ran; repeat the call with the same key if it is still wanted."
        }
        State::NotExecuted { .. } | State::Unknown { .. } => match view.repeat {
            Repeat::Unsafe => {
                "Do not repeat the call with a new key; with its own it never runs twice. Check with the service itself, or ask a person."
            }
            Repeat::WithKey => {
                "Repeat the call with the same key, never with a new one: it finds out what became of it, and does not run twice."
            }
            Repeat::Harmless => "Repeat the call with the same key: the service may get it twice without harm.",
        },
        State::Rejected => "Do not repeat the call; a person said no to it.",
        State::Abandoned => "Do not repeat the call; a person gave it up.",
    };
    said.to_owned()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::Value;

    use super::*;
    use crate::clock::Timestamp;
    use crate::operation::{Cause, DeadLetter, Kept, Lease, Operation, Receipt};
    use crate::server::view::tests::{operation, settled};

    fn id() -> OperationId {
        OperationId::of(&[1; 32], "payments", "k", None)
    }

    fn asked(method: &Method, path: &str, query: Option<&str>) -> Result<Question, u16> {
        Question::read(method, path, query).unwrap().map_err(|no| match no {
            NoQuestion::Problem(problem) => problem.status,
            NoQuestion::WrongMethod(_) => 405,
        })
    }

    #[test]
    fn an_operation_is_asked_for_by_name_with_a_bounded_wait() {
        let path = format!("/.oncegate/operations/{}", id());
        for (query, seconds) in [(None, 0), (Some("wait=10s"), 10), (Some("a=b&wait=1m"), 60), (Some("wait=1h"), 60)] {
            let expected = Question::Operation { id: id(), wait: Duration::from_secs(seconds) };
            assert_eq!(asked(&Method::GET, &path, query), Ok(expected));
        }
        let receipt = Question::Receipt { id: id(), wait: Duration::from_secs(10) };
        assert_eq!(asked(&Method::GET, &format!("{path}/receipt"), Some("wait=10s")), Ok(receipt));
        assert_eq!(asked(&Method::GET, &format!("{path}/other"), None), Err(404));
        assert_eq!(asked(&Method::GET, &path, Some("wait=long")), Err(400));
        assert_eq!(asked(&Method::DELETE, &path, None), Err(405));
        assert_eq!(asked(&Method::GET, "/.oncegate/operations/op_1", None), Err(404));
    }

    #[test]
    fn an_operation_is_asked_for_by_route_and_key() {
        assert_eq!(asked(&Method::POST, "/.oncegate/operations/lookup", None), Ok(Question::Key));
        assert_eq!(asked(&Method::GET, "/.oncegate/operations/lookup", None), Err(405));
        let question = KeyQuestion::read(br#"{"route": "payments", "key": "k-1"}"#).unwrap();
        assert_eq!(question, KeyQuestion { route: "payments".to_owned(), key: "k-1".to_owned() });
        assert_eq!(KeyQuestion::read(b"{}").unwrap_err().status, 400);
    }

    #[test]
    fn other_paths_are_not_look_ups() {
        assert!(Question::read(&Method::GET, "/payments", None).is_none());
    }

    async fn said(state: State, receipt: Option<Receipt>, repeat: Repeat) -> (Value, String) {
        said_of(operation("k-1", 0, state), receipt, repeat).await
    }

    async fn said_of(operation: Operation, receipt: Option<Receipt>, repeat: Repeat) -> (Value, String) {
        let view = View { operation, receipt, now: Timestamp(0), repeat };
        let body = answer(&view).into_body().collect().await.unwrap().to_bytes();
        let said: Value = serde_json::from_slice(&body).unwrap();
        let next = said["next"].as_str().unwrap().to_owned();
        (said, next)
    }

    #[tokio::test]
    async fn a_receipt_is_not_shown_but_how_to_get_it_is() {
        let receipt = Receipt { status: 201, headers: std::sync::Arc::default(), body: "{\"id\":\"secret\"}".into() };
        let state = State::Succeeded { settled: settled(Kept::Whole) };
        let (said, next) = said(state, Some(receipt), Repeat::Unsafe).await;
        assert!(next.contains("same key") && !said.to_string().contains("secret"));
        assert_eq!(said["result"]["status"], 201);
    }

    #[tokio::test]
    async fn a_parked_call_is_not_waited_for() {
        let waits = |lease| State::Waiting { not_before: Timestamp(60_000), lease };
        let (_, next) = said(waits(None), None, Repeat::Unsafe).await;
        assert!(next.contains("not_before") && !next.contains("?wait"), "{next}");
        let (_, next) = said(waits(Some(Lease { until: Timestamp(5000) })), None, Repeat::Unsafe).await;
        assert!(next.contains("?wait"), "{next}");
    }

    #[tokio::test]
    async fn an_unknown_end_is_an_invitation_only_where_a_repeat_does_no_harm() {
        let unknown = operation("k-1", 0, State::Unknown { cause: Cause::Closed, since: Timestamp(0) });
        let not_executed = operation("k-1", 0, State::NotExecuted { cause: Cause::OwnerLost });
        let disputed = DeadLetter { since: Timestamp(0), alerted_at: None, disputed: true };
        let disputed = Operation { dead: Some(disputed), ..not_executed };
        for (repeat, begin) in [
            (Repeat::Unsafe, "Do not repeat"),
            (Repeat::WithKey, "Repeat the call with the same key, never with a new one"),
            (Repeat::Harmless, "Repeat the call with the same key"),
        ] {
            for operation in [unknown.clone(), disputed.clone()] {
                let (said, next) = said_of(operation, None, repeat).await;
                assert_eq!(said["execution"], "unknown");
                assert!(next.starts_with(begin), "{next}");
            }
        }
    }
}
