//! The three forms of an HTTP date (RFC 9110, section 5.6.7), read as leniently as real servers need.
//!
//! Lenient are: a weekday that does not match, a 60th second, `UTC` and `+0000` for `GMT`, a one-digit day, any case.
//! Other zones and other forms are no dates.

use crate::clock::Timestamp;
use crate::retry::digits;

const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const MONTHS: [(&str, i64); 12] = [
    ("jan", 31),
    ("feb", 28),
    ("mar", 31),
    ("apr", 30),
    ("may", 31),
    ("jun", 30),
    ("jul", 31),
    ("aug", 31),
    ("sep", 30),
    ("oct", 31),
    ("nov", 30),
    ("dec", 31),
];

const SECONDS_OF_DAY: i64 = 86_400;
/// In the Gregorian calendar, counted from the first day of year 1.
const DAYS_BEFORE_1970: i64 = 719_162;
const FIFTY_YEARS: i64 = 50 * 31_556_952;

/// Seconds since the Unix epoch, negative before it. `now` settles the century of two-digit years and nothing else.
pub fn parse(text: &str, now: Timestamp) -> Option<i64> {
    match text.split_once(',') {
        Some((weekday, rest)) if is_weekday(weekday) => parse_after_weekday(rest, now),
        Some(_) => None,
        None => asctime(text),
    }
}

/// Whether `text` names a day, whole or by its first three letters: what stands before the comma of a date.
pub fn is_weekday(text: &str) -> bool {
    let name = text.trim_ascii();
    WEEKDAYS.iter().any(|day| {
        let short = day.get(..3).unwrap_or(day);
        name.eq_ignore_ascii_case(day) || name.eq_ignore_ascii_case(short)
    })
}

/// What follows that comma: `06 Nov 1994 08:49:37 GMT` or, in the RFC 850 form, `06-Nov-94 08:49:37 GMT`.
pub fn parse_after_weekday(text: &str, now: Timestamp) -> Option<i64> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    match fields.as_slice() {
        [day, month, year, time, zone] if is_utc(zone) => seconds(number(year, 4, 4)?, month, day, time),
        [date, time, zone] if is_utc(zone) => rfc850(date, time, now),
        _ => None,
    }
}

fn is_utc(zone: &str) -> bool {
    ["GMT", "UTC", "+0000"].iter().any(|name| name.eq_ignore_ascii_case(zone))
}

/// `06-Nov-94 08:49:37`: of all years with these two digits, the last that is not more than 50 years ahead.
fn rfc850(date: &str, time: &str, now: Timestamp) -> Option<i64> {
    let mut parts = date.split('-');
    let (day, month, year) = (parts.next()?, parts.next()?, number(parts.next()?, 2, 2)?);
    if parts.next().is_some() {
        return None;
    }
    let latest = i64::try_from(now.0 / 1000).unwrap_or(i64::MAX).saturating_add(FIFTY_YEARS);
    let mut centuries = (0..100).rev();
    centuries.find_map(|century| seconds(century * 100 + year, month, day, time).filter(|at| *at <= latest))
}

/// `Sun Nov  6 08:49:37 1994`
fn asctime(text: &str) -> Option<i64> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    match fields.as_slice() {
        [weekday, month, day, time, year] if is_weekday(weekday) => seconds(number(year, 4, 4)?, month, day, time),
        _ => None,
    }
}

fn seconds(year: i64, month: &str, day: &str, time: &str) -> Option<i64> {
    let month = MONTHS.iter().position(|(name, _)| name.eq_ignore_ascii_case(month))?;
    civil(year, month, number(day, 1, 2)?, time)
}

/// Seconds since the Unix epoch of `08:49:37` on a day of the Gregorian calendar; January is month 0.
pub(super) fn civil(year: i64, month: usize, day: i64, time: &str) -> Option<i64> {
    let leap_day = i64::from(month == 1 && is_leap(year));
    let (_, length) = MONTHS.get(month)?;
    if day == 0 || day > length + leap_day {
        return None;
    }
    let whole_months: i64 = MONTHS.iter().take(month).map(|(_, days)| days).sum();
    let leap_day_before = i64::from(month > 1 && is_leap(year));
    let days = days_before(year) + whole_months + leap_day_before + day - 1 - DAYS_BEFORE_1970;
    Some(days * SECONDS_OF_DAY + time_of_day(time)?)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days from the first day of year 1 to the first day of `year`.
fn days_before(year: i64) -> i64 {
    let past = year - 1;
    past * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400)
}

/// `08:49:37`; a leap second counts as the second after it.
fn time_of_day(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let mut part = |max: i64| number(parts.next()?, 2, 2).filter(|value| *value <= max);
    let (hour, minute, second) = (part(23)?, part(59)?, part(60)?);
    parts.next().is_none().then_some(hour * 3600 + minute * 60 + second)
}

