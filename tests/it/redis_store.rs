//! What only the store in Redis promises: what it does when the server or the way to it fails, how things are kept
//! there, and what a step costs.

mod failover;
mod failures;
mod keeping;
mod memory;
mod opening;
mod replicas;
mod rights;
mod tls;

use std::time::{Duration, Instant};

use oncegate::store::redis::RedisStore;
use oncegate::store::{Store, StoreError};
use redis::FromRedisValue;

use crate::support::redis_server::RedisServer;

/// Kept by a busy machine, and the longest a step may take.
const PATIENT: Duration = Duration::from_secs(20);

async fn open(url: &str, timeout: Duration) -> RedisStore {
    RedisStore::connect(url, "shop", timeout).await.unwrap()
}

/// Says something to the server past the store.
fn say<T: FromRedisValue>(server: &RedisServer, words: &[&str]) -> T {
    server.say(words)
}

/// Returns when the store takes writes, which it has to within a while. One question may fall into the silence of a server
/// that is gone, and that one takes `PATIENT` by itself.
async fn recovered(store: &dyn Store) {
    let since = Instant::now();
    while let Err(error) = store.ping().await {
        assert!(since.elapsed() < PATIENT * 3, "{error}");
        tokio::task::yield_now().await;
    }
}

/// The error of the first write that fails.
async fn failing(store: &dyn Store) -> StoreError {
    let since = Instant::now();
    loop {
        if let Err(error) = store.ping().await {
            return error;
        }
        assert!(since.elapsed() < PATIENT, "the store goes on");
    }
}
