//! One value out of several layers: built-in < defaults < policy < route.

use std::time::Duration;

use super::error::{ConfigError, Problem};
use super::explain::{Explained, Origin, Shown};
use super::policy::{Policy, Setting};
use super::reader::Stated;

/// The layers of a route, the weakest first, and what was chosen from them so far.
pub(super) struct Layers<'f> {
    layers: Vec<(Origin, &'f Policy)>,
    pub(super) explained: Vec<Explained>,
}

/// The value in force, and where it was stated unless it is built in.
pub(super) struct Chosen<'f, T> {
    key: &'static str,
    value: T,
    origin: Origin,
    stated: Option<&'f Stated<T>>,
}

impl<'f> Layers<'f> {
    pub(super) fn new(layers: Vec<(Origin, &'f Policy)>) -> Self {
        Self { layers, explained: Vec::new() }
    }

    /// What the strongest layer says that says anything.
    pub(super) fn stated<T: 'f>(&self, get: impl Fn(&'f Policy) -> &'f Setting<T>) -> Option<&'f Stated<T>> {
        self.strongest(get).map(|(_, stated)| stated)
    }

    pub(super) fn pick<T: Clone + Shown + 'f>(
        &mut self,
        key: &'static str,
        built_in: T,
        get: impl Fn(&'f Policy) -> &'f Setting<T>,
    ) -> T {
        let chosen = self.choose(key, built_in, get);
        self.explain(chosen)
    }

    /// A setting without a built-in value; `absent` says what holds then, where anything does.
    pub(super) fn pick_optional<T: Clone + Shown + 'f>(
        &mut self,
        key: &'static str,
        absent: Option<&'static str>,
        get: impl Fn(&'f Policy) -> &'f Setting<T>,
    ) -> Option<T> {
        let found = self.strongest(get);
        let explained = match &found {
            Some((origin, stated)) => Some((stated.value.shown(), origin.clone())),
            None => absent.map(|absent| (absent.to_owned(), Origin::BuiltIn)),
        };
        self.explained.extend(explained.map(|(value, origin)| Explained { key, value, origin }));
        found.map(|(_, stated)| stated.value.clone())
    }

    pub(super) fn choose<T: Clone + 'f>(
        &self,
        key: &'static str,
        built_in: T,
        get: impl Fn(&'f Policy) -> &'f Setting<T>,
    ) -> Chosen<'f, T> {
        match self.strongest(get) {
            Some((origin, stated)) => Chosen { key, value: stated.value.clone(), origin, stated: Some(stated) },
            None => Chosen { key, value: built_in, origin: Origin::BuiltIn, stated: None },
        }
    }

    /// Two durations, the first of which must not be the longer one. Where nothing states it, it gives way.
    pub(super) fn pick_ordered(
        &mut self,
        short: Chosen<'f, Duration>,
        long: Chosen<'f, Duration>,
        errors: &mut Vec<ConfigError>,
    ) -> (Duration, Duration) {
        let short = match short.stated {
            _ if short.value <= long.value => short,
            None => Chosen { value: long.value, origin: Origin::BuiltInUpTo(long.name()), ..short },
            Some(stated) => {
                errors.push(stated.refused(Problem::Contradiction(long.as_bound().into())));
                short
            }
        };
        (self.explain(short), self.explain(long))
    }

    /// What all layers say, the strongest first. Each item keeps its origin.
    pub(super) fn collect<T: Clone + Shown + 'f>(
        &mut self,
        key: &'static str,
        get: impl Fn(&'f Policy) -> &'f Setting<Vec<T>>,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for (origin, policy) in self.layers.iter().rev() {
            let Some(stated) = get(policy) else { continue };
            let origin = origin.at(&stated.place);
            let explain = |item: &T| Explained { key, value: item.shown(), origin: origin.clone() };
            self.explained.extend(stated.value.iter().map(explain));
            all.extend(stated.value.iter().cloned());
        }
        all
    }

    fn strongest<T: 'f>(&self, get: impl Fn(&'f Policy) -> &'f Setting<T>) -> Option<(Origin, &'f Stated<T>)> {
        let found = self.layers.iter().rev().find_map(|(origin, policy)| Some((origin, get(policy).as_ref()?)));
        found.map(|(origin, stated)| (origin.at(&stated.place), stated))
    }

    fn explain<T: Shown + 'f>(&mut self, chosen: Chosen<'f, T>) -> T {
        self.explained.push(Explained { key: chosen.key, value: chosen.value.shown(), origin: chosen.origin });
        chosen.value
    }
}

impl Chosen<'_, Duration> {
    /// The key within its table.
    fn name(&self) -> &'static str {
        self.key.rsplit('.').next().unwrap_or(self.key)
    }

    fn as_bound(&self) -> String {
        let name = self.name();
        format!("at most `{name}`, which is \"{}\" ({})", self.value.shown(), self.origin)
    }
}
