//! `oncegate check`: what the file says, or everything that is wrong with it.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::command::Source;
use crate::command::terminal::say;
use crate::config::{Config, ConfigErrors, Environment};

/// Keys would change their identity.
const IDENTITY_CHANGES: u8 = 3;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    source: Source,
    /// Compare with an older file: lists changes of key identity and exits with 3 if there are any.
    #[arg(long, value_name = "OLD")]
    against: Option<PathBuf>,
}

/// Prints the effective configuration.
///
/// # Errors
/// Everything that is wrong with the file.
pub fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode, ConfigErrors> {
    let config = arguments.source.load(environment)?;
    say(config.describe().trim_end());
    let Some(old) = &arguments.against else { return Ok(ExitCode::SUCCESS) };
    let changes = Config::changes_of_identity(&Config::load(old, environment)?, &config);
    list("changes after which calls from before are still found:", &changes.still_found);
    if changes.new_keys.is_empty() {
        say(format_args!("\nno key changes its identity"));
        return Ok(ExitCode::SUCCESS);
    }
    list(
        "keys change their identity (a repeat of an earlier call is not recognised and may run again):",
        &changes.new_keys,
    );
    Ok(ExitCode::from(IDENTITY_CHANGES))
}

fn list(title: &str, lines: &[String]) {
    if !lines.is_empty() {
        say(format_args!("\n{title}"));
        lines.iter().for_each(|line| say(format_args!("  {line}")));
    }
}
