//! JSON pointers (RFC 6901).

use std::fmt;
use std::str::FromStr;

/// A place in a JSON body. The pointer to the whole body is none: there it is never what was meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

impl Pointer {
    /// Member names and array indexes from the outside in, unescaped; at least one.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The text is no JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a JSON pointer begins with `/`, and `~` in it is written `~0` and `/` is written `~1`")]
pub struct NotAPointer;

impl FromStr for Pointer {
    type Err = NotAPointer;

    fn from_str(text: &str) -> Result<Self, NotAPointer> {
        let tokens = text.strip_prefix('/').ok_or(NotAPointer)?.split('/').map(unescape).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), tokens })
    }
}

/// The index that a token names in an array; leading zeros name none.
pub(crate) fn index(token: &str) -> Option<usize> {
    let plain = token == "0" || !token.starts_with(['0', '+']);
    plain.then(|| token.parse().ok())?
}

fn unescape(token: &str) -> Result<String, NotAPointer> {
    let mut plain = String::with_capacity(token.len());
    let mut letters = token.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '~' => match letters.next() {
                Some('0') => '~',
                Some('1') => '/',
                Some(_) | None => return Err(NotAPointer),
            },
            letter => letter,
        });
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_unescaped_once() {
        let pointer: Pointer = "/a~1b/m~0n/~01//0".parse().unwrap();
        assert_eq!(pointer.tokens(), ["a/b", "m~n", "~1", "", "0"]);
        assert_eq!(pointer.to_string(), "/a~1b/m~0n/~01//0");
    }

    #[test]
    fn other_texts_are_no_pointers() {
        for text in ["", "reason", "/a~", "/a~2", "#/a"] {
            assert_eq!(text.parse::<Pointer>(), Err(NotAPointer), "{text}");
        }
    }

    #[test]
    fn only_plain_numbers_are_indexes() {
        assert_eq!(index("0"), Some(0));
        assert_eq!(index("10"), Some(10));
        for token in ["", "-", "-1", "+1", "01", "00", "1e0", "99999999999999999999999"] {
            assert_eq!(index(token), None, "{token}");
        }
    }
}
