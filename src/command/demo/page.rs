//! What the demo shows: two columns, at reading speed on a terminal.

use std::io::{self, IsTerminal};
use std::time::Duration;

use tokio::time::sleep;

use super::agent::Saw;
use super::gateway::Gateway;
use super::ledger::Deed;
use crate::command::terminal::say;

/// Width of the agent's column.
const COLUMN: usize = 32;

/// Time to read what the agent is about to do.
const PAUSE: Duration = Duration::from_millis(1500);

const BOLD: &str = "1";
const RED: &str = "31";
const GREEN: &str = "32";
const DIM: &str = "2";

/// Standard output as the demo uses it.
pub(super) struct Page {
    has_colours: bool,
    /// Somebody watches, and can end the demo by Ctrl-C.
    is_watched: bool,
}

impl Page {
    /// Without a terminal nobody reads along, and nobody could end what stays.
    pub(super) fn new(fast: bool) -> Self {
        let has_colours = io::stdout().is_terminal();
        Self { has_colours, is_watched: !fast && has_colours && io::stdin().is_terminal() }
    }

    /// Whether the gateway stays up at the end.
    pub(super) fn stays(&self) -> bool {
        self.is_watched
    }

    pub(super) fn title(&self) {
        say(format_args!("An agent wants to charge order 42, once. Played twice, with the same moves and mishaps."));
    }

    pub(super) fn part(&self, name: &str) {
        say(format_args!("\n{}", self.paint(BOLD, name)));
        say(format_args!("  {}", self.paint(DIM, &format!("{:COLUMN$} | payment service did", "agent saw"))));
    }

    /// What the agent does next.
    pub(super) async fn step(&self, number: u32, does: &str) {
        say(format_args!("{number} The agent {does}."));
        if self.is_watched {
            sleep(PAUSE).await;
        }
    }

    /// What came of it, on both sides.
    pub(super) fn row(&self, saw: &Saw, deeds: &[Deed]) {
        let mut deeds: Vec<String> = deeds.iter().map(|deed| self.did(deed)).collect();
        if deeds.is_empty() {
            deeds.push(self.paint(GREEN, "nothing"));
        }
        for (line, deed) in deeds.iter().enumerate() {
            let saw = if line == 0 { saw.to_string() } else { String::new() };
            say(format_args!("  {saw:COLUMN$} | {deed}"));
        }
    }

    fn did(&self, deed: &Deed) -> String {
        let colour = if deed.is_charge() { RED } else { DIM };
        self.paint(colour, &deed.to_string())
    }

    pub(super) fn summary(&self, through: u32, without: u32) {
        say(format_args!("\n{}", self.paint(BOLD, &format!("charges made: {through} (without oncegate: {without})"))));
    }

    /// For whoever wants to see more of it.
    pub(super) fn to_try(&self, gateway: &Gateway) {
        let Gateway { listen, admin, .. } = gateway;
        let charge = format!("curl -i http://{listen}/charges -H 'Idempotency-Key: order-43' -d order=43");
        say(format_args!("\nThe gateway stays up until Ctrl-C. In another terminal, try a charge:\n  {charge}"));
        say(format_args!("the same again, which is replayed:\n  {charge}"));
        say(format_args!("and what the gateway remembers:\n  curl http://{admin}/v1/operations\n"));
    }

    /// What the service did for a call that is not of the story.
    pub(super) fn deed(&self, deed: &Deed) {
        say(format_args!("payment service, {}", self.did(deed)));
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.has_colours { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}
