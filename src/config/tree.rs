//! The file as a tree of values that know where they stand.
//!
//! A plain serde mirror stops at its first error and forgets the value of a key it does not know; here every error is
//! reported, and an unknown `num_retries = 3` can be answered with the line to write instead.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where a value was stated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Nowhere in particular: the file as a whole.
    Whole,
    /// In the file; both count from 1, columns in characters.
    At { line: usize, column: usize },
    /// By this environment variable.
    Variable(Arc<str>),
    /// By this argument of the command line.
    Argument(&'static str),
}

/// How what is in a PEM file begins, keys among it.
pub(super) const PEM: &str = "-----BEGIN";

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) place: Place,
    /// The text of an environment variable before it was read as TOML: `12345` may be meant as a string.
    pub(super) raw: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Boolean(bool),
    /// Floats, dates, and integers beyond 64 bits, as written: no setting accepts them.
    Other(String),
    List(Vec<Node>),
    Table(Table),
}

/// Keys in the order in which they are found.
#[derive(Clone, Debug, Default)]
pub(super) struct Table(pub(super) Vec<Entry>);

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) place: Place,
    pub(super) node: Node,
}

impl Node {
    pub(super) fn new(value: Value, place: Place) -> Self {
        Self { value, place, raw: None }
    }

    /// The value as an error may show it: short, and without the password that a URL may have.
    pub(super) fn shown(&self) -> String {
        match &self.value {
            Value::Text(text) => quoted(text),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(flag) => flag.to_string(),
            Value::Other(text) => short(text).into_owned(),
            Value::List(_) => "[...]".to_owned(),
            Value::Table(table) => table.shown(),
        }
    }
}

impl Table {
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.0.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// Whether it is `{ env = "NAME" }` or `{ file = "PATH" }`.
    pub(super) fn is_reference(&self) -> bool {
        self.reference().is_some()
    }

    fn reference(&self) -> Option<(&str, &str)> {
        match self.0.as_slice() {
            [Entry { key, node: Node { value: Value::Text(name), .. }, .. }]
                if matches!(key.as_str(), "env" | "file") =>
            {
                Some((key, name))
            }
            _ => None,
        }
    }

    /// Of a table the reference of a secret may be shown, for it is none.
    fn shown(&self) -> String {
        match self.reference() {
            Some((key, name)) => format!("{{ {key} = {} }}", quoted(name)),
            None => "{...}".to_owned(),
        }
    }

    /// For trees that are made without a file.
    pub(super) fn with(mut self, key: &str, node: Node) -> Self {
        self.0.push(Entry { key: key.to_owned(), place: node.place.clone(), node });
        self
    }

    pub(super) fn with_some(self, key: &str, node: Option<Node>) -> Self {
        match node {
            Some(node) => self.with(key, node),
            None => self,
        }
    }
}

/// Reads TOML text. All syntax errors that the parser could recover from are given back together.
pub(super) fn parse(text: &str) -> Result<Table, Vec<(Place, toml::de::Error)>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table_of(table.get_ref(), text));
    }
    Err(errors
        .into_iter()
        .map(|error| (error.span().map_or(Place::Whole, |span| place_of(text, &span)), error))
        .collect())
}

/// Reads one TOML value, as it stands behind an `=`.
pub(super) fn parse_value(text: &str, place: &Place) -> Option<Node> {
    let value = DeValue::parse(text).ok()?;
    let mut node = node_of(&value, text);
    node.move_to(place);
    Some(node)
}

impl Node {
    /// Lets it and all in it stand there.
    pub(super) fn move_to(&mut self, place: &Place) {
        self.place = place.clone();
        match &mut self.value {
            Value::List(nodes) => nodes.iter_mut().for_each(|node| node.move_to(place)),
            Value::Table(table) => table.0.iter_mut().for_each(|entry| {
                entry.place = place.clone();
                entry.node.move_to(place);
            }),
            Value::Text(_) | Value::Integer(_) | Value::Boolean(_) | Value::Other(_) => {}
        }
    }
}

