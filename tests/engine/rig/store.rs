//! A gateway's view of the store that all share: it counts the steps, and loses those that it is told to lose.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncegate::clock::Timestamp;
use oncegate::operation::transition::{self, Change};
use oncegate::operation::{Event, EventKind, OperationId, Receipt, Scope, StateName, StoredRequest, WriteId};
use oncegate::sealing_key::KeyId;
use oncegate::store::memory::MemoryStore;
use oncegate::store::{Claimed, Damage, Found, History, Pace, Page, Store, StoreError, TooMany, Written};
use tokio::time::sleep;

/// How long a step takes that gets no answer.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// What a gateway asks of its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Claim,
    Renewal,
    TakeOver,
    /// A write after which the record is in this state.
    To(StateName),
    Look,
    Note,
    Hold,
}

/// What becomes of a step.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The store never hears of it.
    Unheard,
    /// The store takes it; the answer is lost.
    ReplyLost,
    /// The answer is that it took too long, and the store takes it so much later.
    Late(Duration),
    /// The store takes it after this long, and says so.
    Slow(Duration),
    /// The store takes it at once, and says so after this long.
    SlowReply(Duration),
    /// The answer is that it has lost its memory.
    Lost,
}

pub struct FrailStore {
    shared: Arc<MemoryStore>,
    faults: Mutex<Vec<(Step, Fault)>>,
    forgotten: Mutex<Vec<Step>>,
    alerted: Mutex<Vec<Step>>,
    away: AtomicBool,
    has_another_key: AtomicBool,
    turns: AtomicUsize,
    steps: Mutex<Vec<Step>>,
}

impl FrailStore {
    pub fn over(shared: Arc<MemoryStore>) -> Self {
        let (faults, forgotten, alerted, steps) = Default::default();
        let (away, has_another_key) = (AtomicBool::new(false), AtomicBool::new(false));
        let turns = AtomicUsize::new(usize::MAX);
        Self { shared, faults, forgotten, alerted, away, has_another_key, turns, steps }
    }

    /// The next `times` steps of this kind meet the fault.
    pub fn fails(&self, step: Step, fault: Fault, times: usize) {
        self.faults.lock().unwrap().extend(std::iter::repeat_n((step, fault), times));
    }

    /// The next write of this kind is acknowledged, and gone with the server that took it.
    pub fn forgets(&self, step: Step) {
        self.forgotten.lock().unwrap().push(step);
    }

    /// Right before each of the next `times` writes of this kind it is noted that an alert has named the operation.
    pub fn alerts_before(&self, step: Step, times: usize) {
        self.alerted.lock().unwrap().extend(std::iter::repeat_n(step, times));
    }

    async fn note_alert(&self, id: OperationId) {
        let operation = self.shared.read(id).await.unwrap().unwrap().operation;
        let (since, now) = (operation.dead_letter().unwrap().since, self.now());
        let write = WriteId(u128::from(operation.fence.revision).to_be_bytes());
        let change = operation.alerted(since, now, transition::Step { now, write }).unwrap();
        assert_eq!(self.shared.write(&change).await.unwrap(), Written::Applied);
    }

    /// It is the turn of this gateway so many times more, then that of another one.
    pub fn has_turns(&self, left: usize) {
        self.turns.store(left, Ordering::Relaxed);
    }

    /// This gateway cannot open the requests that others have stored.
    pub fn has_another_key(&self) {
        self.has_another_key.store(true, Ordering::Relaxed);
    }

    /// From now on this gateway does not reach it.
    pub fn goes_away(&self) {
        self.away.store(true, Ordering::Relaxed);
    }

    pub fn comes_back(&self) {
        self.away.store(false, Ordering::Relaxed);
    }

    /// Every step so far, heard or not.
    pub fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap().clone()
    }

    pub fn count(&self, step: Step) -> usize {
        self.steps().into_iter().filter(|asked| *asked == step).count()
    }

    async fn through<T, F>(&self, step: Step, work: impl FnOnce(Arc<MemoryStore>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.steps.lock().unwrap().push(step);
        let work = work(Arc::clone(&self.shared));
        match self.fault(step) {
            None => return work.await,
            Some(Fault::Slow(wait)) => {
                sleep(wait).await;
                return work.await;
            }
            Some(Fault::SlowReply(wait)) => {
                let done = work.await;
                sleep(wait).await;
                return done;
            }
            Some(Fault::Lost) => return Err(StoreError::LostMemory("it is empty".into())),
            Some(Fault::Unheard) => {}
            Some(Fault::ReplyLost) => drop(work.await),
            Some(Fault::Late(wait)) => drop(tokio::spawn(async move {
                sleep(TIMEOUT + wait).await;
                work.await
            })),
        }
        sleep(TIMEOUT).await;
        Err(StoreError::Timeout)
    }

    fn fault(&self, step: Step) -> Option<Fault> {
        if self.away.load(Ordering::Relaxed) {
            return Some(Fault::Unheard);
        }
        let mut faults = self.faults.lock().unwrap();
        let next = faults.iter().position(|(on, _)| *on == step)?;
        Some(faults.remove(next).1)
    }
}

