//! Randomness for identifiers and jitter: one seam, so that a simulation can replay a run from its seed.

use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::{StdRng, SysRng};
use rand::{Rng, RngExt, SeedableRng};

/// A shared, seedable source of random numbers. Cheap to clone; clones draw from the same stream.
#[derive(Clone)]
pub struct Entropy(Arc<Mutex<StdRng>>);

impl Entropy {
    /// Seeded by the operating system.
    ///
    /// # Errors
    /// The operating system has no randomness to give.
    pub fn system() -> Result<Self, rand::rngs::SysError> {
        Ok(Self::from_rng(StdRng::try_from_rng(&mut SysRng)?))
    }

    /// The same numbers for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self::from_rng(StdRng::seed_from_u64(seed))
    }

    fn from_rng(rng: StdRng) -> Self {
        Self(Arc::new(Mutex::new(rng)))
    }

    /// `N` random bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.with(|rng| rng.fill_bytes(&mut bytes));
        bytes
    }

    /// A number in `0..=max`, uniformly.
    pub fn up_to(&self, max: u64) -> u64 {
        self.with(|rng| rng.random_range(0..=max))
    }

    /// Runs `draw` on the generator. The lock is held for the draw only.
    pub fn with<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
