//! What an answer says: of the call, by the rules of its route, and of another try.

use http::HeaderMap;

use crate::clock::Timestamp;
use crate::config::Route;
use crate::operation::meaning::{Look, Said, fact};
use crate::operation::outcome::{Fact, Outcome};
use crate::operation::payload::{is_encoded, json, may_be_json};
use crate::retry::advice::{Advice, may_be_in_body};

/// What was made of an answer, as far as it is here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judgement {
    pub said: Said,
    pub advice: Advice,
    /// Its body has to be looked at before anything is decided.
    pub wants_body: bool,
    /// A rule would have looked at its body, and nobody can.
    pub is_unread: bool,
}

impl Judgement {
    /// Of the head of an answer that came at `now`. An answer of another kind than JSON, or an encoded one, has no more to
    /// say than that.
    pub fn of_head(route: &Route, outcome: &Outcome, headers: &HeaderMap, now: Timestamp) -> Self {
        let judged = Self::with(Look::NotYet, route, outcome, headers, now);
        let hidden = || may_be_in_body(route.upstream.dialect, &judged.fact(outcome), headers, now);
        match judged.said == Said::Open || hidden() {
            false => judged,
            true if may_be_json(headers) && !is_encoded(headers) => Self { wants_body: true, ..judged },
            true => judged.blindly(route, outcome, headers, now),
        }
    }

    /// Of the same answer with its body; `None` where that is too long to be looked at, or comes as a stream.
    pub fn of_body(
        self,
        route: &Route,
        outcome: &Outcome,
        headers: &HeaderMap,
        body: Option<&[u8]>,
        now: Timestamp,
    ) -> Self {
        let Some(body) = body else { return self.blindly(route, outcome, headers, now) };
        match json::read(body) {
            Some(body) => Self::with(Look::Json(&body), route, outcome, headers, now),
            None => Self::with(Look::Nothing, route, outcome, headers, now),
        }
    }

    /// The fact of the attempt.
    pub fn fact(&self, outcome: &Outcome) -> Fact {
        fact(outcome, self.said)
    }

    fn blindly(self, route: &Route, outcome: &Outcome, headers: &HeaderMap, now: Timestamp) -> Self {
        let is_unread = self.said == Said::Open && may_be_json(headers);
        Self { is_unread, ..Self::with(Look::Nothing, route, outcome, headers, now) }
    }

    fn with(look: Look<'_>, route: &Route, outcome: &Outcome, headers: &HeaderMap, now: Timestamp) -> Self {
        let said = match *outcome {
            Outcome::Answer { status } | Outcome::Cut { status } => route.classify.say(status, headers, look),
            Outcome::NotSent { .. } | Outcome::TurnedAway | Outcome::Silent(_) | Outcome::BadHead => Said::Nothing,
        };
        let body = match look {
            Look::Json(body) => Some(body),
            Look::NotYet | Look::Nothing => None,
        };
        let advice = Advice::of(route.upstream.dialect, &fact(outcome, said), headers, body, now);
        Self { said, advice, wants_body: false, is_unread: false }
    }
}
