//! A store that times out, or does what it was asked and loses the answer.

use oncegate::engine::answer::{Execution, Unguarded};
use oncegate::engine::problem::Code;
use oncegate::operation::{Cause, EventKind, Scope, State, StateName as S};

use crate::rig::gateway::id;
use crate::rig::store::TIMEOUT;
use crate::rig::{Act, Ask, Fault, Gateway, Setup, Step, answers, ms, secs};

const LATE: Fault = Fault::Late(secs(3));

/// The call was refused for want of a store, nothing was sent, and nobody ever sends what may be left of it.
async fn was_not_made(gateway: &Gateway, sends: usize) {
    gateway.neighbour().worker();
    gateway.is_idle().await;
    gateway.at(gateway.elapsed() + secs(300)).await;
    assert_eq!(gateway.upstream.seen().len(), sends);
    if let Some(kept) = gateway.kept("k").await {
        assert_eq!(kept.operation.state.name(), S::NotExecuted);
    }
    assert_eq!(gateway.call("k").await.says(), (201, "says 201", false));
    assert_eq!(gateway.upstream.seen().len(), sends + 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_gets_no_answer_is_never_sent() {
    for setup in [Setup::UNSAFE, Setup::WITH_KEY] {
        for fault in [Fault::Unheard, Fault::ReplyLost, LATE] {
            let gateway = Gateway::before(vec![], setup);
            gateway.store.fails(Step::Claim, fault, 1);
            let told = gateway.call("k").await;
            assert_eq!(told.problem(), (503, Some(Code::StoreUnavailable)), "{fault:?}");
            assert_eq!((told.marks.execution, told.at), (Some(Execution::NotExecuted), TIMEOUT), "{fault:?}");
            was_not_made(&gateway, 0).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_a_key_that_was_used_before_is_no_different() {
    let retry = "max_attempts = 1";
    for (setup, claimed) in [(Setup::UNSAFE, S::Claimed), (Setup::WITH_KEY, S::Sent)] {
        for fault in [Fault::Unheard, Fault::ReplyLost, LATE] {
            let gateway = Gateway::before(vec![answers(429).into()], Setup { retry, ..setup });
            assert_eq!(gateway.call("k").await.status, 429);
            gateway.store.fails(Step::To(claimed), fault, 1);
            let told = gateway.call("k").await;
            assert_eq!(told.problem(), (503, Some(Code::StoreUnavailable)), "{fault:?}");
            was_not_made(&gateway, 1).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_taken_back_however_late_the_store_returns() {
    let gateway = Gateway::before(vec![], Setup { lease: "1s", ..Setup::UNSAFE });
    gateway.store.fails(Step::Claim, Fault::ReplyLost, 1);
    let caller = gateway.caller(Ask::keyed("k"));
    gateway.has_become("k", S::Claimed).await;
    gateway.store.goes_away();
    assert_eq!(caller.await.unwrap().problem(), (503, Some(Code::StoreUnavailable)));
    gateway.at(secs(60)).await;
    gateway.store.comes_back();
    gateway.has_become("k", S::NotExecuted).await;
    was_not_made(&gateway, 0).await;
}

#[tokio::test(start_paused = true)]
async fn an_intent_that_is_not_durable_is_not_acted_on() {
    for fault in [Fault::Unheard, Fault::ReplyLost, LATE] {
        let gateway = Gateway::before(vec![], Setup::UNSAFE);
        gateway.store.fails(Step::To(S::Sent), fault, 1);
        let told = gateway.call("k").await;
        assert_eq!(told.problem(), (503, Some(Code::StoreUnavailable)), "{fault:?}");
        assert_eq!(told.marks.execution, Some(Execution::NotExecuted), "{fault:?}");
        was_not_made(&gateway, 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_intent_that_took_most_of_the_lease_needs_another_one() {
    let slow = Fault::Slow(ms(900));
    let gateway = Gateway::before(vec![], Setup { lease: "1s", ..Setup::UNSAFE });
    gateway.store.fails(Step::To(S::Sent), slow, 1);
    assert_eq!(gateway.call("k").await.status, 201);
    assert_eq!(gateway.store.count(Step::Renewal), 1);

    let gateway = Gateway::before(vec![], Setup { lease: "1s", ..Setup::UNSAFE });
    gateway.store.fails(Step::To(S::Sent), slow, 1);
    gateway.store.fails(Step::Renewal, slow, 3);
    assert_eq!(gateway.call("k").await.problem(), (503, Some(Code::StoreUnavailable)));
    was_not_made(&gateway, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_not_durable_ends_the_run_with_what_is_known() {
    for fault in [Fault::Unheard, Fault::ReplyLost] {
        let gateway = Gateway::before(vec![answers(429).into()], Setup::UNSAFE);
        gateway.store.fails(Step::To(S::Waiting), fault, 1);
        let told = gateway.call("k").await;
        assert_eq!(told.problem(), (503, Some(Code::StoreUnavailable)), "{fault:?}");
        was_not_made(&gateway, 1).await;

        let gateway = Gateway::before(vec![answers(503).into()], Setup::WITH_KEY);
        gateway.store.fails(Step::To(S::Waiting), fault, 1);
        let told = gateway.call("k").await;
        assert_eq!(told.problem(), (502, Some(Code::OutcomeUnknown)), "{fault:?}");
        gateway.is_idle().await;
        assert_eq!(gateway.states("k").await.last(), Some(&S::Unknown), "{fault:?}");
        assert_eq!(gateway.upstream.seen().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_receipt_is_waited_for_while_the_store_stumbles() {
    let gateway = Gateway::before(vec![answers(200).body("charged").into()], Setup::UNSAFE);
    gateway.store.fails(Step::To(S::Succeeded), Fault::Unheard, 3);
    let told = gateway.call("k").await;
    assert_eq!(told.says(), (200, "charged", false));
    assert!(!told.marks.receipt_none);
    assert!(told.at >= TIMEOUT * 3 && told.at < secs(4), "{:?}", told.at);
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Succeeded]);
    assert_eq!(gateway.call("k").await.says(), (200, "charged", true));
}

#[tokio::test(start_paused = true)]
async fn a_receipt_that_comes_too_late_for_its_caller_is_still_kept() {
    let gateway = Gateway::before(vec![answers(200).after(secs(1)).body("charged").into()], Setup::UNSAFE);
    let caller = gateway.caller(Ask::keyed("k").within(secs(5)));
    gateway.upstream.has_seen(1).await;
    gateway.store.goes_away();
    let told = caller.await.unwrap();
    assert_eq!(told.says(), (200, "charged", false));
    assert!(told.marks.receipt_none && told.at >= secs(4) && told.at < secs(7), "{:?}", told.at);

    gateway.at(secs(300)).await;
    gateway.store.comes_back();
    gateway.has_become("k", S::Succeeded).await;
    assert_eq!(gateway.call("k").await.says(), (200, "charged", true));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_store_that_waits_for_a_person() {
    let gateway = Gateway::before(vec![answers(200).body("charged").into()], Setup::UNSAFE);
    gateway.store.fails(Step::To(S::Succeeded), Fault::Lost, 8);
    let told = gateway.call("k").await;
    assert_eq!(told.says(), (200, "charged", false));
    assert!(told.marks.receipt_none && told.at < secs(1), "{:?}", told.at);

    gateway.has_become("k", S::Succeeded).await;
    assert_eq!(gateway.call("k").await.says(), (200, "charged", true));
}

#[tokio::test(start_paused = true)]
async fn a_route_that_passes_without_a_store_does_not_pass_without_its_memory() {
    let (route, key) = ("on_store_down = \"pass\"", "mode = \"required\"");
    let gateway = Gateway::before(Vec::new(), Setup { route, key, ..Setup::WITH_KEY });
    gateway.store.fails(Step::Claim, Fault::Lost, 1);
    assert_eq!(gateway.call("k").await.problem(), (503, Some(Code::StoreUnavailable)));
    assert_eq!(gateway.upstream.seen().len(), 0);

    gateway.store.goes_away();
    let passed = gateway.open(Ask::keyed("k")).await;
    assert_eq!((passed.marks.unguarded, gateway.upstream.seen().len()), (Some(Unguarded::Store), 1));
}

#[tokio::test(start_paused = true)]
async fn what_may_have_run_under_another_form_of_its_key_does_not_pass_without_a_store() {
    let route = "on_store_down = \"pass\"";
    let (both_forms, one_form) = ("mode = \"required\"", "mode = \"required\"\nfrom = [\"session\", \"step\"]");
    for (setup, key, sends) in
        [(Setup::WITH_KEY, both_forms, 0), (Setup::WITH_KEY, one_form, 1), (Setup::HARMLESS, both_forms, 1)]
    {
        let gateway = Gateway::before(Vec::new(), Setup { route, key, ..setup });
        gateway.store.goes_away();
        let told = gateway.open(Ask::of_step("s", "1")).await;
        assert_eq!((told.marks.unguarded.is_some(), gateway.upstream.seen().len()), (sends == 1, sends), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_receipt_whose_acknowledgement_was_lost_is_recognised() {
    for setup in [Setup::UNSAFE, Setup::WITH_KEY] {
        let gateway = Gateway::before(vec![answers(200).body("charged").into()], setup);
        gateway.store.fails(Step::To(S::Succeeded), Fault::ReplyLost, 1);
        let told = gateway.call("k").await;
        assert_eq!(told.says(), (200, "charged", false));
        assert!(!told.marks.receipt_none && told.at < secs(2), "{:?}", told.at);
        let events = gateway.kept("k").await.unwrap().events;
        assert_eq!(events.iter().filter(|event| event.kind == EventKind::Settled).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_without_a_receipt_is_told_at_once_and_written_when_it_can_be() {
    for (fault, times) in [(Fault::Unheard, 5), (Fault::ReplyLost, 1)] {
        let gateway = Gateway::before(vec![Act::Closes], Setup::UNSAFE);
        gateway.store.fails(Step::To(S::Unknown), fault, times);
        let told = gateway.call("k").await;
        assert_eq!((told.problem(), told.at), ((502, Some(Code::OutcomeUnknown)), TIMEOUT));
        gateway.is_idle().await;
        assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Unknown]);
        let state = gateway.kept("k").await.unwrap().operation.state;
        assert!(matches!(state, State::Unknown { cause: Cause::Closed, .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_for_a_while_is_renewed_later() {
    let gateway = Gateway::before(vec![answers(200).after(secs(20)).into()], Setup::UNSAFE);
    gateway.store.fails(Step::Renewal, Fault::Unheard, 2);
    gateway.store.fails(Step::Renewal, Fault::ReplyLost, 2);
    gateway.neighbour().worker();
    assert_eq!(gateway.call("k").await.status, 200);
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Succeeded]);
}

/// A rate has the store asked before the claim does.
#[tokio::test(start_paused = true)]
async fn a_route_with_a_rate_waits_for_its_store_no_longer_than_others() {
    let gateway = Gateway::before(vec![], Setup { limit: "rate = \"5/s\"", ..Setup::UNSAFE });
    gateway.store.goes_away();
    let told = gateway.call("k").await;
    assert_eq!((told.problem(), told.at), ((503, Some(Code::StoreUnavailable)), TIMEOUT));
    gateway.store.comes_back();
    assert_eq!(gateway.call("k").await.says(), (201, "says 201", false));
    assert_eq!(gateway.engine.shared().status.snapshot().routes["payments"].refused.store, 1);
}

#[tokio::test(start_paused = true)]
async fn who_repeats_a_call_without_a_kept_receipt_is_told_its_answer_until_one_is_stored() {
    let gateway = Gateway::before(vec![answers(200).after(secs(1)).body("charged").into()], Setup::UNSAFE);
    let caller = gateway.caller(Ask::keyed("k").within(secs(5)));
    gateway.upstream.has_seen(1).await;
    gateway.store.goes_away();
    assert!(caller.await.unwrap().marks.receipt_none);

    let repeat = gateway.call("k").await;
    assert_eq!(repeat.says(), (200, "charged", false));
    assert!(repeat.marks.receipt_none);
    gateway.store.comes_back();
    gateway.has_become("k", S::Succeeded).await;
    gateway.is_idle().await;
    let kept = gateway.call("k").await;
    assert_eq!((kept.says(), kept.marks.receipt_none), ((200, "charged", true), false));
    assert!(!gateway.is_flying("k").await);
    assert_eq!(gateway.upstream.seen().len(), 1);
}

/// A failover goes back to what its owner had written before; he alone knows more, and tells it.
#[tokio::test(start_paused = true)]
async fn an_intent_that_a_failover_forgot_runs_once_all_the_same() {
    let gateway = Gateway::before(vec![answers(200).body("charged").into()], Setup::UNSAFE);
    gateway.store.forgets(Step::To(S::Sent));
    let told = gateway.call("k").await;
    assert_eq!((told.says(), told.marks.receipt_none), ((200, "charged", false), false));
    assert_eq!(gateway.call("k").await.says(), (200, "charged", true));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_doubt_that_a_failover_forgot_stays_one() {
    let setup = Setup { retry: "max_attempts = 2", ..Setup::WITH_KEY };
    let gateway = Gateway::before(vec![answers(503).into(), answers(429).into()], setup);
    gateway.store.forgets(Step::To(S::Waiting));
    assert_eq!(gateway.call("k").await.marks.execution, Some(Execution::Unknown));
    assert_eq!(gateway.upstream.seen().len(), 2);
}

/// Another gateway that reads the record, and loses the store right after.
fn cut_off_after_the_look(owner: &Gateway, step: Step) -> Gateway {
    let other = owner.neighbour();
    other.store.fails(step, Fault::Unheard, 1);
    other
}

#[tokio::test(start_paused = true)]
async fn what_was_read_of_a_call_is_not_forgotten_with_the_store() {
    for (setup, step) in [
        (Setup::UNSAFE, Step::To(S::Unknown)),
        (Setup::WITH_KEY, Step::Look),
        (Setup::WITH_KEY, Step::TakeOver),
        (Setup { route: "on_store_down = \"pass\"", ..Setup::HARMLESS }, Step::TakeOver),
    ] {
        let owner = Gateway::before(vec![Act::IsSilent], Setup { lease: "1s", ..setup });
        owner.caller(Ask::keyed("k"));
        owner.upstream.has_seen(1).await;
        owner.store.goes_away();
        owner.at(secs(2)).await;
        let told = cut_off_after_the_look(&owner, step).call("k").await;
        assert_eq!(told.problem(), (503, Some(Code::StoreUnavailable)), "{step:?}");
        assert_eq!(told.marks.execution, Some(Execution::Unknown), "{step:?}");
        assert_eq!(owner.upstream.seen().len(), 1, "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_runs_elsewhere_is_in_progress_whatever_the_store_says_next() {
    for route in ["", "on_store_down = \"pass\""] {
        let setup = Setup { route, ..Setup::HARMLESS };
        let owner = Gateway::before(vec![answers(200).after(secs(5)).into()], setup);
        let caller = owner.caller(Ask::keyed("k"));
        owner.upstream.has_seen(1).await;
        let told = cut_off_after_the_look(&owner, Step::Look).call("k").await;
        assert_eq!(told.problem(), (503, Some(Code::StoreUnavailable)));
        assert_eq!(told.marks.execution, Some(Execution::InProgress));
        assert_eq!(caller.await.unwrap().status, 200);
        assert_eq!(owner.upstream.seen().len(), 1);
    }
}

/// The caller was told that it did not run, and so it stays.
#[tokio::test(start_paused = true)]
async fn an_end_that_is_still_to_be_written_is_not_overtaken_by_a_sweep() {
    for setup in [Setup::UNSAFE, Setup::WITH_KEY] {
        for elsewhere in [false, setup.repeat == "unsafe"] {
            let act = answers(429).with("retry-after", "3600").into();
            let gateway = Gateway::before(vec![act], Setup { lease: "1s", ..setup });
            gateway.store.fails(Step::To(S::NotExecuted), Fault::Unheard, 4);
            let sweeper = if elsewhere { gateway.neighbour() } else { gateway.clone() };
            sweeper.worker();
            let told = gateway.call("k").await;
            assert_eq!((told.status, told.marks.execution), (429, Some(Execution::NotExecuted)));
            gateway.has_become("k", S::NotExecuted).await;
            assert_eq!(gateway.states("k").await.contains(&S::Unknown), elsewhere);
            assert_eq!(gateway.upstream.seen().len(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_looks_up_a_call_without_a_kept_receipt_waits_as_long_as_he_said() {
    let gateway = Gateway::before(vec![answers(200).into()], Setup::UNSAFE);
    gateway.store.fails(Step::To(S::Succeeded), Fault::Unheard, 8);
    let told = gateway.ask(Ask::keyed("k").within(secs(1))).await;
    assert!(told.marks.receipt_none);
    let begin = gateway.elapsed();
    let view = gateway.engine.look_up(&Scope::none(), id("k"), secs(2)).await.unwrap();
    assert_eq!(view.operation.state.name(), S::Sent);
    assert_eq!((gateway.elapsed() - begin).as_secs(), 2);
}
