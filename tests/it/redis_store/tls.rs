//! TLS to the server: who is trusted, and who we are.

use std::fs;
use std::time::Duration;

use oncegate::redis_url::RedisUrl;
use oncegate::store::redis::{OpenError, RedisStore, Settings};
use oncegate::store::{Store, StoreError};
use oncegate::tls::{Identity, client_config};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use super::PATIENT;
use crate::support::operations::*;
use crate::support::redis_server::{RedisServer, free_port};

struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A server that speaks TLS on a port of its own.
struct Secured {
    server: RedisServer,
    port: u16,
    _files: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for `name` and its key, both in PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        // With the authority's own name it would pass for signed by itself.
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// It has a certificate for `name`, and demands one of its clients if `asks`.
fn secured(authority: &Authority, name: &str, asks: bool) -> Secured {
    let files = tempfile::tempdir().unwrap();
    let (certificate, key) = authority.issue(name);
    let path = |file: &str| files.path().join(file).display().to_string();
    for (file, text) in [("cert.pem", certificate), ("key.pem", key), ("ca.pem", authority.0.pem())] {
        fs::write(path(file), text).unwrap();
    }
    let port = free_port();
    let server = RedisServer::with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("cert.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
        "--tls-auth-clients",
        if asks { "yes" } else { "no" },
    ]);
    Secured { server, port, _files: files }
}

async fn open(
    server: &Secured,
    trusted: Option<&Authority>,
    identity: Option<Identity<'_>>,
) -> Result<RedisStore, OpenError> {
    let url = RedisUrl::parse(&format!("rediss://localhost:{}", server.port)).unwrap();
    let authorities = trusted.map(|authority| authority.0.pem());
    let tls = client_config(authorities.as_ref().map(String::as_bytes), identity, &[]).unwrap();
    RedisStore::open(Settings { tls: Some(tls), ..Settings::new(url, "shop", PATIENT) }).await
}

#[tokio::test]
async fn a_server_of_the_right_authority_is_trusted() {
    let authority = Authority::new();
    let server = secured(&authority, "localhost", false);
    let store = open(&server, Some(&authority), None).await.unwrap();
    won(&store, claim(&store, "k")).await;
}

#[tokio::test]
async fn a_server_of_another_authority_or_name_is_refused() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = secured(&authority, "localhost", false);
    for trusted in [Some(&stranger), None] {
        assert!(matches!(open(&server, trusted, None).await, Err(OpenError::Tls(_))));
    }
    let server = secured(&authority, "redis.example", false);
    assert!(matches!(open(&server, Some(&authority), None).await, Err(OpenError::Tls(_))));
}

#[tokio::test]
async fn a_server_that_asks_gets_the_client_certificate() {
    let authority = Authority::new();
    let server = secured(&authority, "localhost", true);
    let refused = open(&server, Some(&authority), None).await.err();
    assert!(matches!(refused, Some(OpenError::Tls(_))), "{refused:?}");
    let (certificate, key) = authority.issue("gateway");
    let identity = Identity { certificates: certificate.as_bytes(), key: key.as_bytes() };
    let store = open(&server, Some(&authority), Some(identity)).await.unwrap();
    won(&store, claim(&store, "k")).await;
}

#[tokio::test]
async fn each_side_has_to_speak_tls() {
    let authority = Authority::new();
    let server = secured(&authority, "localhost", false);
    let (plain, encrypted) = (server.server.address().port(), server.port);
    for url in [format!("redis://localhost:{encrypted}"), format!("rediss://localhost:{plain}")] {
        let store = RedisStore::connect(&url, "shop", Duration::from_millis(500)).await.unwrap();
        let error = store.ping().await.unwrap_err();
        assert!(matches!(error, StoreError::Away(_)), "{url}: {error:?}");
    }
}
