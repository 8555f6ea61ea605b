//! How many calls of one route may be at their upstream at once, and who is next.
//!
//! A place is held until the body of the answer has ended, and not through the wait before a retry. Whoever has begun
//! comes first, for he holds up a key. Of the others each scope has its turn, however many wait in its line.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot::{self, Receiver, Sender};
use tokio::time::{Instant, timeout_at};

use super::locked;
use crate::config::Concurrency;
use crate::engine::status::Counter;
use crate::operation::Scope;

/// The places of one route.
pub(super) struct Places {
    bounds: Concurrency,
    state: Mutex<State>,
    pub(super) refused: Counter,
}

#[derive(Default)]
struct State {
    taken: u32,
    begun: VecDeque<Sender<Place>>,
    lines: HashMap<Scope, VecDeque<Sender<Place>>>,
    /// The scopes with a line, in turn.
    turns: VecDeque<Scope>,
}

/// One place. A drop hands it to the next.
pub struct Place(Option<Arc<Places>>);

/// Somebody who stands in line. A drop takes him out of it.
struct Turn<'a> {
    places: &'a Places,
    place: Receiver<Place>,
}

impl Places {
    pub(super) fn new(bounds: Concurrency) -> Self {
        Self { bounds, state: Mutex::default(), refused: Counter::default() }
    }

    /// A place if one is free; then nobody waits for it.
    pub(super) fn take_at_once(self: &Arc<Self>) -> Option<Place> {
        self.take_free(&mut locked(&self.state))
    }

    fn take_free(self: &Arc<Self>, state: &mut State) -> Option<Place> {
        (state.taken < self.bounds.most).then(|| {
            state.taken += 1;
            Place(Some(Arc::clone(self)))
        })
    }

    /// A place, after a wait in line; `None` where the line is full, or the time is over.
    pub(super) async fn take(self: &Arc<Self>, scope: &Scope, is_new: bool, until: Instant) -> Option<Place> {
        // Whoever has no time to wait takes nobody's place in line.
        let turn = (Instant::now() < until).then(|| self.line_up(scope, is_new)).flatten();
        let place = match turn {
            Some(mut turn) => timeout_at(until, &mut turn.place).await.ok().and_then(Result::ok),
            None => None,
        };
        if place.is_none() {
            self.refused.add();
        }
        place
    }

    /// How many places are taken, and how many wait.
    pub(super) fn counts(&self) -> (u32, usize) {
        let state = locked(&self.state);
        (state.taken, state.begun.len() + state.waiting())
    }

    /// Whether a call that came now would get a place at once, or one in line.
    pub(super) fn has_room_for(&self, scope: &Scope) -> bool {
        let state = locked(&self.state);
        let own = state.lines.get(scope).map_or(0, VecDeque::len);
        let gives_way = |line: &VecDeque<_>| line.len() > own + 1;
        state.taken < self.bounds.most
            || state.waiting() < self.bounds.queue as usize
            || state.lines.values().any(gives_way)
    }

    /// A turn, which may have come already; `None` where the line is full.
    fn line_up(self: &Arc<Self>, scope: &Scope, is_new: bool) -> Option<Turn<'_>> {
        let (sender, place) = oneshot::channel();
        let mut state = locked(&self.state);
        if let Some(place) = self.take_free(&mut state) {
            // Its other end is here.
            drop(sender.send(place));
        } else if !is_new {
            state.begun.push_back(sender);
        } else if state.waiting() < self.bounds.queue as usize || state.make_room(scope) {
            state.add(scope, sender);
        } else {
            return None;
        }
        Some(Turn { places: self, place })
    }

    /// Who comes next for a place that was given back; without anybody it is free.
    fn next(&self) -> Option<Sender<Place>> {
        let mut state = locked(&self.state);
        let next = state.begun.pop_front().or_else(|| state.next_in_turn());
        if next.is_none() {
            state.taken -= 1;
        }
        next
    }
}

impl State {
    fn waiting(&self) -> usize {
        self.lines.values().map(VecDeque::len).sum()
    }

    fn add(&mut self, scope: &Scope, sender: Sender<Place>) {
        let line = self.lines.entry(scope.clone()).or_default();
        if line.is_empty() {
            self.turns.push_back(scope.clone());
        }
        line.push_back(sender);
    }

