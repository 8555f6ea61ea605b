//! Keys and fingerprints as the outside sees them: the published vectors, and what holds for all inputs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod document;
mod properties;
mod vectors;
