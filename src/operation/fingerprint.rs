//! What was asked, as a digest: method, target, chosen headers, media type, body by value.

use http::{HeaderMap, HeaderName};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::operation::Scope;
use crate::operation::payload::media_type;
use crate::operation::raw;

/// SHA-256 of a request under a version of the rules; records are compared under the version that made them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint {
    pub version: u8,
    #[serde(serialize_with = "raw::serialize")]
    pub digest: [u8; 32],
}

/// What a fingerprint is made from.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub method: &'a str,
    /// Path and query as the client sent them.
    pub target: &'a str,
    pub headers: &'a HeaderMap,
    /// Names of the headers that belong to the identity, in any order.
    pub identity: &'a [HeaderName],
    /// `Payload::digest` of the body.
    pub payload: &'a [u8; 32],
}

impl Fingerprint {
    /// The version of the rules in this file.
    pub const VERSION: u8 = 1;

    /// The fingerprint of a request: SHA-256 over `oncegate-fingerprint-1`, then method, target, media type and payload
    /// digest, then for each identity header, sorted by name, its name, how many lines it has, and each line. Every text
    /// has its length before it; lengths and counts are 8 bytes, most significant first.
    pub fn of(asked: &Asked<'_>) -> Self {
        let mut hash = Sha256::new_with_prefix(b"oncegate-fingerprint-1");
        put(&mut hash, asked.method.as_bytes());
        put(&mut hash, asked.target.as_bytes());
        put(&mut hash, &media_type(asked.headers));
        put(&mut hash, asked.payload);
        for name in sorted(asked.identity) {
            put(&mut hash, name.as_bytes());
            let lines = asked.headers.get_all(name);
            hash.update((lines.iter().count() as u64).to_be_bytes());
            lines.iter().for_each(|line| put(&mut hash, line.as_bytes()));
        }
        Self { version: Self::VERSION, digest: hash.finalize().into() }
    }

    /// What calls without a key of their own have in common if they ask for the same: SHA-256 over `oncegate-alike-1`,
    /// the scope's digest, the route with its length before it, the version and the digest.
    pub fn alike(&self, scope: &Scope, route: &str) -> [u8; 32] {
        let mut hash = Sha256::new_with_prefix(b"oncegate-alike-1");
        hash.update(scope.digest());
        put(&mut hash, route.as_bytes());
        hash.update([self.version]);
        hash.update(self.digest);
        hash.finalize().into()
    }
}

/// A header that is configured twice counts once.
fn sorted(names: &[HeaderName]) -> Vec<&str> {
    let mut names: Vec<&str> = names.iter().map(HeaderName::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn put(hash: &mut Sha256, text: &[u8]) {
    hash.update((text.len() as u64).to_be_bytes());
    hash.update(text);
}
