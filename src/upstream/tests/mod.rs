//! What a client of this module sees when the upstream does this or that, on real sockets and in memory.

mod answers;
mod failures;
mod headers;
mod http2;
mod names;
mod peer;
mod pooling;
mod proxies;
mod timers;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use rustls::ClientConfig;

use super::*;
use peer::Peer;

const SETTINGS: Settings = Settings {
    connect_timeout: Duration::from_secs(3),
    idle_timeout: Duration::from_secs(60),
    pool_idle: POOL_IDLE,
    max_idle: 2,
    protocol: Protocol::Auto,
};

fn client(peer: &Peer) -> Client {
    client_of(peer.endpoint(), None, None, SETTINGS)
}

fn client_of(endpoint: Endpoint, tls: Option<Arc<ClientConfig>>, proxy: Option<Proxy>, settings: Settings) -> Client {
    let connector = TcpConnector::new(&endpoint, tls, proxy, Duration::from_secs(5));
    Client::new(Arc::new(connector), endpoint, settings)
}

fn request(method: Method, body: &'static str) -> Request<SendBody> {
    let body = SendBody::Full(Bytes::from_static(body.as_bytes()));
    Request::builder().method(method).uri("/charges?a=%2F").header("host", "upstream").body(body).unwrap()
}

fn post() -> Request<SendBody> {
    request(Method::POST, "amount=1")
}

/// One request on a connection of the given kind.
async fn send(client: &Client, request: Request<SendBody>) -> Result<Response<ReceivedBody>, SendError> {
    client.checkout(Freshness::Reuse).await.unwrap().send(request).await
}

async fn text(response: Response<ReceivedBody>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}
