//! The `oncegate` program: arguments, environment, exit code.

use std::env;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use oncegate::command::{Arguments, Process};
use oncegate::telemetry::{StandardError, story};

/// A request is many small allocations of one thread; this allocator makes them for a third less time than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(feature = "crash-points")]
    if let Err(error) = oncegate::crash_point::arm(env::var(oncegate::crash_point::VARIABLE).ok()) {
        complain(&error);
        return ExitCode::FAILURE;
    }
    let process = Process { environment: env::vars_os().collect(), program: env::current_exe, scratch: env::temp_dir };
    Arguments::parse().run(&process).unwrap_or_else(|error| {
        complain(&error);
        error.exit_code()
    })
}

/// The exit code says the rest to whoever cannot read it.
fn complain(error: &dyn Error) {
    writeln!(StandardError, "oncegate: {}", story(error)).unwrap_or_default();
}
