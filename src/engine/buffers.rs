//! The memory that all buffered bodies together may take (`server.buffers`), over all threads.
//!
//! Never waits: what does not fit is refused at once, before anything is claimed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much room is left. Cheap to clone; clones share the room.
#[derive(Clone, Debug)]
pub struct Buffers(Arc<AtomicU64>);

impl Buffers {
    /// Room for `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    /// Takes room for `bytes`; `None` if there is not that much. It is given back on drop, whatever the reason: an
    /// answer, an error, a task that was cancelled.
    pub fn take(&self, bytes: u64) -> Option<Held> {
        let mut held = Held { buffers: self.clone(), bytes: 0 };
        held.grow(bytes).then_some(held)
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub struct Held {
    buffers: Buffers,
    bytes: u64,
}

impl Held {
    /// Takes room for `more` bytes; false, and nothing changes, if there is not that much.
    pub fn grow(&mut self, more: u64) -> bool {
        let taken =
            self.buffers.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(more)).is_ok();
        self.bytes += if taken { more } else { 0 };
        taken
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.buffers.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_when_its_holder_goes() {
        let buffers = Buffers::new(10);
        let first = buffers.take(6).unwrap();
        assert!(buffers.take(5).is_none());
        assert_eq!(buffers.free(), 4);
        drop(first);
        assert_eq!(buffers.free(), 10);
    }

    #[test]
    fn a_refused_growth_changes_nothing() {
        let buffers = Buffers::new(10);
        let mut held = buffers.take(4).unwrap();
        assert!(!held.grow(7));
        assert!(held.grow(6));
        drop(held);
        assert_eq!(buffers.free(), 10);
    }
}
