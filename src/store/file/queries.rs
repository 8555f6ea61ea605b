//! What is read. A record whose time is over is not there, whether or not it was purged.

use rusqlite::{Connection, OptionalExtension, named_params};

use super::row::Row;
use super::{Failure, at, integer};
use crate::clock::Timestamp;
use crate::operation::{OperationId, Scope, StoredRequest};
use crate::store::{Found, History, Page, Sealer, Unreadable, record};

/// A record and its receipt, as bytes.
type Stored = (Vec<u8>, Option<Vec<u8>>);

pub(super) fn found(
    connection: &Connection,
    sealer: &Sealer,
    id: OperationId,
    now: Timestamp,
) -> Result<Option<Found>, Failure> {
    let mut select = connection.prepare_cached(
        "SELECT record, receipt FROM operations
         LEFT JOIN receipts ON receipts.serial = operations.serial AND until > :now
         WHERE id = :id AND (expires IS NULL OR expires > :now)",
    )?;
    let stored = select.query_row(named_params! { ":id": id.as_bytes(), ":now": at(now) }, stored).optional()?;
    Ok(stored.map(|stored| decoded(sealer, id, &stored)).transpose()?)
}

/// The bytes of a record.
pub(super) fn record(connection: &Connection, id: OperationId, now: Timestamp) -> Result<Option<Vec<u8>>, Failure> {
    let mut select = connection
        .prepare_cached("SELECT record FROM operations WHERE id = :id AND (expires IS NULL OR expires > :now)")?;
    let given = named_params! { ":id": id.as_bytes(), ":now": at(now) };
    Ok(select.query_row(given, |row| row.get(0)).optional()?)
}

/// An identical unnamed call that stands in the way of `row`.
pub(super) fn alike(
    connection: &Connection,
    sealer: &Sealer,
    row: &Row,
    past: Option<OperationId>,
    now: Timestamp,
) -> Result<Option<Found>, Failure> {
    let Some(digest) = row.asks_alike else { return Ok(None) };
    let mut select = connection.prepare_cached(
        "SELECT id, record, receipt FROM operations
         LEFT JOIN receipts ON receipts.serial = operations.serial AND until > :now
         WHERE alike = :digest AND (alike_until IS NULL OR alike_until > :now)
           AND id <> :id AND id <> :past AND (expires IS NULL OR expires > :now)
         LIMIT 1",
    )?;
    let past = past.unwrap_or(row.id);
    let given =
        named_params! { ":digest": digest, ":id": row.id.as_bytes(), ":past": past.as_bytes(), ":now": at(now) };
    let named = |row: &rusqlite::Row<'_>| Ok((OperationId::from_bytes(row.get(0)?), (row.get(1)?, row.get(2)?)));
    let stored = select.query_row(given, named).optional()?;
    Ok(stored.map(|(id, stored)| decoded(sealer, id, &stored)).transpose()?)
}

pub(super) fn request(
    connection: &Connection,
    sealer: &Sealer,
    id: OperationId,
    now: Timestamp,
) -> Result<Option<StoredRequest>, Failure> {
    let mut select = connection.prepare_cached(
        "SELECT request FROM requests JOIN operations USING (serial)
         WHERE id = :id AND (expires IS NULL OR expires > :now)",
    )?;
    let given = named_params! { ":id": id.as_bytes(), ":now": at(now) };
    let stored: Option<Vec<u8>> = select.query_row(given, |row| row.get(0)).optional()?;
    Ok(stored.map(|bytes| record::decode_part(sealer, id, &bytes)).transpose()?)
}

pub(super) fn events(
    connection: &Connection,
    sealer: &Sealer,
    id: OperationId,
    now: Timestamp,
) -> Result<History, Failure> {
    let mut select = connection.prepare_cached(
        "SELECT event FROM events JOIN operations USING (serial)
         WHERE id = :id AND (expires IS NULL OR expires > :now) ORDER BY revision",
    )?;
    let mut history = History::default();
    for bytes in select.query_map(named_params! { ":id": id.as_bytes(), ":now": at(now) }, |row| row.get(0))? {
        let bytes: Vec<u8> = bytes?;
        history.add(record::decode_part(sealer, id, &bytes));
    }
    Ok(history)
}

pub(super) fn due(connection: &Connection, limit: usize, now: Timestamp) -> Result<Vec<OperationId>, Failure> {
    let mut select =
        connection.prepare_cached("SELECT id FROM operations WHERE due <= :now ORDER BY due LIMIT :limit")?;
    let given = named_params! { ":now": at(now), ":limit": integer(limit as u64) };
    let rows = select.query_map(given, |row| row.get(0))?;
    Ok(rows.map(|id| id.map(OperationId::from_bytes)).collect::<Result<_, _>>()?)
}

pub(super) fn count_open(connection: &Connection, scope: &Scope) -> Result<u64, Failure> {
    let mut select = connection.prepare_cached("SELECT count(*) FROM operations WHERE open = ?1")?;
    let count: i64 = select.query_row([scope.digest()], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

pub(super) fn list(connection: &Connection, before: u64, limit: usize, now: Timestamp) -> Result<Page, Failure> {
    let mut select = connection.prepare_cached(
        "SELECT serial, id, record FROM operations
         WHERE serial < :before AND (expires IS NULL OR expires > :now) ORDER BY serial DESC LIMIT :limit",
    )?;
    let one_more = integer(limit as u64).saturating_add(1);
    let given = named_params! { ":before": integer(before), ":now": at(now), ":limit": one_more };
    let rows = select.query_map(given, |row| Ok((row.get(0)?, OperationId::from_bytes(row.get(1)?), row.get(2)?)))?;
    Ok(page(rows.collect::<Result<_, _>>()?, limit))
}

fn page(mut rows: Vec<(i64, OperationId, Vec<u8>)>, limit: usize) -> Page {
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(|(serial, ..)| serial.to_string());
    let mut page = Page { next, ..Page::default() };
    for (_, id, bytes) in rows {
        page.add(id, record::decode_of(id, &bytes));
    }
    page
}

fn stored(row: &rusqlite::Row<'_>) -> rusqlite::Result<Stored> {
    Ok((row.get(0)?, row.get(1)?))
}

fn decoded(sealer: &Sealer, id: OperationId, (record, receipt): &Stored) -> Result<Found, Unreadable> {
    let operation = record::decode_of(id, record)?;
    Ok(Found::new(operation, receipt.as_ref().map(|bytes| record::decode_part(sealer, id, bytes))))
}
