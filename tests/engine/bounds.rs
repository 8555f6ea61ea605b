//! How many operations one caller may leave unfinished.

use oncegate::engine::problem::Code;
use oncegate::store::Store;

use crate::rig::{Act, Ask, Fault, Gateway, Setup, Step, answers, ms, secs};

const MOST: usize = 5;
const BOUNDED: Setup = Setup { store: "max_open = 5", ..Setup::UNSAFE };

/// Calls with all these keys at once; how many were made and how many were refused.
async fn crowd(gateway: &Gateway, keys: &[String]) -> (usize, usize) {
    let callers: Vec<_> = keys.iter().map(|key| gateway.caller(Ask::keyed(key).within(secs(20)))).collect();
    let mut told = Vec::new();
    for caller in callers {
        told.push(caller.await.unwrap().problem());
    }
    let count = |problem| told.iter().filter(|told| **told == problem).count();
    (count((504, Some(Code::OutcomeUnknown))), count((429, Some(Code::RateLimited))))
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("k-{number}")).collect()
}

fn silence() -> Vec<Act> {
    (0..200).map(|_| Act::IsSilent).collect()
}

#[tokio::test(start_paused = true)]
async fn many_calls_at_once_open_no_more_than_they_may() {
    let gateway = Gateway::before(silence(), BOUNDED);
    assert_eq!(crowd(&gateway, &keys(200)).await, (MOST, 200 - MOST));
    assert_eq!(gateway.upstream.seen().len(), MOST);
    assert_eq!(crowd(&gateway, &["another".to_owned()]).await, (0, 1));
    let status = gateway.engine.shared().status.snapshot();
    assert_eq!(status.routes["payments"].refused.max_open, 201 - MOST as u64);
}

#[tokio::test(start_paused = true)]
async fn claims_that_take_long_hold_their_places() {
    let gateway = Gateway::before(silence(), BOUNDED);
    gateway.store.fails(Step::Claim, Fault::Slow(ms(500)), 200);
    assert_eq!(crowd(&gateway, &keys(200)).await, (MOST, 200 - MOST));
}

#[tokio::test(start_paused = true)]
async fn calls_that_did_not_run_need_a_place_when_they_are_made_again() {
    let script = (0..10).map(|_| answers(401).into()).chain(silence()).collect();
    let gateway = Gateway::before(script, BOUNDED);
    for key in keys(10) {
        assert_eq!(gateway.call(&key).await.status, 401);
    }
    assert_eq!(crowd(&gateway, &keys(10)).await, (MOST, 10 - MOST));
}

#[tokio::test(start_paused = true)]
async fn what_is_there_is_answered_and_what_ends_makes_room() {
    let script =
        vec![answers(200).into(), Act::IsSilent, Act::IsSilent, Act::IsSilent, answers(201).after(secs(5)).into()];
    let gateway = Gateway::before(script, Setup { store: "max_open = 4", ..Setup::UNSAFE });
    assert_eq!(gateway.call("done").await.says(), (200, "says 200", false));
    assert_eq!(crowd(&gateway, &keys(3)).await, (3, 0));
    let running = gateway.caller(Ask::keyed("running"));
    gateway.upstream.has_seen(5).await;

    assert_eq!(gateway.call("another").await.problem(), (429, Some(Code::RateLimited)));
    assert_eq!(gateway.call("done").await.says(), (200, "says 200", true));
    assert_eq!(gateway.call("k-0").await.problem(), (409, Some(Code::OutcomeUnknown)));
    assert_eq!(running.await.unwrap().says(), (201, "says 201", false));
    gateway.at(gateway.elapsed() + secs(1)).await;
    assert_eq!(gateway.call("another").await.says(), (201, "says 201", false));
    assert_eq!(gateway.store.count_open(&oncegate::operation::Scope::none()).await.unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_anothers_call_holds_no_place() {
    let script = vec![answers(201).after(secs(4)).into(), answers(201).after(secs(4)).into()];
    let gateway = Gateway::before(script, Setup { store: "max_open = 3", ..Setup::UNSAFE });
    let neighbour = gateway.neighbour();
    let running: Vec<_> = keys(2).iter().map(|key| gateway.caller(Ask::keyed(key))).collect();
    gateway.upstream.has_seen(2).await;
    let waiting: Vec<_> = keys(2).iter().map(|key| neighbour.caller(Ask::keyed(key))).collect();
    neighbour.at(secs(1)).await;

    assert_eq!(neighbour.call("another").await.says(), (201, "says 201", false));
    for (caller, replayed) in running.into_iter().zip([false; 2]).chain(waiting.into_iter().zip([true; 2])) {
        assert_eq!(caller.await.unwrap().says(), (201, "says 201", replayed));
    }
}
