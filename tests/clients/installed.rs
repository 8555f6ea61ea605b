//! What the clients need, in the versions that are pinned beside this file, once for each list of them.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::FOLDER;

/// A Python that has all of `requirements.txt`.
pub fn python() -> PathBuf {
    let folder = once("requirements.txt", |folder| {
        run(Command::new("python3").args(["-m", "venv"]).arg(folder));
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r"];
        run(Command::new(folder.join("bin/python")).args(pip).arg(Path::new(FOLDER).join("requirements.txt")));
    });
    folder.join("bin/python")
}

/// A script of this folder, where Node finds all of `package.json` beside it.
pub fn node_script(name: &str) -> PathBuf {
    let folder = once("package.json", |folder| {
        fs::create_dir_all(folder).unwrap();
        fs::copy(Path::new(FOLDER).join("package.json"), folder.join("package.json")).unwrap();
        run(Command::new("npm").args(["install", "--silent", "--no-audit", "--no-fund"]).current_dir(folder));
    });
    let script = folder.join(name);
    fs::copy(Path::new(FOLDER).join(name), &script).unwrap();
    script
}

/// The folder that `install` fills for this version of `list`. Tests are processes of their own: one of them installs, and
/// a folder that was left half done is filled anew.
fn once(list: &str, install: impl FnOnce(&Path)) -> PathBuf {
    let mut hash = DefaultHasher::new();
    fs::read(Path::new(FOLDER).join(list)).unwrap().hash(&mut hash);
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = place.join(format!("clients-{:016x}", hash.finish()));
    let lock = fs::File::create(place.join(format!("{list}.lock"))).unwrap();
    lock.lock().unwrap();
    let done = folder.join("done");
    if !done.exists() {
        drop(fs::remove_dir_all(&folder));
        install(&folder);
        fs::write(done, "").unwrap();
    }
    folder
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
