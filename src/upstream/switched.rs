//! A connection that has left HTTP.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::received::ENDLESS;
use super::wire::Io;

/// What a connection is behind a 101: a stream of bytes that nobody here understands. It never goes back to a pool, and
/// dropping it closes it.
pub struct Switched {
    pub io: Box<dyn Io>,
    /// Came together with the head of the answer, before anything that `io` still brings.
    pub early: Bytes,
    /// How long the stream may be silent, both ways together.
    pub idle_timeout: Duration,
}

impl Switched {
    pub(super) fn new(io: Box<dyn Io>, early: Bytes, idle_timeout: Duration) -> Self {
        Self { io, early, idle_timeout: idle_timeout.min(ENDLESS) }
    }
}

impl fmt::Debug for Switched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switched").field("idle_timeout", &self.idle_timeout).finish_non_exhaustive()
    }
}
