//! What follows an attempt: another one after a wait, or the end of the run.
//!
//! Owns the order in which reasons to stop are asked. Two things must never happen here: another attempt on an
//! unsafe upstream after one that may have run, and an end that forgets that one may have.

mod ending;
mod promotion;
mod table;

use std::time::Duration;

use rand::Rng;

use crate::operation::Cause;
use crate::operation::admission::Repeat;
use crate::operation::outcome::Fact;
use crate::operation::transition::Ended;
use crate::retry::RetryPolicy;
use crate::retry::backoff::Backoff;
use crate::retry::retry_after::Hint;
pub use ending::Ending;
use table::{Again, Once, again};

/// A hint beyond it is not waited for by anybody.
pub const LONGEST_PARKING: Duration = Duration::from_secs(24 * 60 * 60);
/// A gate that opens before its time is to be noticed by what it put off.
pub const LONGEST_PUT_OFF: Duration = Duration::from_secs(60);

/// An attempt that has less time than this before the deadline is not begun.
pub const LEAST_TRY: Duration = Duration::from_millis(100);

/// Everything the decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    pub fact: Fact,
    /// What a repeat means while the upstream still remembers the key; `Unsafe` once it may not.
    pub repeat: Repeat,
    /// The method is DELETE: after a doubt, "not found" may be our own doing.
    pub deletes: bool,
    /// An attempt before this one ended ambiguous.
    pub may_have_run: bool,
    /// The answer forbids another try.
    pub vetoed: bool,
    /// The answer asks for another try, whatever its status says.
    pub promoted: bool,
    /// The body can be sent again, byte for byte.
    pub replayable: bool,
    pub hint: Option<Hint>,
    /// Nobody waits for the answer, and whoever is there when a wait is over can go on.
    pub may_park: bool,
    /// Time until the deadline of the run.
    pub left: Duration,
    pub run: Run,
}

/// What a run has used up so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Tries begun, the present one included, whether or not a byte went.
    pub tries: u32,
    /// The retry that a dead pooled connection, or a call that was turned away, gets for nothing.
    pub free: bool,
    /// The one retry after a 408, 421 or 425.
    pub refused: bool,
    /// The one retry after a 500 on a with-key upstream.
    pub server_failed: bool,
    /// The one retry after a head that could not be read.
    pub garbled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Retry {
        /// From now to the next attempt.
        wait: Duration,
        /// How the present attempt goes into the record.
        ended: Ended,
        /// A pooled connection would meet the same failure.
        new_connection: bool,
        /// The run with what this retry uses up; the next try is not yet counted.
        run: Run,
        /// The wait is longer than a run: it is over for now, and the next attempt begins another one.
        parked: bool,
    },
    End {
        ending: Ending,
        /// Why no further try, where one was conceivable.
        stop: Option<Stop>,
    },
}

/// Why no further try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    Exhausted,
    Vetoed,
    Unsafe,
    Body,
    HintTooLong,
    Deadline,
    /// The upstream is left alone for now.
    Breaker,
    /// The upstream has been given as many retries as it may be.
    Budget,
}

/// Decides what follows the attempt of `situation`. `rng` draws the jitter and nothing else.
pub fn decide(situation: &Situation, policy: &RetryPolicy, rng: &mut impl Rng) -> Decision {
    let situation = situation.with_promotion();
    if let Some(ending) = situation.final_answer() {
        return Decision::End { ending, stop: None };
    }
    let (run, wait, parked) = match situation.next(policy, rng) {
        Ok(next) => next,
        Err(stop) => return Decision::End { ending: situation.ending(), stop: Some(stop) },
    };
    Decision::Retry { wait, ended: situation.ended(), new_connection: situation.needs_new_connection(), run, parked }
}

impl Decision {
    /// Whether it is a retry that the budget has to pay for: all but those that a run gets for nothing.
    pub fn is_charged(&self, before: &Run) -> bool {
        match self {
            Self::Retry { run, .. } => run.free == before.free,
            Self::End { .. } => false,
        }
    }
}

impl Run {
    /// A run that goes on after `tries` of an owner that went away.
    pub fn after(tries: u32) -> Self {
        Self { tries, ..Self::default() }
    }

    /// Counts one more try.
    pub fn next_try(self) -> Self {
        Self { tries: self.tries.saturating_add(1), ..self }
    }

    /// Tries that `max_attempts` bounds.
    fn counted(self) -> u32 {
        self.tries.saturating_sub(u32::from(self.free))
    }
}

impl Situation {
    /// What another try uses up, the wait before it, and whether that is one for nobody to hold.
    fn next(&self, policy: &RetryPolicy, rng: &mut impl Rng) -> Result<(Run, Duration, bool), Stop> {
        let run = self.permit(policy)?;
        match self.wait(run, policy, rng) {
            Ok(wait) => Ok((run, wait, false)),
            Err(stop) => self.parking(run, policy, rng).map(|wait| (run, wait, true)).ok_or(stop),
        }
    }

