//! What a store does on this machine, beside what there is to get: `cargo run --release --example store_ops [DIRECTORY]`.
//!
//! A call is two durable steps: a claim that counts the send, and a settle with a receipt of 1 KiB. The disk is measured
//! by appending 4 KiB and waiting for them, before and after; Redis by `redis-benchmark` with as many connections as the
//! store has callers and no pipelining. Ratios of one run mean something, figures of two runs on a busy machine do not.

#[path = "store_ops/call.rs"]
mod call;
#[path = "store_ops/redis.rs"]
mod redis;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::clock::Clock;
use oncegate::entropy::Entropy;
use oncegate::store::Store;
use oncegate::store::file::{Durability, FileStore, Settings};
use oncegate::store::memory::MemoryStore;
use tokio::task::JoinSet;

const MEASURED: Duration = Duration::from_secs(5);
const RAW: Duration = Duration::from_secs(2);
const CALLERS: [usize; 2] = [1, 64];
const BLOCK: [u8; 4096] = [b'x'; 4096];

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long each of the same things took, sorted, and how many there were in a second.
struct Measured {
    waits: Vec<Duration>,
    per_second: f64,
    /// All threads of this process, for each.
    cpu: Duration,
}

impl Measured {
    fn new(mut waits: Vec<Duration>, length: Duration, cpu: Duration) -> Self {
        waits.sort_unstable();
        let per_second = waits.len() as f64 / length.as_secs_f64();
        let cpu = cpu.div_f64(waits.len().max(1) as f64);
        Self { waits, per_second, cpu }
    }

    fn at(&self, share: f64) -> Duration {
        self.waits.get((self.waits.len() as f64 * share) as usize).copied().unwrap_or_default()
    }

    fn print(&self, name: &str, callers: usize) {
        let Self { per_second, cpu, .. } = self;
        let (half, most) = (self.at(0.5), self.at(0.99));
        print!(
            "{name:12} {callers:3} callers {per_second:8.0} steps/s  p50 {half:9.2?}  p99 {most:9.2?}  CPU {cpu:8.2?}"
        );
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let directory = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = directory.join(format!("oncegate-store-ops-{}", std::process::id()));
    fs::create_dir(&directory)?;
    let measured = measure_all(&directory).await;
    fs::remove_dir_all(&directory)?;
    measured
}

async fn measure_all(directory: &Path) -> Result<(), Failure> {
    for callers in CALLERS {
        file("file, fsync", Durability::Fsync, callers, directory).await?;
    }
    for callers in CALLERS {
        file("file, os", Durability::Os, callers, directory).await?;
    }
    memory().await?;
    redis::measure(directory).await
}

/// The disk before and after is the measure of the disk meanwhile.
async fn file(name: &str, durability: Durability, callers: usize, directory: &Path) -> Result<(), Failure> {
    let before = raw(directory)?;
    let path = directory.join(format!("{durability:?}-{callers}.db"));
    let settings = Settings { timeout: call::HOUR, durability };
    let steps = steps(Arc::new(FileStore::open(&path, settings, Clock::system(), &[])?), callers).await?;
    let after = raw(directory)?;
    let disk = (before.per_second + after.per_second) / 2.0;
    let sync = Duration::from_secs_f64(1.0 / disk);
    steps.print(name, callers);
    println!(
        "; the disk {disk:.0} fsyncs/s: {:.1} x in steps, p50 is {:.1} and p99 {:.1} fsyncs",
        steps.per_second / disk,
        steps.at(0.5).div_duration_f64(sync),
        steps.at(0.99).div_duration_f64(sync),
    );
    Ok(())
}

async fn memory() -> Result<(), Failure> {
    steps(Arc::new(MemoryStore::new(Clock::system())), 64).await?.print("memory", 64);
    println!();
    Ok(())
}

/// Blocks that are appended and synced, one after the other.
fn raw(directory: &Path) -> Result<Measured, Failure> {
    let path = directory.join("raw");
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let (end, mut waits) = (Instant::now() + RAW, Vec::new());
    while Instant::now() < end {
        let begun = Instant::now();
        file.write_all(&BLOCK)?;
        file.sync_data()?;
        waits.push(begun.elapsed());
    }
    fs::remove_file(path)?;
    Ok(Measured::new(waits, RAW, Duration::ZERO))
}

async fn steps(store: Arc<dyn Store>, callers: usize) -> Result<Measured, Failure> {
    let entropy = Entropy::system()?;
    let (end, before) = (Instant::now() + MEASURED, cpu());
    let mut running = JoinSet::new();
    for _ in 0..callers {
        running.spawn(calls_until(end, Arc::clone(&store), entropy.clone()));
    }
    let mut waits = Vec::new();
    while let Some(done) = running.join_next().await {
        waits.extend(done??);
    }
    Ok(Measured::new(waits, MEASURED, cpu().saturating_sub(before)))
}

/// What this process has used so far.
fn cpu() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

async fn calls_until(end: Instant, store: Arc<dyn Store>, entropy: Entropy) -> Result<Vec<Duration>, Failure> {
    let mut waits = Vec::new();
    while Instant::now() < end {
        let claim = call::claim(store.now(), &entropy)?;
        let begun = Instant::now();
        store.claim(&claim, None).await?;
        waits.push(begun.elapsed());
        let settle = call::settle(&claim.operation, store.now(), &entropy)?;
        let begun = Instant::now();
        store.write(&settle).await?;
        waits.push(begun.elapsed());
    }
    Ok(waits)
}
