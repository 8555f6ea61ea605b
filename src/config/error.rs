//! What is wrong with a configuration, in the words of whoever wrote it.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{PathBuf, absolute};

use super::tree::Place;

/// Everything that is wrong with a configuration, in the order of the file.
#[derive(Debug)]
pub struct ConfigErrors {
    /// Name of the file, as it was given.
    pub file: String,
    pub errors: Vec<ConfigError>,
}

/// One thing that is wrong.
#[derive(Debug)]
pub struct ConfigError {
    pub place: Place,
    /// `routes.retry.max_attempts`; empty for the file as a whole.
    pub key: String,
    /// As it was written, without secrets; `None` where there is none to show.
    pub value: Option<String>,
    pub problem: Problem,
}

/// Why a value is refused.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("cannot be read: {}{}", .0, instead(.0))]
    Unreadable(io::Error),
    #[error("{}", .0.message())]
    Syntax(toml::de::Error),
    #[error("unknown key `{key}`; {advice}")]
    UnknownKey { key: String, advice: String },
    /// The contract knows the name, this version does not implement it.
    #[error("`{0}` is not in this version")]
    NotInThisVersion(String),
    /// What is accepted instead.
    #[error("{0}")]
    Accepts(Cow<'static, str>),
    #[error("missing; {0}")]
    Missing(&'static str),
    #[error("stated twice; {0}")]
    Twice(Cow<'static, str>),
    /// Two values that cannot both hold.
    #[error("{0}")]
    Contradiction(Cow<'static, str>),
    #[error("the environment variable `{0}` is not set, or not UTF-8")]
    Unset(String),
    #[error("the file `{}` cannot be read: {error}", absolute(.path).as_ref().unwrap_or(.path).display())]
    UnreadableFile { path: PathBuf, error: io::Error },
}

fn instead(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; `oncegate init --upstream URL` writes one, and `oncegate --upstream URL` needs none"
        }
        _ => "",
    }
}

/// Whether what stands under the key is a secret, or has some, however it was written.
fn is_secret(key: &str) -> bool {
    key == "callers.tokens" || (key.starts_with("upstreams.") && key.ends_with(".headers"))
}

impl ConfigErrors {
    /// Errors are sorted as a reader meets them.
    pub(super) fn new(file: &str, mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by(|left, right| left.place.cmp(&right.place));
        Self { file: file.to_owned(), errors }
    }
}

impl ConfigError {
    /// Shows a value that was refused, unless a secret is what belongs there.
    pub(super) fn of_value(place: Place, key: String, value: String, problem: Problem) -> Self {
        Self { place, value: (!is_secret(&key)).then_some(value), key, problem }
    }

    pub(super) fn whole(problem: Problem) -> Self {
        Self { place: Place::Whole, key: String::new(), value: None, problem }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.write(f, &self.file)?;
        }
        Ok(())
    }
}

/// Each of them says its cause itself: there is no one source.
impl std::error::Error for ConfigErrors {}

impl ConfigError {
    fn write(&self, f: &mut fmt::Formatter<'_>, file: &str) -> fmt::Result {
        match &self.place {
            Place::Whole => write!(f, "{file}: ")?,
            Place::At { line, column } => write!(f, "{file}:{line}:{column}: ")?,
            Place::Variable(name) => write!(f, "{name}: ")?,
            Place::Argument(name) => write!(f, "{name}: ")?,
        }
        match (&self.value, self.key.as_str()) {
            (_, "") => {}
            (Some(value), key) => write!(f, "{key} = {value}: ")?,
            (None, key) => write!(f, "{key}: ")?,
        }
        write!(f, "{}", self.problem)
    }
}
