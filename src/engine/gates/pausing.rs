//! Pauses among threads and gateways: the lock, the clock, who waits behind whom, and what the store is told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::locked;
use crate::clock::Timestamp;
use crate::entropy::Entropy;
use crate::retry::pause::{CLOCKS, Pauses, SPACING, Turn, Whom};
use crate::store::{Store, StoreError};

/// Calls that wait for the end of one pause, those that go on with what they have begun not counted.
const QUEUE: usize = 64;

/// The pauses of one service, whatever upstreams lead to it.
pub(super) struct Pausing {
    /// How the store names the service: by its address, for other gateways may call it otherwise.
    place: String,
    begin: Instant,
    inner: Mutex<Inner>,
    /// Whether there is any, so that calls pass without the lock while there is none.
    has_any: AtomicBool,
}

#[derive(Default)]
struct Inner {
    pauses: Pauses,
    queues: HashMap<Whom, Arc<Queue>>,
    /// Until when the canary of this gateway holds the others back.
    leases: HashMap<Whom, Timestamp>,
}

/// Who waits for one pause: first come, first served. Only the first one looks at the pause.
pub(super) struct Queue {
    pub(super) turnstile: Semaphore,
    waiting: AtomicUsize,
    pub(super) changed: Notify,
}

/// A place in a queue; a drop gives it back.
pub(super) struct Place<'a>(&'a Queue);

/// The call that finds out whether a pause is over. A drop leaves that to the next one.
pub(super) struct Canary {
    pub(super) pausing: Arc<Pausing>,
    pub(super) whom: Whom,
    pub(super) number: u64,
    /// Until when the store holds back the others for it.
    pub(super) lease: Option<Timestamp>,
}

impl Pausing {
    pub(super) fn new(place: String) -> Self {
        Self { place, begin: Instant::now(), inner: Mutex::default(), has_any: AtomicBool::new(false) }
    }

    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// The name of a pause in the store.
    pub(super) fn name(&self, whom: Whom) -> String {
        format!("{} {}", self.place, shown(whom))
    }

    /// The queue of a pause, if there is one.
    pub(super) fn queue(&self, whom: Whom) -> Option<Arc<Queue>> {
        let mut inner = locked(&self.inner);
        inner.pauses.is_paused(whom).then(|| Arc::clone(inner.queues.entry(whom).or_default()))
    }

    pub(super) fn is_on_ramp(&self, whom: Whom) -> bool {
        self.with(|pauses, _| pauses.is_on_ramp(whom))
    }

    pub(super) fn ask(&self, whom: Whom, entropy: &Entropy) -> Turn {
        let spread = || Duration::from_millis(entropy.up_to(crate::clock::millis(SPACING)));
        self.with(|pauses, now| pauses.ask(whom, now, spread))
    }

    pub(super) fn wait(&self, whom: Whom) -> Option<Duration> {
        self.with(|pauses, now| pauses.wait(whom, now))
    }

    /// How long all are to wait, if that is news, and whether it is any to a person: calls under way that are told the same
    /// one after the other are one.
    pub(super) fn throttled(&self, whom: Whom, hint: Option<Duration>) -> Option<(Duration, bool)> {
        self.with(|pauses, now| {
            let before = pauses.wait(whom, now);
            let wait = pauses.throttled(whom, hint, now)?.saturating_sub(now);
            Some((wait, before.is_none_or(|before| wait > before + CLOCKS)))
        })
    }

    /// Holds back for so long. `stored`: the store said so.
    pub(super) fn hold(&self, whom: Whom, wait: Duration, is_stored: bool) {
        self.with(|pauses, now| pauses.hold(whom, now.saturating_add(wait), is_stored.then_some(now)));
    }

    /// Holds back for so long, also where it was said to be longer.
    pub(super) fn set(&self, whom: Whom, wait: Duration) {
        self.with(|pauses, now| pauses.set(whom, now.saturating_add(wait)));
        self.wake(whom);
    }

    pub(super) fn stored(&self, whom: Whom) {
        self.with(|pauses, now| pauses.stored(whom, now));
    }

    pub(super) fn clear(&self, whom: Whom) {
        self.with(|pauses, _| pauses.clear(whom));
        self.wake(whom);
    }

    pub(super) fn passed(&self, canary: &Canary) {
        self.with(|pauses, now| pauses.passed(canary.whom, canary.number, now));
        self.wake(canary.whom);
    }

    pub(super) fn lease(&self, whom: Whom) -> Option<Timestamp> {
        locked(&self.inner).leases.get(&whom).copied()
    }

    pub(super) fn leased(&self, whom: Whom, until: Timestamp) {
        locked(&self.inner).leases.insert(whom, until);
    }

    /// The lease of a canary that was turned away: what holds the others back now is the next pause.
    pub(super) fn take_lease(&self, whom: Whom) -> Option<Timestamp> {
        locked(&self.inner).leases.remove(&whom)
    }

