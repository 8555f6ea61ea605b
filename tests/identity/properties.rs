//! What holds for all inputs.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use oncegate::operation::Fingerprint;
use oncegate::operation::fingerprint::Asked;
use oncegate::operation::key::{Call, ClientKey, Ingredient, PayloadIn, bucket_of_stamped, derive, derived_array};
use oncegate::operation::payload::{Compare, Ignored, Payload, Pointer};
use proptest::prelude::*;

use super::document::document;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_key_is_read_back_from_either_spelling(key in "[!-~]{1,120}") {
        let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
        prop_assert_eq!(client_key(quoted.as_bytes()), Some(key.clone()));
        let is_bare = !key.contains([',', ';']) && !key.starts_with('"');
        prop_assert_eq!(client_key(key.as_bytes()) == Some(key), is_bare);
    }

    #[test]
    fn no_header_breaks_the_reading_of_keys(value in proptest::collection::vec(any::<u8>(), 0..300), text in ".*") {
        if let Some(key) = client_key(&value) {
            prop_assert!((1..=255).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()));
        }
        prop_assert!(bucket_of_stamped(&text).is_none_or(|_| [36, 43, 64].contains(&text.len())));
    }

    #[test]
    fn two_calls_share_a_key_only_if_they_are_the_same(one in tuple(), other in tuple()) {
        prop_assert_eq!(array(&one) == array(&other), one == other);
        prop_assert_eq!(key(&one) == key(&other), one == other);
    }

    #[test]
    fn parts_of_a_key_do_not_run_together(text in r#"[a",\\]{0,12}"#, one in cuts(), other in cuts()) {
        let [one, other] = [one, other].map(|cuts| cut(&text, cuts));
        prop_assert_eq!(key(&one) == key(&other), one == other);
    }

    #[test]
    fn one_byte_anywhere_changes_the_fingerprint(
        body in proptest::collection::vec(any::<u8>(), 1..200),
        target in "/[a-z?&=]{1,20}",
        place in any::<prop::sample::Index>(),
        change in 1u8..,
    ) {
        let before = fingerprint("POST", &target, Compare::Bytes, &body);
        let mut changed = body.clone();
        changed[place.index(body.len())] ^= change;
        prop_assert_ne!(before, fingerprint("POST", &target, Compare::Bytes, &changed));
        prop_assert_ne!(before, fingerprint("PUT", &target, Compare::Bytes, &body));
        let mut longer = target.clone();
        longer.insert(1 + place.index(target.len()), 'z');
        prop_assert_ne!(before, fingerprint("POST", &longer, Compare::Bytes, &body));
    }

    #[test]
    fn json_is_the_same_in_every_spelling(document in document(), other in document(), seed in any::<u64>()) {
        let plain = document.spell(0);
        let spelled = document.spell(seed);
        prop_assert_eq!(Payload::read(Compare::Json, &HeaderMap::new(), plain.as_bytes()).kind(), "json");
        prop_assert_eq!(digest(&plain), digest(&spelled), "{} {}", plain, spelled);
        prop_assert_eq!(digest(&plain) == digest(&other.spell(seed)), document == other);
    }

    #[test]
    fn a_canonical_form_is_its_own(document in document()) {
        let once = canonical(Compare::Json, document.spell(1).as_bytes());
        prop_assert_eq!(canonical(Compare::Json, &once), once);
    }

    #[test]
    fn a_decimal_keeps_its_value_when_its_point_moves(digits in "[1-9][0-9]{0,30}", shift in 0usize..40, exponent in -400i64..400) {
        let whole = format!("{digits}e{exponent}");
        let padded = format!("{digits:0>width$}", width = shift + 1);
        let (before, after) = padded.split_at(padded.len() - shift);
        let before = before.trim_start_matches('0');
        let before = if before.is_empty() { "0" } else { before };
        let point = if after.is_empty() { "" } else { "." };
        let moved = format!("{before}{point}{after}E{}", exponent + i64::try_from(shift).unwrap());
        prop_assert_eq!(canonical(Compare::Json, whole.as_bytes()), canonical(Compare::Json, moved.as_bytes()));
    }

    #[test]
    fn no_body_breaks_a_reader(body in body(), compare in comparison(), content_type in "[ -~]{0,40}", pointer in "/[a-z0-9~/]{0,8}") {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(&content_type).unwrap());
        let payload = Payload::read(compare, &headers, &body);
        if payload.kind() == "bytes" {
            prop_assert_eq!(payload.canonical(&[]), body.clone());
        }
        if let Ok(pointer) = pointer.parse::<Pointer>() {
            let ignored = [Ignored::Pointer(pointer.clone()), Ignored::Field("a".to_owned())];
            prop_assert_eq!(payload.digest(&ignored), payload.digest(&ignored));
            prop_assert!(payload.member(&pointer).is_none_or(|text| !text.is_empty()));
        }
        prop_assert!(payload.field("a").is_none_or(|values| !values.is_empty()));
    }

    #[test]
    fn multipart_is_the_same_under_every_boundary(
        parts in proptest::collection::vec(("[a-z]{1,5}", proptest::collection::vec(any::<u8>(), 0..40)), 0..4),
        one in "one[a-z]{10,20}",
        other in "two[a-z]{10,20}",
    ) {
        let [one, other] = [one, other].map(|boundary| multipart(&boundary, &parts));
        prop_assert_eq!(one.0, "multipart");
        prop_assert_eq!(one, other);
    }

    #[test]
    fn an_encoded_body_is_bytes(body in body(), compare in comparison()) {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("br"));
        prop_assert_eq!(Payload::read(compare, &headers, &body).kind(), "bytes");
    }
}

