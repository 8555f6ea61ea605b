//! The layers of `ARCHITECTURE.md` and the bans of `CONTRIBUTING.md`, as a test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "architecture/source.rs"]
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use source::{Mention, Source};

/// From the top down. A layer names the ones below it; two in one row never name each other.
const LAYERS: &[&[&str]] = &[
    &["main"],
    &["command"],
    &["app"],
    &["server", "worker"],
    &["engine"],
    &["telemetry"],
    &["config", "store", "upstream"],
    &["retry"],
    &["operation"],
    &["clock", "crash_point", "credential", "entropy", "idleness", "protocol", "redis_url", "sealing_key", "tls"],
];

/// Layers that only compute: time and randomness are arguments.
const PURE: &[&str] = &["operation", "retry"];

const IMPURE: &[&str] = &[
    "async",
    ".await",
    "tokio",
    "hyper",
    "hyper_util",
    "redis",
    "rusqlite",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
];

/// What only one file may name.
const ONLY_IN: &[(&str, &str)] = &[
    ("anyhow", "src/main.rs"),
    ("std::env", "src/main.rs"),
    ("std::time::Instant", "src/clock.rs"),
    ("SystemTime::now", "src/clock.rs"),
    ("rand::rng", "src/entropy.rs"),
    ("rand::random", "src/entropy.rs"),
    ("thread_rng", "src/entropy.rs"),
    ("SysRng", "src/entropy.rs"),
    ("getrandom", "src/entropy.rs"),
];

const PANICS: &[&str] = &[".unwrap", ".expect"];

const LONGEST_FILE: usize = 600;
const LONG_FILE: usize = 300;

/// Beginnings of paths that exist on one person's machine only.
const PRIVATE_PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("/tm", "p/"),
];

#[test]
fn layers_name_only_lower_layers() {
    assert_none(findings(misplaced_import));
}

#[test]
fn the_pure_layers_do_no_io() {
    assert_none(findings(impurity));
}

#[test]
fn ambient_things_are_named_in_one_file_each() {
    assert_none(findings(ambient));
}

#[test]
fn nothing_panics_on_purpose_outside_tests() {
    assert_none(findings(panic_on_purpose));
}

#[test]
fn files_stay_readable() {
    let lengths = || rust_files().into_iter().map(|(file, text)| (file, text.lines().count()));
    for (file, lines) in lengths().filter(|(_, lines)| *lines > LONG_FILE) {
        println!("long: {file} has {lines} lines");
    }
    assert_none(lengths().filter_map(|(file, lines)| too_long(&file, lines)).collect());
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    let found = repository_files().into_iter().flat_map(|(file, text)| private_paths(&file, &text)).collect();
    assert_none(found);
}

fn misplaced_import(source: &Source, mention: &Mention) -> Option<String> {
    let target = mention.path.strip_prefix("crate::")?.split("::").next()?;
    if source.layer.is_empty() || target == source.layer {
        return None;
    }
    match (height(&source.layer), height(target)) {
        (Some(own), Some(other)) if own < other => None,
        (Some(own), Some(other)) if own == other => Some(format!("{} and {target} are siblings", source.layer)),
        (Some(_), Some(_)) => Some(format!("{target} is above {}", source.layer)),
        (None, _) => Some(format!("{} has no layer in LAYERS", source.layer)),
        (_, None) => Some(format!("{target} has no layer in LAYERS")),
    }
}

/// Rows from the top.
fn height(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&layer))
}

fn impurity(source: &Source, mention: &Mention) -> Option<String> {
    let impure = IMPURE.iter().find(|name| mention.has(name))?;
    PURE.contains(&source.layer.as_str()).then(|| format!("{impure} in {}, which only computes", source.layer))
}

fn ambient(source: &Source, mention: &Mention) -> Option<String> {
    let (name, home) = ONLY_IN.iter().find(|(name, _)| mention.has(name))?;
    (source.file != *home).then(|| format!("{name} belongs to {home} alone"))
}

fn panic_on_purpose(_: &Source, mention: &Mention) -> Option<String> {
    PANICS.contains(&mention.path.as_str()).then(|| format!("{}() outside tests", mention.path))
}

fn too_long(file: &str, lines: usize) -> Option<String> {
    (lines > LONGEST_FILE).then(|| format!("{file}: {lines} lines, at most {LONGEST_FILE}"))
}

fn private_paths(file: &str, text: &str) -> Vec<String> {
    let found = |line: &str| PRIVATE_PATHS.iter().any(|path| begins_in(line, path));
    let numbered = text.lines().enumerate().filter(|(_, line)| found(line));
    numbered.map(|(number, line)| format!("{file}:{}: {}", number + 1, line.trim())).collect()
}

/// Whether `path` stands in `line` and is not the tail of a longer one.
fn begins_in(line: &str, path: &str) -> bool {
    line.match_indices(path)
        .any(|(at, _)| !line[..at].ends_with(|before: char| before.is_alphanumeric() || "._-}".contains(before)))
}

