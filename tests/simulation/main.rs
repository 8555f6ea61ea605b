//! Interleavings of the pure core: from seeds, and all of a small world. Each rule that is broken on purpose is caught.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(unreachable_pub, reason = "nobody imports from a test binary")]

mod sim;

use std::time::Instant;

use oncegate::operation::admission::Repeat;
use sim::explore::explore;
use sim::setup::{Broken, Setup};
use sim::{Seen, caught};

/// Stories that once showed a fault of the gateway, or that alone among many show a broken rule. A change of what a
/// story draws makes other stories of them.
const KEPT: &[u64] = &[6_049, 32_845];
const STORIES: u64 = 5_000;
/// More than any of the small worlds has.
const ALL_STATES: usize = 1_000_000;

#[test]
fn no_interleaving_breaks_what_always_holds() {
    let mut seen = Seen::default();
    if let Some(seed) = std::env::var("ONCEGATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return seen.play(seed);
    }
    seeds().for_each(|seed| seen.play(seed));
    println!("{}", seen.figures());
    seen.must_be_all();
}

#[test]
fn a_rule_that_is_broken_is_caught_by_the_same_seeds() {
    for broken in Broken::ALL {
        let begin = Instant::now();
        let (seed, rule) = caught(broken, seeds()).unwrap_or_else(|| panic!("nobody sees {broken:?}"));
        let tried = seeds().position(|other| other == seed).unwrap() + 1;
        println!("{broken:?}: {rule}; {tried} seeds, {:.2} s", begin.elapsed().as_secs_f64());
    }
}

#[test]
fn no_way_through_a_small_world_breaks_what_always_holds() {
    for repeat in [Repeat::Unsafe, Repeat::WithKey, Repeat::Harmless] {
        let begin = Instant::now();
        let explored = explore(Setup::small(repeat, 1, Broken::Nothing), ALL_STATES);
        let (states, seconds) = (explored.states, begin.elapsed().as_secs_f64());
        let (steps, edges) = (explored.steps, explored.edges.len());
        println!("{}: {states} states, {steps} steps, {edges} edges, {seconds:.1} s", repeat.as_str());
        assert!(explored.violation.is_none(), "{}", explored.violation.unwrap());
        assert!(explored.complete, "there are more states");
        assert_eq!(explored.stuck, 0, "states from which no end can be reached");
    }
}

#[test]
fn a_rule_that_is_broken_is_caught_in_a_small_world() {
    let broken =
        [Broken::LeaseFreesSent, Broken::SettleUnfenced, Broken::ClaimForgetsItself, Broken::OverloadIsRefusal];
    for broken in broken {
        let explored = explore(Setup::small(Repeat::Unsafe, 1, broken), ALL_STATES);
        let story = explored.violation.unwrap_or_else(|| panic!("nobody sees {broken:?}"));
        println!("{broken:?}, after {} states: {story}\n", explored.states);
    }
}

fn seeds() -> impl Iterator<Item = u64> {
    KEPT.iter().copied().chain(0..STORIES)
}
