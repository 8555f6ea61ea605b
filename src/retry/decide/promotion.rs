//! What `x-should-retry: true` changes about an answer.

use crate::operation::admission::Repeat;
use crate::operation::meaning::Meaning;
use crate::operation::outcome::Fact;
use crate::retry::decide::Situation;

impl Situation {
    /// An upstream may ask for a try that its status alone would not get; never where a second one might run anew. It does
    /// not become a receipt then, for it says of itself that another answer is to come.
    pub(super) fn with_promotion(&self) -> Self {
        if !self.promoted || self.repeat == Repeat::Unsafe {
            return *self;
        }
        let ruled = |status, meaning| Fact::Ruled { status, meaning, by_rule: false, cut: false };
        let fact = match self.fact {
            // "Conflict" is what services say while the first try still runs.
            Fact::Final { status: 409 } => ruled(409, Meaning::Busy),
            Fact::Final { status } if status >= 500 => ruled(status, Meaning::Unknown),
            Fact::Final { status } if status >= 400 => ruled(status, Meaning::NotExecuted),
            Fact::ServerFailed { status } => ruled(status, Meaning::Unknown),
            Fact::Denied { status } => ruled(status, Meaning::NotExecuted),
            fact @ (Fact::NotSent { .. }
            | Fact::TurnedAway
            | Fact::Silent(_)
            | Fact::Garbled
            | Fact::Cut { .. }
            | Fact::Throttled
            | Fact::Refused { .. }
            | Fact::Misdirected
            | Fact::Unreached { .. }
            | Fact::Overloaded { .. }
            | Fact::GatewayFailed { .. }
            | Fact::Final { .. }
            | Fact::Ruled { .. }) => fact,
        };
        Self { fact, ..*self }
    }
}
