//! The clock of the Redis server, as well as it can be known from here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::{Clock, Timestamp, millis};

/// A reading this exact is always taken.
const EXACT: Duration = Duration::from_millis(5);

/// An estimate of the server's clock: what `TIME` said last, moved on by the monotonic clock of this machine.
#[derive(Debug)]
pub(super) struct ServerClock {
    start: Instant,
    /// The server's time at `start`, in milliseconds.
    at_start: AtomicU64,
    /// Round trip in microseconds up to which a reading is taken.
    tolerance: AtomicU64,
}

impl ServerClock {
    /// Until the first reading the clock of this machine stands in; nothing is written before that.
    pub(super) fn new() -> Self {
        Self::at(Clock::system().now())
    }

    /// Until the first reading it goes on from `now`.
    pub(super) fn at(now: Timestamp) -> Self {
        Self { start: Instant::now(), at_start: AtomicU64::new(now.0), tolerance: AtomicU64::new(u64::MAX) }
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp(self.at_start.load(Ordering::Relaxed)).after(self.start.elapsed())
    }

    /// Takes a reading that was asked for at `asked` and has come just now. One that took far longer than others says
    /// little, so it is left out, but the bar is lowered until one is good enough. One that the estimate agrees with
    /// changes nothing, so that the clock does not tremble.
    pub(super) fn read(&self, server: Timestamp, asked: Instant) {
        let took = asked.elapsed();
        let tolerance = self.tolerance.load(Ordering::Relaxed);
        if micros(took) > tolerance {
            self.tolerance.store(tolerance.saturating_mul(2), Ordering::Relaxed);
            return;
        }
        self.tolerance.store(micros(took.max(EXACT)).saturating_mul(2), Ordering::Relaxed);
        let midway = asked.duration_since(self.start) + took / 2;
        let at_start = server.0.saturating_sub(millis(midway));
        if at_start.abs_diff(self.at_start.load(Ordering::Relaxed)) > millis(took / 2) + 1 {
            self.at_start.store(at_start, Ordering::Relaxed);
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_moves_on_from_the_last_reading() {
        let clock = ServerClock::new();
        clock.read(Timestamp(5_000_000), Instant::now());
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!(clock.now(), Timestamp(5_000_250));
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_step_back_for_a_reading_within_its_error() {
        let clock = ServerClock::new();
        clock.read(Timestamp(5_000_000), Instant::now());
        let asked = Instant::now();
        tokio::time::advance(Duration::from_millis(4)).await;
        clock.read(Timestamp(5_000_000), asked);
        assert_eq!(clock.now(), Timestamp(5_000_004));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reading_counts_only_when_there_is_no_better_one() {
        let clock = ServerClock::new();
        clock.read(Timestamp(5_000_000), Instant::now());
        let mut readings = 0;
        loop {
            let asked = Instant::now();
            tokio::time::advance(Duration::from_millis(80)).await;
            clock.read(Timestamp(9_000_000), asked);
            readings += 1;
            if clock.now() >= Timestamp(9_000_000) {
                break;
            }
        }
        assert!((2..6).contains(&readings), "{readings}");
        assert_eq!(clock.now(), Timestamp(9_000_040));
    }
}
