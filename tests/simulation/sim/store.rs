//! A store that does what the contract of `src/store/mod.rs` says, one atomic step at a time; what is lost on the way
//! to it and back is the network's business. Records pass through their stored form.

use oncegate::clock::Timestamp;
use oncegate::operation::transition::{Change, RequestChange};
use oncegate::operation::{Event, Operation, Receipt, StateName, StoredRequest};
use oncegate::store::{Claimed, Found, Written, record};

use super::setup::{Broken, Setup};

/// All records, by the number of their key.
#[derive(Clone)]
pub struct Store {
    pub records: Vec<Option<Record>>,
    /// What a restart leaves of a store that loses its tail.
    synced: Vec<Option<Record>>,
    pub away_until: u64,
    encodes: bool,
    broken: Broken,
}

/// What is kept of one operation.
#[derive(Clone)]
pub struct Record {
    pub operation: Operation,
    pub receipt: Option<(Receipt, Timestamp)>,
    pub request: Option<StoredRequest>,
    /// The last of the history; the others were looked at when they came.
    pub last_event: Option<Event>,
    /// How many records this key had before.
    pub life: usize,
}

impl Store {
    pub fn new(setup: &Setup) -> Self {
        let Setup { keys, encodes, broken, .. } = *setup;
        Self { records: vec![None; keys], synced: vec![None; keys], away_until: 0, encodes, broken }
    }

    pub fn is_away(&self, now: u64) -> bool {
        now < self.away_until
    }

    pub fn live(&self, key: usize, now: Timestamp) -> Option<&Record> {
        let expired = |record: &Record| match self.broken {
            Broken::UnfinishedExpires => now > record.operation.changed_at.after(std::time::Duration::from_secs(1)),
            _ => record.operation.expires_at.is_some_and(|end| end <= now),
        };
        self.records[key].as_ref().filter(|record| !expired(record))
    }

    pub fn read(&self, key: usize, now: Timestamp) -> Option<Found> {
        self.live(key, now).map(|record| record.found(now))
    }

    pub fn claim(&mut self, key: usize, change: &Change, now: Timestamp) -> Claimed {
        if let Some(record) = self.live(key, now) {
            let ours = record.operation.fence.write == change.operation.fence.write;
            let known = ours && self.broken != Broken::ClaimForgetsItself;
            return if known { Claimed::Won } else { Claimed::Exists(Box::new(record.found(now))) };
        }
        let life = self.records[key].as_ref().map_or(0, |record| record.life + 1);
        self.put(key, Record::empty(change, life), change);
        Claimed::Won
    }

    pub fn write(&mut self, key: usize, change: &Change, now: Timestamp) -> Written {
        let Some(record) = self.live(key, now) else { return Written::Gone };
        let held = record.operation.fence;
        if held.write == change.operation.fence.write && self.broken != Broken::WriteForgetsItself {
            return Written::Applied;
        }
        let unfenced = self.broken == Broken::SettleUnfenced && change.operation.state.settled().is_some();
        if !unfenced && change.expected.is_none_or(|fence| record::expected(&fence) != record::expected(&held)) {
            return Written::Refused(Box::new(record.found(now)));
        }
        let record = record.clone();
        self.put(key, record, change);
        Written::Applied
    }

    /// What was acknowledged is on disk now.
    pub fn sync(&mut self) {
        self.synced.clone_from(&self.records);
    }

    pub fn restart(&mut self) {
        if self.broken == Broken::TailLost {
            self.records.clone_from(&self.synced);
        }
    }

    fn put(&mut self, key: usize, mut record: Record, change: &Change) {
        record.apply(change);
        if self.encodes {
            let bytes = record::encode(&change.operation).expect("it has a stored form");
            let stored = record::decode(&bytes);
            assert_eq!(stored.expect("what was encoded is decoded"), record.operation, "a record is stored otherwise");
        }
        if self.broken == Broken::EventApart {
            record.last_event = self.records[key].as_ref().and_then(|before| before.last_event.clone());
        }
        let released = change.operation.state.name() == StateName::NotExecuted && self.broken == Broken::ReleaseDeletes;
        self.records[key] = Some(record).filter(|_| !released);
    }
}

impl Record {
    fn empty(change: &Change, life: usize) -> Self {
        Self { operation: change.operation.clone(), receipt: None, request: None, last_event: None, life }
    }

    fn apply(&mut self, change: &Change) {
        self.operation.clone_from(&change.operation);
        if change.event.is_some() {
            self.last_event.clone_from(&change.event);
        }
        if let (Some(receipt), Some(settled)) = (&change.receipt, change.operation.state.settled()) {
            self.receipt = Some((receipt.clone(), settled.receipt_until));
        }
        match &change.request {
            RequestChange::Keep => {}
            RequestChange::Put(request) => self.request = Some(request.clone()),
            RequestChange::Drop => self.request = None,
        }
    }

    pub fn found(&self, now: Timestamp) -> Found {
        let receipt = self.receipt.as_ref().filter(|(_, until)| *until > now).map(|(receipt, _)| receipt.clone());
        Found::new(self.operation.clone(), receipt.map(Ok))
    }
}
