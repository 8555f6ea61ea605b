//! A client that knows one thing: to repeat the same call with the same key until it has a final answer.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::Repeat;
use crate::support::client::{Answer, Call};

/// Between two tries of one call. Impatient: more tries, more races.
const PAUSE: Duration = Duration::from_millis(20);

/// What an answer means to somebody who only wants to know what became of his call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It ran, this is its answer, and it is kept.
    Receipt,
    /// Nobody knows whether it ran.
    Unknown,
    /// Ask again.
    NotYet,
}

pub fn meaning(answer: &Answer) -> Meaning {
    match (answer.status, answer.header("Oncegate-Source"), answer.header("Oncegate-Receipt")) {
        (201, Some("upstream"), None) => Meaning::Receipt,
        (_, Some("gateway"), _) => match answer.json() {
            // Where a repeat does no harm, its advice is to send the same call again.
            problem if problem["code"] == "outcome-unknown" && problem["retryable"] == false => Meaning::Unknown,
            _ => Meaning::NotYet,
        },
        _ => Meaning::NotYet,
    }
}

/// Whether two receipts are the same to a client: status, a header that differs from send to send, body.
pub fn are_same(one: &Answer, other: &Answer) -> bool {
    (one.status, one.header("X-Send"), &one.body) == (other.status, other.header("X-Send"), &other.body)
}

/// The charge of `key`, asked for once.
///
/// # Errors
/// There was no whole answer within `patience`.
pub fn charge(at: SocketAddr, key: &str, patience: Duration) -> io::Result<Answer> {
    call(at, key).try_send(patience)
}

/// The charge of `key`, not sent yet.
pub fn call(at: SocketAddr, key: &str) -> Call {
    Call::new(at, "POST", Repeat::of(key).path()).key(key).json(format!(r#"{{"for": "{key}"}}"#))
}

/// Repeats the charge, each time at the gateway that `place` names, until the answer is final.
///
/// # Errors
/// It was not before `until`; the last answer says why.
pub fn charge_until_final(
    place: impl Fn() -> SocketAddr,
    key: &str,
    patience: Duration,
    until: Instant,
) -> Result<Answer, String> {
    loop {
        match charge(place(), key, patience) {
            Ok(answer) if meaning(&answer) != Meaning::NotYet => return Ok(answer),
            other if Instant::now() >= until => return Err(format!("no final answer; the last: {other:?}")),
            _ => thread::sleep(PAUSE),
        }
    }
}
