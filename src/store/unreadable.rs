//! Why something that is stored cannot be read. Asking for it again gives the same.

use crate::store::StoreError;

/// What keeps a record, or what is kept beside it, from being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("it is damaged: {0}")]
    Damaged(#[from] Damage),
    #[error("it has format {0}, which a newer version wrote")]
    TooNew(u8),
}

/// How it shows that the stored bytes are not what was written. Never what they say: that may be a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("its checksum is wrong")]
    Checksum,
    #[error("it ends before its header does")]
    Truncated,
    #[error("it does not begin with the digit of a format")]
    NoFormat,
    #[error("its content makes no sense")]
    Content,
    #[error("it is the record of another operation")]
    Misplaced,
}

impl From<Damage> for StoreError {
    fn from(damage: Damage) -> Self {
        Self::Corrupt(damage)
    }
}

impl From<Unreadable> for StoreError {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Damaged(damage) => Self::Corrupt(damage),
            Unreadable::TooNew(format) => Self::RecordTooNew(format),
        }
    }
}
