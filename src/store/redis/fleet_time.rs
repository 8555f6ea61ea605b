//! The time that a fleet goes by: the clock of the Redis server without its jumps.
//!
//! Each gateway holds the server's clock against its own monotonic one, and takes a jump out by an offset. What the fleet
//! adds to the server's clock is kept in Redis, with the time that was reached: for gateways that start later, and for
//! those that stood still while the others went on.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::{Timestamp, Uptime, millis};

/// A step that is no jump is followed: clocks are set right by a little all the time, and so does a failover.
const JUMP: Duration = Duration::from_secs(1);
/// A reading this exact sets the time.
const EXACT: Duration = Duration::from_millis(50);
/// How long the monotonic clock is relied on before it is set anew.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct FleetTime(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// To be added to the estimate of the server's clock, in milliseconds.
    offset: i64,
    /// `None` until the fleet has been asked.
    anchor: Option<Anchor>,
}

/// A moment that both clocks know.
#[derive(Debug)]
struct Anchor {
    at: Instant,
    time: Timestamp,
    uptime: Option<Uptime>,
}

/// What Redis said of the fleet's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) server: Timestamp,
    /// What the fleet adds to it, in milliseconds.
    pub(super) offset: i64,
    /// How far time has come; `None` if nobody has noted it.
    pub(super) reached: Option<Timestamp>,
}

/// An offset that is to take the place of the one that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shift {
    pub(super) found: i64,
    pub(super) wanted: i64,
}

impl FleetTime {
    /// The fleet's time, given the estimate of the server's clock.
    pub(super) fn now(&self, server: Timestamp) -> Timestamp {
        let mut seen = self.seen();
        let time = moved(server, seen.offset);
        let Some(anchor) = &seen.anchor else { return time };
        let passed = anchor.at.elapsed();
        let expected = anchor.time.after(passed);
        if time.0.abs_diff(expected.0) > millis(JUMP) && !anchor.was_suspended() {
            tracing::warn!(%server, %time, %expected, "the clock of Redis has jumped; time goes on as before");
            seen.set(server, expected);
            return expected;
        }
        if passed >= EVERY {
            seen.set(server, time);
        }
        time
    }

    /// The same, if the fleet has been asked before.
    pub(super) fn known(&self, server: Timestamp) -> Option<Timestamp> {
        let is_asked = self.seen().anchor.is_some();
        is_asked.then(|| self.now(server))
    }

