//! The tables, and how a connection to them is opened.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{Durability, Settings, steps};

const VERSION: i64 = 1;
/// 64 MiB: about a quarter of a second.
const LOOKED_THROUGH: i64 = 16_384;

/// `serial` counts operations as they are created, so that new rows go to the end of each table and not to random places.
/// An operation that somebody owns is found by `due`, so that the index of unfinished ones is not touched by a call that
/// goes well: 2 of 30 us. A file of an older version goes on with an index of all of them, `operations_open`.
const TABLES: &str = "
    CREATE TABLE operations (
        serial INTEGER PRIMARY KEY,
        id BLOB NOT NULL UNIQUE,
        record BLOB NOT NULL,
        due INTEGER,
        expires INTEGER,
        alike BLOB,
        alike_until INTEGER,
        open BLOB,
        dead INTEGER
    ) STRICT;
    CREATE INDEX operations_due ON operations (due) WHERE due IS NOT NULL;
    CREATE INDEX operations_expires ON operations (expires) WHERE expires IS NOT NULL;
    CREATE INDEX operations_alike ON operations (alike) WHERE alike IS NOT NULL;
    CREATE INDEX operations_unowned ON operations (open) WHERE open IS NOT NULL AND due IS NULL;
    CREATE INDEX operations_dead ON operations (serial) WHERE dead IS NOT NULL;
    CREATE TABLE receipts (
        serial INTEGER PRIMARY KEY REFERENCES operations ON DELETE CASCADE,
        until INTEGER NOT NULL,
        receipt BLOB NOT NULL
    ) STRICT;
    CREATE INDEX receipts_until ON receipts (until);
    CREATE TABLE requests (
        serial INTEGER PRIMARY KEY REFERENCES operations ON DELETE CASCADE,
        request BLOB NOT NULL
    ) STRICT;
    CREATE TABLE events (
        serial INTEGER NOT NULL REFERENCES operations ON DELETE CASCADE,
        revision INTEGER NOT NULL,
        event BLOB NOT NULL,
        PRIMARY KEY (serial, revision)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL, until INTEGER) STRICT, WITHOUT ROWID;
    CREATE INDEX notes_until ON notes (until) WHERE until IS NOT NULL;
";

/// For a file that was made before there was a bound on unfinished operations. A version that does not know the column
/// goes on working with the file; what it writes is not counted.
const COUNT_OPEN: &str = "
    ALTER TABLE operations ADD COLUMN open BLOB;
    CREATE INDEX operations_unowned ON operations (open) WHERE open IS NOT NULL AND due IS NULL;
";

/// For a file that was made before there were dead letters. Of what is in it, only what is unknown is one.
const NOTE_DEAD: &str = "
    ALTER TABLE operations ADD COLUMN dead INTEGER;
    CREATE INDEX operations_dead ON operations (serial) WHERE dead IS NOT NULL;
";
const EVER_UNKNOWN: &str = "SELECT serial, record FROM operations WHERE due IS NULL AND expires IS NULL";
/// A version that does not know the column goes on working with the file. By an index, for this is asked at each start.
const UNKNOWN_SINCE: &str =
    "SELECT serial, record FROM operations WHERE open IS NOT NULL AND due IS NULL AND dead IS NULL";

/// Why the file's content cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error(
        "the file is not a store, or it is damaged; put back a copy, or move it away with all that is beside it and accept \
         that its keys are forgotten"
    )]
    Damaged(#[source] rusqlite::Error),
    #[error("the file cannot be used now, and nothing speaks against what is in it: leave it where it is")]
    Unusable(#[source] rusqlite::Error),
    #[error(
        "the file is damaged ({0}): keys may not be found in it and would run again; put back a copy, and its own `-wal` \
         or none"
    )]
    Inconsistent(String),
    #[error("a newer version wrote the store: it has format {0}, this one knows up to {VERSION}")]
    TooNew(i64),
    #[error("the file system cannot keep a write-ahead log: it has no shared memory")]
    NoWriteAheadLog,
}

impl From<rusqlite::Error> for SchemaError {
    /// Nobody shall move a store away because its disk is full or its lock is held.
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::ReadOnly
                | ErrorCode::CannotOpen
                | ErrorCode::PermissionDenied
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::OutOfMemory
                | ErrorCode::SystemIoFailure,
            ) => Self::Unusable(error),
            _ => Self::Damaged(error),
        }
    }
}

/// The one connection that writes.
pub(super) fn open_to_write(path: &Path, settings: Settings) -> Result<Connection, SchemaError> {
    let connection = open_durable(path, settings)?;
    // Each row of a part would look for its record, a tenth of a step: the steps write both, and remove both.
    connection.pragma_update(None, "foreign_keys", false)?;
    Ok(connection)
}

/// A connection whose every checkpoint reaches the disk, and every commit where it has to. It makes no checkpoint by
/// itself, not even as the last one that is closed.
pub(super) fn open_durable(path: &Path, settings: Settings) -> Result<Connection, SchemaError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE, settings)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(SchemaError::NoWriteAheadLog);
    }
    connection.pragma_update(None, "synchronous", synchronous(settings.durability))?;
    // Only some systems have it; there a plain fsync does not reach the disk.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

/// `NORMAL` syncs the log before its pages are moved, so that a power loss takes its end and never tears the file; `OFF`
/// would save no more and could.
fn synchronous(durability: Durability) -> &'static str {
    match durability {
        Durability::Fsync => "FULL",
        Durability::Os => "NORMAL",
    }
}

/// A connection that cannot write.
pub(super) fn open_to_read(path: &Path, settings: Settings) -> Result<Connection, SchemaError> {
    Ok(open(path, OpenFlags::SQLITE_OPEN_READ_ONLY, settings)?)
}

/// An operator's shell may hold the file for a moment; within the timeout that is waited for.
fn open(path: &Path, flags: OpenFlags, Settings { timeout, .. }: Settings) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(timeout)?;
    connection.set_prepared_statement_cache_capacity(32);
    // The planner would look at the values of every step and prepare its statement anew: a sixth of the writer's time.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(connection)
}

/// A key that is not found because its page is damaged would run again. Files that take longer to look through than a
/// start may are not.
pub(super) fn look_through(connection: &Connection) -> Result<(), SchemaError> {
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
    if pages > LOOKED_THROUGH {
        return Ok(());
    }
    match connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0))?.as_str() {
        "ok" => Ok(()),
        damage => Err(SchemaError::Inconsistent(damage.to_owned())),
    }
}

/// Makes the tables where they are missing.
pub(super) fn make_tables(connection: &mut Connection) -> Result<(), SchemaError> {
    let transaction = connection.transaction()?;
    match transaction.pragma_query_value(None, "user_version", |row| row.get(0))? {
        0 => {
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        VERSION => add_columns(&transaction)?,
        newer => return Err(SchemaError::TooNew(newer)),
    }
    Ok(transaction.commit()?)
}

fn add_columns(connection: &Connection) -> rusqlite::Result<()> {
    if !has_column(connection, "open")? {
        connection.execute_batch(COUNT_OPEN)?;
    }
    if has_column(connection, "dead")? {
        return steps::note_dead(connection, UNKNOWN_SINCE);
    }
    connection.execute_batch(NOTE_DEAD)?;
    steps::note_dead(connection, EVER_UNKNOWN)
}

fn has_column(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let columns = "SELECT count(*) FROM pragma_table_info('operations') WHERE name = ?1";
    connection.query_row(columns, [name], |row| row.get::<_, i64>(0)).map(|columns| columns > 0)
}
