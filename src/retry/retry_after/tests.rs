use http::HeaderValue;
use http::header::{HeaderName, RETRY_AFTER};
use proptest::prelude::*;

use super::*;

/// 2026-01-01 00:00:00.250.
const NOW: Timestamp = Timestamp(1_767_225_600_250);
const HUGE: u64 = u64::MAX;

fn headers(lines: &[(&str, &[u8])]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value).unwrap());
    }
    headers
}

/// Milliseconds asked for by these lines.
fn asked(lines: &[(&str, &[u8])]) -> Option<u64> {
    stated(&headers(lines), NOW).hint().map(|Hint(wait)| u64::try_from(wait.as_millis()).unwrap())
}

fn retry_after(value: &str) -> Option<u64> {
    asked(&[("retry-after", value.as_bytes())])
}

#[test]
fn digits_are_seconds() {
    for (value, expected) in [("120", 120_000), (" 120 ", 120_000), ("00120", 120_000), ("0", 0), ("86400", 86_400_000)]
    {
        assert_eq!(retry_after(value), Some(expected), "{value}");
    }
}

#[test]
fn decimals_are_rounded_up_to_milliseconds() {
    for (value, expected) in [
        ("0.5", 500),
        ("2.0", 2000),
        ("0.314", 314),
        ("0.503", 503),
        ("0.0001", 1),
        ("1.9999", 2000),
        ("292.052427053", 292_053),
    ] {
        assert_eq!(retry_after(value), Some(expected), "{value}");
    }
}

#[test]
fn row_07_negative_retry_after_is_no_hint() {
    for value in ["-1", "-0", "-5"] {
        assert_eq!(retry_after(value), None, "{value}");
    }
}

#[test]
fn row_08_junk_is_no_hint() {
    let junk = [
        "",
        " ",
        "+5",
        "1e3",
        "1e999",
        "nan",
        "NaN",
        "inf",
        "0x10",
        "1_000",
        "120s",
        "120;x",
        "60-100",
        "soon",
        ".5",
        "5.",
        "1.2.3",
        "1 2",
        ",",
        "2026-01-01T00:00:02Z",
        "Thu, 01 Jan 2026 00:00:02 EST",
    ];
    for value in junk {
        assert_eq!(retry_after(value), None, "{value}");
    }
    for value in ["²", "٣", "5\u{a0}"] {
        assert_eq!(retry_after(value), None, "{value}");
    }
    assert_eq!(asked(&[("retry-after", b"\xff5")]), None);
    assert_eq!(retry_after(&format!("1.{}", "0".repeat(200))), None);
    assert_eq!(asked(&[]), None);
}

#[test]
fn rows_09_10_huge_numbers_are_too_long_and_never_wrap() {
    let four_hundred = "9".repeat(400);
    for value in ["99999999999999999999999", "18446744073709551616", "18446744073709552", &four_hundred] {
        assert_eq!(retry_after(value), Some(HUGE), "{value}");
    }
    assert_eq!(retry_after("9999999999"), Some(9_999_999_999_000));
    for value in ["99999999999999999999.999", "18446744073709552.5", "18446744073709551615.1"] {
        assert_eq!(retry_after(value), Some(HUGE), "{value}");
    }
}

#[test]
fn row_12_the_three_date_forms_count_from_the_date_of_the_answer() {
    for value in ["Thu, 01 Jan 2026 00:00:05 GMT", "Thursday, 01-Jan-26 00:00:05 GMT", "Thu Jan  1 00:00:05 2026"] {
        let lines: [(&str, &[u8]); 2] = [("date", b"Thu, 01 Jan 2026 00:00:03 GMT"), ("retry-after", value.as_bytes())];
        assert_eq!(asked(&lines), Some(2000), "{value}");
    }
}

#[test]
fn row_13_an_upstream_an_hour_behind_means_its_own_clock() {
    let lines: [(&str, &[u8]); 2] =
        [("date", b"Wed, 31 Dec 2025 23:00:00 GMT"), ("retry-after", b"Wed, 31 Dec 2025 23:00:02 GMT")];
    assert_eq!(asked(&lines), Some(2000));
}

#[test]
fn without_a_date_or_from_a_cache_our_own_clock_counts() {
    assert_eq!(retry_after("Thu, 01 Jan 2026 00:00:02 GMT"), Some(1750));
    let date: (&str, &[u8]) = ("date", b"Wed, 31 Dec 2025 23:00:00 GMT");
    let until: (&str, &[u8]) = ("retry-after", b"Thu, 01 Jan 2026 00:00:02 GMT");
    assert_eq!(asked(&[date, ("age", b"3600"), until]), Some(1750));
    assert_eq!(asked(&[("date", b"yesterday"), until]), Some(1750));
}

#[test]
fn row_14_a_date_in_the_past_is_zero() {
    for value in [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Wed, 21 Oct 2015 07:28:00 GMT",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Fri, 01 Jan 1904 00:00:00 GMT",
    ] {
        assert_eq!(retry_after(value), Some(0), "{value}");
    }
    assert!(retry_after("Fri, 31 Dec 9999 23:59:59 GMT") > Some(1_000_000_000_000));
}

