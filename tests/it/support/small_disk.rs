//! A disk so small that a test can fill it: memory, mounted where only those who run inside see it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// It goes with this, and with all that was on it.
pub struct SmallDisk {
    /// The disk is mounted over this directory, in the eyes of one process.
    mountpoint: TempDir,
    keeper: Child,
}

impl SmallDisk {
    /// Of so many MiB.
    pub fn of(size: u32) -> Self {
        let mountpoint = tempfile::tempdir().unwrap();
        let script = format!("mount -t tmpfs -o size={size}m small \"$0\" && echo mounted && exec cat");
        let mut keeper = Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", &script])
            .arg(mountpoint.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare (util-linux) is installed");
        let mut said = String::new();
        BufReader::new(keeper.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(
            said, "mounted\n",
            "cannot mount a tmpfs: this test needs user and mount namespaces (user.max_user_namespaces > 0, and \
             kernel.unprivileged_userns_clone = 1 or root); in a container also the right to mount"
        );
        Self { mountpoint, keeper }
    }

    /// As those inside see it.
    pub fn path(&self) -> &Path {
        self.mountpoint.path()
    }

    /// The same place for those outside.
    pub fn seen_from_outside(&self) -> PathBuf {
        let inside = self.mountpoint.path().strip_prefix("/").unwrap();
        Path::new("/proc").join(self.keeper.id().to_string()).join("root").join(inside)
    }

    /// A program that runs inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.keeper.id().to_string(), "--user", "--mount", "--preserve-credentials"]);
        command.arg(program);
        command
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.keeper.kill());
        drop(self.keeper.wait());
    }
}
