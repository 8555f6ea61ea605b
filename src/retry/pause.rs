//! When an upstream asks for less traffic, everybody who comes with the same credential waits, not only whoever was told.
//!
//! A pause comes from a wait that was stated, or from three throttles in a short time that stated none. It ends with one
//! call, the canary, and then with more and more of them. Moments are told as the time since the process began.

use std::collections::HashMap;
use std::time::Duration;

use crate::retry::backoff::Backoff;

/// However long a wait is stated, others are held back for no longer.
pub const LONGEST: Duration = Duration::from_secs(5 * 60);
/// Within this time so many throttles without a hint are one.
const RECENT: Duration = Duration::from_secs(10);
const STRIKES: usize = 3;
/// For pauses without a hint.
const BASE: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(20);
/// Batches behind the canary come within this time of each other, until there is room for all.
pub const SPACING: Duration = Duration::from_millis(250);
const LAST_BATCH: u32 = 256;
/// A ramp on which nobody came for so long is over.
const STALE: Duration = Duration::from_secs(5);
/// Until a canary is asked after again, or a pause that is just about to end.
pub const SOON: Duration = Duration::from_millis(250);
/// So much apart two ends may be the same one, by the clocks of two gateways.
pub const CLOCKS: Duration = Duration::from_secs(1);
/// What is so close to its end by this clock may be over by that of the store.
const MARGIN: Duration = Duration::from_millis(100);
/// A pause whose end nobody came for is forgotten after so long.
const GRACE: Duration = Duration::from_secs(60);
/// Credentials that are kept in mind; some change with each request, and must not fill the memory.
const CREDENTIALS: usize = 1024;

/// Whom a pause is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Whom {
    Everybody,
    /// Whoever brings the credential of this digest, or none at all.
    Holder([u8; 8]),
}

/// What may be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There is no pause, or it lets this many through.
    Free,
    /// The pause is over, and this call finds out whether that is so. By the number its report is told from that of an
    /// earlier one.
    Canary(u64),
    Wait(Duration),
}

/// The pauses of one upstream.
#[derive(Clone, Debug, Default)]
pub struct Pauses {
    paused: HashMap<Whom, Pause>,
    /// How many there were.
    canaries: u64,
    strikes: HashMap<Whom, Strikes>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    phase: Phase,
    /// Since when the store is known to have it.
    stored: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Until(Duration),
    /// `first`: its first canary, by which those of an earlier pause are told apart.
    Over {
        canary: Option<u64>,
        first: u64,
        since: Duration,
    },
    Ramp {
        batch: u32,
        left: u32,
        next: Duration,
    },
}

/// Throttles without a hint.
#[derive(Clone, Copy, Debug, Default)]
struct Strikes {
    recent: [Option<Duration>; STRIKES],
    /// How often they came to a pause.
    pauses: u32,
}

/// A pause at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub whom: Whom,
    pub phase: &'static str,
    /// Until the canary may go.
    pub left: Duration,
}

impl Pauses {
    /// Whether nobody has to ask.
    pub fn is_empty(&self) -> bool {
        self.paused.is_empty()
    }

    /// Whether whoever brings this has to ask.
    pub fn is_paused(&self, whom: Whom) -> bool {
        self.paused.contains_key(&whom)
    }

    /// Whether a canary has found that the pause is over.
    pub fn is_on_ramp(&self, whom: Whom) -> bool {
        self.paused.get(&whom).is_some_and(|pause| matches!(pause.phase, Phase::Ramp { .. }))
    }

    /// An upstream asked for less, perhaps with a hint. Until when all are to wait, if that is news.
    pub fn throttled(&mut self, whom: Whom, hint: Option<Duration>, now: Duration) -> Option<Duration> {
        let wait = match hint.filter(|hint| !hint.is_zero()) {
            Some(hint) => hint.min(LONGEST),
            None => self.strike(whom, now)?,
        };
        self.hold(whom, now.saturating_add(wait), None).then_some(now.saturating_add(wait))
    }

