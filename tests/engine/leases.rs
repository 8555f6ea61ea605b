//! Owners, and what becomes of those whose lease another gateway has taken.

use oncegate::engine::answer::Execution;
use oncegate::engine::problem::Code;
use oncegate::operation::{EventKind, StateName as S};
use tokio::task::JoinHandle;

use crate::rig::{Act, Ask, Fault, Gateway, Setup, Step, Told, answers, ms, secs};

const UNSAFE: Setup = Setup { lease: "1s", ..Setup::UNSAFE };
const WITH_KEY: Setup = Setup { lease: "1s", ..Setup::WITH_KEY };
/// A connection may take its time.
const PATIENT: &str = "connect_timeout = \"60s\"";

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_through_a_long_attempt_and_a_long_wait() {
    let setup = Setup { route: "in_flight = \"reject\"", ..UNSAFE };
    let wait = answers(429).with("retry-after", "20");
    for (act, sends) in [(answers(200).after(secs(20)), 1), (wait, 2)] {
        let owner = Gateway::before(vec![act.into()], setup);
        let other = owner.neighbour();
        other.worker();
        let caller = owner.caller(Ask::keyed("k"));
        for tenth in 1..200 {
            owner.at(ms(100) * tenth).await;
            let lease = owner.kept("k").await.unwrap().operation.due();
            assert!(lease > Some(owner.now()), "after {tenth} tenths");
            assert_eq!(other.call("k").await.problem(), (409, Some(Code::InProgress)));
        }
        let told = caller.await.unwrap();
        assert!(told.at >= secs(20) && told.status < 300);
        assert_eq!(owner.upstream.seen().len(), sends);
        assert_eq!(owner.kept("k").await.unwrap().operation.fence.token, 1);
        assert!(owner.store.count(Step::Renewal) >= 40);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_ends_the_unknown_of_its_own_attempt() {
    let script = vec![answers(200).after(secs(20)).body("charged").into()];
    let (owner, other) = parted(script, UNSAFE).await;
    let caller = owner.caller(Ask::keyed("k"));
    owner.upstream.has_seen(1).await;
    owner.store.goes_away();
    other.has_become("k", S::Unknown).await;
    assert_eq!(other.call("k").await.problem(), (409, Some(Code::OutcomeUnknown)));

    owner.at(secs(10)).await;
    owner.store.comes_back();
    let told = caller.await.unwrap();
    assert_eq!(told.says(), (200, "charged", false));
    assert_eq!(owner.states("k").await, [S::Claimed, S::Sent, S::Unknown, S::Succeeded]);
    assert_eq!(owner.kept("k").await.unwrap().events[3].kind, EventKind::LateAnswer);
    assert_eq!(late(&owner), (1, 1), "a renewal was refused before the answer counted");
    assert_eq!(other.call("k").await.says(), (200, "charged", true));
    assert_eq!(owner.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_comes_late_ends_the_unknown_of_its_own_attempt() {
    let (owner, other) = parted(vec![answers(429).after(secs(20)).into()], UNSAFE).await;
    let caller = owner.caller(Ask::keyed("k"));
    owner.upstream.has_seen(1).await;
    owner.store.goes_away();
    other.has_become("k", S::Unknown).await;

    owner.at(secs(10)).await;
    owner.store.comes_back();
    was_told_that_nothing_ran(&owner, caller).await;
    assert_eq!(other.call("k").await.says(), (201, "says 201", false));
    assert_eq!(owner.upstream.seen().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_alert_of_the_unknown_keeps_its_evidence_from_nobody() {
    for (act, state) in [(answers(200), S::Succeeded), (answers(429), S::NotExecuted)] {
        let (owner, other) = parted(vec![act.after(secs(20)).into()], UNSAFE).await;
        let caller = owner.caller(Ask::keyed("k"));
        owner.upstream.has_seen(1).await;
        owner.store.goes_away();
        other.has_become("k", S::Unknown).await;

        owner.at(secs(10)).await;
        owner.store.comes_back();
        owner.store.alerts_before(Step::To(state), 2);
        caller.await.unwrap();
        assert_eq!(owner.states("k").await, [S::Claimed, S::Sent, S::Unknown, state]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_never_went_out_is_no_unknown_though_its_owner_stood_still() {
    let (owner, other) = parted(vec![], UNSAFE).await;
    owner.store.fails(Step::To(S::Sent), Fault::SlowReply(secs(5)), 1);
    let caller = owner.caller(Ask::keyed("k"));
    other.has_become("k", S::Unknown).await;
    was_told_that_nothing_ran(&owner, caller).await;
    assert_eq!(owner.upstream.seen().len(), 0);
    assert_eq!(other.call("k").await.says(), (201, "says 201", false));
}

/// The store may be away again when the owner wants to say it.
#[tokio::test(start_paused = true)]
async fn an_owner_takes_an_unknown_back_as_soon_as_the_store_hears_it() {
    for fault in [Fault::Unheard, Fault::ReplyLost] {
        let (owner, other) = parted(vec![], UNSAFE).await;
        owner.store.fails(Step::To(S::Sent), Fault::SlowReply(secs(5)), 1);
        let caller = owner.caller(Ask::keyed("k"));
        other.has_become("k", S::Unknown).await;
        owner.at(secs(4)).await;
        // The first of these would end a run whose record is still its owner's.
        owner.store.fails(Step::To(S::NotExecuted), Fault::Slow(ms(0)), 1);
        owner.store.fails(Step::To(S::NotExecuted), fault, 1);
        let told = caller.await.unwrap();
        assert_eq!((told.status, told.marks.execution), (503, Some(Execution::NotExecuted)), "{fault:?}");
        owner.has_become("k", S::NotExecuted).await;
        assert_eq!(owner.states("k").await, [S::Claimed, S::Sent, S::Unknown, S::NotExecuted], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_counts_if_whoever_took_over_never_sent() {
    let setup = Setup { retry: "max_attempts = 3", ..WITH_KEY };
    let script = vec![answers(200).after(secs(20)).body("charged").into(), Act::Refuses, Act::Refuses];
    let (owner, other) = parted(script, setup).await;
    let caller = owner.caller(Ask::keyed("k"));
    owner.upstream.has_seen(1).await;
    owner.store.goes_away();
    other.has_become("k", S::Unknown).await;
    assert_eq!(owner.kept("k").await.unwrap().operation.fence.token, 2);

    owner.store.comes_back();
    assert_eq!(caller.await.unwrap().says(), (200, "charged", false));
    assert_eq!(owner.kept("k").await.unwrap().receipt.unwrap().body, "charged");
    assert_eq!(owner.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_to_an_attempt_that_was_repeated_is_no_evidence() {
    let setup = Setup { retry: "max_attempts = 2", ..WITH_KEY };
    let (owner, other) = parted(vec![answers(200).after(secs(20)).into(), Act::Closes], setup).await;
    let caller = owner.caller(Ask::keyed("k"));
    owner.upstream.has_seen(1).await;
    owner.store.goes_away();
    other.has_become("k", S::Unknown).await;
    assert_eq!(owner.upstream.seen().len(), 2);

    owner.store.comes_back();
    assert_eq!(caller.await.unwrap().problem(), (409, Some(Code::OutcomeUnknown)));
    assert_eq!(owner.states("k").await.last(), Some(&S::Unknown));
    assert_eq!(last_event(&owner).await, (EventKind::AnswerRefused, Some(200)));
    assert_eq!(late(&owner), (2, 0), "a renewal, then the answer");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_does_not_replace_the_receipt_of_the_new_owner() {
    let script = vec![answers(200).after(secs(20)).body("first").into(), answers(200).body("second").into()];
    let (owner, other) = parted(script, WITH_KEY).await;
    let caller = owner.caller(Ask::keyed("k"));
    owner.upstream.has_seen(1).await;
    owner.store.goes_away();
    other.has_become("k", S::Succeeded).await;

    owner.store.comes_back();
    assert_eq!(caller.await.unwrap().says(), (200, "second", true));
    assert_eq!(other.call("k").await.says(), (200, "second", true));
    assert_eq!(owner.states("k").await, [S::Sent, S::Succeeded]);
    assert_eq!(last_event(&owner).await, (EventKind::AnswerRefused, Some(200)));
    assert_eq!(late(&owner), (2, 0), "a renewal, then the answer");
    let seen = owner.upstream.seen();
    assert_eq!((seen.len(), seen[0].request()), (2, seen[1].request()));
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_no_answer_to_the_attempt_of_the_new_owner() {
    let script =
        vec![answers(200).after(secs(20)).body("first").into(), answers(200).after(secs(25)).body("second").into()];
    let (owner, other) = parted(script, WITH_KEY).await;
    let caller = owner.caller(Ask::keyed("k"));
    owner.upstream.has_seen(1).await;
    owner.store.goes_away();
    owner.upstream.has_seen(2).await;

    owner.store.comes_back();
    let told = caller.await.unwrap();
    assert_eq!((told.problem(), told.at.as_secs()), ((409, Some(Code::InProgress)), 20));
    assert_eq!(owner.states("k").await, [S::Sent]);
    assert_eq!(last_event(&owner).await, (EventKind::AnswerRefused, Some(200)));
    other.has_become("k", S::Succeeded).await;
    assert_eq!(owner.call("k").await.says(), (200, "second", true));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_was_replaced_before_its_send_sends_nothing() {
    for (setup, comes_back) in [(UNSAFE, true), (UNSAFE, false), (WITH_KEY, true), (WITH_KEY, false)] {
        let script = vec![Act::ConnectsAfter(secs(20)), answers(200).body("other's").into()];
        let owner = Gateway::before(script, Setup { upstream: PATIENT, ..setup });
        let other = owner.neighbour();
        let caller = owner.caller(Ask::keyed("k"));
        owner.at(ms(500)).await;
        owner.store.goes_away();
        owner.at(secs(3)).await;
        assert_eq!(other.call("k").await.says(), (200, "other's", false));

        owner.at(secs(10)).await;
        if comes_back {
            owner.store.comes_back();
        }
        let told = caller.await.unwrap();
        assert!(told.at >= secs(20));
        match comes_back {
            true => assert_eq!(told.says(), (200, "other's", true)),
            false => assert_eq!(told.problem().1.map(|code| code.entry().status), Some(503), "{told:?}"),
        }
        assert_eq!(owner.upstream.seen().len(), 1);
        assert_eq!(owner.kept("k").await.unwrap().operation.fence.token, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_takes_a_wait_over_keeps_to_it_and_goes_on_counting() {
    let setup = Setup { retry: "max_attempts = 2", ..WITH_KEY };
    for (last, end) in [(200, S::Succeeded), (503, S::Unknown)] {
        let script = vec![answers(503).with("retry-after", "30").into(), answers(last).into()];
        let (owner, other) = parted(script, setup).await;
        let caller = owner.caller(Ask::keyed("k"));
        owner.has_become("k", S::Waiting).await;
        owner.store.goes_away();
        other.has_become("k", end).await;

        let seen = owner.upstream.seen();
        assert_eq!((seen.len(), seen[0].request()), (2, seen[1].request()));
        assert!(seen[1].at >= secs(30) && seen[1].at < secs(31), "{:?}", seen[1].at);
        assert_eq!(seen[1].header("oncegate-attempt"), Some("2"));
        assert_eq!(owner.states("k").await, [S::Sent, S::Waiting, S::Sent, end]);
        let kept = owner.kept("k").await.unwrap();
        assert_eq!((kept.operation.attempts, kept.operation.fence.token), (2, 2));
        assert!(kept.events.iter().any(|event| event.kind == EventKind::TakenOver));
        assert_eq!(caller.await.unwrap().problem(), (502, Some(Code::OutcomeUnknown)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_does_not_take_over_a_wait_that_he_would_not_see_end() {
    let script = vec![answers(503).with("retry-after", "30").into(), answers(200).into()];
    let owner = Gateway::before(script, WITH_KEY);
    let other = owner.neighbour();
    owner.caller(Ask::keyed("k"));
    owner.has_become("k", S::Waiting).await;
    owner.store.goes_away();

    owner.at(secs(3)).await;
    let told = other.ask(Ask::keyed("k").within(secs(5))).await;
    assert_eq!(told.problem(), (409, Some(Code::InProgress)));
    assert!(told.at < ms(3100));
    assert_eq!(owner.kept("k").await.unwrap().operation.fence.token, 1);

    let told = other.call("k").await;
    assert_eq!(told.says(), (200, "says 200", false));
    assert!(told.at >= secs(30));
    assert_eq!(owner.upstream.seen().len(), 2);
}

async fn was_told_that_nothing_ran(owner: &Gateway, caller: JoinHandle<Told>) {
    let told = caller.await.unwrap();
    assert_eq!(
        (told.problem(), told.marks.execution),
        ((502, Some(Code::UpstreamFailed)), Some(Execution::NotExecuted))
    );
    assert_eq!(owner.states("k").await, [S::Claimed, S::Sent, S::Unknown, S::NotExecuted]);
}

/// A gateway that is about to lose its lease, and another one that looks after what nobody owns.
async fn parted(script: Vec<Act>, setup: Setup) -> (Gateway, Gateway) {
    let owner = Gateway::before(script, setup);
    let other = owner.neighbour();
    other.worker();
    (owner, other)
}

async fn last_event(gateway: &Gateway) -> (EventKind, Option<u16>) {
    let events = gateway.kept("k").await.unwrap().events;
    events.last().map(|event| (event.kind, event.status)).unwrap()
}

/// Writes that came late, and answers that came late and counted.
fn late(gateway: &Gateway) -> (u64, u64) {
    let counters = gateway.engine.shared().status.route(&gateway.route().name);
    (counters.fenced_writes.get(), counters.late_answers.get())
}
