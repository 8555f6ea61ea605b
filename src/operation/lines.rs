//! Header lines as they are stored: a list of name and bytes, in their order.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::de::Error;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::operation::raw;

/// A value that need not be text.
#[derive(Serialize)]
struct Line<'a>(&'a str, #[serde(serialize_with = "raw::serialize")] &'a [u8]);

pub(super) fn serialize<S: Serializer>(headers: &HeaderMap, serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(headers.len()))?;
    for (name, value) in headers {
        list.serialize_element(&Line(name.as_str(), value.as_bytes()))?;
    }
    list.end()
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<HeaderMap>, D::Error> {
    let lines = Vec::<(String, Bytes)>::deserialize(deserializer)?;
    let mut headers = HeaderMap::with_capacity(lines.len());
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(D::Error::custom)?;
        headers.append(name, HeaderValue::from_maybe_shared(value).map_err(D::Error::custom)?);
    }
    Ok(headers.into())
}
