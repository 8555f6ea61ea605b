//! How a run ends, and what its last answer is taken for.

use crate::operation::Cause;
use crate::operation::admission::Repeat;
use crate::operation::meaning::Meaning;
use crate::operation::outcome::Fact;
use crate::operation::transition::{Ended, Verdict};
use crate::retry::decide::Situation;

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The answer is the receipt.
    Succeeded,
    /// The answer is the receipt, and says no. `after_doubt`: an earlier try may have done it all the same.
    Failed { after_doubt: bool },
    /// It ran, but the answer is lost: `result-unavailable`.
    Executed(Verdict),
    /// Nothing ran.
    NotExecuted(Cause),
    /// It may have run.
    Unknown(Cause),
}

impl Ending {
    /// The same for the record, where there is no final answer to settle with.
    pub fn ended(&self) -> Option<Ended> {
        match *self {
            Self::NotExecuted(cause) => Some(Ended { cause, may_have_run: false }),
            Self::Unknown(cause) => Some(Ended { cause, may_have_run: true }),
            Self::Succeeded | Self::Failed { .. } | Self::Executed(_) => None,
        }
    }

    /// The final answer to settle with, whether or not its bytes are here.
    pub fn verdict(&self) -> Option<Verdict> {
        match *self {
            Self::Succeeded => Some(Verdict::Succeeded),
            Self::Failed { .. } => Some(Verdict::Failed),
            Self::Executed(verdict) => Some(verdict),
            Self::NotExecuted(_) | Self::Unknown(_) => None,
        }
    }
}

impl Situation {
    /// The end that an answer makes by itself, however much time and how many tries are left.
    pub(super) fn final_answer(&self) -> Option<Ending> {
        match self.fact {
            Fact::Final { status } => Some(self.last_word(status, self.verdict(status))),
            Fact::Ruled { status, meaning, cut: false, .. } if meaning.is_final() => {
                Some(self.last_word(status, self.ruled(meaning)))
            }
            Fact::Denied { .. } | Fact::Ruled { meaning: Meaning::Denied, .. } => Some(self.without_answer()),
            Fact::NotSent { .. }
            | Fact::TurnedAway
            | Fact::Silent(_)
            | Fact::Garbled
            | Fact::Cut { .. }
            | Fact::Throttled
            | Fact::Refused { .. }
            | Fact::Misdirected
            | Fact::Unreached { .. }
            | Fact::Overloaded { .. }
            | Fact::ServerFailed { .. }
            | Fact::GatewayFailed { .. }
            | Fact::Ruled { .. } => None,
        }
    }

    fn last_word(&self, status: u16, verdict: Option<Verdict>) -> Ending {
        match verdict {
            Some(Verdict::Succeeded) => Ending::Succeeded,
            Some(Verdict::Failed) => Ending::Failed { after_doubt: self.stays_in_doubt(status) },
            None => Ending::Unknown(self.fact.cause()),
        }
    }

    /// What a rule's last word says about all attempts. A service that does not know one attempt from another says no to
    /// the last one only.
    fn ruled(&self, meaning: Meaning) -> Option<Verdict> {
        match meaning {
            Meaning::Executed => Some(Verdict::Succeeded),
            Meaning::Failed if self.repeat == Repeat::Unsafe && self.may_have_run => None,
            Meaning::Failed => Some(Verdict::Failed),
            Meaning::Busy | Meaning::Throttled | Meaning::NotExecuted | Meaning::Denied | Meaning::Unknown => None,
        }
    }

    /// What a receipt status says about all attempts; `None` where a no to this one leaves an earlier one open. An
    /// upstream that honours keys answers for the key, but its 409 may mean that the first try still runs, and a 501, 505
    /// or 511 may come from a hop that never looked at the key.
    fn verdict(&self, status: u16) -> Option<Verdict> {
        if (200..400).contains(&status) {
            return Some(Verdict::Succeeded);
        }
        let speaks_for_all = match self.repeat {
            Repeat::Harmless => true,
            Repeat::WithKey => (400..500).contains(&status) && status != 409,
            Repeat::Unsafe => false,
        };
        (speaks_for_all || !self.may_have_run).then_some(Verdict::Failed)
    }

    /// A no that an earlier, unanswered try of the same call may have caused.
    fn stays_in_doubt(&self, status: u16) -> bool {
        let own_doing = matches!(status, 409 | 412) || (self.deletes && matches!(status, 404 | 410));
        self.may_have_run && self.repeat == Repeat::Harmless && own_doing
    }

    /// The end of a run that stops without a final answer. A cut answer is the last word where nobody may ask again;
    /// elsewhere the next call with the key can still fetch a whole one.
    pub(super) fn ending(&self) -> Ending {
        match self.cut_word() {
            Some(verdict) if self.repeat == Repeat::Unsafe => Ending::Executed(verdict),
            Some(_) | None => self.without_answer(),
        }
    }

    /// What the head of a cut answer says by itself.
    fn cut_word(&self) -> Option<Verdict> {
        match self.fact {
            Fact::Cut { status } => self.verdict(status),
            Fact::Ruled { meaning, cut: true, .. } => self.ruled(meaning),
            Fact::NotSent { .. }
            | Fact::TurnedAway
            | Fact::Silent(_)
            | Fact::Garbled
            | Fact::Throttled
            | Fact::Refused { .. }
            | Fact::Misdirected
            | Fact::Unreached { .. }
            | Fact::Overloaded { .. }
            | Fact::ServerFailed { .. }
            | Fact::GatewayFailed { .. }
            | Fact::Denied { .. }
            | Fact::Final { .. }
            | Fact::Ruled { cut: false, .. } => None,
        }
    }

    fn without_answer(&self) -> Ending {
        let cause = self.fact.cause();
        if self.in_doubt() { Ending::Unknown(cause) } else { Ending::NotExecuted(cause) }
    }

    /// Whether the upstream may have run the call by now.
    pub(super) fn in_doubt(&self) -> bool {
        self.may_have_run || self.fact.may_have_run()
    }
}
