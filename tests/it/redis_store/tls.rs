//! TLS to the server: who is trusted, and who we are.

use std::time::Duration;

use oncegate::redis_url::RedisUrl;
use oncegate::store::redis::{OpenError, RedisStore, Settings};
use oncegate::store::{Store, StoreError};
use oncegate::tls::{Identity, client_config};
use tempfile::TempDir;

use super::rights::grant;
use super::{PATIENT, say};
use crate::support::authority::Authority;
use crate::support::eventually;
use crate::support::operations::*;
use crate::support::redis_fleet::MASTER;
use crate::support::redis_server::{RedisServer, free_port};

/// A server that speaks TLS on a port of its own.
struct Secured {
    server: RedisServer,
    port: u16,
    _files: TempDir,
}

/// What a server is told to speak TLS at `port` with these papers, and to demand some of its clients if `asks`.
fn terms(papers: &TempDir, port: u16, asks: bool) -> [(&'static str, String); 5] {
    let path = |file: &str| papers.path().join(file).display().to_string();
    [
        ("tls-port", port.to_string()),
        ("tls-cert-file", path("cert.pem")),
        ("tls-key-file", path("key.pem")),
        ("tls-ca-cert-file", path("ca.pem")),
        ("tls-auth-clients", if asks { "yes" } else { "no" }.to_owned()),
    ]
}

fn secured(authority: &Authority, name: &str, asks: bool, more: &[&str]) -> Secured {
    let (files, port) = (authority.papers(name), free_port());
    let terms = terms(&files, port, asks).into_iter().flat_map(|(name, value)| [format!("--{name}"), value]);
    let terms: Vec<_> = terms.collect();
    let words = terms.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>();
    Secured { server: RedisServer::with(&words), port, _files: files }
}

async fn open(
    server: &Secured,
    trusted: Option<&Authority>,
    identity: Option<Identity<'_>>,
) -> Result<RedisStore, OpenError> {
    let url = format!("rediss://localhost:{}", server.port);
    RedisStore::open(trusting(trusted, identity, &url)).await
}

fn trusting(trusted: Option<&Authority>, identity: Option<Identity<'_>>, url: &str) -> Settings {
    let authorities = trusted.map(Authority::pem);
    let tls = client_config(authorities.as_ref().map(String::as_bytes), identity, &[]).unwrap();
    Settings { tls: Some(tls), ..Settings::new(RedisUrl::parse(url).unwrap(), "shop", PATIENT) }
}

#[tokio::test]
async fn a_server_of_the_right_authority_is_trusted() {
    let authority = Authority::made();
    let server = secured(&authority, "localhost", false, &[]);
    let store = open(&server, Some(&authority), None).await.unwrap();
    won(&store, claim(&store, "k")).await;
}

#[tokio::test]
async fn a_server_of_another_authority_or_name_is_refused() {
    let (authority, stranger) = (Authority::made(), Authority::made());
    let server = secured(&authority, "localhost", false, &[]);
    for trusted in [Some(&stranger), None] {
        assert!(matches!(open(&server, trusted, None).await, Err(OpenError::Tls(_))));
    }
    let server = secured(&authority, "redis.example", false, &[]);
    assert!(matches!(open(&server, Some(&authority), None).await, Err(OpenError::Tls(_))));
}

#[tokio::test]
async fn a_server_that_asks_gets_the_client_certificate() {
    let authority = Authority::made();
    let server = secured(&authority, "localhost", true, &[]);
    let refused = open(&server, Some(&authority), None).await.err();
    assert!(matches!(refused, Some(OpenError::Tls(_))), "{refused:?}");
    let (certificate, key) = authority.issue("gateway");
    let identity = Identity { certificates: certificate.as_bytes(), key: key.as_bytes() };
    let store = open(&server, Some(&authority), Some(identity)).await.unwrap();
    won(&store, claim(&store, "k")).await;
}

#[tokio::test]
async fn each_side_has_to_speak_tls() {
    let authority = Authority::made();
    let server = secured(&authority, "localhost", false, &[]);
    let (plain, encrypted) = (server.server.address().port(), server.port);
    for url in [format!("redis://localhost:{encrypted}"), format!("rediss://localhost:{plain}")] {
        let store = RedisStore::connect(&url, "shop", Duration::from_millis(500)).await.unwrap();
        let error = store.ping().await.unwrap_err();
        assert!(matches!(error, StoreError::Away(_)), "{url}: {error:?}");
    }
}

/// The least rights at a sentinel, too, and a password that is not that of the servers.
const SENTINEL_RIGHTS: [&str; 2] = ["+sentinel|get-master-addr-by-name", "+sentinel|masters"];

#[tokio::test]
async fn a_sentinel_and_its_master_have_logins_and_certificates() {
    let (authority, stranger) = (Authority::made(), Authority::made());
    let master = secured(&authority, "127.0.0.1", false, &["--tls-replication", "yes"]);
    grant(&master.server, "gateway", "", &[]);
    say::<()>(&master.server, &["CONFIG", "SET", "requirepass", "sesame"]);
    let (files, port) = (authority.papers("127.0.0.1"), free_port());
    let sentinel = RedisServer::sentinel(&lines_of_sentinel(&terms(&files, port, false), master.port));
    for (user, rights) in [("gateway", &SENTINEL_RIGHTS[..]), ("half", &SENTINEL_RIGHTS[..1])] {
        say::<()>(&sentinel, &[&["ACL", "SETUSER", user, "on", ">guard", "-@all"], rights].concat());
    }
    say::<()>(&sentinel, &["ACL", "SETUSER", "default", "off"]);
    let opened = async |trusted, login: &str, sentinel_login: Option<(&str, &str)>| {
        let url = format!("rediss+sentinel://{login}@127.0.0.1:{port}/{MASTER}");
        let sentinel_login = sentinel_login.map(|(user, password)| (Some(user.to_owned()), password.to_owned()));
        RedisStore::open(Settings { sentinel_login, ..trusting(Some(trusted), None, &url) }).await
    };
    let guard = Some(("gateway", "guard"));
    let store = opened(&authority, "gateway:secret", guard).await.unwrap();
    won(&store, claim(&store, "k")).await;
    for (login, sentinel_login) in
        [("gateway:secret", Some(("gateway", "secret"))), ("gateway:secret", None), ("gateway:guard", guard)]
    {
        let error = opened(&authority, login, sentinel_login).await.err();
        assert!(matches!(error, Some(OpenError::Credentials(_))), "{login}, {sentinel_login:?}: {error:?}");
    }
    let error = opened(&authority, "gateway:secret", Some(("half", "guard"))).await.err();
    assert!(matches!(error, Some(OpenError::Refused(_))), "{error:?}");
    let error = opened(&stranger, "gateway:secret", guard).await.err();
    assert!(matches!(error, Some(OpenError::Tls(_))), "{error:?}");
}

fn lines_of_sentinel(terms: &[(&str, String)], master: u16) -> String {
    let terms: String = terms.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
    format!(
        "{terms}tls-replication yes\nsentinel monitor {MASTER} 127.0.0.1 {master} 1\n\
         sentinel auth-pass {MASTER} sesame\n"
    )
}

#[tokio::test]
async fn a_cluster_has_logins_and_certificates() {
    let (authority, stranger) = (Authority::made(), Authority::made());
    let bus = free_port().to_string();
    let words = ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", &bus];
    let node = secured(&authority, "127.0.0.1", false, &words);
    say::<()>(&node.server, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let is_whole = || say::<String>(&node.server, &["CLUSTER", "INFO"]).contains("cluster_state:ok").then_some(());
    eventually("a cluster", is_whole);
    grant(&node.server, "gateway", "", &["+cluster|info", "+cluster|slots"]);
    say::<()>(&node.server, &["CONFIG", "SET", "requirepass", "sesame"]);
    let opened = async |trusted, login: &str| {
        let url = format!("rediss+cluster://{login}127.0.0.1:{}", node.port);
        RedisStore::open(trusting(Some(trusted), None, &url)).await
    };
    let store = opened(&authority, "gateway:secret@").await.unwrap();
    won(&store, claim(&store, "k")).await;
    for login in ["gateway:sesame@", ""] {
        let error = opened(&authority, login).await.err();
        assert!(matches!(error, Some(OpenError::Credentials(_))), "{login}: {error:?}");
    }
    let error = opened(&stranger, "gateway:secret@").await.err();
    assert!(matches!(error, Some(OpenError::Tls(_))), "{error:?}");
}
