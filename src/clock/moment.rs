//! Moments as text: RFC 3339 with milliseconds on the way out, and what an operator may type as `since` on the way in.

use std::time::Duration;

use crate::clock::Timestamp;

const DAY: u64 = 86_400_000;

/// Days of a year before each of its months, as in a year without a 29th of February.
const DAYS_BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

/// `2026-01-31T12:00:00.000Z`.
pub fn rfc3339(moment: Timestamp) -> String {
    let (year, month, day) = date(moment.0 / DAY);
    let millis = moment.0 % DAY;
    let (hours, minutes, seconds) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{:03}Z", millis % 1000)
}

/// Reads a moment: RFC 3339 in UTC, milliseconds since the epoch, or a duration before `now` (`90s`, `15m`, `1h`, `7d`).
pub fn parse(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Ok(millis) = text.parse() {
        return Some(Timestamp(millis));
    }
    match duration(text) {
        Some(ago) => Some(Timestamp(now.0.saturating_sub(u64::try_from(ago.as_millis()).ok()?))),
        None => parse_rfc3339(text),
    }
}

/// Reads a duration in one unit: `250ms`, `10s`, `15m`, `1h`, `7d`.
pub fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (count, unit) = text.split_at_checked(digits)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => DAY,
        _ => return None,
    };
    Some(Duration::from_millis(count.parse::<u64>().ok()?.checked_mul(millis)?))
}

fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let (date, time) = text.strip_suffix(['Z', 'z'])?.split_once(['T', 't'])?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-')?;
    let [hours, minutes, seconds] = numbers(clock, ':')?;
    if hours > 23 || minutes > 59 || seconds > 60 || fraction.len() > 9 {
        return None;
    }
    let fraction = format!("{fraction:0<3}").get(..3)?.parse::<u64>().ok()?;
    let seconds = days(year, month, day)? * 86_400 + hours * 3600 + minutes * 60 + seconds;
    Some(Timestamp(seconds * 1000 + fraction))
}

fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let parts = text.split(separator).map(|part| match part.bytes().all(|byte| byte.is_ascii_digit()) {
        true => part.parse().ok().filter(|_| part.len() <= 4),
        false => None,
    });
    parts.collect::<Option<Vec<u64>>>()?.try_into().ok()
}

/// The date of the day that is `days` after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while first_day(year + 1) <= days {
        year += 1;
    }
    let day_of_year = days - first_day(year);
    let month = (1..=12).rev().find(|month| before_month(year, *month) <= day_of_year).unwrap_or(1);
    (year, month, day_of_year - before_month(year, month) + 1)
}

fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) {
        return None;
    }
    let next = if month == 12 { first_day(year + 1) } else { first_day(year) + before_month(year, month + 1) };
    let days = first_day(year) + before_month(year, month) + day.checked_sub(1)?;
    (days < next).then_some(days)
}

/// Days from 1970-01-01 to the first of January of `year`.
fn first_day(year: u64) -> u64 {
    let past = year - 1;
    let leap_days = past / 4 - past / 100 + past / 400;
    (year - 1970) * 365 + leap_days - 477
}

/// Days of `year` before its `month`, counted from 1.
fn before_month(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let place = usize::try_from(month - 1).unwrap_or_default();
    DAYS_BEFORE.get(place).copied().unwrap_or_default() + u64::from(is_leap && month > 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_moments_are_written() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (1_772_323_200_001, "2026-03-01T00:00:00.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(Timestamp(millis)), text);
        }
    }

    #[test]
    fn an_operator_may_say_it_in_three_ways() {
        let now = Timestamp(10_000_000);
        assert_eq!(parse("1h", now), Some(Timestamp(6_400_000)));
        assert_eq!(parse("7d", now), Some(Timestamp(0)));
        assert_eq!(parse("1234", now), Some(Timestamp(1234)));
        assert_eq!(parse("1970-01-01T00:01:00Z", now), Some(Timestamp(60_000)));
        assert_eq!(parse("1970-01-01T00:01:00.25Z", now), Some(Timestamp(60_250)));
    }

    #[test]
    fn junk_is_no_moment() {
        let junk = [
            "",
            "h",
            "1w",
            "yesterday",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01",
            "-5",
            "1969-01-01T00:00:00Z",
            "2026-01-01T25:00:00Z",
            "2026-01-01T00:00:00",
            "99999999999999999999d",
            "2026-01-00T00:00:00Z",
        ];
        for text in junk {
            assert_eq!(parse(text, Timestamp(0)), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(millis in 0..253_402_300_800_000u64) {
            prop_assert_eq!(parse(&rfc3339(Timestamp(millis)), Timestamp(0)), Some(Timestamp(millis)));
        }
    }
}
