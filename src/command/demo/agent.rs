//! The agent of the demo: makes one call at a time, repeats nothing by itself, and says what it saw.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, HeaderName, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// From here on it is said how long an answer took.
const NOTICEABLE: Duration = Duration::from_millis(500);

/// An agent whose base URL is `http://{base}`.
#[derive(Clone, Copy)]
pub(super) struct Agent {
    pub(super) base: SocketAddr,
}

/// What came back to the agent.
#[derive(Debug)]
pub(super) enum Saw {
    Answer(Answer),
    NoAnswer,
    /// It did not live to see anything.
    Killed,
}

#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    took: Duration,
}

#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("no connection")]
    Connect(#[from] std::io::Error),
    #[error("no request")]
    Request(#[from] http::Error),
    #[error("no answer")]
    Http(#[from] hyper::Error),
}

impl Agent {
    /// Step 3 of its session: charge order 42. The reason is in the model's words.
    pub(super) async fn charge(self, reason: &str) -> Saw {
        match self.post(reason).await {
            Ok(answer) => Saw::Answer(answer),
            Err(CallError::Connect(_) | CallError::Request(_) | CallError::Http(_)) => Saw::NoAnswer,
        }
    }

    async fn post(self, reason: &str) -> Result<Answer, CallError> {
        let begun = Instant::now();
        let (mut sender, connection) = http1::handshake(TokioIo::new(TcpStream::connect(self.base).await?)).await?;
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let (head, body) = sender.send_request(self.request(reason)?).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer { status: head.status, headers: head.headers, body, took: begun.elapsed() })
    }

    fn request(self, reason: &str) -> http::Result<Request<Full<Bytes>>> {
        let body = serde_json::json!({ "order": 42, "amount": 4200, "reason": reason }).to_string();
        Request::post("/charges")
            .header(HOST, self.base.to_string())
            .header(CONTENT_TYPE, "application/json")
            .header("x-session-id", "trip-7")
            .header("x-step-index", "3")
            .body(Full::from(body))
    }
}

impl Answer {
    fn charge(&self) -> Option<String> {
        let body: Value = serde_json::from_slice(&self.body).ok()?;
        Some(body.get("id")?.as_str()?.to_owned())
    }
}

/// As the agent's column shows it.
impl fmt::Display for Saw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(answer) => write!(f, "{answer}"),
            Self::NoAnswer => f.write_str("no answer: connection lost"),
            Self::Killed => f.write_str("nothing: it was killed"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.status.as_str())?;
        if let Some(charge) = self.charge() {
            write!(f, ", {charge}")?;
        }
        if let Some(wait) = self.headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()) {
            write!(f, ", Retry-After: {wait}")?;
        }
        if self.headers.contains_key(REPLAYED) {
            f.write_str(", replayed")?;
        }
        if self.took >= NOTICEABLE {
            write!(f, ", after {:.1} s", self.took.as_secs_f32())?;
        }
        Ok(())
    }
}
