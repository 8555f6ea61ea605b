//! Callers of one key in one process.

use oncegate::engine::problem::Code;
use oncegate::operation::{Scope, StateName as S};
use oncegate::retry::decide::Stop;

use crate::rig::gateway::id;
use crate::rig::{Act, Ask, Fault, Gateway, Setup, Step, Told, answers, ms, secs};

const OTHER: &str = "{\"amount\": 2}";

async fn hundred(gateway: &Gateway) -> Vec<Told> {
    let callers: Vec<_> = (0..100).map(|_| gateway.caller(Ask::keyed("k"))).collect();
    let mut told = Vec::new();
    for caller in callers {
        told.push(caller.await.unwrap());
    }
    told
}

#[tokio::test(start_paused = true)]
async fn a_hundred_callers_make_one_call_and_ask_the_store_once() {
    let gateway = Gateway::before(vec![answers(200).after(secs(3)).body("charged").into()], Setup::UNSAFE);
    let told = hundred(&gateway).await;
    assert!(told.iter().all(|told| (told.status, &told.body[..]) == (200, b"charged")));
    assert_eq!(told.iter().filter(|told| !told.marks.replayed).count(), 1);
    assert_eq!(gateway.upstream.seen().len(), 1);
    assert_eq!(gateway.store.steps(), [Step::Claim, Step::To(S::Sent), Step::To(S::Succeeded)]);
    assert!(!gateway.is_flying("k").await);
}

