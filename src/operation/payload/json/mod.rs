//! JSON bodies by their members (RFC 8259): read strictly, written in one way.
//!
//! A reader of our own, because the common ones lose what counts here: how a number was written, that a member came
//! twice, or the difference between a number and an object that stands for one.

mod decimal;

use std::borrow::Cow;

use super::Sink;
use super::pointer::{self, Pointer};
use decimal::Decimal;

/// Arrays and objects within each other. Deeper bodies are bytes, for reading and writing go down by recursion.
const DEEPEST: usize = 128;

/// A JSON value that borrows from its body what was written plainly.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Number(Decimal<'a>),
    String(Cow<'a, str>),
    Array(Vec<Value<'a>>),
    /// Sorted by the code points of the names, each name once.
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
}

/// `None` unless `body` is one JSON text in UTF-8 without a member named twice, a lone surrogate, an exponent beyond
/// 18 digits, or more than 128 levels.
pub fn read(body: &[u8]) -> Option<Value<'_>> {
    let mut reader = Reader { text: std::str::from_utf8(body).ok()?, at: 0, depth: 0 };
    let value = reader.value()?;
    reader.skip_space();
    reader.peek().is_none().then_some(value)
}

impl Value<'_> {
    /// The value at `pointer`.
    pub fn at(&self, pointer: &Pointer) -> Option<&Self> {
        pointer.tokens().iter().try_fold(self, |value, token| match value {
            Value::Object(_) => value.member(token),
            Value::Array(items) => items.get(pointer::index(token)?),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        })
    }

    /// The member of that name, if it is an object.
    pub fn member(&self, name: &str) -> Option<&Self> {
        match self {
            Value::Object(members) => {
                let at = members.binary_search_by(|(known, _)| known.as_ref().cmp(name)).ok()?;
                members.get(at).map(|(_, member)| member)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
        }
    }

    /// What it says, if it is a string.
    pub fn text(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// The canonical text of the whole value.
    pub fn canonical(&self) -> Vec<u8> {
        let mut text = Vec::new();
        self.write(&[], &mut text);
        text
    }

    pub(crate) fn is_blank(&self) -> bool {
        match self {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => false,
        }
    }

    /// Writes the canonical text without what the `ignored` pointers name. They speak of the body as it came: leaving
    /// out one item of an array does not move the others for the next pointer.
    pub(crate) fn write(&self, ignored: &[&[String]], sink: &mut impl Sink) {
        match self {
            Value::Null => sink.put(b"null"),
            Value::Bool(true) => sink.put(b"true"),
            Value::Bool(false) => sink.put(b"false"),
            Value::Number(number) => number.write(sink),
            Value::String(text) => write_string(text, sink),
            Value::Array(items) => write_array(items, ignored, sink),
            Value::Object(members) => write_object(members, ignored, sink),
        }
    }
}

fn write_array(items: &[Value<'_>], ignored: &[&[String]], sink: &mut impl Sink) {
    let mut open = &b"["[..];
    for (place, item) in items.iter().enumerate() {
        let below = below(ignored, |token| pointer::index(token) == Some(place));
        if below.iter().all(|tokens| !tokens.is_empty()) {
            sink.put(std::mem::replace(&mut open, b","));
            item.write(&below, sink);
        }
    }
    sink.put(if open == b"[" { b"[]" } else { b"]" });
}

fn write_object(members: &[(Cow<'_, str>, Value<'_>)], ignored: &[&[String]], sink: &mut impl Sink) {
    let mut open = &b"{"[..];
    for (name, member) in members {
        let below = below(ignored, |token| token == name);
        if below.iter().all(|tokens| !tokens.is_empty()) {
            sink.put(std::mem::replace(&mut open, b","));
            write_string(name, sink);
            sink.put(b":");
            member.write(&below, sink);
        }
    }
    sink.put(if open == b"{" { b"{}" } else { b"}" });
}

/// What is left of the pointers that go through the member that `leads_here` knows; an empty one names it.
fn below<'i>(ignored: &[&'i [String]], leads_here: impl Fn(&str) -> bool) -> Vec<&'i [String]> {
    let split = ignored.iter().filter_map(|tokens| tokens.split_first());
    split.filter(|(token, _)| leads_here(token)).map(|(_, rest)| rest).collect()
}

