//! What needs a person, from the step that opens it to the one that closes it.

use oncegate::engine::answer::Execution;
use oncegate::engine::problem::Code;
use oncegate::operation::dead_letter::LEAST_LIFE;
use oncegate::operation::transition::{LateAnswer, Step};
use oncegate::operation::{DeadLetter, OperationId, OwnerId, Scope, State, StateName as S, WriteId};
use oncegate::retry::decide::Stop;
use oncegate::store::{Store, Written};

use crate::rig::gateway::id;
use crate::rig::{self, Act, Ask, Fault, Gateway, Setup, answers, ms, secs};

const ONE_TRY: &str = "max_attempts = 1";
const UNSAFE: Setup = Setup { retry: ONE_TRY, ..Setup::UNSAFE };
const WITH_KEY: Setup = Setup { retry: ONE_TRY, ..Setup::WITH_KEY };

async fn listed(gateway: &Gateway) -> Vec<OperationId> {
    let page = gateway.store.dead_letters(None, 100).await.unwrap();
    page.operations.iter().map(|operation| operation.id).collect()
}

async fn letter(gateway: &Gateway, key: &str) -> Option<DeadLetter> {
    let letter = gateway.kept(key).await.unwrap().operation.dead_letter();
    assert_eq!(listed(gateway).await.contains(&id(key)), letter.is_some());
    letter
}

/// How a call with one try ends.
async fn after(act: Act, setup: Setup) -> Gateway {
    let gateway = Gateway::before(vec![act], setup);
    gateway.call("k").await;
    gateway
}

#[tokio::test(start_paused = true)]
async fn what_nobody_sees_to_is_a_letter() {
    for (act, setup, state) in [
        (Act::Refuses, WITH_KEY, S::NotExecuted),
        (answers(521).into(), UNSAFE, S::NotExecuted),
        (answers(401).into(), WITH_KEY, S::NotExecuted),
        (answers(429).into(), WITH_KEY, S::NotExecuted),
        (answers(429).with("retry-after", "soon").into(), WITH_KEY, S::NotExecuted),
        (answers(429).with("retry-after", "60").cut().into(), WITH_KEY, S::NotExecuted),
        (answers(429).with("retry-after", "60").with("x-should-retry", "false").into(), WITH_KEY, S::NotExecuted),
        (Act::Closes, UNSAFE, S::Unknown),
        (answers(503).with("retry-after", "60").into(), UNSAFE, S::Unknown),
        (Act::Babbles, WITH_KEY, S::Unknown),
    ] {
        let gateway = after(act, setup).await;
        let kept = gateway.kept("k").await.unwrap().operation;
        assert_eq!(kept.state.name(), state);
        let letter = letter(&gateway, "k").await.unwrap_or_else(|| panic!("no letter: {:?}", kept.state));
        assert_eq!((letter.since, letter.alerted_at), (kept.changed_at, None));
    }
}

#[tokio::test(start_paused = true)]
async fn what_ran_or_whose_client_comes_back_is_none() {
    for act in [
        answers(201).into(),
        answers(404).into(),
        answers(429).with("retry-after", "60").into(),
        answers(421).with("retry-after-ms", "100").into(),
    ] {
        let gateway = after(act, WITH_KEY).await;
        assert_eq!(letter(&gateway, "k").await, None, "{:?}", gateway.kept("k").await.unwrap().operation.state);
    }
}

