//! Who is asking. Keys of two scopes never meet.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::operation::raw;

/// The caller as far as keys go: a digest, so that no credential is ever stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scope {
    #[serde(serialize_with = "raw::serialize")]
    digest: [u8; 32],
    /// The authenticated caller's or the scope header's name, else empty. Part of derived keys.
    caller: String,
}

impl Scope {
    /// One agent, one sidecar: everybody is the same caller.
    pub fn none() -> Self {
        static NONE: LazyLock<Scope> = LazyLock::new(|| Scope::new("none", b"", ""));
        NONE.clone()
    }

    /// By the bytes of a credential. `kind` keeps an `Authorization` apart from an `X-Api-Key` of the same bytes.
    pub fn credential(kind: &str, value: &[u8]) -> Self {
        Self::new(kind, value, "")
    }

    /// By a name that was authenticated, or that a trusted hop wrote into a header.
    pub fn named(kind: &str, name: &str) -> Self {
        Self::new(kind, name.as_bytes(), name)
    }

    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    pub fn caller(&self) -> &str {
        &self.caller
    }

    fn new(kind: &str, value: &[u8], caller: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"oncegate-scope-1");
        hash.update((kind.len() as u64).to_be_bytes());
        hash.update(kind);
        hash.update(value);
        Self { digest: hash.finalize().into(), caller: caller.to_owned() }
    }
}
