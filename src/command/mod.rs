//! The commands of the program: arguments in, exit code out.

pub mod check;
pub mod demo;
pub mod explain;
pub mod healthcheck;
pub mod init;
pub mod serve;
mod terminal;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Args, Parser, Subcommand};

use crate::app::AppError;
use crate::config::{Config, ConfigErrors, Environment, UpstreamMode};

/// An idempotent tool gateway: makes each side effect that an agent asks for happen effectively once per key.
#[derive(Debug, Parser)]
#[command(name = "oncegate", version, about, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Source,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway (the default).
    Serve(Source),
    /// Validate gateway.toml and list every route with its effective policy and where each value came from.
    Check(check::Arguments),
    /// Say which route, key, fingerprint and policy a request would get; sends nothing.
    Explain(explain::Arguments),
    /// Ask the gateway of this configuration whether it is ready: exit code 0 if it is.
    Healthcheck(Source),
    /// Watch a double charge happen, and not happen through the gateway; offline.
    Demo(demo::Arguments),
    /// Write a short commented gateway.toml and say what to set in the client.
    Init(init::Arguments),
}

/// Where the configuration comes from.
#[derive(Clone, Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("without_file").multiple(true))]
pub struct Source {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = "gateway.toml", conflicts_with = "without_file")]
    config: PathBuf,
    /// Run without a file: one upstream at `/`.
    #[arg(long, value_name = "URL", group = "without_file")]
    upstream: Option<String>,
    /// Run without a file: what is known of a service, and of what stands before it (stripe, openai, anthropic, github,
    /// slack, envoy, nginx, alb, cloudflare); several with commas.
    #[arg(long, value_name = "NAME", group = "without_file")]
    preset: Option<String>,
    /// Without a file: what a second send of a call means for the service (unsafe, with-key, harmless).
    #[arg(long, value_name = "WORD", requires = "without_file")]
    repeat: Option<String>,
    /// Without a file: memory:, file:PATH or redis://...
    #[arg(long, value_name = "URL", requires = "without_file")]
    store: Option<String>,
}

/// What the program alone may ask of the operating system.
pub struct Process {
    pub environment: Environment,
    /// Where this program is.
    pub program: fn() -> io::Result<PathBuf>,
    /// Where short-lived files may be.
    pub scratch: fn() -> PathBuf,
}

/// The exit code of a gateway whose store ended.
const STORE_ENDED: u8 = 74;

/// What a command could not do.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Log(#[from] crate::telemetry::AlreadySetUp),
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Explain(#[from] explain::ExplainError),
    #[error(transparent)]
    Healthcheck(#[from] healthcheck::HealthcheckError),
    #[error(transparent)]
    Init(#[from] init::InitError),
    #[error(transparent)]
    Demo(#[from] demo::DemoError),
}

impl Arguments {
    /// Runs the command that was asked for.
    ///
    /// # Errors
    /// It could not do its work; the text is for a person.
    pub fn run(self, process: &Process) -> Result<ExitCode, CommandError> {
        let environment = &process.environment;
        match self.command.unwrap_or(Command::Serve(self.serve)) {
            Command::Serve(source) => serve::run(&source, environment),
            Command::Check(arguments) => Ok(check::run(&arguments, environment)?),
            Command::Explain(arguments) => Ok(explain::run(&arguments, environment)?),
            Command::Healthcheck(source) => Ok(healthcheck::run(&source, environment)?),
            Command::Demo(arguments) => Ok(demo::run(&arguments, process)?),
            Command::Init(arguments) => Ok(init::run(&arguments, environment)?),
        }
    }
}

impl CommandError {
    /// What a supervisor can tell apart: 74, `EX_IOERR` of sysexits.h, is a disk that somebody has to look at. All else
    /// is 1.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::App(AppError::StoreEnded(_)) => ExitCode::from(STORE_ENDED),
            Self::App(_)
            | Self::Config(_)
            | Self::Log(_)
            | Self::Explain(_)
            | Self::Healthcheck(_)
            | Self::Init(_)
            | Self::Demo(_) => ExitCode::FAILURE,
        }
    }
}

impl Source {
    /// The configuration: of the arguments, of the environment, or of the file, in this order.
    pub(crate) fn load(&self, environment: &Environment) -> Result<Config, ConfigErrors> {
        if self.is_typed() || (UpstreamMode::is_asked_by(environment) && !self.config.exists()) {
            let mode = UpstreamMode {
                url: self.upstream.clone(),
                preset: self.preset.clone(),
                repeat: self.repeat.clone(),
                store: self.store.clone(),
            };
            return Config::for_upstream(mode, environment);
        }
        Config::load(&self.config, environment)
    }

    /// The file that is here, and not read for what was typed.
    pub(crate) fn ignored_file(&self) -> Option<&Path> {
        Some(&*self.config).filter(|file| self.is_typed() && file.exists())
    }

    fn is_typed(&self) -> bool {
        self.upstream.is_some() || self.preset.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_an_upstream_are_not_taken_together() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("oncegate --upstream http://h").is_ok() && parse("oncegate --config a.toml").is_ok());
        assert!(parse("oncegate --config a.toml --upstream http://h").is_err());
        assert!(parse("oncegate --preset stripe --store memory:").is_ok());
        assert!(parse("oncegate --upstream http://h --preset stripe,cloudflare").is_ok());
        assert!(parse("oncegate --config a.toml --preset stripe").is_err());
        assert!(parse("oncegate --store memory:").is_err());
        assert!(parse("oncegate serve --config a.toml --upstream http://h").is_err());
    }

    #[test]
    fn a_file_that_is_here_and_not_read_is_noticed() {
        let here = env!("CARGO_MANIFEST_DIR");
        let source = |line: &str| Arguments::try_parse_from(line.split(' ')).unwrap().serve;
        assert_eq!(source(&format!("oncegate --config {here}/gateway.toml")).ignored_file(), None);
        let typed = Source { config: Path::new(here).join("gateway.toml"), ..source("oncegate --upstream http://h") };
        assert!(typed.ignored_file().is_some());
    }
}
