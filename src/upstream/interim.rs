//! Informational answers to a request, told while the answer itself is waited for (RFC 9110, section 15.2).

use std::sync::Arc;

use http::{HeaderMap, Request, StatusCode};

/// Hears of each of them, in the midst of a poll: it must not wait.
#[derive(Clone)]
pub struct OnInterim(Arc<Hear>);

type Hear = dyn Fn(StatusCode, &HeaderMap) + Send + Sync;

impl OnInterim {
    pub fn new(hear: impl Fn(StatusCode, &HeaderMap) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }

    pub(super) fn hear(&self, status: StatusCode, headers: &HeaderMap) {
        (self.0)(status, headers);
    }

    /// Lets hyper tell.
    pub(super) fn attach<B>(self, request: &mut Request<B>) {
        hyper::ext::on_informational(request, move |answer| self.hear(answer.status(), answer.headers()));
    }
}
