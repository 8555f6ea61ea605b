//! What lies in `deploy/` is accepted by the gateway and agrees with itself: names, ports, paths, users and times.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "deploy/compose.rs"]
mod compose;
#[path = "deploy/image.rs"]
mod image;
#[path = "deploy/kubernetes.rs"]
mod kubernetes;
#[path = "deploy/systemd.rs"]
mod systemd;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oncegate::config::{Config, Environment, StoreUrl};
use serde_json::Value;

/// The image that every manifest runs.
const IMAGE: &str = concat!("oncegate:", env!("CARGO_PKG_VERSION"));

#[test]
fn every_gateway_toml_belongs_to_a_tested_deployment() {
    let mut found = Vec::new();
    collect(&root().join("deploy"), &mut found);
    found.sort();
    assert_eq!(found, [compose::FLEET, compose::SIDECAR, systemd::GATEWAY].map(|file| root().join(file)));
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.ends_with("gateway.toml") {
            found.push(path);
        }
    }
}

/// What the gateway makes of a file when the deployment gives it just these variables.
fn config(name: &str, toml: &str, variables: impl IntoIterator<Item = String>) -> Config {
    let environment: Environment = variables.into_iter().map(|variable| (variable, "value")).collect();
    Config::parse(toml, name, &environment).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The documents of a YAML file.
fn yaml(file: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&text(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// A value that has to be there.
fn at<'v>(value: &'v Value, pointer: &str) -> &'v Value {
    value.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is missing in {value}"))
}

fn string<'v>(value: &'v Value, pointer: &str) -> &'v str {
    at(value, pointer).as_str().unwrap_or_else(|| panic!("{pointer} is no text"))
}

fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    at(value, pointer).as_array().unwrap_or_else(|| panic!("{pointer} is no list"))
}

/// `45s`.
fn seconds(text: &str) -> Duration {
    Duration::from_secs(
        text.strip_suffix('s').and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{text}")),
    )
}

fn assert_store_within(config: &Config, folder: &str) {
    match &config.store.url {
        StoreUrl::File(path) => assert!(path.starts_with(folder), "{} is not in {folder}", path.display()),
        other => panic!("no file: {other:?}"),
    }
}

/// Where an agent is told to call: the host and port of `http://host:port/path`, whose path must be a route.
fn called<'u>(url: &'u str, config: &Config) -> (&'u str, u16) {
    let (authority, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).unwrap();
    let path = format!("/{path}");
    assert!(config.routes.0.iter().any(|route| route.matches.path == path), "no route {path}");
    let (host, port) = authority.split_once(':').unwrap();
    (host, port.parse().unwrap())
}
