//! What a caller gets who meets a record: the claim table of the contract as one pure function.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::operation::{Blocking, Fingerprint, Kept, KeySource, Operation, State, StateName, StoredRequest};

/// If an upstream gets the same call twice, is that harmless?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// A second send may run a second time.
    Unsafe,
    /// Harmless as long as the upstream remembers the key.
    WithKey,
    /// Harmless in any order.
    Harmless,
}

impl Repeat {
    /// The word of `gateway.toml`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unsafe => "unsafe",
            Self::WithKey => "with-key",
            Self::Harmless => "harmless",
        }
    }
}

/// What has to hold for a call to be sent once more to an upstream that may have run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResendRule {
    pub repeat: Repeat,
    /// How long the upstream surely remembers a key.
    pub key_retention: Duration,
    pub attempt_timeout: Duration,
    /// How long the upstream may still begin work after our last byte.
    pub settle: Duration,
    /// Digest of the place that a call goes to: by another name, or at another one, a key is not known again.
    pub destination: [u8; 8],
}

impl ResendRule {
    /// Nothing may be sent again: what holds where nobody knows the route or the request any more.
    pub const NONE: Self = Self {
        repeat: Repeat::Unsafe,
        key_retention: Duration::ZERO,
        attempt_timeout: Duration::ZERO,
        settle: Duration::ZERO,
        destination: [0; 8],
    };

    /// What `repeat` means at `now`: a key that the upstream may have forgotten protects nothing.
    pub fn repeat_at(&self, first_sent_at: Option<Timestamp>, now: Timestamp) -> Repeat {
        match self.repeat {
            Repeat::WithKey if first_sent_at.is_some_and(|first| now > first.after(self.window())) => Repeat::Unsafe,
            repeat => repeat,
        }
    }

    /// How long after the first byte a re-send may begin.
    pub fn window(&self) -> Duration {
        self.key_retention.saturating_sub(self.attempt_timeout).saturating_sub(self.settle)
    }
}

/// One row of the claim table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The key was used for another request.
    KeyReused,
    /// The receipt is here.
    Replay,
    /// The receipt has run out; the tombstone says that it ran.
    Expired,
    /// It ran, but its answer could not be kept.
    Unavailable(Kept),
    /// Somebody owns it and is at work, or it waits for a time at which somebody will be.
    InProgress,
    /// Nobody owns it and it may go on where it stands.
    TakeOver,
    /// Its owner is gone and nobody may go on: it has to be ended first.
    Lapse,
    /// Nothing ran, or the upstream takes the call twice: a new run.
    ClaimAgain,
    /// Only evidence or a person ends it.
    Unknown,
    AwaitingApproval,
    Rejected,
    Abandoned,
}

impl Operation {
    /// The row for a caller that asks with `fingerprint` at `now`. The fingerprint is compared first, whatever the state.
    pub fn admit(&self, fingerprint: Option<&Fingerprint>, rule: &ResendRule, now: Timestamp) -> Admission {
        if fingerprint.is_some_and(|asked| *asked != self.identity.fingerprint) {
            return Admission::KeyReused;
        }
        match &self.state {
            State::Claimed { lease } | State::Sent { lease } if lease.until > now => Admission::InProgress,
            State::Waiting { lease: Some(lease), .. } if lease.until > now => Admission::InProgress,
            State::Waiting { not_before, lease: None } if *not_before > now => Admission::InProgress,
            State::Claimed { .. } => Admission::TakeOver,
            State::Sent { .. } => self.may_resend(rule, now, Admission::TakeOver, Admission::Lapse),
            State::Waiting { .. } if !self.may_have_run => Admission::TakeOver,
            State::Waiting { .. } => self.may_resend(rule, now, Admission::TakeOver, Admission::Lapse),
            State::Unknown { .. } => self.may_resend(rule, now, Admission::ClaimAgain, Admission::Unknown),
            State::NotExecuted { .. } if self.is_disputed() => {
                self.may_resend(rule, now, Admission::ClaimAgain, Admission::Unknown)
            }
            State::NotExecuted { .. } => Admission::ClaimAgain,
            State::Succeeded { settled }
            | State::Failed { settled }
            | State::Compensating { settled }
            | State::Compensated { settled } => match settled.kept {
                Kept::Whole if settled.receipt_until <= now => Admission::Expired,
                Kept::Whole => Admission::Replay,
                Kept::TooLarge | Kept::Cut => Admission::Unavailable(settled.kept),
            },
            State::AwaitingApproval => Admission::AwaitingApproval,
            State::Rejected => Admission::Rejected,
            State::Abandoned => Admission::Abandoned,
        }
    }

    /// Whether an identical unnamed call must not run while this one stands as it does.
    pub fn stops_alike(&self, now: Timestamp) -> bool {
        self.blocks_alike().is_some_and(|(_, blocking)| match blocking {
            Blocking::Always | Blocking::From(_) => blocking.holds_at(now),
            Blocking::Until(_) => false,
        })
    }

    /// Whether a byte may go at `now`: a repeat that the upstream no longer knows as one would run anew.
    pub fn may_be_sent(&self, rule: &ResendRule, now: Timestamp) -> bool {
        !self.may_have_run || rule.repeat_at(self.first_sent_at, now) != Repeat::Unsafe
    }

    /// Without its caller a call can be sent only if it needs no credential of his, and if he meets it when he asks again
    /// (who has no key of his own asks with another one, unless he was told its name) or it is harmless twice. What surely
    /// never ran is not begun after the deadline of its run: whoever asked for it has long been told something else, unless
    /// that was to wait.
    pub fn may_go_on_alone(&self, request: &StoredRequest, rule: &ResendRule, now: Timestamp) -> bool {
        let may_have_run = self.may_have_run || self.state.name() == StateName::Sent;
        let is_met_again = match self.identity.source {
            KeySource::Client | KeySource::Derived => true,
            KeySource::Window | KeySource::Stamped => self.accepted,
        };
        let is_wanted = is_met_again || rule.repeat == Repeat::Harmless;
        let is_in_time = may_have_run || now < self.deadline || self.accepted;
        is_wanted && is_in_time && !request.had_credential
    }

    fn may_resend(&self, rule: &ResendRule, now: Timestamp, yes: Admission, no: Admission) -> Admission {
        let is_known_there = self.destination.is_none_or(|destination| destination == rule.destination);
        match rule.repeat_at(self.first_sent_at, now) {
            Repeat::Harmless => yes,
            Repeat::WithKey if is_known_there => yes,
            Repeat::WithKey | Repeat::Unsafe => no,
        }
    }
}
