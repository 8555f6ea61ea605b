//! JSON numbers as exact decimals: no digit is lost and no exponent is ever written out as zeros.

use super::Sink;

/// Digits of an exponent without leading zeros. With no more, neither it nor its sum with a body's length overflows.
const LONGEST_EXPONENT: usize = 18;

/// A number as it was written. It is split only when it is written out: kept in parts, a list of short numbers would
/// take several times the memory.
#[derive(Clone, Copy, Debug)]
pub struct Decimal<'a>(&'a str);

impl<'a> Decimal<'a> {
    /// Reads one number from the front of `text`.
    pub(super) fn read(text: &'a str) -> Option<Self> {
        let (_, rest) = after(text, '-');
        let (whole, rest) = digits(rest);
        if whole.is_empty() || (whole.len() > 1 && whole.starts_with('0')) {
            return None;
        }
        let rest = match rest.strip_prefix('.') {
            Some(rest) => some_digits(rest)?.1,
            None => rest,
        };
        let rest = match rest.strip_prefix(['e', 'E']) {
            Some(rest) => skip_exponent(rest)?,
            None => rest,
        };
        text.get(..text.len() - rest.len()).map(Self)
    }

    /// Bytes of its text.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// `[-]digits e exponent` without spaces, digits without zeros at either end: `15e-1`, `-1e400`. Zero is `0e0`, and
    /// so is `-0`: as decimals the two are equal.
    pub(super) fn write(&self, sink: &mut impl Sink) {
        let (negative, rest) = after(self.0, '-');
        let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let fraction = fraction.trim_end_matches('0');
        let shifted = if fraction.is_empty() { whole.trim_end_matches('0') } else { whole };
        let exponent = exponent.parse().unwrap_or(0) + length(whole) - length(shifted) - length(fraction);
        let whole = shifted.trim_start_matches('0');
        let fraction = if whole.is_empty() { fraction.trim_start_matches('0') } else { fraction };
        if whole.is_empty() && fraction.is_empty() {
            return sink.put(b"0e0");
        }
        sink.put(if negative { b"-" } else { b"" });
        sink.put(whole.as_bytes());
        sink.put(fraction.as_bytes());
        match exponent {
            0 => sink.put(b"e0"),
            exponent => sink.put(format!("e{exponent}").as_bytes()),
        }
    }
}

fn after(text: &str, sign: char) -> (bool, &str) {
    match text.strip_prefix(sign) {
        Some(rest) => (true, rest),
        None => (false, text),
    }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

fn some_digits(text: &str) -> Option<(&str, &str)> {
    Some(digits(text)).filter(|(digits, _)| !digits.is_empty())
}

fn skip_exponent(text: &str) -> Option<&str> {
    let (written, rest) = some_digits(text.strip_prefix(['-', '+']).unwrap_or(text))?;
    (written.trim_start_matches('0').len() <= LONGEST_EXPONENT).then_some(rest)
}

/// A body is far shorter than the largest `i64`.
fn length(digits: &str) -> i64 {
    i64::try_from(digits.len()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Option<String> {
        let number = Decimal::read(text)?;
        let mut written = Vec::new();
        number.write(&mut written);
        (number.len() == text.len()).then(|| String::from_utf8(written).unwrap())
    }

    #[test]
    fn one_value_has_one_spelling() {
        for (spellings, written) in [
            (&["1", "1.0", "1e0", "10e-1", "0.1E+1", "0.0001e4", "1.000e-0"][..], "1e0"),
            (&["-1500", "-1.5e3", "-0.00015e7"], "-15e2"),
            (&["0", "-0", "0.000", "0e17", "-0.0e-99"], "0e0"),
            (&["105.070", "105070e-3"], "10507e-2"),
            (&["9007199254740993"], "9007199254740993e0"),
            (&["1e400", "10e399"], "1e400"),
            (&["1e999999999", "0.1e1000000000"], "1e999999999"),
            (&["-1.5e-00999999999999999999"], "-15e-1000000000000000000"),
        ] {
            for spelling in spellings {
                assert_eq!(canonical(spelling).as_deref(), Some(written), "{spelling}");
            }
        }
    }

    #[test]
    fn other_spellings_are_no_numbers() {
        for text in ["", "-", "+1", "01", "00", "1.", ".5", "1e", "1e+", "1e-+2", "0x1", "NaN", "1e1000000000000000000"]
        {
            assert_eq!(canonical(text), None, "{text}");
        }
    }
}
