//! Who may use the file: one process at a time.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::place::beside;

/// More bytes than a mark has are none.
const LONGEST_MARK: u64 = 256;

/// Why the file is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another process uses the store {}, maybe by another name; one process at a time may", .0.display())]
    Taken(PathBuf),
    #[error("the store {} cannot be locked, and without a lock two processes could use it", path.display())]
    Unlockable { path: PathBuf, source: io::Error },
    #[error("the store {} cannot be opened", path.display())]
    Unusable { path: PathBuf, source: io::Error },
    #[error("the directory {} cannot be made for the store", path.display())]
    NoDirectory { path: PathBuf, source: io::Error },
    #[error("a power loss could take the new directory {} with its store, for the one above it cannot be synced", path.display())]
    Unsynced { path: PathBuf, source: io::Error },
}

/// Held while the file is in use. The system gives it back when the process dies, however it dies.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    beside: File,
    /// A hard link and a bind mount have another lock beside them. Closing this takes SQLite's own locks from the process:
    /// no connection may outlive it.
    inode: Option<File>,
}

impl Lock {
    /// The locked file, whatever links led to it.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What the last holder left in the lock.
    pub(super) fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        (&self.beside).seek(SeekFrom::Start(0))?;
        (&self.beside).take(LONGEST_MARK).read_to_string(&mut text)?;
        Ok(text)
    }

    /// To write into it what the next holder shall read. It is held until all of these are closed.
    pub(super) fn share(&self) -> io::Result<File> {
        self.beside.try_clone()
    }
}

/// Takes the lock beside the file, and makes its directory where that is missing.
pub(super) fn take(path: &Path) -> Result<Lock, LockError> {
    make_directory(directory_of(path))?;
    let path = locate(path).map_err(|source| LockError::Unusable { path: path.to_owned(), source })?;
    let beside = private_file(&beside(&path, ".lock"));
    let beside = beside.map_err(|source| LockError::Unlockable { path: path.clone(), source })?;
    try_lock(&beside, &path)?;
    Ok(Lock { path, beside, inode: None })
}

/// Makes the file where it is missing, and locks it itself, which SQLite's own locks have nothing to do with.
pub(super) fn make(lock: &mut Lock) -> Result<(), LockError> {
    let inode = private_file(&lock.path);
    let inode = inode.map_err(|source| LockError::Unusable { path: lock.path.clone(), source })?;
    try_lock(&inode, &lock.path)?;
    lock.inode = Some(inode);
    Ok(())
}

fn try_lock(file: &File, store: &Path) -> Result<(), LockError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => LockError::Taken(store.to_owned()),
        TryLockError::Error(source) => LockError::Unlockable { path: store.to_owned(), source },
    })
}

/// The file's own name. Of a file that is not there yet that is `path`, unless it is a link to somewhere: then whoever
/// makes it there would hold another lock than those who find it.
fn locate(path: &Path) -> io::Result<PathBuf> {
    match (fs::canonicalize(path), path.file_name()) {
        (Err(error), Some(name)) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            Ok(fs::canonicalize(directory_of(path))?.join(name))
        }
        (found, _) => found,
    }
}

/// SQLite gives its other files the mode of the first one.
fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// A missing directory is on the disk before anything in it is: a power loss takes it with all that it holds otherwise.
fn make_directory(path: &Path) -> Result<(), LockError> {
    if path.is_dir() {
        return Ok(());
    }
    let above = directory_of(path);
    make_directory(above)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made.map_err(|source| LockError::NoDirectory { path: path.to_owned(), source })?,
    }
    let synced = File::open(above).and_then(|above| above.sync_all());
    synced.map_err(|source| LockError::Unsynced { path: path.to_owned(), source })
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