#[tokio::test(start_paused = true)]
async fn those_who_joined_a_call_without_a_receipt_are_told_the_same_and_claim_nothing() {
    let retry = "attempt_timeout = \"3s\"\nmax_attempts = 2";
    for (act, status, code, stop) in [
        (Act::IsSilent, 504, Some(Code::OutcomeUnknown), Stop::Unsafe),
        (answers(421).after(secs(1)).into(), 421, None, Stop::Exhausted),
    ] {
        let gateway = Gateway::before(vec![act, answers(421).into()], Setup { retry, ..Setup::UNSAFE });
        for told in hundred(&gateway).await {
            assert_eq!((told.problem(), told.marks.stop), ((status, code), Some(stop)));
        }
        assert_eq!(gateway.store.count(Step::Claim), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_joiner_in_another_process_is_told_the_end_and_claims_nothing() {
    let retry = "max_attempts = 1";
    for (setup, status, told) in [
        (Setup::UNSAFE, 429, (502, Some(Code::UpstreamFailed))),
        (Setup::WITH_KEY, 429, (502, Some(Code::UpstreamFailed))),
        (Setup::WITH_KEY, 503, (409, Some(Code::OutcomeUnknown))),
    ] {
        let act = answers(status).after(secs(2)).with("retry-after", "120").into();
        let gateway = Gateway::before(vec![act], Setup { retry, ..setup });
        let first = gateway.caller(Ask::keyed("k"));
        gateway.upstream.has_seen(1).await;
        assert_eq!(gateway.neighbour().call("k").await.problem(), told, "{status}");
        assert_eq!(first.await.unwrap().status, status);
        assert_eq!(gateway.upstream.seen().len(), 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_meant_for_one_client_goes_to_him_alone() {
    let act = answers(429).after(secs(1)).with("set-cookie", "a=1").with("retry-after", "120").into();
    let gateway = Gateway::before(vec![act], Setup::UNSAFE);
    let told = hundred(&gateway).await;
    assert_eq!(told.iter().filter(|told| told.headers.contains_key("set-cookie")).count(), 1);
    assert!(told.iter().all(|told| told.status == 429 && told.headers["retry-after"] == "120"));
}

#[tokio::test(start_paused = true)]
async fn a_joiner_waits_as_long_as_the_route_says() {
    for (route, patience) in [("in_flight_wait = \"2s\"", secs(2)), ("in_flight = \"reject\"", ms(0))] {
        let gateway = Gateway::before(vec![answers(200).after(secs(5)).into()], Setup { route, ..Setup::UNSAFE });
        let first = gateway.caller(Ask::keyed("k"));
        gateway.upstream.has_seen(1).await;
        let joined = gateway.call("k").await;
        assert_eq!(joined.problem(), (409, Some(Code::InProgress)));
        assert!(joined.at >= patience && joined.at < patience + ms(10), "{:?}", joined.at);
        assert_eq!(first.await.unwrap().says(), (200, "says 200", false));
        assert_eq!(gateway.call("k").await.says(), (200, "says 200", true));
        assert_eq!(gateway.upstream.seen().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_joiner_in_another_process_waits_too() {
    let route = "in_flight_wait = \"20s\"";
    let gateway = Gateway::before(vec![answers(200).after(secs(10)).into()], Setup { route, ..Setup::UNSAFE });
    let first = gateway.caller(Ask::keyed("k"));
    gateway.upstream.has_seen(1).await;
    let joined = gateway.neighbour().call("k").await;
    assert_eq!(joined.says(), (200, "says 200", true));
    assert!(joined.at >= secs(10) && joined.at < secs(12), "{:?}", joined.at);
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn another_request_with_the_same_key_is_refused_at_once() {
    let gateway = Gateway::before(vec![answers(200).after(secs(5)).into()], Setup::UNSAFE);
    let first = gateway.caller(Ask::keyed("k"));
    gateway.upstream.has_seen(1).await;
    let told = gateway.ask(Ask::keyed("k").body(OTHER)).await;
    assert_eq!((told.problem(), told.at), ((422, Some(Code::KeyReused)), ms(0)));

    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(gateway.ask(Ask::keyed("k").body(OTHER)).await.problem(), (422, Some(Code::KeyReused)));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

/// Whose a key is, the record says: whoever asks first at the moment may be the one who is wrong.
#[tokio::test(start_paused = true)]
async fn a_wrong_request_on_its_way_takes_the_key_from_nobody() {
    let gateway = Gateway::before(vec![answers(200).body("charged").into()], Setup::UNSAFE);
    assert_eq!(gateway.call("k").await.status, 200);
    gateway.store.fails(Step::Claim, Fault::Slow(ms(500)), 1);
    let wrong = gateway.caller(Ask::keyed("k").body(OTHER));
    gateway.at(ms(100)).await;
    let right = gateway.call("k").await;
    assert_eq!((right.says(), right.at), ((200, "charged", true), ms(100)));
    assert_eq!(wrong.await.unwrap().problem(), (422, Some(Code::KeyReused)));

    gateway.store.goes_away();
    let wrong = gateway.caller(Ask::keyed("k").body(OTHER));
    gateway.at(ms(600)).await;
    assert_eq!(gateway.call("k").await.problem(), (503, Some(Code::StoreUnavailable)));
    assert_eq!(wrong.await.unwrap().problem(), (503, Some(Code::StoreUnavailable)));
}

#[tokio::test(start_paused = true)]
async fn of_two_requests_with_one_new_key_one_is_made() {
    let gateway = Gateway::before(vec![], Setup::UNSAFE);
    gateway.store.fails(Step::Claim, Fault::Slow(ms(500)), 1);
    let slow = gateway.caller(Ask::keyed("k").body(OTHER));
    gateway.at(ms(100)).await;
    assert_eq!(gateway.call("k").await.says(), (201, "says 201", false));
    assert_eq!(slow.await.unwrap().problem(), (422, Some(Code::KeyReused)));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_look_is_answered_when_the_flight_lands() {
    let gateway = Gateway::before(vec![answers(200).after(secs(5)).into()], Setup::UNSAFE);
    gateway.caller(Ask::keyed("k"));
    gateway.upstream.has_seen(1).await;
    let view = gateway.engine.look_up(&Scope::none(), id("k"), secs(10)).await.unwrap();
    assert_eq!(view.operation.state.name(), S::Succeeded);
    assert!(gateway.elapsed() < secs(5) + ms(50), "{:?}", gateway.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_hangs_up_drops_nothing() {
    let gateway = Gateway::before(vec![answers(200).after(secs(5)).body("charged").into()], Setup::UNSAFE);
    let caller = gateway.caller(Ask::keyed("k"));
    gateway.upstream.has_seen(1).await;
    caller.abort();
    gateway.has_become("k", S::Succeeded).await;
    assert_eq!(gateway.call("k").await.says(), (200, "charged", true));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

/// maximhq/bifrost#7035, where nobody is told: the record is, and whoever asks.
#[tokio::test(start_paused = true)]
async fn a_caller_who_hangs_up_adds_nothing_to_the_attempts_of_his_call() {
    let setup = Setup { retry: "max_attempts = 3", ..Setup::WITH_KEY };
    let gateway = Gateway::before((0..9).map(|_| answers(503).into()).collect(), setup);
    let caller = gateway.caller(Ask::keyed("k"));
    gateway.upstream.has_seen(1).await;
    caller.abort();
    gateway.has_become("k", S::Unknown).await;
    gateway.at(secs(3600)).await;
    assert_eq!(gateway.upstream.seen().len(), 3);
    assert!(gateway.kept("k").await.unwrap().operation.dead_letter().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_breaks_leaves_nothing_behind_but_its_lease() {
    let setup = Setup { route: "in_flight_wait = \"30s\"", ..Setup::UNSAFE };
    let gateway = Gateway::before(vec![Act::Panics, answers(200).body("charged").into()], setup);
    let first = gateway.caller(Ask::keyed("k"));
    let second = gateway.caller(Ask::keyed("k"));
    let told = first.await.unwrap();
    assert_eq!((told.problem(), told.at), ((502, Some(Code::OutcomeUnknown)), ms(0)));

    let told = second.await.unwrap();
    assert_eq!(told.says(), (200, "charged", false));
    assert!(told.at >= secs(10) && told.at < secs(12), "after the lease: {:?}", told.at);
    assert_eq!(gateway.upstream.seen().len(), 1);
    assert!(!gateway.is_flying("k").await);
}