/// So many digits and nothing else.
pub(super) fn number(text: &str, least: usize, most: usize) -> Option<i64> {
    if text.len() < least || text.len() > most {
        return None;
    }
    digits(text).and_then(|value| i64::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-01-01 00:00:00.
    const NOW: Timestamp = Timestamp(1_767_225_600_000);
    /// The example of RFC 9110.
    const EXAMPLE: i64 = 784_111_777;

    #[test]
    fn the_three_forms_mean_the_same_second() {
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parse(text, NOW), Some(EXAMPLE), "{text}");
        }
    }

    #[test]
    fn what_real_servers_send_is_taken() {
        for text in [
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 +0000",
            "sun, 06 nov 1994 08:49:37 gmt",
            "SUNDAY, 06-NOV-94 08:49:37 GMT",
            "Sun Nov 06 08:49:37 1994",
            " Sun , 06  Nov 1994 08:49:37 GMT ",
        ] {
            assert_eq!(parse(text, NOW), Some(EXAMPLE), "{text}");
        }
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:60 GMT", NOW), Some(EXAMPLE + 23));
    }

    #[test]
    fn other_zones_forms_and_impossible_days_are_no_dates() {
        for text in [
            "",
            ",",
            "Sun,",
            "Foo, 06 Nov 1994 08:49:37 GMT",
            "06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 EST",
            "Sun, 06 Nov 1994 08:49:37 +0100",
            "Sun, 06 Nov 1994 08:49:37 GMT GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Wed, 29 Feb 2023 08:49:37 GMT",
            "Thu, 29 Feb 1900 08:49:37 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:60:00 GMT",
            "Sun, 06 Nov 1994 08:49:61 GMT",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37:00 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94-1 08:49:37 GMT",
            "1994-11-06T08:49:37Z",
            "Sun Nov  6 08:49:37 1994 GMT",
        ] {
            assert_eq!(parse(text, NOW), None, "{text}");
        }
    }

    #[test]
    fn the_calendar_holds_at_its_corners() {
        for (text, expected) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Wed, 31 Dec 1969 23:59:59 GMT", -1),
            ("Thu, 29 Feb 2024 00:00:00 GMT", 1_709_164_800),
            ("Fri, 01 Mar 2024 00:00:00 GMT", 1_709_251_200),
            ("Tue, 29 Feb 2000 00:00:00 GMT", 951_782_400),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
            ("Mon, 01 Jan 0001 00:00:00 GMT", -62_135_596_800),
            ("Sat, 01 Jan 0000 00:00:00 GMT", -62_167_219_200),
        ] {
            assert_eq!(parse(text, NOW), Some(expected), "{text}");
        }
    }

    #[test]
    fn two_digit_years_lie_within_fifty_years_ahead() {
        let year_of = |text: &str, now| parse(text, now).map(|at| 1970 + at.div_euclid(31_556_952));
        assert_eq!(year_of("Monday, 15-Jun-75 00:00:00 GMT", NOW), Some(2075));
        assert_eq!(year_of("Monday, 15-Jun-76 00:00:00 GMT", NOW), Some(1976));
        assert_eq!(year_of("Monday, 15-Jun-05 00:00:00 GMT", Timestamp(3_944_678_400_000)), Some(2105));
        assert_eq!(parse("Tuesday, 29-Feb-00 00:00:00 GMT", NOW), Some(951_782_400));
        assert!(parse("Monday, 15-Jun-75 00:00:00 GMT", Timestamp(u64::MAX)).is_some());
    }

    proptest! {
        #[test]
        fn days_follow_each_other(day in -719_162_i64..2_932_896) {
            let expected = day * SECONDS_OF_DAY;
            prop_assert_eq!(parse(&written(day), NOW), Some(expected));
        }

        #[test]
        fn no_text_breaks_it(text in ".{0,80}", now: u64) {
            parse(&text, Timestamp(now));
            parse_after_weekday(&text, Timestamp(now));
        }

        #[test]
        fn nothing_near_a_date_breaks_it(text in "(Sun|Sunday|x)?,? ?[0-9]{0,3}[ -]Nov[ -][0-9]{0,5} [0-9:]{0,9} ?(GMT|\\+0000)?") {
            parse(&text, NOW);
        }
    }

    /// Counts a day out year by year and month by month: slow, and nothing like the code above.
    fn written(day: i64) -> String {
        let (mut year, mut left) = (1_i64, day + DAYS_BEFORE_1970);
        while left >= 365 + i64::from(is_leap(year)) {
            left -= 365 + i64::from(is_leap(year));
            year += 1;
        }
        for (name, days) in MONTHS {
            let length = days + i64::from(name == "feb" && is_leap(year));
            if left < length {
                return format!("Mon, {:02} {name} {year:04} 00:00:00 GMT", left + 1);
            }
            left -= length;
        }
        unreachable!("a year has no thirteenth month")
    }
}
