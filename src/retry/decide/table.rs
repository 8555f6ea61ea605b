//! The contract's table "which failures may be repeated", as far as it says whether and how often.

use crate::operation::admission::Repeat;
use crate::operation::meaning::Meaning;
use crate::operation::outcome::Fact;

/// How often a fact lets a run go on.
pub(super) enum Again {
    Always,
    Once(Once),
    Never,
}

/// Retries that a run has one of.
#[derive(Clone, Copy)]
pub(super) enum Once {
    Refused,
    ServerFailed,
    Garbled,
}

/// The row of `fact` and the column of `repeat`. "Once" and "never" bound one run; the next call begins another.
pub(super) fn again(fact: &Fact, repeat: Repeat) -> Again {
    use Repeat::{Harmless, Unsafe, WithKey};
    match (fact, repeat) {
        (Fact::NotSent { .. } | Fact::TurnedAway | Fact::Throttled, Harmless | WithKey | Unsafe) => Again::Always,
        (Fact::Misdirected, Harmless | WithKey | Unsafe) => Again::Once(Once::Refused),
        (Fact::Refused { .. }, Harmless | WithKey) => Again::Once(Once::Refused),
        (Fact::Silent(_) | Fact::Cut { .. } | Fact::Unreached { .. }, Harmless | WithKey) => Again::Always,
        (Fact::Overloaded { .. } | Fact::GatewayFailed { .. }, Harmless | WithKey) => Again::Always,
        (Fact::ServerFailed { .. }, Harmless) => Again::Always,
        (Fact::ServerFailed { .. }, WithKey) => Again::Once(Once::ServerFailed),
        (Fact::Garbled, Harmless) => Again::Once(Once::Garbled),
        (Fact::Garbled, WithKey) => Again::Never,
        (Fact::Denied { .. } | Fact::Final { .. }, Harmless | WithKey | Unsafe) => Again::Never,
        (
            Fact::Silent(_)
            | Fact::Garbled
            | Fact::Cut { .. }
            | Fact::Refused { .. }
            | Fact::Unreached { .. }
            | Fact::Overloaded { .. }
            | Fact::ServerFailed { .. }
            | Fact::GatewayFailed { .. },
            Unsafe,
        ) => Again::Never,
        (Fact::Ruled { meaning, .. }, repeat) => as_ruled(*meaning, repeat),
    }
}

/// A last word that is whole has ended the run before this is asked.
fn as_ruled(meaning: Meaning, repeat: Repeat) -> Again {
    use Repeat::{Harmless, Unsafe, WithKey};
    match (meaning, repeat) {
        (Meaning::Denied, Harmless | WithKey | Unsafe) => Again::Never,
        (Meaning::Throttled | Meaning::NotExecuted, Harmless | WithKey | Unsafe) => Again::Always,
        (Meaning::Busy | Meaning::Unknown | Meaning::Executed | Meaning::Failed, Harmless | WithKey) => Again::Always,
        (Meaning::Busy | Meaning::Unknown | Meaning::Executed | Meaning::Failed, Unsafe) => Again::Never,
    }
}
