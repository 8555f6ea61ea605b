//! Durations, sizes and rates: read and shown in the units of the file.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

/// What a setting accepts instead of the value it was given.
pub(super) type Accepts = Cow<'static, str>;

const MILLISECONDS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const BYTES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
const PERIODS: [(&str, Duration); 3] =
    [("s", Duration::from_secs(1)), ("m", Duration::from_secs(60)), ("h", Duration::from_secs(3_600))];

/// Ten years: beyond it a duration is a slip, and sums of a few never overflow a store's clock.
const LONGEST: u64 = 3_650 * 86_400_000;
const LARGEST: u64 = 1 << 40;

/// A duration above zero.
pub(super) fn duration(text: &str) -> Result<Duration, Accepts> {
    match duration_or_zero(text)? {
        Duration::ZERO => Err("longer than zero".into()),
        duration => Ok(duration),
    }
}

pub(super) fn duration_or_zero(text: &str) -> Result<Duration, Accepts> {
    let accepts = || Accepts::from("a duration such as \"250ms\", \"10s\", \"5m\", \"24h\" or \"30d\"");
    match counted(text, &MILLISECONDS).ok_or_else(accepts)? {
        milliseconds if milliseconds > LONGEST => Err("at most \"3650d\"".into()),
        milliseconds => Ok(Duration::from_millis(milliseconds)),
    }
}

/// A number of bytes.
pub(super) fn size(text: &str) -> Result<u64, Accepts> {
    let accepts = || Accepts::from("a size such as \"512B\", \"32KiB\", \"1MiB\" or \"1GiB\"");
    match counted(text, &BYTES).ok_or_else(accepts)? {
        bytes if bytes > LARGEST => Err("at most \"1024GiB\"".into()),
        bytes => Ok(bytes),
    }
}

/// A size between two bounds, both included, both in bytes.
pub(super) fn size_within(text: &str, least: u64, most: u64) -> Result<u64, Accepts> {
    match size(text)? {
        bytes if (least..=most).contains(&bytes) => Ok(bytes),
        _ => Err(format!("between \"{}\" and \"{}\"", size_text(least), size_text(most)).into()),
    }
}

/// So many in each period.
pub(super) fn rate(text: &str) -> Result<(NonZeroU32, Duration), Accepts> {
    let parsed = text.split_once('/').and_then(|(count, unit)| {
        let (_, period) = PERIODS.iter().find(|(name, _)| *name == unit)?;
        Some((digits(count)?.try_into().ok().and_then(NonZeroU32::new)?, *period))
    });
    parsed.ok_or_else(|| "a rate such as \"5/s\", \"100/m\" or \"1000/h\"".into())
}

/// The duration in the largest unit that leaves no rest; one or two of a unit read better in the next one, as `24h`.
pub fn duration_text(duration: Duration) -> String {
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let is_few = |(name, scale): &(&str, u64)| matches!(*name, "d" | "m") && milliseconds <= 2 * scale;
    text_of(milliseconds, MILLISECONDS.into_iter().filter(|unit| !is_few(unit)), "0s")
}

/// The size in the largest unit that leaves no rest.
pub(super) fn size_text(bytes: u64) -> String {
    text_of(bytes, BYTES.into_iter(), "0B")
}

pub(super) fn rate_text(count: NonZeroU32, period: Duration) -> String {
    let unit = PERIODS.iter().find(|(_, known)| *known == period).map_or("s", |(name, _)| name);
    format!("{count}/{unit}")
}

fn counted(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(end);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    Some(digits(count)?.saturating_mul(*scale))
}

/// Digits only: `+5` and `٥` are no numbers here. Beyond 64 bits it is the largest number, which every bound refuses.
fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().unwrap_or(u64::MAX))
}

fn text_of(count: u64, mut units: impl Iterator<Item = (&'static str, u64)>, zero: &str) -> String {
    let unit = units.find(|(_, scale)| count > 0 && count.is_multiple_of(*scale));
    unit.map_or_else(|| zero.to_owned(), |(name, scale)| format!("{}{name}", count / scale))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1700ms"), Ok(Duration::from_millis(1_700)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for wrong in ["", "10", "s", "1.5s", "-1s", "+1s", "1 s", "1S", "1min", "\u{665}s"] {
            assert!(duration(wrong).unwrap_err().starts_with("a duration such as"), "{wrong}");
        }
    }

    #[test]
    fn durations_are_bounded() {
        assert_eq!(duration("0s"), Err("longer than zero".into()));
        assert_eq!(duration_or_zero("0s"), Ok(Duration::ZERO));
        for wrong in ["3651d", "99999999999999999999999d", "18446744073709551615h"] {
            assert_eq!(duration(wrong), Err("at most \"3650d\"".into()), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(size("300B"), Ok(300));
        assert_eq!(size("32KiB"), Ok(32_768));
        assert_eq!(size_within("1MiB", 1, 1 << 20), Ok(1 << 20));
        assert_eq!(size_within("2MiB", 1, 1 << 20), Err("between \"1B\" and \"1MiB\"".into()));
        for wrong in ["1MB", "1kib", "1024", "1M"] {
            assert!(size(wrong).unwrap_err().starts_with("a size such as"), "{wrong}");
        }
    }

    #[test]
    fn durations_are_shown_as_people_write_them() {
        for text in ["24h", "60s", "1h", "2h", "30d", "120s", "5m", "1s", "250ms", "0s"] {
            assert_eq!(duration_text(duration_or_zero(text).unwrap()), text);
        }
    }

    #[test]
    fn rates_name_their_period() {
        assert_eq!(rate("100/m"), Ok((NonZeroU32::new(100).unwrap(), Duration::from_secs(60))));
        for wrong in ["0/s", "5", "5/d", "/s", "4294967296/s", "-1/s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_as_the_same(milliseconds in 0..LONGEST, bytes in 0..LARGEST) {
            let duration = Duration::from_millis(milliseconds);
            prop_assert_eq!(duration_or_zero(&duration_text(duration)), Ok(duration));
            prop_assert_eq!(size(&size_text(bytes)), Ok(bytes));
        }
    }
}
