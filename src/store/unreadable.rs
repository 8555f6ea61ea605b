//! Why something that is stored cannot be read. Asking for it again gives the same.

use crate::sealing_key::KeyId;
use crate::store::StoreError;

/// What keeps a record, or what is kept beside it, from being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("it is damaged: {0}")]
    Damaged(#[from] Damage),
    #[error("it has format {0}, which a newer version wrote")]
    TooNew(u8),
    /// What an operator forgot, and can make good.
    #[error("it is encrypted with key {0}, and no key is configured (store.encryption)")]
    NoKey(KeyId),
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
    #[error("it is encrypted, and is not what was encrypted in this place")]
    Seal,
    /// Keys that are taken out are meant to open nothing any more.
    #[error("it is encrypted with key {0}, which is none of those that are configured")]
    KeyGone(KeyId),
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
            Unreadable::NoKey(id) => Self::NoKey(id),
        }
    }
}
