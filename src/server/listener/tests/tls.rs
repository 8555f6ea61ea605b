//! The same over TLS, and what only TLS has.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::tls::authority::Authority;
use crate::tls::{Identity, SERVER_PROTOCOLS, client_config, server_config};

/// Enough for a machine with other things to do.
const HANDSHAKE: Duration = Duration::from_millis(700);
const PLACES: usize = 10;
const GET: &str = "GET /1 HTTP/1.1\r\nHost: gw\r\n\r\n";

fn certificates(authority: &Authority, clients: Option<&Authority>) -> Arc<ServerConfig> {
    let (certificates, key) = authority.issue("gw");
    let clients = clients.map(Authority::pem);
    let identity = Identity { certificates: certificates.as_bytes(), key: key.as_bytes() };
    server_config(identity, clients.as_ref().map(String::as_bytes), SERVER_PROTOCOLS).unwrap()
}

fn secured(config: Arc<ServerConfig>, limits: Limits, places: usize) -> Gateway {
    Gateway::greeting(Some(watch::Sender::new(config).subscribe()), limits, places, LONG)
}

fn trusting(authority: &Authority) -> Arc<ClientConfig> {
    client_config(Some(authority.pem().as_bytes()), None, &["h3", "http/1.1"]).unwrap()
}

fn certified(authority: &Authority, clients: &Authority) -> Arc<ClientConfig> {
    let (certificates, key) = clients.issue("agent");
    let identity = Identity { certificates: certificates.as_bytes(), key: key.as_bytes() };
    client_config(Some(authority.pem().as_bytes()), Some(identity), &[]).unwrap()
}

fn speaking(authority: &Authority, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

impl Gateway {
    async fn greet(&self, config: &Arc<ClientConfig>) -> io::Result<Client<TlsStream<TcpStream>>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("gw").unwrap();
        Ok(Client(TlsConnector::from(Arc::clone(config)).connect(name, stream).await?))
    }

    /// Why a client does not get through, be it in the handshake or right after it, as TLS 1.3 has it.
    async fn refusal(&self, config: &Arc<ClientConfig>) -> String {
        let mut client = match self.greet(config).await {
            Ok(client) => client,
            Err(error) => return error.to_string(),
        };
        client.0.read_u8().await.unwrap_err().to_string()
    }
}

impl Client<TlsStream<TcpStream>> {
    async fn asks(&mut self) -> String {
        self.send(GET).await;
        self.until("/1:0").await
    }

    fn kind(&self) -> Option<HandshakeKind> {
        self.0.get_ref().1.handshake_kind()
    }
}

#[tokio::test]
async fn requests_are_answered_in_both_versions() {
    let authority = Authority::made();
    let gateway = secured(certificates(&authority, None), limits(), PLACES);
    for version in [&TLS12, &TLS13] {
        let mut client = gateway.greet(&speaking(&authority, version)).await.unwrap();
        assert_eq!(client.0.get_ref().1.protocol_version(), Some(version.version));
        assert_eq!(status(&client.asks().await), "200");
        assert_eq!(status(&client.asks().await), "200");
    }
}

#[tokio::test]
async fn a_client_that_comes_again_is_known_and_gets_the_protocol_that_both_know() {
    let authority = Authority::made();
    let gateway = secured(certificates(&authority, None), limits(), PLACES);
    let config = trusting(&authority);
    let mut first = gateway.greet(&config).await.unwrap();
    first.asks().await;
    assert_eq!(first.0.get_ref().1.alpn_protocol(), Some(b"http/1.1".as_slice()));
    let mut second = gateway.greet(&config).await.unwrap();
    second.asks().await;
    assert_eq!([first.kind(), second.kind()], [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]);
}

#[tokio::test]
async fn a_client_that_has_said_everything_over_tls_still_gets_its_answer() {
    let authority = Authority::made();
    let gateway = secured(certificates(&authority, None), limits(), PLACES);
    let client = gateway.greet(&trusting(&authority)).await.unwrap();
    gateway.answers_half_closed(client).await;
}

