//! One process life, in a map.
//!
//! Keeps the whole contract of a store except the last word of it: what it acknowledged is gone when the process is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::clock::{Clock, Timestamp};
use crate::operation::event::keep_bounded;
use crate::operation::transition::{Change, RequestChange};
use crate::operation::{Event, Operation, OperationId, Receipt, Scope, StoredRequest};
use crate::store::held::Held;
use crate::store::pace::Paces;
use crate::store::{Claimed, Found, History, Pace, Page, Store, StoreError, TooMany, Written, position, record};

/// A store without a disk: for tests, and for agents that can afford to forget.
pub struct MemoryStore {
    clock: Clock,
    records: Mutex<Records>,
    held: Held,
    paces: Paces,
}

impl MemoryStore {
    /// An empty store that tells the time of `clock`.
    pub fn new(clock: Clock) -> Self {
        Self { clock, records: Mutex::default(), held: Held::default(), paces: Paces::default() }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn claim(&self, change: &Change, past: Option<OperationId>) -> Result<Claimed, StoreError> {
        Ok(self.records().claim(change, past, self.now()))
    }

    async fn write(&self, change: &Change) -> Result<Written, StoreError> {
        Ok(self.records().write(change, self.now()))
    }

    async fn read(&self, id: OperationId) -> Result<Option<Found>, StoreError> {
        let now = self.now();
        Ok(self.records().live(id, now).map(|entry| entry.found(now)))
    }

    fn at_hand(&self, id: OperationId) -> Option<Found> {
        let now = self.now();
        self.records().live(id, now).filter(|entry| entry.receipt.is_some()).map(|entry| entry.found(now))
    }

    async fn request(&self, id: OperationId) -> Result<Option<StoredRequest>, StoreError> {
        Ok(self.records().live(id, self.now()).and_then(|entry| entry.request.clone()))
    }

    async fn events(&self, id: OperationId) -> Result<History, StoreError> {
        let events = self.records().live(id, self.now()).map(|entry| entry.events.clone()).unwrap_or_default();
        Ok(History { events, ..History::default() })
    }

    async fn due(&self, limit: usize) -> Result<Vec<OperationId>, StoreError> {
        let now = self.now();
        let records = self.records();
        let lapsed = records.indexes.due.iter().take_while(|(until, _)| *until <= now);
        Ok(lapsed.map(|(_, id)| *id).take(limit).collect())
    }

    async fn count_open(&self, scope: &Scope) -> Result<u64, StoreError> {
        Ok(self.records().indexes.open.get(scope.digest()).copied().unwrap_or_default())
    }

    async fn list(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let records = self.records();
        Ok(records.page(&records.serials, position(cursor)?, limit, self.now()))
    }

    async fn dead_letters(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let records = self.records();
        Ok(records.page(&records.indexes.dead, position(cursor)?, limit, self.now()))
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        Ok(self.records().purge(limit, self.now()))
    }

    async fn remember(&self, name: &str, value: &str, until: Option<Timestamp>) -> Result<Option<String>, StoreError> {
        Ok(self.records().notes.put(name, value, until, self.now()))
    }

    async fn hold(&self, name: &str, until: Timestamp) -> Result<(), StoreError> {
        self.held.hold(name, until, self.now());
        Ok(())
    }

    async fn hold_if_over(&self, name: &str, until: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.held.hold_if_over(name, until, self.now()))
    }

    async fn take(&self, rates: &[(String, Pace)]) -> Result<Result<(), TooMany>, StoreError> {
        Ok(self.paces.take(rates, self.now()))
    }

    async fn replace_hold(&self, name: &str, known: Timestamp, until: Option<Timestamp>) -> Result<(), StoreError> {
        self.held.replace(name, known, until);
        Ok(())
    }

    async fn held(&self) -> Result<Vec<(String, Timestamp)>, StoreError> {
        Ok(self.held.all(self.now()))
    }

