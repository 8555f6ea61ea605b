//! The pure core among owners, a store, an upstream and a clock that are simulated.
//!
//! What is real: every transition, the table of edges, the claim table, facts about attempts, the retry policy with its
//! waits, and the stored form of records. What is restated: the order in which the engine asks for them (`claim.rs`,
//! `run.rs`, `settle.rs`, one function for each of the engine's), for a step between two waits can be counted, delayed,
//! repeated and cut off, and an `async` function cannot. Not in it: live answers, unnamed calls, rates, and the look at
//! the lease together with the first byte, which are one step here.
//!
//! One world, two ways through it: chance draws one story from a seed, or goes every way of a small one.

mod chance;
mod claim;
pub mod explore;
mod network;
mod run;
mod same;
mod settle;
pub mod setup;
mod store;
mod task;
mod upstream;
mod watch;
mod world;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use chance::Chance;
use setup::{Broken, MOST_FAULTS, Setup};
use watch::{EDGES, Edge};
use world::World;

/// More faults than any story draws.
const ALL_FAULTS: usize = usize::MAX;

/// What many stories showed.
#[derive(Default)]
pub struct Seen {
    pub stories: usize,
    pub steps: u64,
    pub length: Duration,
    pub edges: HashSet<Edge>,
}

impl Seen {
    /// Plays the story of `seed` and adds what it showed.
    pub fn play(&mut self, seed: u64) {
        let begin = Instant::now();
        let mut world = story(seed, Broken::Nothing, ALL_FAULTS);
        assert!(world.watch.violation.is_none(), "{}", shortest(seed, Broken::Nothing));
        self.stories += 1;
        self.steps += world.steps;
        self.edges.extend(world.watch.edges.drain());
        self.length += begin.elapsed();
    }

    /// Every edge that the engine can take has been taken, and no other.
    pub fn must_be_all(&self) {
        let missed: Vec<_> = EDGES.iter().filter(|edge| !self.edges.contains(edge)).collect();
        assert!(missed.is_empty(), "never taken: {missed:?}");
        self.must_be_known();
    }

    /// No edge has been taken that is not in the list.
    pub fn must_be_known(&self) {
        let unlisted: Vec<_> = self.edges.iter().filter(|edge| !EDGES.contains(edge)).collect();
        assert!(unlisted.is_empty(), "taken, and not in the list: {unlisted:?}");
    }

    /// One line. Of the edges, those are meant that the engine can take.
    pub fn figures(&self) -> String {
        let seconds = self.length.as_secs_f64();
        let (stories, steps) = (self.stories, self.steps);
        let each = stories as f64 / seconds;
        let (taken, all) = (self.edges.len(), EDGES.len());
        format!("{stories} interleavings, {each:.0} a second, {steps} steps, {taken} of {all} edges")
    }
}

/// The first of `seeds` that shows a broken rule, and what it violates.
pub fn caught(broken: Broken, seeds: impl Iterator<Item = u64>) -> Option<(u64, &'static str)> {
    let violation = |seed| story(seed, broken, ALL_FAULTS).watch.violation.map(|(rule, _)| (seed, rule));
    seeds.into_iter().find_map(violation)
}

/// The story of `seed` to its end.
fn story(seed: u64, broken: Broken, faults: usize) -> World {
    let mut world = begin(seed, broken, faults);
    world.run();
    world
}

fn begin(seed: u64, broken: Broken, faults: usize) -> World {
    let mut chance = Chance::seeded(seed);
    let setup = Setup::drawn(&mut chance, faults, broken);
    World::new(setup, chance)
}

/// The violation of `seed` with as few faults as still show one, line by line.
pub fn shortest(seed: u64, broken: Broken) -> String {
    let fails = |faults: &usize| story(seed, broken, *faults).watch.violation.is_some();
    let faults = (0..MOST_FAULTS).find(fails).unwrap_or(ALL_FAULTS);
    let mut world = begin(seed, broken, faults);
    world.story = Some(Vec::new());
    world.run();
    format!("seed {seed}, at most {faults} faults (ONCEGATE_TEST_SEED={seed} plays it alone)\n{}", told(&world))
}

fn told(world: &World) -> String {
    let (rule, seen) = world.watch.violation.clone().unwrap_or_default();
    let lines = world.story.as_deref().unwrap_or_default().join("\n");
    format!("{:?}\n{lines}\nVIOLATED: {rule}: {seen}", world.setup)
}