#[test]
fn rows_16_17_of_several_the_largest_valid_one_counts() {
    let two = |first: &'static [u8], second: &'static [u8]| asked(&[("retry-after", first), ("retry-after", second)]);
    assert_eq!(two(b"1", b"3"), Some(3000));
    assert_eq!(two(b"30", b"5"), Some(30_000));
    assert_eq!(two(b"garbage", b"1"), Some(1000));
    assert_eq!(two(b"\xff", b"1"), Some(1000));
    assert_eq!(two(b"-1", b""), None);
    assert_eq!(retry_after("5, 30"), Some(30_000));
    assert_eq!(retry_after("120, 60"), Some(120_000));
    assert_eq!(retry_after("soon,7,"), Some(7000));
    assert_eq!(retry_after("1, Thu, 01 Jan 2026 00:00:02 GMT, 0"), Some(1750));
    assert_eq!(retry_after("Thu, , 3"), Some(3000));
}

#[test]
fn row_18_the_finer_header_wins() {
    let both = |fine: &'static [u8], coarse: &'static [u8]| asked(&[("retry-after", coarse), ("retry-after-ms", fine)]);
    assert_eq!(both(b"1500", b"1"), Some(1500));
    assert_eq!(both(b"700", b"5"), Some(700));
    assert_eq!(both(b"700.2", b"5"), Some(701));
    assert_eq!(both(b"-1", b"5"), Some(5000));
    assert_eq!(both(b"junk", b"5"), Some(5000));
    assert_eq!(both(b"99999999999999999999999", b"5"), Some(HUGE));
}

#[test]
fn row_30_an_explicit_no_is_a_no() {
    assert!(vetoes(&headers(&[("x-should-retry", b"false")])));
    assert!(vetoes(&headers(&[("Stripe-Should-Retry", b" False")])));
    assert!(vetoes(&headers(&[("x-should-retry", b"true"), ("stripe-should-retry", b"false")])));
    for value in [&b"true"[..], b"", b"0", b"\xff", b"falsely"] {
        assert!(!vetoes(&headers(&[("x-should-retry", value)])));
    }
    assert!(!vetoes(&HeaderMap::new()));
}

#[test]
fn an_explicit_yes_is_a_yes_unless_a_no_stands_beside_it() {
    assert!(promotes(&headers(&[("x-should-retry", b"TRUE ")])));
    assert!(promotes(&headers(&[("stripe-should-retry", b"true")])));
    for value in [&b"false"[..], b"", b"1", b"\xff"] {
        assert!(!promotes(&headers(&[("x-should-retry", value)])));
    }
    assert!(!promotes(&headers(&[("x-should-retry", b"true"), ("stripe-should-retry", b"false")])));
}

#[test]
fn the_finer_fields_of_clouds_are_read_as_well() {
    assert_eq!(asked(&[("x-ms-retry-after-ms", b"1500"), ("retry-after", b"9")]), Some(1500));
    assert_eq!(asked(&[("x-amz-retry-after", b"250"), ("retry-after-ms", b"700")]), Some(700));
}

#[test]
fn what_is_no_wait_is_told_whether_or_not_another_is() {
    let invalid = |lines: &[(&str, &[u8])]| stated(&headers(lines), NOW).invalid;
    for lines in [
        &[("retry-after", &b"-1"[..])][..],
        &[("retry-after", b"5, soon")],
        &[("retry-after", b"\xff"), ("retry-after", b"1")],
        &[("retry-after-ms", b"nan"), ("retry-after", b"1")],
        &[("retry-after", b"")],
    ] {
        assert!(invalid(lines), "{lines:?}");
    }
    let fine: [&[(&str, &[u8])]; 4] = [
        &[],
        &[("retry-after", b"0")],
        &[("retry-after-ms", b"5")],
        &[("retry-after", b"Sun, 06 Nov 1994 08:49:37 GMT")],
    ];
    for lines in fine {
        assert!(!invalid(lines), "{lines:?}");
    }
}

#[test]
fn row_48_what_we_tell_clients_is_a_whole_second_at_least() {
    for (wait, expected) in [(0, 1), (1, 1), (999, 1), (1000, 1), (1001, 2), (60_000, 60)] {
        assert_eq!(seconds_for(Duration::from_millis(wait)), expected, "{wait} ms");
    }
    assert_eq!(seconds_for(Duration::MAX), u64::MAX);
}

proptest! {
    #[test]
    fn no_bytes_break_it(lines in prop::collection::vec((0..4_usize, any::<Vec<u8>>()), 0..5), now: u64) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = [RETRY_AFTER, FINE[0].clone(), DATE, AGE][name].clone();
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(name, value);
            }
        }
        stated(&headers, Timestamp(now));
        prop_assert!(!(vetoes(&headers) && promotes(&headers)));
    }

    #[test]
    fn no_text_near_a_hint_breaks_it(value in "[-+0-9.,: eE]{0,40}(Sun, )?[0-9]{0,30}", now: u64) {
        stated(&headers(&[("retry-after", value.as_bytes())]), Timestamp(now));
    }

    #[test]
    fn whole_seconds_are_exact_or_too_long(seconds: u64) {
        prop_assert_eq!(retry_after(&seconds.to_string()), Some(seconds.saturating_mul(1000)));
    }

    #[test]
    fn decimals_never_fall_short(whole in 0..1_000_000_u64, fraction in 0..1_000_000_u64) {
        let asked = retry_after(&format!("{whole}.{fraction:06}")).unwrap() * 1000;
        let meant = whole * 1_000_000 + fraction;
        prop_assert!(asked >= meant && asked - meant < 1000);
    }

    #[test]
    fn what_we_tell_clients_covers_the_wait(wait: u64) {
        let wait = Duration::from_millis(wait);
        let told = Duration::from_secs(seconds_for(wait));
        prop_assert!(told >= wait && told <= wait + Duration::from_secs(1));
    }
}
