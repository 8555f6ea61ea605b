//! What is stored and cannot be read: said once, counted, and never a reason to send anything.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::engine::Engine;
use crate::operation::{EventKind, OperationId, StoredRequest};
use crate::store::{Damage, Found, Kind, StoreError, Unreadable};

/// More are counted, but no longer told apart.
const MOST: usize = 1024;
/// Named in the warning.
const NAMED: usize = 5;

/// Everything unreadable that was met since the start, each thing once.
#[derive(Debug, Default)]
pub struct UnreadableParts(Mutex<Met>);

#[derive(Debug, Default)]
struct Met {
    parts: BTreeMap<(OperationId, Kind), Unreadable>,
    counts: UnreadableCounts,
}

/// How many of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnreadableCounts {
    pub records: u64,
    pub receipts: u64,
    pub requests: u64,
    pub events: u64,
}

impl UnreadableParts {
    /// Notes one. What a newer version wrote is no damage: it is what an upgrade looks like.
    pub fn note(&self, operation: OperationId, kind: Kind, why: Unreadable) {
        if matches!(why, Unreadable::TooNew(_)) {
            return;
        }
        let mut met = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if met.parts.contains_key(&(operation, kind)) {
            return;
        }
        *met.counts.of(kind) += 1;
        if met.parts.len() < MOST {
            met.parts.insert((operation, kind), why);
        }
        drop(met);
        tracing::error!(%operation, part = kind.as_str(), %why, "what is stored cannot be read");
    }

    pub fn counts(&self) -> UnreadableCounts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).counts
    }

    /// For an operator, who alone can do something about it.
    pub fn warning(&self) -> Option<String> {
        let met = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let named = met.parts.iter().take(NAMED).map(|((id, kind), why)| format!("{} of {id}: {why}", kind.as_str()));
        let named: Vec<_> = named.collect();
        let UnreadableCounts { records, receipts, requests, events } = met.counts;
        (!named.is_empty()).then(|| {
            let parts = match records + receipts + requests + events {
                1 => "1 stored part".to_owned(),
                parts => format!("{parts} stored parts"),
            };
            format!(
                "{parts} cannot be read; nothing is sent for what is meant by it ({}); give the key back, or restore it from a backup",
                named.join("; ")
            )
        })
    }
}

impl UnreadableCounts {
    fn of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Record => &mut self.records,
            Kind::Receipt => &mut self.receipts,
            Kind::Request => &mut self.requests,
            Kind::Event => &mut self.events,
        }
    }
}

/// What is left of the request of an operation.
pub(super) enum KeptRequest {
    Here(StoredRequest),
    /// Sealed with a key that this gateway does not have, and another one may.
    Strange,
    Gone,
}

impl KeptRequest {
    /// It, if it can be sent.
    pub(super) fn here(self) -> Option<StoredRequest> {
        match self {
            Self::Here(request) => Some(request),
            Self::Strange | Self::Gone => None,
        }
    }
}

impl Engine {
    /// An error of the store about a record: counted if it says that the record cannot be read.
    pub(super) fn note_unreadable(&self, id: OperationId, error: &StoreError) {
        if let Some(why) = error.unreadable() {
            self.shared.status.unreadable.note(id, Kind::Record, why);
        }
    }

    /// The request of an operation. One that is damaged is as good as none: it is never sent.
    pub(super) async fn kept_request(&self, id: OperationId) -> Result<KeptRequest, StoreError> {
        match self.store.request(id).await {
            Err(StoreError::Corrupt(damage)) => {
                self.shared.status.unreadable.note(id, Kind::Request, damage.into());
                Ok(if matches!(damage, Damage::KeyGone(_)) { KeptRequest::Strange } else { KeptRequest::Gone })
            }
            Err(error @ StoreError::NoKey(key)) => {
                self.shared.status.unreadable.note(id, Kind::Request, Unreadable::NoKey(key));
                Err(error)
            }
            answer => answer.map(|request| request.map_or(KeptRequest::Gone, KeptRequest::Here)),
        }
    }

    /// A receipt that is there and cannot be read: the history of its operation says so, once.
    pub(super) async fn note_lost_receipt(&self, found: &Found) {
        let Some(why) = found.lost else { return };
        let id = found.operation.id;
        self.shared.status.unreadable.note(id, Kind::Receipt, why);
        if let (Unreadable::Damaged(_), Err(error)) = (why, self.tell_history(found).await) {
            tracing::warn!(operation = %id, %error, "the history does not say yet that the receipt is damaged");
        }
    }

    /// Two that find it at the same time write the same revision, and the store takes one of them.
    async fn tell_history(&self, found: &Found) -> Result<(), StoreError> {
        let history = self.store.events(found.operation.id).await?;
        let is_said = history.events.iter().any(|event| event.kind == EventKind::ReceiptUnreadable);
        // What cannot be read may have said it.
        if is_said || !history.unreadable.is_empty() {
            return Ok(());
        }
        match found.operation.lose_receipt(self.step()) {
            Ok(change) => self.store.write(&change).await.map(drop),
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Damage;

    fn id(key: &str) -> OperationId {
        OperationId::of(&[0; 32], "payments", key, None)
    }

    #[test]
    fn each_part_counts_once_and_is_named() {
        let parts = UnreadableParts::default();
        assert_eq!(parts.warning(), None);
        for kind in [Kind::Record, Kind::Receipt, Kind::Receipt] {
            parts.note(id("k"), kind, Damage::Checksum.into());
        }
        let counts = parts.counts();
        assert_eq!((counts.records, counts.receipts, counts.requests, counts.events), (1, 1, 0, 0));
        let warning = parts.warning().unwrap();
        assert!(warning.starts_with("2 stored parts"), "{warning}");
        assert!(
            warning.contains(&format!("receipt of {}: it is damaged: its checksum is wrong", id("k"))),
            "{warning}"
        );
    }

    #[test]
    fn an_upgrade_is_no_damage() {
        let parts = UnreadableParts::default();
        parts.note(id("k"), Kind::Record, Unreadable::TooNew(2));
        assert_eq!((parts.counts(), parts.warning()), (UnreadableCounts::default(), None));
    }

    #[test]
    fn beyond_the_bound_they_are_still_counted() {
        let parts = UnreadableParts::default();
        for number in 0..=MOST {
            parts.note(id(&number.to_string()), Kind::Event, Damage::Checksum.into());
        }
        assert_eq!(parts.counts().events, MOST as u64 + 1);
    }
}
