//! TLS upstreams, with an authority made for the test.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::peer::read_request;
use super::*;
use crate::tls::authority::Authority;
use crate::tls::{Identity, TlsError, client_config, server_config};
use crate::upstream::wire::{Wire, Written};

/// An upstream that proves to be `name`, demands a certificate of `clients` if given, and answers with what ALPN chose and the
/// name that was asked for, except to DELETE, where it closes.
pub(super) async fn upstream(authority: &Authority, name: &str, clients: Option<&Authority>) -> u16 {
    serve(acceptor(authority.issue(name), clients)).await
}

fn acceptor((certificates, key): (String, String), clients: Option<&Authority>) -> TlsAcceptor {
    let identity = Identity { certificates: certificates.as_bytes(), key: key.as_bytes() };
    let clients = clients.map(Authority::pem);
    let config = server_config(identity, clients.as_ref().map(String::as_bytes), &["h2", "http/1.1"]);
    TlsAcceptor::from(config.unwrap())
}

async fn serve(acceptor: TlsAcceptor) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let session = stream.get_ref().1;
            let chosen = str::from_utf8(session.alpn_protocol().unwrap()).unwrap();
            let chosen = format!("{chosen} for {}", session.server_name().unwrap());
            while let Some(request) = read_request(&mut stream).await {
                if request.starts_with("DELETE") {
                    break;
                }
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{chosen}", chosen.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    port
}

fn client(port: u16, authority: &Authority, identity: Option<Identity<'_>>) -> Client {
    let config = client_config(Some(authority.pem().as_bytes()), identity, Protocol::Http1.offer()).unwrap();
    let endpoint = Endpoint { tls: true, host: "localhost".to_owned(), port };
    client_of(endpoint, Some(config), None, SETTINGS)
}

/// Why no connection is made, before anything could be sent.
async fn refusal(port: u16, trusted: &Authority) -> String {
    let error = client(port, trusted, None).checkout(Freshness::Reuse).await.err().unwrap();
    assert!(matches!(error, ConnectError::Tls(_)), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn a_trusted_upstream_is_spoken_to_in_http_1_1_and_its_connection_is_kept() {
    let authority = Authority::made();
    let client = client(upstream(&authority, "localhost", None).await, &authority, None);
    assert_eq!(text(send(&client, post()).await.unwrap()).await, "http/1.1 for localhost");
    let again = client.checkout(Freshness::Careful).await.unwrap();
    assert!(again.reused());
    assert_eq!(text(again.send(post()).await.unwrap()).await, "http/1.1 for localhost");
}

#[tokio::test]
async fn what_went_out_inside_tls_may_have_run() {
    let authority = Authority::made();
    let client = client(upstream(&authority, "localhost", None).await, &authority, None);
    let error = send(&client, request(Method::DELETE, "")).await.map(drop).unwrap_err();
    assert!(matches!(error, SendError::MaybeSent { .. }), "{error:?}");
}

#[tokio::test]
async fn a_wrong_name_or_an_unknown_authority_is_refused_before_anything_is_sent() {
    let authority = Authority::made();
    let wrong_name = refusal(upstream(&authority, "elsewhere", None).await, &authority).await;
    assert!(wrong_name.contains("not valid for name \"localhost\""), "{wrong_name}");
    let stranger = refusal(upstream(&authority, "localhost", None).await, &Authority::made()).await;
    assert!(stranger.contains("UnknownIssuer"), "{stranger}");
    let expired = serve(acceptor(authority.issue_expired("localhost"), None)).await;
    let expired = refusal(expired, &authority).await;
    assert!(expired.contains("certificate expired"), "{expired}");
}

#[tokio::test]
async fn a_version_before_1_2_is_refused() {
    const SERVER_HELLO_1_1: &[u8] =
        b"\x16\x03\x02\x00\x2a\x02\x00\x00\x26\x03\x0212345678901234567890123456789012\x00\xc0\x13\x00";
    let peer = Peer::plays(|mut line| async move { line.write(SERVER_HELLO_1_1).await }).await;
    let refusal = refusal(peer.endpoint().port, &Authority::made()).await;
    assert!(refusal.contains("peer is incompatible"), "{refusal}");
}

#[tokio::test]
async fn an_upstream_that_asks_who_we_are_is_told() {
    let (authority, clients) = (Authority::made(), Authority::made());
    let port = upstream(&authority, "localhost", Some(&clients)).await;
    let (certificates, key) = clients.issue("gateway");
    let identity = Identity { certificates: certificates.as_bytes(), key: key.as_bytes() };
    let known = client(port, &authority, Some(identity));
    assert_eq!(text(send(&known, post()).await.unwrap()).await, "http/1.1 for localhost");
}

#[tokio::test]
async fn what_an_upstream_that_does_not_let_us_in_was_sent_did_not_run() {
    let (authority, clients) = (Authority::made(), Authority::made());
    let port = upstream(&authority, "localhost", Some(&clients)).await;
    let (certificates, key) = Authority::made().issue("stranger");
    let stranger = Identity { certificates: certificates.as_bytes(), key: key.as_bytes() };
    for identity in [None, Some(stranger)] {
        let error = send(&client(port, &authority, identity), post()).await.map(drop).unwrap_err();
        assert!(matches!(error, SendError::ShutOut { .. }), "{error:?}");
    }
}

/// A peer of which nothing comes but an alert over our certificate.
struct Alarmed;

impl AsyncRead for Alarmed {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let alert = rustls::Error::AlertReceived(AlertDescription::BadCertificate);
        Poll::Ready(Err(io::Error::other(alert)))
    }
}

#[tokio::test]
async fn an_alert_behind_a_handshake_that_was_over_for_both_says_nothing_of_what_was_sent() {
    for let_in in [false, true] {
        let written = Written::default();
        let peer = tokio::io::join(Alarmed, tokio::io::sink());
        let mut wire = Wire::counted_below(peer, written.clone(), false, let_in);
        wire.io.read_u8().await.unwrap_err();
        assert_eq!(written.is_shut_out(), !let_in);
    }
}

#[tokio::test]
async fn plain_text_where_tls_was_expected_is_a_tls_error() {
    let peer = Peer::plays(|mut line| async move { line.write(b"HTTP/1.1 400 Bad Request\r\n\r\n").await }).await;
    let client = client(peer.endpoint().port, &Authority::made(), None);
    let error = client.checkout(Freshness::Reuse).await.err().unwrap();
    assert!(matches!(error, ConnectError::Tls(_)) && error.to_string().contains("it does not speak TLS"), "{error}");
}

#[test]
fn pem_files_without_a_certificate_or_key_are_refused() {
    let offer = Protocol::Http1.offer();
    assert!(matches!(client_config(Some(b"nothing here"), None, offer), Err(TlsError::NoCertificate)));
    let broken = b"-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n";
    assert!(matches!(client_config(Some(broken), None, offer), Err(TlsError::Pem(_))));
    let (certificates, _) = Authority::made().issue("gateway");
    let keyless = Identity { certificates: certificates.as_bytes(), key: b"" };
    assert!(matches!(client_config(None, Some(keyless), offer), Err(TlsError::NoKey)));
    let (_, other) = Authority::made().issue("gateway");
    let mistaken = Identity { key: other.as_bytes(), ..keyless };
    assert!(matches!(client_config(None, Some(mistaken), offer), Err(TlsError::OtherKey)));
}
