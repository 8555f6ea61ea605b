//! Three logs against each other: what the upstream wrote down, what clients were told, and the events in the store.
//!
//! Nothing runs here: the logs are complete, and every breach of what always holds is found in them.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use oncegate::operation::{Event, EventKind, StateName};

use crate::faults::Repeat;
use crate::faults::journal::Entry;
use crate::plan::Ends;

/// Everything that is known of a run.
#[derive(Default)]
pub struct Logs {
    /// The journal of the upstream.
    pub sends: Vec<Entry>,
    /// What clients heard, in order.
    pub told: Vec<Told>,
    /// What is in the store at the end.
    pub records: Vec<Record>,
    /// What was asked for, and how often somebody died over it.
    pub calls: Vec<Asked>,
    /// How many gateways were to die at the point.
    pub rounds: usize,
    /// Within which a dead owner must be free.
    pub limit: Duration,
}

/// One answer, or none.
#[derive(Clone, Debug)]
pub struct Told {
    /// By the clock of the journal.
    pub at: u64,
    pub key: String,
    pub said: Said,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The connection broke.
    Nothing,
    /// The store did not answer in time, which takes nothing back.
    NoStore,
    NotYet,
    Unknown,
    /// A digest of all that a client sees of it.
    Receipt(u64),
}

/// An operation as the store has it.
#[derive(Clone, Debug)]
pub struct Record {
    pub key: String,
    pub state: StateName,
    pub attempts: u32,
    pub events: Vec<Event>,
}

/// One call, whose gateway was to die over it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub key: String,
    pub repeat: Repeat,
    pub ends: Ends,
    /// The gateway came to the point and died there.
    pub reached: bool,
    /// How long somebody lived who could go on until somebody had, without what this machine needs to start a gateway.
    pub freed_after: Vec<Duration>,
}

/// One thing that must not be, and of which call.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    pub key: String,
    pub breach: Breach,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    SecondRun,
    /// It was sent again after a client had its receipt.
    RunAfterReceipt,
    /// Two sends of one key were not the same.
    OtherBytes,
    /// The upstream saw more sends than the record counts.
    UncountedSend,
    LostReceipt,
    ChangedReceipt,
    /// Nothing ran, and a client holds a receipt of it.
    InventedReceipt,
    /// An unknown became something else without evidence.
    SilentUnknown,
    EventGap,
    NoRecord,
    /// The record is still owned, or no client was told an end.
    Unfinished,
    WrongEnd(Ends),
    Blocked(Duration),
    /// Of all rounds of a cell, with those that were played again.
    NotReached,
    /// Of all calls.
    TooFewSucceeded,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.key, self.breach)
    }
}

/// What is known of one call.
struct Case<'a> {
    asked: &'a Asked,
    sends: Vec<&'a Entry>,
    told: Vec<&'a Told>,
    record: Option<&'a Record>,
}

/// Every violation in `logs`.
pub fn check(logs: &Logs) -> Vec<Violation> {
    let mut sends = by_key(&logs.sends, |send| &send.key);
    let mut told = by_key(&logs.told, |told| &told.key);
    let mut records = by_key(&logs.records, |record| &record.key);
    let cases = logs.calls.iter().map(|asked| Case {
        asked,
        sends: sends.remove(asked.key.as_str()).unwrap_or_default(),
        told: told.remove(asked.key.as_str()).unwrap_or_default(),
        record: records.remove(asked.key.as_str()).and_then(|mut records| records.pop()),
    });
    let reached = logs.calls.iter().filter(|asked| asked.reached).count();
    let missed = Violation { key: format!("{reached} of {} rounds", logs.rounds), breach: Breach::NotReached };
    cases.flat_map(|case| case.violations(logs.limit)).chain((reached < logs.rounds).then_some(missed)).collect()
}

/// Says whether at least half of the calls of a run came to a receipt: one that fails everything proves nothing.
pub fn too_few(receipts: usize, calls: usize) -> Option<Violation> {
    let breach = Breach::TooFewSucceeded;
    (2 * receipts < calls).then(|| Violation { key: format!("{receipts} receipts of {calls} calls"), breach })
}

fn by_key<T>(log: &[T], key: impl Fn(&T) -> &String) -> HashMap<&str, Vec<&T>> {
    let mut sorted: HashMap<&str, Vec<&T>> = HashMap::new();
    for line in log {
        sorted.entry(key(line)).or_default().push(line);
    }
    sorted
}

