//! What a caller says of its own earlier tries: SDKs and gateways count them in a line of their own.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::retry::digits;

/// How often the caller has tried before, as far as it says so.
pub fn earlier_tries(headers: &HeaderMap) -> u64 {
    headers.iter().filter_map(|(name, value)| told_by(name, value)).max().unwrap_or(0)
}

fn told_by(name: &HeaderName, value: &HeaderValue) -> Option<u64> {
    match name.as_str() {
        "x-stainless-retry-count" | "grpc-previous-rpc-attempts" => number(value),
        // The present try is among these.
        "x-envoy-attempt-count" => number(value)?.checked_sub(1),
        "amz-sdk-request" => amz_attempt(value)?.checked_sub(1),
        _ => None,
    }
}

fn number(value: &HeaderValue) -> Option<u64> {
    digits(value.to_str().ok()?.trim_ascii())
}

/// `attempt=2; max=3`.
fn amz_attempt(value: &HeaderValue) -> Option<u64> {
    let pairs = value.to_str().ok()?.split(';');
    digits(pairs.filter_map(|pair| pair.trim_ascii().strip_prefix("attempt=")).next()?.trim_ascii())
}

#[cfg(test)]
mod tests {
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
