//! What the headers say about a body: media type, its parameters, its encoding.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};

use super::Compare;

/// `type/subtype` in lower case without parameters; empty without a `Content-Type`. Several lines, which nobody should
/// send, are joined by commas.
pub fn media_type(headers: &HeaderMap) -> Vec<u8> {
    let lines: Vec<_> = headers.get_all(CONTENT_TYPE).iter().map(|line| essence(line.as_bytes())).collect();
    lines.join(&b","[..])
}

/// The value of the one `Content-Type` line; empty where there is none, or more than one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentType<'a>(&'a [u8]);

impl<'a> ContentType<'a> {
    pub(super) fn of(headers: &'a HeaderMap) -> Self {
        let mut lines = headers.get_all(CONTENT_TYPE).iter();
        match (lines.next(), lines.next()) {
            (Some(only), None) => Self(only.as_bytes()),
            (None | Some(_), _) => Self(b""),
        }
    }

    /// How a body of this type is compared; `None` means by its bytes.
    pub(super) fn comparison(self) -> Option<Compare> {
        match essence(self.0).as_slice() {
            b"application/json" => Some(Compare::Json),
            b"application/x-www-form-urlencoded" => Some(Compare::Form),
            b"multipart/form-data" => Some(Compare::Multipart),
            other => other.ends_with(b"+json").then_some(Compare::Json),
        }
    }

    pub(super) fn parameter(self, name: &str) -> Option<Vec<u8>> {
        parameter(self.0, name)
    }
}

/// Whether a body may be JSON: one that says so, or that does not say what it is.
pub fn may_be_json(headers: &HeaderMap) -> bool {
    let essence = essence(ContentType::of(headers).0);
    matches!(essence.as_slice(), b"" | b"text/plain") || essence.ends_with(b"/json") || essence.ends_with(b"+json")
}

/// Whether the bytes are not the content itself.
pub fn is_encoded(headers: &HeaderMap) -> bool {
    let is_identity = |line: &HeaderValue| line.as_bytes().eq_ignore_ascii_case(b"identity");
    !headers.get_all(CONTENT_ENCODING).iter().all(is_identity)
}

/// The parameter `name` of a header value such as `form-data; name="a"`; `None` where it is absent, given twice or
/// malformed.
pub(super) fn parameter(value: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut rest = value.get(value.iter().position(|byte| *byte == b';')?..)?;
    let mut found = None;
    while let Some(after) = rest.strip_prefix(b";") {
        let after = after.trim_ascii_start();
        let equals = after.iter().position(|byte| *byte == b'=')?;
        let (its_name, its_value) = (after.get(..equals)?, after.get(equals + 1..)?);
        let (text, tail) = parameter_value(its_value)?;
        if its_name.eq_ignore_ascii_case(name.as_bytes()) && found.replace(text).is_some() {
            return None;
        }
        rest = tail.trim_ascii_start();
    }
    if rest.is_empty() { found } else { None }
}

fn parameter_value(value: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    if let Some(quoted) = value.strip_prefix(b"\"") {
        return unquote(quoted);
    }
    let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
    let (token, tail) = value.split_at_checked(end)?;
    let token = token.trim_ascii_end();
    let plain = !token.is_empty() && !token.iter().any(|byte| byte.is_ascii_whitespace() || *byte == b'"');
    plain.then(|| (token.to_vec(), tail))
}

fn unquote(quoted: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut text = Vec::new();
    let mut rest = quoted;
    loop {
        rest = match rest {
            [b'"', tail @ ..] => return Some((text, tail)),
            [b'\\', byte, tail @ ..] | [byte, tail @ ..] => {
                text.push(*byte);
                tail
            }
            [] => return None,
        };
    }
}

fn essence(content_type: &[u8]) -> Vec<u8> {
    let end = content_type.iter().position(|byte| *byte == b';').unwrap_or(content_type.len());
    content_type.get(..end).unwrap_or(content_type).trim_ascii().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_quoted_and_bare() {
        for value in [
            &b"multipart/form-data; boundary=x1"[..],
            b"multipart/form-data;charset=utf-8;BOUNDARY=\"x1\"",
            b"multipart/form-data; a=\"; boundary=no\\\"\" ; boundary=x1 ",
        ] {
            assert_eq!(parameter(value, "boundary").unwrap(), b"x1");
        }
    }

    #[test]
    fn what_is_unclear_is_no_parameter() {
        for value in [
            &b"multipart/form-data"[..],
            b"multipart/form-data; boundary",
            b"multipart/form-data; boundary=",
            b"multipart/form-data; boundary=a; boundary=b",
            b"multipart/form-data; boundary=\"a",
            b"multipart/form-data; boundary=\"a\"b",
            b"multipart/form-data; boundary=a b",
            b"",
        ] {
            assert_eq!(parameter(value, "boundary"), None, "{}", value.escape_ascii());
        }
    }

    #[test]
    fn the_media_type_goes_without_case_and_parameters() {
        let mut headers = HeaderMap::new();
        assert_eq!(media_type(&headers), b"");
        headers.append(CONTENT_TYPE, HeaderValue::from_static("Application/JSON ; charset=utf-8"));
        assert_eq!(media_type(&headers), b"application/json");
        headers.append(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        assert_eq!(media_type(&headers), b"application/json,text/plain");
        assert_eq!(ContentType::of(&headers).comparison(), None);
    }

    #[test]
    fn what_is_clearly_something_else_is_no_json() {
        let may_be = |value| may_be_json(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]));
        for value in ["application/json", "text/JSON; charset=utf-8", "application/problem+json", "text/plain", ""] {
            assert!(may_be(value), "{value}");
        }
        for value in ["text/html", "text/event-stream", "application/x-ndjson", "application/json-seq", "json"] {
            assert!(!may_be(value), "{value}");
        }
        assert!(may_be_json(&HeaderMap::new()));
    }
}
