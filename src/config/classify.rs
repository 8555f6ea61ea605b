//! `[[routes.classify]]`: what an answer means, in the words of the file.

use http::HeaderName;

use crate::operation::meaning::{HeaderTest, JsonTest, Meaning, Rule, Statuses, canonical_json, canonical_string};
use crate::operation::payload::Pointer;

use super::error::Problem;
use super::explain::Shown;
use super::grammar;
use super::policy::Setting;
use super::reader::{Reader, Section, Stated};
use super::schema;
use super::tree::{Entry, Node, Value};
use super::units::Accepts;
use super::words::{Word, word};

/// An answer has one of these; a 1xx is none.
const FIRST_STATUS: u16 = 200;
const LAST_STATUS: u16 = 999;

/// The rules of one layer, in their order.
pub(super) fn read(reader: &mut Reader<'_>, parent: &Section<'_>) -> Setting<Vec<Rule>> {
    let node = parent.node("classify")?;
    let entries = reader.tables(parent, "classify");
    let read: Vec<_> = entries.iter().map(|entry| rule(reader, parent.key("classify"), entry)).collect();
    let rules = read.into_iter().collect::<Option<Vec<_>>>()?;
    Some(Stated { value: rules, key: parent.key("classify"), shown: node.shown(), place: node.place.clone() })
}

fn rule(reader: &mut Reader<'_>, path: String, node: &Node) -> Option<Rule> {
    let section = reader.section(node, path, &schema::CLASSIFY);
    let statuses = statuses(reader, &section);
    let headers = entries(reader, &section, "headers", header);
    let json = entries(reader, &section, "json", member);
    let meaning = reader.required(&section, "as", "what such an answer means", word::<Meaning>);
    if !["status", "headers", "json"].iter().any(|condition| section.states(condition)) {
        reader.errors.push(section.refused("status", Problem::Missing("at least one of `status`, `headers`, `json`")));
    }
    Some(Rule { statuses: statuses?, headers: headers?, json: json?, meaning: meaning?.value })
}

/// A number, a range as a string, or a list of both; nothing stated is any status.
fn statuses(reader: &mut Reader<'_>, section: &Section<'_>) -> Option<Vec<Statuses>> {
    let Some(node) = section.node("status") else { return Some(Vec::new()) };
    let items = match &node.value {
        Value::List(items) => items.as_slice(),
        Value::Text(_) | Value::Integer(_) | Value::Boolean(_) | Value::Other(_) | Value::Table(_) => {
            std::slice::from_ref(node)
        }
    };
    let read: Option<Vec<_>> = items.iter().map(range).collect();
    let read = read.filter(|ranges| !ranges.is_empty());
    if read.is_none() {
        let accepts = "statuses from 200 to 999: 409, \"500-599\", or a list of both";
        reader.refuse(node, section.key("status"), Problem::Accepts(accepts.into()));
    }
    read
}

fn range(node: &Node) -> Option<Statuses> {
    let (first, last) = match &node.value {
        Value::Integer(number) => (u16::try_from(*number).ok()?, u16::try_from(*number).ok()?),
        Value::Text(text) => {
            let (first, last) = text.split_once('-')?;
            (first.parse().ok()?, last.parse().ok()?)
        }
        Value::Boolean(_) | Value::Other(_) | Value::List(_) | Value::Table(_) => return None,
    };
    let is_range = FIRST_STATUS <= first && first <= last && last <= LAST_STATUS;
    is_range.then_some(Statuses { first, last })
}

/// What `read` makes of the entries of a table; a table without any says nothing.
fn entries<T>(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    key: &str,
    read: fn(&Entry) -> Result<T, Accepts>,
) -> Option<Vec<T>> {
    let Some(node) = section.node(key) else { return Some(Vec::new()) };
    let found = match &node.value {
        Value::Table(table) if !table.0.is_empty() => table.0.as_slice(),
        Value::Table(_) | Value::Text(_) | Value::Integer(_) | Value::Boolean(_) | Value::Other(_) | Value::List(_) => {
            reader.refuse(node, section.key(key), Problem::Accepts("a table of at least one condition".into()));
            return None;
        }
    };
    let mut kept = Vec::new();
    for entry in found {
        match read(entry) {
            Ok(condition) => kept.push(condition),
            Err(accepts) => {
                let path = format!("{}.{}", section.key(key), entry.key);
                reader.refuse(&entry.node, path, Problem::Accepts(accepts));
            }
        }
    }
    (kept.len() == found.len()).then_some(kept)
}

