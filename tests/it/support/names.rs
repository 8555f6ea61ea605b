//! What the names mean for one gateway: its own hosts file, and a name server that knows nothing more.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// The file is written in place, for the gateway sees that very file. Where nobody answers at the name server's port, or
/// somebody else does, a name that is not in it has no address.
pub struct Names(TempDir);

impl Names {
    pub fn new() -> Self {
        let names = Self(tempfile::tempdir().unwrap());
        fs::write(names.0.path().join("resolv.conf"), "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").unwrap();
        names.lead("", &[]);
        names
    }

    /// From now on `name` has these addresses, and no other name has any.
    pub fn lead(&self, name: &str, addresses: &[&str]) {
        let lines: String = addresses.iter().map(|address| format!("{address} {name}\n")).collect();
        fs::write(self.0.path().join("hosts"), lines).unwrap();
    }

    pub fn directory(&self) -> &Path {
        self.0.path()
    }
}
