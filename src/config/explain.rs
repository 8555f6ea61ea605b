//! Where the value of a setting comes from, for `oncegate check`.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::rules::{DuplicateWindow, Ignored, Ingredient};
use super::tree::Place;
use super::units;
use super::words::Word;

/// The settings of one route, in the order of the file.
#[derive(Clone, Debug)]
pub(super) struct RouteExplained {
    pub(super) name: String,
    pub(super) settings: Vec<Explained>,
}

impl RouteExplained {
    /// Whether the file, or what stands for it, gives the value of this key.
    pub(super) fn states(&self, key: &str) -> bool {
        let is_built_in = |origin: &Origin| matches!(origin, Origin::BuiltIn | Origin::BuiltInUpTo(_));
        self.settings.iter().any(|setting| setting.key == key && !is_built_in(&setting.origin))
    }
}

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Explained {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) origin: Origin,
}

/// Which layer gave a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    BuiltIn,
    /// Built in, and cut to the value of this key.
    BuiltInUpTo(&'static str),
    Store,
    Defaults,
    /// What is known of a dialect.
    Dialect(&'static str),
    Preset(&'static str),
    Upstream(String),
    Policy(String),
    Route,
    Variable(Arc<str>),
    Argument(&'static str),
}

impl Origin {
    /// A variable or an argument replaces a value in place: it is then the origin, whatever the layer. What it only names,
    /// it does not say itself.
    pub(super) fn at(&self, place: &Place) -> Self {
        if let Self::Preset(_) | Self::Dialect(_) = self {
            return self.clone();
        }
        match place {
            Place::Variable(name) => Self::Variable(name.clone()),
            Place::Argument(name) => Self::Argument(name),
            Place::Whole | Place::At { .. } => self.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built-in"),
            Self::BuiltInUpTo(key) => write!(f, "built-in, at most {key}"),
            Self::Store => f.write_str("store"),
            Self::Defaults => f.write_str("defaults"),
            Self::Dialect(word) => write!(f, "dialect {word}"),
            Self::Preset(word) => write!(f, "preset {word}"),
            Self::Upstream(name) => write!(f, "upstream {name}"),
            Self::Policy(name) => write!(f, "policy {name}"),
            Self::Route => f.write_str("route"),
            Self::Variable(name) => write!(f, "environment {name}"),
            Self::Argument(name) => f.write_str(name),
        }
    }
}

/// A value as the file would state it, without the quotes.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

impl<T: Word> Shown for T {
    fn shown(&self) -> String {
        self.word().to_owned()
    }
}

impl Shown for Duration {
    fn shown(&self) -> String {
        units::duration_text(*self)
    }
}

/// Every bare number of 64 bits in the file is a size.
impl Shown for u64 {
    fn shown(&self) -> String {
        units::size_text(*self)
    }
}

impl Shown for u32 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for NonZeroU32 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for (NonZeroU32, Duration) {
    fn shown(&self) -> String {
        units::rate_text(self.0, self.1)
    }
}

impl Shown for bool {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for String {
    fn shown(&self) -> String {
        self.clone()
    }
}

impl Shown for HeaderName {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for Option<HeaderName> {
    fn shown(&self) -> String {
        self.as_ref().map_or_else(|| "off".to_owned(), HeaderName::to_string)
    }
}

impl Shown for DuplicateWindow {
    fn shown(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Unresolved => "unresolved".to_owned(),
            Self::For(duration) => duration.shown(),
        }
    }
}

impl Shown for Ingredient {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for Ignored {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl<T: Shown> Shown for Vec<T> {
    fn shown(&self) -> String {
        let items: Vec<String> = self.iter().map(Shown::shown).collect();
        format!("[{}]", items.join(", "))
    }
}
