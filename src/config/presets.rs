//! What is known of services, of the fronts that stand before them, and of dialects.

use std::time::Duration;

use crate::retry::dialect::Dialect;

use super::error::{ConfigError, Problem};
use super::explain::{Explained, Origin};
use super::policy::Policy;
use super::reader::{Reader, Section, Stated};
use super::tree::{self, Node, Place, Value};
use super::words::{Word, word};
use super::{schema, units, url};

/// In the words of `gateway.toml`, so that what a preset brings could be stated there just as well.
const KNOWN: &str = include_str!("presets/known.toml");

/// A word of `preset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PresetName {
    Stripe,
    OpenAi,
    Anthropic,
    GitHub,
    Slack,
    Envoy,
    Nginx,
    Alb,
    Cloudflare,
}

/// What a preset says.
pub(super) struct Preset {
    pub(super) word: &'static str,
    pub(super) url: Option<Stated<url::Address>>,
    pub(super) key_retention: Option<Stated<Duration>>,
    pub(super) dialect: Option<Stated<Dialect>>,
    pub(super) policy: Policy,
}

/// The presets of an upstream, the first one named the strongest.
pub(super) struct Presets<'n> {
    upstream: &'n str,
    pub(super) list: Vec<Preset>,
    /// What the upstream itself came to, with its sources.
    pub(super) taken: Vec<Explained>,
}

impl<'n> Presets<'n> {
    /// `preset = "stripe"`, or a list: one service, and what stands before it.
    pub(super) fn read(reader: &mut Reader<'_>, section: &Section<'_>, upstream: &'n str) -> Self {
        let names = names(reader, section);
        let place = section.node("preset").map_or(Place::Whole, |node| node.place.clone());
        let read = names.iter().filter_map(|name| preset(reader, name.word(), &place));
        let list: Vec<_> = read.collect();
        if list.iter().filter(|preset| preset.url.is_some()).count() > 1 {
            let problem = "two services; at most one of them can be here".into();
            reader.errors.push(section.refused("preset", Problem::Contradiction(problem)));
        }
        Self { upstream, list, taken: Vec::new() }
    }

    /// What the upstream states, else what the first of its presets says that says anything.
    pub(super) fn or<T: Clone>(
        &mut self,
        key: &'static str,
        stated: Option<Stated<T>>,
        get: impl Fn(&Preset) -> &Option<Stated<T>>,
    ) -> Option<Stated<T>> {
        let known = || self.list.iter().find_map(|preset| Some((Origin::Preset(preset.word), get(preset).clone()?)));
        let own = stated.map(|stated| (Origin::Upstream(self.upstream.to_owned()).at(&stated.place), stated));
        let (origin, found) = own.or_else(known)?;
        self.taken.push(Explained { key, value: found.shown.trim_matches('"').to_owned(), origin });
        Some(found)
    }
}

/// The rules that every upstream of a dialect has.
pub(super) fn of_dialect(reader: &mut Reader<'_>, dialect: Dialect) -> Option<(&'static str, Policy)> {
    let word = dialect.word();
    let node = known(reader, "dialects", word, &Place::Whole)?;
    let section = reader.section(&node, format!("dialects.{word}"), &schema::PRESET);
    Some((word, Policy::of_preset(reader, &section)))
}

fn names(reader: &mut Reader<'_>, section: &Section<'_>) -> Vec<PresetName> {
    match section.node("preset").map(|node| &node.value) {
        Some(Value::List(_)) => reader.list(section, "preset", word).map_or_else(Vec::new, |stated| stated.value),
        Some(_) => reader.text(section, "preset", word).into_iter().map(|stated| stated.value).collect(),
        None => Vec::new(),
    }
}

fn preset(reader: &mut Reader<'_>, word: &'static str, place: &Place) -> Option<Preset> {
    let node = known(reader, "presets", word, place)?;
    let section = reader.section(&node, format!("presets.{word}"), &schema::PRESET);
    Some(Preset {
        word,
        url: reader.text(&section, "url", url::upstream),
        key_retention: reader.text(&section, "key_retention", units::duration),
        dialect: reader.text(&section, "dialect", super::words::word),
        policy: Policy::of_preset(reader, &section),
    })
}

/// A table of what is known. Whatever is wrong with it is said where it was asked for.
fn known(reader: &mut Reader<'_>, kind: &str, word: &str, place: &Place) -> Option<Node> {
    let table = match tree::parse(KNOWN) {
        Ok(table) => table,
        Err(errors) => {
            let refused =
                |(_, error)| ConfigError { place: place.clone(), ..ConfigError::whole(Problem::Syntax(error)) };
            reader.errors.extend(errors.into_iter().map(refused));
            return None;
        }
    };
    let Value::Table(kind) = &table.get(kind)?.value else { return None };
    let mut node = kind.get(word)?.clone();
    node.move_to(place);
    Some(node)
}
