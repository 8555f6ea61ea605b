//! Random steps on one operation: whatever the order, no change breaks what always holds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate::clock::Timestamp;
use oncegate::entropy::Entropy;
use oncegate::operation::dead_letter::{LEAST_LIFE, Next};
use oncegate::operation::transition::{
    Change, Ended, IllegalTransition, LateAnswer, Opening, Ownership, Retention, Step, Verdict, claim,
};
use oncegate::operation::{
    Cause, EventKind, Fence, Fingerprint, Identity, Kept, KeySource, Operation, OperationId, OwnerId, Scope, Settled,
    StateName, StoredRequest, WriteId,
};

const STEPS: usize = 40;
const LEASE: Duration = Duration::from_secs(10);
const NOTHING_TO_TELL: IllegalTransition = IllegalTransition { from: None, to: StateName::Unknown };
const KEEP: Retention =
    Retention { receipts: Duration::from_secs(60), tombstones: Duration::from_secs(600), unknowns: None };

/// One operation from its claim on. Panics with the seed in its message.
pub(crate) fn walk(seed: u64) {
    let entropy = Entropy::seeded(seed);
    let mut now = Timestamp(1_000);
    let mut operation = begin(&entropy, now);
    for _ in 0..STEPS {
        now = now.after(Duration::from_millis(entropy.up_to(20_000)));
        let step = Step { now, write: WriteId(entropy.bytes()) };
        if let Ok(change) = any_step(&operation, &entropy, step) {
            check_letter(&operation, &change, seed);
            match change.event.as_ref().map(|event| event.kind) {
                None if change.operation.dead_letter().is_some() => check_alerted(&operation, &change, seed),
                Some(EventKind::AnswerRefused | EventKind::Disputed) => check_late(&operation, &change, seed),
                _ => check(&operation, &change, seed),
            }
            operation = change.operation;
        }
    }
}

fn begin(entropy: &Entropy, now: Timestamp) -> Operation {
    let identity = Identity {
        scope: Scope::none(),
        route: "payments".to_owned(),
        key: "k-1".to_owned(),
        upstream_key: None,
        source: KeySource::Client,
        fingerprint: Fingerprint { version: 1, digest: [0; 32] },
        session: None,
        step: None,
        alike: None,
        rules: [0; 8],
    };
    let request = StoredRequest {
        method: "POST".to_owned(),
        target: "/payments".to_owned(),
        headers: Arc::default(),
        body: Bytes::new(),
        had_credential: false,
    };
    let step = Step { now, write: WriteId(entropy.bytes()) };
    let id = OperationId::of(&[0; 32], "payments", "k-1", None);
    claim(id, identity, request, ownership(entropy, now), opening(entropy), step).unwrap().operation
}

fn any_step(operation: &Operation, entropy: &Entropy, step: Step) -> Result<Change, IllegalTransition> {
    match entropy.up_to(13) {
        0 => operation.claim_again(ownership(entropy, step.now), opening(entropy), step),
        1 => operation.take_over(ownership(entropy, step.now), step),
        2 => operation.renew(LEASE, step),
        3 => operation.mark_sent(LEASE, step),
        4 => operation.wait(ended(entropy), step.now.after(LEASE), LEASE, step),
        5 => operation.settle(verdict(entropy), settled(step.now), None, KEEP, step),
        6 => operation.end(ended(entropy), next(entropy), KEEP, step),
        7 => operation.tell_late(late_answer(entropy), step).ok_or(NOTHING_TO_TELL),
        8 => operation.retract(operation.fence.owner, ended(entropy), KEEP, step),
        9 => operation.park(ended(entropy), step.now.after(LEASE), step),
        10 => {
            operation.alerted(operation.dead.map_or(step.now, |dead| dead.since), step.now, step).ok_or(NOTHING_TO_TELL)
        }
        12 => operation.put_off(step.now.after(LEASE), step),
        11 if entropy.up_to(7) == 0 => operation.abandon(KEEP, step),
        _ => operation.lapse(KEEP, step),
    }
}

fn check(before: &Operation, change: &Change, seed: u64) {
    let (after, state) = (&change.operation, change.operation.state.name());
    let has_ended =
        matches!(state, StateName::Succeeded | StateName::Failed | StateName::NotExecuted | StateName::Abandoned);
    assert_eq!(change.expected, Some(before.fence), "seed {seed}");
    assert_eq!(after.fence.revision, before.fence.revision + 1, "seed {seed}");
    assert!(after.fence.token >= before.fence.token, "seed {seed}: the token fell");
    assert!(after.attempts >= before.attempts, "seed {seed}: an attempt was forgotten");
    assert!(
        after.may_have_run || !before.may_have_run || after.state.settled().is_some() || is_taken_back(before, after),
        "seed {seed}: doubt was lost"
    );
    assert!(!after.may_have_run || state != StateName::NotExecuted, "seed {seed}: released in doubt");
    assert!(before.state.settled().is_none(), "seed {seed}: {state} after a final answer");
    assert_eq!(after.expires_at.is_some(), has_ended, "seed {seed}: {state} with a wrong end of its record");
}

