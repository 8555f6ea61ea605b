//! `oncegate demo` cleans up after itself, also when it is interrupted in the middle.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn an_interrupted_demo_leaves_neither_process_nor_file() {
    let scratch = TempDir::new().unwrap();
    let mut demo = start(scratch.path());
    wait_for_line(&mut demo, "2 The agent starts again, as does the gateway");
    let gateway = address_of_gateway(scratch.path());
    // From here on it is busy for a second at least: the service wants to be left alone for so long.
    until(|| TcpStream::connect(gateway).is_ok());
    let told = Command::new("bash").args(["-c", &format!("kill -TERM {}", demo.id())]).status().unwrap();
    assert!(told.success() && demo.wait().unwrap().success());
    assert!(TcpStream::connect(gateway).is_err(), "the gateway still runs");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn a_demo_that_cannot_have_its_folder_says_so() {
    let scratch = TempDir::new().unwrap();
    let output = command(&scratch.path().join("missing")).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("oncegate: ") && said.contains("No such file"), "{said}");
}

fn command(scratch: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(["demo", "--fast"]).env("TMPDIR", scratch);
    command
}

fn start(scratch: &Path) -> Child {
    command(scratch).stdout(Stdio::piped()).spawn().unwrap()
}

fn wait_for_line(demo: &mut Child, beginning: &str) {
    let lines = BufReader::new(demo.stdout.as_mut().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.starts_with(beginning)), "no line `{beginning}`");
}

/// `listen` is the first address in its configuration.
fn address_of_gateway(scratch: &Path) -> SocketAddr {
    let folder = fs::read_dir(scratch).unwrap().next().unwrap().unwrap().path();
    let configuration = fs::read_to_string(folder.join("gateway.toml")).unwrap();
    let line = configuration.lines().find_map(|line| line.strip_prefix("listen = ")).unwrap();
    line.trim_matches('"').parse().unwrap()
}

fn until(condition: impl Fn() -> bool) {
    let latest = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < latest, "it did not come to that");
        sleep(Duration::from_millis(5));
    }
}
