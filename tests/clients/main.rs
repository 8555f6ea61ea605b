//! The clients that agents use, as they are published, through a gateway: each plain and streaming, guarded and not.
//!
//! Downloads them once into the folder of the build; run by `./test soak`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(unreachable_pub, reason = "nobody imports from a test binary")]

mod installed;
mod relay;
mod sdks;
#[allow(dead_code, reason = "what only the other suites need")]
#[path = "../it/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::installed::{node_script, python};
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");

/// A service and the gateway before it.
struct Scene {
    service: Child,
    gateway: Gateway,
}

impl Scene {
    fn open() -> Self {
        let mut service = Command::new(python());
        let mut service = service.arg("service.py").current_dir(FOLDER).stdout(Stdio::piped()).spawn().unwrap();
        let mut told = String::new();
        BufReader::new(service.stdout.take().unwrap()).read_line(&mut told).unwrap();
        let told: Value = serde_json::from_str(&told).unwrap();
        let route = |name: &str, upstream: &str, more: &str| {
            format!("[[routes]]\nname = '{name}'\nmatch.path = '/{name}'\nupstream = '{upstream}'\n{more}\n")
        };
        let settings = Settings::towards(&format!("http://{}", told["http"].as_str().unwrap()));
        let grpc =
            format!("upstreams.grpc.url = 'http://{}'\nupstreams.grpc.protocol = 'h2'", told["grpc"].as_str().unwrap());
        let gateway = settings
            .top(&grpc)
            .and(&route("open", "payments", "key.mode = 'off'\nmax_body = '8MiB'"))
            .and(&route("guarded", "payments", "max_body = '8MiB'"))
            .and(&route("small", "payments", "max_body = '1KiB'"))
            .and(&route("Open", "grpc", "key.mode = 'off'\nmax_body = '8MiB'"))
            .and(&route("Guarded", "grpc", ""))
            .start(&Ground::memory());
        Self { service, gateway }
    }

    /// A client has to be content.
    #[track_caller]
    fn satisfies(&self, client: &mut Command) {
        let output = client.arg(self.gateway.address().to_string()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.service.kill());
        drop(self.service.wait());
    }
}

#[track_caller]
fn python_is_content(client: &str) {
    Scene::open().satisfies(Command::new(python()).arg(Path::new(FOLDER).join("clients.py")).arg(client));
}

#[track_caller]
fn node_is_content(client: &str) {
    Scene::open().satisfies(Command::new("node").arg(node_script("clients.mjs")).arg(client));
}

#[test]
fn httpx() {
    python_is_content("httpx");
}

#[test]
fn httpx_in_http2() {
    python_is_content("httpx-h2");
}

#[test]
fn aiohttp() {
    python_is_content("aiohttp");
}

#[test]
fn websockets() {
    python_is_content("websockets");
}

#[test]
fn grpcio() {
    python_is_content("grpcio");
}

#[test]
fn fetch_of_node() {
    node_is_content("fetch");
}

#[test]
fn undici() {
    node_is_content("undici");
}

#[test]
fn curl() {
    let scene = Scene::open();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let curl = |words: &[&str], input: &[u8]| {
            let mut curl = Command::new("curl");
            curl.args(["-sS", version]).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut curl = curl.spawn().unwrap();
            curl.stdin.take().unwrap().write_all(input).unwrap();
            let output = curl.wait_with_output().unwrap();
            assert!(output.status.success(), "{version} {words:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let url = |path: &str| format!("http://{}{path}", scene.gateway.address());
        let key = format!("Idempotency-Key: {version}");
        let charge = || curl(&["-H", &key, "-d", "amount=1", "-w", " %{http_code}", &url("/guarded/charges")], b"");
        assert_eq!(charge(), charge());
        let replay = curl(&["-D", "-", "-H", &key, "-d", "amount=1", &url("/guarded/charges")], b"");
        assert!(replay.contains("idempotent-replayed: true"), "{replay}");

        let large = vec![b'x'; 3 << 20];
        for path in ["/open/upload", "/guarded/upload"] {
            let told: Value = serde_json::from_str(&curl(&["-T", "-", &url(path)], &large)).unwrap();
            assert_eq!(told["length"], large.len(), "{version}");
            let told: Value = serde_json::from_str(&curl(&["--data-binary", "@-", &url(path)], &large)).unwrap();
            assert_eq!(told["length"], large.len(), "{version}");
        }
        let refused = curl(&["--data-binary", "@-", "-w", " %{http_code}", &url("/small")], &large);
        assert!(refused.ends_with(" 413"), "{refused}");
        events_come_one_by_one(version, &url);
    }
}

/// The service says the next one when it is asked for it.
fn events_come_one_by_one(version: &str, url: &dyn Fn(&str) -> String) {
    for path in ["/open/events", "/guarded/events"] {
        let query = format!("?name=curl{version}{path}");
        let mut curl = Command::new("curl");
        curl.args(["-sSN", version, "-X", "POST", &url(&format!("{path}{query}"))]).stdout(Stdio::piped());
        let mut curl = curl.spawn().unwrap();
        let mut lines = BufReader::new(curl.stdout.take().unwrap()).lines();
        for number in 0..3 {
            let line = lines.by_ref().map(Result::unwrap).find(|line| !line.is_empty());
            assert_eq!(line, Some(format!("data: {number}")));
            let more = url(&format!("/open/more{query}"));
            assert!(
                Command::new("curl").args(["-sS", "-o", "-", "-X", "POST", &more]).output().unwrap().status.success()
            );
        }
        assert!(curl.wait().unwrap().success());
    }
}
