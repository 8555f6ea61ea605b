//! What holds of every history, whatever the story.

use oncegate::operation::{Event, EventKind};

use super::store::Kept;

/// Exactly one event for each change of state, in order, along the edges of the table, up to the state that is kept.
pub fn check_history(kept: &Kept) {
    let events = &kept.events;
    let mut state = None;
    for (place, event) in events.iter().enumerate() {
        let story = || format!("event {place} of {events:#?}");
        match (event.from, event.to) {
            (from, Some(to)) => {
                assert_eq!(from, state, "{}", story());
                assert!(to.may_follow(from), "{}", story());
                state = Some(to);
            }
            (from, None) => {
                let stays = matches!(
                    event.kind,
                    EventKind::TakenOver
                        | EventKind::Due
                        | EventKind::Sent
                        | EventKind::Waiting
                        | EventKind::AnswerRefused
                        | EventKind::Disputed
                        | EventKind::Abandoned
                );
                assert!(from.is_none() && stays, "{}", story());
            }
        }
    }
    assert_eq!(state, Some(kept.operation.state.name()), "{events:#?}");
    check_order(events);
    let sends = events.last().map(|event| event.attempts);
    assert_eq!(sends, Some(kept.operation.attempts), "{events:#?}");
}

fn check_order(events: &[Event]) {
    for pair in events.windows(2) {
        let [before, after] = pair else { unreachable!("a window of two") };
        let grows = before.revision < after.revision
            && before.token <= after.token
            && before.attempts <= after.attempts
            && before.at <= after.at;
        assert!(grows, "{before:#?} before {after:#?}");
    }
}
