//! What an operation takes in each store: `cargo run --release --example store_size -- memory|file|redis [operations]`.
//!
//! Fills an empty store with operations that ran once and have a receipt of 1 KiB, and says what one of them takes. Then
//! lets a tenth as many run out, twice, and says whether their space was used again. Redis is started here and needs
//! `redis-server` to be installed.

#![expect(clippy::unwrap_used, reason = "what the measurement cannot do is its end")]
#![allow(unreachable_pub, reason = "nobody imports from an example")]

#[allow(dead_code, reason = "the tests of the stores use the rest")]
#[path = "../tests/it/support/operations.rs"]
mod operations;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::clock::Clock;
use oncegate::operation::transition::Retention;
use oncegate::store::Store;
use oncegate::store::file::{Durability, FileStore, Settings};
use oncegate::store::memory::MemoryStore;
use oncegate::store::redis::RedisStore;
use tempfile::TempDir;
use tokio::task::JoinSet;

use operations::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Calls under way together.
const CALLERS: usize = 64;
const RECEIPT: usize = 1024;
/// Longer than the fullest round takes.
const LONG: Retention = Retention { receipts: HOUR, tombstones: HOUR, unknowns: None };
const SHORT: Retention =
    Retention { receipts: Duration::from_secs(1), tombstones: Duration::from_secs(1), unknowns: None };
const PATIENT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let kind = arguments.get(1).map_or("memory", String::as_str);
    let count = arguments.get(2).map_or(1_000_000, |count| count.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let place = Place::open(kind, directory).await;
    let (empty, own) = (place.size(), resident());
    let since = Instant::now();
    fill(&place.store, "kept", count, LONG).await;
    println!("{count} operations in {kind}: {:.0} s", since.elapsed().as_secs_f64());
    println!("  in the store   {:>7} bytes each", (place.size() - empty) / count as u64);
    println!("  in the process {:>7} bytes each, {} MiB in all", resident().saturating_sub(own) / count as u64, mib());
    place.tell_parts();
    for round in ["first", "second"] {
        fill(&place.store, round, count / 10, SHORT).await;
        println!("{round} {} that run out: {} MiB", count / 10, place.size() >> 20);
        tokio::time::sleep(SHORT.tombstones).await;
        let mut idle = 0;
        while idle < 3 {
            let gone = place.store.purge(1024).await.unwrap();
            idle = if gone == 0 { idle + 1 } else { 0 };
            if gone == 0 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        println!("  when they are gone: {} MiB", place.size() >> 20);
    }
}

/// A store and what it stands on.
struct Place {
    store: Arc<dyn Store>,
    server: Option<Server>,
    directory: TempDir,
}

struct Server {
    port: u16,
    process: Child,
}

impl Place {
    async fn open(kind: &str, directory: TempDir) -> Self {
        let server = (kind == "redis").then(|| Server::start(directory.path()));
        let store: Arc<dyn Store> = match &server {
            Some(server) => Arc::new(server.connect().await),
            None if kind == "file" => {
                let settings = Settings { timeout: PATIENT, durability: Durability::Os };
                Arc::new(FileStore::open(&directory.path().join("store.db"), settings, Clock::system(), &[]).unwrap())
            }
            None => Arc::new(MemoryStore::new(Clock::system())),
        };
        Self { store, server, directory }
    }

    /// Bytes on the disk, in Redis, or of this process.
    fn size(&self) -> u64 {
        match &self.server {
            Some(server) => server.number("used_memory:"),
            None => match fs::read_dir(self.directory.path())
                .unwrap()
                .map(|file| file.unwrap().metadata().unwrap().len())
                .sum()
            {
                0 => resident(),
                bytes => bytes,
            },
        }
    }

    /// What Redis says of the keys of one operation, of those that it has.
    fn tell_parts(&self) {
        let Some(server) = &self.server else { return };
        let id = id("kept 0");
        for (part, what) in [("r", "record"), ("a", "receipt"), ("e", "events")] {
            let key = format!("oncegate:{{size:{:02x}}}:{part}:{id}", id.bucket());
            let bytes: u64 = server.ask(redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0));
            println!("  {what:14} {bytes:>7} bytes");
        }
        let index = format!("oncegate:{{size:{:02x}}}:", id.bucket());
        for letter in ["l", "o"] {
            let key = format!("{index}{letter}");
            let bytes: u64 = server.ask(redis::cmd("MEMORY").arg("USAGE").arg(&key).arg("SAMPLES").arg(0));
            let members: u64 = server.ask(redis::cmd("ZCARD").arg(&key));
            println!("  index {letter:8} {:>7} bytes", bytes / members);
        }
        println!("  resident       {:>7} MiB", server.number("used_memory_rss:") >> 20);
    }
}

impl Server {
    fn start(directory: &Path) -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"]).arg(directory);
        Self { port, process: command.stdout(Stdio::null()).spawn().unwrap() }
    }

    async fn connect(&self) -> RedisStore {
        let url = format!("redis://127.0.0.1:{}", self.port);
        let store = RedisStore::connect(&url, "size", PATIENT).await.unwrap();
        while store.ping().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        store
    }

    fn ask<T: redis::FromRedisValue>(&self, question: &redis::Cmd) -> T {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        question.query(&mut client.get_connection().unwrap()).unwrap()
    }

    fn number(&self, field: &str) -> u64 {
        let info: String = self.ask(redis::cmd("INFO").arg("memory"));
        info.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

async fn fill(store: &Arc<dyn Store>, name: &'static str, count: usize, keep: Retention) {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let store = Arc::clone(store);
        callers.spawn(async move {
            for number in (caller..count).step_by(CALLERS) {
                let running = put_sent(&*store, claim(&*store, &format!("{name} {number}"))).await;
                applied(&*store, settled(&*store, &running, receipt(vec![b'x'; RECEIPT]), keep)).await;
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn mib() -> u64 {
    resident() >> 20
}
