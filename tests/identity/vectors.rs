//! Runs `tests/vectors/*.json`, in Rust and in another language.

use std::path::{Path, PathBuf};
use std::process::Command;

use http::{HeaderMap, HeaderName, HeaderValue};
use oncegate::operation::fingerprint::Asked;
use oncegate::operation::key::{
    Call, ClientKey, Ingredient, KeyError, KeyFormat, Missing, PayloadIn, bucket_of_stamped, derive, derived_array,
    forwarded, stamped,
};
use oncegate::operation::payload::{Compare, Ignored, Payload};
use oncegate::operation::{Fingerprint, Scope};
use serde::Deserialize;
use serde_json::{Value, json};

#[test]
fn another_language_makes_the_same_of_every_vector() {
    let script = folder().join("reproduce.py");
    let run = Command::new("python3").arg("-B").arg(&script).output().expect("python3 is needed to run this test");
    let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
}

#[test]
fn client_keys() {
    check("client_keys.json", |given| {
        let name: HeaderName = given.header.as_deref().unwrap_or("idempotency-key").parse().unwrap();
        match ClientKey::parse(&given.header_map(), &name) {
            Ok(key) => json!({ "key": key.map(|key| key.as_str().to_owned()) }),
            Err(refused) => json!({ "refused": word(&refused) }),
        }
    });
}

#[test]
fn payloads() {
    check("payloads.json", |given| {
        let headers = given.header_map();
        let payload = given.payload(&headers);
        json!({
            "kind": payload.kind(),
            "canonical": text(payload.canonical(&given.ignore())),
            "digest": hex(&payload.digest(&given.ignore())),
        })
    });
}

#[test]
fn derived_keys() {
    check("derived_keys.json", |given| {
        let headers = given.header_map();
        let payload = given.payload(&headers);
        let digest = payload.digest(&given.ignore());
        let call = Call {
            caller: &given.caller,
            route: &given.route,
            session: given.session.as_deref(),
            step: given.step.as_deref(),
            method: &given.method,
            target: &given.target,
            headers: &headers,
            payload: &payload,
            digest: &digest,
        };
        let from: Vec<Ingredient> = given.from.iter().map(|one| one.parse().unwrap()).collect();
        let payload_in = match given.payload_in.as_deref() {
            Some("fingerprint") => PayloadIn::FingerprintOnly,
            _ => PayloadIn::Key,
        };
        match derive(&call, &from, payload_in) {
            Ok(key) => {
                let mut found = spellings(|format| format.text(&key));
                found["array"] = text(derived_array(&call, &from, payload_in).unwrap());
                found
            }
            Err(Missing::StepOfSession) => json!({ "missing": "step-of-session" }),
            Err(Missing::Ingredient) => json!({ "missing": "ingredient" }),
        }
    });
}

#[test]
fn stamped_keys() {
    check("stamped_keys.json", |given| {
        let random = bytes_of_hex(&given.random).try_into().unwrap();
        spellings(|format| {
            let key = stamped(random, given.bucket, format);
            assert_eq!(bucket_of_stamped(&key), Some(given.bucket));
            key
        })
    });
}

#[test]
fn forwarded_keys() {
    check("forwarded_keys.json", |given| {
        let scope = given.scope();
        let mut found = spellings(|format| forwarded(&scope, &given.route, &given.key, format));
        found["scope"] = json!(hex(scope.digest()));
        found
    });
}

#[test]
fn fingerprints() {
    check("fingerprints.json", |given| {
        let headers = given.header_map();
        let identity: Vec<HeaderName> = given.identity.iter().map(|name| name.parse().unwrap()).collect();
        let fingerprint = Fingerprint::of(&Asked {
            method: &given.method,
            target: &given.target,
            headers: &headers,
            identity: &identity,
            payload: &given.payload(&headers).digest(&given.ignore()),
        });
        json!({
            "digest": hex(&fingerprint.digest),
            "alike": hex(&fingerprint.alike(&given.scope(), &given.route)),
        })
    });
}

/// One entry of a file: what is given, and what has to come out.
#[derive(Deserialize)]
struct Vector {
    name: String,
    given: Given,
    expect: Value,
}

/// Everything that any of the files gives.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Given {
    header: Option<String>,
    headers: Vec<(String, Octets)>,
    compare: Option<String>,
    body: Octets,
    ignore: Vec<String>,
    from: Vec<String>,
    payload_in: Option<String>,
    caller: String,
    route: String,
    session: Option<String>,
    step: Option<String>,
    method: String,
    target: String,
    identity: Vec<String>,
    scope: Option<ScopeOf>,
    key: String,
    random: String,
    bucket: u8,
}

#[derive(Deserialize)]
struct ScopeOf {
    kind: String,
    value: String,
}

/// A string stands for its UTF-8, `{"hex": ...}` for any bytes.
#[derive(Deserialize)]
#[serde(untagged)]
enum Octets {
    Text(String),
    Hex { hex: String },
}

impl Default for Octets {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl Octets {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.clone().into_bytes(),
            Self::Hex { hex } => bytes_of_hex(hex),
        }
    }
}

impl Given {
    fn header_map(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_bytes(&value.bytes()).unwrap());
        }
        headers
    }

    /// The body lives as long as the test.
    fn payload(&self, headers: &HeaderMap) -> Payload<'static> {
        let compare = match self.compare.as_deref() {
            None | Some("auto") => Compare::Auto,
            Some("json") => Compare::Json,
            Some("form") => Compare::Form,
            Some("multipart") => Compare::Multipart,
            Some("bytes") => Compare::Bytes,
            Some(other) => panic!("no comparison is called {other}"),
        };
        Payload::read(compare, headers, self.body.bytes().leak())
    }

    fn ignore(&self) -> Vec<Ignored> {
        self.ignore.iter().map(|one| one.parse().unwrap()).collect()
    }

    fn scope(&self) -> Scope {
        let scope = self.scope.as_ref().unwrap();
        Scope::named(&scope.kind, &scope.value)
    }
}

fn check(file: &str, found: impl Fn(&Given) -> Value) {
    let written = std::fs::read_to_string(folder().join(file)).unwrap();
    let vectors: Vec<Vector> = serde_json::from_str(&written).unwrap();
    assert!(!vectors.is_empty());
    for vector in vectors {
        assert_eq!(found(&vector.given), vector.expect, "{file}: {}", vector.name);
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

fn spellings(key: impl Fn(KeyFormat) -> String) -> Value {
    json!({ "hex": key(KeyFormat::Hex), "base64url": key(KeyFormat::Base64Url), "uuid": key(KeyFormat::Uuid) })
}

fn word(refused: &KeyError) -> &'static str {
    match refused {
        KeyError::SeveralLines => "several-lines",
        KeyError::Twin { .. } => "twin",
        KeyError::Empty => "empty",
        KeyError::TooLong { .. } => "too-long",
        KeyError::List => "list",
        KeyError::Parameters => "parameters",
        KeyError::NotVisible { .. } => "not-visible",
        KeyError::Quoting => "quoting",
    }
}

fn text(bytes: Vec<u8>) -> Value {
    match String::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(other) => json!({ "hex": hex(other.as_bytes()) }),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of_hex(text: &str) -> Vec<u8> {
    let pairs = (0..text.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