impl Case<'_> {
    fn violations(&self, limit: Duration) -> Vec<Violation> {
        let breaches = [self.upstream(), self.clients(), self.store(), self.blocked(limit)].concat();
        breaches.into_iter().map(|breach| Violation { key: self.asked.key.clone(), breach }).collect()
    }

    /// What the upstream saw.
    fn upstream(&self) -> Vec<Breach> {
        let runs = self.sends.iter().filter(|send| send.runs).count();
        let receipt_at = self.told.iter().find(|told| is_receipt(&told.said)).map(|told| told.at);
        let last_send_at = self.sends.last().map(|send| send.at);
        let same = self.sends.windows(2).all(|pair| pair[0].digest == pair[1].digest);
        let counted = self.record.map_or(0, |record| record.attempts as usize);
        let unknown_at = self.told.iter().find(|told| told.said == Said::Unknown).map(|told| told.at);
        let is_unsafe = self.asked.repeat == Repeat::Unsafe;
        collect([
            (runs > 1 && self.asked.repeat != Repeat::Harmless, Breach::SecondRun),
            (is_unsafe && unknown_at.zip(last_send_at).is_some_and(|(told, sent)| sent > told), Breach::SecondRun),
            (receipt_at.zip(last_send_at).is_some_and(|(told, sent)| sent > told), Breach::RunAfterReceipt),
            (!same, Breach::OtherBytes),
            (self.sends.len() > counted, Breach::UncountedSend),
        ])
    }

    /// What clients were told.
    fn clients(&self) -> Vec<Breach> {
        let said: Vec<_> = self.told.iter().map(|told| &told.said).collect();
        let receipts: Vec<_> = said.iter().filter(|said| is_receipt(said)).collect();
        let first = said.iter().position(|said| is_receipt(said));
        let since = first.map_or(&[][..], |first| &said[first..]);
        let taken_back = since.iter().any(|said| matches!(said, Said::NotYet | Said::Unknown));
        let lost = taken_back || since.last().is_some_and(|said| !is_receipt(said));
        let ran = self.sends.iter().any(|send| send.runs);
        let doubted = said.contains(&&Said::Unknown);
        let right = match self.asked.ends {
            Ends::Receipt => !doubted,
            Ends::Unknown => receipts.is_empty(),
            Ends::Either => true,
        };
        collect([
            (lost, Breach::LostReceipt),
            (receipts.windows(2).any(|pair| pair[0] != pair[1]), Breach::ChangedReceipt),
            (!receipts.is_empty() && !ran, Breach::InventedReceipt),
            (doubted && !receipts.is_empty() && !self.has_evidence(), Breach::SilentUnknown),
            (receipts.is_empty() && !doubted, Breach::Unfinished),
            (self.asked.reached && !right, Breach::WrongEnd(self.asked.ends)),
        ])
    }

    /// What the store says.
    fn store(&self) -> Vec<Breach> {
        let Some(record) = self.record else { return vec![Breach::NoRecord] };
        let has_receipt = self.told.iter().any(|told| is_receipt(&told.said));
        let is_settled = matches!(record.state, StateName::Succeeded | StateName::Failed);
        let is_owned = matches!(record.state, StateName::Claimed | StateName::Sent | StateName::Waiting);
        let ends_doubt = |event: &&Event| event.from == Some(StateName::Unknown) && event.to.is_some();
        collect([
            (has_receipt && !is_settled, Breach::LostReceipt),
            (is_owned, Breach::Unfinished),
            (!tells_one_story(record), Breach::EventGap),
            (record.events.iter().filter(ends_doubt).any(|event| !self.is_evidence(event)), Breach::SilentUnknown),
        ])
    }

    /// How long anybody waited for the dead.
    fn blocked(&self, limit: Duration) -> Vec<Breach> {
        let longest = self.asked.freed_after.iter().filter(|after| **after > limit).max();
        longest.map(|after| Breach::Blocked(*after)).into_iter().collect()
    }

    fn has_evidence(&self) -> bool {
        let events = self.record.map(|record| record.events.as_slice()).unwrap_or_default();
        events.iter().any(|event| event.from == Some(StateName::Unknown) && self.is_evidence(event))
    }

    /// The late answer of the sender, or his word that the attempt came to nothing; or a new run, where the upstream takes
    /// the call twice.
    fn is_evidence(&self, event: &Event) -> bool {
        match event.kind {
            EventKind::LateAnswer | EventKind::NotExecuted => true,
            EventKind::ClaimedAgain => self.asked.repeat != Repeat::Unsafe,
            _ => false,
        }
    }
}

fn is_receipt(said: &Said) -> bool {
    matches!(said, Said::Receipt(_))
}

/// Every change of state has one event, in one order, up to the state of the record.
fn tells_one_story(record: &Record) -> bool {
    let mut state = None;
    let chained = record.events.iter().filter(|event| event.to.is_some()).all(|event| {
        let follows = event.from == state && event.to.is_some_and(|to| to.may_follow(state));
        state = event.to;
        follows
    });
    let ordered = record.events.windows(2).all(|pair| {
        pair[0].revision < pair[1].revision && pair[0].token <= pair[1].token && pair[0].attempts <= pair[1].attempts
    });
    chained && ordered && state == Some(record.state)
}

fn collect<const N: usize>(found: [(bool, Breach); N]) -> Vec<Breach> {
    found.into_iter().filter_map(|(is_so, breach)| is_so.then_some(breach)).collect()
}

#[cfg(test)]
mod tests;