    async fn recall(&self, name: &str) -> Result<Option<String>, StoreError> {
        Ok(self.records().notes.get(name, self.now()))
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[derive(Default)]
struct Records {
    /// Boxed: the map moves all it has when it grows.
    entries: HashMap<OperationId, Box<Entry>>,
    /// By creation; the newest has the greatest serial.
    serials: BTreeMap<u64, OperationId>,
    indexes: Indexes,
    notes: Notes,
}

impl Records {
    fn claim(&mut self, change: &Change, past: Option<OperationId>, now: Timestamp) -> Claimed {
        let id = change.operation.id;
        if let Some(entry) = self.live(id, now) {
            let ours = entry.operation.fence.write == change.operation.fence.write;
            return if ours { Claimed::Won } else { Claimed::Exists(Box::new(entry.found(now))) };
        }
        if let Some(entry) = self.alike(&change.operation, past, now) {
            return Claimed::Alike(Box::new(entry.found(now)));
        }
        self.remove(id);
        self.create(change);
        Claimed::Won
    }

    fn write(&mut self, change: &Change, now: Timestamp) -> Written {
        let id = change.operation.id;
        let Some(entry) = self.live(id, now) else { return Written::Gone };
        let held = entry.operation.fence;
        if held.write == change.operation.fence.write {
            return Written::Applied;
        }
        if change.expected.is_none_or(|fence| record::expected(&fence) != record::expected(&held)) {
            return Written::Refused(Box::new(entry.found(now)));
        }
        self.replace(change);
        Written::Applied
    }

    fn live(&self, id: OperationId, now: Timestamp) -> Option<&Entry> {
        self.entries.get(&id).map(Box::as_ref).filter(|entry| entry.is_live(now))
    }

    fn alike(&self, operation: &Operation, past: Option<OperationId>, now: Timestamp) -> Option<&Entry> {
        let digest = operation.identity.alike?.digest;
        let same = self.indexes.alike.range((digest, LOWEST)..=(digest, HIGHEST)).map(|(_, id)| *id);
        same.filter(|id| *id != operation.id && Some(*id) != past)
            .filter_map(|id| self.live(id, now))
            .find(|entry| entry.blocks_alike(now))
    }

    fn create(&mut self, change: &Change) {
        let serial = self.serials.last_key_value().map_or(1, |(newest, _)| newest + 1);
        self.serials.insert(serial, change.operation.id);
        let mut entry = Entry::new(serial, change.operation.clone());
        entry.apply(change);
        self.indexes.add(&entry);
        self.entries.insert(change.operation.id, Box::new(entry));
    }

    fn replace(&mut self, change: &Change) {
        if let Some(entry) = self.entries.get_mut(&change.operation.id) {
            self.indexes.remove(entry);
            entry.apply(change);
            self.indexes.add(entry);
        }
    }

    fn remove(&mut self, id: OperationId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.indexes.remove(&entry);
            self.serials.remove(&entry.serial);
        }
    }

    fn page(&self, serials: &BTreeMap<u64, OperationId>, before: u64, limit: usize, now: Timestamp) -> Page {
        let older = serials.range(..before).rev().filter_map(|(_, id)| self.live(*id, now));
        let mut entries: Vec<&Entry> = older.take(limit.saturating_add(1)).collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|entry| entry.serial.to_string());
        let operations = entries.into_iter().map(|entry| entry.operation.clone()).collect();
        Page { operations, unreadable: Vec::new(), next }
    }

    fn purge(&mut self, limit: usize, now: Timestamp) -> usize {
        let records: Vec<_> = over(&self.indexes.expiry, now).take(limit).collect();
        for id in &records {
            self.remove(*id);
        }
        let receipts: Vec<_> = over(&self.indexes.receipts, now).take(limit - records.len()).collect();
        for id in &receipts {
            self.drop_receipt(*id);
        }
        let notes = self.notes.purge(limit - records.len() - receipts.len(), now);
        records.len() + receipts.len() + notes
    }

    fn drop_receipt(&mut self, id: OperationId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.indexes.remove(entry);
            entry.receipt = None;
            self.indexes.add(entry);
        }
    }
}

/// Small named values.
#[derive(Default)]
struct Notes {
    values: HashMap<String, (String, Option<Timestamp>)>,
    ends: BTreeSet<(Timestamp, String)>,
}

impl Notes {
    fn put(&mut self, name: &str, value: &str, until: Option<Timestamp>, now: Timestamp) -> Option<String> {
        let before = self.values.insert(name.to_owned(), (value.to_owned(), until));
        self.ends.extend(until.map(|end| (end, name.to_owned())));
        let (value, end) = before?;
        if let Some(end) = end.filter(|end| Some(*end) != until) {
            self.ends.remove(&(end, name.to_owned()));
        }
        end.is_none_or(|end| now < end).then_some(value)
    }

    fn get(&self, name: &str, now: Timestamp) -> Option<String> {
        let (value, end) = self.values.get(name)?;
        end.is_none_or(|end| now < end).then(|| value.clone())
    }

