//! How long a client is willing to wait, and what that makes of a route's deadline.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::retry::{digits, lines};

const REQUEST_TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout-ms");
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// How long a run may take: the least of the route's deadline, `X-Request-Timeout-Ms` and `Prefer: wait=N`. Headers only
/// ever shorten it. Junk is ignored, and so is zero: it commonly means "no limit", and no call fits into it.
pub fn of_run(route: Duration, headers: &HeaderMap) -> Duration {
    let stated = request_timeout(headers).into_iter().chain(preferred_wait(headers));
    stated.filter(|wait| !wait.is_zero()).fold(route, Duration::min)
}

/// Of several lines the shortest that is not zero.
fn request_timeout(headers: &HeaderMap) -> Option<Duration> {
    let values = lines(headers, &REQUEST_TIMEOUT).filter_map(|line| digits(line.trim_ascii()));
    values.filter(|value| *value > 0).min().map(Duration::from_millis)
}

/// RFC 7240: of a preference that is stated twice only the first counts.
fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let mut preferences = lines(headers, &PREFER).flat_map(|line| split_unquoted(line, ','));
    let value = preferences.find_map(wait_value)?;
    digits(unquoted(value)).map(Duration::from_secs)
}

/// The value of a `wait` preference, `Some("")` if it has none; `None` for every other preference.
fn wait_value(preference: &str) -> Option<&str> {
    let without_parameters = split_unquoted(preference, ';').next()?;
    let (name, value) = without_parameters.split_once('=').unwrap_or((without_parameters, ""));
    name.trim_ascii().eq_ignore_ascii_case("wait").then(|| value.trim_ascii())
}

fn unquoted(word: &str) -> &str {
    word.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(word)
}

/// Pieces between separators that stand outside quoted strings (RFC 9110, section 5.6.4).
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |character| {
        let literal = std::mem::take(&mut escaped);
        escaped = quoted && !literal && character == '\\';
        quoted ^= character == '"' && !literal;
        character == separator && !quoted
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const ROUTE: Duration = Duration::from_secs(120);

    fn run(lines: &[(&'static str, &str)]) -> Duration {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        of_run(ROUTE, &headers)
    }

    fn timeout(value: &str) -> Duration {
        run(&[("x-request-timeout-ms", value)])
    }

    fn prefer(value: &str) -> Duration {
        run(&[("prefer", value)])
    }

    #[test]
    fn the_shortest_of_all_counts_and_nothing_lengthens_it() {
        assert_eq!(run(&[]), ROUTE);
        assert_eq!(timeout("1500"), Duration::from_millis(1500));
        assert_eq!(timeout("99999999"), ROUTE);
        assert_eq!(timeout("99999999999999999999999"), ROUTE);
        assert_eq!(prefer("wait=600"), ROUTE);
        assert_eq!(run(&[("prefer", "wait=5"), ("x-request-timeout-ms", "3000")]), Duration::from_secs(3));
        assert_eq!(run(&[("prefer", "wait=2"), ("x-request-timeout-ms", "3000")]), Duration::from_secs(2));
        assert_eq!(run(&[("x-request-timeout-ms", "9000"), ("x-request-timeout-ms", "4000")]), Duration::from_secs(4));
    }

    #[test]
    fn junk_and_zero_are_ignored() {
        for value in ["", " ", "-1", "+5", "1.5", "5s", "1e3", "²", "0", "00"] {
            assert_eq!(timeout(value), ROUTE, "{value}");
        }
        for value in
            ["", "wait", "wait=", "wait=x", "wait=-1", "wait=1.5", "wait=0", "await=5", "wait=\"5", "=5", ",;,"]
        {
            assert_eq!(prefer(value), ROUTE, "{value}");
        }
        assert_eq!(run(&[("x-request-timeout-ms", "0"), ("x-request-timeout-ms", "4000")]), Duration::from_secs(4));
    }

    #[test]
    fn wait_is_found_among_other_preferences() {
        for value in [
            "wait=5",
            "Wait = 5",
            "wait=\"5\"",
            "respond-async, wait=5",
            "respond-async,wait=5;strict",
            "return=representation; foo=\"wait=1, wait=2\", wait=5",
            "lenient=\"a \\\" , wait=9\", wait=5",
            "wait=5, wait=1",
        ] {
            assert_eq!(prefer(value), Duration::from_secs(5), "{value}");
        }
        assert_eq!(run(&[("prefer", "respond-async"), ("prefer", "wait=5")]), Duration::from_secs(5));
    }

    #[test]
    fn only_the_first_statement_of_a_preference_counts() {
        assert_eq!(prefer("wait=junk, wait=5"), ROUTE);
        assert_eq!(run(&[("prefer", "wait=7"), ("prefer", "wait=5")]), Duration::from_secs(7));
    }

    proptest! {
        #[test]
        fn no_bytes_break_it_or_lengthen_the_run(first: Vec<u8>, second: Vec<u8>) {
            let mut headers = HeaderMap::new();
            for (name, value) in [(REQUEST_TIMEOUT, first), (PREFER, second)] {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.append(name, value);
                }
            }
            prop_assert!(of_run(ROUTE, &headers) <= ROUTE);
        }

        #[test]
        fn no_text_near_a_preference_breaks_it(value in "(wait|a)?[ =]{0,2}[\"\\\\0-9,;]{0,20}(, wait=[0-9]{1,25})?") {
            let stated = prefer(&value);
            prop_assert!(stated <= ROUTE && !stated.is_zero());
        }
    }
}
