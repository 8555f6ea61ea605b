use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::operation::payload::json;

/// 2026-01-01 00:00:00.
const NOW: i64 = 1_767_225_600_000;
const ALL: [Dialect; 6] =
    [Dialect::Generic, Dialect::OpenAi, Dialect::Anthropic, Dialect::GitHub, Dialect::Google, Dialect::Stripe];

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn resets(dialect: Dialect, lines: &[(&str, &str)]) -> Stated {
    dialect.resets(&headers(lines), NOW)
}

fn stated(longest: Option<u64>, invalid: bool) -> Stated {
    Stated { longest, invalid }
}

fn delay(body: &str) -> Stated {
    Dialect::Google.in_body(&json::read(body.as_bytes()).unwrap())
}

#[test]
fn durations_as_go_writes_them() {
    for (text, milliseconds) in [
        ("6m0s", 360_000),
        ("1h30m0s", 5_400_000),
        ("7.66s", 7_660),
        ("76ms", 76),
        ("9\u{b5}s", 1),
        ("9\u{3bc}s", 1),
        ("9us", 1),
        ("1500000ns", 2),
        (" 1s ", 1_000),
        ("0s", 0),
        ("-1", 0),
        ("0", 0),
        ("99999999999999999999h", u64::MAX),
    ] {
        assert_eq!(go_duration(text), Some(milliseconds), "{text}");
    }
    for text in ["", "s", "5", "-5s", "5x", "1.2.3s", ".5s", "5.s", "1s2", "six", "5 s", "1d", &"1s".repeat(40)] {
        assert_eq!(go_duration(text), None, "{text}");
    }
}

#[test]
fn openai_names_its_limits_and_only_a_spent_one_counts() {
    let spent = ("x-ratelimit-remaining-requests", "0");
    let tokens = [("x-ratelimit-remaining-tokens", "900"), ("x-ratelimit-reset-tokens", "6m0s")];
    let wait = |text| resets(Dialect::OpenAi, &[spent, ("x-ratelimit-reset-requests", text), tokens[0], tokens[1]]);
    assert_eq!(wait("2s"), stated(Some(2_000), false));
    assert_eq!(wait("soon"), stated(None, true));
    assert_eq!(wait("-1"), stated(None, false));
    let both = [spent, ("x-ratelimit-reset-requests", "2s"), ("x-ratelimit-remaining-tokens", "0"), tokens[1]];
    assert_eq!(resets(Dialect::OpenAi, &both), stated(Some(360_000), false));
    assert_eq!(resets(Dialect::Generic, &both), stated(None, false));
}

#[test]
fn anthropic_names_moments() {
    let lines = |remaining, reset| {
        [("anthropic-ratelimit-input-tokens-remaining", remaining), ("anthropic-ratelimit-input-tokens-reset", reset)]
    };
    let wait = |remaining, reset| resets(Dialect::Anthropic, &lines(remaining, reset));
    assert_eq!(wait("0", "2026-01-01T00:00:42Z"), stated(Some(42_000), false));
    assert_eq!(wait("0", "2025-12-31T23:00:00Z"), stated(None, false));
    assert_eq!(wait("7", "2026-01-01T00:00:42Z"), stated(None, false));
    assert_eq!(wait("0", "tomorrow"), stated(None, true));
}

#[test]
fn github_counts_whole_seconds_and_asks_for_a_minute_else() {
    let spent = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225630")];
    assert_eq!(resets(Dialect::GitHub, &spent), stated(Some(31_000), false));
    assert_eq!(resets(Dialect::Stripe, &spent), stated(Some(30_000), false));
    assert_eq!(Dialect::GitHub.unstated(), stated(Some(60_000), false));
    assert!(ALL.iter().filter(|dialect| dialect.unstated() != Stated::default()).eq([&Dialect::GitHub]));
}

#[test]
fn google_says_it_in_the_body() {
    let info = |delay: &str| {
        format!(
            r#"{{"error": {{"code": 429, "details": [{{"@type": "type.googleapis.com/google.rpc.Help"}},
            {{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": {delay}}}]}}}}"#
        )
    };
    assert_eq!(delay(&info("\"37s\"")), stated(Some(37_000), false));
    assert_eq!(delay(&info("\"0.847655010s\"")), stated(Some(848), false));
    assert_eq!(delay(&format!("[{}, {}]", info("\"2s\""), info("\"3s\""))), stated(Some(3_000), false));
    for junk in ["\"-5s\"", "\"37\"", "37", "null", "{}", "\"37m\"", "\"s\""] {
        assert_eq!(delay(&info(junk)), stated(None, true), "{junk}");
    }
    let other = r#"{"error": {"details": [{"@type": "x", "retryDelay": "37s"}, 5, null]}}"#;
    for body in ["{}", "[]", "5", "null", r#"{"error": 5}"#, r#"{"error": {"details": {}}}"#, other] {
        assert_eq!(delay(body), stated(None, false), "{body}");
    }
}

proptest! {
    #[test]
    fn no_bytes_break_it(lines in prop::collection::vec((0..6_usize, any::<Vec<u8>>()), 0..6), now: i64) {
        const NAMES: [&str; 6] = [
            "x-ratelimit-reset-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-",
            "anthropic-ratelimit-tokens-reset", "anthropic-ratelimit-tokens-remaining", "x-ratelimit-reset",
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(NAMES[name], value);
            }
        }
        for dialect in ALL {
            dialect.resets(&headers, now);
        }
    }

    #[test]
    fn no_text_near_a_duration_breaks_it(text in "-?([0-9.]{0,25}(ns|us|\u{b5}s|ms|s|m|h)){0,8}") {
        go_duration(&text);
    }

    #[test]
    fn whole_seconds_are_exact(hours in 0..100_u64, seconds in 0..100_000_u64) {
        prop_assert_eq!(go_duration(&format!("{hours}h{seconds}s")), Some((hours * 3_600 + seconds) * 1_000));
    }

    #[test]
    fn no_body_breaks_it(delay in "\\PC{0,20}", body: Vec<u8>) {
        let body = json::read(&body);
        body.iter().for_each(|body| { Dialect::Google.in_body(body); });
        let info = serde_json::json!({"error": {"details": [{"@type": "google.rpc.RetryInfo", "retryDelay": delay}]}});
        Dialect::Google.in_body(&json::read(info.to_string().as_bytes()).unwrap());
    }
}
