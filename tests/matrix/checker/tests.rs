//! Logs of a run that went well, and what the checker says when they are broken.

use oncegate::clock::Timestamp;
use oncegate::operation::OwnerId;

use super::*;
use crate::faults::journal::digest;

const KEY: &str = "unsafe-1";
const LIMIT: Duration = Duration::from_secs(2);
const RECEIPT: Said = Said::Receipt(7);

/// A call that died between claim and send, and was made by the next gateway.
fn good() -> Logs {
    use StateName::{Claimed, Sent, Succeeded};
    let events = vec![
        event(1, EventKind::Claimed, None, Some(Claimed)),
        event(2, EventKind::TakenOver, None, None),
        event(3, EventKind::Sent, Some(Claimed), Some(Sent)),
        event(4, EventKind::Settled, Some(Sent), Some(Succeeded)),
    ];
    Logs {
        sends: vec![send(20, 1)],
        told: vec![told(10, Said::Nothing), told(30, RECEIPT), told(40, RECEIPT)],
        records: vec![Record { key: KEY.to_owned(), state: Succeeded, attempts: 1, events }],
        calls: vec![asked(Ends::Receipt)],
        rounds: 1,
        limit: LIMIT,
    }
}

/// One that died after the send: nobody knows.
fn doubtful() -> Logs {
    use StateName::{Claimed, Sent, Unknown};
    let events = vec![
        event(1, EventKind::Claimed, None, Some(Claimed)),
        event(2, EventKind::Sent, Some(Claimed), Some(Sent)),
        event(3, EventKind::LeaseEnded, Some(Sent), Some(Unknown)),
    ];
    Logs {
        told: vec![told(30, Said::Nothing), told(40, Said::Unknown), told(50, Said::Unknown)],
        records: vec![Record { key: KEY.to_owned(), state: Unknown, attempts: 1, events }],
        calls: vec![asked(Ends::Unknown)],
        ..good()
    }
}

fn event(revision: u64, kind: EventKind, from: Option<StateName>, to: Option<StateName>) -> Event {
    let (at, owner) = (Timestamp(revision), OwnerId([0; 16]));
    Event { revision, at, kind, from, to, attempts: 0, token: 1, owner, cause: None, status: None }
}

fn send(at: u64, send: u32) -> Entry {
    Entry { at, key: KEY.to_owned(), send, runs: true, digest: digest(b"{}") }
}

fn told(at: u64, said: Said) -> Told {
    Told { at, key: KEY.to_owned(), said }
}

fn asked(ends: Ends) -> Asked {
    let freed_after = vec![Duration::from_secs(1)];
    Asked { key: KEY.to_owned(), repeat: Repeat::Unsafe, ends, reached: true, freed_after }
}

fn found(mut logs: Logs, harm: impl FnOnce(&mut Logs)) -> Vec<Breach> {
    harm(&mut logs);
    check(&logs).into_iter().map(|violation| violation.breach).collect()
}

#[test]
fn logs_of_a_good_run_are_in_order() {
    assert_eq!(found(good(), |_| ()), []);
    assert_eq!(found(doubtful(), |_| ()), []);
}

#[test]
fn a_second_run_is_found() {
    let twice = |logs: &mut Logs| {
        logs.sends.push(send(25, 2));
        logs.records[0].attempts = 2;
    };
    assert_eq!(found(good(), twice), [Breach::SecondRun]);
    let harmless = |logs: &mut Logs| {
        twice(logs);
        logs.calls[0].repeat = Repeat::Harmless;
    };
    assert_eq!(found(good(), harmless), []);
    let after_doubt = |logs: &mut Logs| {
        logs.sends = vec![Entry { runs: false, ..send(20, 1) }, send(45, 2)];
        logs.records[0].attempts = 2;
    };
    assert_eq!(found(doubtful(), after_doubt), [Breach::SecondRun]);
}

#[test]
fn a_run_after_a_receipt_is_found_wherever_it_is_harmless() {
    let late = |logs: &mut Logs| {
        logs.calls[0].repeat = Repeat::Harmless;
        logs.sends.push(send(35, 2));
        logs.records[0].attempts = 2;
    };
    assert_eq!(found(good(), late), [Breach::RunAfterReceipt]);
}

#[test]
fn other_bytes_and_sends_that_nobody_counted_are_found() {
    let other = |logs: &mut Logs| {
        logs.calls[0].repeat = Repeat::WithKey;
        logs.sends.push(Entry { runs: false, digest: digest(b"[]"), ..send(25, 2) });
        logs.records[0].attempts = 2;
    };
    assert_eq!(found(good(), other), [Breach::OtherBytes]);
    assert_eq!(found(good(), |logs| logs.records[0].attempts = 0), [Breach::UncountedSend]);
}