fn table_of(table: &DeTable<'_>, text: &str) -> Table {
    let entries = table.iter().map(|(key, value)| Entry {
        key: key.get_ref().to_string(),
        place: place_of(text, &key.span()),
        node: node_of(value, text),
    });
    Table(entries.collect())
}

fn node_of(value: &Spanned<DeValue<'_>>, text: &str) -> Node {
    let read = match value.get_ref() {
        DeValue::String(string) => Value::Text(string.to_string()),
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix())
            .map_or_else(|_| Value::Other(integer.to_string()), Value::Integer),
        DeValue::Float(float) => Value::Other(float.to_string()),
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(datetime) => Value::Other(datetime.to_string()),
        DeValue::Array(array) => Value::List(array.iter().map(|item| node_of(item, text)).collect()),
        DeValue::Table(table) => Value::Table(table_of(table, text)),
    };
    Node::new(read, place_of(text, &value.span()))
}

fn place_of(text: &str, span: &Range<usize>) -> Place {
    let before = text.get(..span.start).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(line_start..).map_or(0, |line| line.chars().count()) + 1;
    Place::At { line: before.matches('\n').count() + 1, column }
}

fn quoted(text: &str) -> String {
    if text.contains(PEM) {
        return format!("{PEM:?}...");
    }
    format!("{:?}", short(&without_query(&without_password(text))))
}

/// Some give a password as `redis://host?password=...`.
fn without_query(text: &str) -> Cow<'_, str> {
    match text.split_once(['?', '#']) {
        Some((url, _)) if url.contains("://") => Cow::Owned(format!("{url}?***")),
        Some(_) | None => Cow::Borrowed(text),
    }
}

fn short(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => Cow::Owned(format!("{}...", text.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(text),
    }
}

/// `redis://user:password@host` as `redis://***@host`. A scheme may be forgotten or misspelt, and the password is one all
/// the same.
fn without_password(text: &str) -> Cow<'_, str> {
    let Some((login, host)) = text.rsplit_once('@') else { return Cow::Borrowed(text) };
    let is_scheme = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    match login.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) {
        Some((scheme, _)) => Cow::Owned(format!("{scheme}://***@{host}")),
        None => Cow::Owned(format!("***@{host}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let table = parse("a = 1\n[t]\n\"\u{e4}\" = 'x'\n").unwrap();
        let Value::Table(inner) = &table.get("t").unwrap().value else { panic!("a table") };
        assert_eq!(table.get("a").unwrap().place, Place::At { line: 1, column: 5 });
        assert_eq!(inner.get("\u{e4}").unwrap().place, Place::At { line: 3, column: 7 });
    }

    #[test]
    fn a_shown_url_has_no_password() {
        for (text, shown) in [
            ("redis://me:p@ss@host:1/0", "redis://***@host:1/0"),
            ("redis+sentinel://me:p://ss@a,b/m", "redis+sentinel://***@a,b/m"),
            ("redis:me:p@ss@host", "***@host"),
            ("//me:p@ss@host", "***@host"),
            ("me:p@ss@host:1", "***@host:1"),
            ("me:p://ss@host:1", "***@host:1"),
            ("http://host", "http://host"),
            ("redis://host?password=p", "redis://host?***"),
            ("redis://me:p@host/0#p", "redis://***@host/0?***"),
        ] {
            assert_eq!(Node::new(Value::Text(text.to_owned()), Place::Whole).shown(), format!("{shown:?}"));
        }
    }

    #[test]
    fn a_long_value_is_cut_at_a_character() {
        let node = Node::new(Value::Text("\u{e4}".repeat(100)), Place::Whole);
        assert_eq!(node.shown(), format!("\"{}...\"", "\u{e4}".repeat(80)));
    }
}
