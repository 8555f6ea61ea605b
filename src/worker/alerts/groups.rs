//! Which letters share an alert, and when it is due. All of it follows from the letters themselves, so that any gateway
//! of a fleet comes to the same after any restart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::config::{Alerts, GroupBy};
use crate::operation::{DeadLetter, Operation};

/// Letters that one alert names; of a group with more, the others are named by the next ones.
pub(super) const MOST: usize = 1000;
/// A group that goes on growing is told of again after so many times `group_wait`.
const CALM: u32 = 10;

/// What the letters of a group have in common, by the words of `group_by`.
pub(super) type Labels = BTreeMap<String, String>;

/// A letter as an alert names it. Never keys, bodies or header values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Named {
    pub(super) id: String,
    pub(super) route: String,
    pub(super) state: String,
    pub(super) reason: String,
    pub(super) attempts: u32,
    /// Tells this letter from an earlier one of the same operation.
    pub(super) since: Timestamp,
}

/// The open letters of one group.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) open: u64,
    foremost: BTreeMap<Rank, Named>,
    last_alert: Option<Timestamp>,
}

/// When it was told last, never before all others; then, since when it is open. A store lists the newest first, and of
/// letters that come faster than alerts may go the oldest would never be told.
type Rank = (Option<Timestamp>, Timestamp, String);

/// All open letters by their groups.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<Labels, Group>);

impl Named {
    fn of(operation: &Operation, letter: DeadLetter) -> Self {
        Self {
            id: operation.id.to_string(),
            route: operation.identity.route.clone(),
            state: operation.state.name().as_str().to_owned(),
            reason: operation.letter_reason().unwrap_or_default(),
            attempts: operation.attempts,
            since: letter.since,
        }
    }

    fn label(&self, by: GroupBy, upstream: &str) -> String {
        match by {
            GroupBy::Upstream => upstream.to_owned(),
            GroupBy::Route => self.route.clone(),
            GroupBy::Reason => self.reason.clone(),
            GroupBy::State => self.state.clone(),
        }
    }
}

impl Groups {
    /// Adds an operation of `upstream`, if it has an open letter.
    pub(super) fn add(&mut self, operation: &Operation, upstream: &str, group_by: &[GroupBy]) {
        let Some(letter) = operation.dead_letter() else { return };
        let named = Named::of(operation, letter);
        let labels = group_by.iter().map(|by| (by.as_str().to_owned(), named.label(*by, upstream))).collect();
        self.0.entry(labels).or_default().add(named, letter);
    }

    /// The group whose alert has been due for longest.
    pub(super) fn due(self, rules: &Alerts, now: Timestamp) -> Option<(Labels, Group)> {
        let due = self.0.into_iter().filter_map(|(labels, group)| Some((group.due(rules)?, labels, group)));
        let first = due.filter(|(at, ..)| *at <= now).min_by_key(|(at, ..)| *at);
        first.map(|(_, labels, group)| (labels, group))
    }
}

impl Group {
    fn add(&mut self, named: Named, letter: DeadLetter) {
        self.open += 1;
        self.last_alert = self.last_alert.max(letter.alerted_at);
        self.foremost.insert((letter.alerted_at, letter.since, named.id.clone()), named);
        if self.foremost.len() > MOST {
            self.foremost.pop_last();
        }
    }

    fn due(&self, rules: &Alerts) -> Option<Timestamp> {
        match (self.oldest_untold(), self.last_alert) {
            (Some(oldest), None) => Some(oldest.after(rules.group_wait)),
            (Some(oldest), Some(last)) => Some(oldest.after(rules.group_wait).max(last.after(rules.group_wait * CALM))),
            (None, Some(last)) => Some(last.after(rules.repeat_interval)),
            (None, None) => None,
        }
    }

    /// Whether all of it was told before.
    pub(super) fn is_repeat(&self) -> bool {
        self.oldest_untold().is_none()
    }

    fn oldest_untold(&self) -> Option<Timestamp> {
        let ((told, since, _), _) = self.foremost.first_key_value()?;
        told.is_none().then_some(*since)
    }

    /// Those that an alert names: the ones that were in none first, the oldest before the others.
    pub(super) fn named(self) -> Vec<Named> {
        self.foremost.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::AlertFormat;

    const RULES: Alerts = Alerts {
        format: AlertFormat::Log,
        receiver: None,
        group_by: Vec::new(),
        group_wait: Duration::from_secs(30),
        repeat_interval: Duration::from_secs(3600),
    };

    fn group(letters: &[(u64, Option<u64>)]) -> Group {
        let mut group = Group::default();
        for (since, alerted_at) in letters {
            let letter = DeadLetter { alerted_at: alerted_at.map(Timestamp), ..DeadLetter::opened(Timestamp(*since)) };
            let named = Named {
                id: format!("op_{since}"),
                route: "payments".to_owned(),
                state: "unknown".to_owned(),
                reason: "timeout".to_owned(),
                attempts: 1,
                since: letter.since,
            };
            group.add(named, letter);
        }
        group
    }

    #[test]
    fn the_first_letter_waits_for_others_and_the_next_ones_for_longer() {
        for (letters, due) in [
            (&[(7_000, None), (5_000, None)][..], Some(35_000)),
            (&[(5_000, Some(36_000)), (40_000, None)], Some(336_000)),
            (&[(5_000, Some(36_000)), (400_000, None)], Some(430_000)),
            (&[(5_000, Some(36_000)), (6_000, Some(90_000))], Some(3_690_000)),
            (&[], None),
        ] {
            assert_eq!(group(letters).due(&RULES), due.map(Timestamp), "{letters:?}");
        }
    }

    #[test]
    fn what_was_in_no_alert_comes_first() {
        let mut letters: Vec<_> = (10..10 + MOST as u64).map(|since| (since, Some(5_000))).collect();
        letters.extend([(2, None), (3, None)]);
        let crowded = group(&letters);
        assert_eq!((crowded.open, crowded.is_repeat()), (MOST as u64 + 2, false));
        let named = crowded.named();
        assert_eq!((named.len(), named[0].id.as_str(), named[2].id.as_str()), (MOST, "op_2", "op_10"));
        assert!(group(&[(1, Some(2))]).is_repeat());
    }

    #[test]
    fn of_too_many_the_oldest_are_told() {
        let newest_first = || (0..MOST as u64 + 500).rev();
        let named = |letters: Vec<_>| group(&letters).named().into_iter().map(|letter| letter.since.0);
        let untold = named(newest_first().map(|since| (since, None)).collect());
        assert!(untold.eq(0..MOST as u64));
        let told = named(newest_first().map(|since| (since, Some(9_000 - since))).collect());
        assert!(told.eq(newest_first().take(MOST)), "those that were told least lately");
    }

    #[test]
    fn the_group_that_waits_longest_comes_first() {
        let label = |word: &str| Labels::from([("reason".to_owned(), word.to_owned())]);
        let groups = || {
            let groups =
                [("late", 9_000), ("early", 4_000)].map(|(word, since)| (label(word), group(&[(since, None)])));
            Groups(BTreeMap::from(groups))
        };
        assert_eq!(groups().due(&RULES, Timestamp(39_000)).unwrap().0, label("early"));
        assert!(groups().due(&RULES, Timestamp(33_999)).is_none());
    }
}
