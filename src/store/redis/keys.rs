//! Names of everything that is kept in Redis. They are made here and nowhere else.
//!
//! All keys of an operation carry the hash tag `{namespace:bucket}`, so that one script may change them together on a
//! cluster too.

use std::fmt::Write;

use crate::operation::{Alike, OperationId};

/// The keys of one namespace.
#[derive(Debug)]
pub(super) struct Keys {
    namespace: String,
    /// What all names of one bucket begin with. There are a dozen of them in a call, so they are not made anew each time.
    tags: Vec<String>,
}

/// What a key of one operation holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Record,
    Receipt,
    Request,
    Events,
}

/// What an index of one bucket orders.
#[derive(Clone, Copy, Debug)]
pub(super) enum Index {
    /// By what comes next: the end of a lease as it is, the end of the record's life as a negative number.
    Schedule,
    Creation,
    /// Scopes, by how many unfinished operations they have.
    Open,
    /// Open dead letters, by the creation of their operations.
    Dead,
}

/// The keys of one operation in one buffer: they differ in a single byte.
#[derive(Debug)]
pub(super) struct OperationKeys {
    text: Vec<u8>,
    /// Where that byte is.
    at: usize,
}

impl Keys {
    pub(super) fn new(namespace: &str) -> Self {
        let namespace = escape(namespace);
        let tags = (0..=u8::MAX).map(|bucket| format!("oncegate:{{{namespace}:{bucket:02x}}}:")).collect();
        Self { namespace, tags }
    }

    pub(super) fn of(&self, id: OperationId) -> OperationKeys {
        let mut text = self.tag(id.bucket());
        let at = text.len();
        append(&mut text, format_args!("r:{id}"));
        OperationKeys { text: text.into_bytes(), at }
    }

    pub(super) fn index(&self, bucket: u8, index: Index) -> String {
        let mut key = self.tag(bucket);
        key.push(char::from(index.letter()));
        key
    }

    /// The look-alikes of an unnamed call that stand in its way.
    pub(super) fn alike(&self, bucket: u8, alike: &Alike) -> String {
        let mut key = self.tag(bucket);
        key.push_str("u:");
        for byte in alike.digest {
            append(&mut key, format_args!("{byte:02x}"));
        }
        key
    }

    /// A small value that belongs to no operation; spread over all buckets, for there may be one for each call.
    pub(super) fn named(&self, name: &str) -> String {
        self.named_beside(name, name)
    }

    /// The same where one script changes it together with that of the name `first`.
    pub(super) fn named_beside(&self, first: &str, name: &str) -> String {
        let bucket = first.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        format!("{}n:{name}", self.tag(bucket))
    }

    /// Whose turn it is to look through all buckets.
    pub(super) fn turn(&self, work: &str) -> String {
        format!("oncegate:{{{}}}:turn:{work}", self.namespace)
    }

    /// What tells that the store still has its memory.
    pub(super) fn epoch(&self) -> String {
        format!("oncegate:{{{}}}:epoch", self.namespace)
    }

    /// The epoch as a bucket knows it; it goes when the bucket does.
    pub(super) fn marker(&self, bucket: u8) -> String {
        let mut key = self.tag(bucket);
        key.push('m');
        key
    }

    /// What calls are held back from, and until when.
    pub(super) fn held(&self) -> String {
        format!("oncegate:{{{}}}:held", self.namespace)
    }

    /// What a fleet knows of time.
    pub(super) fn clock(&self) -> String {
        format!("oncegate:{{{}}}:clock", self.namespace)
    }

    /// What is written before the replicas of the epoch are waited for.
    pub(super) fn epoch_wake(&self) -> String {
        format!("oncegate:{{{}}}:w", self.namespace)
    }

    /// What is written before the replicas of a bucket are waited for.
    pub(super) fn wake(&self, bucket: u8) -> String {
        let mut key = self.tag(bucket);
        key.push('w');
        key
    }

    pub(super) fn probe(&self) -> String {
        format!("oncegate:{{{}}}:probe", self.namespace)
    }

    fn tag(&self, bucket: u8) -> String {
        let tag = self.tags.get(usize::from(bucket)).map_or("", String::as_str);
        let mut key = String::with_capacity(tag.len() + 70);
        key.push_str(tag);
        key
    }
}

impl OperationKeys {
    pub(super) fn part(&mut self, part: Part) -> &[u8] {
        self.text[self.at] = part.letter();
        &self.text
    }

    /// An index of the operation's bucket.
    pub(super) fn index(&mut self, index: Index) -> &[u8] {
        self.text[self.at] = index.letter();
        &self.text[..=self.at]
    }

    /// The operation's id, as the indexes name it.
    pub(super) fn member(&self) -> &[u8] {
        &self.text[self.at + 2..]
    }
}

impl Part {
    const fn letter(self) -> u8 {
        match self {
            Self::Record => b'r',
            Self::Receipt => b'a',
            Self::Request => b'q',
            Self::Events => b'e',
        }
    }
}

impl Index {
    const fn letter(self) -> u8 {
        match self {
            Self::Schedule => b'l',
            Self::Creation => b'o',
            Self::Open => b'c',
            Self::Dead => b'd',
        }
    }
}

/// Braces would move the hash tag, and a colon would let two namespaces meet. The escape itself is escaped too.
fn escape(namespace: &str) -> String {
    let mut escaped = String::with_capacity(namespace.len());
    for byte in namespace.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => escaped.push(char::from(byte)),
            _ => append(&mut escaped, format_args!("%{byte:02x}")),
        }
    }
    escaped
}

fn append(text: &mut String, more: std::fmt::Arguments<'_>) {
    // Formatting into a string fails only if a `Display` of ours does.
    if text.write_fmt(more).is_err() {
        text.push('?');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(key: &str) -> &str {
        let (_, rest) = key.split_once('{').unwrap();
        rest.split_once('}').unwrap().0
    }

    #[test]
    fn all_keys_of_an_operation_share_one_tag() {
        let keys = Keys::new("shop {a}:7f");
        let id = OperationId::of(&[1; 32], "payments", "k", None);
        let mut of = keys.of(id);
        let mut all: Vec<String> = [Part::Record, Part::Receipt, Part::Request, Part::Events]
            .map(|part| String::from_utf8(of.part(part).to_vec()).unwrap())
            .to_vec();
        all.extend(
            [Index::Schedule, Index::Creation].map(|index| String::from_utf8(of.index(index).to_vec()).unwrap()),
        );
        all.push(keys.index(id.bucket(), Index::Schedule));
        all.push(keys.alike(id.bucket(), &Alike { digest: [7; 32], until: None }));
        for key in &all {
            assert_eq!(tag(key), format!("shop%20%7ba%7d%3a7f:{:02x}", id.bucket()), "{key}");
        }
        assert_eq!(of.member(), id.to_string().as_bytes());
    }

    #[test]
    fn namespaces_never_meet() {
        assert_ne!(escape("a%7b"), escape("a{"));
        assert_eq!(escape("checkout-2.eu_west"), "checkout-2.eu_west");
    }
}
