//! When an upstream is left alone: after failures in a row, or too many among its calls, nothing is sent for a while, and
//! then one call at a time finds out whether it is well again.
//!
//! Moments are told as the time since the process began.

use std::time::Duration;

use crate::operation::Cause;
use crate::operation::meaning::Meaning;
use crate::operation::outcome::{Fact, Silence};
use crate::retry::window::Window;

/// The longest that a breaker stays open by itself, unless `open_for` is longer.
const LONGEST: Duration = Duration::from_secs(60);
/// Whoever meets a probe under way may come back so soon.
const SOON: Duration = Duration::from_secs(1);
/// Probes in a row that have to end well.
const PROBES: u32 = 2;
/// After so long without a call that may be a probe, one that must not run twice is: an upstream that gets no others would
/// stay shut out for ever.
const LAST_RESORT: Duration = Duration::from_secs(60);

/// `[routes.breaker]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Failures in a row that open it; zero: none do.
    pub consecutive_failures: u32,
    pub failure_rate: Option<FailureRate>,
    /// For the first time; doubled each time that a probe fails.
    pub open_for: Duration,
}

/// The other rule that opens a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRate {
    /// Of the attempts within `window`.
    pub percent: u32,
    /// Below this number of attempts nothing is made of it.
    pub minimum_calls: u32,
    pub window: Duration,
}

/// What an attempt says about the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    Failed,
    /// Nothing, or nothing about how well it is.
    Unclear,
}

/// The breaker of one upstream.
#[derive(Clone, Debug)]
pub struct Breaker {
    policy: BreakerPolicy,
    state: State,
    /// Grows with each opening and closing; what was let through before changes nothing any more.
    generation: u64,
    /// In a row, without a close in between.
    openings: u32,
    attempts: Window,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { failures: u32 },
    Open { until: Duration },
    HalfOpen { is_probing: bool, well: u32, since: Duration },
}

/// Leave for one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    generation: u64,
    /// The next probe waits for its end.
    pub is_probe: bool,
}

impl BreakerPolicy {
    /// Whether anything opens it.
    pub fn may_open(&self) -> bool {
        self.consecutive_failures > 0 || self.failure_rate.is_some()
    }
}

impl Breaker {
    /// Closed.
    pub fn new(policy: BreakerPolicy) -> Self {
        let span = policy.failure_rate.map_or(LONGEST, |rate| rate.window);
        let attempts = Window::new(span);
        Self { policy, state: State::Closed { failures: 0 }, generation: 0, openings: 0, attempts }
    }

    /// Leave for an attempt. `may_probe`: no harm comes of it if the upstream takes it and fails.
    ///
    /// # Errors
    /// How long until it is worth asking again.
    pub fn admit(&mut self, may_probe: bool, now: Duration) -> Result<Ticket, Duration> {
        match &mut self.state {
            State::Closed { .. } => return Ok(Ticket { generation: self.generation, is_probe: false }),
            State::Open { until } if now < *until => return Err(*until - now),
            State::Open { until } => {
                self.state = State::HalfOpen { is_probing: false, well: 0, since: *until };
            }
            State::HalfOpen { .. } => {}
        }
        let State::HalfOpen { is_probing, since, .. } = &mut self.state else { return Err(SOON) };
        if *is_probing || !(may_probe || now.saturating_sub(*since) >= LAST_RESORT) {
            return Err(SOON);
        }
        *is_probing = true;
        Ok(Ticket { generation: self.generation, is_probe: true })
    }

    /// Whether an attempt would get leave by now. It takes nothing.
    ///
    /// # Errors
    /// How long until it is worth asking again.
    pub fn look(&self, may_probe: bool, now: Duration) -> Result<(), Duration> {
        self.clone().admit(may_probe, now).map(drop)
    }