    /// A stated wait that does not fit into the run, and need not.
    fn parking(&self, run: Run, policy: &RetryPolicy, rng: &mut impl Rng) -> Option<Duration> {
        let Hint(asked) = self.hint.filter(|_| self.may_park)?;
        let backoff = Backoff::new(policy.base_interval, policy.max_interval);
        let is_bearable = asked <= LONGEST_PARKING;
        is_bearable.then(|| backoff.wait_for(asked, run.counted().saturating_sub(1), Duration::MAX, rng)).flatten()
    }

    /// Whether there may be another try at all, and what that uses up. The first stop that applies is the one told.
    fn permit(&self, policy: &RetryPolicy) -> Result<Run, Stop> {
        if matches!(self.fact, Fact::NotSent { cause: Cause::Deadline, .. }) {
            return Err(Stop::Deadline);
        }
        let free = self.is_free();
        if !free && self.run.counted() >= policy.max_attempts {
            return Err(Stop::Exhausted);
        }
        if self.vetoed {
            return Err(Stop::Vetoed);
        }
        if self.repeat == Repeat::Unsafe && self.in_doubt() {
            return Err(Stop::Unsafe);
        }
        let run = self.spend(again(&self.fact, self.repeat))?;
        if !self.replayable {
            return Err(Stop::Body);
        }
        Ok(Run { free: run.free || free, ..run })
    }

    /// The end of the run where something outside of it forbids the retry that was decided.
    pub fn stopped(&self, stop: Stop) -> Decision {
        Decision::End { ending: self.with_promotion().ending(), stop: Some(stop) }
    }

    /// The same where a gate may let the retry through after `wait`, which ends no run that need not go on now.
    pub fn put_off(&self, retry: Decision, wait: Duration, stop: Stop) -> Decision {
        match retry {
            Decision::Retry { wait: own, ended, new_connection, run, parked: _ } if self.may_park => {
                let wait = own.max(wait.min(LONGEST_PUT_OFF));
                Decision::Retry { wait, ended, new_connection, run, parked: true }
            }
            Decision::Retry { .. } | Decision::End { .. } => self.stopped(stop),
        }
    }

    /// A pooled connection that died unused tells nothing about the upstream, and neither does a server that only lets
    /// go of a connection, so the retry costs no try and no wait.
    fn is_free(&self) -> bool {
        matches!(self.fact, Fact::NotSent { reused_connection: true, .. } | Fact::TurnedAway) && !self.run.free
    }

    fn spend(&self, again: Again) -> Result<Run, Stop> {
        let mut run = self.run;
        let spent = match again {
            Again::Always => return Ok(run),
            Again::Never if self.repeat == Repeat::Unsafe => return Err(Stop::Unsafe),
            Again::Never => return Err(Stop::Exhausted),
            Again::Once(Once::Refused) => &mut run.refused,
            Again::Once(Once::ServerFailed) => &mut run.server_failed,
            Again::Once(Once::Garbled) => &mut run.garbled,
        };
        if std::mem::replace(spent, true) { Err(Stop::Exhausted) } else { Ok(run) }
    }

    /// The wait before the next try, which has to begin early enough to be worth it. "Come back at once" is no throttle
    /// without a hint, yet it is no leave to hammer either: plain backoff.
    fn wait(&self, run: Run, policy: &RetryPolicy, rng: &mut impl Rng) -> Result<Duration, Stop> {
        let room = self.left.checked_sub(LEAST_TRY.min(policy.attempt_timeout)).ok_or(Stop::Deadline)?;
        if self.is_free() {
            return Ok(Duration::ZERO);
        }
        let backoff = Backoff::new(policy.base_interval, policy.max_interval);
        let n = run.counted().saturating_sub(1);
        let wait = match self.hint {
            Some(Hint(asked)) if asked > policy.retry_after_max => return Err(Stop::HintTooLong),
            Some(Hint(Duration::ZERO)) => backoff.wait(n, room, rng),
            Some(Hint(asked)) => backoff.wait_for(asked, n, room, rng),
            None if self.fact.is_throttle() => backoff.throttled().wait(n, room, rng),
            None => backoff.wait(n, room, rng),
        };
        wait.ok_or(Stop::Deadline)
    }

    fn ended(&self) -> Ended {
        Ended { cause: self.fact.cause(), may_have_run: self.fact.may_have_run() }
    }

    /// 408 closes its connection, 421 blames it, and a pool with one dead connection tends to hold more.
    fn needs_new_connection(&self) -> bool {
        matches!(
            self.fact,
            Fact::Misdirected | Fact::Refused { status: 408 } | Fact::NotSent { reused_connection: true, .. }
        )
    }
}

impl Stop {
    /// The word of the `Oncegate-Stop` header.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Vetoed => "vetoed",
            Self::Unsafe => "unsafe",
            Self::Body => "body",
            Self::HintTooLong => "hint-too-long",
            Self::Deadline => "deadline",
            Self::Breaker => "breaker",
            Self::Budget => "budget",
        }
    }
}

#[cfg(test)]
mod tests;