    fn next_in_turn(&mut self) -> Option<Sender<Place>> {
        let scope = self.turns.pop_front()?;
        let line = self.lines.get_mut(&scope)?;
        let next = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&scope);
        } else {
            self.turns.push_back(scope);
        }
        next
    }

    fn forget_who_left(&mut self) {
        self.begun.retain(|sender| !sender.is_closed());
        self.lines.values_mut().for_each(|line| line.retain(|sender| !sender.is_closed()));
        self.lines.retain(|_, line| !line.is_empty());
        self.turns.retain(|scope| self.lines.contains_key(scope));
    }

    /// The last one of the longest line leaves a full queue, if that is longer than the line of the scope that comes.
    fn make_room(&mut self, scope: &Scope) -> bool {
        let own = self.lines.get(scope).map_or(0, VecDeque::len);
        let length = |scope: &&Scope| self.lines.get(*scope).map_or(0, VecDeque::len);
        let longest = self.turns.iter().max_by_key(length).cloned();
        let line = longest.and_then(|scope| self.lines.get_mut(&scope));
        line.filter(|line| line.len() > own + 1).is_some_and(|line| line.pop_back().is_some())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.place.is_terminated() {
            // What has come by now goes on to the next when the lock is free again.
            self.place.close();
            locked(&self.places.state).forget_who_left();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(places) = self.0.take() else { return };
        while let Some(next) = places.next() {
            // Whoever left the line does not take it, and it goes on to the next.
            match next.send(Self(Some(Arc::clone(&places)))) {
                Ok(()) => return,
                Err(mut place) => drop(place.0.take()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn places(most: u32, queue: u32) -> Arc<Places> {
        Arc::new(Places::new(Concurrency { most, queue }))
    }

    fn scope(name: &str) -> Scope {
        Scope::named("test", name)
    }

    /// Callers who wait in this order; each says who he is when he has his place, and gives it back.
    async fn served(places: &Arc<Places>, callers: &[&'static str]) -> Vec<&'static str> {
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let first = places.take_at_once().unwrap();
        for name in callers.iter().copied() {
            let (places, said) = (Arc::clone(places), said.clone());
            tokio::spawn(async move {
                let until = Instant::now() + Duration::from_secs(60);
                if let Some(_place) = places.take(&scope(name), true, until).await {
                    said.send(name).unwrap();
                }
            });
            tokio::task::yield_now().await;
        }
        drop((first, said));
        let mut order = Vec::new();
        while let Some(name) = heard.recv().await {
            order.push(name);
        }
        order
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_given_back_and_the_bound_holds() {
        let places = places(2, 0);
        let (one, two) = (places.take_at_once(), places.take_at_once());
        assert!(one.is_some() && two.is_some() && places.take_at_once().is_none());
        assert!(places.take(&Scope::none(), true, Instant::now()).await.is_none());
        drop(one);
        assert!(places.take_at_once().is_some());
        assert_eq!((places.counts(), places.refused.get()), ((1, 0), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn each_scope_has_its_turn() {
        let order = served(&places(1, 9), &["a", "a", "a", "a", "b", "c", "b"]).await;
        assert_eq!(order, ["a", "b", "c", "a", "b", "a", "a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_scope_that_fills_the_queue_makes_room_for_another() {
        let order = served(&places(1, 4), &["a", "a", "a", "a", "a", "b", "b", "b", "c"]).await;
        assert_eq!(order, ["a", "b", "c", "a"]);
    }

    #[test]
    fn who_would_be_turned_away_is_known_before_he_asks() {
        let places = places(1, 2);
        let has_room = || ["a", "b"].map(|name| places.has_room_for(&scope(name)));
        let _held = places.take_at_once().unwrap();
        assert_eq!(has_room(), [true, true]);
        let waiting = ["a", "a"].map(|name| places.line_up(&scope(name), true).unwrap());
        assert_eq!(has_room(), [false, true], "another scope is made room for");
        drop(waiting);
        assert_eq!(has_room(), [true, true], "they have left");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leaves_or_runs_out_of_time_is_out_of_the_line_at_once() {
        let places = places(1, 9);
        let held = places.take_at_once().unwrap();
        let wait = |name: &'static str, is_new, seconds| {
            let places = Arc::clone(&places);
            let until = Instant::now() + Duration::from_secs(seconds);
            tokio::spawn(async move { places.take(&scope(name), is_new, until).await.is_some() })
        };
        let patient = [wait("a", true, 60), wait("b", false, 60)];
        let hurried = [wait("a", true, 1), wait("b", false, 1), wait("c", true, 1)];
        let leaves = [wait("a", true, 60), wait("b", false, 60), wait("d", true, 60)];
        tokio::task::yield_now().await;
        assert_eq!(places.counts(), (1, 8));
        for caller in leaves {
            caller.abort();
            assert!(caller.await.unwrap_err().is_cancelled());
        }
        assert_eq!(places.counts(), (1, 5));
        for caller in hurried {
            assert!(!caller.await.unwrap());
        }
        assert_eq!(places.counts(), (1, 2));
        drop(held);
        for caller in patient {
            assert!(caller.await.unwrap());
        }
        assert_eq!(places.counts(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_begun_comes_first_and_who_left_is_passed_over() {
        let places = places(1, 1);
        let held = places.take_at_once().unwrap();
        let soon = Instant::now() + Duration::from_secs(1);
        let (new, late) = (scope("new"), scope("late"));
        assert!(places.take(&new, true, soon).await.is_none(), "the time is over");
        let waiting = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(&late, true, soon + Duration::from_secs(9)).await.map(|_| "new") }
        });
        tokio::task::yield_now().await;
        let begun = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(&Scope::none(), false, soon + Duration::from_secs(9)).await }
        });
        tokio::task::yield_now().await;
        drop(held);
        let place = begun.await.unwrap().unwrap();
        assert!(!waiting.is_finished());
        drop(place);
        assert_eq!(waiting.await.unwrap(), Some("new"));
        assert_eq!(places.counts(), (0, 0));
    }
}
