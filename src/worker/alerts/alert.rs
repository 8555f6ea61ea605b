//! What an alert says. It is stored before it is sent, so that every try of it says the same.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::groups::{Group, Labels, Named};
use crate::clock::Timestamp;
use crate::clock::moment::rfc3339;
use crate::config::AlertFormat;

/// Operations that a message for people names.
const SHOWN: usize = 10;

/// One alert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Alert {
    /// The same on every try; its `Idempotency-Key`, too.
    pub(super) id: String,
    pub(super) at: Timestamp,
    group: Labels,
    /// Open letters of the group, those that are not named included.
    open: u64,
    /// All of them were in an alert before.
    repeat: bool,
    pub(super) letters: Vec<Named>,
}

impl Alert {
    pub(super) fn of(id: [u8; 16], (labels, group): (Labels, Group), now: Timestamp) -> Self {
        let (open, repeat) = (group.open, group.is_repeat());
        let id = format!("al_{:032x}", u128::from_be_bytes(id));
        Self { id, at: now, group: labels, open, repeat, letters: group.named() }
    }

    /// What is posted.
    pub(super) fn body(&self, format: AlertFormat) -> String {
        match format {
            AlertFormat::Json => self.json().to_string(),
            AlertFormat::Slack => json!({ "text": self.sentence() }).to_string(),
            AlertFormat::Log => self.sentence(),
        }
    }

    fn json(&self) -> serde_json::Value {
        let operations = self.letters.iter().map(|letter| {
            let Named { id, route, state, reason, attempts, since } = letter;
            json!({ "id": id, "route": route, "state": state, "reason": reason, "attempts": attempts,
                "since": rfc3339(*since) })
        });
        json!({
            "id": self.id,
            "kind": "dead_letters",
            "at": rfc3339(self.at),
            "group": self.group,
            "open": self.open,
            "repeat": self.repeat,
            "operations": operations.collect::<Vec<_>>(),
        })
    }

    fn sentence(&self) -> String {
        let group: Vec<_> = self.group.iter().map(|(by, label)| format!("{by} {label}")).collect();
        let (what, still) = match (self.open, self.repeat) {
            (1, false) => ("1 operation needs a person".to_owned(), ""),
            (1, true) => ("1 operation needs a person".to_owned(), " still"),
            (open, false) => (format!("{open} operations need a person"), ""),
            (open, true) => (format!("{open} operations need a person"), " still"),
        };
        let shown: Vec<_> =
            self.letters.iter().take(SHOWN).map(|letter| format!("{} ({})", letter.id, letter.state)).collect();
        let more = self.open.saturating_sub(shown.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let of = if group.is_empty() { String::new() } else { format!(" ({})", group.join(", ")) };
        format!("oncegate: {what}{still}{of}: {}{more}. GET /v1/operations?dead=true lists them.", shown.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(letters: usize, repeat: bool) -> Alert {
        let named = |number| Named {
            id: format!("op_{number}"),
            route: "payments".to_owned(),
            state: "unknown".to_owned(),
            reason: "timeout".to_owned(),
            attempts: 2,
            since: Timestamp(0),
        };
        let group = Labels::from([("upstream".to_owned(), "ledger".to_owned())]);
        let letters: Vec<_> = (0..letters).map(named).collect();
        Alert { id: "al_1".to_owned(), at: Timestamp(1500), group, open: letters.len() as u64, repeat, letters }
    }

    #[test]
    fn a_program_gets_all_of_it() {
        let expected = json!({
            "id": "al_1", "kind": "dead_letters", "at": "1970-01-01T00:00:01.500Z", "group": { "upstream": "ledger" },
            "open": 1, "repeat": false,
            "operations": [{ "id": "op_0", "route": "payments", "state": "unknown", "reason": "timeout", "attempts": 2,
                "since": "1970-01-01T00:00:00.000Z" }],
        });
        let body: serde_json::Value = serde_json::from_str(&alert(1, false).body(AlertFormat::Json)).unwrap();
        assert_eq!(body, expected);
    }

    #[test]
    fn people_get_a_sentence() {
        let said = alert(1, false).body(AlertFormat::Log);
        let list = "GET /v1/operations?dead=true lists them.";
        assert_eq!(said, format!("oncegate: 1 operation needs a person (upstream ledger): op_0 (unknown). {list}"));
        let said = alert(12, true).body(AlertFormat::Slack);
        assert!(
            said.starts_with("{\"text\":\"oncegate: 12 operations need a person still (upstream ledger): op_0"),
            "{said}"
        );
        assert!(said.contains("op_9 (unknown) and 2 more."), "{said}");
    }

    #[test]
    fn it_is_the_same_when_it_is_read_back() {
        let alert = alert(3, true);
        assert_eq!(serde_json::from_str::<Alert>(&serde_json::to_string(&alert).unwrap()).unwrap(), alert);
    }
}
