//! Time for everything that is stored or compared across processes.
//!
//! Owns the wall clock: it is read once, at start, and from then on moves with tokio's monotonic clock. A step of the
//! system clock therefore never changes a wait, and a paused test moves both clocks together. What the monotonic clock
//! leaves out is added: the time that the machine was suspended. What the system knows of time beyond the life of a
//! process is how long it has been up.

pub mod moment;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, fs};

use rustix::time::{ClockId, clock_gettime};
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

/// A wall clock that moves with the monotonic one, and goes on while the machine is suspended.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Instant,
    wall: Timestamp,
    sleep: Sleep,
}

impl Clock {
    /// Reads the system's wall clock once.
    pub fn system() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::starting_at(Timestamp(millis(since_epoch)))
    }

    /// A clock that says `wall` now.
    pub fn starting_at(wall: Timestamp) -> Self {
        Self { start: Instant::now(), wall, sleep: Sleep::after(suspended()) }
    }

    pub fn now(&self) -> Timestamp {
        self.told(suspended)
    }

    fn told(&self, suspended: impl FnOnce() -> Duration) -> Timestamp {
        let awake = self.start.elapsed();
        self.wall.after(awake + self.sleep.until(millis(awake), suspended))
    }
}

/// How long the machine was suspended in the life of a clock.
#[derive(Clone, Debug)]
struct Sleep {
    before: Duration,
    known: Arc<Known>,
}

/// In milliseconds.
#[derive(Debug)]
struct Known {
    /// No later look makes it shorter.
    longest: AtomicU64,
    /// When somebody looked last, by the clock that stands still meanwhile.
    looked: AtomicU64,
}

impl Sleep {
    fn after(before: Duration) -> Self {
        let known = Known { longest: AtomicU64::new(0), looked: AtomicU64::new(u64::MAX) };
        Self { before, known: Arc::new(known) }
    }

    /// Looked at once in a millisecond that the machine is `awake`: a call asks ten times, for two clocks each (2 to 4 % of
    /// its time). Less than a second is what lies between the looks at two clocks.
    fn until(&self, awake: u64, suspended: impl FnOnce() -> Duration) -> Duration {
        if self.known.looked.load(Ordering::Relaxed) != awake {
            self.known.looked.store(awake, Ordering::Relaxed);
            let slept = suspended().saturating_sub(self.before);
            let slept = Some(slept).filter(|slept| *slept >= Duration::from_secs(1)).map_or(0, millis);
            self.known.longest.fetch_max(slept, Ordering::Relaxed);
        }
        Duration::from_millis(self.known.longest.load(Ordering::Relaxed))
    }
}

/// How long the machine has been suspended since it is up.
fn suspended() -> Duration {
    // In this order a pause between the two makes it shorter and never longer.
    let up = up().unwrap_or_default();
    up.saturating_sub(told_by(ClockId::Monotonic))
}

/// Not by `/proc/uptime`: a container may be told its own there, under the name of the machine's life.
#[cfg(target_os = "linux")]
fn up() -> Option<Duration> {
    Some(told_by(ClockId::Boottime))
}

/// Not known here.
#[cfg(not(target_os = "linux"))]
fn up() -> Option<Duration> {
    None
}

fn told_by(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
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
    /// `None` where the system does not tell. Linux does, unless somebody hides it from us.
    pub fn read() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        Some(Self { boot, elapsed: up()? }).filter(|uptime| !uptime.boot.is_empty())
    }

    /// What has passed since `earlier`, if that was in the same life of the machine.
    pub fn since(&self, earlier: &Self) -> Option<Duration> {
        if self.boot == earlier.boot { self.elapsed.checked_sub(earlier.elapsed) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_goes_on_while_the_machine_is_suspended() {
        let (minute, hour, noise) = (Duration::from_secs(60), Duration::from_secs(3600), Duration::from_millis(900));
        let moment = Duration::from_millis(1);
        let clock = Clock { sleep: Sleep::after(hour), ..Clock::starting_at(Timestamp(0)) };
        tokio::time::advance(minute).await;
        assert_eq!(clock.told(|| hour + noise), Timestamp(millis(minute)), "that was no sleep");
        assert_eq!(clock.told(|| hour * 3), Timestamp(millis(minute)), "nobody looks twice in a millisecond");
        tokio::time::advance(moment).await;
        let noon = Timestamp(millis(minute + moment + hour * 2));
        assert_eq!(clock.clone().told(|| hour * 3), noon);
        tokio::time::advance(moment).await;
        assert_eq!(clock.told(|| hour * 3 - noise), noon.after(moment), "and never goes back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_is_awake_adds_nothing() {
        let clock = Clock::starting_at(Timestamp(7));
        assert_eq!(clock.now(), Timestamp(7));
        tokio::time::advance(Duration::from_millis(5)).await;
        assert_eq!(clock.now(), Timestamp(12));
    }
}
