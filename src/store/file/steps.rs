//! What is written. Each step runs inside the writer's transaction and looks before it changes anything, so that a
//! refused step leaves nothing for the others to trip over.

use std::time::Duration;

use rusqlite::{Connection, params};

use super::row::{EventRow, ReceiptRow, RequestRow, Row};
use super::{Failure, HOLD, at, integer, queries};
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
    if let Some(found) = queries::alike(connection, row, past, now)? {
        return Ok(Claimed::Alike(Box::new(found)));
    }
    if !insert(connection, row)? {
        if let Some(found) = queries::found(connection, &row.sealer, row.id, now)? {
            let ours = found.operation.fence.write == row.write;
            return Ok(if ours { Claimed::Won } else { Claimed::Exists(Box::new(found)) });
        }
        // Its time is over.
        if let Some(serial) = queries::serial(connection, row.id)? {
            remove(connection, serial)?;
        }
        insert(connection, row)?;
    }
    parts(connection, connection.last_insert_rowid(), row)?;
    crash_point::reached(Point::StoreAsked);
    Ok(Claimed::Won)
}

/// Only the fence of the record is looked at: who may write it may also replace what has been damaged.
pub(super) fn write(connection: &Connection, row: &Row, now: Timestamp) -> Result<Written, Failure> {
    let Some((serial, held)) = queries::fence(connection, row.id, now)? else { return Ok(Written::Gone) };
    if held.is_some_and(|held| held.write == row.write) {
        return Ok(Written::Applied);
    }
    if !held.is_some_and(|held| row.expects(&held)) {
        let found = queries::found(connection, &row.sealer, row.id, now)?;
        return Ok(found.map_or(Written::Gone, |found| Written::Refused(Box::new(found))));
    }
    update(connection, serial, row)?;
    parts(connection, serial, row)?;
    crash_point::reached(Point::StoreAsked);
    Ok(Written::Applied)
}

pub(super) fn purge(connection: &Connection, limit: usize, now: Timestamp) -> Result<usize, Failure> {
    let mut select = connection.prepare_cached("SELECT serial FROM operations WHERE expires <= ?1 LIMIT ?2")?;
    let over = select.query_map(params![at(now), integer(limit as u64)], |row| row.get(0))?;
    let over: Vec<i64> = over.collect::<Result<_, _>>()?;
    for serial in &over {
        remove(connection, *serial)?;
    }
    let mut delete = connection.prepare_cached(
        "DELETE FROM receipts WHERE serial IN (SELECT serial FROM receipts WHERE until <= ?1 LIMIT ?2)",
    )?;
    let rest = limit.saturating_sub(over.len());
    let receipts = delete.execute(params![at(now), integer(rest as u64)])?;
    let mut delete = connection
        .prepare_cached("DELETE FROM notes WHERE name IN (SELECT name FROM notes WHERE until <= ?1 LIMIT ?2)")?;
    let rest = rest.saturating_sub(receipts);
    Ok(over.len() + receipts + delete.execute(params![at(now), integer(rest as u64)])?)
}

pub(super) fn remember(
    connection: &Connection,
    (name, value): (&str, &str),
    until: Option<Timestamp>,
    now: Timestamp,
) -> Result<Option<String>, Failure> {
    let before = queries::note(connection, name, now)?;
    let mut replace = connection.prepare_cached("REPLACE INTO notes (name, value, until) VALUES (?1, ?2, ?3)")?;
    replace.execute(params![name, value, until.map(at)])?;
    Ok(before)
}

/// Whom calls are held back from, for the next start; without an end nobody is.
pub(super) fn keep_hold(
    connection: &Connection,
    name: &str,
    until: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), Failure> {
    remember(connection, (&format!("{HOLD}{name}"), ""), until.or(Some(now)), now).map(drop)
}

/// A full or read-only disk shows only to somebody who writes, and only if he writes as much as a call does.
pub(super) fn ping(connection: &Connection, now: Timestamp) -> Result<(), Failure> {
    remember(connection, ("ping", &" ".repeat(AS_MUCH)), None, now).map(drop)
}

