//! Dates as RFC 3339 has them: `2026-01-01T00:00:02Z`.

use crate::retry::http_date::{civil, number};

/// Milliseconds since the Unix epoch, negative before it; a fraction is rounded up.
pub(super) fn parse(text: &str) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let (time, rest) = rest.strip_prefix(['T', 't', ' '])?.split_at_checked(8)?;
    let (fraction, zone) = fraction(rest)?;
    let mut parts = date.split('-');
    let year = number(parts.next()?, 4, 4)?;
    let month = number(parts.next()?, 2, 2)?.checked_sub(1)?;
    let day = number(parts.next()?, 2, 2)?;
    let local = civil(year, usize::try_from(month).ok()?, day, time)?;
    let seconds = local.checked_sub(offset(zone)?)?;
    parts.next().is_none().then(|| seconds * 1000 + fraction)
}

/// Milliseconds of `.123`, and what stands behind it.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = rest.bytes().position(|byte| !byte.is_ascii_digit())?;
    let (places, zone) = rest.split_at_checked(end)?;
    let kept = places.bytes().chain([b'0'; 3]).take(3).fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let dropped = places.bytes().skip(3).any(|digit| digit > b'0');
    (!places.is_empty()).then_some((kept + i64::from(dropped), zone))
}

/// Seconds by which `+01:00` is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.strip_prefix(['+', '-'])?.split_once(':')?;
    let (hours, minutes) = (number(hours, 2, 2)?, number(minutes, 2, 2)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-01-01 00:00:02.
    const MOMENT: i64 = 1_767_225_602_000;

    #[test]
    fn the_same_moment_in_many_forms() {
        for text in ["2026-01-01T00:00:02Z", "2026-01-01 00:00:02z", "2026-01-01t01:00:02+01:00"] {
            assert_eq!(parse(text), Some(MOMENT), "{text}");
        }
        assert_eq!(parse("2025-12-31T16:30:02.5-07:30"), Some(MOMENT + 500));
        assert_eq!(parse("2026-01-01T00:00:02.0001Z"), Some(MOMENT + 1));
        assert_eq!(parse("1970-01-01T00:00:00Z"), Some(0));
    }

    #[test]
    fn other_texts_are_no_dates() {
        for text in [
            "",
            "2026-01-01",
            "2026-01-01T00:00:02",
            "2026-01-01T00:00:02.Z",
            "2026-13-01T00:00:02Z",
            "2026-00-01T00:00:02Z",
            "2026-02-29T00:00:02Z",
            "2026-1-01T00:00:02ZZ",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:02+24:00",
            "2026-01-01T00:00:02+1:00",
            "2026-01-01T00:00:02Z ",
            "\u{e4}026-01-01T00:00:02Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in ".{0,40}") {
            parse(&text);
        }

        #[test]
        fn nothing_near_a_date_breaks_it(text in "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:]{8}(\\.[0-9]{0,12})?(Z|[+-][0-9:]{0,6})?") {
            parse(&text);
        }
    }
}
