//! `oncegate init`: a file to begin with.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::command::terminal::say;
use crate::config::{Config, ConfigErrors, Environment, UpstreamMode, init_template};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The service that the agent calls.
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// Where to write; an existing file is left alone.
    #[arg(long, value_name = "FILE", default_value = "gateway.toml")]
    config: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error(transparent)]
    Upstream(#[from] ConfigErrors),
    #[error("{} is there already; it was left as it is", .0.display())]
    Exists(PathBuf),
    #[error("{} cannot be written", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Writes the file and tells what to do next.
///
/// # Errors
/// The URL is none, or the file exists or cannot be written.
pub fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode, InitError> {
    let path = &arguments.config;
    let mode = UpstreamMode { url: Some(arguments.upstream.clone()), ..UpstreamMode::default() };
    Config::for_upstream(mode, environment)?;
    let text = init_template(&arguments.upstream);
    Config::parse(&text, "the file would not be valid", environment)?;
    let mut file =
        OpenOptions::new().write(true).create_new(true).open(path).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => InitError::Exists(path.clone()),
            _ => InitError::Write { path: path.clone(), source },
        })?;
    file.write_all(text.as_bytes()).map_err(|source| InitError::Write { path: path.clone(), source })?;
    say(format_args!("wrote {}", path.display()));
    say(format_args!("1. oncegate check --config {}", path.display()));
    say(format_args!("2. oncegate serve --config {}", path.display()));
    say(format_args!("3. in the client: base URL http://127.0.0.1:8080 instead of {}", arguments.upstream));
    say(format_args!("   and on every write a header Idempotency-Key, or X-Session-Id and X-Step-Index"));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_for_what_is_no_url() {
        let directory = tempfile::tempdir().unwrap();
        let arguments =
            |upstream: &str| Arguments { upstream: upstream.to_owned(), config: directory.path().join("gateway.toml") };
        let environment = Environment::default();

        let refused = run(&arguments("127.0.0.1:9000"), &environment);
        let said = refused.unwrap_err().to_string();
        assert!(said.starts_with("--upstream: ") && said.contains("a URL that begins with its scheme"), "{said}");
        assert!(!arguments("").config.exists());
        run(&arguments("http://127.0.0.1:9000"), &environment).unwrap();
        assert!(matches!(run(&arguments("http://h"), &environment), Err(InitError::Exists(_))));
    }
}
