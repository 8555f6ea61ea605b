//! The rows of the matrix: where a gateway dies, the story that takes it there, and what may come of it.

use std::fmt;
use std::time::Duration;

use crate::faults::Repeat;
use crate::faults::oracle::Manner;

/// Beyond what a receipt may hold here, so that the answer is told live.
const LONG: usize = 64 * 1024;
const SHORT: usize = 4 * 1024;
const SOON: &str = "Retry-After-Ms: 30";
const PLAIN: &str = "X-Reason: scripted";

/// What a store is made of. In memory nothing outlives the process, which is its contract, so it has no column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    File,
    Redis,
}

/// How the story goes up to the death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// The upstream answers at once.
    Plain,
    /// Half of an answer comes that will be kept.
    HalfKept,
    /// Half of one that is too long to keep.
    HalfLive,
    /// The answer does not end the call for good: a failure (unsafe), a refusal.
    NoReceipt,
    /// The upstream takes longer than a third of the lease.
    Slow,
    /// The answer asks for a wait: a refusal (unsafe), a failure.
    Waits,
    /// The owner is dead already, and a caller comes back.
    TakenOver,
    /// The owner is dead, and nobody comes back.
    Recovered,
    /// The owner died after the send, and nobody comes back.
    Lapsed,
    /// The same, and a caller comes back before the sweep.
    LapsedForCaller,
    /// The reply of the store to the claim is held up.
    Unanswered,
}

/// What a client may be told in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    Receipt,
    Unknown,
    Either,
}

/// One place at which a gateway dies.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    /// As the program's orders say it.
    point: &'static str,
    nth: u32,
    pub story: Story,
    /// On an unsafe upstream, on a file and on Redis; others end with a receipt.
    unsafe_ends: [Ends; 2],
}

/// One death of a story.
pub struct Death {
    pub orders: String,
    /// A client calls; else the sweep comes there by itself.
    pub asked: bool,
}

const fn row(name: &'static str, point: &'static str, story: Story, unsafe_end: Ends) -> Row {
    Row { name, point, nth: 1, story, unsafe_ends: [unsafe_end; 2] }
}

const fn store_row(name: &'static str, point: &'static str, nth: u32, unsafe_ends: [Ends; 2]) -> Row {
    Row { name, point, nth, story: Story::Plain, unsafe_ends }
}

use Ends::{Either, Receipt, Unknown};

pub const ROWS: &[Row] = &[
    row("before claim", "BeforeClaim", Story::Plain, Receipt),
    store_row("store asked: claim", "StoreAsked", 1, [Receipt; 2]),
    store_row("store done: claim", "StoreDone", 1, [Receipt; 2]),
    row("after claim", "AfterClaim", Story::Plain, Receipt),
    row("before withdrawal", "BeforeWithdrawal", Story::Unanswered, Receipt),
    row("after withdrawal", "AfterWithdrawal", Story::Unanswered, Receipt),
    row("before connect", "BeforeConnect", Story::Plain, Receipt),
    row("after connect", "AfterConnect", Story::Plain, Receipt),
    // A script that is on its way to the server is run though its sender is dead.
    store_row("store asked: sent", "StoreAsked", 2, [Receipt, Either]),
    store_row("store done: sent", "StoreDone", 2, [Unknown; 2]),
    row("before send", "BeforeSend", Story::Plain, Unknown),
    row("after send", "AfterSend", Story::Plain, Unknown),
    // On a machine that stands still the lease is renewed before the send, too.
    row("before renewal", "BeforeRenewal", Story::Slow, Either),
    row("after renewal", "AfterRenewal", Story::Slow, Either),
    row("after head", "AfterHead", Story::Plain, Unknown),
    row("in body", "InBody", Story::HalfKept, Unknown),
    row("in live body", "InLiveBody", Story::HalfLive, Unknown),
    row("before wait", "BeforeWait", Story::Waits, Unknown),
    row("in wait", "InWait", Story::Waits, Receipt),
    row("after wait", "AfterWait", Story::Waits, Receipt),
    row("before settle", "BeforeSettle", Story::Plain, Unknown),
    store_row("store asked: settle", "StoreAsked", 3, [Unknown, Either]),
    store_row("store done: settle", "StoreDone", 3, [Receipt; 2]),
    row("after settle", "AfterSettle", Story::Plain, Receipt),
    row("before end", "BeforeEnd", Story::NoReceipt, Unknown),
    row("after end", "AfterEnd", Story::NoReceipt, Unknown),
    row("before take-over by a caller", "BeforeTakeOver", Story::TakenOver, Receipt),
    row("after take-over by a caller", "AfterTakeOver", Story::TakenOver, Receipt),
    row("before take-over by the sweep", "BeforeRecovery", Story::Recovered, Receipt),
    row("after take-over by the sweep", "AfterRecovery", Story::Recovered, Receipt),
    row("before lapse by the sweep", "BeforeLapse", Story::Lapsed, Unknown),
    row("after lapse by the sweep", "AfterLapse", Story::Lapsed, Unknown),
    row("before lapse by a caller", "BeforeLapse", Story::LapsedForCaller, Unknown),
    row("after lapse by a caller", "AfterLapse", Story::LapsedForCaller, Unknown),
];

