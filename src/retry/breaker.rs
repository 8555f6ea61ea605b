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
/// So long after the time in which nothing is sent, a call that must not run twice is a probe, too: an upstream that gets no
/// others would stay shut out for ever.
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
    /// Failed, and nothing can have run: no connection, or a rule says so.
    Unreached,
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
    /// All, those that failed, and of these those in which nothing can have run.
    attempts: Window<3>,
    /// When a call last asked that may be a probe in any case.
    harmless_at: Option<Duration>,
}

/// `any_from`: the moment from which a call that must not run twice may be a probe as well.
#[derive(Clone, Copy, Debug)]
enum State {
    Closed { row: Failures },
    Open { until: Duration, any_from: Duration },
    HalfOpen { is_probing: bool, well: u32, any_from: Duration },
}

/// In a row, or within a window.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    all: u64,
    unreached: u64,
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
        let state = State::Closed { row: Failures::default() };
        Self { policy, state, generation: 0, openings: 0, attempts, harmless_at: None }
    }

    /// Leave for an attempt. `may_probe`: no harm comes of it if the upstream takes it and fails.
    ///
    /// # Errors
    /// How long until it is worth asking again.
    pub fn admit(&mut self, may_probe: bool, now: Duration) -> Result<Ticket, Duration> {
        self.look(may_probe, now)?;
        let is_probe = match &mut self.state {
            State::Closed { .. } => false,
            State::Open { any_from, .. } => {
                self.state = State::HalfOpen { is_probing: true, well: 0, any_from: *any_from };
                true
            }
            State::HalfOpen { is_probing, .. } => {
                *is_probing = true;
                true
            }
        };
        Ok(Ticket { generation: self.generation, is_probe })
    }

    /// Whether an attempt would get leave by now. It takes nothing.
    ///
    /// # Errors
    /// How long until it is worth asking again.
    pub fn look(&mut self, may_probe: bool, now: Duration) -> Result<(), Duration> {
        if may_probe {
            self.harmless_at = Some(now);
        }
        let (soonest, any_from) = match self.state {
            State::Closed { .. } => return Ok(()),
            State::Open { until, any_from } => (until.saturating_sub(now), any_from),
            State::HalfOpen { is_probing, any_from, .. } => (if is_probing { SOON } else { Duration::ZERO }, any_from),
        };
        let left = any_from.saturating_sub(now);
        if !may_probe && !left.is_zero() {
            return Err(left.min(soonest.max(SOON).max(self.quiet(now))));
        }
        if soonest.is_zero() { Ok(()) } else { Err(soonest) }
    }

    /// For as long as no call has come that may be a probe, the next one is not to be counted upon.
    fn quiet(&self, now: Duration) -> Duration {
        self.harmless_at.map_or(Duration::MAX, |at| now.saturating_sub(at))
    }

    /// What came of an attempt. `spread` draws a number in `0..=40`: by so many hundredths, less twenty, an opening differs
    /// from its length. True if it opens by this.
    pub fn report(&mut self, ticket: Ticket, health: Health, now: Duration, spread: impl FnOnce() -> u32) -> bool {
        if ticket.generation != self.generation {
            return false;
        }
        let failures = match (&mut self.state, health) {
            (State::Closed { .. } | State::Open { .. }, Health::Unclear) | (State::Open { .. }, _) => None,
            (State::Closed { row }, health) => {
                *row = row.and(health);
                let row = *row;
                self.too_many(row, health, now)
            }
            (State::HalfOpen { is_probing, .. }, Health::Unclear) => {
                *is_probing &= !ticket.is_probe;
                None
            }
            (State::HalfOpen { is_probing, well, .. }, Health::Well) => {
                *is_probing &= !ticket.is_probe;
                *well += 1;
                if *well >= PROBES {
                    self.close();
                }
                None
            }
            (State::HalfOpen { .. }, Health::Failed | Health::Unreached) => Some(Failures::default().and(health)),
        };
        if let Some(failures) = failures {
            self.open(failures, now, spread());
        }
        failures.is_some()
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
            State::Open { until, .. } if now < until => ("open", until - now),
            State::Open { .. } | State::HalfOpen { .. } => ("half-open", Duration::ZERO),
        }
    }

    /// Those that open it, if this attempt does.
    fn too_many(&mut self, row: Failures, health: Health, now: Duration) -> Option<Failures> {
        let by_row = self.policy.consecutive_failures > 0 && row.all >= u64::from(self.policy.consecutive_failures);
        let Some(rate) = self.policy.failure_rate else { return by_row.then_some(row) };
        let Failures { all: failed, unreached } = Failures::default().and(health);
        self.attempts.add([1, failed, unreached], now);
        let [attempts, all, unreached] = self.attempts.sums(now);
        let is_enough = attempts >= u64::from(rate.minimum_calls);
        let by_rate = failed > 0 && is_enough && all * 100 >= attempts * u64::from(rate.percent);
        by_row.then_some(row).or(by_rate.then_some(Failures { all, unreached }))
    }

    fn open(&mut self, by: Failures, now: Duration, spread: u32) {
        let most = LONGEST.max(self.policy.open_for);
        let length = self.policy.open_for.saturating_mul(2_u32.saturating_pow(self.openings)).min(most);
        let length = length.saturating_mul(80 + spread.min(40)) / 100;
        let until = now.saturating_add(length);
        // Where nothing arrives, no call is more in doubt than another.
        let wait = if by.all == by.unreached { Duration::ZERO } else { LAST_RESORT };
        self.state = State::Open { until, any_from: until.saturating_add(wait) };
        (self.generation, self.openings) = (self.generation + 1, self.openings.saturating_add(1));
    }

    fn close(&mut self) {
        let generation = self.generation + 1;
        *self = Self { generation, harmless_at: self.harmless_at, ..Self::new(self.policy) };
    }
}

