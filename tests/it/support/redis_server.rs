//! A real `redis-server` of a test's own, on a free port, in a directory that goes with it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::eventually;
use crate::support::small_disk::SmallDisk;

const START: Duration = Duration::from_secs(20);

/// Durable on every write. Its process ends when this is dropped, and its log is shown if the test has failed.
pub struct RedisServer {
    port: u16,
    kind: Kind,
    process: Process,
    ground: Ground,
}

/// Where a server keeps its files; its log is beside them.
struct Ground {
    directory: TempDir,
    /// The files lie on it, for those who run inside.
    disk: Option<SmallDisk>,
}

/// What runs.
#[derive(Clone)]
enum Kind {
    /// A server with arguments of its own, the last word on each.
    Server(Vec<String>),
    /// A server with variables of its own, and arguments.
    Within(Vec<(&'static str, String)>, Vec<String>),
    /// A sentinel with the lines of its file.
    Sentinel(String),
}

struct Process(Child);

impl RedisServer {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// With arguments of its own, which count more than the usual ones.
    pub fn with(arguments: &[&str]) -> Self {
        Self::run(Kind::Server(owned(arguments)), None)
    }

    /// On a disk of so many MiB that nobody else uses.
    pub fn on_small_disk(size: u32) -> Self {
        Self::run(Kind::Server(Vec::new()), Some(SmallDisk::of(size)))
    }

    /// With variables beside those of the test.
    pub fn within(environment: impl IntoIterator<Item = (&'static str, String)>, arguments: &[&str]) -> Self {
        Self::run(Kind::Within(environment.into_iter().collect(), owned(arguments)), None)
    }

    /// A sentinel that has these lines to begin with.
    pub fn sentinel(lines: &str) -> Self {
        Self::run(Kind::Sentinel(lines.to_owned()), None)
    }

    fn run(kind: Kind, disk: Option<SmallDisk>) -> Self {
        let ground = Ground { directory: tempfile::tempdir().unwrap(), disk };
        loop {
            let port = free_port();
            // Another process may have taken the port since.
            if let Some(process) = try_start(port, &kind, &ground) {
                return Self { port, kind, process, ground };
            }
        }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// As `kill -9` does it: what was not on the disk is gone.
    pub fn kill(&mut self) {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
    }

    /// The same port and the same data, after `kill`.
    pub fn restart(&mut self) {
        self.process = self.start_again(&self.kind);
        let mut admin = self.admin();
        eventually("a server that has loaded its data", || redis::cmd("PING").query::<String>(&mut admin).ok());
    }

    /// The same with these arguments, perhaps not ready yet.
    pub fn restart_with(&mut self, arguments: &[&str]) {
        self.process = self.start_again(&Kind::Server(owned(arguments)));
    }

    fn start_again(&self, kind: &Kind) -> Process {
        try_start(self.port, kind, &self.ground).expect("redis-server starts again on its port")
    }

    /// Returns when the process has ended by itself.
    pub fn wait_for_end(&mut self) {
        eventually("the end of the server", || self.process.0.try_wait().unwrap());
    }

    /// Where its files are, as they are seen from here.
    pub fn directory(&self) -> PathBuf {
        self.ground.disk.as_ref().map_or(self.ground.directory.path().to_owned(), SmallDisk::seen_from_outside)
    }

    pub fn admin(&self) -> Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// Says something to the server past the store, as an operator would.
    #[track_caller]
    pub fn say<T: FromRedisValue>(&self, words: &[&str]) -> T {
        say(&mut self.admin(), words)
    }

    /// What is on the disk now, to be put back later.
    pub fn copy(&self) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        copy_files(&self.data(), copy.path());
        copy
    }

    /// Between `kill` and `restart`: what is on the disk is what was there then.
    pub fn put_back(&self, copy: &TempDir) {
        fs::remove_dir_all(self.data()).unwrap();
        fs::create_dir(self.data()).unwrap();
        copy_files(copy.path(), &self.data());
    }

    fn data(&self) -> PathBuf {
        self.directory().join("appendonlydir")
    }

    /// Connections stay open and nothing is answered.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.0), signal).unwrap();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(self.ground.directory.path().join("log")).unwrap_or_default();
            eprintln!("--- log of Redis at {}\n{log}", self.address());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

fn copy_files(from: &Path, to: &Path) {
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Over a connection that may outlive what would keep others out.
#[track_caller]
pub fn say<T: FromRedisValue>(admin: &mut Connection, words: &[&str]) -> T {
    let (name, arguments) = words.split_first().unwrap();
    redis::cmd(name).arg(arguments).query(admin).unwrap()
}

/// A server that answers, or none if its process ended at once.
fn try_start(port: u16, kind: &Kind, ground: &Ground) -> Option<Process> {
    let mut process = Process(command(port, kind, ground).spawn().expect("redis-server is installed"));
    let give_up = Instant::now() + START;
    while Instant::now() < give_up {
        if process.0.try_wait().unwrap().is_some() {
            return None;
        }
        if answers(port, process.0.id()) {
            return Some(process);
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("redis-server did not answer within {START:?}");
}

fn command(port: u16, kind: &Kind, ground: &Ground) -> Command {
    let directory = ground.directory.path();
    let log = File::options().create(true).append(true).open(directory.join("log")).unwrap();
    let (mut command, files) = match &ground.disk {
        Some(disk) => (disk.command("redis-server"), disk.path()),
        None => (Command::new("redis-server"), directory),
    };
    match kind {
        Kind::Server(arguments) => as_store(&mut command, port).args(arguments),
        Kind::Within(environment, arguments) => {
            as_store(&mut command, port).args(arguments).envs(environment.iter().cloned())
        }
        Kind::Sentinel(lines) => {
            let file = directory.join("sentinel.conf");
            if !file.exists() {
                fs::write(&file, lines).unwrap();
            }
            command.arg(file).args(["--sentinel", "--port", &port.to_string()])
        }
    };
    command.args(["--bind", "127.0.0.1", "--dir"]).arg(files).stdout(log);
    command
}

fn as_store(command: &mut Command, port: u16) -> &mut Command {
    command
        .args(["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"])
        .args(["--enable-debug-command", "yes", "--port", &port.to_string()])
}

/// Whether it is this process that answers, ready or not: another test's server may have taken the port first.
fn answers(port: u16, process: u32) -> bool {
    let ours = format!("\r\nprocess_id:{process}\r\n");
    let asked = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).and_then(|mut connection| {
        connection.set_read_timeout(Some(Duration::from_secs(1)))?;
        connection.write_all(b"PING\r\nINFO server\r\n")?;
        let (mut answer, mut part) = (String::new(), [0; 4096]);
        // A sentinel does not know how to say good-bye, so the end of the answer is what was looked for.
        let refuses = |answer: &str| answer.starts_with('-') && !answer.starts_with("-LOADING");
        while !refuses(&answer) && !answer.contains(&ours) {
            let length = connection.read(&mut part)?;
            if length == 0 {
                break;
            }
            answer += &String::from_utf8_lossy(&part[..length]);
        }
        Ok(answer)
    });
    asked.is_ok_and(|answer| answer.contains(&ours))
}
