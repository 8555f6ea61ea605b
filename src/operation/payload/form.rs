//! `application/x-www-form-urlencoded` bodies, and queries, by their fields.

use std::borrow::Cow;

use super::{Ignored, Sink, is_ignored};

/// The fields of a form in canonical order.
#[derive(Clone, Debug)]
pub struct Form<'a>(Vec<Field<'a>>);

#[derive(Clone, Debug)]
struct Field<'a> {
    name: Cow<'a, [u8]>,
    value: Cow<'a, [u8]>,
}

/// `None` if a percent sign is not followed by two hexadecimal digits: services differ in what they make of it. A
/// field without `=` has the empty value; empty fields are none.
pub fn read(text: &[u8]) -> Option<Form<'_>> {
    let pieces = text.split(|byte| *byte == b'&').filter(|piece| !piece.is_empty());
    let mut fields = pieces.map(field).collect::<Option<Vec<_>>>()?;
    fields.sort_by(|left, right| list(&left.name).cmp(list(&right.name)));
    Some(Form(fields))
}

impl Form<'_> {
    /// The values of `name` in their order, percent-encoded; `None` if all are empty.
    pub fn values(&self, name: &str) -> Option<Vec<String>> {
        let named = self.0.iter().filter(|field| *field.name == *name.as_bytes());
        let values: Vec<String> = named.map(|field| encoded(&field.value)).collect();
        values.iter().any(|value| !value.is_empty()).then_some(values)
    }

    /// Writes `name=value` for each field that is not ignored, percent-encoded and joined by `&`.
    pub(super) fn write(&self, ignored: &[Ignored], sink: &mut impl Sink) {
        let mut between = &b""[..];
        for field in self.0.iter().filter(|field| !is_ignored(&field.name, ignored)) {
            sink.put(std::mem::replace(&mut between, b"&"));
            encode(&field.name, sink);
            sink.put(b"=");
            encode(&field.value, sink);
        }
    }
}

fn field(piece: &[u8]) -> Option<Field<'_>> {
    let equals = piece.iter().position(|byte| *byte == b'=').unwrap_or(piece.len());
    let (name, value) = (piece.get(..equals)?, piece.get(equals + 1..).unwrap_or_default());
    Some(Field { name: decode(name)?, value: decode(value)? })
}

/// The name up to its first `[]`. Fields of one list stay in their order: `a[][x]=1&a[][y]=2` and its repetitions name
/// items by where they stand.
fn list(name: &[u8]) -> &[u8] {
    let end = name.windows(2).position(|pair| pair == b"[]").map_or(name.len(), |at| at + 2);
    name.get(..end).unwrap_or(name)
}

fn decode(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return Some(Cow::Owned(plain)),
            [b'%', tail @ ..] => {
                let [high, low, tail @ ..] = tail else { return None };
                plain.push(digit(*high)? << 4 | digit(*low)?);
                tail
            }
            [byte, tail @ ..] => {
                plain.push(if *byte == b'+' { b' ' } else { *byte });
                tail
            }
        };
    }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

fn encoded(plain: &[u8]) -> String {
    let mut text = Vec::with_capacity(plain.len());
    encode(plain, &mut text);
    text.into_iter().map(char::from).collect()
}

/// Letters, digits, `-`, `.`, `_` and `~` as they are, every other byte as `%XX` in upper case.
fn encode(plain: &[u8], sink: &mut impl Sink) {
    let mut rest = plain;
    while let Some(at) = rest.iter().position(|byte| !is_unreserved(*byte)) {
        let (before, special) = rest.split_at(at);
        sink.put(before);
        rest = match special {
            [byte, tail @ ..] => {
                sink.put(&[b'%', hex_digit(byte >> 4), hex_digit(byte & 15)]);
                tail
            }
            [] => special,
        };
    }
    sink.put(rest);
}

fn hex_digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'A' + value - 10 }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}
