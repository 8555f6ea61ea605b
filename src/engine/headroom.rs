//! How many unfinished operations each scope has, known as well as it has to be: `store.max_open` bounds them.
//!
//! The store counts exactly; asking it costs more than a claim does. So it is asked when the claims made here since could
//! have used up what was left, and once a second while they have used up a part of it worth the name. Of a fleet, each
//! gateway may therefore go beyond the bound by what the others open within a second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
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
    scopes: Mutex<HashMap<Scope, Count>>,
    /// Operators know that a scope has used up most of it.
    is_told: AtomicBool,
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
        Self { most, scopes: Mutex::default(), is_told: AtomicBool::new(false) }
    }

    /// A claim was won.
    pub fn opened(&self, scope: &Scope) {
        self.scopes().entry(scope.clone()).or_default().since += 1;
    }

    fn room(&self, scope: &Scope) -> Room {
        let mut scopes = self.scopes();
        if scopes.len() >= SCOPES {
            scopes.clear();
        }
        scopes.entry(scope.clone()).or_default().room(self.most)
    }

    fn told(&self, scope: &Scope, stored: u64) -> Room {
        let count = Count { stored, asked: Some(Instant::now()), since: 0 };
        self.scopes().insert(scope.clone(), count);
        if stored < self.most { Room::Left } else { Room::NoneLeft }
    }

    /// Scopes that have used up most of what they may, by what the store said last.
    fn crowded(&self) -> Vec<Scope> {
        let is_crowded = |count: &Count| count.stored.saturating_mul(10) >= self.most.saturating_mul(7);
        self.scopes().iter().filter(|(_, count)| is_crowded(count)).map(|(scope, _)| scope.clone()).collect()
    }

    fn warning(&self) -> Option<String> {
        let crowded = self.crowded();
        let fullest = self.scopes().values().map(|count| count.stored).max()?;
        let callers = match crowded.len() {
            0 => return None,
            1 => "a caller has".to_owned(),
            callers => format!("{callers} callers have"),
        };
        Some(format!(
            "store.max_open: {callers} used up more than 70 % of it ({fullest} of {} unfinished operations); when all is \
             used up, new calls get 429. What is unknown stays: GET /v1/operations?state=unknown lists it",
            self.most
        ))
    }

    fn scopes(&self) -> MutexGuard<'_, HashMap<Scope, Count>> {
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
                Ok(open) => {
                    let room = headroom.told(scope, open);
                    self.tell_of_crowds();
                    room
                }
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

    /// Counts anew for the scopes that had used up most of what they may: their operations end without a claim.
    pub async fn look_at_headroom(&self) {
        for scope in self.shared.headroom.crowded() {
            if let Ok(open) = self.store.count_open(&scope).await {
                self.shared.headroom.told(&scope, open);
            }
        }
        self.tell_of_crowds();
    }

    /// The log hears of it when it comes up.
    fn tell_of_crowds(&self) {
        let headroom = &self.shared.headroom;
        let warning = headroom.warning();
        let was_told = headroom.is_told.swap(warning.is_some(), Ordering::Relaxed);
        if let Some(warning) = warning.as_ref().filter(|_| !was_told) {
            tracing::warn!("{warning}");
        }
        if was_told || warning.is_some() {
            self.shared.status.warn("max_open", warning.into_iter().collect());
        }
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
    async fn operators_hear_of_a_scope_from_70_percent_on() {
        let headroom = Headroom::new(10);
        headroom.told(&Scope::none(), 6);
        assert_eq!(headroom.warning(), None);
        headroom.told(&Scope::none(), 7);
        let warning = headroom.warning().unwrap();
        assert!(warning.contains("a caller has") && warning.contains("7 of 10"), "{warning}");
        headroom.told(&Scope::none(), 0);
        assert_eq!(headroom.warning(), None);
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
