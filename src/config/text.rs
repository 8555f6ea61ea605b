//! Strings that may come from elsewhere: `{ env = "NAME" }` and `{ file = "PATH" }`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::error::Problem;
use super::tree::{Node, Table, Value};

/// More is no secret and no certificate: `{ file = "/dev/zero" }` must not fill the memory.
const LONGEST_FILE: u64 = 1 << 20;

/// The environment as an argument: configuration reads it from here and from nowhere else.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The variable's text; `None` where it is not set or not UTF-8.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(std::ffi::OsStr::new(name)).and_then(|value| value.to_str())
    }

    /// Names that begin with `prefix`, each with its text, in the order of their names.
    pub(super) fn starting_with<'e>(&'e self, prefix: &'e str) -> impl Iterator<Item = (&'e str, Option<&'e str>)> {
        let named = self.0.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str())));
        named.filter(move |(name, _)| name.starts_with(prefix))
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// A string as the file states it, with its source resolved.
pub(super) struct Text {
    pub(super) text: String,
    /// It came from a variable or a file, as secrets do.
    pub(super) is_secret: bool,
    /// What an error or a listing may show.
    pub(super) shown: String,
}

impl Text {
    /// What a value of another type is refused with is what an empty string would be.
    pub(super) fn empty() -> Self {
        Self { text: String::new(), is_secret: false, shown: String::new() }
    }
}

/// The text of a string node; `None` where the node is no string of any form.
pub(super) fn resolve(node: &Node, environment: &Environment) -> Option<Result<Text, Problem>> {
    match &node.value {
        Value::Text(text) if text.starts_with("${") && text.ends_with('}') => {
            let accepts = "{ env = \"NAME\" } for what a variable says; in a string it stays as it is";
            Some(Err(Problem::Accepts(accepts.into())))
        }
        Value::Text(text) => Some(Ok(Text { text: text.clone(), is_secret: false, shown: node.shown() })),
        Value::Table(table) => from_elsewhere(table, node.shown(), environment),
        Value::Integer(_) | Value::Boolean(_) | Value::Other(_) | Value::List(_) => {
            node.raw.clone().map(|text| Ok(Text { text, is_secret: false, shown: node.shown() }))
        }
    }
}

fn from_elsewhere(table: &Table, shown: String, environment: &Environment) -> Option<Result<Text, Problem>> {
    let [entry] = table.0.as_slice() else { return None };
    let Value::Text(name) = &entry.node.value else { return None };
    let read = match entry.key.as_str() {
        "env" => environment.get(name).map(str::to_owned).ok_or_else(|| Problem::Unset(name.clone())),
        "file" => text_of_file(Path::new(name)),
        _ => return None,
    };
    Some(read.map(|text| Text { text, is_secret: true, shown }))
}

/// The file's text without one newline at its end: editors and secret stores add it.
fn text_of_file(path: &Path) -> Result<String, Problem> {
    let unreadable = |error| Problem::UnreadableFile { path: PathBuf::from(path), error };
    let bytes = read_bounded(path).map_err(unreadable)?;
    let mut text =
        String::from_utf8(bytes).map_err(|error| unreadable(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    if text.ends_with('\n') {
        text.pop();
    }
    if text.ends_with('\r') {
        text.pop();
    }
    Ok(text)
}

/// The bytes of a file of at most 1 MiB.
pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than 1 MiB"));
    }
    Ok(bytes)
}
