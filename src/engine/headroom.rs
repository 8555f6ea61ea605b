//! How many unfinished operations each scope has, known as well as it has to be: `store.max_open` bounds them.
//!
//! The store counts exactly; asking it costs more than a claim does. So it is asked when the claims made here since could
//! have used up what was left, and once a second while they have used up a part of it worth the name. Whoever claims holds
//! a place meanwhile, so that one gateway never goes beyond the bound, however many claim at once. Of a fleet, each may go
//! beyond it by what the others open within a second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::Engine;
use crate::engine::call::NamedCall;
use crate::engine::conclusion::Conclusion;
use crate::engine::refusal;
use crate::engine::status::Refusal;
use crate::operation::admission::Admission;
use crate::operation::{Operation, Scope};
use crate::store::{Store, StoreError};

/// How long an answer of the store is believed while there is room by it, or none.
const FRESH: Duration = Duration::from_secs(1);
/// One part in so many of what was left may be opened without asking.
const PARTS: u64 = 64;
/// Scopes that are remembered; when they are too many, all that are idle are forgotten at once, and asked for anew.
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
    /// Operations opened here, those that ended included.
    opened: u64,
    /// How many of them there were before the store was asked: what it said counts those that did not end, and may or may
    /// not count the others.
    counted: u64,
    /// Claims under way.
    pending: u64,
    /// Questions under way.
    asking: u64,
}

/// Room for one more operation of a scope, held while that is claimed. A drop gives it back.
pub struct Place<'a> {
    headroom: &'a Headroom,
    scope: &'a Scope,
    is_taken: bool,
}

/// Whether a scope may open one more operation.
enum Room<'a> {
    Left(Place<'a>),
    NoneLeft,
    /// The store knows.
    Unclear,
}

impl Headroom {
    /// No scope may have more than `most` unfinished operations.
    pub fn new(most: u64) -> Self {
        Self { most, scopes: Mutex::default(), is_told: AtomicBool::new(false) }
    }

    fn room<'a>(&'a self, scope: &'a Scope) -> Room<'a> {
        self.with(scope, |count| {
            let left = self.most.saturating_sub(count.stored);
            let is_fresh = count.asked.is_some_and(|asked| asked.elapsed() < FRESH);
            let is_part = count.taken().saturating_add(1).saturating_mul(PARTS) > left;
            match count.taken() >= left {
                true if left == 0 && is_fresh => Room::NoneLeft,
                false if is_fresh || !is_part => Room::Left(self.place(scope, count)),
                _ => Room::Unclear,
            }
        })
    }

    /// A place, by what is known.
    fn take<'a>(&'a self, scope: &'a Scope) -> Option<Place<'a>> {
        self.with(scope, |count| {
            let is_left = count.stored.saturating_add(count.taken()) < self.most;
            is_left.then(|| self.place(scope, count))
        })
    }

    fn place<'a>(&'a self, scope: &'a Scope, count: &mut Count) -> Place<'a> {
        count.pending += 1;
        Place { headroom: self, scope, is_taken: false }
    }

    /// The store is asked how many there are.
    async fn ask(&self, store: &dyn Store, scope: &Scope) -> Result<(), StoreError> {
        let opened = self.with(scope, |count| {
            count.asking += 1;
            count.opened
        });
        let told = store.count_open(scope).await;
        self.with(scope, |count| {
            count.asking = count.asking.saturating_sub(1);
            if let Ok(stored) = told {
                count.told(stored, opened);
            }
        });
        told.map(|_| ())
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

    fn with<T>(&self, scope: &Scope, work: impl FnOnce(&mut Count) -> T) -> T {
        let mut scopes = self.scopes();
        if let Some(count) = scopes.get_mut(scope) {
            return work(count);
        }
        if scopes.len() >= SCOPES {
            scopes.retain(|_, count| count.pending + count.asking > 0);
        }
        work(scopes.entry(scope.clone()).or_default())
    }

    fn scopes(&self) -> MutexGuard<'_, HashMap<Scope, Count>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Count {
    /// Of what the store did not say was taken.
    fn taken(&self) -> u64 {
        self.opened.saturating_sub(self.counted).saturating_add(self.pending)
    }

    /// An answer to a question that was asked when so many had been opened; one that is older than the last is none.
    fn told(&mut self, stored: u64, opened: u64) {
        if opened >= self.counted {
            (self.stored, self.counted, self.asked) = (stored, opened, Some(Instant::now()));
        }
    }
}

impl Place<'_> {
    /// The operation was opened, or may have been.
    pub fn taken(mut self) {
        self.is_taken = true;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.headroom.with(self.scope, |count| {
            count.pending = count.pending.saturating_sub(1);
            count.opened += u64::from(self.is_taken);
        });
    }
}

impl Engine {
    /// A place for the operation that a call would open. A key with a record is answered by it and needs none, unless
    /// nothing ran: that record is opened again.
    ///
    /// # Errors
    /// The scope has as many unfinished operations as it may, or the store does not say.
    pub(super) async fn place<'a>(&'a self, named: &'a NamedCall) -> Result<Option<Place<'a>>, Box<Conclusion>> {
        match self.room(&named.identity.scope).await {
            Ok(Some(place)) => return Ok(Some(place)),
            Ok(None) => {}
            Err(error) => return Err(Box::new(refusal::store_unavailable(named, &error))),
        }
        let found = self.store.read(named.id).await.map_err(|error| {
            self.note_unreadable(named.id, &error);
            Box::new(refusal::store_unavailable(named, &error))
        })?;
        match found {
            Some(found) if !self.opens_again(&found.operation, named) => Ok(None),
            Some(_) | None => {
                self.note_refusal(&named.call.route, Refusal::MaxOpen);
                Err(Box::new(refusal::too_many_open(named, self.shared.headroom.most)))
            }
        }
    }

