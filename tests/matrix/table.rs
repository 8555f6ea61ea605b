//! The matrix as the documentation shows it.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use crate::checker::{Violation, too_few};
use crate::lane::Played;
use crate::plan::{COLUMNS, ROWS, Row};

/// All that was played, from one seed.
pub struct Matrix {
    pub seed: u64,
    pub began: Instant,
    pub cells: Vec<Played>,
}

impl Matrix {
    /// Prints the figures, and fails if anything was violated.
    pub fn conclude(&self) {
        println!("{self}");
        let found = self
            .cells
            .iter()
            .flat_map(|played| played.violations.iter().map(|violation| format!("{}: {violation}", played.cell)));
        let all: Vec<_> = found.chain(self.too_few().map(|violation| violation.to_string())).collect();
        assert!(all.is_empty(), "{} violations, seed {}:\n{}", all.len(), self.seed, all.join("\n"));
    }

    fn too_few(&self) -> Option<Violation> {
        too_few(self.sum(|played| played.receipts), self.sum(|played| played.calls))
    }

    fn sum(&self, of: impl Fn(&Played) -> usize) -> usize {
        self.cells.iter().map(of).sum()
    }

    fn line(&self, row: &Row) -> String {
        let cells = COLUMNS.map(|(repeat, kept)| {
            let here = |played: &&Played| (played.cell.repeat, played.cell.kept) == (repeat, kept);
            let mut cells = self.cells.iter().filter(|played| played.cell.row.name == row.name).filter(here);
            cells.next().map_or_else(|| "–".to_owned(), ToString::to_string)
        });
        format!("| {} | {} |", row.name, cells.join(" | "))
    }
}

impl Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "receipts / unknown / not executed at first")?;
        let heads = COLUMNS.map(|(repeat, kept)| format!("{kept:?}, {repeat:?}"));
        writeln!(f, "| killed | {} |\n|---{}|", heads.join(" | "), "|---".repeat(COLUMNS.len()))?;
        ROWS.iter().try_for_each(|row| writeln!(f, "{}", self.line(row)))?;
        let blocked = self.cells.iter().map(|played| played.longest_blocked).max().unwrap_or(Duration::ZERO);
        let kills = self.sum(|played| played.kills);
        let calls = self.sum(|played| played.calls);
        let receipts = self.sum(|played| played.receipts);
        let unknown = self.sum(|played| played.unknown);
        let not_executed = self.sum(|played| played.not_executed);
        let missed = self.sum(|played| played.missed);
        let violations = self.sum(|played| played.violations.len());
        write!(f, "{kills} kills, {calls} calls, {receipts} receipts, {unknown} unknown, ")?;
        writeln!(
            f,
            "{not_executed} not executed at first, {violations} violations, {missed} rounds missed their point"
        )?;
        write!(f, "nobody was blocked for more than {blocked:.1?}; ")?;
        write!(f, "{:.0} s, seed {}", self.began.elapsed().as_secs_f64(), self.seed)
    }
}

impl Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { receipts, unknown, not_executed, violations, .. } = self;
        write!(f, "{receipts} / {unknown} / {not_executed}")?;
        if violations.is_empty() { Ok(()) } else { write!(f, ", **{} violations**", violations.len()) }
    }
}
