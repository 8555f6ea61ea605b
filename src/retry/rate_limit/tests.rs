use http::HeaderValue;
use proptest::prelude::*;

use super::*;

/// 2026-01-01 00:00:00.
const NOW: i64 = 1_767_225_600_000;

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn asked(text: &str) -> Stated {
    items(&headers(&[("ratelimit", text)]))
}

/// After a reset with nothing left.
fn reset_to(text: &str) -> Stated {
    resets(&headers(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", text)]), NOW, 0)
}

fn stated(longest: Option<u64>, invalid: bool) -> Stated {
    Stated { longest, invalid }
}

#[test]
fn of_the_items_that_are_spent_the_longest_counts() {
    assert_eq!(asked("\"default\";r=0;t=30"), stated(Some(30_000), false));
    assert_eq!(asked("\"a\";r=0;t=5, \"b\"; r=0; t=9, \"c\";r=3;t=90"), stated(Some(9_000), false));
    assert_eq!(asked("\"with ; and , in it\";r=0;t=7"), stated(Some(7_000), false));
    assert_eq!(asked("\"default\";r=1;t=30"), stated(None, false));
    assert_eq!(asked("\"default\";r=0"), stated(None, false));
    assert_eq!(asked("\"default\";t=30"), stated(None, false));
    assert_eq!(asked("\"default\";r=0;t=0"), stated(None, false));
    assert_eq!(asked("limit=100, remaining=0, reset=30"), stated(Some(30_000), false));
    assert_eq!(asked("limit=100, remaining=4, reset=30"), stated(None, false));
    assert_eq!(asked("\"default\";r=0;t=99999999999999999999"), stated(Some(u64::MAX), false));
    assert_eq!(asked("\"default\";r=0;t=-3"), stated(None, true));
    assert_eq!(asked("\"default\";r=0;t=soon, \"b\";r=0;t=4"), stated(Some(4_000), true));
}

#[test]
fn a_reset_is_a_wait_or_a_moment_by_its_size() {
    for (text, longest) in [
        ("30", Some(30_000)),
        ("0.3", Some(300)),
        ("2591999", Some(2_591_999_000)),
        ("1767225630", Some(30_000)),
        ("1767225630.5", Some(30_500)),
        ("1767225630000", Some(30_000)),
        ("1767225599", None),
        ("2592000", None),
        ("0", None),
    ] {
        assert_eq!(reset_to(text), stated(longest, false), "{text}");
    }
    for text in ["-1", "soon", "", "1e9", "+30", "2026-01-01T00:00:30Z"] {
        assert_eq!(reset_to(text), stated(None, true), "{text}");
    }
    assert!(reset_to("99999999999999999999").longest > Some(1 << 50));
}

#[test]
fn a_reset_counts_only_where_nothing_is_left() {
    let wait = |lines: &[(&str, &str)]| resets(&headers(lines), NOW, 0);
    for lines in [
        &[("x-ratelimit-reset", "30")][..],
        &[("x-ratelimit-reset", "30"), ("x-ratelimit-remaining", "1")],
        &[("x-ratelimit-reset", "junk"), ("x-ratelimit-remaining", "1")],
        &[("x-ratelimit-reset", "30"), ("x-ratelimit-remaining", "none")],
        &[("x-ratelimit-reset", "30"), ("ratelimit-remaining", "0")],
        &[("x-ratelimit-remaining", "0")],
    ] {
        assert_eq!(wait(lines), stated(None, false), "{lines:?}");
    }
    assert_eq!(wait(&[("ratelimit-reset", "5"), ("ratelimit-remaining", "0")]).longest, Some(5_000));
    assert_eq!(wait(&[("x-rate-limit-reset", "5"), ("x-rate-limit-remaining", "0")]).longest, Some(5_000));
}

#[test]
fn a_moment_gets_its_grace_and_a_wait_does_not() {
    let with_grace =
        |text| resets(&headers(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", text)]), NOW, 1_000).longest;
    assert_eq!(with_grace("1767225630"), Some(31_000));
    assert_eq!(with_grace("30"), Some(30_000));
}

proptest! {
    #[test]
    fn no_bytes_break_it(lines in prop::collection::vec((0..4_usize, any::<Vec<u8>>()), 0..6), now: i64, grace: u64) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(["ratelimit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-reset"][name], value);
            }
        }
        items(&headers);
        resets(&headers, now, grace);
    }

    #[test]
    fn no_text_near_an_item_breaks_it(text in "(\"[a;,\\\\]{0,4}\"?;? ?[rt]=[-0-9]{0,25};?){0,4}", reset in "[-+0-9.e]{0,30}", now: i64) {
        asked(&text);
        let spent = headers(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", &reset)]);
        prop_assert_ne!(resets(&spent, now, 0).longest, Some(0));
    }
}
