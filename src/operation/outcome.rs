//! What one attempt came to: a fact, without policy.
//!
//! Owns the reading of statuses and broken exchanges, and above all the bit whether the upstream may have run the call.
//! Whether that leads to another attempt is decided elsewhere.

use crate::operation::Cause;
use crate::operation::meaning::Meaning;

/// What the exchange of one attempt looked like from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not one byte of the request was written.
    NotSent {
        cause: Cause,
        /// A connection of the pool turned out to be dead: says nothing about the upstream.
        reused_connection: bool,
    },
    /// Written, and the upstream said that it did not look at it.
    TurnedAway,
    /// Bytes were written and no head of an answer came.
    Silent(Silence),
    /// The head of the answer was not HTTP, or too large.
    BadHead,
    /// Head and body came whole, or the body is still coming and goes on to the client.
    Answer { status: u16 },
    /// The head came and the body broke off.
    Cut { status: u16 },
}

impl Outcome {
    /// The same, its body broken off.
    #[must_use]
    pub fn cut(self) -> Self {
        match self {
            Self::Answer { status } | Self::Cut { status } => Self::Cut { status },
            Self::NotSent { .. } | Self::TurnedAway | Self::Silent(_) | Self::BadHead => self,
        }
    }
}

/// How an upstream can fail to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Silence {
    /// The attempt timeout ran out.
    Timeout,
    /// The connection was reset or closed.
    Closed,
}

/// One row of the contract's table "which failures may be repeated".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    NotSent {
        cause: Cause,
        reused_connection: bool,
    },
    TurnedAway,
    Silent(Silence),
    /// A head that cannot be read.
    Garbled,
    /// The head of a receipt without the whole of its body.
    Cut {
        status: u16,
    },
    /// 429: by convention a refusal.
    Throttled,
    /// 408, 425: turned away before it ran.
    Refused {
        status: u16,
    },
    /// 421: right request, wrong connection.
    Misdirected,
    /// 521, 523: an edge that could not reach its origin.
    Unreached {
        status: u16,
    },
    /// 503, 522, 529: a hop may say so after the service ran.
    Overloaded {
        status: u16,
    },
    /// 500, and every status that has no row of its own and is no client error.
    ServerFailed {
        status: u16,
    },
    /// 502, 504, 520, 524: a hop lost what was behind it.
    GatewayFailed {
        status: u16,
    },
    /// 401, 403, 407: final for this caller, yet nothing ran and no receipt is made of it.
    Denied {
        status: u16,
    },
    /// 2xx, 3xx, deterministic 4xx, 501, 505, 511: becomes a receipt.
    Final {
        status: u16,
    },
    /// What a rule of the route says of the answer, or the answer of itself, in place of its status.
    Ruled {
        status: u16,
        meaning: Meaning,
        /// A rule has read it, so that whoever asks why has to look there.
        by_rule: bool,
        /// A last word without the whole of its body.
        cut: bool,
    },
}

/// Reads an outcome. Total: whatever number an upstream sends as its status has a row.
pub fn classify(outcome: &Outcome) -> Fact {
    match *outcome {
        Outcome::NotSent { cause, reused_connection } => Fact::NotSent { cause, reused_connection },
        Outcome::TurnedAway => Fact::TurnedAway,
        Outcome::Silent(silence) => Fact::Silent(silence),
        Outcome::BadHead => Fact::Garbled,
        Outcome::Answer { status } => of_status(status),
        Outcome::Cut { status } => of_cut(status),
    }
}

/// RFC 9110, section 15: an unknown status counts as x00 of its class, and one outside 100..=599 as a server error. A
/// 1xx ends no exchange in which nothing was offered to switch to.
fn of_status(status: u16) -> Fact {
    match status {
        100..=199 => Fact::Garbled,
        401 | 403 | 407 => Fact::Denied { status },
        408 | 425 => Fact::Refused { status },
        421 => Fact::Misdirected,
        429 => Fact::Throttled,
        200..=499 | 501 | 505 | 511 => Fact::Final { status },
        502 | 504 | 520 | 524 => Fact::GatewayFailed { status },
        503 | 522 | 529 => Fact::Overloaded { status },
        521 | 523 => Fact::Unreached { status },
        0..=99 | 500..=u16::MAX => Fact::ServerFailed { status },
    }
}

