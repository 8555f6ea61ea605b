//! The long tests, run by `./test soak`. Each takes fresh seeds and says which with its figures; a failure names
//! its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(unreachable_pub, reason = "nobody imports from a test binary")]

mod crashes;
#[allow(dead_code, reason = "what only the other suites need")]
#[path = "../it/faults/mod.rs"]
mod faults;
#[path = "../engine/random.rs"]
mod random;
#[allow(dead_code, reason = "what only the other suites need")]
#[path = "../engine/rig/mod.rs"]
mod rig;
mod sealing;
#[allow(dead_code, reason = "what only the other suites need")]
#[path = "../simulation/sim/mod.rs"]
mod sim;
mod simulation;
#[allow(dead_code, reason = "what only the other suites need")]
#[path = "../it/support/mod.rs"]
mod support;
mod transitions;
#[allow(dead_code, reason = "what only the other suites need")]
#[path = "../it/transparency/mod.rs"]
mod transparency;

use std::time::{Duration, Instant};

/// How long one test goes on.
const LENGTH: Duration = Duration::from_secs(60);

/// Runs `round` with one seed after the other, from a random one on, and says how many there were.
fn soak(round: impl Fn(u64)) {
    let over = Instant::now() + LENGTH;
    let first = faults::any_seed();
    let seeds = (0..).map(|step| first.wrapping_add(step));
    let rounds = seeds.take_while(|_| Instant::now() < over).inspect(|seed| round(*seed)).count();
    println!("{rounds} rounds from ONCEGATE_TEST_SEED={first}");
}

#[test]
fn no_order_of_steps_breaks_what_always_holds() {
    soak(transitions::walk);
}

#[test]
fn no_exchange_shows_a_difference_that_is_not_listed() {
    soak(|seed| drop(transparency::play(seed)));
}

#[test]
fn no_story_breaks_what_always_holds() {
    soak(random::story);
}
