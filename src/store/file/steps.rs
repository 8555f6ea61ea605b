//! What is written. Each step runs inside the writer's transaction and looks before it changes anything, so that a
//! refused step leaves nothing for the others to trip over.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, named_params, params};

use super::row::{EventRow, ReceiptRow, RequestRow, Row};
use super::{Failure, at, integer, queries};
use crate::clock::Timestamp;
use crate::crash_point::{self, Point};
use crate::operation::event::FIRST_EVENTS;
use crate::operation::transition::Step;
use crate::operation::{OperationId, WriteId};
use crate::store::{Claimed, Sealer, Written, record};

/// Bytes, of a call with a body of some size.
const AS_MUCH: usize = 64 << 10;

pub(super) fn claim(
    connection: &Connection,
    row: &Row,
    past: Option<OperationId>,
    now: Timestamp,
) -> Result<Claimed, Failure> {
    if let Some(found) = queries::found(connection, &row.sealer, row.id, now)? {
        let ours = found.operation.fence.write == row.write;
        return Ok(if ours { Claimed::Won } else { Claimed::Exists(Box::new(found)) });
    }
    if let Some(found) = queries::alike(connection, &row.sealer, row, past, now)? {
        return Ok(Claimed::Alike(Box::new(found)));
    }
    remove(connection, row.id)?;
    let serial = insert(connection, row)?;
    parts(connection, serial, row)?;
    crash_point::reached(Point::StoreAsked);
    Ok(Claimed::Won)
}

/// Only the fence of the record is looked at: who may write it may also replace what has been damaged.
pub(super) fn write(connection: &Connection, row: &Row, now: Timestamp) -> Result<Written, Failure> {
    let Some(record) = queries::record(connection, row.id, now)? else { return Ok(Written::Gone) };
    let held = record::fence(&record);
    if held.is_some_and(|held| held.write == row.write) {
        return Ok(Written::Applied);
    }
    if !held.is_some_and(|held| row.expects(&held)) {
        let found = queries::found(connection, &row.sealer, row.id, now)?;
        return Ok(found.map_or(Written::Gone, |found| Written::Refused(Box::new(found))));
    }
    let serial = update(connection, row)?;
    parts(connection, serial, row)?;
    crash_point::reached(Point::StoreAsked);
    Ok(Written::Applied)
}

/// Records take what is beside them along.
pub(super) fn purge(connection: &Connection, limit: usize, now: Timestamp) -> Result<usize, Failure> {
    let mut delete = connection.prepare_cached(
        "DELETE FROM operations WHERE serial IN (SELECT serial FROM operations WHERE expires <= ?1 LIMIT ?2)",
    )?;
    let records = delete.execute(params![at(now), integer(limit as u64)])?;
    let mut delete = connection.prepare_cached(
        "DELETE FROM receipts WHERE serial IN (SELECT serial FROM receipts WHERE until <= ?1 LIMIT ?2)",
    )?;
    let rest = limit.saturating_sub(records);
    let receipts = delete.execute(params![at(now), integer(rest as u64)])?;
    let mut delete = connection
        .prepare_cached("DELETE FROM notes WHERE name IN (SELECT name FROM notes WHERE until <= ?1 LIMIT ?2)")?;
    let rest = rest.saturating_sub(receipts);
    Ok(records + receipts + delete.execute(params![at(now), integer(rest as u64)])?)
}

pub(super) fn remember(
    connection: &Connection,
    (name, value): (&str, &str),
    until: Option<Timestamp>,
    now: Timestamp,
) -> Result<Option<String>, Failure> {
    let mut select =
        connection.prepare_cached("SELECT value FROM notes WHERE name = ?1 AND (until IS NULL OR until > ?2)")?;
    let before = select.query_row(params![name, at(now)], |row| row.get(0)).optional()?;
    let mut replace = connection.prepare_cached("REPLACE INTO notes (name, value, until) VALUES (?1, ?2, ?3)")?;
    replace.execute(params![name, value, until.map(at)])?;
    Ok(before)
}

