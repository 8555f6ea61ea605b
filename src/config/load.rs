//! From text to a configuration: tree, overrides, values, cross checks.

use std::path::Path;

use super::error::{ConfigError, ConfigErrors, Problem};
use super::policy::Policy;
use super::reader::{Reader, Section};
use super::resolve::{self, Sources};
use super::text::Environment;
use super::tree::{self, Node, Place, Table, Value};
use super::{Config, StoreUrl, alerts, identity, overrides, schema, services};

/// Their variables are no settings of a file.
const WITHOUT_A_FILE: [&str; 4] = ["ONCEGATE__UPSTREAM", "ONCEGATE__PRESET", "ONCEGATE__REPEAT", "ONCEGATE__STORE"];

/// The arguments of `oncegate --upstream URL`, as they were typed; each may come from `ONCEGATE__...` instead.
#[derive(Clone, Debug, Default)]
pub struct UpstreamMode {
    pub url: Option<String>,
    /// A preset, or several with commas between them.
    pub preset: Option<String>,
    pub repeat: Option<String>,
    pub store: Option<String>,
}

impl UpstreamMode {
    /// Whether `ONCEGATE__UPSTREAM` or `ONCEGATE__PRESET` asks for a run without a file.
    pub fn is_asked_by(environment: &Environment) -> bool {
        ["ONCEGATE__UPSTREAM", "ONCEGATE__PRESET"].iter().any(|name| environment.get(name).is_some())
    }
}

impl Config {
    /// Reads the file at `path`, with the overrides of `environment`.
    ///
    /// # Errors
    /// Everything that is wrong with it, in the order of the file.
    pub fn load(path: &Path, environment: &Environment) -> Result<Self, ConfigErrors> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &file, environment),
            Err(error) => Err(ConfigErrors::new(&file, vec![ConfigError::whole(Problem::Unreadable(error))])),
        }
    }

    /// Reads the text of a file; `file_name` is for the errors only.
    ///
    /// # Errors
    /// Everything that is wrong with it, in the order of the file.
    pub fn parse(text: &str, file_name: &str, environment: &Environment) -> Result<Self, ConfigErrors> {
        let syntax = |(place, error)| ConfigError { place, ..ConfigError::whole(Problem::Syntax(error)) };
        match tree::parse(text) {
            Ok(tree) => from_tree(tree, file_name, environment, &[]),
            Err(errors) => Err(ConfigErrors::new(file_name, errors.into_iter().map(syntax).collect())),
        }
    }

    /// The configuration without a file: one upstream, one route named `default` at `/`, all else built in.
    ///
    /// # Errors
    /// Everything that is wrong with the arguments and the environment.
    pub fn for_upstream(mode: UpstreamMode, environment: &Environment) -> Result<Self, ConfigErrors> {
        let url = argument(mode.url, "--upstream", "ONCEGATE__UPSTREAM", environment);
        let preset = argument(mode.preset, "--preset", "ONCEGATE__PRESET", environment).map(listed);
        let repeat = argument(mode.repeat, "--repeat", "ONCEGATE__REPEAT", environment);
        let store = argument(mode.store, "--store", "ONCEGATE__STORE", environment);
        from_tree(tree_of([url, preset, repeat], store), "without a file", environment, &WITHOUT_A_FILE)
    }
}

fn from_tree(
    mut tree: Table,
    file_name: &str,
    environment: &Environment,
    used: &[&str],
) -> Result<Config, ConfigErrors> {
    let mut reader = Reader { environment, errors: overrides::apply(&mut tree, environment, used) };
    let config = Config { near_misses: overrides::near_misses(&tree, environment), ..read(&mut reader, &tree) };
    if reader.errors.is_empty() { Ok(config) } else { Err(ConfigErrors::new(file_name, reader.errors)) }
}

fn read(reader: &mut Reader<'_>, tree: &Table) -> Config {
    let root = &Section::root(tree);
    reader.refuse_unknown(root, &schema::ROOT);
    let server = services::server(reader, root);
    let (store, store_policy) = services::store(reader, root);
    let callers = services::callers(reader, root, &server);
    let scope = identity::scope(&callers, &server);
    let services = services::upstreams(reader, root, server.listen);
    let defaults = reader.child(root, "defaults", &schema::DEFAULTS);
    let defaults = Policy::read(reader, &defaults);
    let policies = resolve::policies(reader, root);
    let sources = Sources {
        callers: &callers,
        scope: &scope,
        store: &store_policy,
        has_fleet: matches!(store.url, StoreUrl::Redis(_)),
        defaults: &defaults,
        policies: &policies,
        services: &services,
    };
    let (routes, explained) = resolve::routes(reader, root, &sources);
    let (alerts, log) = (alerts::read(reader, root), services::log(reader, root));
    Config { server, store, routes, alerts, explained, log, callers, near_misses: Vec::new() }
}

/// An argument wins over its variable, as arguments do.
fn argument(typed: Option<String>, name: &'static str, variable: &str, environment: &Environment) -> Option<Node> {
    let (text, place) = match typed {
        Some(typed) => (typed, Place::Argument(name)),
        None => (environment.get(variable)?.to_owned(), Place::Variable(variable.into())),
    };
    Some(Node::new(Value::Text(text), place))
}

/// `stripe,cloudflare` as a list.
fn listed(node: Node) -> Node {
    let words = match &node.value {
        Value::Text(text) if text.contains(',') => text.split(',').map(|word| Value::Text(word.trim().to_owned())),
        Value::Text(_) | Value::Integer(_) | Value::Boolean(_) | Value::Other(_) | Value::List(_) | Value::Table(_) => {
            return node;
        }
    };
    let words = words.map(|word| Node::new(word, node.place.clone())).collect();
    Node::new(Value::List(words), node.place)
}

fn tree_of([url, preset, repeat]: [Option<Node>; 3], store: Option<Node>) -> Table {
    let text = |text: &str| Node::new(Value::Text(text.to_owned()), Place::Whole);
    let table = |table| Node::new(Value::Table(table), Place::Whole);
    let matches = Table::default().with("path", text("/"));
    let route = Table::default().with("name", text("default")).with("match", table(matches));
    let route = route.with("upstream", text("default"));
    let upstream = Table::default().with_some("url", url).with_some("preset", preset).with_some("repeat", repeat);
    let store = Table::default().with_some("url", store).with("namespace", text("oncegate"));
    Table::default()
        .with("upstreams", table(Table::default().with("default", table(upstream))))
        .with("routes", Node::new(Value::List(vec![table(route)]), Place::Whole))
        .with("store", table(store))
}
