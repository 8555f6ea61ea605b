//! How far time has come, noted in the file: the clock of the machine may stand anywhere when the store is opened again.
//!
//! While the machine is up its uptime says what has passed between two lives of the gateway. After a reboot only the wall
//! clock can tell, and the store's time never goes back behind what it was.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::row::Row;
use super::steps::{stored, update};
use crate::clock::{Clock, Timestamp, Uptime};
use crate::operation::WriteId;
use crate::operation::transition::Step;
use crate::store::{Sealer, record};

const NOTE: &str = "clock";
/// Between two notes of a store that is in use. One that is not has no commit to put a note into.
const EVERY: Duration = Duration::from_secs(1);
/// A wall clock that is further off than this is worth a line in the log.
const WORTH_TELLING: Duration = Duration::from_secs(60);

/// A moment by the store's time, and how long the machine had been up.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    time: Timestamp,
    uptime: Option<Uptime>,
}

/// What to think of the time at a start.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    At(Timestamp),
    /// The same, and nobody knows how much time has passed since.
    InDoubt(Timestamp),
}

/// The store's clock from here on. Where nobody knows how long the store was closed, no upstream is relied on to remember
/// the key of an unfinished call.
pub(super) fn resume(connection: &Connection, wall: Clock) -> rusqlite::Result<Clock> {
    let (mark, uptime) = (read(connection)?, Uptime::read());
    let (time, is_doubtful) = match start(mark.as_ref(), wall.now(), uptime.as_ref()) {
        Start::At(time) => (time, false),
        Start::InDoubt(time) => (time, true),
    };
    if wall.now().0.abs_diff(time.0) > crate::clock::millis(WORTH_TELLING) {
        tracing::warn!(wall = %wall.now(), %time, "the clock of this machine was set; the store goes on by its own time");
    }
    if is_doubtful {
        tracing::warn!("how long the store was closed is not known; calls that may have run are not sent again");
        forget_when_sent(connection, time)?;
    }
    note(connection, time)?;
    Ok(Clock::starting_at(time))
}

fn start(mark: Option<&Mark>, wall: Timestamp, uptime: Option<&Uptime>) -> Start {
    let Some(mark) = mark else { return Start::At(wall) };
    let passed = mark.uptime.as_ref().zip(uptime).and_then(|(then, now)| now.since(then));
    match passed {
        Some(passed) => Start::At(mark.time.after(passed)),
        None if wall < mark.time => Start::InDoubt(mark.time),
        None => Start::At(wall),
    }
}

/// When to note the time again.
#[derive(Default)]
pub(super) struct Notes {
    last: Timestamp,
}

impl Notes {
    /// For the end of a transaction that changed something: it goes to the disk with it.
    pub(super) fn keep(&mut self, connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
        if now.since(self.last) < EVERY {
            return Ok(());
        }
        self.last = now;
        note(connection, now)
    }
}

fn note(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let mark = Mark { time: now, uptime: Uptime::read() };
    let mut replace = connection.prepare_cached("REPLACE INTO notes (name, value, until) VALUES (?1, ?2, NULL)")?;
    replace.execute(params![NOTE, mark.to_text()]).map(drop)
}

fn read(connection: &Connection) -> rusqlite::Result<Option<Mark>> {
    let text: Option<String> =
        connection.query_row("SELECT value FROM notes WHERE name = ?1", [NOTE], |row| row.get(0)).optional()?;
    Ok(text.and_then(|text| Mark::parse(&text)))
}

fn forget_when_sent(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    let mut select = transaction.prepare("SELECT serial, record FROM operations WHERE expires IS NULL")?;
    let open: Vec<(i64, Vec<u8>)> = select.query_map([], stored)?.collect::<Result<_, _>>()?;
    drop(select);
    for (serial, record) in open {
        if let Some(row) = with_send_long_ago(&record, now) {
            update(&transaction, serial, &row)?;
        }
    }
    transaction.commit()
}

fn with_send_long_ago(bytes: &[u8], now: Timestamp) -> Option<Row> {
    let operation = record::decode(bytes).ok()?;
    let change = operation.forget_when_sent(Step { now, write: WriteId::default() })?;
    Row::of(&Sealer::none(), &change).ok()
}

impl Mark {
    fn to_text(&self) -> String {
        match &self.uptime {
            Some(Uptime { boot, elapsed }) => format!("{} {} {boot}", self.time, elapsed.as_millis()),
            None => self.time.to_string(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let time = Timestamp(words.next()?.parse().ok()?);
        let elapsed = words.next().and_then(|word| word.parse().ok()).map(Duration::from_millis);
        let uptime = elapsed.zip(words.next()).map(|(elapsed, boot)| Uptime { boot: boot.to_owned(), elapsed });
        Some(Self { time, uptime })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAYS: u64 = 2 * 86_400_000;

    fn up(boot: &str, seconds: u64) -> Uptime {
        Uptime { boot: boot.to_owned(), elapsed: Duration::from_secs(seconds) }
    }

    fn mark(time: u64, uptime: Option<Uptime>) -> Mark {
        Mark { time: Timestamp(time), uptime }
    }

    #[test]
    fn while_the_machine_is_up_the_wall_clock_counts_for_nothing() {
        let mark = mark(DAYS, Some(up("a", 100)));
        for wall in [0, DAYS + 5_000, 2 * DAYS] {
            let start = start(Some(&mark), Timestamp(wall), Some(&up("a", 105)));
            assert_eq!(start, Start::At(Timestamp(DAYS + 5_000)));
        }
    }

    #[test]
    fn after_a_reboot_time_goes_on_by_the_wall_clock_and_never_back() {
        let mark = mark(DAYS, Some(up("a", 100)));
        for uptime in [Some(up("b", 105)), Some(up("a", 99)), None] {
            let at = |wall| start(Some(&mark), Timestamp(wall), uptime.as_ref());
            assert_eq!(at(DAYS + 7), Start::At(Timestamp(DAYS + 7)));
            assert_eq!(at(DAYS - 1), Start::InDoubt(Timestamp(DAYS)));
        }
        assert_eq!(start(None, Timestamp(9), Some(&up("a", 1))), Start::At(Timestamp(9)));
    }

    #[test]
    fn a_mark_is_read_back() {
        for uptime in [None, Some(up("a15cfb44-1a5a", 13_433))] {
            let mark = mark(1_700_000_000_000, uptime);
            assert_eq!(Mark::parse(&mark.to_text()), Some(mark));
        }
        assert_eq!(Mark::parse("soon"), None);
    }
}