/// A full or read-only disk shows only to somebody who writes, and only if he writes as much as a call does.
pub(super) fn ping(connection: &Connection, now: Timestamp) -> Result<(), Failure> {
    remember(connection, ("ping", &" ".repeat(AS_MUCH)), None, now).map(drop)
}

/// Ends every lease now: for a file whose lock proved that the owners are dead. Records that this version cannot read
/// stay as they are.
pub(super) fn end_leases(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    let mut select = transaction.prepare("SELECT record FROM operations WHERE due > ?1")?;
    let held: Vec<Vec<u8>> = select.query_map([at(now)], |row| row.get(0))?.collect::<Result<_, _>>()?;
    drop(select);
    for row in held.iter().filter_map(|record| with_lease_over(record, now)) {
        update(&transaction, &row)?;
    }
    transaction.commit()
}

fn with_lease_over(bytes: &[u8], now: Timestamp) -> Option<Row> {
    let operation = record::decode(bytes).ok()?;
    let over = operation.renew(Duration::ZERO, Step { now, write: WriteId::default() }).ok()?;
    Row::of(&Sealer::none(), &over).ok()
}

fn remove(connection: &Connection, id: OperationId) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM operations WHERE id = ?1")?.execute([id.as_bytes()]).map(drop)
}

fn insert(connection: &Connection, row: &Row) -> rusqlite::Result<i64> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO operations (id, record, due, expires, alike, alike_until, open)
         VALUES (:id, :record, :due, :expires, :alike, :alike_until, :open)",
    )?;
    insert.insert(named_params! {
        ":id": row.id.as_bytes(),
        ":record": row.record,
        ":due": row.due.map(at),
        ":expires": row.expires.map(at),
        ":alike": row.alike,
        ":alike_until": row.alike_until.map(at),
        ":open": row.open,
    })
}

pub(super) fn update(connection: &Connection, row: &Row) -> rusqlite::Result<i64> {
    let mut update = connection.prepare_cached(
        "UPDATE operations
         SET record = :record, due = :due, expires = :expires, alike = :alike, alike_until = :alike_until,
             open = :open
         WHERE id = :id RETURNING serial",
    )?;
    let given = named_params! {
        ":id": row.id.as_bytes(),
        ":record": row.record,
        ":due": row.due.map(at),
        ":expires": row.expires.map(at),
        ":alike": row.alike,
        ":alike_until": row.alike_until.map(at),
        ":open": row.open,
    };
    update.query_row(given, |row| row.get(0))
}

fn parts(connection: &Connection, serial: i64, row: &Row) -> rusqlite::Result<()> {
    if let Some(event) = &row.event {
        add_event(connection, serial, event)?;
    }
    if let Some(ReceiptRow { until, receipt }) = &row.receipt {
        connection
            .prepare_cached("REPLACE INTO receipts (serial, until, receipt) VALUES (?1, ?2, ?3)")?
            .execute(params![serial, at(*until), receipt])?;
    }
    request(connection, serial, &row.request)
}

fn add_event(connection: &Connection, serial: i64, row: &EventRow) -> rusqlite::Result<()> {
    connection.prepare_cached("INSERT INTO events (serial, revision, event) VALUES (?1, ?2, ?3)")?.execute(params![
        serial,
        integer(row.revision),
        row.event
    ])?;
    if row.is_too_many {
        connection
            .prepare_cached(
                "DELETE FROM events WHERE serial = ?1 AND revision =
                 (SELECT revision FROM events WHERE serial = ?1 ORDER BY revision LIMIT 1 OFFSET ?2)",
            )?
            .execute(params![serial, integer(FIRST_EVENTS as u64)])?;
    }
    Ok(())
}

fn request(connection: &Connection, serial: i64, change: &RequestRow) -> rusqlite::Result<()> {
    match change {
        RequestRow::Keep => Ok(()),
        RequestRow::Put(request) => connection
            .prepare_cached("REPLACE INTO requests (serial, request) VALUES (?1, ?2)")?
            .execute(params![serial, request])
            .map(drop),
        RequestRow::Drop => {
            connection.prepare_cached("DELETE FROM requests WHERE serial = ?1")?.execute([serial]).map(drop)
        }
    }
}
