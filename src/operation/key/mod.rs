//! The key of an operation: the client's own, derived, or stamped.
//!
//! Owns how a key is read and how it is made; which of them is in force on a route is the engine's choice. Another
//! language can make the same keys: `tests/vectors/README.md` says how, byte for byte.

mod client;
mod derived;
mod made;

use serde::{Deserialize, Serialize};

pub use client::{ClientKey, KeyError};
pub use derived::{Call, Ingredient, Missing, NotAnIngredient, PayloadIn, derive, derived_array, sole_value};
pub use made::{KeyFormat, bucket_of_stamped, forwarded, stamped};

/// Which rule gave the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    Client,
    Derived,
    Window,
    Stamped,
}

impl KeySource {
    /// The value of `Oncegate-Key-Source`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Derived => "derived",
            Self::Window => "window",
            Self::Stamped => "stamped",
        }
    }
}
