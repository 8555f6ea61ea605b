//! Keys derived from what a call is: the same step of the same session has the same key, whoever asks and how often.
//!
//! The key is the SHA-256 of a canonical JSON array, written as `payload::json` writes it:
//! `["oncegate-1", caller, route, session, step, method, target, payload]`. All elements are strings; `session`, `step`
//! and `payload` (the payload's digest in hexadecimal) are `null` where `from` does not name them. Each other ingredient
//! adds `[ingredient, value]` in the order of `from`, the ingredient as `gateway.toml` spells it (a header's name in
//! lower case), its value
//! - for `header:` the array of the header's lines, each byte one code point (ISO 8859-1);
//! - for `json:` the canonical value itself;
//! - for `form:` and `query:` the array of the field's values, decoded and then percent-encoded in one way.

use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use super::made::hex;
use crate::operation::payload::json::write_string;
use crate::operation::payload::{Payload, Pointer, Sink, form};

/// A part of a derived key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ingredient {
    Session,
    Step,
    Payload,
    Header(HeaderName),
    /// A place in a JSON body.
    Json(Pointer),
    Form(String),
    Query(String),
}

impl Ingredient {
    /// The header that it is read from, if it is one.
    pub fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) => Some(name),
            Self::Session | Self::Step | Self::Payload | Self::Json(_) | Self::Form(_) | Self::Query(_) => None,
        }
    }
}

impl fmt::Display for Ingredient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session => f.write_str("session"),
            Self::Step => f.write_str("step"),
            Self::Payload => f.write_str("payload"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Form(field) => write!(f, "form:{field}"),
            Self::Query(name) => write!(f, "query:{name}"),
        }
    }
}

/// The text names no ingredient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an ingredient is \"session\", \"step\", \"payload\", \"header:NAME\", \"json:/pointer\", \"form:field\" or \"query:name\""
)]
pub struct NotAnIngredient;

impl FromStr for Ingredient {
    type Err = NotAnIngredient;

    fn from_str(text: &str) -> Result<Self, NotAnIngredient> {
        match text.split_once(':') {
            None if text == "session" => Ok(Self::Session),
            None if text == "step" => Ok(Self::Step),
            None if text == "payload" => Ok(Self::Payload),
            Some(("header", name)) => name.parse().map(Self::Header).map_err(|_| NotAnIngredient),
            Some(("json", pointer)) => pointer.parse().map(Self::Json).map_err(|_| NotAnIngredient),
            Some(("form", field)) if !field.is_empty() => Ok(Self::Form(field.to_owned())),
            Some(("query", name)) if !name.is_empty() => Ok(Self::Query(name.to_owned())),
            Some(_) | None => Err(NotAnIngredient),
        }
    }
}

/// Where the payload of a call counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadIn {
    /// Another payload is another operation.
    Key,
    /// Another payload for the same session and step meets the record of the first one.
    FingerprintOnly,
}

/// What a key is derived from.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Name of the caller; empty where the scope has none.
    pub caller: &'a str,
    pub route: &'a str,
    pub session: Option<&'a str>,
    pub step: Option<&'a str>,
    pub method: &'a str,
    /// Path and query as the client sent them.
    pub target: &'a str,
    pub headers: &'a HeaderMap,
    pub payload: &'a Payload<'a>,
    /// `Payload::digest` of it.
    pub digest: &'a [u8; 32],
}

/// Why a call has no derived key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It names its session but not its step, though `from` asks for both: most likely an agent that was set up halfway.
    StepOfSession,
    /// It lacks a part that `from` names, or `from` names none.
    Ingredient,
}

/// The one non-empty line of `name` as text, for session and step. Several lines name nothing.
pub fn sole_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut lines = headers.get_all(name).iter();
    let only = std::str::from_utf8(lines.next()?.as_bytes()).ok()?;
    (lines.next().is_none() && !only.is_empty()).then_some(only)
}

/// The 32 bytes of the key made from what `from` names, before they are spelled in a `KeyFormat`. The payload leaves the
/// key only where session and step are in it: alone they name the call.
///
/// # Errors
/// The call lacks a part, so the next rule for keys applies.
pub fn derive(call: &Call<'_>, from: &[Ingredient], payload_in: PayloadIn) -> Result<[u8; 32], Missing> {
    derived_array(call, from, payload_in).map(|array| Sha256::digest(array).into())
}

/// The canonical array whose hash is the key, for whoever wants to see what a key is made of.
///
/// # Errors
/// As for `derive`.
pub fn derived_array(call: &Call<'_>, from: &[Ingredient], payload_in: PayloadIn) -> Result<Vec<u8>, Missing> {
    if from.is_empty() {
        return Err(Missing::Ingredient);
    }
    let session = call.session_in(from)?;
    let step = call.step_in(from)?;
    let named = session.is_some() && step.is_some();
    let payload_counts = from.contains(&Ingredient::Payload) && !(named && payload_in == PayloadIn::FingerprintOnly);
    let payload = payload_counts.then(|| hex(call.digest));
    let mut array = b"[\"oncegate-1\"".to_vec();
    for part in
        [Some(call.caller), Some(call.route), session, step, Some(call.method), Some(call.target), payload.as_deref()]
    {
        array.put(b",");
        write_part(part, &mut array);
    }
    for ingredient in from {
        if let Some(value) = call.further_value(ingredient)? {
            array.put(b",[");
            write_string(&ingredient.to_string(), &mut array);
            array.put(b",");
            array.put(&value);
            array.put(b"]");
        }
    }
    array.put(b"]");
    Ok(array)
}

