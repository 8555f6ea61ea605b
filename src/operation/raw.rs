//! Bytes as they are stored: in one piece. To serde an array is a list, which it hands over byte by byte.

use serde::Serializer;

pub(super) fn serialize<S: Serializer>(bytes: &impl AsRef<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes.as_ref())
}
