//! Standard error, which may be closed, full, or read by nobody.
//!
//! Whoever writes a line of the log is on the way of a call or a sweep. So nobody waits long for a reader, and no line
//! that cannot be written is an error: it is lost, and counted.

use std::io::{self, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

/// A pipe that takes anything at all takes this many bytes without a wait.
const PIECE: usize = 4096;
/// A reader may be late by this much. One that was later is not waited for again before it has read something.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const NONE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

static OUTLET: Mutex<Outlet> = Mutex::new(Outlet { is_stuck: false, is_torn: false });
static LOST: AtomicU64 = AtomicU64::new(0);

/// Lines that could not be written, since the process began.
pub fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// The one way to write to standard error. It never fails.
#[derive(Clone, Copy, Debug)]
pub struct StandardError;

impl Write for StandardError {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut outlet = OUTLET.lock().unwrap_or_else(PoisonError::into_inner);
        if !outlet.write(&mut io::stderr().lock(), lines) {
            let lost = lines.iter().filter(|byte| **byte == b'\n').count().max(1);
            LOST.fetch_add(lost as u64, Ordering::Relaxed);
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is known of the reader.
struct Outlet {
    /// It did not read in time.
    is_stuck: bool,
    /// The last line may lack its end.
    is_torn: bool,
}

impl Outlet {
    /// Whether all of it was written.
    fn write(&mut self, out: &mut (impl Write + AsFd), lines: &[u8]) -> bool {
        if self.is_torn && !self.write_piece(out, b"\n") {
            return false;
        }
        self.is_torn = false;
        for piece in lines.chunks(PIECE) {
            if !self.write_piece(out, piece) {
                return false;
            }
            self.is_torn = true;
        }
        self.is_torn = false;
        true
    }

    fn write_piece(&mut self, out: &mut (impl Write + AsFd), piece: &[u8]) -> bool {
        if !self.takes_bytes(out) {
            return false;
        }
        let written = out.write_all(piece).is_ok();
        self.is_torn |= !written;
        written
    }

    /// A stream that is broken takes them too, to say so.
    fn takes_bytes(&mut self, out: &impl AsFd) -> bool {
        let patience = if mem::replace(&mut self.is_stuck, true) { NONE } else { PATIENCE };
        let ready = retry_on_intr(|| poll(&mut [PollFd::new(out, PollFlags::OUT)], Some(&patience)));
        self.is_stuck = !ready.is_ok_and(|streams| streams > 0);
        !self.is_stuck
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    const LINE: &[u8] = b"{\"message\":\"operation ended\"}\n";

    fn outlet() -> Outlet {
        Outlet { is_stuck: false, is_torn: false }
    }

    #[test]
    fn a_reader_that_stands_still_loses_lines_and_stops_nobody() {
        let (mut reader, mut writer) = pipe().unwrap();
        let (mut outlet, mut written) = (outlet(), 0);
        while outlet.write(&mut writer, LINE) {
            written += 1;
        }
        let begun = Instant::now();
        (0..10_000).for_each(|_| assert!(!outlet.write(&mut writer, LINE)));
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody waits again and again");

        let mut read = vec![0; written * LINE.len()];
        reader.read_exact(&mut read).unwrap();
        assert!(outlet.write(&mut writer, LINE), "it reads again");
        drop(writer);
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, LINE.repeat(written + 1));
    }

    #[test]
    fn a_line_whose_end_was_lost_is_ended_before_the_next() {
        let (mut reader, mut writer) = pipe().unwrap();
        let (mut outlet, long) = (outlet(), vec![b'x'; 1 << 20]);
        assert!(!outlet.write(&mut writer, &long));
        let mut read = vec![0; 2 * PIECE];
        reader.read_exact(&mut read).unwrap();
        assert!(outlet.write(&mut writer, LINE));
        drop(writer);
        read.clear();
        reader.read_to_end(&mut read).unwrap();
        assert!(read.ends_with(&[b"\n", LINE].concat()));
    }

    #[test]
    fn a_reader_that_is_gone_is_no_error_of_whoever_writes() {
        let (reader, mut writer) = pipe().unwrap();
        drop(reader);
        assert!(!outlet().write(&mut writer, LINE));
    }
}
