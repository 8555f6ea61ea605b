//! Callers who would rather ask later than wait: where they are told to ask, and what becomes of their calls.

use std::time::Duration;

use http::header::AUTHORIZATION;
use oncegate::engine::answer::{Answer, Execution};
use oncegate::engine::gates::command::PauseCommand;
use oncegate::engine::problem::Code;
use oncegate::operation::{Cause, EventKind, Scope, State, StateName as S};
use tokio::time::sleep;

use crate::rig::gateway::id;
use crate::rig::{Act, Ask, Fault, Gateway, Setup, Step, answers, ms, secs};

const NOW: Duration = Duration::ZERO;
const SECRET: &str = "Bearer s3cret";
const TEN_MINUTES: Duration = secs(600);

fn throttles(hint: &str) -> Act {
    answers(429).with("retry-after", hint).into()
}

async fn receipt(gateway: &Gateway, key: &str, wait: Duration) -> Answer {
    gateway.engine.receipt(&Scope::none(), id(key), wait).await.unwrap()
}

/// An operator holds everybody back for so long.
async fn pause(gateway: &Gateway, wait: Duration) {
    let all = PauseCommand { upstream: "payments".to_owned(), credential: None, wait };
    gateway.engine.shared().gates.command(&*gateway.store, &all).await.unwrap();
}

/// An operator ends all pauses.
async fn forget_pauses(gateway: &Gateway) {
    pause(gateway, NOW).await;
}

/// Looks after everything each half minute, for so long.
async fn sweep_for(gateway: &Gateway, time: Duration) {
    for _ in 0..time.as_secs() / 30 {
        sleep(secs(30)).await;
        gateway.sweep().await;
        gateway.is_idle().await;
    }
}

/// A gateway whose call was accepted and is parked for ten minutes, sent once.
async fn parked(rest: Vec<Act>, setup: Setup, ask: Ask) -> Gateway {
    let script = [throttles("600")].into_iter().chain(rest).collect();
    let gateway = Gateway::before(script, setup);
    assert_eq!(gateway.ask(ask.respond_async(NOW)).await.status, 202);
    gateway.has_become("k", S::Waiting).await;
    gateway.is_idle().await;
    gateway
}

#[tokio::test(start_paused = true)]
async fn the_caller_is_told_where_to_ask_as_soon_as_the_call_is_on_record() {
    for setup in [Setup::UNSAFE, Setup::WITH_KEY] {
        let gateway = Gateway::before(vec![answers(201).after(secs(9)).into()], setup);
        let told = gateway.ask(Ask::keyed("k").respond_async(NOW)).await;
        assert_eq!((told.status, told.marks.execution), (202, Some(Execution::InProgress)));
        assert_eq!(told.marks.operation, Some(id("k")));
        assert!(told.at < ms(10), "{:?}", told.at);
        let again = gateway.ask(Ask::keyed("k").respond_async(NOW)).await;
        assert_eq!((again.status, again.marks.operation), (202, Some(id("k"))));

        let fetched = gateway.told(receipt(&gateway, "k", secs(30)).await).await;
        assert_eq!(fetched.says(), (201, "says 201", true));
        assert!(fetched.at >= secs(9) && fetched.at < secs(10), "{:?}", fetched.at);
        assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.says(), (201, "says 201", true));
        assert_eq!(gateway.upstream.seen().len(), 1);
    }
}

