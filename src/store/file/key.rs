//! The key beside the file, made by itself: what is copied of the file alone is not readable.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension};

use super::SchemaError;
use super::place::beside;
use crate::entropy::Entropy;
use crate::sealing_key::{KeyTextError, SealingKey};

/// Under which the database knows the key that sealed last.
const NOTE: &str = "sealing-key";

/// Why the file has no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("the key file {} cannot be used", path.display())]
    Unusable { path: PathBuf, source: io::Error },
    #[error("the key file {} holds one key a line", path.display())]
    Malformed { path: PathBuf, source: KeyTextError },
    #[error(
        "the store is encrypted with key {id}, which is neither in store.encryption nor in {}; put it back. To give up \
         the receipts and requests that it sealed: sqlite3 {} \"DELETE FROM notes WHERE name = '{NOTE}'\"",
        path.display(), path.with_extension("").display()
    )]
    Missing { path: PathBuf, id: String },
    #[error(transparent)]
    Database(#[from] SchemaError),
}

/// The keys of a store: those that are configured, then those of its key file, which is made if there is no key at all
/// and never was one.
pub(super) fn keys(
    connection: &Connection,
    store: &Path,
    configured: &[SealingKey],
    entropy: &Entropy,
) -> Result<Vec<SealingKey>, KeyError> {
    let path = beside(store, ".key");
    let mut keys = configured.to_vec();
    keys.extend(read(&path)?.into_iter().filter(|key| !configured.contains(key)));
    let last = last_used(connection)?;
    if let Some(id) = last.as_ref().filter(|last| !keys.iter().any(|key| key.id().to_string() == **last)) {
        return Err(KeyError::Missing { path, id: id.clone() });
    }
    if keys.is_empty() {
        keys.push(make(&path, entropy).map_err(|source| KeyError::Unusable { path, source })?);
    }
    let first = keys.first().map(|key| key.id().to_string());
    if first != last {
        note(connection, first)?;
    }
    Ok(keys)
}

fn read(path: &Path) -> Result<Vec<SealingKey>, KeyError> {
    match fs::read_to_string(path) {
        // A file whose bytes never reached the disk.
        Ok(text) if text.bytes().all(|byte| byte == 0) => Ok(Vec::new()),
        Ok(text) => {
            SealingKey::parse_lines(&text).map_err(|source| KeyError::Malformed { path: path.to_owned(), source })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(KeyError::Unusable { path: path.to_owned(), source }),
    }
}

/// On the disk before anything is sealed with it.
fn make(path: &Path, entropy: &Entropy) -> io::Result<SealingKey> {
    let key = SealingKey::new(entropy.bytes());
    // Of a start that ended here there may be a file without a key; one with a key was read.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{}", key.to_line())?;
    file.sync_all()?;
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    tracing::info!(path = %path.display(), key = %key.id(), "a key for the store was made; keep a copy of it apart");
    Ok(key)
}

fn last_used(connection: &Connection) -> Result<Option<String>, SchemaError> {
    Ok(connection.query_row("SELECT value FROM notes WHERE name = ?1", [NOTE], |row| row.get(0)).optional()?)
}

fn note(connection: &Connection, id: Option<String>) -> Result<(), SchemaError> {
    connection.execute("REPLACE INTO notes (name, value) VALUES (?1, ?2)", (NOTE, id))?;
    Ok(())
}
