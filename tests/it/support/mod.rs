//! What several suites need: stores to run against, operations to put into them, real servers, a real gateway between a
//! scripted upstream and a client that says what it is told.

#[path = "../../../src/tls/authority.rs"]
pub mod authority;
pub mod client;
pub mod disk;
pub mod gateway;
pub mod ground;
pub mod lives;
pub mod names;
pub mod operations;
pub mod raw;
pub mod redis_fleet;
pub mod redis_server;
pub mod script;
pub mod small_disk;
pub mod stored;
pub mod stores;
pub mod toxic;
pub mod upstream;
pub mod wall_clock;

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take that does not wait on purpose, on a machine with other things to do.
pub const PATIENCE: Duration = Duration::from_secs(30);

const LOOK: Duration = Duration::from_millis(5);

/// Looks until there is something to see, and gives it back.
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < give_up, "{what}: not within {PATIENCE:?}");
        thread::sleep(LOOK);
    }
}