    /// Holds all back until then, or longer if that was said before. `stored`: the store said so, at that moment. False if
    /// it is no news.
    pub fn hold(&mut self, whom: Whom, until: Duration, stored: Option<Duration>) -> bool {
        let is_new = !self.paused.contains_key(&whom) && whom != Whom::Everybody;
        if is_new && self.paused.len() >= CREDENTIALS {
            return false;
        }
        let pause = self.paused.entry(whom).or_insert(Pause { phase: Phase::Until(Duration::ZERO), stored: None });
        let is_news = !matches!(pause.phase, Phase::Until(known) if known >= until);
        if is_news {
            *pause = Pause { phase: Phase::Until(until), stored };
        }
        is_news
    }

    /// Holds all back until then, and no longer: a person says so. There is room for it.
    pub fn set(&mut self, whom: Whom, until: Duration) {
        self.paused.insert(whom, Pause { phase: Phase::Until(until), stored: None });
    }

    /// The store has the pause, or has it no more: then others found out that it is over, or a person ended it. One that
    /// the store had and that ends earlier now was shortened by a person. It was asked and heard at these moments: what has
    /// ended by itself meanwhile was ended by nobody.
    pub fn compare(&mut self, stored: &HashMap<Whom, Duration>, asked: Duration, heard: Duration) {
        for (whom, until) in stored {
            // A canary of our own holds the others back, and not us.
            let has_canary = |pause: &Pause| matches!(pause.phase, Phase::Over { canary: Some(_), .. });
            if self.paused.get(whom).is_some_and(has_canary) {
                continue;
            }
            match self.paused.get_mut(whom) {
                Some(pause) if pause.is_shortened(*until, asked) => pause.phase = Phase::Until(*until),
                Some(_) | None => {
                    self.hold(*whom, *until, Some(asked));
                }
            }
        }
        for (whom, pause) in &mut self.paused {
            let is_held = |until: Duration| until > heard.saturating_add(MARGIN);
            let ended = matches!(pause.phase, Phase::Until(until) if is_held(until)) && !stored.contains_key(whom);
            if ended && pause.was_stored(asked) {
                *pause = Pause { phase: Phase::ramp(asked), stored: None };
            }
        }
    }

    /// The store has taken the pause.
    pub fn stored(&mut self, whom: Whom, now: Duration) {
        if let Some(pause) = self.paused.get_mut(&whom) {
            pause.stored = Some(now);
        }
    }

    /// Ends a pause before its time.
    pub fn clear(&mut self, whom: Whom) {
        self.paused.remove(&whom);
        self.strikes.remove(&whom);
    }

    /// Drops what ended long ago: its credential may never come back.
    pub fn forget(&mut self, now: Duration) {
        self.paused.retain(|_, pause| {
            let ended = match pause.phase {
                Phase::Over { canary: Some(_), .. } => return true,
                Phase::Until(ended) | Phase::Ramp { next: ended, .. } => ended,
                Phase::Over { canary: None, since, .. } => since,
            };
            now.saturating_sub(ended) < GRACE
        });
    }

    /// Whether a call may go now. `spread` draws the time to the next batch.
    pub fn ask(&mut self, whom: Whom, now: Duration, spread: impl FnOnce() -> Duration) -> Turn {
        let Some(pause) = self.paused.get_mut(&whom) else { return Turn::Free };
        match &mut pause.phase {
            Phase::Until(until) if now < *until => return Turn::Wait(*until - now),
            Phase::Until(_) | Phase::Over { canary: None, .. } => {
                self.canaries += 1;
                pause.phase = pause.phase.over(self.canaries, now);
                return Turn::Canary(self.canaries);
            }
            Phase::Over { canary: Some(_), .. } => return Turn::Wait(SOON),
            Phase::Ramp { batch, left, next } => {
                if now >= *next {
                    let is_stale = now.saturating_sub(*next) >= STALE;
                    *batch = if is_stale { u32::MAX } else { batch.saturating_mul(2) };
                    (*left, *next) = (*batch, now + spread());
                }
                if *batch <= LAST_BATCH {
                    let turn = if *left > 0 { Turn::Free } else { Turn::Wait(*next - now) };
                    *left = left.saturating_sub(1);
                    return turn;
                }
            }
        }
        self.clear(whom);
        Turn::Free
    }

