//! Whether a service has anything to say on an HTTP/1 connection.
//!
//! hyper refuses a head in words of its own, which go out in ours. Any bytes that look like them while a service speaks
//! are its own, an upstream's body perhaps, and are left as they are.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::server::body::{BoxError, ResponseBody};

/// The answers of one connection; shared between the one who makes them and the one who writes the bytes.
#[derive(Debug, Default)]
pub struct Answers {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Answers {
    /// The service has another request.
    pub fn begin(self: &Arc<Self>) -> Answering {
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        Answering { answers: Arc::clone(self), number }
    }

    /// How many there were so far.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// The same, if hyper has all of each.
    pub fn all_ended(&self) -> Option<u64> {
        Some(self.begun()).filter(|begun| *begun == self.ended.load(Ordering::Acquire))
    }
}

/// An answer that is made, or handed to hyper, until this is dropped.
#[derive(Debug)]
pub struct Answering {
    answers: Arc<Answers>,
    number: u64,
}

impl Answering {
    /// Of the request on its connection, counted from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The same answer while its body goes out.
    pub fn with(self, body: ResponseBody) -> Answered {
        Answered { body, _answering: self }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.answers.ended.fetch_add(1, Ordering::AcqRel);
    }
}

/// A body that hyper drops once it has all of it.
pub struct Answered {
    body: ResponseBody,
    _answering: Answering,
}

impl Body for Answered {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