#[test]
fn a_deep_or_long_body_neither_overflows_nor_takes_long() {
    for body in ["[".repeat(1 << 20), "{\"a\":".repeat(1 << 18), "[[],".repeat(1 << 18)] {
        assert_eq!(canonical(Compare::Json, body.as_bytes()), body.as_bytes());
    }
    for (body, written) in [
        ("1".repeat(1 << 20), "1".repeat(1 << 20) + "e0"),
        (format!("[{}1]", "1,".repeat(1 << 18)), format!("[{}1e0]", "1e0,".repeat(1 << 18))),
        (format!("\"{}\"", "\\u0041".repeat(1 << 18)), format!("\"{}\"", "A".repeat(1 << 18))),
        (format!("[{}0]", " ".repeat(1 << 20)), "[0e0]".to_owned()),
    ] {
        assert!(canonical(Compare::Json, body.as_bytes()) == written.as_bytes(), "{:.40}", body);
    }
}

/// The parts of a derived key, from an alphabet that tries to break out of its place.
#[derive(Clone, Debug, PartialEq)]
struct Tuple {
    caller: String,
    route: String,
    session: Option<String>,
    step: Option<String>,
    method: String,
    target: String,
    tenant: Option<String>,
    body: Vec<u8>,
}

fn tuple() -> impl Strategy<Value = Tuple> {
    let part = || r#"[a",\\\[\]\x00é]{0,2}|null"#;
    let named = (part(), part(), proptest::option::of(part()), proptest::option::of(part()));
    let asked = (part(), part(), proptest::option::of("[a\",]{1,2}"), proptest::collection::vec(0u8..2, 0..2));
    (named, asked).prop_map(|((caller, route, session, step), (method, target, tenant, body))| Tuple {
        caller,
        route,
        session,
        step,
        method,
        target,
        tenant,
        body,
    })
}

fn cuts() -> impl Strategy<Value = [usize; 5]> {
    [0usize..13, 0..13, 0..13, 0..13, 0..13]
}