    /// Whether a call would have to wait, and how long. It takes nothing.
    pub fn wait(&self, whom: Whom, now: Duration) -> Option<Duration> {
        let wait = match self.paused.get(&whom)?.phase {
            Phase::Until(until) => until.saturating_sub(now),
            Phase::Over { canary: Some(_), .. } => SOON,
            Phase::Ramp { left: 0, next, .. } => next.saturating_sub(now),
            Phase::Over { .. } | Phase::Ramp { .. } => Duration::ZERO,
        };
        (!wait.is_zero()).then_some(wait)
    }

    /// The canary of this number was answered, and not by another throttle; the next one may have gone meanwhile.
    pub fn passed(&mut self, whom: Whom, number: u64, now: Duration) {
        let is_of = |phase: Phase| matches!(phase, Phase::Over { first, .. } if first <= number);
        if let Some(pause) = self.paused.get_mut(&whom).filter(|pause| is_of(pause.phase)) {
            pause.phase = Phase::ramp(now);
        }
    }

    /// It came to no answer so far; the next one may.
    pub fn give_back(&mut self, whom: Whom, number: u64, now: Duration) {
        if let Some(Phase::Over { canary, since, .. }) = self.paused.get_mut(&whom).map(|pause| &mut pause.phase)
            && *canary == Some(number)
        {
            (*canary, *since) = (None, now);
        }
    }

    /// All of them, those for everybody first.
    pub fn shown(&self, now: Duration) -> Vec<Shown> {
        let shown = self.paused.iter().map(|(whom, pause)| {
            let (phase, left) = match pause.phase {
                Phase::Until(until) => ("paused", until.saturating_sub(now)),
                Phase::Over { .. } => ("canary", Duration::ZERO),
                Phase::Ramp { .. } => ("ramp", Duration::ZERO),
            };
            Shown { whom: *whom, phase, left }
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort_by_key(|shown| shown.whom);
        shown
    }

    /// The wait that is made of throttles without a hint, once there are enough of them. On the way out of a pause one is.
    fn strike(&mut self, whom: Whom, now: Duration) -> Option<Duration> {
        let phase = self.paused.get(&whom).map(|pause| pause.phase);
        if matches!(phase, Some(Phase::Until(until)) if now < until) {
            return None;
        }
        if self.strikes.len() >= CREDENTIALS {
            self.strikes.clear();
        }
        let strikes = self.strikes.entry(whom).or_default();
        strikes.recent.rotate_left(1);
        if let Some(last) = strikes.recent.last_mut() {
            *last = Some(now);
        }
        let are_recent = strikes.recent.iter().all(|at| at.is_some_and(|at| now.saturating_sub(at) < RECENT));
        if phase.is_none() && !are_recent {
            return None;
        }
        let wait = Backoff::new(BASE, MOST).ceiling(strikes.pauses);
        *strikes = Strikes { recent: [None; STRIKES], pauses: strikes.pauses.saturating_add(1) };
        Some(wait)
    }
}

impl Pause {
    fn was_stored(&self, asked: Duration) -> bool {
        self.stored.is_some_and(|since| since < asked)
    }

    fn is_shortened(&self, until: Duration, asked: Duration) -> bool {
        let is_earlier = matches!(self.phase, Phase::Until(known) if until.saturating_add(CLOCKS) < known);
        is_earlier && self.was_stored(asked)
    }
}

impl Phase {
    /// Over, with this canary on its way.
    fn over(self, number: u64, now: Duration) -> Self {
        let first = match self {
            Self::Over { first, .. } => first,
            Self::Until(_) | Self::Ramp { .. } => number,
        };
        Self::Over { canary: Some(number), first, since: now }
    }

    /// Two go at once, four soon after.
    fn ramp(now: Duration) -> Self {
        Self::Ramp { batch: 1, left: 0, next: now }
    }
}

#[cfg(test)]
mod tests;
