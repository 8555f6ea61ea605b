//! Upstreams behind a proxy: what it is asked for, and that nothing was sent where it gives no tunnel.

use http::HeaderValue;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::peer::{Seen, read_request};
use super::tls::upstream;
use super::*;
use crate::tls::authority::Authority;
use crate::tls::client_config;

/// A client of an upstream that only `proxy` finds.
fn client_through(proxy: &Peer) -> Client {
    let endpoint = Endpoint { tls: false, host: "pay.invalid".to_owned(), port: 9000 };
    let proxy = at(proxy.endpoint().port);
    client_of(endpoint, None, Some(proxy), SETTINGS)
}

fn at(port: u16) -> Proxy {
    let mut authorization = HeaderValue::from_static("Basic c2VjcmV0");
    authorization.set_sensitive(true);
    Proxy { host: "127.0.0.1".to_owned(), port, authorization: Some(authorization) }
}

async fn refusal(answer: &'static [u8]) -> String {
    let mut peer = Peer::answers_and_closes(answer).await;
    let error = client_through(&peer).checkout(Freshness::Reuse).await.err().unwrap();
    assert!(matches!(error, ConnectError::Proxy { .. }), "{error:?}");
    peer.sees(Seen::Connected).await;
    assert!(peer.sees_request().await.starts_with("CONNECT "));
    peer.sees(Seen::Closed).await;
    error.to_string().replace(&peer.endpoint().port.to_string(), "PORT")
}

#[tokio::test]
async fn the_upstream_gets_through_a_tunnel_what_it_would_get_without() {
    let mut peer = Peer::plays(|mut line| async move {
        line.request().await;
        line.write(b"HTTP/1.1 200 Connection established\r\nContent-Length: 5\r\n\r\n").await;
        while line.request().await {
            line.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        }
    })
    .await;
    let client = client_through(&peer);
    for _ in 0..2 {
        assert_eq!(text(send(&client, post()).await.unwrap()).await, "hi");
    }
    peer.sees(Seen::Connected).await;
    let asked =
        "CONNECT pay.invalid:9000 HTTP/1.1\r\nHost: pay.invalid:9000\r\nProxy-Authorization: Basic c2VjcmV0\r\n\r\n";
    assert_eq!(peer.sees_request().await, asked);
    for _ in 0..2 {
        let request = peer.sees_request().await;
        assert!(request.starts_with("POST /charges?a=%2F HTTP/1.1\r\nhost: upstream\r\n"), "{request}");
        assert!(!request.to_ascii_lowercase().contains("proxy"), "{request}");
    }
}

#[tokio::test]
async fn tls_goes_through_the_tunnel_to_the_upstream_itself() {
    let authority = Authority::made();
    let port = upstream(&authority, "localhost", None).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = at(listener.local_addr().unwrap().port());
    let tunnel = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let asked = read_request(&mut stream).await.unwrap();
        let mut upstream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").await.unwrap();
        copy_bidirectional(&mut stream, &mut upstream).await.ok();
        asked
    });
    let config = client_config(Some(authority.pem().as_bytes()), None, Protocol::Http1.offer()).unwrap();
    let endpoint = Endpoint { tls: true, host: "localhost".to_owned(), port };
    let client = client_of(endpoint, Some(config), Some(proxy), SETTINGS);
    assert_eq!(text(send(&client, post()).await.unwrap()).await, "http/1.1 for localhost");
    drop(client);
    assert!(tunnel.await.unwrap().starts_with(&format!("CONNECT localhost:{port} HTTP/1.1\r\n")));
}

#[tokio::test]
async fn a_proxy_that_gives_no_tunnel_says_why() {
    let proxy = "the proxy 127.0.0.1:PORT ";
    for (answer, reason) in [
        (&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], "wants other credentials (407)"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "answers 502 when asked for pay.invalid:9000"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "answers 101 when asked for pay.invalid:9000"),
        (b"220 mail.example ESMTP\r\n\r\n", "does not answer as a proxy does"),
        (b"HTTP/1.1 200 OK\r\n", "broke off: unexpected end of file"),
        (&[b'x'; 20_000], "does not answer as a proxy does"),
    ] {
        assert_eq!(refusal(answer).await, format!("{proxy}{reason}"));
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_there_or_says_nothing_is_given_up() {
    let mut peer = Peer::plays(|mut line| async move { while line.request().await {} }).await;
    let silent = client_through(&peer);
    let silent = Client { settings: Settings { connect_timeout: Duration::from_millis(50), ..SETTINGS }, ..silent };
    let error = silent.checkout(Freshness::Reuse).await.err().unwrap();
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error:?}");
    peer.sees(Seen::Connected).await;
    peer.sees_request().await;
    peer.sees(Seen::Gone).await;

    let nowhere = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let client = client_of(peer.endpoint(), None, Some(at(nowhere)), SETTINGS);
    let error = client.checkout(Freshness::Reuse).await.err();
    let reason = error.unwrap().to_string();
    assert!(reason.contains("cannot be reached: 127.0.0.1:") && reason.contains("refused"), "{reason}");
}
