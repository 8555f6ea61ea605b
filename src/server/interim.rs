//! Informational answers on their way to a client of HTTP/1, between the answers that hyper writes.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use http::{HeaderMap, StatusCode};

use crate::upstream::{drop_ours, remove_hop_by_hop};

/// Bytes that wait for a client; what comes beyond them is left out, as a client may never look at any.
const MOST: usize = 64 << 10;

/// What is said to a client before the answer, shared between its connection and whoever is told.
#[derive(Clone, Debug, Default)]
pub struct Interim(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Nothing that hyper was to write is still on its way: only then may something stand in between.
    quiet: AtomicBool,
    waits: AtomicBool,
    queue: Mutex<BytesMut>,
}

impl Interim {
    /// Says one, unless an earlier answer is still being written.
    pub fn say(&self, status: StatusCode, headers: &HeaderMap) {
        let mut queue = self.queue();
        if !self.0.quiet.load(Ordering::Relaxed) || queue.len() > MOST {
            return;
        }
        let mut headers = headers.clone();
        remove_hop_by_hop(&mut headers);
        drop_ours(&mut headers);
        write!(queue, "HTTP/1.1 {} {}\r\n", status.as_str(), status.canonical_reason().unwrap_or_default())
            .unwrap_or_default();
        for (name, value) in &headers {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                queue.extend_from_slice(part);
            }
        }
        queue.extend_from_slice(b"\r\n");
        self.0.waits.store(true, Ordering::Relaxed);
    }

    /// hyper is about to write, or to be asked something.
    pub(super) fn disturbed(&self) {
        self.0.quiet.store(false, Ordering::Relaxed);
    }

    /// All is written that hyper had.
    pub(super) fn settled(&self) {
        self.0.quiet.store(true, Ordering::Relaxed);
    }

    /// What waits to be written, if something does.
    pub(super) fn waiting(&self) -> Option<MutexGuard<'_, BytesMut>> {
        self.0.waits.load(Ordering::Relaxed).then(|| self.queue())
    }

    pub(super) fn written(&self) {
        self.0.waits.store(false, Ordering::Relaxed);
    }

    fn queue(&self) -> MutexGuard<'_, BytesMut> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
