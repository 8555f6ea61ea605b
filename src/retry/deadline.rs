//! How long a client is willing to wait, and what that makes of a route's deadline.
//!
//! The words of RFC 7240 (`Prefer`), of gRPC, and of gateways before this one.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::retry::{digits, lines, split_unquoted};

/// Milliseconds; the second one is what Envoy says to whom it calls.
const IN_MILLISECONDS: [HeaderName; 2] =
    [HeaderName::from_static("x-request-timeout-ms"), HeaderName::from_static("x-envoy-expected-rq-timeout-ms")];
/// As gRPC over HTTP/2 writes it: `8` digits at most, and a unit.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const PREFER: HeaderName = HeaderName::from_static("prefer");
const RESPOND_ASYNC: &str = "respond-async";

/// How long a run may take: the least of the route's deadline and of what the caller states. Headers only ever shorten
/// it. Junk is ignored, and so is zero: it commonly means "no limit", and no call fits into it. Who would rather ask
/// later says by `wait` how long he waits, and not how long the call may take.
pub fn of_run(route: Duration, headers: &HeaderMap) -> Duration {
    let preferred = if prefers_async(headers) { None } else { preferred_wait(headers) };
    let stated = in_milliseconds(headers).chain(grpc_timeout(headers)).chain(preferred);
    stated.filter(|wait| !wait.is_zero()).fold(route, Duration::min)
}

/// `Prefer: respond-async`: how long the caller waits before he would rather be told where to ask; mostly not at all.
fn respond_async(headers: &HeaderMap) -> Option<Duration> {
    prefers_async(headers).then(|| preferred_wait(headers).unwrap_or_default())
}

/// The same, taken off with all that `Prefer` says about when to answer: it has been said to us. Other preferences stay.
pub fn take_async(headers: &mut HeaderMap) -> Option<Duration> {
    let wait = respond_async(headers)?;
    let is_other = |one: &&str| !is_async(one) && wait_value(one).is_none();
    let others: Vec<_> = preferences(headers).map(str::trim_ascii).filter(is_other).collect();
    let others = HeaderValue::from_str(&others.join(", ")).ok().filter(|others| !others.is_empty());
    headers.remove(&PREFER);
    headers.extend(others.map(|others| (PREFER, others)));
    Some(wait)
}

/// What is left, for an upstream that speaks gRPC: whole milliseconds, or seconds where these are too many digits.
pub fn grpc_timeout_text(left: Duration) -> String {
    const MOST: u128 = 99_999_999;
    match left.as_millis() {
        milliseconds if milliseconds <= MOST => format!("{milliseconds}m"),
        _ => format!("{}S", u128::from(left.as_secs()).min(MOST)),
    }
}

fn in_milliseconds(headers: &HeaderMap) -> impl Iterator<Item = Duration> {
    let stated = headers.iter().filter(|(name, _)| IN_MILLISECONDS.contains(name));
    let texts = stated.filter_map(|(_, line)| line.to_str().ok());
    texts.filter_map(|text| digits(text.trim_ascii())).map(Duration::from_millis)
}

fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let stated = lines(headers, &GRPC_TIMEOUT).next()?.trim_ascii();
    let (number, unit) = stated.split_at_checked(stated.len().checked_sub(1)?)?;
    let number = digits(number).filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

fn prefers_async(headers: &HeaderMap) -> bool {
    preferences(headers).any(is_async)
}

fn is_async(preference: &str) -> bool {
    let name = split_unquoted(preference, ';').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(RESPOND_ASYNC)
}

fn preferences(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    lines(headers, &PREFER).flat_map(|line| split_unquoted(line, ','))
}

/// RFC 7240: of a preference that is stated twice only the first counts.
fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let value = preferences(headers).find_map(wait_value)?;
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
            "return=representation; foo=\"wait=1, wait=2\", wait=5",
            "lenient=\"a \\\" , wait=9\", wait=5",
            "wait=5, wait=1",
        ] {
            assert_eq!(prefer(value), Duration::from_secs(5), "{value}");
        }
    }

    #[test]
    fn whoever_would_rather_ask_later_says_how_long_he_waits_and_not_how_long_it_may_take() {
        let asked = |value: &str| {
            let headers = HeaderMap::from_iter([(PREFER, HeaderValue::from_str(value).unwrap())]);
            assert_eq!(of_run(ROUTE, &headers), if respond_async(&headers).is_some() { ROUTE } else { prefer(value) });
            respond_async(&headers)
        };
        for value in ["respond-async", "Respond-Async", "wait=junk, respond-async;strict", "respond-async, wait=0"] {
            assert_eq!(asked(value), Some(Duration::ZERO), "{value}");
        }
        assert_eq!(asked("respond-async, wait=5"), Some(Duration::from_secs(5)));
        for value in ["wait=5", "respond-asynchronously", "foo=\"respond-async\"", "respond-async-not", ""] {
            assert_eq!(asked(value), None, "{value}");
        }
        let mut headers = HeaderMap::new();
        headers.append(PREFER, HeaderValue::from_static("respond-async, return=minimal; a=\"b,c\""));
        headers.append(PREFER, HeaderValue::from_static("wait=10"));
        take_async(&mut headers);
        assert_eq!(headers.get_all(PREFER).iter().collect::<Vec<_>>(), ["return=minimal; a=\"b,c\""]);
        let mut headers = HeaderMap::from_iter([(PREFER, HeaderValue::from_static("respond-async"))]);
        take_async(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn grpc_and_other_gateways_state_a_timeout_of_their_own() {
        let grpc = |value: &str| run(&[("grpc-timeout", value)]);
        for (value, milliseconds) in [("5S", 5000), ("1M", 60_000), ("250m", 250), ("7000000u", 7000), ("9000000n", 9)]
        {
            assert_eq!(grpc(value), Duration::from_millis(milliseconds), "{value}");
        }
        for value in ["1H", "99999999H", "5", "S", "", "5s", "-5S", "+5S", "1.5S", "123456789m", "0S", "5é"] {
            assert_eq!(grpc(value), ROUTE, "{value}");
        }
        assert_eq!(run(&[("x-envoy-expected-rq-timeout-ms", "1200")]), Duration::from_millis(1200));
        assert_eq!(grpc_timeout_text(Duration::from_millis(1500)), "1500m");
        assert_eq!(grpc_timeout_text(Duration::from_secs(200_000)), "200000S");
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
            for (name, value) in [(IN_MILLISECONDS[0].clone(), first), (PREFER, second)] {
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
