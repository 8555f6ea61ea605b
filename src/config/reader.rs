//! Typed values out of the tree. Every refusal is kept, so that one look at the errors shows them all.

use super::error::{ConfigError, Problem};
use super::hint;
use super::schema::Schema;
use super::text::{self, Environment, Text};
use super::tree::{Entry, Node, Place, Table, Value};
use super::units::Accepts;

/// Reads sections and collects what is wrong with them.
pub(super) struct Reader<'e> {
    pub(super) environment: &'e Environment,
    pub(super) errors: Vec<ConfigError>,
}

/// A table at work: where it stands and what its keys are called in full.
#[derive(Clone)]
pub(super) struct Section<'t> {
    pub(super) path: String,
    pub(super) place: Place,
    table: &'t Table,
}

/// A value that the file, a variable or an argument states.
#[derive(Clone, Debug)]
pub(super) struct Stated<T> {
    pub(super) value: T,
    /// `routes.retry.deadline`.
    pub(super) key: String,
    /// As it may be shown in an error.
    pub(super) shown: String,
    pub(super) place: Place,
}

static EMPTY: Table = Table(Vec::new());

impl<T> Stated<T> {
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> Stated<U> {
        Stated { value: to(self.value), key: self.key, shown: self.shown, place: self.place }
    }

    pub(super) fn refused(&self, problem: Problem) -> ConfigError {
        ConfigError::of_value(self.place.clone(), self.key.clone(), self.shown.clone(), problem)
    }
}

/// What is stated, or else the built-in value.
pub(super) fn or<T>(stated: Option<Stated<T>>, built_in: T) -> T {
    stated.map_or(built_in, |stated| stated.value)
}

impl<'t> Section<'t> {
    pub(super) fn root(table: &'t Table) -> Self {
        Self { path: String::new(), place: Place::Whole, table }
    }

    pub(super) fn key(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    pub(super) fn states(&self, key: &str) -> bool {
        self.table.get(key).is_some()
    }

    /// What stands under a key, whatever it is.
    pub(super) fn node(&self, key: &str) -> Option<&'t Node> {
        self.table.get(key)
    }

    /// Refuses what is not there, or what does not fit with another key.
    pub(super) fn refused(&self, key: &str, problem: Problem) -> ConfigError {
        ConfigError { place: self.place.clone(), key: self.key(key), value: None, problem }
    }
}

