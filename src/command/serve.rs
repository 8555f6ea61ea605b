//! `oncegate serve`: the gateway itself.

use std::process::ExitCode;

use crate::command::{CommandError, Source};
use crate::config::Environment;
use crate::{app, telemetry};

/// Serves until a signal ends it.
///
/// # Errors
/// The configuration is not valid, or the gateway could not start.
pub fn run(source: &Source, environment: &Environment) -> Result<ExitCode, CommandError> {
    let config = source.load(environment)?;
    telemetry::init(&config.log)?;
    if let Some(file) = source.ignored_file() {
        tracing::warn!(file = %file.display(), "the file is not read: --upstream and --preset run without one");
    }
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    // The last line of the program is for people; whoever collects the log reads this one.
    app::run(config).inspect_err(|error| tracing::error!(error = telemetry::story(error), "the gateway ends"))?;
    // Ports and store are free again.
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}
