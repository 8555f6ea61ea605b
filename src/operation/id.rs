//! Names of operations, owners and writes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::operation::raw;

/// Crockford's base 32 in lower case: no letter that is read as a digit.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const PREFIX: &str = "op_";
const TEXT_LENGTH: usize = 32;

/// Names one operation: a digest of (scope, route, key), so that whoever knows the key finds the record without an index.
///
/// The first byte is the bucket: everything a store keeps for operations of one bucket may change in one atomic step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OperationId(#[serde(serialize_with = "raw::serialize")] [u8; 20]);

impl OperationId {
    /// `bucket` overrides the one that the name would have; unnamed calls share the bucket of their look-alikes.
    pub fn of(scope: &[u8; 32], route: &str, key: &str, bucket: Option<u8>) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"oncegate-operation-1");
        hash.update(scope);
        for part in [route, key] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut id = [0; 20];
        id.copy_from_slice(&hash.finalize()[..20]);
        if let Some(bucket) = bucket {
            id[0] = bucket;
        }
        Self(id)
    }

    pub const fn from_bytes(bytes: [u8; 20]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }

    pub fn bucket(&self) -> u8 {
        self.0[0]
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; TEXT_LENGTH];
        for (group, digits) in self.0.chunks_exact(5).zip(text.chunks_exact_mut(8)) {
            let bits = group.iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
            for (place, digit) in digits.iter_mut().enumerate() {
                *digit = ALPHABET[(bits >> (35 - 5 * place) & 31) as usize];
            }
        }
        f.write_str(PREFIX)?;
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

/// The text is not the name of an operation.
#[derive(Debug, thiserror::Error)]
#[error("an operation is named op_ and 32 letters and digits")]
pub struct NotAnOperation;

impl FromStr for OperationId {
    type Err = NotAnOperation;

    fn from_str(text: &str) -> Result<Self, NotAnOperation> {
        let digits = text.strip_prefix(PREFIX).ok_or(NotAnOperation)?.as_bytes();
        if digits.len() != TEXT_LENGTH {
            return Err(NotAnOperation);
        }
        let mut id = [0; 20];
        for (group, bytes) in digits.chunks_exact(8).zip(id.chunks_exact_mut(5)) {
            let mut bits = 0u64;
            for digit in group {
                let value = ALPHABET.iter().position(|letter| letter == digit).ok_or(NotAnOperation)?;
                bits = bits << 5 | value as u64;
            }
            bytes.copy_from_slice(&bits.to_be_bytes()[3..]);
        }
        Ok(Self(id))
    }
}

/// Random, one per claim: tells owners apart even when a lossy failover made the store forget a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerId(#[serde(serialize_with = "raw::serialize")] pub [u8; 16]);

/// Random, one per write: the same write sent again is recognised and changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteId(pub [u8; 16]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text_form() {
        let id = OperationId::of(&[7; 32], "payments", "k-1", None);
        assert_eq!(id.to_string().parse::<OperationId>().unwrap(), id);
        assert_eq!(id.to_string().len(), 35);
    }

    #[test]
    fn parts_of_a_name_do_not_run_together() {
        let one = OperationId::of(&[0; 32], "ab", "c", None);
        let other = OperationId::of(&[0; 32], "a", "bc", None);
        assert_ne!(one, other);
    }

    #[test]
    fn junk_is_no_id() {
        for text in ["", "op_", "op_u0000000000000000000000000000000", "0123456789abcdefghjkmnpqrstvwxyz"] {
            assert!(text.parse::<OperationId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_given_bucket_wins() {
        assert_eq!(OperationId::of(&[0; 32], "a", "b", Some(9)).bucket(), 9);
    }
}