impl<'a> Call<'a> {
    fn session_in(&self, from: &[Ingredient]) -> Result<Option<&'a str>, Missing> {
        if !from.contains(&Ingredient::Session) {
            return Ok(None);
        }
        self.session.map(Some).ok_or(Missing::Ingredient)
    }

    fn step_in(&self, from: &[Ingredient]) -> Result<Option<&'a str>, Missing> {
        if !from.contains(&Ingredient::Step) {
            return Ok(None);
        }
        let halfway = from.contains(&Ingredient::Session) && self.session.is_some();
        self.step.map(Some).ok_or(if halfway { Missing::StepOfSession } else { Missing::Ingredient })
    }

    /// The canonical value of an ingredient that has no place of its own in the array.
    fn further_value(&self, ingredient: &Ingredient) -> Result<Option<Vec<u8>>, Missing> {
        let value = match ingredient {
            Ingredient::Session | Ingredient::Step | Ingredient::Payload => return Ok(None),
            Ingredient::Header(name) => self.header(name),
            Ingredient::Json(pointer) => self.payload.member(pointer),
            Ingredient::Form(field) => self.payload.field(field).map(|values| strings(&values)),
            Ingredient::Query(name) => self.query(name).map(|values| strings(&values)),
        };
        value.map(Some).ok_or(Missing::Ingredient)
    }

    fn header(&self, name: &HeaderName) -> Option<Vec<u8>> {
        let lines = self.headers.get_all(name).iter();
        let lines: Vec<String> = lines.map(|line| line.as_bytes().iter().copied().map(char::from).collect()).collect();
        lines.iter().any(|line| !line.is_empty()).then(|| strings(&lines))
    }

    fn query(&self, name: &str) -> Option<Vec<String>> {
        let (_, query) = self.target.split_once('?')?;
        form::read(query.as_bytes())?.values(name)
    }
}

fn write_part(part: Option<&str>, array: &mut Vec<u8>) {
    match part {
        Some(text) => write_string(text, array),
        None => array.put(b"null"),
    }
}

fn strings(texts: &[String]) -> Vec<u8> {
    let mut array = Vec::new();
    let mut open = &b"["[..];
    for text in texts {
        array.put(std::mem::replace(&mut open, b","));
        write_string(text, &mut array);
    }
    array.put(b"]");
    array
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::payload::Compare;

    /// The key of a call with this place, body and target; the headers name a tenant.
    fn key(from: &[&str], (session, step): (Option<&str>, Option<&str>), body: &str) -> Result<[u8; 32], Missing> {
        let headers = HeaderMap::from_iter([("x-tenant".parse().unwrap(), "t-1".parse().unwrap())]);
        let payload = Payload::read(Compare::Json, &headers, body.as_bytes());
        let call = Call {
            caller: "",
            route: "payments",
            session,
            step,
            method: "POST",
            target: "/charges?account=7&empty=",
            headers: &headers,
            payload: &payload,
            digest: &payload.digest(&[]),
        };
        let from: Vec<Ingredient> = from.iter().map(|text| text.parse().unwrap()).collect();
        derive(&call, &from, PayloadIn::FingerprintOnly)
    }

    const PLACE: (Option<&str>, Option<&str>) = (Some("s"), Some("3"));

    #[test]
    fn a_session_without_its_step_is_told_apart() {
        let default = ["session", "step", "payload"];
        assert_eq!(key(&default, (Some("s"), None), "{}"), Err(Missing::StepOfSession));
        assert_eq!(key(&default, (None, Some("3")), "{}"), Err(Missing::Ingredient));
        assert_eq!(key(&["step"], (Some("s"), None), "{}"), Err(Missing::Ingredient));
        assert!(key(&["session"], (Some("s"), None), "{}").is_ok());
    }

    #[test]
    fn the_payload_leaves_the_key_only_where_session_and_step_name_the_call() {
        let named = ["session", "step", "payload"];
        assert_eq!(key(&named, PLACE, "{}"), key(&named, PLACE, "[]"));
        for from in [&["payload"][..], &["session", "payload"], &["step", "payload"]] {
            assert_ne!(key(from, PLACE, "{}"), key(from, PLACE, "[]"), "{from:?}");
        }
    }

    #[test]
    fn what_is_absent_or_blank_names_nothing() {
        let body = r#"{"id":7,"none":null,"blank":""}"#;
        for (ingredient, names_something) in [
            ("json:/id", true),
            ("json:/none", false),
            ("json:/blank", false),
            ("json:/id/7", false),
            ("header:X-Tenant", true),
            ("header:x-other", false),
            ("query:account", true),
            ("query:empty", false),
            ("query:other", false),
            ("form:other", false),
        ] {
            assert_eq!(key(&[ingredient], PLACE, body).is_ok(), names_something, "{ingredient}");
        }
        assert_eq!(key(&[], PLACE, body), Err(Missing::Ingredient));
    }

    #[test]
    fn ingredients_survive_their_text_form() {
        for text in ["session", "step", "payload", "header:x-a", "json:/a~1b/0", "form:a:b[c]", "query:q"] {
            assert_eq!(text.parse::<Ingredient>().unwrap().to_string(), text);
        }
        for text in
            ["", "Session", "header:", "header:a b", "json:", "json:a", "form:", "query:", "session:", "other:a"]
        {
            assert_eq!(text.parse::<Ingredient>(), Err(NotAnIngredient), "{text}");
        }
    }

    #[test]
    fn two_lines_or_none_are_no_value() {
        let name = HeaderName::from_static("x-session-id");
        let mut headers = HeaderMap::new();
        assert_eq!(sole_value(&headers, &name), None);
        headers.append(&name, "s-1".parse().unwrap());
        assert_eq!(sole_value(&headers, &name), Some("s-1"));
        headers.append(&name, "s-1".parse().unwrap());
        assert_eq!(sole_value(&headers, &name), None);
    }
}