/// Ends every lease now: for a file whose lock proved that the owners are dead. Records that this version cannot read
/// stay as they are.
pub(super) fn end_leases(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    let mut select = transaction.prepare("SELECT serial, record FROM operations WHERE due > ?1")?;
    let held: Vec<(i64, Vec<u8>)> = select.query_map([at(now)], stored)?.collect::<Result<_, _>>()?;
    drop(select);
    for (serial, record) in held {
        if let Some(row) = with_lease_over(&record, now) {
            update(&transaction, serial, &row)?;
        }
    }
    transaction.commit()
}

/// Puts those that `select` finds into the index of dead letters, where they are some. Records that this version cannot
/// read stay as they are.
pub(super) fn note_dead(connection: &Connection, select: &str) -> rusqlite::Result<()> {
    let mut select = connection.prepare(select)?;
    let rows = select.query_map([], stored)?.collect::<Result<Vec<_>, _>>()?;
    let is_dead = |bytes: &[u8]| record::decode(bytes).is_ok_and(|operation| operation.dead_letter().is_some());
    for (serial, _) in rows.iter().filter(|(_, bytes)| is_dead(bytes)) {
        connection.execute("UPDATE operations SET dead = 1 WHERE serial = ?1", [serial])?;
    }
    Ok(())
}

/// The first two columns: where a record is, and its bytes.
pub(super) fn stored(row: &rusqlite::Row<'_>) -> rusqlite::Result<(i64, Vec<u8>)> {
    Ok((row.get(0)?, row.get(1)?))
}

fn with_lease_over(bytes: &[u8], now: Timestamp) -> Option<Row> {
    let operation = record::decode(bytes).ok().filter(|operation| operation.state.lease().is_some())?;
    let over = operation.renew(Duration::ZERO, Step { now, write: WriteId::default() }).ok()?;
    Row::of(&Sealer::none(), &over).ok()
}

/// A record and all that is beside it. The next record may take its place in the tables, so nothing of it may stay.
fn remove(connection: &Connection, serial: i64) -> rusqlite::Result<()> {
    for delete in [
        "DELETE FROM events WHERE serial = ?1",
        "DELETE FROM receipts WHERE serial = ?1",
        "DELETE FROM requests WHERE serial = ?1",
        "DELETE FROM operations WHERE serial = ?1",
    ] {
        connection.prepare_cached(delete)?.execute([serial])?;
    }
    Ok(())
}

/// False if its key has a row.
fn insert(connection: &Connection, row: &Row) -> rusqlite::Result<bool> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO operations (id, record, due, expires, alike, alike_until, open, dead)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (id) DO NOTHING",
    )?;
    let inserted = insert.execute(params![
        row.id.as_bytes(),
        row.record,
        row.due.map(at),
        row.expires.map(at),
        row.alike,
        row.alike_until,
        row.open,
        row.dead,
    ])?;
    Ok(inserted > 0)
}

/// By its place in the table and without `RETURNING`: SQLite keeps a copy of every page that a statement touches which
/// it may have to take back in the middle, and that was a third of the time of a call. `REPLACE` is another of these.
pub(super) fn update(connection: &Connection, serial: i64, row: &Row) -> rusqlite::Result<()> {
    let mut update = connection.prepare_cached(
        "UPDATE operations SET record = ?2, due = ?3, expires = ?4, alike = ?5, alike_until = ?6, open = ?7, dead = ?8
         WHERE serial = ?1",
    )?;
    let (due, expires) = (row.due.map(at), row.expires.map(at));
    let given = params![serial, row.record, due, expires, row.alike, row.alike_until, row.open, row.dead];
    update.execute(given).map(drop)
}

fn parts(connection: &Connection, serial: i64, row: &Row) -> rusqlite::Result<()> {
    if let Some(event) = &row.event {
        add_event(connection, serial, event)?;
    }
    if let Some(ReceiptRow { until, receipt }) = &row.receipt {
        connection
            .prepare_cached(
                "INSERT INTO receipts (serial, until, receipt) VALUES (?1, ?2, ?3)
                 ON CONFLICT (serial) DO UPDATE SET until = excluded.until, receipt = excluded.receipt",
            )?
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
            .prepare_cached(
                "INSERT INTO requests (serial, request) VALUES (?1, ?2)
                 ON CONFLICT (serial) DO UPDATE SET request = excluded.request",
            )?
            .execute(params![serial, request])
            .map(drop),
        RequestRow::Drop => {
            connection.prepare_cached("DELETE FROM requests WHERE serial = ?1")?.execute([serial]).map(drop)
        }
    }
}
