//! A wall clock of some processes that a test sets as it likes, by libfaketime. Their monotonic clocks stay true.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

/// Comes before the one that Redis brings, which asks for the time before libfaketime can tell it.
const ALLOCATOR: &str = "libc.so.6";

/// Right until it jumps.
pub struct WallClock {
    library: String,
    directory: TempDir,
}

impl WallClock {
    pub fn start() -> Self {
        let clock = Self { library: library(), directory: tempfile::tempdir().unwrap() };
        clock.jump("+0d");
        clock
    }

    /// From now on it is so far off, such as `-2d`.
    pub fn jump(&self, off: &str) {
        // A reader sees the whole file or the one before.
        let next = self.directory.path().join("next");
        fs::write(&next, off).unwrap();
        fs::rename(next, self.directory.path().join("off")).unwrap();
    }

    /// What a process that goes by it is started with.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        let off = self.directory.path().join("off").display().to_string();
        [
            ("LD_PRELOAD", format!("{}:{ALLOCATOR}", self.library)),
            ("FAKETIME_TIMESTAMP_FILE", off),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}

/// Where the system has it, the wrapper knows.
fn library() -> String {
    let wrapper = Command::new("faketime").args(["-m", "-f", "+0", "sh", "-c", "echo $LD_PRELOAD"]).output();
    let said = wrapper.expect("faketime is installed").stdout;
    String::from_utf8(said).unwrap().trim().to_owned()
}
