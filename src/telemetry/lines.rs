//! When a line of the log is written: at once, or with others of its thread.

use std::cell::RefCell;
use std::io::{self, Write};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::StandardError;

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
pub(super) struct Lines<F>(pub(super) F);

/// The place of one line.
pub(super) struct Line<W> {
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

#[cfg(test)]
mod tests {
    use crate::config::{Log, LogFormat};
    use crate::telemetry::subscriber;
    use crate::telemetry::tests::Paper;

    use super::*;

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
}
