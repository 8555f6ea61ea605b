//! What a caller says of its own earlier tries: SDKs and gateways count them in a line of their own.

use http::{HeaderMap, HeaderName};

use crate::retry::{digits, lines};

/// Retries so far; none on the first try.
const RETRIES: [HeaderName; 2] =
    [HeaderName::from_static("x-stainless-retry-count"), HeaderName::from_static("grpc-previous-rpc-attempts")];
/// Tries, the present one included.
const TRIES: HeaderName = HeaderName::from_static("x-envoy-attempt-count");
/// `attempt=2; max=3`.
const AMZ: HeaderName = HeaderName::from_static("amz-sdk-request");

/// How often the caller has tried before, as far as it says so.
pub fn earlier_tries(headers: &HeaderMap) -> u64 {
    let retries = RETRIES.into_iter().filter_map(|name| number(headers, &name));
    let tries = number(headers, &TRIES).into_iter().chain(amz_attempt(headers));
    retries.chain(tries.map(|tries| tries.saturating_sub(1))).max().unwrap_or(0)
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    digits(lines(headers, name).next()?.trim_ascii())
}

fn amz_attempt(headers: &HeaderMap) -> Option<u64> {
    let pairs = lines(headers, &AMZ).next()?.split(';');
    digits(pairs.filter_map(|pair| pair.trim_ascii().strip_prefix("attempt=")).next()?.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn all_of_them_are_read_and_the_largest_counts() {
        let said = |lines: &[(&'static str, &str)]| {
            let line = |(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
            };
            earlier_tries(&lines.iter().map(line).collect())
        };
        assert_eq!(said(&[]), 0);
        assert_eq!(said(&[("x-stainless-retry-count", "0"), ("x-envoy-attempt-count", "1")]), 0);
        assert_eq!(said(&[("x-stainless-retry-count", "2")]), 2);
        assert_eq!(said(&[("grpc-previous-rpc-attempts", "1"), ("x-envoy-attempt-count", "4")]), 3);
        assert_eq!(said(&[("amz-sdk-request", "ttl=20260101T000000Z; attempt=2; max=3")]), 1);
        for junk in ["", "-1", "+1", "two", "1.5", "é"] {
            assert_eq!(said(&[("x-stainless-retry-count", junk), ("amz-sdk-request", junk)]), 0, "{junk}");
        }
        assert_eq!(said(&[("x-envoy-attempt-count", "0")]), 0);
    }
}