/// A string with the shortest escapes, and those only where JSON asks for one (as in RFC 8785).
pub(crate) fn write_string(text: &str, sink: &mut impl Sink) {
    sink.put(b"\"");
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)) {
        let (plain, special) = rest.split_at(at);
        sink.put(plain);
        rest = match special {
            [byte, tail @ ..] => {
                write_escape(*byte, sink);
                tail
            }
            [] => special,
        };
    }
    sink.put(rest);
    sink.put(b"\"");
}

fn write_escape(byte: u8, sink: &mut impl Sink) {
    match byte {
        b'"' => sink.put(b"\\\""),
        b'\\' => sink.put(b"\\\\"),
        0x08 => sink.put(b"\\b"),
        b'\t' => sink.put(b"\\t"),
        b'\n' => sink.put(b"\\n"),
        0x0c => sink.put(b"\\f"),
        b'\r' => sink.put(b"\\r"),
        control => sink.put(format!("\\u{control:04x}").as_bytes()),
    }
}

/// How far the text has been read, and how deep in arrays and objects that is.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self) -> Option<Value<'a>> {
        self.skip_space();
        match self.peek()? {
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b'"' => self.string().map(Value::String),
            b't' => self.word("true").map(|()| Value::Bool(true)),
            b'f' => self.word("false").map(|()| Value::Bool(false)),
            b'n' => self.word("null").map(|()| Value::Null),
            _ => {
                let number = Decimal::read(self.text.get(self.at..)?)?;
                self.at += number.len();
                Some(Value::Number(number))
            }
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<Value<'a>>) -> Option<Value<'a>> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Some(value)
    }

    fn object(&mut self) -> Option<Value<'a>> {
        let mut members = Vec::new();
        if !self.next_is(b'}') {
            loop {
                self.skip_space();
                let name = self.string()?;
                self.skip_space();
                self.token(b':')?;
                members.push((name, self.value()?));
                if !self.goes_on(b'}')? {
                    break;
                }
            }
        }
        members.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
        let twice = members.windows(2).any(|pair| matches!(pair, [(left, _), (right, _)] if left == right));
        (!twice).then_some(Value::Object(members))
    }

    fn array(&mut self) -> Option<Value<'a>> {
        let mut items = Vec::new();
        if !self.next_is(b']') {
            loop {
                items.push(self.value()?);
                if !self.goes_on(b']')? {
                    break;
                }
            }
        }
        Some(Value::Array(items))
    }

    /// After one element: a comma means another one.
    fn goes_on(&mut self, close: u8) -> Option<bool> {
        if self.next_is(close) {
            return Some(false);
        }
        self.token(b',').map(|()| true)
    }

    fn next_is(&mut self, close: u8) -> bool {
        self.skip_space();
        self.token(close).is_some()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn token(&mut self, token: u8) -> Option<()> {
        (self.peek()? == token).then(|| self.at += 1)
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.take(word.len()).filter(|taken| *taken == word).map(|_taken| ())
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Option<Cow<'a, str>> {
        self.token(b'"')?;
        let plain = self.plain()?;
        if self.token(b'"').is_some() {
            return Some(Cow::Borrowed(plain));
        }
        let mut text = plain.to_owned();
        while self.token(b'"').is_none() {
            self.token(b'\\')?;
            text.push(self.escaped()?);
            text.push_str(self.plain()?);
        }
        Some(Cow::Owned(text))
    }

    /// Up to the next quote or backslash; control characters have to be escaped.
    fn plain(&mut self) -> Option<&'a str> {
        let mut rest = self.text.as_bytes().get(self.at..)?.iter();
        self.take(rest.position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?)
    }

    fn escaped(&mut self) -> Option<char> {
        let letter = self.take(1)?;
        Some(match letter {
            "\"" | "\\" | "/" => letter.chars().next()?,
            "b" => '\u{8}',
            "f" => '\u{c}',
            "n" => '\n',
            "r" => '\r',
            "t" => '\t',
            "u" => self.code_point()?,
            _ => return None,
        })
    }

    /// One `XXXX`, or the two of a surrogate pair; a surrogate alone is no character.
    fn code_point(&mut self) -> Option<char> {
        let first = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        self.word("\\u")?;
        let second = self.four_digits()?;
        let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + low)
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.take(4)?;
        let all = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        all.then(|| u32::from_str_radix(digits, 16).ok())?
    }

    fn take(&mut self, bytes: usize) -> Option<&'a str> {
        let taken = self.text.get(self.at..)?.get(..bytes)?;
        self.at += bytes;
        Some(taken)
    }
}