impl Reader<'_> {
    /// The section of a node; one that is no table is refused and reads as empty.
    pub(super) fn section<'t>(&mut self, node: &'t Node, path: String, schema: &Schema) -> Section<'t> {
        let table = self.table(node, &path);
        let section = Section { path, place: node.place.clone(), table };
        self.refuse_unknown(&section, schema);
        section
    }

    /// The table under a key; absent, it reads as empty.
    pub(super) fn child<'t>(&mut self, parent: &Section<'t>, key: &str, schema: &Schema) -> Section<'t> {
        let path = parent.key(key);
        match parent.table.get(key) {
            Some(node) => self.section(node, path, schema),
            None => Section { path, place: parent.place.clone(), table: &EMPTY },
        }
    }

    /// `[key.NAME]`, each with its entry; the names are the user's own.
    pub(super) fn named<'t>(&mut self, parent: &Section<'t>, key: &str) -> &'t [Entry] {
        match parent.table.get(key) {
            Some(node @ Node { value: Value::List(_), .. }) => {
                let accepts = format!("tables with names of your own, each under [{key}.NAME]");
                self.refuse(node, key.to_owned(), Problem::Accepts(accepts.into()));
                &[]
            }
            Some(node) => self.table(node, key).0.as_slice(),
            None => &[],
        }
    }

    /// `[[key]]`.
    pub(super) fn tables<'t>(&mut self, parent: &Section<'t>, key: &str) -> &'t [Node] {
        match parent.table.get(key) {
            Some(Node { value: Value::List(nodes), .. }) => nodes,
            Some(node) => {
                let accepts = format!("tables, each under [[{}]]", parent.key(key));
                self.refuse(node, parent.key(key), Problem::Accepts(accepts.into()));
                &[]
            }
            None => &[],
        }
    }

    pub(super) fn refuse_unknown(&mut self, section: &Section<'_>, schema: &Schema) {
        let unknown = section.table.0.iter().filter(|entry| !schema.keys.contains(&entry.key.as_str()));
        self.errors.extend(unknown.map(|entry| ConfigError {
            place: entry.place.clone(),
            key: section.key(&entry.key),
            value: None,
            problem: hint::unknown_key(schema, &entry.key, &entry.node.value),
        }));
    }

    /// A string, plain or from elsewhere, as `parse` reads it.
    pub(super) fn text<T>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        parse: impl Fn(&str) -> Result<T, Accepts>,
    ) -> Option<Stated<T>> {
        let node = section.table.get(key)?;
        self.parsed(node, section.key(key), |text| parse(&text.text))
    }

    /// A string that has to be there; `what` says what it is for.
    pub(super) fn required<T>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        what: &'static str,
        parse: impl Fn(&str) -> Result<T, Accepts>,
    ) -> Option<Stated<T>> {
        if !section.states(key) {
            self.errors.push(section.refused(key, Problem::Missing(what)));
        }
        self.text(section, key, parse)
    }

    /// A string that no error and no listing shows.
    pub(super) fn secret<T>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        parse: impl Fn(&Text) -> Result<T, Accepts>,
    ) -> Option<Stated<T>> {
        let node = section.table.get(key)?;
        let read = self.parsed(node, section.key(key), parse);
        if let (None, Some(error)) = (&read, self.errors.last_mut()) {
            error.value = None;
        }
        read.map(|read| Stated { shown: "...".to_owned(), ..read })
    }

    pub(super) fn flag(&mut self, section: &Section<'_>, key: &str) -> Option<Stated<bool>> {
        let node = section.table.get(key)?;
        match node.value {
            Value::Boolean(value) => Some(stated(node, section.key(key), value)),
            Value::Text(_) | Value::Integer(_) | Value::Other(_) | Value::List(_) | Value::Table(_) => {
                self.refuse(node, section.key(key), Problem::Accepts("true or false".into()));
                None
            }
        }
    }

    /// A whole number that `parse` accepts.
    pub(super) fn number<T>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        parse: impl Fn(i64) -> Result<T, Accepts>,
    ) -> Option<Stated<T>> {
        let node = section.table.get(key)?;
        let read = match node.value {
            Value::Integer(number) => parse(number),
            Value::Text(_) | Value::Boolean(_) | Value::Other(_) | Value::List(_) | Value::Table(_) => {
                Err("a whole number, without quotes".into())
            }
        };
        self.kept(node, section.key(key), &node.shown(), read.map_err(Problem::Accepts))
    }

    /// Strings, none of them twice.
    pub(super) fn list<T: PartialEq>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        parse: impl Fn(&str) -> Result<T, Accepts>,
    ) -> Option<Stated<Vec<T>>> {
        let node = section.table.get(key)?;
        let Value::List(items) = &node.value else {
            self.refuse(node, section.key(key), Problem::Accepts("a list of strings, such as [\"...\"]".into()));
            return None;
        };
        let mut values = Vec::new();
        for item in items {
            match self.parsed(item, section.key(key), |text| parse(&text.text)) {
                Some(read) if values.contains(&read.value) => {
                    self.errors.push(read.refused(Problem::Twice("once is enough".into())));
                }
                Some(read) => values.push(read.value),
                None => {}
            }
        }
        if values.len() < items.len() {
            return None;
        }
        let shown = items.iter().map(Node::shown).collect::<Vec<_>>().join(", ");
        Some(Stated { shown: format!("[{shown}]"), ..stated(node, section.key(key), values) })
    }

    /// A table of strings under names that the user chooses: `headers = { X-Team = "a" }`. No value of it is shown.
    pub(super) fn pairs<T>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        parse: impl Fn(&str, &Text) -> Result<T, Accepts>,
    ) -> Vec<Stated<T>> {
        let Some(node) = section.table.get(key) else { return Vec::new() };
        let path = section.key(key);
        let table = self.table(node, &path);
        if table.is_reference() {
            let accepts = "names, each with a string; `{ env }` and `{ file }` stand for one of these strings";
            self.refuse(node, path, Problem::Accepts(accepts.into()));
            return Vec::new();
        }
        let inner = Section { path, place: node.place.clone(), table };
        let entries = inner.table.0.iter();
        entries.filter_map(|entry| self.secret(&inner, &entry.key, |text| parse(&entry.key, text))).collect()
    }

    fn table<'t>(&mut self, node: &'t Node, key: &str) -> &'t Table {
        match &node.value {
            Value::Table(table) => table,
            Value::Text(_) | Value::Integer(_) | Value::Boolean(_) | Value::Other(_) | Value::List(_) => {
                self.refuse(node, key.to_owned(), Problem::Accepts("a table".into()));
                &EMPTY
            }
        }
    }

    fn parsed<T>(
        &mut self,
        node: &Node,
        key: String,
        parse: impl Fn(&Text) -> Result<T, Accepts>,
    ) -> Option<Stated<T>> {
        match text::resolve(node, self.environment) {
            Some(Ok(text)) => {
                let read = parse(&text).map_err(Problem::Accepts);
                self.kept(node, key, &text.shown, read)
            }
            Some(Err(problem)) => self.kept(node, key, &node.shown(), Err(problem)),
            None => {
                let accepts = "a string, { env = \"NAME\" } or { file = \"PATH\" }";
                // A number where a duration belongs is better answered with the form of a duration.
                let is_table = matches!(node.value, Value::Table(_));
                let form = if is_table { None } else { parse(&Text::empty()).err() };
                let problem = form.unwrap_or_else(|| accepts.into());
                self.kept(node, key, &node.shown(), Err(Problem::Accepts(problem)))
            }
        }
    }

    fn kept<T>(&mut self, node: &Node, key: String, shown: &str, read: Result<T, Problem>) -> Option<Stated<T>> {
        let found = Stated { value: (), key, shown: shown.to_owned(), place: node.place.clone() };
        match read {
            Ok(value) => Some(found.map(|()| value)),
            Err(problem) => {
                self.errors.push(found.refused(problem));
                None
            }
        }
    }

    /// Refuses a value as it stands.
    pub(super) fn refuse(&mut self, node: &Node, key: String, problem: Problem) {
        self.errors.push(stated(node, key, ()).refused(problem));
    }
}

fn stated<T>(node: &Node, key: String, value: T) -> Stated<T> {
    Stated { value, key, shown: node.shown(), place: node.place.clone() }
}
