//! Every way that a small story can go, breadth first, so that the first violation is a shortest one.
//!
//! A checker of our own and not the crate `stateright`: that one has no question "can an end still be reached from
//! here?" that stays right on graphs with joins and circles, and brings a web server and a second `rand` with it.

use std::collections::{HashMap, HashSet, VecDeque};

use super::chance::Chance;
use super::setup::Setup;
use super::watch::Edge;
use super::world::World;

/// What was found on all ways.
pub struct Explored {
    pub states: usize,
    pub steps: usize,
    /// All of them were seen, and not only as many as allowed.
    pub complete: bool,
    /// The story of a shortest way to something that must not be.
    pub violation: Option<String>,
    /// States from which no end can be reached.
    pub stuck: usize,
    /// Edges of the table of states that were taken.
    pub edges: HashSet<Edge>,
}

/// How a state was reached first.
struct Reached {
    from: usize,
    way: Vec<usize>,
}

/// Looks at up to `most` states.
pub fn explore(setup: Setup, most: usize) -> Explored {
    Exploration::new(setup).run(most)
}

struct Exploration {
    setup: Setup,
    numbers: HashMap<u64, usize>,
    reached: Vec<Reached>,
    before: Vec<Vec<u32>>,
    ends: Vec<usize>,
    open: VecDeque<(usize, World)>,
    edges: HashSet<Edge>,
    steps: usize,
}

impl Exploration {
    fn new(setup: Setup) -> Self {
        let mut exploration = Self {
            setup,
            numbers: HashMap::new(),
            reached: Vec::new(),
            before: Vec::new(),
            ends: Vec::new(),
            open: VecDeque::new(),
            edges: HashSet::new(),
            steps: 0,
        };
        exploration.reach(0, World::new(setup, Chance::walked(Vec::new())));
        exploration
    }

    fn run(mut self, most: usize) -> Explored {
        let mut violation = None;
        while let Some((number, world)) = self.open.pop_front() {
            if violation.is_some() || self.reached.len() >= most {
                self.open.push_front((number, world));
                break;
            }
            violation = self.follow(number, &world);
        }
        let complete = self.open.is_empty();
        let stuck = if complete && violation.is_none() { self.stuck() } else { 0 };
        let (states, steps) = (self.reached.len(), self.steps);
        Explored { states, steps, complete, violation, stuck, edges: self.edges }
    }

    /// All ways on from one state.
    fn follow(&mut self, number: usize, world: &World) -> Option<String> {
        let mut way = Some(Vec::new());
        while let Some(given) = way {
            let mut next = world.clone();
            next.chance = Chance::walked(given);
            let goes_on = next.step();
            way = next.chance.next_way();
            self.steps += 1;
            self.edges.extend(next.watch.edges.drain());
            if next.watch.violation.is_some() {
                return Some(self.story(number, next.chance.way()));
            }
            if goes_on {
                self.reach(number, next);
            } else {
                self.ends.push(number);
            }
        }
        None
    }

    fn reach(&mut self, from: usize, world: World) {
        let fresh = self.reached.len();
        let number = *self.numbers.entry(super::same::fingerprint(&world)).or_insert(fresh);
        if number == fresh {
            self.reached.push(Reached { from, way: world.chance.way() });
            self.before.push(Vec::new());
            self.open.push_back((number, world));
        }
        self.before[number].push(from as u32);
    }

    /// Backwards from all ends; whatever is not met never ends.
    fn stuck(&self) -> usize {
        let mut ends = vec![false; self.reached.len()];
        let mut open = self.ends.clone();
        while let Some(state) = open.pop() {
            if !std::mem::replace(&mut ends[state], true) {
                open.extend(self.before[state].iter().map(|before| *before as usize));
            }
        }
        ends.iter().filter(|ends| !**ends).count()
    }

    /// The way to a state once more, told.
    fn story(&self, last: usize, way: Vec<usize>) -> String {
        let mut ways = vec![way];
        let mut at = last;
        while at != 0 {
            ways.push(self.reached[at].way.clone());
            at = self.reached[at].from;
        }
        let mut world = World::new(self.setup, Chance::walked(Vec::new()));
        world.story = Some(Vec::new());
        for way in ways.into_iter().rev() {
            world.chance = Chance::walked(way);
            world.step();
        }
        super::told(&world)
    }
}