impl Failures {
    /// With one more attempt behind them.
    fn and(self, health: Health) -> Self {
        let unreached = match health {
            Health::Failed => 0,
            Health::Unreached => 1,
            Health::Well | Health::Unclear => return Self::default(),
        };
        Self { all: self.all.saturating_add(1), unreached: self.unreached.saturating_add(unreached) }
    }
}

/// Reads a fact. `had_its_time`: the attempt was not cut short by a caller in a hurry. A client that leaves is no fact at
/// all, and what asks for less traffic (429, 529) is no failure: that is for the pause.
pub fn health(fact: &Fact, had_its_time: bool) -> Health {
    match fact {
        Fact::NotSent { reused_connection: true, .. } | Fact::TurnedAway => Health::Unclear,
        Fact::NotSent { cause: Cause::Connect, .. } => Health::Unreached,
        // The deadline, or something of ours.
        Fact::NotSent { .. } => Health::Unclear,
        Fact::Silent(Silence::Timeout) if !had_its_time => Health::Unclear,
        Fact::Silent(Silence::Timeout | Silence::Closed) | Fact::Garbled | Fact::Unreached { .. } => Health::Failed,
        Fact::Throttled | Fact::Overloaded { status: 529 } => Health::Unclear,
        Fact::Overloaded { .. } | Fact::ServerFailed { .. } | Fact::GatewayFailed { .. } => Health::Failed,
        Fact::Final { status: 511 } => Health::Failed,
        Fact::Ruled { status, meaning, .. } => match meaning {
            Meaning::Executed | Meaning::Failed | Meaning::Denied => Health::Well,
            Meaning::NotExecuted if *status >= 500 => Health::Unreached,
            Meaning::Unknown if *status >= 500 => Health::Failed,
            Meaning::NotExecuted | Meaning::Unknown | Meaning::Busy | Meaning::Throttled => Health::Unclear,
        },
        Fact::Cut { .. } | Fact::Refused { .. } | Fact::Misdirected | Fact::Denied { .. } | Fact::Final { .. } => {
            Health::Well
        }
    }
}

#[cfg(test)]
mod tests;
