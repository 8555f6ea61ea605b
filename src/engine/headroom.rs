//! How many unfinished operations each scope has, known as well as it has to be: `store.max_open` bounds them.
//!
//! The store counts exactly; asking it costs more than a claim does. So it is asked when the claims made here since could
//! have used up what was left, and once a second while they have used up a part of it worth the name. Of a fleet, each
//! gateway may therefore go beyond the bound by what the others open within a second.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::Engine;
use crate::engine::answer::Answer;
use crate::engine::call::NamedCall;
use crate::engine::refusal;
use crate::operation::Scope;
use crate::store::StoreError;

/// How long an answer of the store is believed while there is room by it, or none.
const FRESH: Duration = Duration::from_secs(1);
/// One part in so many of what was left may be opened without asking.
const PARTS: u64 = 64;
/// Scopes that are remembered; when they are too many, all are forgotten at once, and asked for anew.
const SCOPES: usize = 10_000;

/// What is left to each scope, shared by all threads.
pub struct Headroom {
    most: u64,
    scopes: Mutex<HashMap<[u8; 32], Count>>,
}

#[derive(Clone, Copy, Default)]
struct Count {
    /// What the store said, and when.
    stored: u64,
    asked: Option<Instant>,
    /// Claims won here since; those that ended meanwhile are not taken off.
    since: u64,
}

/// Whether a scope may open one more operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Left,
    NoneLeft,
    /// The store knows.
    Unclear,
}

impl Headroom {
    /// No scope may have more than `most` unfinished operations.
    pub fn new(most: u64) -> Self {
        Self { most, scopes: Mutex::default() }
    }

    /// A claim was won.
    pub fn opened(&self, scope: &Scope) {
        self.scopes().entry(*scope.digest()).or_default().since += 1;
    }

    fn room(&self, scope: &Scope) -> Room {
        let mut scopes = self.scopes();
        if scopes.len() >= SCOPES {
            scopes.clear();
        }
        scopes.entry(*scope.digest()).or_default().room(self.most)
    }

    fn told(&self, scope: &Scope, stored: u64) -> Room {
        let count = Count { stored, asked: Some(Instant::now()), since: 0 };
        self.scopes().insert(*scope.digest(), count);
        if stored < self.most { Room::Left } else { Room::NoneLeft }
    }

    fn scopes(&self) -> MutexGuard<'_, HashMap<[u8; 32], Count>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Count {
    fn room(self, most: u64) -> Room {
        let is_fresh = self.asked.is_some_and(|asked| asked.elapsed() < FRESH);
        let left = most.saturating_sub(self.stored);
        if left == 0 && is_fresh {
            return Room::NoneLeft;
        }
        let is_part = self.since.saturating_add(1).saturating_mul(PARTS) > left;
        if self.since >= left || (is_part && !is_fresh) { Room::Unclear } else { Room::Left }
    }
}

impl Engine {
    /// Refuses a new key of a scope that has as many unfinished operations as it may. A key with a record is answered
    /// by it, and a store that does not say how many there are will say more about the claim.
    pub(super) async fn open_gate(&self, named: &NamedCall) -> Result<Option<Answer>, StoreError> {
        let (headroom, scope) = (&self.shared.headroom, &named.identity.scope);
        let room = match headroom.room(scope) {
            Room::Unclear => match self.store.count_open(scope).await {
                Ok(open) => headroom.told(scope, open),
                Err(_) => return Ok(None),
            },
            room @ (Room::Left | Room::NoneLeft) => room,
        };
        if room == Room::Left || self.shared.flights.watch(named.id, named.identity.fingerprint).is_some() {
            return Ok(None);
        }
        let is_new = self.store.read(named.id).await?.is_none();
        Ok(is_new.then(|| refusal::too_many_open(named, headroom.most).answer()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(headroom: &Headroom, count: u64) {
        (0..count).for_each(|_| headroom.opened(&Scope::none()));
    }

    #[tokio::test(start_paused = true)]
    async fn far_from_the_bound_it_asks_once_a_second_at_most() {
        let (headroom, scope) = (Headroom::new(100_000), Scope::none());
        claims(&headroom, 1561);
        assert_eq!(headroom.room(&scope), Room::Left);
        claims(&headroom, 1);
        assert_eq!(headroom.room(&scope), Room::Unclear);
        assert_eq!(headroom.told(&scope, 20), Room::Left);
        claims(&headroom, 50_000);
        assert_eq!(headroom.room(&scope), Room::Left);
        tokio::time::advance(FRESH).await;
        assert_eq!(headroom.room(&scope), Room::Unclear);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_left_is_not_used_up_without_asking() {
        let (headroom, scope) = (Headroom::new(100_000), Scope::none());
        assert_eq!(headroom.told(&scope, 99_990), Room::Left);
        claims(&headroom, 9);
        assert_eq!(headroom.room(&scope), Room::Left);
        claims(&headroom, 1);
        assert_eq!(headroom.room(&scope), Room::Unclear);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_scope_is_refused_for_a_second_and_hurts_no_other() {
        let (headroom, scope) = (Headroom::new(3), Scope::none());
        assert_eq!(headroom.room(&scope), Room::Unclear);
        assert_eq!(headroom.told(&scope, 3), Room::NoneLeft);
        assert_eq!(headroom.room(&scope), Room::NoneLeft);
        assert_ne!(headroom.room(&Scope::named("token", "other")), Room::NoneLeft);
        tokio::time::advance(FRESH).await;
        assert_eq!(headroom.room(&scope), Room::Unclear);
    }
}