/// `Name = "value"`, `Name = "begin*"` or `Name = true`.
fn header(entry: &Entry) -> Result<(HeaderName, HeaderTest), Accepts> {
    let name = entry.key.parse::<HeaderName>().map_err(|_| Accepts::from("the name of a header"))?;
    let test = match &entry.node.value {
        Value::Boolean(true) => HeaderTest::Present,
        Value::Text(text) => match text.strip_suffix('*') {
            Some("") => return Err("true where it has to be there, whatever it says".into()),
            Some(begin) => HeaderTest::StartsWith(plain(begin)?),
            None => HeaderTest::Equals(plain(text)?),
        },
        Value::Boolean(false) | Value::Integer(_) | Value::Other(_) | Value::List(_) | Value::Table(_) => {
            return Err("its value, \"...*\" for how it begins, or true where it has to be there".into());
        }
    };
    Ok((name, test))
}

/// A value, or how it begins. A pattern that only looks like one would never fit, and nobody would notice.
fn plain(text: &str) -> Result<String, Accepts> {
    if text.contains('*') {
        return Err("a `*` at the end only: \"...*\" is how the value begins".into());
    }
    grammar::header_value(text).map(|_| text.to_owned())
}

/// `"/pointer" = value`, a list of values, `{ exists = true }` or `{ contains = "text" }`.
fn member(entry: &Entry) -> Result<(Pointer, JsonTest), Accepts> {
    let pointer = grammar::pointer(&entry.key)?;
    if looks_like_pattern(&entry.node) {
        return Err("a whole value, without `*`; { contains = \"text\" } is a part of one".into());
    }
    let accepts = || Accepts::from("a value, a list of values, { exists = true } or { contains = \"text\" }");
    let test = match &entry.node.value {
        Value::List(items) if !items.is_empty() => {
            items.iter().map(json_text).collect::<Option<_>>().map(JsonTest::OneOf)
        }
        Value::Table(table) => match table.0.as_slice() {
            [only] => match (only.key.as_str(), &only.node.value) {
                ("exists", Value::Boolean(true)) => Some(JsonTest::Present),
                ("contains", Value::Text(part)) if !part.is_empty() => Some(JsonTest::Contains(part.clone())),
                _ => None,
            },
            _ => None,
        },
        Value::Text(_) | Value::Integer(_) | Value::Boolean(_) | Value::Other(_) | Value::List(_) => {
            json_text(&entry.node).map(|text| JsonTest::OneOf(vec![text]))
        }
    };
    test.map(|test| (pointer, test)).ok_or_else(accepts)
}

/// Text with a `*` at an end: a header is compared so, a member is not.
fn looks_like_pattern(node: &Node) -> bool {
    match &node.value {
        Value::Text(text) => text.len() > 1 && (text.starts_with('*') || text.ends_with('*')),
        Value::List(items) => items.iter().any(looks_like_pattern),
        Value::Table(table) => table.0.iter().any(|entry| looks_like_pattern(&entry.node)),
        Value::Integer(_) | Value::Boolean(_) | Value::Other(_) => false,
    }
}

/// The canonical JSON text of a plain value.
fn json_text(node: &Node) -> Option<Vec<u8>> {
    match &node.value {
        Value::Text(text) => Some(canonical_string(text)),
        Value::Integer(number) => canonical_json(&number.to_string()),
        Value::Boolean(flag) => canonical_json(&flag.to_string()),
        Value::Other(text) => canonical_json(text),
        Value::List(_) | Value::Table(_) => None,
    }
}

impl Word for Meaning {
    const ALL: &'static [Self] = &Meaning::ALL;

    fn word(self) -> &'static str {
        self.as_str()
    }
}

impl Shown for Rule {
    fn shown(&self) -> String {
        format!("{self} is {}", self.meaning.word())
    }
}