    fn purge(&mut self, limit: usize, now: Timestamp) -> usize {
        let over: Vec<_> = self.ends.iter().take_while(|(end, _)| *end <= now).take(limit).cloned().collect();
        for end in &over {
            self.ends.remove(end);
            self.values.remove(&end.1);
        }
        over.len()
    }
}

/// What is kept of one operation.
struct Entry {
    serial: u64,
    operation: Operation,
    receipt: Option<KeptReceipt>,
    request: Option<StoredRequest>,
    events: Vec<Event>,
}

struct KeptReceipt {
    receipt: Receipt,
    until: Timestamp,
}

impl Entry {
    fn new(serial: u64, operation: Operation) -> Self {
        Self { serial, operation, receipt: None, request: None, events: Vec::new() }
    }

    fn apply(&mut self, change: &Change) {
        self.operation.clone_from(&change.operation);
        if let Some(event) = &change.event {
            self.events.push(event.clone());
            keep_bounded(&mut self.events);
        }
        if let (Some(receipt), Some(settled)) = (&change.receipt, change.operation.state.settled()) {
            self.receipt = Some(KeptReceipt { receipt: receipt.detached(), until: settled.receipt_until });
        }
        match &change.request {
            RequestChange::Keep => {}
            RequestChange::Put(request) => self.request = Some(request.clone()),
            RequestChange::Drop => self.request = None,
        }
    }

    fn is_live(&self, now: Timestamp) -> bool {
        self.operation.expires_at.is_none_or(|end| end > now)
    }

    fn blocks_alike(&self, now: Timestamp) -> bool {
        self.operation.blocks_alike().is_some_and(|(_, blocking)| blocking.holds_at(now))
    }

    fn found(&self, now: Timestamp) -> Found {
        let receipt = self.receipt.as_ref().filter(|kept| kept.until > now).map(|kept| Ok(kept.receipt.clone()));
        Found::new(self.operation.clone(), receipt)
    }
}

const LOWEST: OperationId = OperationId::from_bytes([0; 20]);
const HIGHEST: OperationId = OperationId::from_bytes([u8::MAX; 20]);

/// Every index is a function of an entry alone: take the entry out before it changes, put it back after.
#[derive(Default)]
struct Indexes {
    due: BTreeSet<(Timestamp, OperationId)>,
    expiry: BTreeSet<(Timestamp, OperationId)>,
    receipts: BTreeSet<(Timestamp, OperationId)>,
    alike: BTreeSet<([u8; 32], OperationId)>,
    /// Open dead letters, by the serials of their operations.
    dead: BTreeMap<u64, OperationId>,
    /// Unfinished operations of each scope that has one.
    open: HashMap<[u8; 32], u64>,
}

impl Indexes {
    fn add(&mut self, entry: &Entry) {
        let id = entry.operation.id;
        self.due.extend(entry.operation.due().map(|at| (at, id)));
        self.expiry.extend(entry.operation.expires_at.map(|at| (at, id)));
        self.receipts.extend(entry.receipt.as_ref().map(|kept| (kept.until, id)));
        self.alike.extend(entry.operation.blocks_alike().map(|(alike, _)| (alike.digest, id)));
        self.dead.extend(entry.operation.dead_letter().map(|_| (entry.serial, id)));
        if entry.operation.is_open() {
            *self.open.entry(*entry.operation.identity.scope.digest()).or_default() += 1;
        }
    }

    fn remove(&mut self, entry: &Entry) {
        let id = entry.operation.id;
        if let Some(at) = entry.operation.due() {
            self.due.remove(&(at, id));
        }
        if let Some(at) = entry.operation.expires_at {
            self.expiry.remove(&(at, id));
        }
        if let Some(kept) = &entry.receipt {
            self.receipts.remove(&(kept.until, id));
        }
        if let Some((alike, _)) = entry.operation.blocks_alike() {
            self.alike.remove(&(alike.digest, id));
        }
        self.dead.remove(&entry.serial);
        if entry.operation.is_open() {
            self.close(entry.operation.identity.scope.digest());
        }
    }

    fn close(&mut self, scope: &[u8; 32]) {
        if let Some(open) = self.open.get_mut(scope) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(scope);
            }
        }
    }
}

fn over(index: &BTreeSet<(Timestamp, OperationId)>, now: Timestamp) -> impl Iterator<Item = OperationId> + '_ {
    index.iter().take_while(move |(at, _)| *at <= now).map(|(_, id)| *id)
}
