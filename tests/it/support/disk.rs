//! A disk that fails when it is told to and whose power can be cut: `disk.c`, put under a gateway.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use oncegate::entropy::Entropy;
use tempfile::TempDir;

use crate::support::gateway::Settings;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/disk.c");
const PAGE: usize = 4096;
/// Stands for an error that nobody hears of.
const DEATH: i32 = -1;
/// Of the files beside the store, the one that lives in shared memory: no power loss leaves anything of it.
const SHARED: &str = "store.db-shm";

/// A call that fails for files whose names end so.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The next fsync, once. What it should have written is lost, though the page cache still shows it.
    Sync(&'static str, i32),
    /// At the next fsync the program dies and nothing of it reaches the disk.
    DieBeforeSync(&'static str),
    /// It dies when all of it has.
    DieAfterSync(&'static str),
    /// Every write, until `heal`.
    Write(&'static str, i32),
}

/// What a power loss leaves of what was written since the last fsync of its file.
#[derive(Clone, Copy, Debug)]
pub enum Leaves {
    Nothing,
    /// Any pages, in no order.
    Some,
}

pub struct Disk(TempDir);

impl Disk {
    pub fn new() -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(disk.library()).arg(SOURCE).arg("-ldl");
        let built = compiler.output().expect("the tests need a C compiler, `cc`");
        assert!(built.status.success(), "{built:?}");
        ["live", "synced"].iter().for_each(|name| fs::create_dir(disk.path(name)).unwrap());
        disk
    }

    /// The same gateway with its store on this disk.
    pub fn under(&self, settings: Settings) -> Settings {
        let library = self.library();
        let settings = settings.environment("LD_PRELOAD", library.to_str().unwrap());
        settings.environment("DISK", self.0.path().to_str().unwrap())
    }

    /// As `store.url` says it.
    pub fn url(&self) -> String {
        format!("file:{}", self.store().display())
    }

    pub fn store(&self) -> PathBuf {
        self.live("store.db")
    }

    pub fn live(&self, name: &str) -> PathBuf {
        self.path("live").join(name)
    }

    pub fn fail(&self, fault: Fault) {
        let line = match fault {
            Fault::Sync(ending, error) => format!("sync {ending} {error}"),
            Fault::DieBeforeSync(ending) => format!("sync {ending} {DEATH}"),
            Fault::DieAfterSync(ending) => format!("synced {ending} {DEATH}"),
            Fault::Write(ending, error) => format!("write {ending} {error}"),
        };
        fs::write(self.path("new-faults"), line).unwrap();
        fs::rename(self.path("new-faults"), self.path("faults")).unwrap();
    }

    /// Whether the fault that was asked for has happened.
    pub fn has_failed(&self) -> bool {
        !self.path("faults").exists()
    }

    pub fn heal(&self) {
        fs::remove_file(self.path("faults")).unwrap();
    }

    /// Every fsync since the last look: `NAME ok` or `NAME failed`.
    pub fn syncs(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        fs::write(self.path("log"), "").unwrap();
        log.lines().map(str::to_owned).collect()
    }

    /// What a machine finds that comes up again; nobody may be using the disk.
    pub fn lose_power(&self, leaves: Leaves, entropy: &Entropy) {
        let mut names = BTreeSet::new();
        for directory in ["live", "synced"] {
            names.extend(names_in(&self.path(directory)).into_iter().filter(|name| !is_mark(name)));
        }
        names.remove(SHARED);
        drop(fs::remove_file(self.live(SHARED)));
        for name in names {
            let after = self.after_power_loss(&name, leaves, entropy);
            drop(fs::remove_file(self.live(&name)));
            self.forget(&name);
            if let Some(bytes) = after {
                [self.live(&name), self.synced(&name, "")].iter().for_each(|path| fs::write(path, &bytes).unwrap());
                fs::write(self.synced(&name, ".entry"), "").unwrap();
            }
        }
    }

    fn after_power_loss(&self, name: &str, leaves: Leaves, entropy: &Entropy) -> Option<Vec<u8>> {
        let survives = |leaves| matches!(leaves, Leaves::Some) && entropy.up_to(1) == 0;
        // A file whose removal was synced does not come back.
        let is_new = self.live(name).exists() && survives(leaves);
        if !self.synced(name, ".entry").exists() && !is_new {
            return None;
        }
        let read = |path: PathBuf| fs::read(path).unwrap_or_default();
        let (live, mut disk, dirty) =
            (read(self.live(name)), read(self.synced(name, "")), read(self.synced(name, ".dirty")));
        if disk.len() != live.len() && survives(leaves) {
            disk.resize(live.len(), 0);
        }
        for (page, bytes) in live.chunks(PAGE).enumerate() {
            let from = page * PAGE;
            let is_dirty = dirty.get(page).is_some_and(|mark| *mark != 0);
            if is_dirty && from + bytes.len() <= disk.len() && survives(leaves) {
                disk[from..from + bytes.len()].copy_from_slice(bytes);
            }
        }
        Some(disk)
    }

    fn forget(&self, name: &str) {
        ["", ".dirty", ".entry"].iter().for_each(|mark| drop(fs::remove_file(self.synced(name, mark))));
    }

    fn synced(&self, name: &str, mark: &str) -> PathBuf {
        self.path("synced").join(format!("{name}{mark}"))
    }

    fn library(&self) -> PathBuf {
        self.path("disk.so")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn is_mark(name: &str) -> bool {
    name.ends_with(".dirty") || name.ends_with(".entry")
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}
