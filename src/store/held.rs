//! What a store of one process says about calls that are held back, in its memory, for it is asked often. A file keeps it,
//! too.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Timestamp;

/// Names, and until when each is held.
#[derive(Default)]
pub(super) struct Held(Mutex<BTreeMap<String, Timestamp>>);

impl Held {
    pub(super) fn of(names: Vec<(String, Timestamp)>) -> Self {
        Self(Mutex::new(names.into_iter().collect()))
    }

    pub(super) fn until(&self, name: &str) -> Option<Timestamp> {
        self.names().get(name).copied()
    }

    pub(super) fn hold(&self, name: &str, until: Timestamp, now: Timestamp) {
        let mut held = self.names();
        held.retain(|_, until| *until > now);
        let known = held.entry(name.to_owned()).or_insert(until);
        *known = until.max(*known);
    }

    /// Until when somebody else holds it, and then nothing is changed.
    pub(super) fn hold_if_over(&self, name: &str, until: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let known = self.names().get(name).copied().filter(|known| *known > now);
        if known.is_none() {
            self.hold(name, until, now);
        }
        known
    }

    /// False if its end is not `known` any more, and then nothing is changed.
    pub(super) fn replace(&self, name: &str, known: Timestamp, until: Option<Timestamp>) -> bool {
        let mut names = self.names();
        let is_known = names.get(name) == Some(&known);
        if is_known {
            match until {
                Some(until) => names.insert(name.to_owned(), until),
                None => names.remove(name),
            };
        }
        is_known
    }

    pub(super) fn all(&self, now: Timestamp) -> Vec<(String, Timestamp)> {
        let names = self.names();
        names.iter().filter(|(_, until)| **until > now).map(|(name, until)| (name.clone(), *until)).collect()
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<String, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
