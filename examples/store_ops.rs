//! What a store in a file does on this disk: `cargo run --release --example store_ops [DIRECTORY]`.
//!
//! A call is two durable steps: a claim that counts the send, and a settle with a receipt of 1 KiB.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::clock::{Clock, Timestamp};
use oncegate::entropy::Entropy;
use oncegate::operation::transition::{self, Change, Opening, Ownership, Retention, Step, Verdict};
use oncegate::operation::{
    Fingerprint, Identity, Kept, KeySource, Operation, OperationId, OwnerId, Receipt, Scope, Settled, StoredRequest,
    WriteId,
};
use oncegate::store::Store;
use oncegate::store::file::{Durability, FileStore, Settings};
use oncegate::store::memory::MemoryStore;
use tokio::task::JoinSet;

const MEASURED: Duration = Duration::from_secs(5);
const HOUR: Duration = Duration::from_secs(3600);
const KEEP: Retention = Retention { receipts: HOUR, tombstones: HOUR };

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let directory = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    for callers in [1, 64] {
        let path = directory.join(format!("oncegate-store-ops-{}-{callers}.db", std::process::id()));
        measure(
            "file",
            Arc::new(FileStore::open(
                &path,
                Settings { timeout: HOUR, durability: Durability::Fsync },
                Clock::system(),
            )?),
            callers,
        )
        .await?;
        remove(&path)?;
    }
    measure("memory", Arc::new(MemoryStore::new(Clock::system())), 64).await
}

async fn measure(name: &str, store: Arc<dyn Store>, callers: usize) -> Result<(), Failure> {
    let entropy = Entropy::system()?;
    let end = Instant::now() + MEASURED;
    let mut running = JoinSet::new();
    for _ in 0..callers {
        running.spawn(calls_until(end, Arc::clone(&store), entropy.clone()));
    }
    let mut waits = Vec::new();
    while let Some(done) = running.join_next().await {
        waits.extend(done??);
    }
    waits.sort_unstable();
    let rate = waits.len() as f64 / MEASURED.as_secs_f64();
    let at = |share: f64| waits.get((waits.len() as f64 * share) as usize).copied().unwrap_or_default();
    println!("{name:6} {callers:3} callers {rate:8.0} steps/s  p50 {:9.2?}  p99 {:9.2?}", at(0.5), at(0.99));
    Ok(())
}

async fn calls_until(end: Instant, store: Arc<dyn Store>, entropy: Entropy) -> Result<Vec<Duration>, Failure> {
    let mut waits = Vec::new();
    while Instant::now() < end {
        let claim = claim(store.now(), &entropy)?;
        let begun = Instant::now();
        store.claim(&claim, None).await?;
        waits.push(begun.elapsed());
        let settle = settle(&claim.operation, store.now(), &entropy)?;
        let begun = Instant::now();
        store.write(&settle).await?;
        waits.push(begun.elapsed());
    }
    Ok(waits)
}

fn claim(now: Timestamp, entropy: &Entropy) -> Result<Change, Failure> {
    let key = u128::from_be_bytes(entropy.bytes()).to_string();
    let identity = Identity {
        scope: Scope::none(),
        route: "payments".to_owned(),
        key: key.clone(),
        upstream_key: Some(key.clone()),
        source: KeySource::Client,
        fingerprint: Fingerprint { version: 1, digest: [0; 32] },
        session: None,
        step: None,
        alike: None,
        rules: [0; 8],
    };
    let request = StoredRequest {
        method: "POST".to_owned(),
        target: "/charges".to_owned(),
        headers: http::HeaderMap::new(),
        body: vec![b'x'; 512].into(),
        had_credential: false,
    };
    let id = OperationId::of(Scope::none().digest(), "payments", &key, None);
    let ownership = Ownership { owner: OwnerId(entropy.bytes()), lease: HOUR, deadline: now.after(HOUR) };
    let step = Step { now, write: WriteId(entropy.bytes()) };
    Ok(transition::claim(id, identity, request, ownership, Opening::Sent, step)?)
}

fn settle(operation: &Operation, now: Timestamp, entropy: &Entropy) -> Result<Change, Failure> {
    let receipt = Receipt { status: 200, headers: http::HeaderMap::new(), body: vec![b'x'; 1024].into() };
    let settled = Settled {
        status: 200,
        length: 1024,
        digest: [0; 32],
        kept: Kept::Whole,
        receipt_until: now.after(HOUR),
        after_doubt: false,
    };
    let step = Step { now, write: WriteId(entropy.bytes()) };
    Ok(operation.settle(Verdict::Succeeded, settled, Some(receipt), KEEP, step)?)
}

fn remove(path: &Path) -> std::io::Result<()> {
    std::fs::remove_file(path)?;
    std::fs::remove_file(path.with_extension("db.lock"))
}
