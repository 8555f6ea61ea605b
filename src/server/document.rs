//! What a problem looks like as JSON.

use serde::Serialize;

use crate::engine::answer::{Execution, Marks};
use crate::engine::problem::{Entry, LostAnswer, Problem};
use crate::operation::OperationId;
use crate::retry::decide::Stop;

/// RFC 9457, with members that tools read, and `error` for clients that show nothing else.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    #[serde(rename = "type")]
    kind: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<&'a str>,
    retryable: bool,
    advice: String,
    /// What is known of an answer that cannot be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Lost>,
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    code: &'a str,
    message: String,
}

#[derive(Serialize)]
struct Lost {
    status: u16,
    length: u64,
    digest: String,
}

impl<'a> Document<'a> {
    pub(super) fn of(problem: &'a Problem, marks: &Marks) -> Self {
        let entry = problem.code.entry();
        let detail = problem.detail.as_str();
        let advice = problem.advice.map_or_else(|| advice(entry, marks.operation), str::to_owned);
        let message = format!("{}. {advice}", detail.trim_end_matches('.'));
        Self {
            kind: format!("/.oncegate/problems/{}", entry.code),
            title: entry.title,
            status: problem.status,
            detail,
            instance: marks.operation.filter(|_| entry.look_up).map(address_of),
            code: entry.code,
            operation: marks.operation.map(|id| id.to_string()),
            execution: marks.execution.map(Execution::as_str),
            attempts: marks.execution.map(|_| marks.attempts),
            stop: marks.stop.map(Stop::as_str),
            retryable: problem.retryable,
            advice,
            result: problem.lost.as_ref().map(Lost::of),
            error: ErrorObject { kind: "oncegate", code: entry.code, message },
        }
    }
}

/// What is said of a call whose answer comes later.
#[derive(Serialize)]
pub(super) struct Accepted<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    execution: &'static str,
    pub(super) location: String,
    next: String,
}

impl<'a> Accepted<'a> {
    pub(super) fn of(marks: &'a Marks) -> Self {
        let location = marks.operation.map(address_of).unwrap_or_default();
        Self {
            id: marks.operation.map(|id| id.to_string()),
            key: marks.key.as_ref().map(|(key, _)| key.as_str()),
            execution: Execution::InProgress.as_str(),
            next: format!("Ask GET {location}?wait=10s how it stands, and GET {location}/receipt for the answer."),
            location,
        }
    }
}

fn advice(entry: &Entry, operation: Option<OperationId>) -> String {
    match operation.filter(|_| entry.look_up) {
        Some(id) => format!("{} GET {} tells what happened.", entry.advice, address_of(id)),
        None => entry.advice.to_owned(),
    }
}

impl Lost {
    fn of(answer: &LostAnswer) -> Self {
        Self { status: answer.status, length: answer.length, digest: hex(&answer.digest) }
    }
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
        text
    })
}

/// Where an operation can be looked up.
pub(super) fn address_of(operation: OperationId) -> String {
    format!("/.oncegate/operations/{operation}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::problem::Code;
    use crate::server::respond;

    fn operation() -> OperationId {
        OperationId::of(&[0; 32], "payments", "k-1", None)
    }

    fn marks() -> Marks {
        Marks { operation: Some(operation()), execution: Some(Execution::Executed), attempts: 2, ..Marks::default() }
    }

    fn written(problem: &Problem, marks: &Marks) -> Value {
        serde_json::to_value(Document::of(problem, marks)).unwrap()
    }

    #[test]
    fn a_problem_tells_the_same_to_people_tools_and_models() {
        let marks = Marks { stop: Some(Stop::Exhausted), execution: Some(Execution::Unknown), ..marks() };
        let told = Problem::new(Code::OutcomeUnknown, "312 bytes were written.").with_status(504);
        let address = address_of(operation());
        let advice = format!("{} GET {address} tells what happened.", Code::OutcomeUnknown.entry().advice);
        let expected = json!({
            "type": "/.oncegate/problems/outcome-unknown",
            "title": "Nobody can say whether the call ran",
            "status": 504,
            "detail": "312 bytes were written.",
            "instance": address,
            "code": "outcome-unknown",
            "operation": operation().to_string(),
            "execution": "unknown",
            "attempts": 2,
            "stop": "exhausted",
            "retryable": false,
            "advice": advice,
            "error": {
                "type": "oncegate",
                "code": "outcome-unknown",
                "message": format!("312 bytes were written. {advice}"),
            },
        });
        assert_eq!(written(&told, &marks), expected);
    }

    #[test]
    fn a_problem_says_of_itself_what_its_lines_say_to_sdks() {
        for code in Code::ALL {
            let response = respond::problem(Problem::new(code, "so"), &Marks::default());
            let stops = response.headers().contains_key("x-should-retry");
            assert_eq!(code.entry().retryable, !stops, "{code:?}");
        }
    }

    #[test]
    fn a_lost_answer_is_described() {
        let lost = LostAnswer { status: 201, length: 9, digest: [0xab; 32] };
        let told = Problem { lost: Some(lost), ..Problem::new(Code::ResultUnavailable, "so") };
        let document = written(&told, &marks());
        assert_eq!(document["result"], json!({ "status": 201, "length": 9, "digest": "ab".repeat(32) }));
    }

    #[test]
    fn without_an_operation_nothing_is_said_about_one() {
        let document = written(&Problem::new(Code::NoRoute, "so"), &Marks::default());
        let names: Vec<_> = document.as_object().unwrap().keys().cloned().collect();
        assert_eq!(names, ["advice", "code", "detail", "error", "retryable", "status", "title", "type"]);
    }
}
