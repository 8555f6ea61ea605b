//! The request of the first call, from which every later attempt is made.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use serde::{Deserialize, Serialize};

/// Target, kept header lines and exact body of the first call. Credentials are in here only where somebody was told that
/// the call is made without him, and never unsealed at rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRequest {
    pub method: String,
    /// Path and query as they go upstream.
    pub target: String,
    #[serde(with = "super::lines")]
    pub headers: Arc<HeaderMap>,
    pub body: Bytes,
    /// The first call brought a credential of its own that is not in here; without it the upstream may refuse a repeat.
    pub had_credential: bool,
}
