//! The small grammars of single values: names, paths, pointers, networks.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use http::{HeaderName, HeaderValue, Method};

use super::rules::{DuplicateWindow, Ignored, Ingredient, OnChangedPayload};
use super::tree::PEM;
use super::units::{self, Accepts};
use super::words::word;
use super::{Callers, Network};
use crate::operation::payload::Pointer;

/// Headers that frame a message or belong to one connection: none of them can carry a value of ours.
const CONNECTION_HEADERS: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Most names are labels and parts of stored keys: visible, and nothing that has to be escaped there.
pub(super) fn name(text: &str) -> Result<String, Accepts> {
    const LONGEST: usize = 128;
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'{' | b'}');
    if text.is_empty() || text.len() > LONGEST || !text.bytes().all(plain) {
        return Err("1 to 128 visible ASCII characters without quotes, backslash and braces".into());
    }
    Ok(text.to_owned())
}

pub(super) fn namespace(text: &str) -> Result<String, Accepts> {
    const LONGEST: usize = 64;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if text.is_empty() || text.len() > LONGEST || !text.bytes().all(plain) {
        return Err("1 to 64 letters, digits, \".\", \"_\" or \"-\"".into());
    }
    Ok(text.to_owned())
}

pub(super) fn socket(text: &str) -> Result<SocketAddr, Accepts> {
    text.parse().map_err(|_| "an address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"".into())
}

/// `10.0.0.0/8`, or one address.
pub(super) fn network(text: &str) -> Result<Network, Accepts> {
    let accepts = || Accepts::from("a network such as \"10.0.0.0/8\", or an address");
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| accepts())?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| accepts())?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    match prefix.unwrap_or(width) {
        prefix if prefix <= width => Ok(Network { address, prefix }),
        _ => Err(accepts()),
    }
}

/// `none`, `credential`, `header:NAME` or `token`; the tokens are added by whoever reads them.
pub(super) fn scope(text: &str) -> Result<Callers, Accepts> {
    match (text, text.strip_prefix("header:")) {
        ("none", _) => Ok(Callers::None),
        ("credential", _) => Ok(Callers::Credential),
        ("token", _) => Ok(Callers::Token(Vec::new())),
        (_, Some(name)) => header(name).map(Callers::Header),
        (_, None) => Err("\"none\", \"credential\", \"header:NAME\" or \"token\"".into()),
    }
}

pub(super) fn header(text: &str) -> Result<HeaderName, Accepts> {
    let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| Accepts::from("the name of a header"))?;
    if CONNECTION_HEADERS.contains(&name.as_str()) {
        return Err("a header that is not about the connection or the length of the message".into());
    }
    if name.as_str().starts_with("oncegate-") {
        return Err("another header: those that begin with Oncegate- are the gateway's own".into());
    }
    Ok(name)
}

/// A header name, or `off`.
pub(super) fn header_or_off(text: &str) -> Result<Option<HeaderName>, Accepts> {
    if text == "off" { Ok(None) } else { header(text).map(Some) }
}

pub(super) fn header_value(text: &str) -> Result<HeaderValue, Accepts> {
    let visible = || Accepts::from("visible ASCII characters and single spaces between them");
    if text.is_empty() || text.trim() != text || !text.is_ascii() {
        return Err(visible());
    }
    HeaderValue::from_str(text).map_err(|_| visible())
}

/// The path of a PEM file. What stands in such a file is often a secret, and is not told again in a refusal.
pub(super) fn pem_path(text: &str) -> Result<PathBuf, Accepts> {
    if text.contains(PEM) {
        return Err("the path of a PEM file, not what is in it".into());
    }
    Ok(PathBuf::from(text))
}

pub(super) fn method(text: &str) -> Result<Method, Accepts> {
    match Method::from_bytes(text.as_bytes()) {
        Ok(Method::CONNECT | Method::TRACE) => Err("another method: CONNECT and TRACE are never passed on".into()),
        Ok(method) if !text.bytes().any(|byte| byte.is_ascii_lowercase()) => Ok(method),
        Ok(_) => Err("a method in upper case, such as \"POST\": methods are compared with case".into()),
        Err(_) => Err("an HTTP method, such as \"POST\"".into()),
    }
}

/// A host name without a port.
pub(super) fn host(text: &str) -> Result<String, Accepts> {
    let name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_address = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
    if !is_address && (text.is_empty() || !text.bytes().all(name)) {
        return Err("a host without a port, such as \"tools.internal\"".into());
    }
    Ok(text.to_ascii_lowercase())
}

/// A path as it comes in a target: raw, absolute, without dot segments, query and fragment.
pub(super) fn path(text: &str) -> Result<String, Accepts> {
    if !text.starts_with('/') {
        return Err("a path that begins with \"/\"".into());
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'\\')) {
        return Err(
            "a path of visible ASCII characters without \"?\", \"#\" and backslash; encode others as %XX".into()
        );
    }
    if text.split('/').any(is_dot_segment) {
        return Err("a path without \".\" and \"..\" segments".into());
    }
    Ok(text.to_owned())
}

/// A path that matches by whole segments; `/` matches everything.
pub(super) fn match_path(text: &str) -> Result<String, Accepts> {
    let path = path(text)?;
    if path.len() > 1 && path.ends_with('/') {
        return Err("a path without \"/\" at its end: \"/a\" matches \"/a\" and all that begins with \"/a/\"".into());
    }
    if let Some(prefix) = before_wildcard(&path) {
        return Err(format!(
            "a prefix without `*`: \"{prefix}\" takes all that begins with \"{}/\"",
            prefix.trim_end_matches('/')
        )
        .into());
    }
    Ok(path)
}