fn step_of(change: &Change) -> Step {
    match &change.event {
        None => Step::Renewal,
        Some(Event { kind: EventKind::TakenOver | EventKind::Due, .. }) => Step::TakeOver,
        Some(_) => Step::To(change.operation.state.name()),
    }
}

#[async_trait]
impl Store for FrailStore {
    fn now(&self) -> Timestamp {
        self.shared.now()
    }

    async fn claim(&self, change: &Change, past: Option<OperationId>) -> Result<Claimed, StoreError> {
        let change = change.clone();
        self.through(Step::Claim, |store| async move { store.claim(&change, past).await }).await
    }

    async fn write(&self, change: &Change) -> Result<Written, StoreError> {
        let (change, step) = (change.clone(), step_of(change));
        if self.forgotten.lock().unwrap().pop_if(|forgotten| *forgotten == step).is_some() {
            return Ok(Written::Applied);
        }
        let alerted = self.alerted.lock().unwrap().pop_if(|alerted| *alerted == step);
        if alerted.is_some() {
            self.note_alert(change.operation.id).await;
        }
        self.through(step, |store| async move { store.write(&change).await }).await
    }

    async fn read(&self, id: OperationId) -> Result<Option<Found>, StoreError> {
        self.through(Step::Look, |store| async move { store.read(id).await }).await
    }

    async fn request(&self, id: OperationId) -> Result<Option<StoredRequest>, StoreError> {
        if self.has_another_key.load(Ordering::Relaxed) {
            return Err(Damage::KeyGone(KeyId([7; 8])).into());
        }
        self.through(Step::Look, |store| async move { store.request(id).await }).await
    }

    async fn events(&self, id: OperationId) -> Result<History, StoreError> {
        self.through(Step::Look, |store| async move { store.events(id).await }).await
    }

    async fn due(&self, limit: usize) -> Result<Vec<OperationId>, StoreError> {
        self.through(Step::Look, |store| async move { store.due(limit).await }).await
    }

    async fn count_open(&self, scope: &Scope) -> Result<u64, StoreError> {
        let scope = scope.clone();
        self.through(Step::Look, |store| async move { store.count_open(&scope).await }).await
    }

    async fn list(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let cursor = cursor.map(str::to_owned);
        self.through(Step::Look, |store| async move { store.list(cursor.as_deref(), limit).await }).await
    }

    async fn dead_letters(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let cursor = cursor.map(str::to_owned);
        self.through(Step::Look, |store| async move { store.dead_letters(cursor.as_deref(), limit).await }).await
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        self.through(Step::Look, |store| async move { store.purge(limit).await }).await
    }

    async fn remember(&self, name: &str, value: &str, until: Option<Timestamp>) -> Result<Option<String>, StoreError> {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.through(Step::Note, |store| async move { store.remember(&name, &value, until).await }).await
    }

    async fn hold(&self, name: &str, until: Timestamp) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.through(Step::Hold, |store| async move { store.hold(&name, until).await }).await
    }

    async fn hold_if_over(&self, name: &str, until: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let name = name.to_owned();
        self.through(Step::Hold, |store| async move { store.hold_if_over(&name, until).await }).await
    }

    async fn take(&self, rates: &[(String, Pace)]) -> Result<Result<(), TooMany>, StoreError> {
        let rates = rates.to_vec();
        self.through(Step::Hold, |store| async move { store.take(&rates).await }).await
    }

    async fn replace_hold(&self, name: &str, known: Timestamp, until: Option<Timestamp>) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.through(Step::Hold, |store| async move { store.replace_hold(&name, known, until).await }).await
    }

    async fn held(&self) -> Result<Vec<(String, Timestamp)>, StoreError> {
        self.through(Step::Hold, |store| async move { store.held().await }).await
    }

    async fn recall(&self, name: &str) -> Result<Option<String>, StoreError> {
        let name = name.to_owned();
        self.through(Step::Look, |store| async move { store.recall(&name).await }).await
    }

    async fn take_turn(&self, _: &str, _: Duration) -> Result<bool, StoreError> {
        let one_less = |left: usize| left.checked_sub(1);
        Ok(self.turns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.through(Step::Look, |store| async move { store.ping().await }).await
    }
}

/// What the store itself holds, past every fault.
pub struct Kept {
    pub operation: oncegate::operation::Operation,
    pub receipt: Option<Receipt>,
    pub events: Vec<Event>,
}

pub async fn kept(store: &MemoryStore, id: OperationId) -> Option<Kept> {
    let found = store.read(id).await.unwrap()?;
    Some(Kept { operation: found.operation, receipt: found.receipt, events: store.events(id).await.unwrap().events })
}
