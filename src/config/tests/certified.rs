//! Certificates, keys and authorities: what lies in the files is looked at when the configuration is read.

use tempfile::TempDir;

use super::describing::line;
use super::*;
use crate::config::Forward;
use crate::tls::authority::Authority;

/// The least file with `[server] tls` in line 9.
fn with_tls(tls: &str) -> String {
    format!("{LEAST}[server]\ntls = {{ {tls} }}\n")
}

fn path(files: &TempDir, file: &str) -> String {
    files.path().join(file).display().to_string()
}

fn papers() -> (TempDir, String, String) {
    let files = Authority::made().papers("gw");
    let (cert, key) = (path(&files, "cert.pem"), path(&files, "key.pem"));
    (files, cert, key)
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_beside_its_path() {
    let (files, cert, key) = papers();
    let (_stranger, _, other_key) = papers();
    let refused = |tls: &str| errors(&with_tls(tls)).replace(&path(&files, ""), "").replace(&other_key, "other.pem");
    for (tls, message) in [
        (
            format!("cert = '{cert}'"),
            "gateway.toml:9:7: server.tls.key: missing; a PEM file with the key of the certificate",
        ),
        (
            format!("cert = '/nope', key = '{key}'"),
            "gateway.toml:9:16: server.tls.cert = \"/nope\": the file `/nope` cannot be read: No such file or directory (os \
             error 2)",
        ),
        (
            format!("cert = '{key}', key = '{key}'"),
            "gateway.toml:9:16: server.tls.cert = \"key.pem\": a PEM file with at least one certificate: no certificate in \
             the PEM file",
        ),
        (
            format!("key = '{cert}', cert = '{cert}'"),
            "gateway.toml:9:15: server.tls.key = \"cert.pem\": a PEM file with the key of the certificate in `cert`: no \
             private key in the PEM file, or one that is encrypted",
        ),
        (
            format!("key = '{other_key}', cert = '{cert}'"),
            "gateway.toml:9:15: server.tls.key = \"other.pem\": a PEM file with the key of the certificate in `cert`: the \
             key of another certificate",
        ),
        (
            format!("client_ca = '{key}', cert = '{cert}', key = '{key}'"),
            "gateway.toml:9:21: server.tls.client_ca = \"key.pem\": a PEM file with at least one certificate: no \
             certificate in the PEM file",
        ),
        (
            format!("ca = '{cert}', cert = '{cert}', key = '{key}'"),
            "gateway.toml:9:9: server.tls.ca: unknown key `ca`; [server.tls] accepts cert, key, client_ca",
        ),
    ] {
        assert_eq!(refused(&tls), message, "{tls}");
    }
    assert_eq!(
        errors(&format!("{LEAST}[server]\ntls = 1\n")).lines().next(),
        Some("gateway.toml:9:7: server.tls = 1: a table")
    );
}

#[test]
fn a_certificate_that_is_none_is_not_blamed_on_its_key() {
    let (files, cert, key) = papers();
    std::fs::write(&cert, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let said = errors(&with_tls(&format!("cert = '{cert}', key = '{key}'"))).replace(&path(&files, ""), "");
    assert!(said.starts_with("gateway.toml:9:16: server.tls.cert = \"cert.pem\": "), "{said}");
}

#[test]
fn what_agents_are_shown_is_described_and_no_key_is() {
    let (files, cert, key) = papers();
    let plain = config(&with_tls(&format!("cert = '{cert}', key = '{key}'")));
    assert_eq!(line(&plain, "tls"), format!("tls certificate {cert}"));
    let ca = path(&files, "ca.pem");
    let mutual = config(&with_tls(&format!("cert = '{cert}', key = '{key}', client_ca = '{ca}'")));
    assert_eq!(line(&mutual, "tls"), format!("tls certificate {cert}, clients show one of {ca}"));
    assert_eq!(line(&config(LEAST), "tls"), "");
    let secret = std::fs::read_to_string(key).unwrap();
    let secret = secret.lines().nth(1).unwrap();
    assert!(!format!("{mutual:?}").contains(secret));
}

#[test]
fn a_scope_header_off_loopback_is_believed_of_clients_with_a_certificate() {
    let (files, cert, key) = papers();
    let scoped = |tls: &str| {
        let text = with_tls(&format!("cert = '{cert}', key = '{key}'{tls}"));
        errors(&format!("{text}listen = '0.0.0.0:8443'\n[callers]\nscope = 'header:X-Agent'\n"))
    };
    assert!(scoped("").contains("neither `trusted_proxies` nor `tls.client_ca`"), "{}", scoped(""));
    assert_eq!(scoped(&format!(", client_ca = '{}'", path(&files, "ca.pem"))), "");
}

#[test]
fn certificates_that_come_or_go_are_a_change_of_identity() {
    let (files, cert, key) = papers();
    let scoped = |tls: &str| {
        let text = with_tls(&format!("cert = '{cert}', key = '{key}'{tls}"));
        config(&format!("{text}[callers]\nscope = 'credential'\n"))
    };
    let (plain, asked) = (scoped(""), scoped(&format!(", client_ca = '{}'", path(&files, "ca.pem"))));
    let told = Config::changes_of_identity(&plain, &asked).new_keys;
    assert_eq!(told, ["route all: callers.scope was credential, is credential with certificates"]);
    let [plain, asked] = [plain, asked].map(|config| config.routes.0[0].rules);
    assert_ne!(plain, asked);
    assert_eq!(plain, config(&format!("{LEAST}[callers]\nscope = 'credential'\n")).routes.0[0].rules);
}

/// The least file with more lines for its upstream, which speaks TLS.
fn to_upstream(lines: &str) -> String {
    LEAST.replace("http://127.0.0.1:9000\"", &format!("https://pay.internal\"\n{lines}"))
}

#[test]
fn what_an_upstream_is_shown_is_described() {
    let (files, cert, key) = papers();
    let ca = path(&files, "ca.pem");
    let over = |lines: &str| line(&config(&to_upstream(lines)), "over TLS");
    assert_eq!(over(""), "");
    assert_eq!(over(&format!("ca_file = '{ca}'")), format!("over TLS that trusts {ca}"));
    let both = over(&format!("client_cert = '{cert}'\nclient_key = '{key}'"));
    assert_eq!(both, format!("over TLS that trusts the public authorities, shows {cert}"));
}

#[test]
fn a_certificate_of_ours_is_a_credential_that_all_callers_share() {
    let (files, cert, key) = papers();
    let seen = |lines: &str| {
        let route = Arc::clone(&config(&to_upstream(lines)).routes.0[0]);
        (route.upstream.carries_credential(), route.key.forward)
    };
    assert_eq!(seen(&format!("client_cert = '{cert}'\nclient_key = '{key}'")), (true, Forward::Made));
    assert_eq!(seen(&format!("ca_file = '{}'", path(&files, "ca.pem"))), (false, Forward::Verbatim));
    assert_eq!(seen("proxy = 'http://agent:s3cret@egress:3128'"), (false, Forward::Verbatim));
}

#[test]
fn a_certificate_for_an_upstream_that_cannot_be_used_is_refused_beside_its_path() {
    let (files, cert, key) = papers();
    let (_stranger, _, other_key) = papers();
    let refused = |lines: &str| errors(&to_upstream(lines)).replace(&path(&files, ""), "");
    for (lines, message) in [
        (
            format!("client_cert = '{cert}'\nclient_key = '{other_key}'"),
            "gateway.toml:4:15: upstreams.main.client_cert = \"cert.pem\": a PEM file with a certificate that `client_key` \
             fits to: the key of another certificate",
        ),
        (
            format!("client_cert = '{cert}'"),
            "gateway.toml:2:1: upstreams.main.client_key: missing; `client_cert` and `client_key` go together",
        ),
        (
            format!("ca_file = '{key}'"),
            "gateway.toml:4:11: upstreams.main.ca_file = \"key.pem\": a PEM file with at least one certificate: no \
             certificate in the PEM file",
        ),
        (
            "client_key = '/nope'".to_owned(),
            "gateway.toml:4:14: upstreams.main.client_key = \"/nope\": the file `/nope` cannot be read: No such file or \
             directory (os error 2)",
        ),
    ] {
        assert_eq!(refused(&lines), message, "{lines}");
    }
}

#[test]
fn a_proxy_is_shown_without_its_credentials() {
    let through = |proxy: &str| line(&config(&to_upstream(&format!("proxy = {proxy:?}"))), "through");
    assert_eq!(through("http://egress"), "through the proxy http://egress");
    let known = through("http://agent:s3cret@egress:3128");
    assert_eq!(known, "through the proxy http://egress:3128, with credentials");
    for (proxy, shown) in [("https://agent:s3cret@egress", "https://***@egress"), ("agent:s3cret@egress", "***@egress")]
    {
        let refused = errors(&to_upstream(&format!("proxy = '{proxy}'")));
        let place = format!("gateway.toml:4:9: upstreams.main.proxy = {shown:?}: a URL such as");
        assert!(refused.starts_with(&place) && !refused.contains("s3cret"), "{refused}");
    }
}

#[test]
fn files_that_change_are_read_anew_and_not_otherwise() {
    let (files, cert, key) = papers();
    let tls = config(&with_tls(&format!("cert = '{cert}', key = '{key}'"))).server.tls.unwrap();
    assert!(tls.reload().unwrap().is_none());
    Authority::made().write("gw", &files);
    let renewed = tls.reload().unwrap().unwrap();
    assert!(renewed.reload().unwrap().is_none());
    std::fs::write(&key, "torn").unwrap();
    let torn = renewed.reload().unwrap_err().to_string();
    assert!(torn.contains(&key) && torn.contains("no private key"), "{torn}");
    std::fs::remove_file(&cert).unwrap();
    assert!(renewed.reload().unwrap_err().to_string().contains("cannot be read"));
}
