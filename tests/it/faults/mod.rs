//! Gateways and servers that are killed, frozen and started again, before an upstream that counts what it did.
//!
//! Whatever goes wrong is collected with everything that is known of it; a run ends with figures.

pub mod caller;
pub mod failover;
pub mod history;
pub mod journal;
pub mod kills;
pub mod oracle;
pub mod power_loss;
pub mod races;
pub mod redis_loss;
pub mod storm;

use std::env;
use std::fmt::{self, Display};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use oncegate::entropy::Entropy;

use self::oracle::Oracle;
use crate::support::gateway::{Gateway, Settings};

/// Where a run takes its seed from.
const SEED: &str = "ONCEGATE_TEST_SEED";

/// What the upstream says about a second send. A path of its own for each, and a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    Unsafe,
    WithKey,
    Harmless,
}

impl Repeat {
    /// Without the slash it is how keys of the route begin.
    pub fn path(self) -> &'static str {
        match self {
            Self::Unsafe => "/unsafe",
            Self::WithKey => "/with-key",
            Self::Harmless => "/harmless",
        }
    }

    pub fn key(self, name: impl Display) -> String {
        format!("{}-{name}", self.path().trim_start_matches('/'))
    }

    /// Of the route that `key` was made for.
    pub fn of(key: &str) -> Self {
        let made_for = |repeat: &Self| key.starts_with(repeat.path().trim_start_matches('/'));
        [Self::WithKey, Self::Harmless].into_iter().find(made_for).unwrap_or(Self::Unsafe)
    }
}

/// Of every gateway here: leases that end soon, and a log that says everything.
pub fn settings(oracle: &Oracle) -> Settings {
    settings_that_log(oracle, "debug")
}

/// The same, with a log of that level.
pub fn settings_that_log(oracle: &Oracle, level: &str) -> Settings {
    let settings = Settings::towards(&format!("http://{}", oracle.address)).top("store.lease = '500ms'");
    let settings = settings.top("upstreams.payments.connect_timeout = '20s'").top(&format!("log.level = '{level}'"));
    settings.and(
        "[[routes]]
        name = 'with-key'
        match.path = '/with-key'
        upstream = 'payments'
        repeat = 'with-key'
        [[routes]]
        name = 'harmless'
        match.path = '/harmless'
        upstream = 'payments'
        repeat = 'harmless'",
    )
}

/// What `gateways` logged about one operation.
pub fn log_about<'a>(gateways: impl IntoIterator<Item = &'a Gateway>, operation: &str) -> String {
    let logs: Vec<_> = gateways.into_iter().map(Gateway::log).collect();
    let lines: Vec<_> = logs.iter().flat_map(|log| log.lines()).filter(|line| line.contains(operation)).collect();
    lines.join("\n")
}

/// What a run came to.
#[derive(Debug)]
pub struct Tally {
    pub name: String,
    pub seed: u64,
    pub kills: usize,
    pub freezes: usize,
    pub calls: usize,
    pub receipts: usize,
    pub unknown: usize,
    pub second_runs: usize,
    pub lost_receipts: usize,
    violations: Vec<String>,
    began: Instant,
}

impl Tally {
    pub fn new(name: impl Into<String>, seed: u64) -> Self {
        Self {
            name: name.into(),
            seed,
            kills: 0,
            freezes: 0,
            calls: 0,
            receipts: 0,
            unknown: 0,
            second_runs: 0,
            lost_receipts: 0,
            violations: Vec::new(),
            began: Instant::now(),
        }
    }

    pub fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    /// Prints the figures, and fails if anything was violated.
    pub fn conclude(self) {
        println!("{self}");
        assert!(self.violations.is_empty(), "{self}\n{}", self.violations.join("\n\n"));
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, seed, kills, freezes, calls, receipts, unknown, second_runs, lost_receipts, .. } = self;
        write!(f, "{name}: {kills} kills, {freezes} freezes, {calls} calls, {receipts} receipts, {unknown} unknown, ")?;
        write!(f, "{second_runs} second runs, {lost_receipts} lost receipts, {} violations, ", self.violations.len())?;
        write!(f, "{:.1} s, {SEED}={seed}", self.began.elapsed().as_secs_f64())
    }
}

/// The seed of a run: a new one, or that of `ONCEGATE_TEST_SEED` where a run is to be repeated. Kills, stops, keys and
/// waits are drawn from it; when threads and processes get their turn is not.
pub fn any_seed() -> u64 {
    match env::var(SEED) {
        Ok(seed) => seed.parse().expect("ONCEGATE_TEST_SEED is a number"),
        Err(_) => Entropy::system().unwrap().up_to(u64::from(u32::MAX)),
    }
}

/// The random numbers of one actor: the same for the same seed, whatever others draw.
pub fn stream(seed: u64, actor: &str) -> Entropy {
    let mut hasher = DefaultHasher::new();
    (seed, actor).hash(&mut hasher);
    Entropy::seeded(hasher.finish())
}

/// A time between the two, in milliseconds.
pub fn between(entropy: &Entropy, (least, most): (u64, u64)) -> Duration {
    Duration::from_millis(least + entropy.up_to(most - least))
}
