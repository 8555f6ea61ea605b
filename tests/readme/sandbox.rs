//! A newcomer's machine: a clone to begin in, the program on the path, a service on port 9000.
//!
//! Ports that README.md names are free ones here; what the commands get and what they say is translated.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::service;

const READY: Duration = Duration::from_secs(30);

pub(crate) struct Sandbox {
    root: TempDir,
    /// Where the last command ended: the next one begins there, as in a terminal.
    folder: PathBuf,
    server: Option<Server>,
    listen: SocketAddr,
    admin: SocketAddr,
    health: SocketAddr,
    service: SocketAddr,
}

struct Server(Child);

impl Sandbox {
    pub(crate) fn new() -> Self {
        let sockets = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [listen, admin, health] = sockets.map(|socket| socket.local_addr().unwrap());
        let root = TempDir::new().unwrap();
        let folder = root.path().join("oncegate");
        fs::create_dir(&folder).unwrap();
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("gateway.toml"), folder.join("gateway.toml")).unwrap();
        Self { root, folder, server: None, listen, admin, health, service: service::start() }
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::write(self.folder.join(file), self.translate(text)).unwrap();
    }

    /// What a command says on standard output. It has to succeed.
    pub(crate) fn run(&mut self, command: &str) -> String {
        let end = self.root.path().join("end");
        let command = format!("{command}\npwd >{}", end.display());
        let output = self.shell(&command).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "$ {command}\n{}", String::from_utf8_lossy(&output.stderr));
        self.folder = fs::read_to_string(end).unwrap().trim_end().into();
        self.translate_back(&String::from_utf8(output.stdout).unwrap())
    }

    /// Runs a gateway in the place of the one before, and returns when it takes calls.
    pub(crate) fn serve(&mut self, command: &str) {
        self.server = None;
        // Without `exec` the shell would be ended in its place.
        let child = self.shell(&format!("exec {command}")).stderr(Stdio::null()).spawn().unwrap();
        self.server = Some(Server(child));
        let latest = Instant::now() + READY;
        while !is_ready(self.health) {
            assert!(Instant::now() < latest, "$ {command}\nis not ready");
            sleep(Duration::from_millis(20));
        }
    }

    fn shell(&self, command: &str) -> Command {
        let programs = Path::new(env!("CARGO_BIN_EXE_oncegate")).parent().unwrap();
        let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap());
        let mut shell = Command::new("bash");
        shell
            .args(["-euo", "pipefail", "-c", &self.translate(command)])
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", path)
            .env("TMPDIR", self.root.path())
            .env("ONCEGATE__SERVER__LISTEN", self.listen.to_string())
            .env("ONCEGATE__SERVER__ADMIN", self.admin.to_string())
            .env("ONCEGATE__SERVER__HEALTH", self.health.to_string());
        shell
    }

    fn translate(&self, text: &str) -> String {
        self.ports().iter().fold(text.to_owned(), |text, (shown, real)| text.replace(shown, real))
    }

    fn translate_back(&self, text: &str) -> String {
        self.ports().iter().fold(text.to_owned(), |text, (shown, real)| text.replace(real, shown))
    }

    fn ports(&self) -> [(&'static str, String); 4] {
        [
            ("127.0.0.1:8080", self.listen.to_string()),
            ("127.0.0.1:8081", self.admin.to_string()),
            ("127.0.0.1:8082", self.health.to_string()),
            ("127.0.0.1:9000", self.service.to_string()),
        ]
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn is_ready(health: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(health) else { return false };
    let question = format!("GET /readyz HTTP/1.1\r\nHost: {health}\r\nConnection: close\r\n\r\n");
    let mut answer = [0; 12];
    stream.write_all(question.as_bytes()).is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && &answer == b"HTTP/1.1 200"
}