/// By the owner of the last attempt, who knows what came of it.
fn is_taken_back(before: &Operation, after: &Operation) -> bool {
    before.is_unknown_of(before.fence.owner) && after.state.name() == StateName::NotExecuted
}

/// Exactly one is open where a person is needed, from the step that ended the run on; each other step closes it.
fn check_letter(before: &Operation, change: &Change, seed: u64) {
    let (was, is) = (before.dead_letter(), change.operation.dead_letter());
    let is_running = change.operation.due().is_some();
    assert!(is_running || change.operation.dead == is, "seed {seed}: a letter is noted and not open, or the other way");
    assert!(is.is_some() || change.operation.state.name() != StateName::Unknown, "seed {seed}: nobody is told");
    let kind = change.event.as_ref().map(|event| event.kind);
    let to = change.event.as_ref().and_then(|event| event.to);
    let ends = is.is_some() && (to.is_some() || kind == Some(EventKind::Disputed));
    match (was, is) {
        (None, Some(is)) => {
            assert!(ends, "seed {seed}: opened by a step that ends nothing");
            let is_news = change.operation.may_have_run && !before.may_have_run;
            assert!(is_news || before.dead.is_none_or(|was| was.since == is.since), "seed {seed}: told as news");
        }
        (Some(was), Some(is)) if !ends => assert_eq!(was.since, is.since, "seed {seed}: another letter"),
        (Some(_), None) => {
            let given_up = kind == Some(EventKind::Abandoned);
            assert!(given_up || before.state != change.operation.state, "seed {seed}: closed by no step");
        }
        (Some(_), Some(_)) | (None, None) => {}
    }
    let life = change.operation.expires_at.zip(is).map(|(end, letter)| end.since(letter.since));
    assert!(life.is_none_or(|life| life >= LEAST_LIFE), "seed {seed}: a letter that goes by itself, soon");
}

/// It is noted, and the record stays as it is but for its revision.
fn check_alerted(before: &Operation, change: &Change, seed: u64) {
    let (dead, fence) = (change.operation.dead, change.operation.fence);
    assert_eq!(change.operation, Operation { dead, fence, ..before.clone() }, "seed {seed}");
    assert!(dead.is_some_and(|dead| dead.alerted_at.is_some()), "seed {seed}");
}

/// It is told, and the record stays as it is but for its revision.
fn check_late(before: &Operation, change: &Change, seed: u64) {
    let after = &change.operation;
    assert_eq!(change.expected, Some(before.fence), "seed {seed}");
    assert_eq!((after.events, after.late_answers), (before.events + 1, before.late_answers + 1), "seed {seed}");
    assert!(after.late_answers <= 4, "seed {seed}: late answers are told without end");
    let (events, late_answers, dead, expires_at) = (after.events, after.late_answers, after.dead, after.expires_at);
    let fence = Fence { revision: before.fence.revision + 1, write: after.fence.write, ..before.fence };
    assert_eq!(*after, Operation { fence, events, late_answers, dead, expires_at, ..before.clone() }, "seed {seed}");
    let event = change.event.as_ref().unwrap();
    assert_eq!((event.from, event.to, event.token), (None, None, before.fence.token), "seed {seed}");
    let denies = matches!(before.state.name(), StateName::NotExecuted | StateName::Rejected | StateName::Abandoned);
    assert_eq!(event.kind == EventKind::Disputed, denies, "seed {seed}");
    let is_told = after.dead_letter().is_some_and(|letter| letter.disputed);
    assert_eq!(is_told, denies, "seed {seed}: nobody is told of the dispute");
    assert!(denies || after.expires_at == before.expires_at, "seed {seed}");
}

fn ownership(entropy: &Entropy, now: Timestamp) -> Ownership {
    Ownership {
        owner: OwnerId(entropy.bytes()),
        lease: LEASE,
        deadline: now.after(LEASE * 12),
        destination: [0; 8],
        accepted: false,
    }
}

fn opening(entropy: &Entropy) -> Opening {
    if entropy.up_to(1) == 0 { Opening::Claimed } else { Opening::Sent }
}

fn verdict(entropy: &Entropy) -> Verdict {
    if entropy.up_to(1) == 0 { Verdict::Succeeded } else { Verdict::Failed }
}

fn ended(entropy: &Entropy) -> Ended {
    Ended { cause: Cause::Closed, may_have_run: entropy.up_to(1) == 0 }
}

fn next(entropy: &Entropy) -> Next {
    if entropy.up_to(1) == 0 { Next::Client } else { Next::Person }
}

fn late_answer(entropy: &Entropy) -> LateAnswer {
    LateAnswer { owner: OwnerId(entropy.bytes()), status: 201 }
}

fn settled(now: Timestamp) -> Settled {
    let receipt_until = now.after(KEEP.receipts);
    Settled { status: 200, length: 0, digest: [0; 32], kept: Kept::Whole, receipt_until, after_doubt: false }
}