    /// What came of an attempt. `spread` draws a number in `0..=40`: by so many hundredths, less twenty, an opening differs
    /// from its length. True if it opens by this.
    pub fn report(&mut self, ticket: Ticket, health: Health, now: Duration, spread: impl FnOnce() -> u32) -> bool {
        if ticket.generation != self.generation {
            return false;
        }
        let opens = match (&mut self.state, health) {
            (State::Closed { .. } | State::Open { .. }, Health::Unclear) | (State::Open { .. }, _) => false,
            (State::Closed { failures }, health) => {
                *failures = if health == Health::Failed { failures.saturating_add(1) } else { 0 };
                let in_a_row = *failures;
                self.is_too_much(health, in_a_row, now)
            }
            (State::HalfOpen { is_probing, .. }, Health::Unclear) => {
                *is_probing &= !ticket.is_probe;
                false
            }
            (State::HalfOpen { is_probing, well, .. }, Health::Well) => {
                *is_probing &= !ticket.is_probe;
                *well += 1;
                if *well >= PROBES {
                    self.close();
                }
                false
            }
            (State::HalfOpen { .. }, Health::Failed) => true,
        };
        if opens {
            self.open(now, spread());
        }
        opens
    }

    /// The attempt was never made, or nobody waited for its end.
    pub fn give_back(&mut self, ticket: Ticket) {
        if let State::HalfOpen { is_probing, .. } = &mut self.state
            && ticket.generation == self.generation
        {
            *is_probing &= !ticket.is_probe;
        }
    }

    /// The word for operators, and how long nothing is sent for sure.
    pub fn shown(&self, now: Duration) -> (&'static str, Duration) {
        match self.state {
            State::Closed { .. } => ("closed", Duration::ZERO),
            State::Open { until } if now < until => ("open", until - now),
            State::Open { .. } | State::HalfOpen { .. } => ("half-open", Duration::ZERO),
        }
    }

    fn is_too_much(&mut self, health: Health, in_a_row: u32, now: Duration) -> bool {
        let failed = health == Health::Failed;
        let by_row = self.policy.consecutive_failures > 0 && in_a_row >= self.policy.consecutive_failures;
        let Some(rate) = self.policy.failure_rate else { return by_row };
        self.attempts.add([1, u64::from(failed)], now);
        let [all, failures] = self.attempts.sums(now);
        let is_enough = all >= u64::from(rate.minimum_calls);
        by_row || (failed && is_enough && failures * 100 >= all * u64::from(rate.percent))
    }

    fn open(&mut self, now: Duration, spread: u32) {
        let most = LONGEST.max(self.policy.open_for);
        let length = self.policy.open_for.saturating_mul(2_u32.saturating_pow(self.openings)).min(most);
        let length = length.saturating_mul(80 + spread.min(40)) / 100;
        self.state = State::Open { until: now.saturating_add(length) };
        (self.generation, self.openings) = (self.generation + 1, self.openings.saturating_add(1));
    }

    fn close(&mut self) {
        let generation = self.generation + 1;
        *self = Self { generation, ..Self::new(self.policy) };
    }
}

/// Reads a fact. `had_its_time`: the attempt was not cut short by a caller in a hurry. A client that leaves is no fact at
/// all, and what asks for less traffic (429, 529) is no failure: that is for the pause.
pub fn health(fact: &Fact, had_its_time: bool) -> Health {
    match fact {
        Fact::NotSent { reused_connection: true, .. } | Fact::TurnedAway => Health::Unclear,
        Fact::NotSent { cause: Cause::Connect, .. } => Health::Failed,
        // The deadline, or something of ours.
        Fact::NotSent { .. } => Health::Unclear,
        Fact::Silent(Silence::Timeout) if !had_its_time => Health::Unclear,
        Fact::Silent(Silence::Timeout | Silence::Closed) | Fact::Garbled | Fact::Unreached { .. } => Health::Failed,
        Fact::Throttled | Fact::Overloaded { status: 529 } => Health::Unclear,
        Fact::Overloaded { .. } | Fact::ServerFailed { .. } | Fact::GatewayFailed { .. } => Health::Failed,
        Fact::Final { status: 511 } => Health::Failed,
        Fact::Ruled { status, meaning, .. } => match meaning {
            Meaning::Executed | Meaning::Failed | Meaning::Denied => Health::Well,
            Meaning::NotExecuted | Meaning::Unknown if *status >= 500 => Health::Failed,
            Meaning::NotExecuted | Meaning::Unknown | Meaning::Busy | Meaning::Throttled => Health::Unclear,
        },
        Fact::Cut { .. } | Fact::Refused { .. } | Fact::Misdirected | Fact::Denied { .. } | Fact::Final { .. } => {
            Health::Well
        }
    }
}

#[cfg(test)]
mod tests;