fn findings(rule: fn(&Source, &Mention) -> Option<String>) -> Vec<String> {
    let sources: Vec<_> = rust_files()
        .iter()
        .filter(|(file, _)| file.starts_with("src/"))
        .map(|(file, text)| Source::parse(file, text))
        .collect();
    assert!(sources.len() > 10, "the sources were not found");
    let tests: Vec<_> = sources.iter().flat_map(|source| source.test_modules.clone()).collect();
    sources.iter().filter(|source| !source.is_within(&tests)).flat_map(|source| broken(source, rule)).collect()
}

fn broken(source: &Source, rule: fn(&Source, &Mention) -> Option<String>) -> Vec<String> {
    let found = |mention: &Mention| Some(format!("{}:{}: {}", source.file, mention.line, rule(source, mention)?));
    source.mentions.iter().filter_map(found).collect()
}

fn assert_none(findings: Vec<String>) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

fn rust_files() -> Vec<(String, String)> {
    repository_files().into_iter().filter(|(file, _)| file.ends_with(".rs")).collect()
}

/// Every text file that is not built or fetched, by its path in the repository.
fn repository_files() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    collect(root, &mut files);
    let named = |path: PathBuf| {
        let name = path.strip_prefix(root).ok()?.to_string_lossy().replace('\\', "/");
        Some((name, fs::read_to_string(&path).ok()?))
    };
    files.into_iter().filter_map(named).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let skipped = ["target", ".git", "data", "node_modules"].iter().any(|name| path.ends_with(name));
        if path.is_dir() && !skipped {
            collect(&path, files);
        } else if path.is_file() && !skipped {
            files.push(path);
        }
    }
}

mod rules_can_fail {
    use super::*;

    fn broken_in(file: &str, text: &str, rule: fn(&Source, &Mention) -> Option<String>) -> Vec<String> {
        broken(&Source::parse(file, text), rule)
    }

    #[test]
    fn upward_sideways_and_unknown_imports_are_found() {
        let cases = [
            ("src/engine/mod.rs", "use crate::server::Proxy;", "src/engine/mod.rs:1: server is above engine"),
            ("src/store/file.rs", "\nuse crate::config::Config;", "src/store/file.rs:2: store and config are siblings"),
            ("src/store/file.rs", "fn f() { super::super::app::g() }", "src/store/file.rs:1: app is above store"),
            ("src/app.rs", "use crate::helpers::X;", "src/app.rs:1: helpers has no layer in LAYERS"),
        ];
        for (file, text, finding) in cases {
            assert_eq!(broken_in(file, text, misplaced_import), [finding]);
        }
        let fine = "use crate::store::Store; use crate::clock::Clock; use super::claim::x; use http::Method;";
        assert_eq!(broken_in("src/engine/attempt.rs", fine, misplaced_import), [""; 0]);
    }

    #[test]
    fn io_in_a_pure_layer_is_found() {
        for text in ["use tokio::time;", "async fn f() {}", "fn f() { g.await }", "fn f() { std::fs::read(x); }"] {
            assert_eq!(broken_in("src/retry/mod.rs", text, impurity).len(), 1, "{text}");
            assert_eq!(broken_in("src/engine/mod.rs", text, impurity).len(), 0, "{text}");
        }
    }

    #[test]
    fn ambient_things_elsewhere_are_found() {
        for (name, home) in ONLY_IN {
            let text = format!("fn f() {{ {name}(); }}");
            assert_eq!(broken_in("src/engine/mod.rs", &text, ambient).len(), 1, "{name}");
            assert_eq!(broken_in(home, &text, ambient).len(), 0, "{name}");
        }
        assert_eq!(broken_in("src/engine/mod.rs", "use std::{env, time::{Duration, Instant}};", ambient).len(), 2);
        assert_eq!(
            broken_in("src/engine/mod.rs", "const V: &str = env!(\"V\"); use tokio::time::Instant;", ambient).len(),
            0
        );
    }

    #[test]
    fn panics_on_purpose_are_found() {
        let text = "fn f() { a.unwrap(); b.expect(\"c\"); d.unwrap_or(0); }\n#[test]\nfn g() { a.unwrap(); }";
        assert_eq!(
            broken_in("src/app.rs", text, panic_on_purpose),
            ["src/app.rs:1: .unwrap() outside tests", "src/app.rs:1: .expect() outside tests"]
        );
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(too_long("src/app.rs", LONGEST_FILE), None);
        assert!(too_long("src/app.rs", LONGEST_FILE + 1).is_some());
    }

    #[test]
    fn private_paths_are_found() {
        for path in PRIVATE_PATHS {
            assert_eq!(private_paths("README.md", &format!("a\nsee {path}x")), [format!("README.md:2: see {path}x")]);
            assert_eq!(private_paths("README.md", &format!("see deploy{path}x")), [""; 0]);
        }
    }
}