/// A read that ends without `close_notify` is an error, so each `rest` here has seen one.
#[tokio::test]
async fn a_stop_says_goodbye_and_waits_for_no_handshake() {
    let authority = Authority::made();
    let gateway = secured(certificates(&authority, None), limits(), PLACES);
    let config = trusting(&authority);
    let silent = gateway.connect().await;
    let mut idle = gateway.greet(&config).await.unwrap();
    idle.asks().await;
    let mut busy = gateway.greet(&config).await.unwrap();
    busy.send("GET /slow HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    gateway.echo.waiting.notified().await;
    gateway.stop.cancel();
    assert_eq!((silent.rest().await, idle.rest().await), (String::new(), String::new()));
    gateway.echo.go.notify_one();
    let answer = busy.rest().await;
    assert!(answer.contains("connection: close") && answer.ends_with("/slow:0"), "{answer}");
    gateway.serving.await.unwrap();
}

#[tokio::test]
async fn plain_http_is_told_what_is_spoken_here() {
    let gateway = secured(certificates(&Authority::made(), None), limits(), PLACES);
    let answer = gateway.tell(format!("{GET}{GET}")).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("speaks TLS"), "{answer}");
    assert!(answer.contains("connection: close") && answer.matches("HTTP/1.1 ").count() == 1, "{answer}");
    assert_eq!(gateway.echo.served(), [""; 0]);
}

#[tokio::test]
async fn what_begins_like_tls_and_is_none_gets_an_alert() {
    let gateway = secured(certificates(&Authority::made(), None), limits(), PLACES);
    let mut client = gateway.connect().await;
    client.send(b"\x16GET / HTTP/1.1\r\n\r\n").await;
    let mut alert = Vec::new();
    client.0.read_to_end(&mut alert).await.unwrap();
    assert_eq!(alert.first(), Some(&21), "{alert:?}");
}

#[tokio::test]
async fn a_handshake_that_does_not_come_holds_up_nobody_and_ends() {
    let authority = Authority::made();
    let gateway = secured(certificates(&authority, None), Limits { header_timeout: HANDSHAKE, ..limits() }, 2);
    let silent = gateway.connect().await;
    let mut half = gateway.connect().await;
    half.send(b"\x16\x03\x01").await;
    // Both places are taken until the time of the handshakes is over.
    let mut third = gateway.greet(&trusting(&authority)).await.unwrap();
    assert_eq!(status(&third.asks().await), "200");
    assert_eq!((silent.rest().await, half.rest().await), (String::new(), String::new()));
}

#[tokio::test]
async fn without_a_certificate_of_the_right_authority_nobody_is_let_in() {
    let (authority, clients) = (Authority::made(), Authority::made());
    let gateway = secured(certificates(&authority, Some(&clients)), limits(), PLACES);
    for version in [&TLS12, &TLS13] {
        let refusal = gateway.refusal(&speaking(&authority, version)).await;
        assert!(refusal.contains("CertificateRequired") || refusal.contains("HandshakeFailure"), "{refusal}");
    }
    let stranger = gateway.refusal(&certified(&authority, &Authority::made())).await;
    assert!(stranger.contains("alert"), "{stranger}");
    assert_eq!(gateway.echo.served(), [""; 0]);

    let config = certified(&authority, &clients);
    for _ in 0..2 {
        let mut client = gateway.greet(&config).await.unwrap();
        assert_eq!(status(&client.asks().await), "200");
        assert_eq!(client.kind(), Some(HandshakeKind::Full), "a certificate is shown each time");
    }
}

#[tokio::test]
async fn other_certificates_are_for_new_connections() {
    let (before, after) = (Authority::made(), Authority::made());
    let current = watch::Sender::new(certificates(&before, None));
    let gateway = Gateway::greeting(Some(current.subscribe()), limits(), PLACES, LONG);
    let mut old = gateway.greet(&trusting(&before)).await.unwrap();
    old.asks().await;
    current.send_replace(certificates(&after, None));
    gateway.greet(&trusting(&after)).await.unwrap().asks().await;
    assert!(gateway.greet(&trusting(&before)).await.is_err());
    old.asks().await;
}

#[tokio::test]
async fn a_client_that_speaks_http_2_is_answered_in_it() {
    let authority = Authority::made();
    let gateway = secured(certificates(&authority, None), limits(), PLACES);
    let config = client_config(Some(authority.pem().as_bytes()), None, &["http/1.1", "h2"]).unwrap();
    let client = gateway.greet(&config).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(client.0).await.unwrap();
    let driving = tokio::spawn(connection);
    let request = Request::get("https://gw/1").body(()).unwrap();
    let (answer, _) = sender.send_request(request, true).unwrap();
    assert_eq!(answer.await.unwrap().status(), 200);
    gateway.stop.cancel();
    gateway.serving.await.unwrap();
    driving.await.unwrap().unwrap();
}
