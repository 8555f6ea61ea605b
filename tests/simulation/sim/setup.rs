//! The bounds of a story, and the rules that a story may break on purpose.

use std::time::Duration;

use oncegate::operation::admission::{Repeat, ResendRule};
use oncegate::operation::transition::Retention;
use oncegate::retry::RetryPolicy;
use oncegate::retry::budget::Budget;

use super::chance::Chance;

pub const LEASE: u64 = 2_000;
pub const STORE_TIMEOUT: u64 = 300;
pub const CONNECT: u64 = 10;
/// A request that its sender has given up may still reach the store; `engine/claim.rs` counts on less than a lease.
pub const LATEST: u64 = LEASE * 3 / 4;
/// How wrong an estimate of the store's clock may be, to either side.
pub const SKEW: u64 = 100;
pub const IN_FLIGHT_WAIT: u64 = 2_000;
/// Fewer than these go wrong in one story.
pub const MOST_FAULTS: usize = 12;

/// What a story has, and how long things take in it.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub repeat: Repeat,
    pub gateways: usize,
    pub keys: usize,
    pub callers: usize,
    /// How often each caller calls.
    pub calls: usize,
    /// Callers begin within so many milliseconds.
    pub begin: u64,
    /// What may go wrong, over the whole story.
    pub faults: usize,
    /// A process or the store is struck at one of so many steps.
    pub odds_of_trouble: usize,
    /// The first call brought a credential, so nobody can go on without a caller.
    pub had_credential: bool,
    pub policy: RetryPolicy,
    pub key_retention: Duration,
    pub settle: Duration,
    pub keep: Retention,
    /// Records go through their stored form; that takes as long as all the rest.
    pub encodes: bool,
    pub broken: Broken,
}

impl Setup {
    /// A story of its own; `most_faults` cuts it down.
    pub fn drawn(chance: &mut Chance, most_faults: usize, broken: Broken) -> Self {
        let repeats = [Repeat::Unsafe, Repeat::Unsafe, Repeat::WithKey, Repeat::WithKey, Repeat::Harmless];
        Self {
            repeat: repeats[chance.pick(repeats.len())],
            gateways: 1 + chance.pick(3),
            keys: 1 + chance.pick(2),
            callers: 1 + chance.pick(4),
            calls: 1 + chance.pick(4),
            begin: [50, 500, 6_000][chance.pick(3)],
            faults: chance.pick(MOST_FAULTS).min(most_faults),
            odds_of_trouble: [8, 60][chance.pick(2)],
            had_credential: chance.happens(4),
            keep: [keep(60, 300), keep(4, 40)][chance.pick(2)],
            key_retention: Duration::from_secs([20, 60][chance.pick(2)]),
            policy: policy(chance),
            encodes: chance.happens(4),
            ..Self::small(repeats[0], 0, broken)
        }
    }

    /// Small enough for every way that it can go.
    pub fn small(repeat: Repeat, faults: usize, broken: Broken) -> Self {
        Self {
            repeat,
            gateways: 2,
            keys: 1,
            callers: 2,
            calls: 1,
            begin: 0,
            faults,
            odds_of_trouble: 1,
            had_credential: false,
            policy: POLICY,
            key_retention: Duration::from_secs(60),
            settle: Duration::from_secs(4),
            keep: keep(60, 300),
            encodes: false,
            broken,
        }
    }

    /// The rule as the route has it.
    pub fn rule(&self) -> ResendRule {
        ResendRule {
            repeat: self.repeat,
            key_retention: self.key_retention,
            attempt_timeout: self.policy.attempt_timeout,
            settle: self.settle,
            destination: [0; 8],
        }
    }
}

const POLICY: RetryPolicy = RetryPolicy {
    max_attempts: 2,
    base_interval: Duration::from_millis(250),
    max_interval: Duration::from_secs(2),
    attempt_timeout: Duration::from_millis(1_500),
    deadline: Duration::from_secs(12),
    retry_after_max: Duration::from_secs(5),
    budget: Budget { percent: 20, per_second: 3 },
};

const fn keep(receipts: u64, tombstones: u64) -> Retention {
    Retention { receipts: Duration::from_secs(receipts), tombstones: Duration::from_secs(tombstones), unknowns: None }
}

fn policy(chance: &mut Chance) -> RetryPolicy {
    RetryPolicy {
        max_attempts: 3,
        deadline: Duration::from_secs([20, 4][chance.pick(2)]),
        attempt_timeout: Duration::from_millis([1_500, 12_000][chance.pick(2)]),
        ..POLICY
    }
}

/// One rule that does not hold. A simulation that finds nothing when one is broken proves nothing when none is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// The end of a lease frees a call that was sent.
    LeaseFreesSent,
    /// Whoever takes over a call of an unsafe upstream sends it again.
    TakeOverResends,
    /// The store takes a receipt from whoever brings one.
    SettleUnfenced,
    /// A claim that is sent twice meets itself.
    ClaimForgetsItself,
    /// A write that is sent twice is refused by its own revision.
    WriteForgetsItself,
    /// The lease is not looked at before the first byte.
    SendWithoutLease,
    /// A late owner writes over whatever is there.
    LateOwnerOverwrites,
    /// Any late answer ends an unknown, whoever sent last.
    AnyEvidence,
    /// An upstream is believed to know a key for ever.
    KeyKnownForEver,
    /// The event is written in a step of its own.
    EventApart,
    /// A body that was cut counts as a refusal.
    CutIsRefusal,
    /// A 409 clears the doubt of an earlier attempt.
    ConflictEndsDoubt,
    /// A 429 clears the doubt of an earlier attempt.
    ThrottleEndsDoubt,
    /// A 503 counts as "it did not run".
    OverloadIsRefusal,
    /// Bytes go out before the intent is durable.
    IntentNotAwaited,
    /// A receipt is shown before it is durable.
    ToldBeforeDurable,
    /// Calls that have not ended run out like receipts.
    UnfinishedExpires,
    /// A call that did not run leaves no record.
    ReleaseDeletes,
    /// The store acknowledges what it loses when it restarts.
    TailLost,
    /// Nobody looks for lost owners.
    NobodySweeps,
    /// Attempts begin whatever the time.
    DeadlineIgnored,
    /// A claim whose fate is unknown is left to itself.
    ClaimNotTakenBack,
    /// A flight keeps its seat whoever has its operation.
    SeatIsKept,
}

impl Broken {
    /// All that a story can break.
    pub const ALL: [Self; 23] = [
        Self::LeaseFreesSent,
        Self::TakeOverResends,
        Self::SettleUnfenced,
        Self::ClaimForgetsItself,
        Self::WriteForgetsItself,
        Self::SendWithoutLease,
        Self::LateOwnerOverwrites,
        Self::AnyEvidence,
        Self::KeyKnownForEver,
        Self::EventApart,
        Self::CutIsRefusal,
        Self::ConflictEndsDoubt,
        Self::ThrottleEndsDoubt,
        Self::OverloadIsRefusal,
        Self::IntentNotAwaited,
        Self::ToldBeforeDurable,
        Self::UnfinishedExpires,
        Self::ReleaseDeletes,
        Self::TailLost,
        Self::NobodySweeps,
        Self::DeadlineIgnored,
        Self::ClaimNotTakenBack,
        Self::SeatIsKept,
    ];
}