/// What stands before the first segment that ends as a wildcard would: taken as it is, it would match next to nothing.
fn before_wildcard(path: &str) -> Option<&str> {
    let begin = path.match_indices('/').map(|(at, _)| at);
    let mut segments = begin.zip(path.split('/').skip(1));
    let (at, _) = segments.find(|(_, segment)| segment.ends_with('*'))?;
    Some(path.get(..at).filter(|prefix| !prefix.is_empty()).unwrap_or("/"))
}

/// The path of an upstream's URL, without a slash at its end.
pub(super) fn base_path(text: &str) -> Result<String, Accepts> {
    upstream_path(text).map(|path| path.trim_end_matches('/').to_owned())
}

/// What a matched prefix becomes. Two slashes at the front would read as a host.
pub(super) fn upstream_path(text: &str) -> Result<String, Accepts> {
    if text.starts_with("//") {
        return Err("a path that begins with one \"/\"".into());
    }
    path(text)
}

fn is_dot_segment(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    plain == "." || plain == ".."
}

/// RFC 6901; the empty pointer is the whole document and names no field.
pub(super) fn pointer(text: &str) -> Result<Pointer, Accepts> {
    text.parse().map_err(|_| {
        "a JSON pointer such as \"/order/id\", with \"~1\" for a \"/\" in a name and \"~0\" for \"~\"".into()
    })
}

/// A JSON pointer, or the name of a form field.
pub(super) fn field(text: &str) -> Result<Ignored, Accepts> {
    match text {
        "" => Err("a JSON pointer such as \"/reason\", or a form field such as \"metadata[reason]\"".into()),
        text if text.starts_with('/') => pointer(text).map(Ignored::Pointer),
        text if text.starts_with('$') => {
            Err("a JSON pointer, such as \"/reason\" for what JSONPath calls $.reason".into())
        }
        text => Ok(Ignored::Field(text.to_owned())),
    }
}

pub(super) fn ingredient(text: &str) -> Result<Ingredient, Accepts> {
    let accepts =
        "\"session\", \"step\", \"payload\", \"header:NAME\", \"json:/pointer\", \"form:field\" or \"query:name\"";
    text.parse().map_err(|_| accepts.into())
}

pub(super) fn on_changed_payload(text: &str) -> Result<OnChangedPayload, Accepts> {
    if text == "hold" {
        return Err("\"run\" or \"reject\"; \"hold\" comes with approvals, which are not in this version".into());
    }
    word(text)
}

pub(super) fn duplicate_window(text: &str) -> Result<DuplicateWindow, Accepts> {
    match text {
        "off" => Ok(DuplicateWindow::Off),
        "unresolved" => Ok(DuplicateWindow::Unresolved),
        text => units::duration(text)
            .map(DuplicateWindow::For)
            .map_err(|accepts| format!("\"off\", \"unresolved\" or {accepts}").into()),
    }
}

pub(super) fn level(text: &str) -> Result<tracing::Level, Accepts> {
    let accepts = || Accepts::from("\"error\", \"warn\", \"info\", \"debug\" or \"trace\"");
    let is_word = text.bytes().all(|byte| byte.is_ascii_lowercase());
    if is_word { text.parse().map_err(|_| accepts()) } else { Err(accepts()) }
}

/// A token of a caller: what can stand behind `Bearer `.
pub(super) fn token(text: &str) -> Result<String, Accepts> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("visible ASCII characters without spaces".into());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_raw_and_absolute() {
        for right in ["/", "/a", "/a/b%20c", "/a//b", "/.well-known", "/a/...", "/%2e2"] {
            assert_eq!(match_path(right), Ok(right.to_owned()));
        }
        for wrong in ["", "a", "/a/", "/a?b", "/a#b", "/a b", "/.", "/a/../b", "/%2E%2e/a", "/.%2e", "/\u{e4}", "/a\\b"]
        {
            assert!(match_path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pointers_escape_as_in_rfc_6901() {
        for right in ["/", "/a/b", "/a~1b", "/~0", "/a//b"] {
            assert_eq!(pointer(right).unwrap().to_string(), right);
        }
        for wrong in ["", "a", "/~", "/~2", "/a~"] {
            assert!(pointer(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ingredients() {
        assert_eq!(ingredient("header:X-Tenant"), Ok(Ingredient::Header(HeaderName::from_static("x-tenant"))));
        assert_eq!(ingredient("json:/id"), Ok(Ingredient::Json("/id".parse().unwrap())));
        for wrong in ["", "user", "json:id", "form:", "query:", "header:a b", "Session"] {
            assert!(ingredient(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn networks() {
        assert_eq!(network("10.0.0.0/8"), Ok(Network { address: [10, 0, 0, 0].into(), prefix: 8 }));
        assert_eq!(network("::1").unwrap().prefix, 128);
        for wrong in ["", "10.0.0.0/33", "10.0/8", "10.0.0.0/", "10.0.0.0/-1", "host"] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn headers_about_the_connection_cannot_be_set() {
        for wrong in ["Host", "content-length", "Transfer-Encoding", "Oncegate-Operation", "a b", ""] {
            assert!(header(wrong).is_err(), "{wrong}");
        }
    }
}
