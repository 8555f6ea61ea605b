//! What the gateway itself has to say: one entry for each problem type (RFC 9457), and the page that explains it.

mod texts;

use std::time::Duration;

/// A problem type. The name is the last segment of its `type` and the value of `code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    KeyMissing,
    KeyInvalid,
    InvalidRequest,
    Unauthenticated,
    Rejected,
    NoRoute,
    NotFound,
    MethodNotAllowed,
    InProgress,
    AwaitingApproval,
    OutcomeUnknown,
    ResultExpired,
    ResultUnavailable,
    Abandoned,
    Conflict,
    BodyTooLarge,
    KeyReused,
    PayloadChanged,
    RateLimited,
    UpstreamFailed,
    StoreUnavailable,
    RecordTooNew,
    Overloaded,
    BreakerOpen,
    UpstreamTimeout,
}

/// The fixed texts of a problem type.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub code: &'static str,
    pub status: u16,
    /// Which other statuses there are, for the page; mostly none.
    pub also: &'static str,
    pub title: &'static str,
    /// One sentence that a model can act on.
    pub advice: &'static str,
    /// What it means and what to do about it, for the page.
    pub explanation: &'static str,
    /// Whether the same request may be sent again as it is.
    pub retryable: bool,
    /// Whether the operation's own address has more to say.
    pub look_up: bool,
}

impl Code {
    /// Every type, in the order of the status codes.
    pub const ALL: [Self; 25] = [
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::InvalidRequest,
        Self::Unauthenticated,
        Self::Rejected,
        Self::NoRoute,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::InProgress,
        Self::AwaitingApproval,
        Self::OutcomeUnknown,
        Self::ResultExpired,
        Self::ResultUnavailable,
        Self::Abandoned,
        Self::Conflict,
        Self::BodyTooLarge,
        Self::KeyReused,
        Self::PayloadChanged,
        Self::RateLimited,
        Self::UpstreamFailed,
        Self::StoreUnavailable,
        Self::RecordTooNew,
        Self::Overloaded,
        Self::BreakerOpen,
        Self::UpstreamTimeout,
    ];

    /// The problem type of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.entry().code == text)
    }

    /// Its texts.
    pub const fn entry(self) -> &'static Entry {
        match self {
            Self::KeyMissing => &texts::KEY_MISSING,
            Self::KeyInvalid => &texts::KEY_INVALID,
            Self::InvalidRequest => &texts::INVALID_REQUEST,
            Self::Unauthenticated => &texts::UNAUTHENTICATED,
            Self::Rejected => &texts::REJECTED,
            Self::NoRoute => &texts::NO_ROUTE,
            Self::NotFound => &texts::NOT_FOUND,
            Self::MethodNotAllowed => &texts::METHOD_NOT_ALLOWED,
            Self::InProgress => &texts::IN_PROGRESS,
            Self::AwaitingApproval => &texts::AWAITING_APPROVAL,
            Self::OutcomeUnknown => &texts::OUTCOME_UNKNOWN,
            Self::ResultExpired => &texts::RESULT_EXPIRED,
            Self::ResultUnavailable => &texts::RESULT_UNAVAILABLE,
            Self::Abandoned => &texts::ABANDONED,
            Self::Conflict => &texts::CONFLICT,
            Self::BodyTooLarge => &texts::BODY_TOO_LARGE,
            Self::KeyReused => &texts::KEY_REUSED,
            Self::PayloadChanged => &texts::PAYLOAD_CHANGED,
            Self::RateLimited => &texts::RATE_LIMITED,
            Self::UpstreamFailed => &texts::UPSTREAM_FAILED,
            Self::StoreUnavailable => &texts::STORE_UNAVAILABLE,
            Self::RecordTooNew => &texts::RECORD_TOO_NEW,
            Self::Overloaded => &texts::OVERLOADED,
            Self::BreakerOpen => &texts::BREAKER_OPEN,
            Self::UpstreamTimeout => &texts::UPSTREAM_TIMEOUT,
        }
    }
}

/// A problem as it happened.
#[derive(Clone, Debug)]
pub struct Problem {
    pub code: Code,
    /// Differs from the type's own where HTTP has a better one.
    pub status: u16,
    /// What happened in this case, for a person to learn from.
    pub detail: String,
    /// Always answered as whole seconds, at least 1.
    pub retry_after: Option<Duration>,
    /// What is known of an answer that cannot be shown.
    pub lost: Option<LostAnswer>,
    pub retryable: bool,
    /// `retry_after` is when a quota that is used up has room again.
    pub quota_used_up: bool,
    /// For want of a store that answers; one that has lost its memory does.
    pub store_away: bool,
    /// What to do in this case, where that is not what the type says.
    pub advice: Option<&'static str>,
}

/// An answer that came and was not kept.
#[derive(Clone, Copy, Debug)]
pub struct LostAnswer {
    pub status: u16,
    /// Of the body as far as it came.
    pub length: u64,
    pub digest: [u8; 32],
}

impl Problem {
    /// With status and `retryable` of its type.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let entry = code.entry();
        Self {
            code,
            status: entry.status,
            detail: detail.into(),
            retry_after: None,
            lost: None,
            retryable: entry.retryable,
            quota_used_up: false,
            store_away: false,
            advice: None,
        }
    }

    /// With a status other than the type's own.
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// With an advice other than the type's own.
    pub fn with_advice(self, advice: &'static str) -> Self {
        Self { advice: Some(advice), ..self }
    }

    /// With a lower bound for the next try.
    pub fn with_retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_read_back_and_has_its_own_name() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.entry().code), Some(code));
        }
    }

    #[test]
    fn a_retryable_problem_never_tells_to_leave_it_and_the_others_never_to_send_the_same_again() {
        for code in Code::ALL {
            let entry = code.entry();
            assert_eq!(
                entry.advice.to_lowercase().contains("end the same call"),
                entry.retryable || code == Code::KeyMissing
            );
            assert!(entry.advice.ends_with('.') && entry.explanation.ends_with('.'), "{}", entry.code);
        }
    }
}