impl Row {
    /// Whether there is such a moment on such an upstream and such a store.
    pub fn exists(&self, repeat: Repeat, kept: Kept) -> bool {
        match self.story {
            // What may be sent twice is taken over instead.
            Story::Lapsed => repeat == Repeat::Unsafe,
            // The sweep of a gateway that opens a file comes before every caller.
            Story::LapsedForCaller => repeat == Repeat::Unsafe && kept == Kept::Redis,
            // A file has no way on which a reply could be held up.
            Story::Unanswered => kept == Kept::Redis,
            Story::Plain if self.is_sent_step() => repeat == Repeat::Unsafe,
            _ => true,
        }
    }

    pub fn ends(&self, repeat: Repeat, kept: Kept) -> Ends {
        match (repeat, kept) {
            (Repeat::Unsafe, Kept::File) => self.unsafe_ends[0],
            (Repeat::Unsafe, Kept::Redis) => self.unsafe_ends[1],
            (Repeat::WithKey | Repeat::Harmless, _) => Receipt,
        }
    }

    /// Only an unsafe upstream has a step of its own between claim and send.
    fn is_sent_step(&self) -> bool {
        self.name.ends_with("sent")
    }

    /// How the upstream takes the first send, where it does not simply answer.
    pub fn manner(&self, repeat: Repeat) -> Option<Manner> {
        let is_unsafe = repeat == Repeat::Unsafe;
        match self.story {
            Story::HalfKept => Some(Manner::Half(SHORT)),
            Story::HalfLive => Some(Manner::Half(LONG)),
            Story::NoReceipt if is_unsafe => Some(Manner::Failing(503, PLAIN)),
            Story::NoReceipt => Some(Manner::Refusing(401, PLAIN)),
            Story::Slow => Some(Manner::Silent),
            Story::Waits if is_unsafe => Some(Manner::Refusing(429, SOON)),
            Story::Waits => Some(Manner::Failing(503, SOON)),
            Story::Plain
            | Story::TakenOver
            | Story::Recovered
            | Story::Lapsed
            | Story::LapsedForCaller
            | Story::Unanswered => None,
        }
    }

    /// The deaths of the story, in order; the last one is that of the row.
    pub fn deaths(&self, repeat: Repeat) -> Vec<Death> {
        let before = match (self.story, repeat) {
            (Story::TakenOver | Story::Recovered, Repeat::Unsafe) => Some("AfterClaim"),
            (Story::TakenOver | Story::Recovered | Story::Lapsed | Story::LapsedForCaller, _) => Some("AfterSend"),
            _ => None,
        };
        let before = before.map(|point| Death { orders: format!("{point}:1:kill"), asked: true });
        let asked = !matches!(self.story, Story::Recovered | Story::Lapsed);
        before.into_iter().chain([Death { orders: self.orders(repeat), asked }]).collect()
    }

    fn orders(&self, repeat: Repeat) -> String {
        let saved = u32::from(self.nth > 2 && repeat != Repeat::Unsafe);
        format!("{}:{}:kill", self.point, self.nth - saved)
    }
}

/// One cell: a row on one kind of upstream and one store.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub row: &'static Row,
    pub repeat: Repeat,
    pub kept: Kept,
}

pub const COLUMNS: [(Repeat, Kept); 6] = [
    (Repeat::Harmless, Kept::File),
    (Repeat::WithKey, Kept::File),
    (Repeat::Unsafe, Kept::File),
    (Repeat::Harmless, Kept::Redis),
    (Repeat::WithKey, Kept::Redis),
    (Repeat::Unsafe, Kept::Redis),
];

pub fn cells() -> Vec<Cell> {
    let all = ROWS.iter().flat_map(|row| COLUMNS.map(|(repeat, kept)| Cell { row, repeat, kept }));
    all.filter(|cell| cell.row.exists(cell.repeat, cell.kept)).collect()
}

impl Cell {
    pub fn ends(&self) -> Ends {
        self.row.ends(self.repeat, self.kept)
    }

    /// Short where somebody waits for its end, and long where a renewal would be taken for another write. Whoever opens
    /// a file knows that all its leases are over.
    pub fn lease(&self) -> Duration {
        let millis = match (self.kept, self.row.story) {
            (Kept::File | Kept::Redis, Story::Slow) => 500,
            (Kept::File, _) => 5000,
            (Kept::Redis, Story::Unanswered) => 3000,
            (Kept::Redis, _) if self.row.nth > 1 => 2000,
            (Kept::Redis, _) => 500,
        };
        Duration::from_millis(millis)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?}, {:?})", self.row.name, self.repeat, self.kept)
    }
}
