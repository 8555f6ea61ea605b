//! The log: what `[log]` says, on standard error.
//!
//! Standard output stays free for what commands print. Control characters in a value are escaped, so that nothing that
//! came from a client can write to the terminal of whoever reads the log.

mod json;
mod lines;
mod output;

use std::error::Error;
use std::fmt::{self, Debug};
use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use crate::config::{Log, LogFormat};
use json::Json;
use lines::Lines;
pub use lines::{HeldLines, hold_lines, write_held};
pub use output::{StandardError, lost_lines};

/// An error and what it came from, in one sentence; a text that ends with its cause does not say it again.
pub fn story(error: &dyn Error) -> String {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.map(ToString::to_string).fold(error.to_string(), |story, cause| {
        if story.ends_with(&cause) { story } else { format!("{story}: {cause}") }
    })
}

/// The log was set up before.
#[derive(Debug, thiserror::Error)]
#[error("the log is already set up")]
pub struct AlreadySetUp(#[from] tracing::subscriber::SetGlobalDefaultError);

/// Sends the log of the whole process to standard error.
///
/// # Errors
/// It was called before.
pub fn init(log: &Log) -> Result<(), AlreadySetUp> {
    let is_terminal = io::stderr().is_terminal();
    tracing::subscriber::set_global_default(subscriber(log, is_terminal, Lines(|| StandardError)))?;
    Ok(())
}

fn subscriber<W>(log: &Log, is_terminal: bool, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt().with_max_level(log.level).with_target(false).with_writer(writer);
    // It would tell them by a way that panics where standard error cannot be written.
    let lines = lines.log_internal_errors(false);
    let is_pretty = match log.format {
        LogFormat::Auto => is_terminal,
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    if is_pretty {
        Box::new(lines.with_ansi(is_terminal).fmt_fields(debug_fn(write_field).delimited(" ")).finish())
    } else {
        Box::new(lines.event_format(Json).finish())
    }
}

/// The subscriber's own way would let a value that is logged by `Display` through as it is.
fn write_field(line: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    if field.name() != "message" {
        write!(line, "{field}=")?;
    }
    for character in format!("{value:?}").chars() {
        if character.is_control() {
            write!(line, "{}", character.escape_debug())?;
        } else {
            line.write_char(character)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::Value;
    use tracing::Level;

    use super::*;

    #[derive(Clone, Default)]
    pub(super) struct Paper(pub(super) Arc<Mutex<Vec<u8>>>);

    impl io::Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What the log says when `event` happens.
    fn said(log: Log, is_terminal: bool, event: impl FnOnce()) -> String {
        let paper = Paper::default();
        let writer = paper.clone();
        tracing::subscriber::with_default(subscriber(&log, is_terminal, move || writer.clone()), event);
        let bytes = paper.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn away_from_a_terminal_a_line_is_json_with_its_fields() {
        let log = Log { level: Level::INFO, format: LogFormat::Auto };
        let line = said(log, false, || tracing::info!(attempts = 2, route = "payments", "operation ended"));
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["message"], &line["level"]), (&"operation ended".into(), &"INFO".into()));
        assert_eq!((&line["attempts"], &line["route"]), (&2.into(), &"payments".into()));
    }

    #[test]
    fn on_a_terminal_a_line_is_for_people() {
        let log = Log { level: Level::INFO, format: LogFormat::Auto };
        let line = said(log, true, || tracing::info!(attempts = 2, "operation ended"));
        assert!(serde_json::from_str::<Value>(&line).is_err());
        assert!(line.contains("operation ended") && line.contains('\u{1b}'));
    }

    #[derive(Debug, thiserror::Error)]
    enum Told {
        #[error("the gateway had to end")]
        Twice(#[source] Box<Told>),
        #[error("no more writes: {0}")]
        Within(#[source] io::Error),
    }

    #[test]
    fn a_story_says_each_cause_once() {
        let error = Told::Twice(Box::new(Told::Within(io::Error::other("no space"))));
        assert_eq!(story(&error), "the gateway had to end: no more writes: no space");
    }

    #[test]
    fn a_line_of_json_says_each_value_as_it_is() {
        let log = Log { level: Level::INFO, format: LogFormat::Json };
        let odd = "a\"\\\n\u{1}\u{85}\u{e9}";
        let line = said(log, false, || {
            tracing::info!(text = odd, shown = %odd, debug = ?Some(1), yes = true, minus = -1, status = None::<u16>, "so");
        });
        let line: Value = serde_json::from_str(&line).unwrap();
        let expected = serde_json::json!({
            "timestamp": line["timestamp"], "level": "INFO", "message": "so", "text": odd, "shown": odd,
            "debug": "Some(1)", "yes": true, "minus": -1,
        });
        assert_eq!(line, expected);
    }

    #[test]
    fn the_level_bounds_what_is_said() {
        let log = Log { level: Level::WARN, format: LogFormat::Json };
        assert_eq!(said(log, false, || tracing::info!("too quiet")), "");
    }

    #[test]
    fn a_client_cannot_write_to_the_readers_terminal() {
        let evil = "a\u{1b}]0;owned\u{7}\nlevel=ERROR";
        for format in [LogFormat::Pretty, LogFormat::Json] {
            let log = Log { level: Level::INFO, format };
            let line = said(log, false, || tracing::info!(path = evil, other = %evil, "request"));
            assert!(!line.contains(['\u{1b}', '\u{7}']), "{line:?}");
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
        }
    }
}