    /// Compares what Redis said, on a question that `took` so long, with what is known here. A gateway that has seen the
    /// jump says by what the fleet has to shift; one that the fleet has left behind follows it.
    pub(super) fn heed(&self, said: Said, server: Timestamp, took: Duration) -> Option<Shift> {
        let mine = self.known(server);
        let theirs = moved(said.server, said.offset).after(took / 2);
        let shift = |to: Timestamp| Shift { found: said.offset, wanted: said.offset + difference(to, theirs) };
        let mut seen = self.seen();
        match (mine, said.reached) {
            (None, Some(reached)) if theirs.after(JUMP) < reached => {
                tracing::warn!(%theirs, %reached, "the clock of Redis went back while nobody looked; time goes on from there");
                seen.set(server, reached);
                Some(shift(reached))
            }
            (None, _) => {
                seen.set(server, theirs);
                None
            }
            (Some(mine), _) if mine.0.abs_diff(theirs.0) <= millis(JUMP + took) => {
                if took <= EXACT {
                    seen.set(server, theirs);
                }
                None
            }
            (Some(mine), reached) if reached.is_none_or(|reached| is_nearer(mine, theirs, reached)) => {
                Some(shift(mine))
            }
            (Some(mine), _) => {
                tracing::warn!(%mine, %theirs, "the fleet's time has gone on without this gateway, which follows it");
                seen.set(server, theirs);
                None
            }
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn set(&mut self, server: Timestamp, time: Timestamp) {
        self.offset = difference(time, server);
        self.anchor = Some(Anchor { at: Instant::now(), time, uptime: Uptime::read() });
    }
}

impl Anchor {
    /// The monotonic clock stood still, and the server's did not.
    fn was_suspended(&self) -> bool {
        let passed = self.uptime.as_ref().zip(Uptime::read()).and_then(|(then, now)| now.since(then));
        passed.is_some_and(|passed| passed > self.at.elapsed() + JUMP)
    }
}

fn is_nearer(one: Timestamp, other: Timestamp, to: Timestamp) -> bool {
    one.0.abs_diff(to.0) < other.0.abs_diff(to.0)
}

fn moved(time: Timestamp, offset: i64) -> Timestamp {
    Timestamp(time.0.saturating_add_signed(offset))
}

fn difference(time: Timestamp, other: Timestamp) -> i64 {
    let apart = i64::try_from(time.0.abs_diff(other.0)).unwrap_or(i64::MAX);
    if time >= other { apart } else { -apart }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const DAYS: u64 = 2 * 86_400_000;
    const BEGIN: u64 = 10 * DAYS;
    const SECOND: Duration = Duration::from_secs(1);

    fn said(server: u64, offset: i64, reached: u64) -> Said {
        Said { server: Timestamp(server), offset, reached: (reached > 0).then_some(Timestamp(reached)) }
    }

    fn started() -> FleetTime {
        let time = FleetTime::default();
        assert_eq!(time.heed(said(BEGIN, 0, 0), Timestamp(BEGIN), Duration::ZERO), None);
        time
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_of_the_server_moves_nothing_and_is_told_to_the_fleet_once() {
        for jump in [DAYS as i64, -(DAYS as i64)] {
            let (one, other) = (started(), started());
            advance(SECOND).await;
            let server = Timestamp((BEGIN + 1000).saturating_add_signed(jump));
            assert_eq!(one.now(server), Timestamp(BEGIN + 1000));
            let shift = one.heed(said(server.0, 0, BEGIN), server, Duration::ZERO);
            assert_eq!(shift, Some(Shift { found: 0, wanted: -jump }));
            // The other one has heard of the offset before it has read the server's clock, and after.
            for server_as_read in [Timestamp(BEGIN + 1000), server] {
                assert_eq!(other.heed(said(server.0, -jump, BEGIN), server_as_read, Duration::ZERO), None);
                assert_eq!(other.now(server_as_read), Timestamp(BEGIN + 1000));
            }
            let late = FleetTime::default();
            assert_eq!(late.heed(said(server.0, -jump, BEGIN + 1000), server, Duration::ZERO), None);
            assert_eq!(late.now(server), Timestamp(BEGIN + 1000));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_went_back_before_the_start_goes_on_from_the_time_that_was_reached() {
        let time = FleetTime::default();
        let shift = time.heed(said(BEGIN - DAYS, 0, BEGIN), Timestamp(BEGIN - DAYS), Duration::ZERO);
        assert_eq!(shift, Some(Shift { found: 0, wanted: DAYS as i64 }));
        assert_eq!(time.now(Timestamp(BEGIN - DAYS)), Timestamp(BEGIN));
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_is_no_jump_is_followed() {
        let time = started();
        advance(SECOND).await;
        assert_eq!(time.now(Timestamp(BEGIN + 1400)), Timestamp(BEGIN + 1400));
        assert_eq!(time.now(Timestamp(BEGIN + 900)), Timestamp(BEGIN + 900));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stood_still_follows_the_others() {
        let time = started();
        advance(SECOND).await;
        let later = BEGIN + DAYS;
        assert_eq!(time.heed(said(later, 0, later - 500), Timestamp(BEGIN + 1000), Duration::ZERO), None);
        assert_eq!(time.now(Timestamp(later)), Timestamp(later));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fleet_whose_redis_forgot_the_time_tells_it_again() {
        let time = FleetTime::default();
        time.heed(said(BEGIN - DAYS, DAYS as i64, BEGIN), Timestamp(BEGIN - DAYS), Duration::ZERO);
        let shift = time.heed(said(BEGIN - DAYS, 0, 0), Timestamp(BEGIN - DAYS), Duration::ZERO);
        assert_eq!(shift, Some(Shift { found: 0, wanted: DAYS as i64 }));
    }
}
