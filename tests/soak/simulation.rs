//! Interleavings of the pure core from fresh seeds, on all processors, and small worlds in which two things go wrong.

use std::thread::{available_parallelism, scope};
use std::time::Instant;

use oncegate::operation::admission::Repeat;

use crate::LENGTH;
use crate::faults::any_seed;
use crate::sim::Seen;
use crate::sim::explore::explore;
use crate::sim::setup::{Broken, Setup};

/// As many as half a gigabyte holds; what is reached in fewer steps comes first.
const MOST_STATES: usize = 150_000;

#[test]
fn no_interleaving_breaks_what_always_holds() {
    let (first, over) = (any_seed(), Instant::now() + LENGTH);
    let processors = available_parallelism().map_or(1, usize::from) as u64;
    let play = |place: u64| {
        let mut seen = Seen::default();
        let seeds = (place..).step_by(processors as usize).map(|step| first.wrapping_add(step));
        seeds.take_while(|_| Instant::now() < over).for_each(|seed| seen.play(seed));
        seen
    };
    let mut all = Seen::default();
    scope(|threads| {
        let threads: Vec<_> = (0..processors).map(|place| threads.spawn(move || play(place))).collect();
        threads.into_iter().for_each(|thread| add(&mut all, thread.join().unwrap()));
    });
    println!("{}, from ONCEGATE_TEST_SEED={first} on {processors} processors", all.figures());
    all.must_be_all();
}

/// Side by side, so the length of one is that of all.
fn add(all: &mut Seen, other: Seen) {
    all.stories += other.stories;
    all.steps += other.steps;
    all.length = all.length.max(other.length);
    all.edges.extend(other.edges);
}

#[test]
fn no_way_through_a_small_world_breaks_what_always_holds() {
    for repeat in [Repeat::Unsafe, Repeat::WithKey, Repeat::Harmless] {
        let begin = Instant::now();
        let explored = explore(Setup::small(repeat, 2, Broken::Nothing), MOST_STATES);
        let (states, seconds, edges) = (explored.states, begin.elapsed().as_secs_f64(), explored.edges.len());
        let rest = if explored.complete { "all of them" } else { "the nearest" };
        println!("{}: {states} states, {rest}, {edges} edges, {seconds:.0} s", repeat.as_str());
        assert!(explored.violation.is_none(), "{}", explored.violation.unwrap());
        assert_eq!(explored.stuck, 0, "states from which no end can be reached");
    }
}
