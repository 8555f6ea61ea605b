//! The log of an upstream, as it is on the disk: one line for each send, there before the answer.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Instant;

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Microseconds of one clock for all logs of this process.
pub fn now() -> u64 {
    u64::try_from(BEGAN.elapsed().as_micros()).unwrap()
}

/// One send that the upstream has read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub at: u64,
    pub key: String,
    /// Counts the sends of the key.
    pub send: u32,
    /// It was not only seen but done.
    pub runs: bool,
    /// Of the body.
    pub digest: u64,
}

impl Entry {
    pub fn of(key: &str, send: u32, runs: bool, body: &[u8]) -> Self {
        Self { at: now(), key: key.to_owned(), send, runs, digest: digest(body) }
    }
}

/// The same for the same bytes, within this process.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, key, send, runs, digest } = self;
        write!(f, "{at} {key} {send} {runs} {digest}")
    }
}

impl FromStr for Entry {
    type Err = Box<dyn std::error::Error>;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<_> = line.split(' ').collect();
        let [at, key, send, runs, digest] = words.try_into().map_err(|_| format!("no entry: {line}"))?;
        let key = key.to_owned();
        Ok(Self { at: at.parse()?, key, send: send.parse()?, runs: runs.parse()?, digest: digest.parse()? })
    }
}