/// Nobody would keep what a 202 promises: the call ends with the wait of the one who makes it.
#[tokio::test(start_paused = true)]
async fn who_joins_a_call_of_one_who_waits_is_told_as_any_repeat_is() {
    let busy = || answers(429).with("retry-after", "2").into();
    let gateway = Gateway::before(vec![busy(), throttles("600")], Setup::UNSAFE);
    let waits = gateway.caller(Ask::keyed("k"));
    gateway.has_become("k", S::Waiting).await;
    let joins = gateway.caller(Ask::keyed("k").respond_async(NOW));
    let (waited, joined) = (waits.await.unwrap(), joins.await.unwrap());
    assert_eq!((waited.status, joined.status, joined.at), (429, 429, waited.at));
    gateway.has_become("k", S::NotExecuted).await;

    let rejects = Setup { route: "in_flight = \"reject\"", ..Setup::UNSAFE };
    for (setup, neighbour) in [(rejects, false), (Setup::UNSAFE, true)] {
        let gateway = Gateway::before(vec![answers(201).after(secs(20)).into()], setup);
        let waits = gateway.caller(Ask::keyed("k"));
        gateway.upstream.has_seen(1).await;
        let near = if neighbour { gateway.neighbour() } else { gateway.clone() };
        let joined = near.ask(Ask::keyed("k").respond_async(NOW)).await;
        assert_eq!(joined.problem(), (409, Some(Code::InProgress)));
        assert_eq!((waits.await.unwrap().status, gateway.upstream.seen().len()), (201, 1));
    }
}

