//! What a body says, apart from how it is spelled.
//!
//! Owns the canonical forms by which bodies are compared; the body that goes upstream is never made from them. Anything
//! that is not cleanly of its kind is compared byte for byte: a needless difference is safe, a false likeness is not.

mod content;
pub mod form;
pub mod json;
pub mod multipart;
mod pointer;

use std::fmt;
use std::str::FromStr;

use http::HeaderMap;
use sha2::{Digest, Sha256};

use content::ContentType;
pub use content::{is_encoded, may_be_json, media_type};
use form::Form;
use json::Value;
use multipart::Multipart;
pub use pointer::{NotAPointer, Pointer};

/// How bodies are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// By the media type.
    Auto,
    Json,
    Form,
    Multipart,
    Bytes,
}

/// A part of the body that belongs neither to key nor to fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// `/reason`, in JSON bodies.
    Pointer(Pointer),
    /// `metadata[reason]`, in forms of both kinds.
    Field(String),
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointer(pointer) => pointer.fmt(f),
            Self::Field(name) => f.write_str(name),
        }
    }
}

/// The text names no part of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a JSON pointer such as `/reason`, or a form field such as `metadata[reason]`")]
pub struct NotAField;

impl FromStr for Ignored {
    type Err = NotAField;

    /// What begins with a slash is a pointer, all else a field's name.
    fn from_str(text: &str) -> Result<Self, NotAField> {
        match text {
            "" => Err(NotAField),
            text if text.starts_with('/') => text.parse().map(Self::Pointer).map_err(|NotAPointer| NotAField),
            text => Ok(Self::Field(text.to_owned())),
        }
    }
}

/// Takes canonical bytes as they are made, so that nothing is collected before it is hashed.
pub trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Bytes that are hashed at once.
const BLOCK: usize = 1024;

/// Hashes what it is given, in pieces of a size that pays: canonical JSON comes a few bytes at a time.
struct Hashing {
    hash: Sha256,
    waiting: Vec<u8>,
}

impl Hashing {
    fn digest(mut self) -> [u8; 32] {
        self.hash.update(&self.waiting);
        self.hash.finalize().into()
    }

    #[cold]
    fn make_room(&mut self) {
        self.hash.update(&self.waiting);
        self.waiting.clear();
    }
}

impl Sink for Hashing {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if bytes.len() > BLOCK - self.waiting.len() {
            self.make_room();
        }
        if bytes.len() > BLOCK {
            self.hash.update(bytes);
        } else {
            self.waiting.extend_from_slice(bytes);
        }
    }
}

/// A body that has been read by value as far as that goes.
#[derive(Clone, Debug)]
pub struct Payload<'a> {
    body: &'a [u8],
    reading: Reading<'a>,
}

#[derive(Clone, Debug)]
enum Reading<'a> {
    Json(Value<'a>),
    Form(Form<'a>),
    Multipart(Multipart<'a>),
    Bytes,
}

impl<'a> Payload<'a> {
    /// Reads `body` in the way of `compare`; an encoded body is bytes whatever its media type.
    pub fn read(compare: Compare, headers: &HeaderMap, body: &'a [u8]) -> Self {
        let content = ContentType::of(headers);
        let reading = if is_encoded(headers) { None } else { read(compare, content, body) };
        Self { body, reading: reading.unwrap_or(Reading::Bytes) }
    }

    /// In which way the body was read in the end: `json`, `form`, `multipart` or `bytes`.
    pub fn kind(&self) -> &'static str {
        match &self.reading {
            Reading::Json(_) => "json",
            Reading::Form(_) => "form",
            Reading::Multipart(_) => "multipart",
            Reading::Bytes => "bytes",
        }
    }

    /// SHA-256 over `oncegate-payload-1`, the kind and the canonical form, a line feed after the first and the second.
    pub fn digest(&self, ignored: &[Ignored]) -> [u8; 32] {
        let mut hash = Hashing { hash: Sha256::new(), waiting: Vec::with_capacity(BLOCK) };
        hash.put(b"oncegate-payload-1\n");
        hash.put(self.kind().as_bytes());
        hash.put(b"\n");
        self.write(ignored, &mut hash);
        hash.digest()
    }

    /// The canonical form itself.
    pub fn canonical(&self, ignored: &[Ignored]) -> Vec<u8> {
        let mut form = Vec::with_capacity(self.body.len());
        self.write(ignored, &mut form);
        form
    }

    /// The canonical JSON text of the member at `pointer`, however the body is compared. `null` and the empty string
    /// name nothing and count as absent.
    pub fn member(&self, pointer: &Pointer) -> Option<Vec<u8>> {
        let read_now;
        let whole = match &self.reading {
            Reading::Json(value) => value,
            Reading::Form(_) | Reading::Multipart(_) | Reading::Bytes => {
                read_now = json::read(self.body)?;
                &read_now
            }
        };
        whole.at(pointer).filter(|value| !value.is_blank()).map(Value::canonical)
    }

    /// The canonical values of form field `name` in their order, however the body is compared; none if all are empty.
    pub fn field(&self, name: &str) -> Option<Vec<String>> {
        match &self.reading {
            Reading::Form(form) => form.values(name),
            Reading::Json(_) | Reading::Multipart(_) | Reading::Bytes => form::read(self.body)?.values(name),
        }
    }

    fn write(&self, ignored: &[Ignored], sink: &mut impl Sink) {
        match &self.reading {
            Reading::Json(value) => value.write(&pointers(ignored), sink),
            Reading::Form(form) => form.write(ignored, sink),
            Reading::Multipart(parts) => parts.write(ignored, sink),
            Reading::Bytes => sink.put(self.body),
        }
    }
}

fn read<'a>(compare: Compare, content: ContentType<'_>, body: &'a [u8]) -> Option<Reading<'a>> {
    match compare {
        Compare::Auto => read(content.comparison()?, content, body),
        Compare::Json => json::read(body).map(Reading::Json),
        Compare::Form => form::read(body).map(Reading::Form),
        Compare::Multipart => multipart::read(&content.parameter("boundary")?, body).map(Reading::Multipart),
        Compare::Bytes => None,
    }
}

fn pointers(ignored: &[Ignored]) -> Vec<&[String]> {
    ignored
        .iter()
        .filter_map(|one| match one {
            Ignored::Pointer(pointer) => Some(pointer.tokens()),
            Ignored::Field(_) => None,
        })
        .collect()
}

fn is_ignored(name: &[u8], ignored: &[Ignored]) -> bool {
    ignored.iter().any(|one| match one {
        Ignored::Field(field) => field.as_bytes() == name,
        Ignored::Pointer(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_survives_its_text_form() {
        for text in ["/reason", "/a~1b/0", "metadata[reason]", "a/b"] {
            assert_eq!(text.parse::<Ignored>().unwrap().to_string(), text);
        }
        for text in ["", "/a~"] {
            assert_eq!(text.parse::<Ignored>(), Err(NotAField), "{text}");
        }
    }

    #[test]
    fn kinds_never_meet() {
        let headers = HeaderMap::new();
        let same = [Compare::Json, Compare::Form, Compare::Bytes].map(|one| Payload::read(one, &headers, b"{}"));
        let [json, form, bytes] = same.each_ref().map(|payload| payload.digest(&[]));
        assert_eq!(same[0].canonical(&[]), same[2].canonical(&[]));
        assert!(json != bytes && json != form && form != bytes);
    }
}
