//! README.md is true: every command in it runs here and says what is shown, every configuration is accepted, every
//! name exists. So is every configuration in `docs/`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "readme/document.rs"]
mod document;
#[path = "readme/sandbox.rs"]
mod sandbox;
#[path = "readme/service.rs"]
mod service;

use std::fs;
use std::path::Path;

use oncegate::engine::problem::Code;

use document::{Document, Shown};
use sandbox::Sandbox;

fn readme() -> Document {
    Document::parse(include_str!("../README.md"))
}

/// From top to bottom, as a newcomer would: what one block leaves behind is there for the next.
#[test]
fn the_commands_say_what_is_shown() {
    let mut sandbox = Sandbox::new();
    for block in readme().blocks {
        match block.language.as_str() {
            "toml" => sandbox.write("gateway.toml", &block.text),
            "console" => block.commands().iter().for_each(|shown| follow(&mut sandbox, shown)),
            "python" | "js" | "text" => {}
            other => panic!("README.md:{}: nobody checks `{other}`", block.line),
        }
    }
}

fn follow(sandbox: &mut Sandbox, Shown { command, output }: &Shown) {
    match command.as_str() {
        "./test" => assert_is_program(command),
        command if command == "oncegate serve" || command.starts_with("oncegate --upstream") => sandbox.serve(command),
        command => {
            let command = command.replace("cargo run --release --", "oncegate");
            let said = sandbox.run(&command);
            assert!(output.is_like(&said), "$ {command}\nREADME.md shows:\n{output}\nbut it says:\n{said}");
        }
    }
}

/// It would run this test.
fn assert_is_program(command: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checked = std::process::Command::new("bash").arg("-n").arg(root.join(command)).status().unwrap();
    assert!(checked.success());
}

#[test]
fn the_snippets_name_the_gateway_and_the_call() {
    let snippets: Vec<_> =
        readme().blocks.into_iter().filter(|block| ["python", "js"].contains(&block.language.as_str())).collect();
    assert_eq!(snippets.len(), 2);
    for block in &snippets {
        for paragraph in block.text.split("\n\n") {
            let is_addressed = ["http://127.0.0.1:8080", "host: \"127.0.0.1\", port: 8080"];
            let is_named = ["X-Step-Index", "idempotency_key", "idempotencyKey"];
            assert!(is_addressed.iter().any(|address| paragraph.contains(address)), "{paragraph}");
            assert!(is_named.iter().any(|name| paragraph.contains(name)), "{paragraph}");
        }
    }
}

#[test]
fn the_codes_are_the_gateways_own() {
    let rows = readme().rows_below("| code | status | do |");
    assert!(rows.len() > 5);
    for row in rows {
        let [codes, statuses, ..] = row.as_slice() else { panic!("{row:?}") };
        for code in codes.split(", ").map(|code| code.trim_matches('`')) {
            let entry = Code::parse(code).unwrap_or_else(|| panic!("no code {code}")).entry();
            assert!(statuses.contains(&entry.status.to_string()), "{code} is {}", entry.status);
        }
    }
}

#[test]
fn the_files_that_are_linked_are_there() {
    let links = readme().links();
    assert!(links.len() > 5, "{links:?}");
    for link in links.iter().filter(|link| !link.starts_with("http")) {
        let (file, place) = link.split_once('#').unwrap_or((link, ""));
        let text =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_else(|_| panic!("{link}"));
        let mut headings = text.lines().filter_map(|line| line.strip_prefix("## "));
        let is_there = headings.any(|heading| heading.to_lowercase().replace(' ', "-") == place);
        assert!(place.is_empty() || is_there, "{link}");
    }
}

/// The tables `[store]` of the other pages, with a service behind them and the files and secrets that they name.
#[test]
fn what_the_pages_configure_is_accepted() {
    let pages = [include_str!("../docs/redis.md"), include_str!("../docs/encryption.md")];
    let blocks = pages.iter().flat_map(|page| Document::parse(page).blocks);
    let tables: Vec<_> = blocks.filter(|block| block.language == "toml").map(|block| block.text).collect();
    assert_eq!(tables.len(), 3);
    let certified = rcgen::generate_simple_self_signed(["gateway".to_owned()]).unwrap();
    for table in tables {
        let table = table.replace("/run/secrets/oncegate-key", "oncegate-key");
        let redis = if table.contains("encryption") || table.contains("url") { "" } else { REDIS };
        let mut sandbox = Sandbox::new();
        sandbox.write("gateway.toml", &format!("{table}{redis}{SERVICE}"));
        sandbox.write("oncegate-key", "8f1d0c62b7e94a35d0268b5c7fe1394a6d02c8b1475ef390ab6c1d2e8f073459");
        for file in ["redis-ca.pem", "gateway.pem"] {
            sandbox.write(file, &certified.cert.pem());
        }
        sandbox.write("gateway.key", &certified.signing_key.serialize_pem());
        let secrets = "REDIS_URL='rediss+sentinel://gateway:secret@s1,s2,s3/payments' SENTINEL_PASSWORD=secret";
        let said = sandbox.run(&format!("{secrets} oncegate check"));
        assert!(said.contains("durability") && !said.contains("secret@"), "{table}\n{said}");
    }
}

/// The page on TLS, with a route and the files that it names.
#[test]
fn what_the_page_on_tls_configures_is_accepted() {
    let blocks = Document::parse(include_str!("../docs/tls.md")).blocks;
    let tables: String = blocks.into_iter().filter(|block| block.language == "toml").map(|block| block.text).collect();
    let (_, route) = SERVICE.split_once("[[routes]]").unwrap();
    let certified = rcgen::generate_simple_self_signed(["gateway".to_owned()]).unwrap();
    let mut sandbox = Sandbox::new();
    sandbox.write("gateway.toml", &format!("{tables}[[routes]]{route}"));
    for file in ["gateway.pem", "agents-ca.pem", "payments-ca.pem"] {
        sandbox.write(file, &certified.cert.pem());
    }
    sandbox.write("gateway.key", &certified.signing_key.serialize_pem());
    let said = sandbox.run("EGRESS='http://me:secret@egress:3128' oncegate check");
    assert!(said.contains("tls      certificate gateway.pem, clients show one of agents-ca.pem"), "{said}");
    assert!(said.contains("over TLS that trusts payments-ca.pem, shows gateway.pem"), "{said}");
    assert!(
        said.contains("through the proxy http://egress:3128, with credentials") && !said.contains("secret"),
        "{said}"
    );
}

const REDIS: &str = "url = 'redis://127.0.0.1'\nnamespace = 'checkout'\n";
const SERVICE: &str = "
[upstreams.payments]
url = 'http://127.0.0.1:9000'
[[routes]]
name = 'payments'
match = { path = '/charges' }
upstream = 'payments'
";
