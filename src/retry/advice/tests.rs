use std::time::Duration;

use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::operation::meaning::{Meaning, Said, fact};
use crate::operation::outcome::Outcome;
use crate::operation::payload::json;

/// 2026-01-01 00:00:00.
const NOW: Timestamp = Timestamp(1_767_225_600_000);

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn answer(status: u16) -> Fact {
    fact(&Outcome::Answer { status }, Said::Nothing)
}

fn ruled(status: u16, meaning: Meaning) -> Fact {
    fact(&Outcome::Answer { status }, Said::Means(meaning))
}

fn wait(dialect: Dialect, fact: Fact, lines: &[(&str, &str)]) -> Option<Duration> {
    Advice::of(dialect, &fact, &headers(lines), None, NOW).hint.map(|Hint(wait)| wait)
}

const SPENT: [(&str, &str); 2] = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")];
const ITEM: (&str, &str) = ("ratelimit", "\"p\";r=0;t=12");

#[test]
fn retry_after_comes_before_what_limits_say() {
    let secs = |seconds| Some(Duration::from_secs(seconds));
    let all = [("retry-after", "5"), ITEM, SPENT[0], SPENT[1]];
    assert_eq!(wait(Dialect::Generic, answer(429), &all), secs(5));
    assert_eq!(wait(Dialect::Generic, answer(429), &all[1..]), secs(12));
    assert_eq!(wait(Dialect::Generic, answer(503), &all[2..]), secs(30));
    assert_eq!(wait(Dialect::Generic, answer(429), &[("retry-after", "junk"), ITEM]), secs(12));
    assert_eq!(wait(Dialect::Generic, answer(429), &[]), None);
}

#[test]
fn what_a_limit_has_left_matters_only_where_it_turned_the_call_down() {
    for fact in [answer(200), answer(404), answer(500), answer(502), answer(403), ruled(200, Meaning::Busy)] {
        assert_eq!(wait(Dialect::Generic, fact, &[ITEM, SPENT[0], SPENT[1]]), None, "{fact:?}");
        assert!(wait(Dialect::Generic, fact, &[("retry-after", "5")]).is_some(), "{fact:?}");
    }
    assert!(wait(Dialect::Generic, ruled(200, Meaning::Throttled), &[ITEM]).is_some());
}

#[test]
fn githubs_minute_is_for_limits_that_name_no_wait() {
    let minute = Some(Duration::from_secs(60));
    assert_eq!(wait(Dialect::GitHub, answer(429), &[]), minute);
    assert_eq!(wait(Dialect::GitHub, ruled(403, Meaning::Throttled), &[("retry-after", "soon")]), minute);
    assert_eq!(wait(Dialect::GitHub, answer(429), &[("retry-after", "7")]), Some(Duration::from_secs(7)));
    assert_eq!(wait(Dialect::GitHub, answer(503), &[]), None);
    assert_eq!(wait(Dialect::GitHub, answer(403), &[]), None);
}

#[test]
fn a_body_is_asked_for_where_only_it_may_name_the_wait() {
    let asks = |dialect, fact: Fact, lines: &[(&str, &str)]| may_be_in_body(dialect, &fact, &headers(lines), NOW);
    assert!(asks(Dialect::Google, answer(429), &[]) && asks(Dialect::Google, answer(503), &[]));
    assert!(!asks(Dialect::Google, answer(429), &[("retry-after", "1")]));
    assert!(!asks(Dialect::Google, answer(200), &[]) && !asks(Dialect::Google, answer(400), &[]));
    assert!(!asks(Dialect::Generic, answer(429), &[]));
    let body =
        r#"{"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}]}}"#;
    let body = json::read(body.as_bytes()).unwrap();
    let advice = Advice::of(Dialect::Google, &answer(429), &HeaderMap::new(), Some(&body), NOW);
    assert_eq!(advice.hint, Some(Hint(Duration::from_secs(37))));
}

#[test]
fn what_is_no_wait_is_noted_wherever_it_stands() {
    let is_invalid = |dialect, status, lines: &[(&str, &str)]| {
        Advice::of(dialect, &answer(status), &headers(lines), None, NOW).has_invalid_hint
    };
    assert!(is_invalid(Dialect::Generic, 503, &[("retry-after", "-1")]));
    assert!(is_invalid(Dialect::Generic, 429, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "soon")]));
    assert!(is_invalid(Dialect::Generic, 429, &[("ratelimit", "a;r=0;t=soon"), ("retry-after-ms", "junk")]));
    assert!(!is_invalid(Dialect::Generic, 200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "soon")]));
    assert!(!is_invalid(Dialect::GitHub, 429, &[]));
}

proptest! {
    #[test]
    fn no_bytes_break_it(lines in prop::collection::vec((0..8_usize, any::<Vec<u8>>()), 0..8), status: u16, now: u64) {
        const NAMES: [&str; 8] = [
            "retry-after", "retry-after-ms", "date", "ratelimit", "x-ratelimit-remaining", "x-ratelimit-reset",
            "x-should-retry", "anthropic-ratelimit-tokens-reset",
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(NAMES[name], value);
            }
        }
        for dialect in [Dialect::Generic, Dialect::OpenAi, Dialect::Anthropic, Dialect::GitHub, Dialect::Google] {
            let advice = Advice::of(dialect, &answer(status), &headers, None, Timestamp(now));
            prop_assert!(!(advice.vetoed && advice.promoted));
        }
    }
}
