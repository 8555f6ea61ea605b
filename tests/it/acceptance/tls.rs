//! TLS towards agents, with a client that has nothing to do with us.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::authority::Authority;
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::ScriptedUpstream;

on! { [memory]
    an_agent_over_tls_is_served_and_the_service_learns_of_it
    a_client_without_a_certificate_is_turned_away_in_the_handshake
    holders_of_two_certificates_are_two_callers
    renewed_certificates_are_used_without_a_restart
}

/// A gateway for `localhost` with these papers, which are in `files`.
fn secured(upstream: &ScriptedUpstream, files: &TempDir, more: &str) -> Settings {
    let path = |file: &str| files.path().join(file).display().to_string();
    let tls = format!("server.tls = {{ cert = '{}', key = '{}'{more} }}", path("cert.pem"), path("key.pem"));
    Settings::of(upstream).top(&tls)
}

/// Status and protocol version of an answer, or why there is none.
fn curl(gateway: &Gateway, authority: &Path, words: &[&str]) -> Result<String, String> {
    let url = format!("https://localhost:{}/charges", gateway.address().port());
    let mut curl = Command::new("curl");
    curl.args(["-4", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{http_version}", "-d", "amount=1"]);
    let output = curl.arg("--cacert").arg(authority).args(words).arg(url).output().unwrap();
    let said = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(said(output.stdout)) } else { Err(said(output.stderr)) }
}

fn an_agent_over_tls_is_served_and_the_service_learns_of_it(ground: Ground) {
    let (upstream, files) = (ScriptedUpstream::start(), Authority::made().papers("localhost"));
    let gateway = secured(&upstream, &files, "").start(&ground);
    let ca = files.path().join("ca.pem");

    let first = ["-H", "Idempotency-Key: 1", "--tlsv1.3", "--http1.1"];
    let second = ["-H", "Idempotency-Key: 2", "--tls-max", "1.2"];
    for _ in 0..2 {
        assert_eq!(curl(&gateway, &ca, &first), Ok("201 1.1".to_owned()));
        assert_eq!(curl(&gateway, &ca, &second), Ok("201 2".to_owned()));
    }

    assert_eq!(upstream.effects(), 2);
    assert!(upstream.seen().iter().all(|seen| seen.header("X-Forwarded-Proto") == Some("https")));
    let plain = gateway.call("GET", "/charges").send().expect_problem(400, "invalid-request");
    assert!(plain.json()["detail"].as_str().unwrap().contains("speaks TLS"), "{plain:?}");
}

fn a_client_without_a_certificate_is_turned_away_in_the_handshake(ground: Ground) {
    let (upstream, clients) = (ScriptedUpstream::start(), Authority::made());
    let (files, theirs) = (Authority::made().papers("localhost"), clients.papers("agent"));
    let path = |file: &str| theirs.path().join(file).display().to_string();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    let gateway = secured(&upstream, &files, &format!(", client_ca = '{}'", path("ca.pem"))).start(&ground);
    let ca = files.path().join("ca.pem");

    let refused = curl(&gateway, &ca, &[]).unwrap_err();
    assert!(refused.contains("alert"), "{refused}");
    assert_eq!(upstream.effects(), 0);
    assert_eq!(curl(&gateway, &ca, &["--cert", &cert, "--key", &key]), Ok("201 2".to_owned()));
}

fn holders_of_two_certificates_are_two_callers(ground: Ground) {
    let (upstream, clients, files) =
        (ScriptedUpstream::start(), Authority::made(), Authority::made().papers("localhost"));
    let theirs = ["alice", "bob"].map(|name| clients.papers(name));
    let path = |files: &TempDir, file: &str| files.path().join(file).display().to_string();
    let client_ca = format!(", client_ca = '{}'", path(&theirs[0], "ca.pem"));
    let settings = secured(&upstream, &files, &client_ca).top("callers.scope = 'credential'");
    let gateway = settings.start(&ground);

    for papers in [&theirs[0], &theirs[1], &theirs[0]] {
        let (cert, key) = (path(papers, "cert.pem"), path(papers, "key.pem"));
        let words = ["--cert", &cert, "--key", &key, "-H", "Idempotency-Key: k-1"];
        assert_eq!(curl(&gateway, &files.path().join("ca.pem"), &words), Ok("201 2".to_owned()));
    }

    assert_eq!((upstream.effects(), gateway.operations("").len()), (2, 2), "the third is a replay");
}

fn renewed_certificates_are_used_without_a_restart(ground: Ground) {
    let (upstream, files, renewed) =
        (ScriptedUpstream::start(), Authority::made().papers("localhost"), Authority::made());
    let gateway = secured(&upstream, &files, "").start(&ground);
    let ca = files.path().join("ca.pem");
    assert!(curl(&gateway, &ca, &[]).is_ok());

    renewed.write("localhost", &files);
    eventually("the renewed certificate", || curl(&gateway, &ca, &[]).ok());

    std::fs::write(files.path().join("key.pem"), "torn").unwrap();
    eventually("a warning", || {
        let warnings = gateway.admin("/v1/status")["warnings"].to_string();
        warnings.contains("the previous certificates stay in use").then_some(())
    });
    assert!(curl(&gateway, &ca, &[]).is_ok());
    assert!(gateway.log().contains("no private key in the PEM file"));
}
