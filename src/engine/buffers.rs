//! The memory that all buffered bodies together may take (`server.buffers`), over all threads.
//!
//! Never waits: a request that does not fit is refused at once, before anything is claimed. A quarter of the room is for
//! answers alone: their calls have been made, and slow uploads must not keep receipts from being kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// How much room is left. Cheap to clone; clones share the room.
#[derive(Clone, Debug)]
pub struct Buffers(Arc<Room>);

#[derive(Debug)]
struct Room {
    free: AtomicU64,
    all: u64,
    /// Of it, what only answers take.
    for_answers: u64,
}

impl Buffers {
    /// Room for `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Room { free: AtomicU64::new(bytes), all: bytes, for_answers: bytes / 4 }))
    }

    /// Takes room for `bytes` of a request; `None` if there is not that much. It is given back on drop, whatever the
    /// reason: an answer, an error, a task that was cancelled.
    pub fn take(&self, bytes: u64) -> Option<Held> {
        let mut held = Held { room: Arc::clone(&self.0), bytes: 0, leaves: Some(self.0.for_answers) };
        held.grow(bytes).then_some(held)
    }

    /// Whether so many bytes fit when nothing else is here.
    pub fn could_hold(&self, bytes: u64) -> bool {
        bytes <= self.0.all
    }

    /// Nothing yet, to grow with the body of an answer.
    pub fn for_answer(&self) -> Held {
        Held { room: Arc::clone(&self.0), bytes: 0, leaves: None }
    }

    /// Nothing yet, to grow with the body of a call that was let in by an owner before. Nobody else is told of it, so it may
    /// take all that there is.
    pub fn for_stored(&self) -> Held {
        Held { room: Arc::clone(&self.0), bytes: 0, leaves: Some(0) }
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> u64 {
        self.0.free.load(Ordering::Relaxed)
    }
}

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub struct Held {
    room: Arc<Room>,
    bytes: u64,
    /// What a request leaves to answers. An answer leaves as much as it takes: long ones that nobody reads must not keep
    /// the receipts of others from being kept.
    leaves: Option<u64>,
}

impl Held {
    /// Takes room for `more` bytes; false, and nothing changes, if there is not that much.
    pub fn grow(&mut self, more: u64) -> bool {
        let leaves = self.leaves.unwrap_or(self.bytes.saturating_add(more));
        let rest = |free: u64| free.checked_sub(more).filter(|rest| more == 0 || *rest >= leaves);
        let taken = self.room.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok();
        self.bytes += if taken { more } else { 0 };
        taken
    }

    /// How many bytes it is for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back what is beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let spare = self.bytes.saturating_sub(bytes);
        self.bytes -= spare;
        self.room.free.fetch_add(spare, Ordering::Relaxed);
    }

    /// Gives back all of it, to grow anew.
    pub fn give_back(&mut self) {
        self.shrink_to(0);
    }

    /// All of it, for somebody else to hold.
    pub fn take(&mut self) -> Self {
        let bytes = std::mem::take(&mut self.bytes);
        Self { room: Arc::clone(&self.room), bytes, leaves: self.leaves }
    }

    /// The same bytes, which hold the room until the last of them is let go.
    pub fn around(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 { bytes } else { Bytes::from_owner(Holding { bytes, _room: self }) }
    }
}

struct Holding {
    bytes: Bytes,
    _room: Held,
}

impl AsRef<[u8]> for Holding {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_when_its_holder_goes() {
        let buffers = Buffers::new(12);
        let first = buffers.take(6).unwrap();
        assert!(buffers.take(4).is_none());
        assert_eq!(buffers.free(), 6);
        drop(first);
        assert_eq!(buffers.free(), 12);
    }

    #[test]
    fn a_refused_growth_changes_nothing() {
        let buffers = Buffers::new(12);
        let mut held = buffers.take(4).unwrap();
        assert!(!held.grow(6));
        assert!(held.grow(5));
        drop(held);
        assert_eq!(buffers.free(), 12);
    }

    #[test]
    fn room_is_held_as_long_as_the_bytes_in_it() {
        let buffers = Buffers::new(12);
        let mut held = buffers.for_answer();
        assert!(held.grow(4));
        let bytes = held.take().around(Bytes::from_static(b"told"));
        drop(held);
        let rest = bytes.slice(1..);
        drop(bytes);
        assert_eq!((&rest[..], buffers.free()), (&b"old"[..], 8));
        drop(rest);
        assert_eq!(buffers.free(), 12);
    }

    #[test]
    fn requests_leave_a_quarter_to_answers() {
        let buffers = Buffers::new(12);
        let request = buffers.take(9).unwrap();
        assert!(buffers.take(1).is_none() && buffers.take(0).is_some());
        let mut answer = buffers.for_answer();
        assert!(answer.grow(1) && !answer.grow(1));
        drop((request, answer));
        assert_eq!(buffers.free(), 12);
    }

    #[test]
    fn what_was_let_in_before_may_take_all_that_is_left() {
        let buffers = Buffers::new(12);
        let mut stored = buffers.for_stored();
        assert!(!stored.grow(13) && stored.grow(12));
    }

    #[test]
    fn an_answer_leaves_as_much_as_it_takes() {
        let buffers = Buffers::new(12);
        let (mut long, mut short) = (buffers.for_answer(), buffers.for_answer());
        assert!(long.grow(5) && long.grow(1) && !long.grow(1));
        assert!(short.grow(3));
        long.shrink_to(2);
        assert_eq!((long.bytes(), buffers.free()), (2, 7));
    }
}
