//! Every point at which a gateway can die, on every kind of upstream and every store that outlives it.
//!
//! `ONCEGATE_MATRIX_ROUNDS` says how often each is played (`./test soak`: 200). Ends with a table; every violation names
//! its cell and its key.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(unreachable_pub, reason = "nobody imports from a test binary")]

mod checker;
#[allow(dead_code, reason = "what only the other suites need")]
#[path = "../it/faults/mod.rs"]
mod faults;
mod lane;
mod plan;
#[allow(dead_code, reason = "what only the other suites need")]
#[path = "../it/support/mod.rs"]
mod support;
mod table;

use std::env;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use crate::plan::{Kept, Story, cells};
use crate::support::redis_server::RedisServer;
use crate::table::Matrix;

/// Gateways at the same time. Most of them wait for a lease or for the disk.
const LANES: usize = 16;
const ROUNDS: &str = "ONCEGATE_MATRIX_ROUNDS";

#[test]
fn wherever_a_gateway_dies_nothing_runs_twice_and_no_receipt_is_lost() {
    let rounds = env::var(ROUNDS).map_or(1, |rounds| rounds.parse().expect("ONCEGATE_MATRIX_ROUNDS is a number"));
    play(rounds, faults::any_seed()).conclude();
}

fn play(rounds: usize, seed: u64) -> Matrix {
    let (began, played) = (Instant::now(), Mutex::new(Vec::new()));
    // A database for each cell.
    let server = RedisServer::with(&["--databases", "1024"]);
    let mut cells: Vec<_> = cells().into_iter().enumerate().collect();
    // The last one is begun first: those that wait for the sweep take longest.
    cells.sort_by_key(|(_, cell)| (cell.kept == Kept::Redis, cell.row.story == Story::Recovered));
    let left = Mutex::new(cells);
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let Some((number, cell)) = left.lock().unwrap().pop() else { return };
                    let entropy = faults::stream(seed, &cell.to_string());
                    let cell = lane::play(cell, &server, number, rounds, &entropy);
                    played.lock().unwrap().push(cell);
                }
            });
        }
    });
    Matrix { seed, began, cells: played.into_inner().unwrap() }
}
