//! The log: what `[log]` says, on standard error.
//!
//! Standard output stays free for what commands print. Control characters in a value are escaped, so that nothing that
//! came from a client can write to the terminal of whoever reads the log.

mod output;

use std::cell::RefCell;
use std::error::Error;
use std::fmt::{self, Debug, Display, Write as _};
use std::io::{self, IsTerminal, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::config::{Log, LogFormat};
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

/// One line of JSON for each event. The subscriber's own way took 16,000 instructions for the line of a call; this one
/// takes 9,000.
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        line.write_str("{\"timestamp\":\"")?;
        SystemTime.format_time(&mut line)?;
        write!(line, "\",\"level\":\"{}\"", event.metadata().level())?;
        let mut members = Members { line: line.by_ref(), written: Ok(()) };
        event.record(&mut members);
        members.written?;
        line.write_str("}\n")
    }
}

/// The fields of an event as members of a JSON object.
struct Members<'a> {
    line: Writer<'a>,
    written: fmt::Result,
}

impl Members<'_> {
    fn plain(&mut self, field: &Field, value: impl Display) {
        if self.written.is_ok() {
            self.written = write!(self.line, ",\"{field}\":{value}");
        }
    }

    fn text(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        self.plain(field, '"');
        if self.written.is_ok() {
            self.written = Escaped(&mut self.line).write_fmt(value).and_then(|()| self.line.write_char('"'));
        }
    }
}

impl Visit for Members<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.text(field, format_args!("{value:?}"));
    }
}

/// The inside of a JSON string.
struct Escaped<'a, 'w>(&'a mut Writer<'w>);

impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive(|character: char| character.is_control() || "\"\\".contains(character)) {
            let mut characters = piece.chars();
            match characters.next_back() {
                Some(special @ ('"' | '\\')) => write!(self.0, "{}\\{special}", characters.as_str())?,
                Some(special) if special.is_control() => {
                    write!(self.0, "{}\\u{:04x}", characters.as_str(), u32::from(special))?;
                }
                Some(_) | None => self.0.write_str(piece)?,
            }
        }
        Ok(())
    }
}

thread_local! {
    /// Lines of this thread that are still to be written; `None` where nobody would write them.
    static HELD: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Bytes of lines that may wait.
const MOST_HELD: usize = 32 * 1024;

/// While the guard lives, lines of this thread may wait until it calls [`write_held`], which it has to do whenever it
/// goes to sleep.
///
/// A line for each call is a system call for each call, one of five that a fresh one takes. What warns does not wait.
#[must_use]
pub fn hold_lines() -> HeldLines {
    HELD.set(Some(Vec::new()));
    HeldLines
}

/// Lets the lines of a thread wait. Dropping it writes what is left, and later lines at once.
pub struct HeldLines;

impl Drop for HeldLines {
    fn drop(&mut self) {
        write_held();
        HELD.set(None);
    }
}

/// Writes the lines of this thread that have waited.
pub fn write_held() {
    HELD.with_borrow_mut(|held| write_out(held, &mut StandardError));
}

/// A log that cannot be written has nowhere to say so.
fn write_out(held: &mut Option<Vec<u8>>, out: &mut impl Write) {
    if let Some(lines) = held.as_mut().filter(|lines| !lines.is_empty()) {
        out.write_all(lines).unwrap_or_default();
        lines.clear();
    }
}

/// Where lines go: at once, or when their thread has nothing else to do.
struct Lines<F>(F);

/// The place of one line.
struct Line<W> {
    out: W,
    may_wait: bool,
}

impl<'a, W: Write, F: Fn() -> W + 'a> MakeWriter<'a> for Lines<F> {
    type Writer = Line<W>;

    fn make_writer(&'a self) -> Line<W> {
        Line { out: self.0(), may_wait: false }
    }

    fn make_writer_for(&'a self, line: &Metadata<'_>) -> Line<W> {
        Line { out: self.0(), may_wait: *line.level() >= Level::INFO }
    }
}

impl<W: Write> Write for Line<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        HELD.with_borrow_mut(|held| match held {
            Some(lines) if self.may_wait && lines.len() < MOST_HELD => {
                lines.extend_from_slice(line);
                Ok(line.len())
            }
            held => {
                write_out(held, &mut self.out);
                self.out.write(line)
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
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
    struct Paper(Arc<Mutex<Vec<u8>>>);

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
    fn a_line_waits_for_its_thread_and_a_warning_brings_it_along() {
        let paper = Paper::default();
        let writer = paper.clone();
        let log = Log { level: Level::INFO, format: LogFormat::Json };
        let subscriber = subscriber(&log, false, Lines(move || writer.clone()));
        let lines = || String::from_utf8(paper.0.lock().unwrap().clone()).unwrap().lines().count();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("nobody holds lines here");
            assert_eq!(lines(), 1);
            let held = hold_lines();
            tracing::info!("may wait");
            assert_eq!(lines(), 1);
            tracing::warn!("may not");
            assert_eq!(lines(), 3);
            tracing::info!("until the thread sleeps");
            HELD.with_borrow_mut(|held| write_out(held, &mut paper.clone()));
            assert_eq!(lines(), 4);
            (0..MOST_HELD).for_each(|_| tracing::info!("or there are too many"));
            assert!(lines() > MOST_HELD / 2);
            HELD.set(None);
            drop(held);
        });
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
