//! The refusals that hyper writes by itself, before there is a request to answer, and what goes out in their place.

use bytes::Bytes;

use crate::engine::answer::Marks;
use crate::engine::problem::{Code, Problem};
use crate::server::body::ResponseBody;
use crate::server::framing::{Framing, Verdict};
use crate::server::respond;

/// How hyper's refusals begin. No head of a service's answer does: each has a header of ours before these.
const REFUSALS: [(u16, &[u8]); 3] = [
    (400, b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n"),
    (414, b"HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-length: 0\r\n"),
    (431, b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n"),
];

const NOT_HTTP: &str = "The head of the request is not HTTP/1.1: a name, a value or the target has a character that \
    must not be there, a line is folded or has no colon, Content-Length is not one number, or Transfer-Encoding is not \
    `chunked` in HTTP/1.1.";
const LONG_TARGET: &str = "The target is longer than the gateway reads (server.max_uri_bytes).";
const LONG_HEAD: &str = "There are more than 100 headers, or more bytes of them than the gateway reads \
    (server.max_header_bytes).";

/// A problem document with the same status, if what is to be written is a refusal of hyper's own. A body may look like
/// one: the caller knows that none is under way.
pub fn explained(written: &[u8], framing: &Framing, verdict: &Verdict) -> Option<Bytes> {
    let (status, end) = REFUSALS.into_iter().find_map(|(status, text)| Some((status, written.strip_prefix(text)?)))?;
    if !is_date_alone(end) {
        return None;
    }
    let (status, detail) = match (verdict.on(u64::MAX), status) {
        (Some(ambiguity), _) => (400, ambiguity.as_str()),
        (None, 400) => (400, NOT_HTTP),
        (None, status) if status == 414 || framing.is_mostly_target() => (414, LONG_TARGET),
        (None, _) => (431, LONG_HEAD),
    };
    let problem = Problem::new(Code::InvalidRequest, detail).with_status(status);
    let (head, body) = respond::problem(problem, &Marks::default()).into_parts();
    let ResponseBody::Whole(body) = body else { return None };
    let mut text = format!("HTTP/1.1 {}\r\ncontent-length: {}\r\n", head.status, body.len()).into_bytes();
    for (name, value) in &head.headers {
        text.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    text.extend_from_slice(end);
    text.extend_from_slice(&body);
    Some(text.into())
}

/// The end of the head as hyper writes it, with nothing behind it.
fn is_date_alone(end: &[u8]) -> bool {
    let date = end.strip_prefix(b"date: ").and_then(|rest| rest.strip_suffix(b"\r\n\r\n"));
    date.is_some_and(|date| !date.contains(&b'\n'))
}
