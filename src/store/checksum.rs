//! How damage is seen: a checksum behind everything that is stored.
//!
//! It stands behind the MessagePack, where a version that does not know it has stopped reading, and every later format
//! keeps it there, so that a damaged format byte is not taken for a newer one. What an older version wrote has none.
//! CRC-32 sees every damage of up to 32 bits in a row, and misses one in four thousand million others.

use crc32fast::Hasher;

use crate::operation::OperationId;
use crate::store::unreadable::Damage;

/// Its first byte begins nothing in MessagePack.
const MARK: [u8; 4] = *b"\xc1crc";
const SUM: usize = 4;

/// What the bytes are, so that one thing in the place of another is damage, too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub(super) kind: Kind,
    /// A record has its own in its content.
    pub(super) operation: Option<OperationId>,
}

/// What may be stored of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Record,
    Receipt,
    Request,
    Event,
}

impl Kind {
    /// Whether bodies are in it, so that it is encrypted where there is a key.
    pub(super) const fn holds_bodies(self) -> bool {
        match self {
            Self::Receipt | Self::Request => true,
            Self::Record | Self::Event => false,
        }
    }

    /// The word of logs and warnings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Receipt => "receipt",
            Self::Request => "request",
            Self::Event => "event",
        }
    }

    const fn letter(self) -> u8 {
        match self {
            Self::Record => b'r',
            Self::Receipt => b'a',
            Self::Request => b'q',
            Self::Event => b'e',
        }
    }
}

/// What stands before the checksum.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'b> {
    Verified(&'b [u8]),
    /// An older version wrote it, without a checksum; nothing may stand behind it.
    Unverified(&'b [u8]),
}

impl Label {
    pub(super) fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![self.kind.letter()];
        bytes.extend(self.operation.as_ref().map_or(&[][..], |id| id.as_bytes()));
        bytes
    }
}

impl<'b> Content<'b> {
    pub(super) fn bytes(self) -> &'b [u8] {
        match self {
            Self::Verified(bytes) | Self::Unverified(bytes) => bytes,
        }
    }

    /// The same said of a part of it.
    pub(super) fn with(self, bytes: &'b [u8]) -> Self {
        match self {
            Self::Verified(_) => Self::Verified(bytes),
            Self::Unverified(_) => Self::Unverified(bytes),
        }
    }
}

pub(super) fn append(bytes: &mut Vec<u8>, label: Label) {
    bytes.extend(MARK);
    let sum = sum(bytes, label);
    bytes.extend(sum);
}

/// Looked for from the end: a damaged length in the content must not swallow the checksum.
pub(super) fn verify(bytes: &[u8], label: Label) -> Result<Content<'_>, Damage> {
    let Some((marked, stated)) = bytes.split_last_chunk::<SUM>() else { return Ok(Content::Unverified(bytes)) };
    match marked.strip_suffix(&MARK) {
        Some(content) if sum(marked, label) == *stated => Ok(Content::Verified(content)),
        Some(_) => Err(Damage::Checksum),
        None => Ok(Content::Unverified(bytes)),
    }
}

fn sum(bytes: &[u8], label: Label) -> [u8; SUM] {
    let mut sum = Hasher::new();
    sum.update(&label.bytes());
    sum.update(bytes);
    sum.finalize().to_be_bytes()
}
