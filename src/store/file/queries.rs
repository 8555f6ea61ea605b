//! What is read. A record whose time is over is not there, whether or not it was purged.

use rusqlite::{Connection, OptionalExtension, named_params, params};

use super::row::Row;
use super::{Failure, HOLD, at, integer};
use crate::clock::Timestamp;
use crate::operation::{Fence, OperationId, Scope, StoredRequest};
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
         LEFT JOIN receipts ON receipts.serial = operations.serial AND until > ?2
         WHERE id = ?1 AND (expires IS NULL OR expires > ?2)",
    )?;
    let stored = select.query_row(params![id.as_bytes(), at(now)], stored).optional()?;
    Ok(stored.map(|stored| decoded(sealer, id, &stored)).transpose()?)
}

/// Where a record is, and its fence, if that can be read.
pub(super) fn fence(
    connection: &Connection,
    id: OperationId,
    now: Timestamp,
) -> Result<Option<(i64, Option<Fence>)>, Failure> {
    let mut select = connection
        .prepare_cached("SELECT serial, record FROM operations WHERE id = ?1 AND (expires IS NULL OR expires > ?2)")?;
    let fence = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, record::fence(row.get_ref(1)?.as_blob()?)));
    Ok(select.query_row(params![id.as_bytes(), at(now)], fence).optional()?)
}

/// Where a record is, whether or not its time is over.
pub(super) fn serial(connection: &Connection, id: OperationId) -> rusqlite::Result<Option<i64>> {
    let mut select = connection.prepare_cached("SELECT serial FROM operations WHERE id = ?1")?;
    select.query_row([id.as_bytes()], |row| row.get(0)).optional()
}

/// An identical unnamed call that stands in the way of `row`, while that has no record.
pub(super) fn alike(
    connection: &Connection,
    row: &Row,
    past: Option<OperationId>,
    now: Timestamp,
) -> Result<Option<Found>, Failure> {
    let Some(digest) = row.asks_alike else { return Ok(None) };
    let mut select = connection.prepare_cached(
        "SELECT id, record, receipt FROM operations
         LEFT JOIN receipts ON receipts.serial = operations.serial AND until > ?4
         WHERE alike = ?1 AND (alike_until IS NULL OR alike_until > ?4 OR alike_until BETWEEN -?4 AND 0)
           AND id <> ?2 AND id <> ?3 AND (expires IS NULL OR expires > ?4)
           AND NOT EXISTS (SELECT 1 FROM operations WHERE id = ?2 AND (expires IS NULL OR expires > ?4))
         LIMIT 1",
    )?;
    let past = past.unwrap_or(row.id);
    let named = |row: &rusqlite::Row<'_>| Ok((OperationId::from_bytes(row.get(0)?), (row.get(1)?, row.get(2)?)));
    let stored = select.query_row(params![digest, row.id.as_bytes(), past.as_bytes(), at(now)], named).optional()?;
    Ok(stored.map(|(id, stored)| decoded(&row.sealer, id, &stored)).transpose()?)
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
    let mut select = connection.prepare_cached(
        "SELECT (SELECT count(*) FROM operations WHERE open = ?1 AND due IS NULL)
              + (SELECT count(*) FROM operations INDEXED BY operations_due WHERE due IS NOT NULL AND open = ?1)",
    )?;
    let count: i64 = select.query_row([scope.digest()], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

pub(super) fn list(connection: &Connection, before: u64, limit: usize, now: Timestamp) -> Result<Page, Failure> {
    let newest = "SELECT serial, id, record FROM operations
         WHERE serial < :before AND (expires IS NULL OR expires > :now) ORDER BY serial DESC LIMIT :limit";
    listed(connection, newest, before, limit, now)
}

/// A version without dead letters closes none.
pub(super) fn dead_letters(
    connection: &Connection,
    before: u64,
    limit: usize,
    now: Timestamp,
) -> Result<Page, Failure> {
    let newest = "SELECT serial, id, record FROM operations INDEXED BY operations_dead
         WHERE dead IS NOT NULL AND serial < :before AND (expires IS NULL OR expires > :now)
         ORDER BY serial DESC LIMIT :limit";
    let mut page = listed(connection, newest, before, limit, now)?;
    page.operations.retain(|operation| operation.dead_letter().is_some());
    Ok(page)
}

fn listed(connection: &Connection, newest: &str, before: u64, limit: usize, now: Timestamp) -> Result<Page, Failure> {
    let mut select = connection.prepare_cached(newest)?;
    let one_more = integer(limit as u64).saturating_add(1);
    let given = named_params! { ":before": integer(before), ":now": at(now), ":limit": one_more };
    let rows = select.query_map(given, |row| Ok((row.get(0)?, OperationId::from_bytes(row.get(1)?), row.get(2)?)))?;
    Ok(page(rows.collect::<Result<_, _>>()?, limit))
}

/// Every name that is held, and until when.
pub(super) fn holds(connection: &Connection, now: Timestamp) -> rusqlite::Result<Vec<(String, Timestamp)>> {
    let mut select = connection
        .prepare("SELECT substr(name, 1 + length(?1)), until FROM notes WHERE name GLOB ?1 || '*' AND until > ?2")?;
    let held = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, Timestamp(row.get::<_, i64>(1)?.unsigned_abs())));
    select.query_map(params![HOLD, at(now)], held)?.collect()
}

/// A named value, while it lives.
pub(super) fn note(connection: &Connection, name: &str, now: Timestamp) -> Result<Option<String>, Failure> {
    let mut select =
        connection.prepare_cached("SELECT value FROM notes WHERE name = ?1 AND (until IS NULL OR until > ?2)")?;
    Ok(select.query_row(params![name, at(now)], |row| row.get(0)).optional()?)
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
