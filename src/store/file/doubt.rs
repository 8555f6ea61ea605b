//! The end of a store in use: an error after which nobody knows what the disk holds, or which file it is in.
//!
//! Nothing is tried again: a second fsync would succeed and prove nothing. The process has to end; the next one looks at
//! what is there.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rusqlite::ErrorCode;
use rusqlite::ffi::{SQLITE_IOERR_SHMSIZE, SQLITE_READONLY_DBMOVED};
use tokio_util::sync::CancellationToken;

/// Why the store takes no more writes.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error("a write may not have reached the disk ({}); look after the disk before the next start", told(.0))]
    Disk(#[source] rusqlite::Error),
    #[error("the file is damaged ({}); put back a copy, or move it away and accept that its keys are forgotten", told(.0))]
    Damaged(#[source] rusqlite::Error),
    #[error("{} was removed or replaced while it was in use; what is in its place may lack calls that were made", .0.display())]
    Replaced(PathBuf),
}

impl Cause {
    /// Nothing if the error leaves no doubt: nothing was written then, and the next step may succeed.
    pub(super) fn of(error: rusqlite::Error) -> Result<Self, rusqlite::Error> {
        match error.sqlite_error_code() {
            _ if is_out_of_space(&error) => Err(error),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Ok(Self::Damaged(error)),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Err(error),
            Some(ErrorCode::ReadOnly) if extended(&error) != Some(SQLITE_READONLY_DBMOVED) => Err(error),
            _ => Ok(Self::Disk(error)),
        }
    }
}

/// The file of shared memory grows on the same disk, and SQLite has another word for that.
fn is_out_of_space(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull) || extended(error) == Some(SQLITE_IOERR_SHMSIZE)
}

/// SQLite's words are the same for every kind of I/O; its number tells an fsync from a read.
fn told(error: &rusqlite::Error) -> String {
    extended(error).map_or_else(|| error.to_string(), |code| format!("SQLite {code}: {error}"))
}

fn extended(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

/// What all threads of a store know of its end. The first cause stays.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubt(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    cause: OnceLock<Arc<Cause>>,
    raised: CancellationToken,
}

impl Doubt {
    /// Gives back the cause that stays.
    pub(super) fn raise(&self, cause: Cause) -> Arc<Cause> {
        let first = self.0.cause.get_or_init(|| {
            tracing::error!(%cause, "the store takes no more writes");
            Arc::new(cause)
        });
        self.0.raised.cancel();
        Arc::clone(first)
    }

    pub(super) fn cause(&self) -> Option<Arc<Cause>> {
        self.0.cause.get().cloned()
    }

    /// Returns once there is a cause.
    pub(super) async fn raised(&self) {
        self.0.raised.cancelled().await;
    }
}