/// Two gateways, of which the second one has no flight of it.
#[tokio::test(start_paused = true)]
async fn who_asks_for_an_accepted_call_elsewhere_is_told_where_it_is() {
    for in_flight in ["", "in_flight = \"reject\""] {
        let setup = Setup { route: in_flight, ..Setup::UNSAFE };
        let gateway = Gateway::before(vec![answers(201).after(secs(9)).into()], setup);
        let neighbour = gateway.neighbour();
        for gateway in [&gateway, &neighbour] {
            let told = gateway.ask(Ask::keyed("k").respond_async(NOW)).await;
            assert_eq!((told.status, told.marks.operation), (202, Some(id("k"))));
        }
        assert_eq!(gateway.upstream.seen().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_a_while_gets_an_answer_that_comes_meanwhile() {
    let gateway = Gateway::before(vec![answers(201).after(secs(2)).into(), Act::IsSilent], Setup::UNSAFE);
    let quick = gateway.ask(Ask::keyed("k").respond_async(secs(5))).await;
    assert_eq!(quick.says(), (201, "says 201", false));
    let slow = gateway.ask(Ask::keyed("slow").respond_async(secs(5))).await;
    assert_eq!(slow.status, 202);
    assert_eq!(slow.at - quick.at, secs(5));
    assert_eq!(gateway.ask(Ask::keyed("long").respond_async(Duration::MAX)).await.says(), (201, "says 201", false));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_as_it_is() {
    let gateway = Gateway::before(vec![answers(400).into()], Setup::UNSAFE);
    assert_eq!(gateway.ask(Ask::keyed("k").respond_async(secs(1))).await.status, 400);
    let other = gateway.ask(Ask::keyed("k").body("{}").respond_async(NOW)).await;
    assert_eq!(other.problem(), (422, Some(Code::KeyReused)));
    gateway.store.goes_away();
    let away = gateway.ask(Ask::keyed("k-2").respond_async(NOW)).await;
    assert_eq!(away.problem(), (503, Some(Code::StoreUnavailable)));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_kept_is_said_at_once() {
    let forgets = Setup { route: "payload = { store_request = false }", ..Setup::UNSAFE };
    let gateway = Gateway::before(Vec::new(), forgets);
    let told = gateway.ask(Ask::keyed("k").respond_async(NOW)).await;
    assert_eq!(told.problem(), (400, Some(Code::InvalidRequest)));
    assert_eq!(told.marks.execution, Some(Execution::NotExecuted));
    assert!(gateway.upstream.seen().is_empty() && gateway.kept("k").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_long_hint_parks_the_call_and_whoever_is_there_when_it_is_over_makes_it() {
    let gateway = parked(Vec::new(), Setup::UNSAFE, Ask::keyed("k").with("authorization", SECRET)).await;
    let repeat = gateway.call("k").await;
    assert_eq!(repeat.problem(), (409, Some(Code::InProgress)));
    assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
    assert_eq!(repeat.marks.execution, Some(Execution::InProgress));

    let heir = gateway.neighbour();
    gateway.store.goes_away();
    heir.at(secs(599)).await;
    heir.sweep().await;
    assert_eq!(heir.upstream.seen().len(), 1, "not before it is due");
    let worker = heir.worker();
    let fetched = heir.told(receipt(&heir, "k", secs(60)).await).await;
    worker.abort();

    assert_eq!(fetched.says(), (201, "says 201", true));
    assert!(fetched.at >= TEN_MINUTES && fetched.at < TEN_MINUTES + secs(8), "{:?}", fetched.at);
    let seen = heir.upstream.seen();
    assert_eq!((seen.len(), seen[0].request()), (2, seen[1].request()));
    assert_eq!(seen[1].header(AUTHORIZATION.as_str()), Some(SECRET));
    assert_eq!(heir.states("k").await, [S::Claimed, S::Sent, S::Waiting, S::Sent, S::Succeeded]);
    let kinds: Vec<_> = heir.kept("k").await.unwrap().events.iter().map(|event| event.kind).collect();
    assert!(kinds.contains(&EventKind::Due) && !kinds.contains(&EventKind::TakenOver), "nobody was lost: {kinds:?}");
}

#[tokio::test(start_paused = true)]
async fn two_gateways_that_see_it_due_send_it_once() {
    let gateway = parked(Vec::new(), Setup::UNSAFE, Ask::keyed("k")).await;
    let others = [gateway.neighbour(), gateway.neighbour()];
    gateway.at(secs(620)).await;
    tokio::join!(gateway.sweep(), others[0].sweep(), others[1].sweep());
    gateway.has_become("k", S::Succeeded).await;
    assert_eq!(gateway.upstream.seen().len(), 2);
}

/// The caller was told that his call will be made.
#[tokio::test(start_paused = true)]
async fn a_call_is_parked_though_the_store_stumbles() {
    for fault in [Fault::Unheard, Fault::ReplyLost, Fault::Late(secs(3))] {
        for (setup, status) in [(Setup::UNSAFE, 429), (Setup::WITH_KEY, 503)] {
            let gateway = Gateway::before(vec![answers(status).with("retry-after", "600").into()], setup);
            gateway.store.fails(Step::To(S::Waiting), fault, 2);
            assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
            gateway.upstream.has_seen(1).await;
            gateway.is_idle().await;
            assert_eq!(gateway.call("k").await.problem(), (409, Some(Code::InProgress)));
            gateway.at(TEN_MINUTES + secs(20)).await;
            gateway.neighbour().sweep().await;
            gateway.has_become("k", S::Succeeded).await;
            assert_eq!(gateway.states("k").await.iter().filter(|state| **state == S::Waiting).count(), 1, "{fault:?}");
            assert_eq!(gateway.upstream.seen().len(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_parked_too_late_is_told_as_what_it_came_to() {
    let gateway = Gateway::before(vec![throttles("600")], Setup { lease: "1s", ..Setup::UNSAFE });
    gateway.store.fails(Step::To(S::Waiting), Fault::Unheard, 5);
    assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
    gateway.upstream.has_seen(1).await;
    gateway.at(secs(3)).await;
    gateway.neighbour().sweep().await;
    gateway.has_become("k", S::Unknown).await;
    gateway.is_idle().await;
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Unknown, S::NotExecuted]);
    assert!(gateway.kept("k").await.unwrap().operation.dead_letter().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_call_is_put_off_though_the_store_stumbles() {
    for fault in [Fault::Unheard, Fault::ReplyLost] {
        let gateway = parked(Vec::new(), Setup::UNSAFE, Ask::keyed("k")).await;
        forget_pauses(&gateway).await;
        gateway.at(TEN_MINUTES).await;
        pause(&gateway, secs(30)).await;
        gateway.at(TEN_MINUTES + secs(10)).await;
        gateway.sweep().await;
        gateway.store.fails(Step::To(S::Waiting), fault, 1);
        gateway.at(TEN_MINUTES + secs(20)).await;
        pause(&gateway, secs(3600)).await;
        gateway.is_idle().await;
        assert_eq!(gateway.upstream.seen().len(), 1, "{fault:?}");
        forget_pauses(&gateway).await;
        gateway.at(TEN_MINUTES + secs(90)).await;
        gateway.sweep().await;
        gateway.has_become("k", S::Succeeded).await;
        assert_eq!(gateway.upstream.seen().len(), 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeat_that_stumbles_does_not_end_a_call_that_goes_on_by_itself() {
    for fault in [Fault::Unheard, Fault::ReplyLost, Fault::Late(secs(3))] {
        let gateway = parked(Vec::new(), Setup::UNSAFE, Ask::keyed("k")).await;
        gateway.at(TEN_MINUTES + secs(10)).await;
        gateway.store.fails(Step::TakeOver, fault, 1);
        let repeat = gateway.call("k").await;
        assert_eq!(repeat.problem(), (503, Some(Code::StoreUnavailable)));
        assert_eq!(repeat.marks.execution, Some(Execution::InProgress), "{fault:?}");
        gateway.at(TEN_MINUTES + secs(30)).await;
        gateway.sweep().await;
        gateway.has_become("k", S::Succeeded).await;
        assert_eq!(gateway.upstream.seen().len(), 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_parked_call_is_held_back_by_those_who_come_with_its_credential() {
    for (credential, sends) in [(SECRET, 2), ("Bearer other", 3)] {
        let ask = |key| Ask::keyed(key).with("authorization", SECRET);
        let gateway = parked(vec![throttles("300")], Setup::UNSAFE, ask("k")).await;
        forget_pauses(&gateway).await;
        gateway.at(TEN_MINUTES - secs(10)).await;
        assert_eq!(gateway.ask(ask("other").with("authorization", credential)).await.status, 429);
        gateway.at(TEN_MINUTES + secs(10)).await;
        gateway.sweep().await;
        gateway.is_idle().await;
        assert_eq!(gateway.upstream.seen().len(), sends, "{credential}");
        gateway.at(TEN_MINUTES * 2).await;
        gateway.sweep().await;
        gateway.has_become("k", S::Succeeded).await;
    }
}

/// And while it lasts its history hardly grows, and no gateway that lacks its route gives it up.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_pause_wakes_a_call_that_came_due_in_it() {
    let gateway = parked(Vec::new(), Setup::UNSAFE, Ask::keyed("k")).await;
    let stranger = gateway.neighbour_with(Setup { name: "other", ..Setup::UNSAFE });
    forget_pauses(&gateway).await;
    pause(&gateway, secs(3600)).await;
    let before = gateway.kept("k").await.unwrap().events.len();
    for turn in 0..30 {
        gateway.at(TEN_MINUTES + secs(10 * turn)).await;
        gateway.sweep().await;
        gateway.is_idle().await;
        stranger.sweep().await;
    }
    let kept = gateway.kept("k").await.unwrap();
    assert_eq!(kept.operation.state.name(), S::Waiting);
    assert!(kept.events.len() <= before + 8, "{:?}", kept.events);
    assert_eq!(gateway.upstream.seen().len(), 1);

    forget_pauses(&gateway).await;
    sweep_for(&gateway, secs(90)).await;
    gateway.has_become("k", S::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn parking_has_an_end() {
    let setup = Setup { retry: "max_attempts = 3", ..Setup::UNSAFE };
    let gateway = parked((0..9).map(|_| throttles("600")).collect(), setup, Ask::keyed("k")).await;
    for _ in 0..4 {
        sleep(TEN_MINUTES + secs(10)).await;
        gateway.sweep().await;
        gateway.is_idle().await;
    }
    assert_eq!(gateway.upstream.seen().len(), 3);
    gateway.has_become("k", S::NotExecuted).await;

    for (hint, seen) in [("86400", S::Waiting), ("86401", S::NotExecuted)] {
        let gateway = Gateway::before(vec![throttles(hint)], Setup::UNSAFE);
        assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
        gateway.has_become("k", seen).await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_due_while_their_upstream_asks_for_less_are_put_off_and_made() {
    let setup = Setup { retry: "max_attempts = 9", ..Setup::UNSAFE };
    let script = (0..4).map(|_| throttles("600")).collect();
    let gateway = Gateway::before(script, setup);
    for key in ["a", "b", "c"] {
        assert_eq!(gateway.ask(Ask::keyed(key).respond_async(NOW)).await.status, 202);
        gateway.has_become(key, S::Waiting).await;
        forget_pauses(&gateway).await;
    }
    sweep_for(&gateway, secs(2700)).await;
    for key in ["a", "b", "c"] {
        gateway.has_become(key, S::Succeeded).await;
    }
    assert_eq!(gateway.upstream.seen().len(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_pause_between_two_tries_puts_a_call_off_on_every_upstream() {
    let busy = || answers(503).into();
    for (setup, act) in [(Setup::UNSAFE, Act::Refuses), (Setup::WITH_KEY, Act::Refuses), (Setup::WITH_KEY, busy())] {
        let gateway = Gateway::before(vec![act], Setup { retry: "base_interval = \"20s\"", ..setup });
        assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
        pause(&gateway, TEN_MINUTES).await;
        gateway.is_idle().await;
        let before = gateway.upstream.seen().len();
        let parked_until = gateway.kept("k").await.unwrap().operation.parked_until();
        assert!(parked_until.is_some_and(|until| until.since(gateway.now()) <= secs(60)), "{parked_until:?}");
        sweep_for(&gateway, TEN_MINUTES + secs(90)).await;
        gateway.has_become("k", S::Succeeded).await;
        assert_eq!(gateway.upstream.seen().len(), before + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_is_open_between_two_tries_puts_a_call_off() {
    let busy = || answers(503).into();
    for (setup, act) in [(Setup::UNSAFE, Act::Refuses), (Setup::WITH_KEY, Act::Refuses), (Setup::WITH_KEY, busy())] {
        let gateway =
            Gateway::before(vec![act], Setup { breaker: "consecutive_failures = 1\nopen_for = \"300s\"", ..setup });
        assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
        gateway.is_idle().await;
        let before = gateway.upstream.seen().len();
        let parked_until = gateway.kept("k").await.unwrap().operation.parked_until();
        assert!(parked_until.is_some_and(|until| until.since(gateway.now()) <= secs(60)), "{parked_until:?}");
        sweep_for(&gateway, secs(600)).await;
        gateway.has_become("k", S::Succeeded).await;
        assert_eq!(gateway.upstream.seen().len(), before + 1);
    }
}

/// While nothing is sent, the budget has nothing to pay for.
#[tokio::test(start_paused = true)]
async fn a_retry_that_is_put_off_is_paid_for_when_it_is_made() {
    let gateway =
        Gateway::before(vec![answers(503).into()], Setup { retry: "base_interval = \"1s\"", ..Setup::WITH_KEY });
    assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
    pause(&gateway, TEN_MINUTES).await;
    gateway.is_idle().await;
    let retries = || gateway.engine.shared().gates.snapshot()["payments"].budget.retries;
    assert_eq!((gateway.upstream.seen().len(), retries()), (1, 0));
    forget_pauses(&gateway).await;
    while gateway.upstream.seen().len() == 1 {
        sleep(secs(1)).await;
        gateway.sweep().await;
        gateway.is_idle().await;
    }
    assert_eq!(retries(), 1);
    gateway.has_become("k", S::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_lost_its_gateway_waits_for_the_end_of_a_pause() {
    let slow = Act::ConnectsAfter(secs(60));
    for (setup, act, sends) in [(Setup::UNSAFE, slow, 1), (Setup::WITH_KEY, Act::IsSilent, 2)] {
        let gateway = Gateway::before(vec![act], Setup { lease: "1s", ..setup });
        assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
        gateway.at(ms(10)).await;
        gateway.store.goes_away();
        gateway.at(secs(2)).await;
        let heir = gateway.neighbour();
        pause(&heir, TEN_MINUTES).await;
        heir.sweep().await;
        heir.is_idle().await;
        heir.has_become("k", S::Waiting).await;
        sweep_for(&heir, TEN_MINUTES + secs(90)).await;
        heir.has_become("k", S::Succeeded).await;
        assert_eq!(heir.upstream.seen().len(), sends);
    }
}

#[tokio::test(start_paused = true)]
async fn retries_of_parked_calls_are_paid_for_by_the_budget() {
    let setup = Setup { budget: "{ percent = 0, per_second = 3 }", ..Setup::UNSAFE };
    let gateway = Gateway::before((0..20).map(|_| throttles("600")).collect(), setup);
    for number in 0..20 {
        let ask = Ask::keyed(&format!("k-{number}")).with("authorization", &format!("Bearer {number}"));
        assert_eq!(gateway.ask(ask.respond_async(NOW)).await.status, 202);
    }
    gateway.is_idle().await;
    gateway.at(TEN_MINUTES + secs(10)).await;
    for (sends, refused) in [(35, 5), (40, 5)] {
        gateway.sweep().await;
        gateway.is_idle().await;
        let budget = &gateway.engine.shared().gates.snapshot()["payments"].budget;
        assert_eq!((gateway.upstream.seen().len(), budget.refused_retries), (sends, refused));
        assert_eq!(budget.retries, if sends == 35 { 15 } else { 5 }, "of the last five seconds");
        sleep(secs(6)).await;
    }
    for number in 0..20 {
        gateway.has_become(&format!("k-{number}"), S::Succeeded).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_finds_no_budget_is_put_off_for_a_day_at_most() {
    for (setup, act, end) in
        [(Setup::UNSAFE, throttles("600"), S::NotExecuted), (Setup::WITH_KEY, answers(503).into(), S::Unknown)]
    {
        let gateway = Gateway::before(vec![act], Setup { budget: "{ percent = 0, per_second = 0 }", ..setup });
        assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
        gateway.has_become("k", S::Waiting).await;
        let before = gateway.upstream.seen().len();
        sweep_for(&gateway, secs(900)).await;
        let refused = gateway.engine.shared().gates.snapshot()["payments"].budget.refused_retries;
        assert!(refused > 5, "{refused}");
        gateway.has_become("k", S::Waiting).await;
        assert_eq!(gateway.upstream.seen().len(), before);
        gateway.at(secs(25 * 3600)).await;
        gateway.sweep().await;
        gateway.has_become("k", end).await;
        assert!(gateway.kept("k").await.unwrap().operation.dead_letter().is_some());
        assert_eq!(gateway.upstream.seen().len(), before);
    }
}

#[tokio::test(start_paused = true)]
async fn who_leaves_a_call_that_was_his_own_leaves_his_credential_with_it() {
    let gateway = Gateway::before(vec![throttles("600"), throttles("600")], Setup::UNSAFE);
    let ask = || Ask::keyed("k").with("authorization", SECRET);
    assert_eq!(gateway.ask(ask()).await.status, 429);
    forget_pauses(&gateway).await;
    assert_eq!(gateway.ask(ask().respond_async(NOW)).await.status, 202);
    gateway.has_become("k", S::Waiting).await;
    gateway.at(TEN_MINUTES * 2).await;
    gateway.neighbour().sweep().await;
    gateway.has_become("k", S::Succeeded).await;
    let seen = gateway.upstream.seen();
    assert_eq!((seen.len(), seen[2].header("authorization")), (3, Some(SECRET)));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_does_not_know_the_route_leaves_a_parked_call_alone() {
    let gateway = parked(Vec::new(), Setup::UNSAFE, Ask::keyed("k")).await;
    let stranger = gateway.neighbour_with(Setup { name: "other", ..Setup::UNSAFE });
    gateway.at(TEN_MINUTES + secs(20)).await;
    stranger.sweep().await;
    gateway.has_become("k", S::Waiting).await;
    gateway.sweep().await;
    gateway.has_become("k", S::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_call_whose_route_nobody_has_any_more_says_so() {
    let gateway = parked(Vec::new(), Setup::UNSAFE, Ask::keyed("k")).await;
    let stranger = gateway.neighbour_with(Setup { name: "other", ..Setup::UNSAFE });
    gateway.at(TEN_MINUTES + secs(200)).await;
    stranger.sweep().await;
    let State::NotExecuted { cause } = gateway.kept("k").await.unwrap().operation.state else {
        panic!("it did not run")
    };
    assert_eq!(cause, Cause::Unsendable);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_may_be_forgotten_by_then_is_not_sent_again() {
    let setup = Setup { upstream: "key_retention = \"9m\"\nsettle = \"10s\"", ..Setup::WITH_KEY };
    let gateway = Gateway::before(vec![answers(503).with("retry-after", "600").into()], setup);
    assert_eq!(gateway.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
    gateway.has_become("k", S::Waiting).await;
    gateway.at(TEN_MINUTES + secs(10)).await;
    gateway.sweep().await;
    gateway.has_become("k", S::Unknown).await;
    assert_eq!(gateway.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_stays_for_the_answer_is_told_of_a_long_hint_himself() {
    let gateway = Gateway::before(vec![throttles("600")], Setup::UNSAFE);
    assert_eq!(gateway.call("k").await.says(), (429, "says 429", false));
    gateway.has_become("k", S::NotExecuted).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_key_goes_on_when_its_gateway_dies_if_its_caller_knows_its_name() {
    let setup = Setup { lease: "1s", ..Setup::WITH_KEY };
    let gateway = Gateway::before(vec![Act::IsSilent], setup);
    let ask = Ask::unnamed().with("authorization", SECRET).respond_async(NOW);
    let told = gateway.ask(ask).await;
    let id = told.marks.operation.expect("it has a name");
    gateway.upstream.has_seen(1).await;
    gateway.store.goes_away();
    gateway.at(secs(2)).await;

    let heir = gateway.neighbour();
    heir.sweep().await;
    heir.is_idle().await;
    let view = heir.engine.look_up(&Scope::none(), id, NOW).await.unwrap();
    assert_eq!(view.operation.state.name(), S::Succeeded);
    let seen = heir.upstream.seen();
    assert_eq!((seen.len(), seen[1].header("authorization")), (2, Some(SECRET)));
    let kept_for = view.operation.expires_at.unwrap().since(heir.now());
    assert!(kept_for > secs(24 * 3600), "{kept_for:?}");
}

#[tokio::test(start_paused = true)]
async fn a_receipt_that_is_not_there_is_told_as_what_it_is() {
    let gateway = parked(Vec::new(), Setup::UNSAFE, Ask::keyed("k")).await;
    let waiting = gateway.told(receipt(&gateway, "k", secs(1)).await).await;
    assert_eq!(waiting.problem(), (409, Some(Code::InProgress)));
    let missing = gateway.engine.receipt(&Scope::none(), id("nobody"), NOW).await;
    assert_eq!(missing.err().map(|problem| problem.status), Some(404));
    let foreign = gateway.engine.receipt(&Scope::named("token", "another"), id("k"), NOW).await;
    assert_eq!(foreign.err().map(|problem| problem.status), Some(404));

    let closed = Gateway::before(vec![Act::Closes], Setup::UNSAFE);
    assert_eq!(closed.ask(Ask::keyed("k").respond_async(NOW)).await.status, 202);
    closed.has_become("k", S::Unknown).await;
    let unknown = closed.told(receipt(&closed, "k", NOW).await).await;
    assert_eq!(unknown.problem(), (409, Some(Code::OutcomeUnknown)));
    let state = closed.kept("k").await.unwrap().operation.state;
    assert!(matches!(state, State::Unknown { cause: Cause::Closed, .. }));
}