/// Whose caller is told not to try again himself, whatever time the answer names.
#[tokio::test(start_paused = true)]
async fn what_was_tried_again_in_vain_is_a_letter() {
    let setup = |retry| Setup { retry, ..Setup::UNSAFE };
    for (setup, hint, stop, attempts) in
        [(setup("max_attempts = 2"), "1", Stop::Exhausted, 2), (setup("max_attempts = 5"), "30", Stop::Deadline, 4)]
    {
        let throttled = || answers(429).with("retry-after", hint).into();
        let gateway = Gateway::before((0..9).map(|_| throttled()).collect(), setup);
        let told = gateway.call("k").await;
        assert_eq!((told.status, told.marks.stop, told.marks.attempts), (429, Some(stop), attempts));
        assert!(!told.marks.calls_back(&told.headers));
        assert!(letter(&gateway, "k").await.is_some(), "{stop:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_hung_up_was_not_told_to_come_back() {
    let throttled = answers(429).with("retry-after", "60").after(secs(1)).into();
    let gateway = Gateway::before(vec![throttled], UNSAFE);
    let caller = gateway.caller(Ask::keyed("k"));
    gateway.has_become("k", S::Sent).await;
    caller.abort();
    gateway.has_become("k", S::NotExecuted).await;
    assert!(letter(&gateway, "k").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_call_for_which_there_was_no_store_is_the_clients() {
    let gateway = Gateway::before(vec![], UNSAFE);
    gateway.store.fails(rig::Step::To(S::Sent), Fault::Unheard, 1);
    assert_eq!(gateway.call("k").await.problem(), (503, Some(Code::StoreUnavailable)));
    gateway.is_idle().await;
    assert_eq!(gateway.kept("k").await.unwrap().operation.state.name(), S::NotExecuted);
    assert_eq!(letter(&gateway, "k").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_owner_leaves_a_letter() {
    let upstream = "connect_timeout = \"60s\"";
    let setup = Setup { upstream, lease: "1s", retry: "deadline = \"2s\"", ..Setup::UNSAFE };
    let crashed = Gateway::before(vec![Act::ConnectsAfter(secs(3600))], setup);
    crashed.caller(Ask::keyed("k"));
    crashed.has_become("k", S::Claimed).await;
    crashed.store.goes_away();
    crashed.at(secs(5)).await;
    let worker = crashed.neighbour();
    worker.sweep().await;
    assert_eq!(worker.states("k").await, [S::Claimed, S::NotExecuted]);
    assert!(letter(&worker, "k").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_next_run_closes_it_and_one_that_ends_alike_is_no_news() {
    let gateway = Gateway::before(vec![Act::Refuses, Act::Refuses, Act::ConnectsAfter(secs(1))], WITH_KEY);
    gateway.call("k").await;
    let first = letter(&gateway, "k").await.unwrap();
    let step = Step { now: gateway.now(), write: WriteId([7; 16]) };
    let told = gateway.kept("k").await.unwrap().operation.alerted(first.since, step.now, step).unwrap();
    assert_eq!(gateway.store.write(&told).await.unwrap(), Written::Applied);
    gateway.at(secs(9)).await;
    gateway.call("k").await;
    let second = letter(&gateway, "k").await.unwrap();
    assert_eq!((second.since, second.alerted_at), (first.since, Some(step.now)));
    assert_eq!(listed(&gateway).await, [id("k")]);
    let caller = gateway.caller(Ask::keyed("k"));
    gateway.at(gateway.elapsed() + ms(500)).await;
    assert_eq!((letter(&gateway, "k").await, listed(&gateway).await), (None, vec![]), "it is being made");
    assert_eq!(caller.await.unwrap().status, 201);
    assert_eq!(gateway.kept("k").await.unwrap().operation.dead, None);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_closes_it() {
    let gateway = Gateway::before(vec![answers(201).after(secs(5)).into()], Setup { lease: "1s", ..UNSAFE });
    let caller = gateway.caller(Ask::keyed("k"));
    gateway.has_become("k", S::Sent).await;
    gateway.store.goes_away();
    gateway.at(secs(3)).await;
    let worker = gateway.neighbour();
    worker.sweep().await;
    assert!(letter(&worker, "k").await.is_some());
    gateway.store.comes_back();
    caller.await.unwrap();
    gateway.has_become("k", S::Succeeded).await;
    assert_eq!(letter(&worker, "k").await, None);
}

#[tokio::test(start_paused = true)]
async fn an_answer_against_a_persons_word_is_one() {
    let gateway = Gateway::before(vec![answers(201).after(secs(5)).into()], Setup { lease: "1s", ..UNSAFE });
    let caller = gateway.caller(Ask::keyed("k"));
    gateway.has_become("k", S::Sent).await;
    gateway.store.goes_away();
    gateway.at(secs(3)).await;
    let worker = gateway.neighbour();
    worker.sweep().await;
    worker.engine.abandon(id("k")).await.unwrap();
    assert_eq!(letter(&worker, "k").await, None);
    gateway.store.comes_back();
    assert_eq!(caller.await.unwrap().problem(), (409, Some(Code::Abandoned)));
    assert!(letter(&worker, "k").await.unwrap().disputed);
    let told = worker.kept("k").await.unwrap().operation;
    assert_eq!((told.letter_reason().as_deref(), told.state.name()), (Some("disputed"), S::Abandoned));
    worker.engine.abandon(id("k")).await.unwrap();
    assert_eq!((letter(&worker, "k").await, worker.states("k").await.len()), (None, 4));
    assert_eq!(worker.engine.abandon(id("k")).await.unwrap_err().code, Code::Conflict);
}

/// It is said not to have run, and then an answer comes.
async fn disputed(setup: Setup, rest: Vec<Act>) -> Gateway {
    let gateway = Gateway::before([Act::Refuses].into_iter().chain(rest).collect(), setup);
    gateway.call("k").await;
    let step = Step { now: gateway.now(), write: WriteId([7; 16]) };
    let answer = LateAnswer { owner: OwnerId([7; 16]), status: 201 };
    let told = gateway.kept("k").await.unwrap().operation.tell_late(answer, step).unwrap();
    assert_eq!(gateway.store.write(&told).await.unwrap(), Written::Applied);
    assert!(letter(&gateway, "k").await.unwrap().disputed);
    gateway
}

#[tokio::test(start_paused = true)]
async fn what_may_have_run_against_its_record_is_told_as_unknown() {
    let gateway = disputed(UNSAFE, Vec::new()).await;
    let told = gateway.call("k").await;
    assert_eq!((told.problem(), told.marks.execution), ((409, Some(Code::OutcomeUnknown)), Some(Execution::Unknown)));
    assert_eq!(gateway.engine.redrive(id("k")).await.unwrap_err().code, Code::Conflict);
    gateway.engine.abandon(id("k")).await.unwrap();
    let told = gateway.call("k").await;
    assert_eq!((told.problem(), told.marks.execution), ((409, Some(Code::Abandoned)), Some(Execution::Unknown)));
    assert_eq!(gateway.upstream.seen().len(), 0);

    let gateway = disputed(WITH_KEY, Vec::new()).await;
    assert_eq!(gateway.call("k").await.says(), (201, "says 201", false), "a service that knows its key tells");
    assert_eq!(letter(&gateway, "k").await, None);

    let gateway = disputed(WITH_KEY, vec![answers(429).with("retry-after", "1").into()]).await;
    gateway.at(secs(5)).await;
    assert_eq!(
        gateway.call("k").await.marks.execution,
        Some(Execution::Unknown),
        "a throttle tells of the last send only"
    );
    let kept = gateway.kept("k").await.unwrap().operation;
    assert_eq!((kept.state.name(), kept.first_sent_at.is_some_and(|at| at < kept.changed_at)), (S::Unknown, true));
}

#[tokio::test(start_paused = true)]
async fn a_letter_outlives_the_name_of_its_call() {
    let gateway = Gateway::before(vec![Act::Refuses], WITH_KEY);
    let told = gateway.ask(Ask::unnamed()).await;
    let unnamed = told.marks.operation.unwrap();
    gateway.at(LEAST_LIFE - secs(60)).await;
    gateway.store.purge(100).await.unwrap();
    assert_eq!(listed(&gateway).await, [unnamed]);
    let found = gateway.store.read(unnamed).await.unwrap().unwrap();
    assert!(matches!(found.operation.state, State::NotExecuted { .. }));
    assert_eq!(gateway.engine.redrive(unnamed).await.unwrap().state.name(), S::Sent);
    gateway.is_idle().await;
    assert_eq!((gateway.upstream.seen().len(), listed(&gateway).await), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn the_doubt_of_a_harmless_call_without_a_name_goes_by_itself() {
    let gateway = Gateway::before(vec![Act::Closes], Setup { retry: ONE_TRY, ..Setup::HARMLESS });
    let doubtful = gateway.ask(Ask::unnamed()).await.marks.operation.unwrap();
    assert_eq!(gateway.ask(Ask::unnamed()).await.status, 201);
    for (moment, letters) in [(LEAST_LIFE - secs(60), vec![doubtful]), (LEAST_LIFE + secs(60), vec![])] {
        gateway.at(moment).await;
        gateway.store.purge(100).await.unwrap();
        assert_eq!(listed(&gateway).await, letters);
        assert_eq!(gateway.engine.store().count_open(&Scope::none()).await.unwrap(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_redrive_is_one_run_with_the_same_key_and_bytes() {
    let gateway =
        Gateway::before(vec![answers(521).into(), answers(521).into(), answers(201).after(secs(1)).into()], UNSAFE);
    let first = gateway.ask(Ask::keyed("k").with("x-trace", "7")).await;
    assert_eq!(first.status, 521);
    gateway.engine.redrive(id("k")).await.unwrap();
    gateway.is_idle().await;
    assert!(letter(&gateway, "k").await.is_some(), "it did not run this time either");
    let neighbour = gateway.neighbour();
    let (one, other) = tokio::join!(gateway.engine.redrive(id("k")), neighbour.engine.redrive(id("k")));
    assert_eq!([one.is_ok(), other.is_ok()].iter().filter(|ok| **ok).count(), 1);
    assert_eq!(one.or(other).unwrap().attempts_before, 2);
    gateway.has_become("k", S::Succeeded).await;
    let seen = gateway.upstream.seen();
    assert_eq!((seen.len(), seen[0].request()), (3, seen[2].request()));
    assert_eq!(letter(&gateway, "k").await, None);
    assert_eq!(gateway.call("k").await.says(), (201, "says 201", true));
    let conflict = gateway.engine.redrive(id("k")).await.unwrap_err();
    assert_eq!((conflict.code, conflict.detail.as_str()), (Code::Conflict, "It has run."));
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_redrive_tells_no_client_to_come_back() {
    let throttled = || answers(429).with("retry-after", "90").into();
    let gateway = Gateway::before(vec![throttled(), throttled()], WITH_KEY);
    gateway.call("k").await;
    assert_eq!(letter(&gateway, "k").await, None);
    let before = gateway.kept("k").await.unwrap().operation;
    let refused = gateway.engine.redrive(id("k")).await.unwrap_err();
    assert_eq!((refused.code, refused.retry_after > Some(secs(89))), (Code::RateLimited, true), "it is paused");
    assert_eq!(gateway.kept("k").await.unwrap().operation, before);
    gateway.at(secs(91)).await;
    gateway.engine.redrive(id("k")).await.unwrap();
    gateway.is_idle().await;
    assert!(letter(&gateway, "k").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_redrive_that_the_store_may_have_heard_is_taken_back() {
    let gateway = Gateway::before(vec![Act::Refuses], UNSAFE);
    gateway.call("k").await;
    gateway.store.fails(rig::Step::To(S::Claimed), Fault::ReplyLost, 1);
    assert_eq!(gateway.engine.redrive(id("k")).await.unwrap_err().code, Code::StoreUnavailable);
    gateway.is_idle().await;
    assert!(letter(&gateway, "k").await.is_some());
    assert_eq!(gateway.upstream.seen().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_alert_stands_in_no_operators_way() {
    let gateway = after(Act::Refuses, UNSAFE).await;
    gateway.store.alerts_before(rig::Step::To(S::Claimed), 2);
    gateway.engine.redrive(id("k")).await.unwrap();
    gateway.has_become("k", S::Succeeded).await;

    let gateway = after(Act::Closes, UNSAFE).await;
    gateway.store.alerts_before(rig::Step::To(S::Abandoned), 2);
    assert_eq!(gateway.engine.abandon(id("k")).await.unwrap().state, State::Abandoned);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_redriven_says_why() {
    let not_kept = Setup { route: "payload = { store_request = false }", ..WITH_KEY };
    for (act, setup, ask, why) in [
        (Act::Closes, UNSAFE, Ask::keyed("k"), "Nobody knows whether it ran."),
        (Act::Refuses, not_kept, Ask::keyed("k"), "not stored any more"),
        (Act::Refuses, WITH_KEY, Ask::keyed("k").with("authorization", "Bearer s3cret"), "credential"),
    ] {
        let gateway = Gateway::before(vec![act], setup);
        gateway.ask(ask).await;
        let sends = gateway.upstream.seen().len();
        let problem = gateway.engine.redrive(id("k")).await.unwrap_err();
        assert_eq!(problem.code, Code::Conflict);
        assert!(problem.detail.contains(why), "{}", problem.detail);
        gateway.is_idle().await;
        assert_eq!(gateway.upstream.seen().len(), sends);
    }
    let gateway = Gateway::before(vec![answers(201).after(secs(1)).into()], WITH_KEY);
    assert_eq!(gateway.engine.redrive(id("k")).await.unwrap_err().code, Code::NotFound);
    gateway.caller(Ask::keyed("k"));
    gateway.at(ms(500)).await;
    assert!(gateway.engine.redrive(id("k")).await.unwrap_err().detail.contains("right now"));
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_is_never_sent_again() {
    for (act, execution) in [(Act::Refuses, Execution::NotExecuted), (Act::Closes, Execution::Unknown)] {
        let gateway = Gateway::before(vec![act], UNSAFE);
        gateway.call("k").await;
        let sends = gateway.upstream.seen().len();
        assert_eq!(gateway.engine.abandon(id("k")).await.unwrap().state, State::Abandoned);
        assert_eq!((letter(&gateway, "k").await, listed(&gateway).await), (None, vec![]));
        let told = gateway.call("k").await;
        assert_eq!((told.problem(), told.marks.execution), ((409, Some(Code::Abandoned)), Some(execution)));
        assert_eq!(gateway.upstream.seen().len(), sends);
        for refused in [gateway.engine.abandon(id("k")).await, gateway.engine.redrive(id("k")).await] {
            assert_eq!(refused.unwrap_err().code, Code::Conflict);
        }
        assert_eq!(gateway.engine.store().request(id("k")).await.unwrap(), None);
        assert_eq!(gateway.engine.store().count_open(&Scope::none()).await.unwrap(), 0);
    }
}