#[test]
fn a_lost_receipt_is_found_with_clients_and_in_the_store() {
    assert_eq!(found(good(), |logs| logs.told.push(told(50, Said::NotYet))), [Breach::LostReceipt]);
    assert_eq!(found(good(), |logs| logs.told.push(told(50, Said::NoStore))), [Breach::LostReceipt]);
    assert_eq!(found(good(), |logs| logs.told.insert(2, told(35, Said::NoStore))), []);
    let forgotten = |logs: &mut Logs| {
        logs.records[0].events.pop();
        logs.records[0].state = StateName::Sent;
    };
    assert_eq!(found(good(), forgotten), [Breach::LostReceipt, Breach::Unfinished]);
    assert_eq!(found(good(), |logs| logs.records.clear()), [Breach::UncountedSend, Breach::NoRecord]);
}

#[test]
fn a_receipt_that_changed_or_was_made_up_is_found() {
    assert_eq!(found(good(), |logs| logs.told.push(told(50, Said::Receipt(8)))), [Breach::ChangedReceipt]);
    assert_eq!(found(good(), |logs| logs.sends[0].runs = false), [Breach::InventedReceipt]);
}

#[test]
fn an_unknown_that_ends_without_evidence_is_found() {
    let settled = |kind: EventKind| {
        move |logs: &mut Logs| {
            logs.told.push(told(60, RECEIPT));
            logs.calls[0].ends = Ends::Either;
            let record = &mut logs.records[0];
            record.events.push(event(4, kind, Some(StateName::Unknown), Some(StateName::Succeeded)));
            record.state = StateName::Succeeded;
        }
    };
    assert_eq!(found(doubtful(), settled(EventKind::Settled)), [Breach::SilentUnknown, Breach::SilentUnknown]);
    assert_eq!(found(doubtful(), settled(EventKind::LateAnswer)), []);
    let told_only = |logs: &mut Logs| {
        logs.told.insert(1, told(25, Said::Unknown));
        logs.calls[0].ends = Ends::Either;
    };
    assert_eq!(found(good(), told_only), [Breach::SilentUnknown]);
}

#[test]
fn a_gap_in_the_events_is_found() {
    assert_eq!(found(good(), |logs| logs.records[0].events.truncate(3)), [Breach::EventGap]);
    assert_eq!(found(good(), |logs| logs.records[0].events[2].to = None), [Breach::EventGap]);
    assert_eq!(found(good(), |logs| logs.records[0].events.swap(1, 2)), [Breach::EventGap]);
    assert_eq!(found(good(), |logs| logs.records[0].events[3].token = 0), [Breach::EventGap]);
    assert_eq!(found(good(), |logs| logs.records[0].state = StateName::Failed), [Breach::EventGap]);
}

#[test]
fn whoever_waits_for_the_dead_is_found() {
    assert_eq!(found(good(), |logs| logs.calls[0].freed_after.push(LIMIT * 2)), [Breach::Blocked(LIMIT * 2)]);
    let owned = |logs: &mut Logs| {
        logs.told.truncate(1);
        logs.records[0].events.truncate(3);
        logs.records[0].state = StateName::Sent;
    };
    assert_eq!(found(good(), owned), [Breach::Unfinished, Breach::Unfinished]);
}

#[test]
fn a_wrong_end_and_a_point_that_was_not_reached_are_found() {
    assert_eq!(found(good(), |logs| logs.calls[0].ends = Ends::Unknown), [Breach::WrongEnd(Ends::Unknown)]);
    assert_eq!(found(doubtful(), |logs| logs.calls[0].ends = Ends::Receipt), [Breach::WrongEnd(Ends::Receipt)]);
    assert_eq!(found(good(), |logs| logs.calls[0].reached = false), [Breach::NotReached]);
    assert_eq!(found(good(), |logs| logs.rounds = 2), [Breach::NotReached]);
}

#[test]
fn a_run_in_which_most_calls_fail_proves_nothing() {
    assert_eq!(too_few(1, 2), None);
    assert_eq!(too_few(1, 3).unwrap().breach, Breach::TooFewSucceeded);
}

#[test]
fn a_journal_is_read_back_as_it_was_written() {
    let entry = send(20, 1);
    assert_eq!(entry.to_string().parse::<Entry>().unwrap(), entry);
    assert!("20 unsafe-1 1 true".parse::<Entry>().is_err());
}