/// The six texts of a call from one text, cut at these places.
fn cut(text: &str, mut cuts: [usize; 5]) -> Tuple {
    cuts.sort_unstable();
    let [a, b, c, d, e] = cuts.map(|place| place.min(text.len()));
    Tuple {
        caller: text[..a].to_owned(),
        route: text[a..b].to_owned(),
        session: Some(text[b..c].to_owned()),
        step: Some(text[c..d].to_owned()),
        method: text[d..e].to_owned(),
        target: text[e..].to_owned(),
        tenant: None,
        body: Vec::new(),
    }
}

impl Tuple {
    /// Runs `make` with the call of these parts and the rule that names those of them that are there.
    fn with<T>(&self, make: impl FnOnce(&Call<'_>, &[Ingredient]) -> T) -> T {
        let tenant = HeaderName::from_static("x-tenant");
        let headers = self.tenant.iter().map(|value| (tenant.clone(), value.parse().unwrap())).collect();
        let payload = Payload::read(Compare::Bytes, &headers, &self.body);
        let call = Call {
            caller: &self.caller,
            route: &self.route,
            session: self.session.as_deref(),
            step: self.step.as_deref(),
            method: &self.method,
            target: &self.target,
            headers: &headers,
            payload: &payload,
            digest: &payload.digest(&[]),
        };
        let mut from = vec![Ingredient::Payload];
        from.extend(self.session.is_some().then_some(Ingredient::Session));
        from.extend(self.step.is_some().then_some(Ingredient::Step));
        from.extend(self.tenant.is_some().then_some(Ingredient::Header(tenant)));
        make(&call, &from)
    }
}

fn key(tuple: &Tuple) -> [u8; 32] {
    tuple.with(|call, from| derive(call, from, PayloadIn::Key)).unwrap()
}

fn array(tuple: &Tuple) -> Vec<u8> {
    tuple.with(|call, from| derived_array(call, from, PayloadIn::Key)).unwrap()
}

fn client_key(line: &[u8]) -> Option<String> {
    let headers = HeaderMap::from_iter([(KEY, HeaderValue::from_bytes(line).ok()?)]);
    ClientKey::parse(&headers, &KEY).ok().flatten().map(|key| key.as_str().to_owned())
}

fn fingerprint(method: &str, target: &str, compare: Compare, body: &[u8]) -> Fingerprint {
    let headers = HeaderMap::new();
    let payload = &Payload::read(compare, &headers, body).digest(&[]);
    Fingerprint::of(&Asked { method, target, headers: &headers, identity: &[], payload })
}

fn digest(document: &str) -> [u8; 32] {
    Payload::read(Compare::Json, &HeaderMap::new(), document.as_bytes()).digest(&[])
}

fn canonical(compare: Compare, body: &[u8]) -> Vec<u8> {
    Payload::read(compare, &HeaderMap::new(), body).canonical(&[])
}

fn multipart(boundary: &str, parts: &[(String, Vec<u8>)]) -> (&'static str, Vec<u8>) {
    let mut body = Vec::new();
    for (name, value) in parts {
        let head = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(value);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    let content_type = format!("multipart/form-data; boundary={boundary}");
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type.parse().unwrap())]);
    let payload = Payload::read(Compare::Auto, &headers, &body);
    (payload.kind(), payload.canonical(&[]))
}

fn comparison() -> impl Strategy<Value = Compare> {
    prop::sample::select(vec![Compare::Auto, Compare::Json, Compare::Form, Compare::Multipart, Compare::Bytes])
}

/// Arbitrary bytes, and texts made of what the readers look for.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop::sample::select(vec![
        "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\\", "\\u", "\\ud800", "d800", "0", "1", "-", ".", "e", "1e9",
        "true", " ", "é", "a=", "&", "%", "%4", "%41", "+", "[]", "\r\n", "--", "--b", "--b--", "\n", "name:",
    ]);
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..100),
        proptest::collection::vec(fragment, 0..30).prop_map(|fragments| fragments.concat().into_bytes()),
    ]
}
