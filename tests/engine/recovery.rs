//! What a worker makes of the operations of a gateway that went away.

use http::header::AUTHORIZATION;
use oncegate::engine::problem::Code;
use oncegate::operation::transition::{RequestChange, Step as WriteStep};
use oncegate::operation::{Cause, State, StateName as S, StoredRequest, WriteId};
use oncegate::retry::decide::Stop;
use oncegate::store::Store;

use crate::rig::gateway::id;
use crate::rig::{Act, Ask, Fault, Gateway, Setup, Step, answers, ms, secs};

const UNSAFE: Setup = Setup { lease: "1s", ..Setup::UNSAFE };
const WITH_KEY: Setup = Setup { lease: "1s", ..Setup::WITH_KEY };
const SECRET: &str = "Bearer s3cret";

/// Another gateway, after the one with this call has sent it and gone away.
async fn after_a_crash_in_mid_call(setup: Setup, ask: Ask) -> Gateway {
    let crashed = Gateway::before(vec![Act::IsSilent], setup);
    crashed.caller(ask);
    crashed.upstream.has_seen(1).await;
    crashed.store.goes_away();
    crashed.at(secs(2)).await;
    crashed.neighbour()
}

/// Another gateway, after the one with this call has claimed it and gone away.
async fn after_a_crash_before_the_send(setup: Setup) -> Gateway {
    let upstream = "connect_timeout = \"60s\"";
    let crashed = Gateway::before(vec![Act::ConnectsAfter(secs(3600))], Setup { upstream, ..setup });
    crashed.caller(Ask::keyed("k"));
    crashed.has_become("k", S::Claimed).await;
    crashed.store.goes_away();
    crashed.neighbour()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_not_be_repeated_is_unknown() {
    let worker = after_a_crash_in_mid_call(UNSAFE, Ask::keyed("k")).await;
    worker.sweep().await;
    assert_eq!(worker.states("k").await, [S::Claimed, S::Sent, S::Unknown]);
    assert!(matches!(worker.kept("k").await.unwrap().operation.state, State::Unknown { cause: Cause::OwnerLost, .. }));
    assert_eq!(worker.call("k").await.problem(), (409, Some(Code::OutcomeUnknown)));
    assert_eq!(worker.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_request_on_its_way_does_not_hold_it_up() {
    let worker = after_a_crash_in_mid_call(WITH_KEY, Ask::keyed("k")).await;
    worker.store.fails(Step::Claim, Fault::Slow(ms(500)), 1);
    let wrong = worker.caller(Ask::keyed("k").body("{}"));
    worker.at(secs(2) + ms(100)).await;
    worker.sweep().await;
    worker.is_idle().await;
    assert_eq!(worker.upstream.seen().len(), 2);
    assert_eq!(wrong.await.unwrap().problem(), (422, Some(Code::KeyReused)));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_be_repeated_is_sent_again_byte_for_byte() {
    let worker = after_a_crash_in_mid_call(WITH_KEY, Ask::keyed("k").with("x-trace", "7")).await;
    worker.sweep().await;
    worker.is_idle().await;
    let seen = worker.upstream.seen();
    assert_eq!((seen.len(), seen[0].request()), (2, seen[1].request()));
    assert_eq!((seen[1].key(), seen[1].header("x-trace")), (Some("k"), Some("7")));
    assert_eq!(seen[1].header("oncegate-attempt"), Some("2"));
    assert_eq!(worker.states("k").await, [S::Sent, S::Succeeded]);
    for _ in 0..2 {
        assert_eq!(worker.call("k").await.says(), (201, "says 201", true));
    }
    assert_eq!(worker.upstream.seen().len(), 2);
}

/// Each is another place for the upstream's memory of keys.
const MOVED: [Setup; 4] = [
    Setup { url: "http://payments.elsewhere/v1", ..WITH_KEY },
    Setup { url: "http://payments.internal:8080/v1", ..WITH_KEY },
    Setup { key: "upstream_header = \"Request-Id\"", ..WITH_KEY },
    Setup { upstream: "headers = { Stripe-Account = \"acct_2\" }", ..WITH_KEY },
];

#[tokio::test(start_paused = true)]
async fn a_key_is_sent_again_only_to_the_place_that_knows_it() {
    for moved in MOVED {
        let worker = after_a_crash_in_mid_call(WITH_KEY, Ask::keyed("k")).await;
        let elsewhere = worker.neighbour_with(moved);
        elsewhere.sweep().await;
        elsewhere.is_idle().await;
        assert_eq!(elsewhere.states("k").await, [S::Sent, S::Unknown]);
        assert_eq!(elsewhere.call("k").await.problem(), (409, Some(Code::OutcomeUnknown)));
        assert_eq!(worker.upstream.seen().len(), 1);

        assert_eq!(worker.call("k").await.says(), (201, "says 201", false));
        assert_eq!(worker.upstream.seen().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_tell_one_upstream_from_another_may_change() {
    let renewed = Setup { upstream: "headers = { Authorization = \"Bearer new\" }\nsettle = \"50s\"", ..WITH_KEY };
    let harmless = Setup { url: "http://payments.elsewhere/v1", lease: "1s", ..Setup::HARMLESS };
    for setup in [renewed, harmless] {
        let worker = after_a_crash_in_mid_call(WITH_KEY, Ask::keyed("k")).await.neighbour_with(setup);
        worker.sweep().await;
        worker.is_idle().await;
        assert_eq!(worker.states("k").await, [S::Sent, S::Succeeded]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_surely_did_not_run_goes_wherever_it_would_go_now() {
    let first = Gateway::before(vec![answers(401).into(), Act::IsSilent], WITH_KEY);
    assert_eq!(first.call("k").await.problem(), (401, None));
    let moved = first.neighbour_with(MOVED[0]);
    let told = moved.ask(Ask::keyed("k").within(secs(5))).await;
    assert_eq!(told.problem(), (504, Some(Code::OutcomeUnknown)));

    assert_eq!(first.call("k").await.problem(), (409, Some(Code::OutcomeUnknown)));
    assert_eq!(moved.call("k").await.says(), (201, "says 201", false));
    assert_eq!(first.upstream.seen().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_with_its_callers_credential_is_not_sent_without_him() {
    let ask = Ask::keyed("k").with("authorization", SECRET);
    let worker = after_a_crash_in_mid_call(WITH_KEY, ask.clone()).await;
    let stored = worker.store.request(id("k")).await.unwrap().unwrap();
    assert!(stored.had_credential && !stored.headers.contains_key(AUTHORIZATION));

    worker.sweep().await;
    worker.is_idle().await;
    assert_eq!(worker.states("k").await, [S::Sent, S::Unknown]);
    assert_eq!(worker.upstream.seen().len(), 1);

    assert_eq!(worker.ask(ask).await.says(), (201, "says 201", false));
    let seen = worker.upstream.seen();
    assert_eq!((seen.len(), seen[1].header("authorization")), (2, Some(SECRET)));
    assert_eq!(seen[0].request(), seen[1].request());
}

/// Its caller asks with another key, if at all: it would run twice.
#[tokio::test(start_paused = true)]
async fn a_call_without_a_key_of_its_own_is_not_sent_without_its_caller() {
    let worker = after_a_crash_in_mid_call(WITH_KEY, Ask::unnamed()).await;
    worker.sweep().await;
    worker.is_idle().await;
    assert_eq!(worker.ask(Ask::unnamed()).await.problem(), (409, Some(Code::OutcomeUnknown)));
    assert_eq!(worker.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_harmless_call_is_sent_again_without_its_caller_whatever_its_key() {
    let harmless = Setup { lease: "1s", ..Setup::HARMLESS };
    let window = Setup { route: "duplicate_window = \"1m\"", ..harmless };
    for (setup, replayed) in [(harmless, false), (window, true)] {
        let worker = after_a_crash_in_mid_call(setup, Ask::unnamed()).await;
        worker.sweep().await;
        worker.is_idle().await;
        let seen = worker.upstream.seen();
        assert_eq!((seen.len(), seen[0].request()), (2, seen[1].request()));
        assert_eq!(worker.ask(Ask::unnamed()).await.says(), (201, "says 201", replayed));
    }
}

#[tokio::test(start_paused = true)]
async fn uploads_keep_no_lost_call_waiting() {
    let worker = after_a_crash_in_mid_call(WITH_KEY, Ask::keyed("k")).await;
    let buffers = &worker.engine.shared().buffers;
    let _uploads = buffers.take(192 << 20).unwrap();
    assert!(buffers.take(1).is_none(), "there is no room for another upload");
    worker.sweep().await;
    worker.is_idle().await;
    assert_eq!(worker.states("k").await, [S::Sent, S::Succeeded]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_call_that_never_fits_is_ended() {
    let long = "x".repeat(2048).leak();
    let small = Setup { retry: "[server]\nbuffers = \"1KiB\"", ..WITH_KEY };
    let worker = after_a_crash_in_mid_call(WITH_KEY, Ask::keyed("k").body(long)).await.neighbour_with(small);
    worker.sweep().await;
    assert_eq!(worker.states("k").await, [S::Sent, S::Unknown]);
    assert_eq!(worker.upstream.seen().len(), 1);
}

/// What is stored of the call makes no request any more.
async fn spoil_request(gateway: &Gateway) {
    let stored = gateway.store.request(id("k")).await.unwrap().unwrap();
    let step = WriteStep { now: gateway.now(), write: WriteId([7; 16]) };
    let mut change = gateway.kept("k").await.unwrap().operation.renew(ms(1), step).unwrap();
    change.request = RequestChange::Put(StoredRequest { target: "no target".to_owned(), ..stored });
    gateway.store.write(&change).await.unwrap();
    gateway.at(gateway.elapsed() + ms(10)).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_sent_any_more_is_ended_and_counted() {
    for fault in [None, Some(Fault::Unheard)] {
        let worker = after_a_crash_in_mid_call(WITH_KEY, Ask::keyed("k")).await;
        spoil_request(&worker).await;
        worker.store.fails(Step::To(S::Unknown), fault.unwrap_or(Fault::Slow(ms(0))), 1);
        worker.sweep().await;
        worker.is_idle().await;
        let state = worker.kept("k").await.unwrap().operation.state;
        assert!(matches!(state, State::Unknown { cause: Cause::Unsendable, .. }), "{state:?}");
        let counters = worker.engine.shared().status.route("payments");
        assert_eq!(counters.unknown.get(), 1, "{fault:?}");
        assert_eq!(worker.call("k").await.problem(), (502, Some(Code::OutcomeUnknown)));
        assert_eq!(worker.upstream.seen().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_request_takes_another_key_is_left_for_a_while_to_whoever_has_it() {
    let stranger = after_a_crash_in_mid_call(WITH_KEY, Ask::keyed("k")).await;
    let holder = stranger.neighbour();
    stranger.store.has_another_key();
    stranger.sweep().await;
    let told = stranger.call("k").await;
    assert_eq!(told.problem(), (409, Some(Code::InProgress)));
    let detail = str::from_utf8(&told.body).unwrap();
    assert!(detail.contains("takes a key that this gateway does not have"), "{detail}");
    assert_eq!(stranger.states("k").await, [S::Sent], "it is not given up");
    holder.sweep().await;
    holder.is_idle().await;
    assert_eq!(holder.states("k").await, [S::Sent, S::Succeeded]);

    let alone = after_a_crash_in_mid_call(WITH_KEY, Ask::keyed("k")).await;
    alone.store.has_another_key();
    alone.at(secs(3600)).await;
    alone.sweep().await;
    assert_eq!(alone.states("k").await, [S::Sent, S::Unknown]);
}

/// There a caller's own bytes may stand in for those that cannot be read.
#[tokio::test(start_paused = true)]
async fn a_call_of_which_nothing_ran_is_made_also_where_its_request_takes_another_key() {
    let claimed = after_a_crash_before_the_send(UNSAFE).await;
    claimed.at(secs(2)).await;
    let waiting = Gateway::before(vec![answers(429).with("retry-after", "5").into()], UNSAFE);
    waiting.caller(Ask::keyed("k"));
    waiting.has_become("k", S::Waiting).await;
    waiting.store.goes_away();
    for worker in [claimed, waiting.neighbour()] {
        worker.at(secs(10)).await;
        worker.store.has_another_key();
        assert_eq!(worker.call("k").await.says(), (201, "says 201", false));
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_takes_over_sends_no_more_often_than_one_run_may() {
    let once = Setup { retry: "max_attempts = 1", ..WITH_KEY };
    let worker = after_a_crash_in_mid_call(once, Ask::keyed("k")).await;
    let told = worker.call("k").await;
    assert_eq!((told.problem(), told.marks.stop), ((502, Some(Code::OutcomeUnknown)), Some(Stop::Exhausted)));
    assert_eq!(worker.states("k").await, [S::Sent, S::Unknown]);
    assert_eq!(worker.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_gone_on_with_until_its_deadline() {
    let setup = Setup { retry: "deadline = \"5s\"", ..UNSAFE };
    let worker = after_a_crash_before_the_send(setup).await;
    worker.at(secs(3)).await;
    worker.sweep().await;
    worker.is_idle().await;
    assert_eq!(worker.states("k").await, [S::Claimed, S::Sent, S::Succeeded]);
    assert_eq!(worker.kept("k").await.unwrap().operation.attempts, 1);

    let worker = after_a_crash_before_the_send(setup).await;
    worker.at(secs(6)).await;
    worker.sweep().await;
    assert_eq!(worker.states("k").await, [S::Claimed, S::NotExecuted]);
    assert_eq!(worker.upstream.seen().len(), 0);
    assert_eq!(worker.call("k").await.says(), (201, "says 201", false));
}

#[tokio::test(start_paused = true)]
async fn a_running_call_is_left_alone() {
    let owner = Gateway::before(vec![answers(200).after(secs(5)).into()], WITH_KEY);
    let caller = owner.caller(Ask::keyed("k"));
    owner.upstream.has_seen(1).await;
    for worker in [owner.clone(), owner.neighbour()] {
        worker.engine.recover(id("k")).await.unwrap();
    }
    assert_eq!(caller.await.unwrap().says(), (200, "says 200", false));
    assert_eq!(owner.upstream.seen().len(), 1);
    assert_eq!(owner.states("k").await, [S::Sent, S::Succeeded]);
}

#[tokio::test(start_paused = true)]
async fn a_flight_whose_owner_was_replaced_keeps_nobody_from_going_on() {
    let script = vec![Act::IsSilent, Act::IsSilent, answers(200).into()];
    let first = Gateway::before(script, WITH_KEY);
    let second = first.neighbour();
    first.caller(Ask::keyed("k"));
    first.upstream.has_seen(1).await;
    first.store.goes_away();
    first.at(secs(2)).await;
    second.sweep().await;
    first.upstream.has_seen(2).await;

    second.store.goes_away();
    first.store.comes_back();
    first.worker();
    first.has_become("k", S::Succeeded).await;
    assert_eq!(first.call("k").await.says(), (200, "says 200", true));
    assert!(first.elapsed() < secs(7), "blocked until {:?}", first.elapsed());
    assert_eq!(first.upstream.seen().len(), 3);
    assert_eq!(first.kept("k").await.unwrap().operation.fence.token, 3);
}

/// Ten seconds of the hundred are left for repeats: an attempt may take thirty, and settle sixty.
const FORGETFUL: Setup = Setup { upstream: "key_retention = \"100s\"\nconnect_timeout = \"60s\"", ..WITH_KEY };

#[tokio::test(start_paused = true)]
async fn a_key_that_may_be_forgotten_by_now_protects_nothing() {
    let ask = Ask::keyed("k").within(secs(5));
    for (moment, sends) in [(secs(9), 2), (secs(11), 1)] {
        let gateway = Gateway::before(vec![Act::IsSilent], FORGETFUL);
        assert_eq!(gateway.ask(ask.clone()).await.problem(), (504, Some(Code::OutcomeUnknown)));
        gateway.at(moment).await;
        let told = gateway.ask(ask.clone()).await;
        assert_eq!(gateway.upstream.seen().len(), sends);
        assert_eq!(told.problem(), if sends == 2 { (201, None) } else { (409, Some(Code::OutcomeUnknown)) });
    }
}

#[tokio::test(start_paused = true)]
async fn the_age_of_a_key_is_looked_at_right_before_the_first_byte() {
    let script = vec![Act::IsSilent, Act::ConnectsAfter(secs(3))];
    let gateway = Gateway::before(script, FORGETFUL);
    gateway.ask(Ask::keyed("k").within(secs(5))).await;
    gateway.at(secs(9)).await;
    let told = gateway.call("k").await;
    assert_eq!(told.problem(), (502, Some(Code::OutcomeUnknown)));
    assert_eq!(gateway.upstream.seen().len(), 1);
    assert_eq!(gateway.states("k").await.last(), Some(&S::Unknown));
}