/// The status of HTTP that says the same as a status of gRPC (`google.rpc.Code`), so that one table decides. What is not
/// known counts as UNKNOWN.
pub fn status_of_grpc(code: u16) -> u16 {
    match code {
        0 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        2 | 13 | 15 | 17..=u16::MAX => 500,
    }
}

/// A lost body matters only where it would have been kept.
fn of_cut(status: u16) -> Fact {
    let fact = of_status(status);
    if matches!(fact, Fact::Final { .. }) { Fact::Cut { status } } else { fact }
}

impl Fact {
    /// Whether the upstream may have run the call in this attempt without a final answer to show for it.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Silent(_)
            | Self::Garbled
            | Self::Cut { .. }
            | Self::Overloaded { .. }
            | Self::ServerFailed { .. }
            | Self::GatewayFailed { .. } => true,
            Self::NotSent { .. }
            | Self::TurnedAway
            | Self::Throttled
            | Self::Refused { .. }
            | Self::Misdirected
            | Self::Unreached { .. }
            | Self::Denied { .. }
            | Self::Final { .. } => false,
            Self::Ruled { meaning, cut, .. } => *cut || meaning.leaves_doubt(),
        }
    }

    /// Whether the upstream asked for less traffic: a longer wait where it names none.
    pub fn is_throttle(&self) -> bool {
        match self {
            Self::Throttled | Self::Overloaded { status: 529 } => true,
            Self::NotSent { .. }
            | Self::TurnedAway
            | Self::Silent(_)
            | Self::Garbled
            | Self::Cut { .. }
            | Self::Refused { .. }
            | Self::Misdirected
            | Self::Unreached { .. }
            | Self::Overloaded { .. }
            | Self::ServerFailed { .. }
            | Self::GatewayFailed { .. }
            | Self::Denied { .. }
            | Self::Final { .. } => false,
            Self::Ruled { meaning, .. } => *meaning == Meaning::Throttled,
        }
    }

    /// The same for events, problems and operators.
    pub fn cause(&self) -> Cause {
        match *self {
            Self::NotSent { cause, .. } => cause,
            Self::TurnedAway => Cause::TurnedAway,
            Self::Silent(Silence::Timeout) => Cause::Timeout,
            Self::Silent(Silence::Closed) => Cause::Closed,
            Self::Garbled => Cause::BadAnswer,
            Self::Throttled => Cause::Status(429),
            Self::Misdirected => Cause::Status(421),
            Self::Cut { status }
            | Self::Refused { status }
            | Self::Unreached { status }
            | Self::Overloaded { status }
            | Self::ServerFailed { status }
            | Self::GatewayFailed { status }
            | Self::Denied { status }
            | Self::Final { status }
            | Self::Ruled { status, by_rule: false, .. } => Cause::Status(status),
            Self::Ruled { status, meaning, by_rule: true, .. } => Cause::Ruled { status, meaning },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16) -> Fact {
        classify(&Outcome::Answer { status })
    }

    fn cut(status: u16) -> Fact {
        classify(&Outcome::Cut { status })
    }

    #[test]
    fn every_status_of_the_table_has_its_row() {
        for status in [200, 201, 204, 299, 301, 303, 304, 400, 404, 409, 410, 412, 422, 451, 499, 501, 505, 511] {
            assert_eq!(answered(status), Fact::Final { status });
        }
        for status in [401, 403, 407] {
            assert_eq!(answered(status), Fact::Denied { status });
        }
        for status in [408, 425] {
            assert_eq!(answered(status), Fact::Refused { status });
        }
        for status in [503, 522, 529] {
            assert_eq!(answered(status), Fact::Overloaded { status });
        }
        for status in [502, 504, 520, 524] {
            assert_eq!(answered(status), Fact::GatewayFailed { status });
        }
        for status in [521, 523] {
            assert_eq!(answered(status), Fact::Unreached { status });
        }
        assert_eq!(answered(421), Fact::Misdirected);
        assert_eq!(answered(429), Fact::Throttled);
        assert_eq!(answered(500), Fact::ServerFailed { status: 500 });
    }

    #[test]
    fn a_status_of_grpc_has_the_row_of_its_meaning() {
        let fact = |code| answered(status_of_grpc(code));
        assert_eq!((fact(0), fact(3)), (Fact::Final { status: 200 }, Fact::Final { status: 400 }));
        assert_eq!((fact(8), fact(16)), (Fact::Throttled, Fact::Denied { status: 401 }));
        assert_eq!((fact(14), fact(4)), (Fact::Overloaded { status: 503 }, Fact::GatewayFailed { status: 504 }));
        for code in [2, 13, 15, 17, u16::MAX] {
            assert_eq!(fact(code), Fact::ServerFailed { status: 500 });
        }
        for code in [1, 5, 6, 9, 10, 11, 12] {
            assert!(matches!(fact(code), Fact::Final { .. }), "{code}");
        }
        assert_eq!(fact(7), Fact::Denied { status: 403 });
    }

    #[test]
    fn a_status_without_a_row_counts_as_its_class() {
        for status in [0, 99, 506, 508, 525, 530, 599, 600, 999, u16::MAX] {
            assert_eq!(answered(status), Fact::ServerFailed { status });
        }
        assert_eq!(answered(101), Fact::Garbled);
    }

    #[test]
    fn a_cut_counts_only_where_its_status_would_become_a_receipt() {
        for status in 0..=999 {
            let expected = match answered(status) {
                Fact::Final { .. } => Fact::Cut { status },
                other => other,
            };
            assert_eq!(cut(status), expected);
        }
    }

    #[test]
    fn only_refusals_unsent_and_final_answers_leave_no_doubt() {
        let certain = |status: u16| match status {
            401 | 403 | 407 | 408 | 421 | 425 | 429 | 501 | 505 | 511 | 521 | 523 => true,
            other => (200..500).contains(&other),
        };
        for status in 0..=999 {
            assert_eq!(answered(status).may_have_run(), !certain(status), "{status}");
        }
        assert!(classify(&Outcome::BadHead).may_have_run());
        assert!(classify(&Outcome::Silent(Silence::Timeout)).may_have_run());
        assert!(classify(&Outcome::Silent(Silence::Closed)).may_have_run());
        assert!(!classify(&Outcome::TurnedAway).may_have_run());
        for reused_connection in [false, true] {
            assert!(!classify(&Outcome::NotSent { cause: Cause::Connect, reused_connection }).may_have_run());
        }
    }

    #[test]
    fn causes_name_the_status_or_the_break() {
        assert_eq!(answered(429).cause(), Cause::Status(429));
        assert_eq!(answered(421).cause(), Cause::Status(421));
        assert_eq!(cut(201).cause(), Cause::Status(201));
        assert_eq!(classify(&Outcome::Silent(Silence::Timeout)).cause(), Cause::Timeout);
        assert_eq!(classify(&Outcome::Silent(Silence::Closed)).cause(), Cause::Closed);
        assert_eq!(classify(&Outcome::BadHead).cause(), Cause::BadAnswer);
    }

    #[test]
    fn row_529_is_a_throttle_and_still_ambiguous() {
        assert!(answered(529).is_throttle() && answered(529).may_have_run());
        assert!(answered(429).is_throttle() && !answered(429).may_have_run());
        assert!(!answered(503).is_throttle());
    }
}
