//! Whether the files at the path are still those that are open.
//!
//! Somebody who removes or replaces a file leaves the open one without a name: what is written then is gone at the next
//! start. SQLite does not look.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::store::{Space, StoreError};

/// What SQLite and the lock keep at the path.
const ENDINGS: [&str; 4] = ["", "-wal", "-shm", ".lock"];

/// The files of an open store by name and inode.
#[derive(Debug)]
pub(super) struct Place(Vec<(PathBuf, Inode)>);

#[derive(Debug, PartialEq, Eq)]
struct Inode {
    device: u64,
    number: u64,
}

impl Place {
    /// As they are now, when all of them have just been opened.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let paths = ENDINGS.map(|ending| beside(path, ending));
        paths.into_iter().map(|path| Inode::at(&path).map(|inode| (path, inode))).collect::<Result<_, _>>().map(Self)
    }

    /// One that is no longer where it was.
    pub(super) fn lost(&self) -> Option<&Path> {
        let is_there = |path: &Path, inode: &Inode| Inode::at(path).is_ok_and(|found| found == *inode);
        self.0.iter().find(|(path, inode)| !is_there(path, inode)).map(|(path, _)| path.as_path())
    }
}

impl Inode {
    fn at(path: &Path) -> io::Result<Self> {
        path.metadata().map(|found| Self { device: found.dev(), number: found.ino() })
    }
}

/// How much of what its file system has for it a store has taken.
pub(super) fn space(path: &Path) -> Result<Space, StoreError> {
    let refused = |error: io::Error| StoreError::Refused(format!("its files cannot be measured: {error}"));
    let sizes = ENDINGS.map(|ending| beside(path, ending).metadata().map(|found| found.len()));
    let used = sizes.into_iter().sum::<io::Result<u64>>().map_err(refused)?;
    let system = rustix::fs::statvfs(path).map_err(|error| refused(error.into()))?;
    Ok(Space { used, limit: used.saturating_add(system.f_bavail.saturating_mul(system.f_frsize)) })
}

/// The name of the file with `ending` behind it.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}
