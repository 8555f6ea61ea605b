//! Time for everything that is stored or compared across processes.
//!
//! Owns the wall clock: it is read once, at start, and from then on moves with tokio's monotonic clock. A step of the
//! system clock therefore never changes a wait, and a paused test moves both clocks together. What the system knows of
//! time beyond the life of a process is how long it has been up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, fs};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Later by `wait`; stays at the end of time instead of wrapping.
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(millis(wait)))
    }

    /// Time from `earlier` until `self`; zero if `earlier` is the later one.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Whole milliseconds of a duration, saturating.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A wall clock that moves with the monotonic one.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Instant,
    wall: Timestamp,
}

impl Clock {
    /// Reads the system's wall clock once.
    pub fn system() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::starting_at(Timestamp(millis(since_epoch)))
    }

    /// A clock that says `wall` now.
    pub fn starting_at(wall: Timestamp) -> Self {
        Self { start: Instant::now(), wall }
    }

    pub fn now(&self) -> Timestamp {
        self.wall.after(self.start.elapsed())
    }
}

/// How long the machine has been up. No step of its wall clock moves that, and it goes on while processes come and go
/// and while the machine is suspended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uptime {
    /// Names this life of the machine.
    pub boot: String,
    pub elapsed: Duration,
}

impl Uptime {
    /// `None` where the system does not tell; Linux does.
    pub fn read() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let seconds = uptime.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self { boot, elapsed: Duration::try_from_secs_f64(seconds).ok()? })
    }

    /// What has passed since `earlier`, if that was in the same life of the machine.
    pub fn since(&self, earlier: &Self) -> Option<Duration> {
        if self.boot == earlier.boot { self.elapsed.checked_sub(earlier.elapsed) } else { None }
    }
}
