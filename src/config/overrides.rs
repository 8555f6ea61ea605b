//! `ONCEGATE__A__B=value`: any setting from the environment.

use super::error::{ConfigError, Problem};
use super::schema;
use super::text::Environment;
use super::tree::{self, Entry, Node, Place, Table, Value};

const PREFIX: &str = "ONCEGATE__";

/// Puts every `ONCEGATE__...` into the tree, but those in `used`; what does not fit there is given back.
///
/// A name leads through tables by their keys, without case and with `_` for `-`, and through lists by number:
/// `ONCEGATE__ROUTES__0__RETRY__MAX_ATTEMPTS`. The number behind the last one adds an entry.
pub(super) fn apply(tree: &mut Table, environment: &Environment, used: &[&str]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for (name, text) in environment.starting_with(PREFIX).filter(|(name, _)| !used.contains(name)) {
        if let Err(problem) = set_variable(tree, name, text) {
            errors.push(ConfigError { place: Place::Variable(name.into()), ..ConfigError::whole(problem) });
        }
    }
    errors
}

/// Names that look like overrides and are none, such as `ONCEGATE_STORE_URL`. What the file itself names is meant so.
pub(super) fn near_misses(tree: &Table, environment: &Environment) -> Vec<String> {
    let names = environment.starting_with("ONCEGATE_").map(|(name, _)| name);
    names.filter(|name| is_near_miss(name) && !names_variable(tree, name)).map(str::to_owned).collect()
}

fn is_near_miss(name: &str) -> bool {
    let first = name.split('_').nth(1).unwrap_or_default();
    schema::ROOT.keys.iter().chain(&["upstream", "repeat"]).any(|key| is_named(key, first))
}

fn names_variable(table: &Table, name: &str) -> bool {
    table.0.iter().any(|Entry { key, node, .. }| match &node.value {
        Value::Text(text) => key == "env" && text == name,
        Value::Table(table) => names_variable(table, name),
        Value::List(items) => {
            items.iter().any(|item| matches!(&item.value, Value::Table(table) if names_variable(table, name)))
        }
        Value::Integer(_) | Value::Boolean(_) | Value::Other(_) => false,
    })
}

fn set_variable(tree: &mut Table, name: &str, text: Option<&str>) -> Result<(), Problem> {
    let text = text.ok_or_else(|| Problem::Unset(name.to_owned()))?;
    let place = Place::Variable(name.into());
    let path: Vec<&str> = name.strip_prefix(PREFIX).unwrap_or_default().split("__").collect();
    if path.iter().any(|part| part.is_empty()) {
        return Err(Problem::Accepts("a setting, such as ONCEGATE__SERVER__LISTEN".into()));
    }
    let value = value_of(text, &place);
    if let ([only], false) = (path.as_slice(), matches!(value.value, Value::Table(_))) {
        without_a_file(only).map_or(Ok(()), Err)?;
    }
    set_in_table(tree, &path, value)
}

/// The variables of `oncegate --upstream URL` are no settings of a file, and a file is read here.
fn without_a_file(part: &str) -> Option<Problem> {
    let instead = match part.to_ascii_uppercase().as_str() {
        "UPSTREAM" => "ONCEGATE__UPSTREAMS__NAME__URL",
        "PRESET" => "ONCEGATE__UPSTREAMS__NAME__PRESET",
        "REPEAT" => "ONCEGATE__UPSTREAMS__NAME__REPEAT",
        "STORE" => "ONCEGATE__STORE__URL",
        _ => return None,
    };
    let problem = format!("holds only where there is no file; beside this one say {instead}, or take the file away");
    Some(Problem::Contradiction(problem.into()))
}

/// The text as a TOML value, and as a string where it is none.
fn value_of(text: &str, place: &Place) -> Node {
    let read = tree::parse_value(text, place);
    let node = read.unwrap_or_else(|| Node::new(Value::Text(text.to_owned()), place.clone()));
    Node { raw: Some(text.to_owned()), ..node }
}

fn set_in_table(table: &mut Table, path: &[&str], value: Node) -> Result<(), Problem> {
    let Some((part, rest)) = path.split_first() else { return Ok(()) };
    let found = table.0.iter().position(|entry| is_named(&entry.key, part));
    let mut entry = match found {
        Some(index) => table.0.remove(index),
        None => Entry { key: part.to_ascii_lowercase(), place: value.place.clone(), node: empty_at(&value.place) },
    };
    let set = set_at(&mut entry.node, rest, value);
    table.0.push(entry);
    set
}

fn set_in_list(items: &mut Vec<Node>, path: &[&str], value: Node) -> Result<(), Problem> {
    let Some((part, rest)) = path.split_first() else { return Ok(()) };
    let index = part.parse::<usize>().ok();
    if index == Some(items.len()) {
        items.push(empty_at(&value.place));
    }
    let last = items.len().saturating_sub(1);
    match index.and_then(|index| items.get_mut(index)) {
        Some(item) => set_at(item, rest, value),
        None => Err(Problem::Accepts(format!("the number of an entry: 0 to {last}, or the next one to add").into())),
    }
}

fn set_at(node: &mut Node, path: &[&str], value: Node) -> Result<(), Problem> {
    if path.is_empty() {
        *node = value;
        return Ok(());
    }
    match &mut node.value {
        Value::Table(table) => set_in_table(table, path, value),
        Value::List(items) => set_in_list(items, path, value),
        Value::Text(_) | Value::Integer(_) | Value::Boolean(_) | Value::Other(_) => {
            Err(Problem::Accepts("a name that ends where its setting ends: this one leads into a plain value".into()))
        }
    }
}

fn empty_at(place: &Place) -> Node {
    Node::new(Value::Table(Table::default()), place.clone())
}

/// Shells allow no `-` in a name.
fn is_named(key: &str, part: &str) -> bool {
    let plain = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
    key.bytes().map(plain).eq(part.bytes().map(plain))
}