    /// The moment at which the store is asked.
    pub(super) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Drops what ended long ago, and what nobody waits for any more.
    pub(super) fn forget(&self) {
        if !self.has_any() {
            return;
        }
        self.with(|pauses, now| pauses.forget(now));
        let Inner { pauses, queues, leases } = &mut *locked(&self.inner);
        queues.retain(|whom, queue| pauses.is_paused(*whom) || Arc::strong_count(queue) > 1);
        leases.retain(|whom, _| pauses.is_paused(*whom));
    }

    /// What the store said when it was asked, at that moment.
    pub(super) fn compare(&self, stored: &[(String, Timestamp)], store: &dyn Store, asked: Duration) {
        let (now, at_store) = (self.now(), store.now());
        let until = |until: Timestamp| now.saturating_add(until.since(at_store));
        let here = stored.iter().filter_map(|(name, end)| Some((self.whom_of(name)?, *end)));
        let others = here.filter(|(whom, end)| self.lease(*whom) != Some(*end));
        let ours: HashMap<Whom, Duration> = others.map(|(whom, end)| (whom, until(end))).collect();
        if ours.is_empty() && !self.has_any() {
            return;
        }
        self.with(|pauses, heard| pauses.compare(&ours, asked, heard));
        locked(&self.inner).queues.values().for_each(|queue| queue.changed.notify_one());
    }

    /// Whom there is a pause for.
    pub(super) fn everyone(&self) -> Vec<Whom> {
        self.with(|pauses, now| pauses.shown(now)).iter().map(|pause| pause.whom).collect()
    }

    pub(super) fn snapshot(&self) -> Vec<PauseSnapshot> {
        let inner = locked(&self.inner);
        let shown = inner.pauses.shown(self.now()).into_iter().map(|pause| PauseSnapshot {
            credential: shown(pause.whom),
            phase: pause.phase,
            left_ms: crate::clock::millis(pause.left),
            queued: inner.queues.get(&pause.whom).map_or(0, |queue| queue.waiting.load(Ordering::Relaxed)),
        });
        shown.collect()
    }

    fn whom_of(&self, name: &str) -> Option<Whom> {
        parsed(name.strip_prefix(&self.place)?.strip_prefix(' ')?)
    }

    fn wake(&self, whom: Whom) {
        if let Some(queue) = locked(&self.inner).queues.get(&whom) {
            queue.changed.notify_one();
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Pauses, Duration) -> T) -> T {
        let mut inner = locked(&self.inner);
        let done = work(&mut inner.pauses, self.now());
        if inner.pauses.is_empty() {
            inner.queues.values().for_each(|queue| queue.changed.notify_one());
            inner.queues.clear();
            inner.leases.clear();
        }
        self.has_any.store(!inner.pauses.is_empty(), Ordering::Relaxed);
        done
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self { turnstile: Semaphore::new(1), waiting: AtomicUsize::new(0), changed: Notify::new() }
    }
}

impl Queue {
    pub(super) fn has_room(&self, is_new: bool) -> bool {
        !is_new || self.waiting.load(Ordering::Relaxed) < QUEUE
    }

    /// A place, if there is one. Whoever has begun already gets one in any case: he holds up a key.
    pub(super) fn enter(&self, is_new: bool) -> Option<Place<'_>> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = Place(self);
        (before < QUEUE || !is_new).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Canary {
    /// The next one may go.
    pub(super) fn give_back(&self) {
        self.pausing.with(|pauses, now| pauses.give_back(self.whom, self.number, now));
        self.pausing.wake(self.whom);
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Tells the store of a pause. It keeps the later of two ends, but for `known`, which is replaced.
pub(super) async fn hold_until(
    store: &dyn Store,
    name: &str,
    known: Option<Timestamp>,
    until: Timestamp,
) -> Result<(), StoreError> {
    if let Some(known) = known.filter(|known| *known > until) {
        store.replace_hold(name, known, Some(until)).await?;
    }
    store.hold(name, until).await
}

/// As operators and the store name it: a digest, `*` for everybody.
pub(super) fn shown(whom: Whom) -> String {
    match whom {
        Whom::Everybody => "*".to_owned(),
        Whom::Holder(digest) => format!("{:016x}", u64::from_be_bytes(digest)),
    }
}

/// The same, read back.
pub(super) fn parsed(text: &str) -> Option<Whom> {
    if text == "*" {
        return Some(Whom::Everybody);
    }
    let digest = (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok())??;
    Some(Whom::Holder(digest.to_be_bytes()))
}

/// A pause at one moment.
#[derive(Debug, Serialize)]
pub struct PauseSnapshot {
    /// A digest of it; `*`: all of them.
    pub credential: String,
    /// `paused`, `canary` or `ramp`.
    pub phase: &'static str,
    /// Until one call may find out whether it is over.
    pub left_ms: u64,
    /// Calls that wait for it.
    pub queued: usize,
}
