//! The stored answer of an operation, and what the record remembers of it when the answer itself is gone.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::operation::raw;

/// An upstream's answer as it is replayed: status, kept header lines in their order, body bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub status: u16,
    #[serde(with = "super::lines")]
    pub headers: Arc<HeaderMap>,
    pub body: Bytes,
}

impl Receipt {
    /// A copy in one piece of memory of its own: header values and body are views into the buffer of the connection that read them,
    /// and keep all of it alive.
    pub fn detached(&self) -> Self {
        let length = self.headers.values().map(HeaderValue::len).sum::<usize>() + self.body.len();
        let mut copy = BytesMut::with_capacity(length);
        self.headers.values().for_each(|value| copy.extend_from_slice(value.as_bytes()));
        copy.extend_from_slice(&self.body);
        let mut rest = copy.freeze();
        let mut alone = |value: &HeaderValue| {
            HeaderValue::from_maybe_shared(rest.split_to(value.len())).unwrap_or_else(|_| value.clone())
        };
        let mut headers = HeaderMap::with_capacity(self.headers.len());
        headers.extend(self.headers.iter().map(|(name, value)| (name.clone(), alone(value))));
        Self { status: self.status, headers: headers.into(), body: rest }
    }
}

/// What a record keeps about its final answer beside the receipt; outlives it as the tombstone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    pub status: u16,
    /// Bytes of the body as they came.
    pub length: u64,
    /// SHA-256 of the body.
    #[serde(serialize_with = "raw::serialize")]
    pub digest: [u8; 32],
    pub kept: Kept,
    /// When the receipt runs out, by the store's clock; the tombstone stays.
    pub receipt_until: Timestamp,
    /// An earlier attempt of the same call may have done it.
    pub after_doubt: bool,
}

/// Whether the bytes of the answer were kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    Whole,
    /// Longer than `max_receipt`.
    TooLarge,
    /// The upstream cut its answer short.
    Cut,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detached_receipt_says_the_same_and_shares_no_memory() {
        let buffer = Bytes::from_static(b"x: value\r\n\r\nbody");
        let value = HeaderValue::from_maybe_shared(buffer.slice(3..8)).unwrap();
        let headers = HeaderMap::from_iter([(http::header::ETAG, value)]);
        let receipt = Receipt { status: 201, headers: headers.into(), body: buffer.slice(12..) };

        let detached = receipt.detached();
        assert_eq!(detached, receipt);
        let places = |receipt: &Receipt| (receipt.body.as_ptr(), receipt.headers["etag"].as_bytes().as_ptr());
        assert_ne!(places(&detached).0, places(&receipt).0);
        assert_ne!(places(&detached).1, places(&receipt).1);
    }
}
