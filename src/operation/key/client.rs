//! The key that a client sends, bare or as an sf-string (draft-ietf-httpapi-idempotency-key-header-07, RFC 9651).

use http::{HeaderMap, HeaderName, HeaderValue};

/// Characters of a key, after unquoting.
const LONGEST: usize = 255;

/// A client's own key. `abc` and `"abc"` are the same key and differ only in what goes upstream.
#[derive(Clone, Debug)]
pub struct ClientKey {
    text: String,
    verbatim: HeaderValue,
}

impl ClientKey {
    /// Reads the one line of `name`; `None` where there is no such line.
    ///
    /// A comma or semicolon is refused in a bare key, where it cannot be told from a list or a parameter, and is an
    /// ordinary character in a quoted one.
    ///
    /// # Errors
    /// The line is not exactly one key; every kind says what to send instead.
    pub fn parse(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Self>, KeyError> {
        if headers.keys().any(|other| is_twin(other, name)) {
            return Err(KeyError::Twin { name: name.clone() });
        }
        let mut lines = headers.get_all(name).iter();
        let Some(verbatim) = lines.next() else { return Ok(None) };
        if lines.next().is_some() {
            return Err(KeyError::SeveralLines);
        }
        let text = match verbatim.as_bytes() {
            [b'"', quoted @ ..] => unquote(quoted)?,
            bare => accept_bare(bare)?,
        };
        match text.len() {
            0 => Err(KeyError::Empty),
            1..=LONGEST => Ok(Some(Self { text, verbatim: verbatim.clone() })),
            length => Err(KeyError::TooLong { length }),
        }
    }

    /// The key itself, unquoted.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The header value byte for byte as it came, for `forward = "verbatim"`.
    pub fn verbatim(&self) -> &HeaderValue {
        &self.verbatim
    }

    /// An SDK made it up for one call: it names that call's own retries and nothing that a repeat by the agent shares.
    pub fn is_made_by_sdk(&self) -> bool {
        self.text.starts_with("stripe-node-retry-")
            || self.text.strip_prefix("stainless-").is_some_and(|rest| rest.contains("-retry-"))
    }
}

/// Why a key header is refused. The text is the `detail` of a `key-invalid` problem and never repeats the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("the key header came in several lines; send one line with one key")]
    SeveralLines,
    /// A service that reads headers through CGI takes the twin for the real one.
    #[error(
        "a header that differs from `{name}` only in `_` and `-` was sent; some services read it as the key, so send `{name}` alone"
    )]
    Twin { name: HeaderName },
    #[error("the key is empty; send 1 to 255 visible ASCII characters, or leave the header out")]
    Empty,
    #[error("the key has {length} characters; the most is 255, so send a hash of it")]
    TooLong { length: usize },
    #[error("the key has a comma and cannot be told from a list; send one key, or put it in double quotes")]
    List,
    #[error(
        "the key has a semicolon and cannot be told from a parameter; send a key without parameters, or put it in double quotes"
    )]
    Parameters,
    #[error("character {place} of the key header is not visible ASCII (0x21 to 0x7e); spaces are refused too")]
    NotVisible { place: usize },
    #[error("the key begins with a double quote, so it has to end with one; inside, only \\\" and \\\\ are escapes")]
    Quoting,
}

fn is_twin(other: &HeaderName, name: &HeaderName) -> bool {
    let fold = |byte: &u8| if *byte == b'_' { b'-' } else { *byte };
    let (left, right) = (other.as_str().as_bytes(), name.as_str().as_bytes());
    left.len() == right.len() && left != right && left.iter().map(fold).eq(right.iter().map(fold))
}

fn accept_bare(bare: &[u8]) -> Result<String, KeyError> {
    let mut text = String::with_capacity(bare.len());
    for (at, byte) in bare.iter().enumerate() {
        match byte {
            b',' => return Err(KeyError::List),
            b';' => return Err(KeyError::Parameters),
            byte => text.push(visible(*byte, at + 1)?),
        }
    }
    Ok(text)
}

/// `quoted` is what follows the opening quote, so its first byte is character 2 of the header.
fn unquote(quoted: &[u8]) -> Result<String, KeyError> {
    let mut text = String::with_capacity(quoted.len());
    let mut bytes = quoted.iter().zip(2usize..);
    while let Some((byte, place)) = bytes.next() {
        match byte {
            b'"' => return end_of_quoted(bytes.next()).map(|()| text),
            b'\\' => match bytes.next() {
                Some((escaped @ (b'"' | b'\\'), _)) => text.push(char::from(*escaped)),
                Some(_) | None => return Err(KeyError::Quoting),
            },
            byte => text.push(visible(*byte, place)?),
        }
    }
    Err(KeyError::Quoting)
}

fn end_of_quoted(next: Option<(&u8, usize)>) -> Result<(), KeyError> {
    match next {
        None => Ok(()),
        Some((b',', _)) => Err(KeyError::List),
        Some((b';', _)) => Err(KeyError::Parameters),
        Some(_) => Err(KeyError::Quoting),
    }
}

fn visible(byte: u8, place: usize) -> Result<char, KeyError> {
    if byte.is_ascii_graphic() { Ok(char::from(byte)) } else { Err(KeyError::NotVisible { place }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: HeaderName = HeaderName::from_static("idempotency-key");

    fn parse(lines: &[&[u8]]) -> Result<Option<ClientKey>, KeyError> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(NAME, HeaderValue::from_bytes(line).unwrap());
        }
        ClientKey::parse(&headers, &NAME)
    }

    #[test]
    fn bare_and_quoted_are_one_key_and_keep_their_bytes() {
        for line in [&b"abc"[..], b"\"abc\""] {
            let key = parse(&[line]).unwrap().unwrap();
            assert_eq!(key.as_str(), "abc");
            assert_eq!(key.verbatim().as_bytes(), line);
        }
        assert!(parse(&[]).unwrap().is_none());
    }

    #[test]
    fn a_twin_with_underscores_is_refused_with_or_without_the_real_one() {
        for twin in ["idempotency_key", "Idempotency_Key"] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_bytes(twin.as_bytes()).unwrap(), HeaderValue::from_static("abc"));
            assert_eq!(ClientKey::parse(&headers, &NAME).unwrap_err(), KeyError::Twin { name: NAME });
            headers.insert(NAME, HeaderValue::from_static("abc"));
            assert_eq!(ClientKey::parse(&headers, &NAME).unwrap_err(), KeyError::Twin { name: NAME });
        }
    }

    #[test]
    fn keys_that_an_sdk_made_up_are_known() {
        for (line, made_up) in [
            ("stripe-node-retry-7f1c", true),
            ("stainless-node-retry-7f1c", true),
            ("stainless-node", false),
            ("my-stripe-node-retry-7f1c", false),
            ("order-7", false),
        ] {
            assert_eq!(parse(&[line.as_bytes()]).unwrap().unwrap().is_made_by_sdk(), made_up, "{line}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_key() {
        for line in [&b"secret,secret"[..], b"\"secret", b"secret secret", b"secret;a=1"] {
            let detail = parse(&[line]).unwrap_err().to_string();
            assert!(!detail.contains("secret"), "{detail}");
        }
    }
}
