//! What is left to chance: drawn from a seed, or every way in turn.

use rand::SeedableRng;
use rand::rngs::StdRng;

/// Decides whatever the world leaves open.
#[derive(Clone)]
pub enum Chance {
    /// One story of many: SplitMix64, which can be copied with its world.
    Drawn(u64),
    /// A given way as far as it goes, then the first one at every fork. Keeps which was taken, and of how many.
    Walked { given: Vec<usize>, taken: Vec<(usize, usize)> },
}

impl Chance {
    pub fn seeded(seed: u64) -> Self {
        Self::Drawn(seed)
    }

    pub fn walked(given: Vec<usize>) -> Self {
        Self::Walked { given, taken: Vec::new() }
    }

    /// One of `ways`.
    pub fn pick(&mut self, ways: usize) -> usize {
        match self {
            _ if ways < 2 => 0,
            Self::Drawn(state) => (draw(state) % ways as u64) as usize,
            Self::Walked { given, taken } => {
                let way = given.get(taken.len()).copied().unwrap_or(0);
                taken.push((way, ways));
                way
            }
        }
    }

    /// Whether a thing happens that happens once in `odds` times.
    pub fn happens(&mut self, odds: usize) -> bool {
        match self {
            Self::Drawn(state) => draw(state).is_multiple_of(odds as u64),
            Self::Walked { .. } => self.pick(2) == 1,
        }
    }

    /// Milliseconds up to `most`; where every way is taken, all of it.
    pub fn within(&mut self, most: u64) -> u64 {
        match self {
            Self::Drawn(state) => draw(state) % (most + 1),
            Self::Walked { .. } => most,
        }
    }

    /// How long a message takes; where every way is taken, no time, so that messages meet in every order.
    pub fn latency(&mut self, most: u64) -> u64 {
        match self {
            Self::Drawn(state) => 1 + draw(state) % most,
            Self::Walked { .. } => 0,
        }
    }

    /// Whether what is due at the same time comes in every order, and not in that of its making.
    pub fn takes_every_order(&self) -> bool {
        matches!(self, Self::Walked { .. })
    }

    /// For the jitter of a wait.
    pub fn jitter(&mut self) -> StdRng {
        StdRng::seed_from_u64(match self {
            Self::Drawn(state) => draw(state),
            Self::Walked { .. } => 0,
        })
    }

    /// The way after the one that was taken; `None` when there is no other.
    pub fn next_way(&self) -> Option<Vec<usize>> {
        let Self::Walked { taken, .. } = self else { return None };
        let fork = taken.iter().rposition(|(way, ways)| way + 1 < *ways)?;
        let mut way: Vec<usize> = taken[..=fork].iter().map(|(way, _)| *way).collect();
        way[fork] += 1;
        Some(way)
    }

    /// The way that was taken.
    pub fn way(&self) -> Vec<usize> {
        match self {
            Self::Drawn(_) => Vec::new(),
            Self::Walked { taken, .. } => taken.iter().map(|(way, _)| *way).collect(),
        }
    }
}

fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
