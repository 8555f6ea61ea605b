//! A change as the tables take it: encoded by its caller, so that the thread which writes only writes.

use crate::clock::Timestamp;
use crate::operation::event::MAX_EVENTS;
use crate::operation::transition::{Change, RequestChange};
use crate::operation::{Fence, OperationId, WriteId};
use crate::store::{Sealer, StoreError, record};

/// One write, ready for SQL.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) id: OperationId,
    pub(super) write: WriteId,
    pub(super) record: Vec<u8>,
    /// For what the step finds.
    pub(super) sealer: Sealer,
    pub(super) due: Option<Timestamp>,
    pub(super) expires: Option<Timestamp>,
    pub(super) alike: Option<[u8; 32]>,
    pub(super) alike_until: Option<i64>,
    /// The scope, for as long as the operation is unfinished.
    pub(super) open: Option<[u8; 32]>,
    /// It is an open dead letter.
    pub(super) dead: Option<bool>,
    pub(super) event: Option<EventRow>,
    pub(super) receipt: Option<ReceiptRow>,
    pub(super) request: RequestRow,
    /// Whom it looks for among those that it might be, however it is written.
    pub(super) asks_alike: Option<[u8; 32]>,
    expected: Option<[u8; 32]>,
}

#[derive(Debug)]
pub(super) struct EventRow {
    pub(super) revision: u64,
    /// It is one more than are kept.
    pub(super) is_too_many: bool,
    pub(super) event: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct ReceiptRow {
    pub(super) until: Timestamp,
    pub(super) receipt: Vec<u8>,
}

#[derive(Debug)]
pub(super) enum RequestRow {
    Keep,
    Put(Vec<u8>),
    Drop,
}

impl Row {
    pub(super) fn of(sealer: &Sealer, change: &Change) -> Result<Self, StoreError> {
        let operation = &change.operation;
        let blocks = operation.blocks_alike();
        Ok(Self {
            id: operation.id,
            write: operation.fence.write,
            record: record::encode(operation)?,
            sealer: sealer.clone(),
            due: operation.due(),
            expires: operation.expires_at,
            alike: blocks.map(|(alike, _)| alike.digest),
            alike_until: blocks.and_then(|(_, blocking)| blocking.as_number()),
            open: operation.is_open().then_some(*operation.identity.scope.digest()),
            dead: operation.dead_letter().map(|_| true),
            event: event(sealer, change)?,
            receipt: receipt(sealer, change)?,
            request: request(sealer, change)?,
            asks_alike: operation.identity.alike.map(|alike| alike.digest),
            expected: change.expected.as_ref().map(record::expected),
        })
    }

    /// Whether `held` is what this write was made for.
    pub(super) fn expects(&self, held: &Fence) -> bool {
        self.expected == Some(record::expected(held))
    }
}

fn event(sealer: &Sealer, change: &Change) -> Result<Option<EventRow>, StoreError> {
    let Some(event) = &change.event else { return Ok(None) };
    let is_too_many = change.operation.events_left_out(MAX_EVENTS) > 0;
    Ok(Some(EventRow {
        revision: event.revision,
        is_too_many,
        event: record::encode_part(sealer, change.operation.id, event)?,
    }))
}

fn receipt(sealer: &Sealer, change: &Change) -> Result<Option<ReceiptRow>, StoreError> {
    match (&change.receipt, change.operation.state.settled()) {
        (Some(receipt), Some(settled)) => {
            let receipt = record::encode_part(sealer, change.operation.id, receipt)?;
            Ok(Some(ReceiptRow { until: settled.receipt_until, receipt }))
        }
        (None, _) | (_, None) => Ok(None),
    }
}

fn request(sealer: &Sealer, change: &Change) -> Result<RequestRow, StoreError> {
    Ok(match &change.request {
        RequestChange::Keep => RequestRow::Keep,
        RequestChange::Put(request) => RequestRow::Put(record::encode_part(sealer, change.operation.id, request)?),
        RequestChange::Drop => RequestRow::Drop,
    })
}