    async fn room<'a>(&'a self, scope: &'a Scope) -> Result<Option<Place<'a>>, StoreError> {
        let headroom = &self.shared.headroom;
        match headroom.room(scope) {
            Room::Left(place) => return Ok(Some(place)),
            Room::NoneLeft => return Ok(None),
            Room::Unclear => headroom.ask(&*self.store, scope).await?,
        }
        self.tell_of_crowds();
        Ok(headroom.take(scope))
    }

    fn opens_again(&self, operation: &Operation, named: &NamedCall) -> bool {
        let row = operation.admit(Some(&named.identity.fingerprint), &named.resend_rule(), self.store.now());
        row == Admission::ClaimAgain && !operation.is_open()
    }

    /// Counts anew for the scopes that had used up most of what they may: their operations end without a claim.
    pub async fn look_at_headroom(&self) {
        for scope in self.shared.headroom.crowded() {
            if let Err(error) = self.shared.headroom.ask(&*self.store, &scope).await {
                tracing::debug!(%error, "unfinished operations not counted");
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

    const ROOM: &str = "room";
    const NONE_LEFT: &str = "none left";
    const UNCLEAR: &str = "unclear";

    fn claims(headroom: &Headroom, count: u64) {
        headroom.with(&Scope::none(), |known| known.opened += count);
    }

    fn told(headroom: &Headroom, stored: u64) {
        headroom.with(&Scope::none(), |count| count.told(stored, count.opened));
    }

    fn room_of(headroom: &Headroom, scope: &Scope) -> &'static str {
        match headroom.room(scope) {
            Room::Left(_) => ROOM,
            Room::NoneLeft => NONE_LEFT,
            Room::Unclear => UNCLEAR,
        }
    }

    fn room(headroom: &Headroom) -> &'static str {
        room_of(headroom, &Scope::none())
    }

    #[tokio::test(start_paused = true)]
    async fn far_from_the_bound_it_asks_once_a_second_at_most() {
        let headroom = Headroom::new(100_000);
        claims(&headroom, 1561);
        assert_eq!(room(&headroom), ROOM);
        claims(&headroom, 1);
        assert_eq!(room(&headroom), UNCLEAR);
        told(&headroom, 20);
        claims(&headroom, 50_000);
        assert_eq!(room(&headroom), ROOM);
        tokio::time::advance(FRESH).await;
        assert_eq!(room(&headroom), UNCLEAR);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_left_is_not_used_up_without_asking() {
        let headroom = Headroom::new(100_000);
        told(&headroom, 99_990);
        claims(&headroom, 9);
        assert_eq!(room(&headroom), ROOM);
        claims(&headroom, 1);
        assert_eq!(room(&headroom), UNCLEAR);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_held_until_it_is_given_back_or_taken() {
        let (headroom, scope) = (Headroom::new(2), Scope::none());
        told(&headroom, 0);
        let (first, second) = (headroom.take(&scope).unwrap(), headroom.take(&scope).unwrap());
        assert!(headroom.take(&scope).is_none());
        assert_eq!(room(&headroom), UNCLEAR);
        drop(first);
        headroom.take(&scope).unwrap().taken();
        assert!(headroom.take(&scope).is_none());
        drop(second);
        assert!(headroom.take(&scope).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_opened_while_the_store_was_asked_still_counts() {
        let (headroom, scope) = (Headroom::new(5), Scope::none());
        told(&headroom, 0);
        claims(&headroom, 1);
        let asked_when = 1;
        claims(&headroom, 3);
        headroom.with(&scope, |count| count.told(1, asked_when));
        let last = headroom.take(&scope).unwrap();
        assert!(headroom.take(&scope).is_none());
        drop(last);
        headroom.with(&scope, |count| count.told(0, 0));
        assert!(headroom.take(&scope).is_some(), "an older answer takes nothing back");
        claims(&headroom, 1);
        assert!(headroom.take(&scope).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn operators_hear_of_a_scope_from_70_percent_on() {
        let headroom = Headroom::new(10);
        told(&headroom, 6);
        assert_eq!(headroom.warning(), None);
        told(&headroom, 7);
        let warning = headroom.warning().unwrap();
        assert!(warning.contains("a caller has") && warning.contains("7 of 10"), "{warning}");
        told(&headroom, 0);
        assert_eq!(headroom.warning(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_scope_is_refused_for_a_second_and_hurts_no_other() {
        let headroom = Headroom::new(3);
        assert_eq!(room(&headroom), UNCLEAR);
        told(&headroom, 3);
        assert_eq!(room(&headroom), NONE_LEFT);
        assert_ne!(room_of(&headroom, &Scope::named("token", "other")), NONE_LEFT);
        tokio::time::advance(FRESH).await;
        assert_eq!(room(&headroom), UNCLEAR);
    }

    #[tokio::test(start_paused = true)]
    async fn scopes_that_are_idle_are_forgotten_first() {
        let (headroom, busy) = (Headroom::new(1), Scope::none());
        told(&headroom, 0);
        let place = headroom.take(&busy);
        for caller in 0..SCOPES {
            headroom.with(&Scope::named("token", &caller.to_string()), |_| {});
        }
        assert!(headroom.scopes().len() < SCOPES);
        assert!(headroom.take(&busy).is_none());
        drop(place);
    }
}
