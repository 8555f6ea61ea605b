//! One post of one alert: no redirect, five seconds, signed if there is a secret.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use ring::hmac;
use tokio::time::timeout;

use crate::clock::Timestamp;
use crate::config::{Receiver, Secret};
use crate::protocol::Protocol;
use crate::tls::offering;
use crate::upstream::{
    Client, ConnectError, Connector, Endpoint, Freshness, POOL_IDLE, SendBody, SendError, Settings, TcpConnector,
};

/// For all of it: connection, request and the head of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
const ADDRESSES: Duration = Duration::from_secs(5);

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const SIGNATURE: HeaderName = HeaderName::from_static("oncegate-signature");
const US: HeaderValue = HeaderValue::from_static(concat!("oncegate/", env!("CARGO_PKG_VERSION")));

/// Why an alert was not taken. Whether it arrived all the same nobody knows; it is sent again.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error("the receiver did not answer within 5 s")]
    Timeout,
    #[error("no connection to the receiver")]
    Connect(#[from] ConnectError),
    #[error("no answer of the receiver")]
    Send(#[from] SendError),
    #[error("the receiver answered {0}")]
    Answered(StatusCode),
    #[error("the alert makes no request")]
    Request(#[from] http::Error),
}

/// The way to the receiver.
pub(super) struct Delivery {
    client: Client,
    authority: String,
    target: Secret,
    secret: Option<hmac::Key>,
}

impl Delivery {
    /// Opens nothing yet.
    pub(super) fn to(receiver: &Receiver) -> Self {
        let tls = receiver.client_tls.as_ref().map(|tls| offering(&tls.config, Protocol::Http1.offer()));
        let endpoint = Endpoint { tls: receiver.tls, host: receiver.host.clone(), port: receiver.port };
        let connector: Arc<dyn Connector> = Arc::new(TcpConnector::new(&endpoint, tls, None, ADDRESSES));
        let settings = Settings {
            connect_timeout: PATIENCE,
            idle_timeout: PATIENCE,
            pool_idle: POOL_IDLE,
            max_idle: 1,
            protocol: Protocol::Http1,
        };
        Self {
            client: Client::new(connector, endpoint, settings),
            authority: receiver.authority.clone(),
            target: receiver.target.clone(),
            secret: receiver.secret.as_ref().map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.0.as_bytes())),
        }
    }

    /// Posts an alert once. Only 2xx means that the receiver has it.
    pub(super) async fn post(&self, id: &str, body: String, now: Timestamp) -> Result<(), DeliveryError> {
        timeout(PATIENCE, self.send(id, body, now)).await.unwrap_or(Err(DeliveryError::Timeout))
    }

    async fn send(&self, id: &str, body: String, now: Timestamp) -> Result<(), DeliveryError> {
        let request = self.request(id, body, now)?;
        let connection = self.client.checkout(Freshness::Careful).await?;
        let response = connection.send(request).await?;
        let status = response.status();
        drop(response.into_body().put_aside().await);
        if status.is_success() { Ok(()) } else { Err(DeliveryError::Answered(status)) }
    }

    fn request(&self, id: &str, body: String, now: Timestamp) -> Result<Request<SendBody>, http::Error> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.target.0.parse::<Uri>()?)
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, US)
            .header(KEY, id);
        if let Some(key) = &self.secret {
            request = request.header(SIGNATURE, signature(key, &body, now));
        }
        request.body(SendBody::Full(body.into()))
    }
}

/// `t=SECONDS,v1=HEX`, the HMAC-SHA256 of `SECONDS.BODY`: a receiver that checks the time cannot be told an old alert.
fn signature(key: &hmac::Key, body: &str, now: Timestamp) -> String {
    let seconds = now.0 / 1000;
    let tag = hmac::sign(key, format!("{seconds}.{body}").as_bytes());
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={seconds},v1={hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `printf '%s' '1767225600.{"id":"al_1"}' | openssl dgst -sha256 -hmac s3cret` says.
    #[test]
    fn the_signature_is_that_of_the_time_and_the_body() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"s3cret");
        let signed = signature(&key, "{\"id\":\"al_1\"}", Timestamp(1_767_225_600_999));
        assert_eq!(signed, "t=1767225600,v1=4ac812cd22553130c0fd4a6acf9a0377f628b643fcb72abcc392726e63737f6b");
    }
}
