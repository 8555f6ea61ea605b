//! An upstream that asks for less traffic is heard by all who come with the same credential, at every gateway.

use std::time::Duration;

use oncegate::engine::gates::command::PauseCommand;
use oncegate::engine::problem::Code;
use oncegate::operation::StateName as S;
use oncegate::store::Store;
use tokio::task::JoinHandle;

use crate::rig::upstream::{GRPC_END, grpc_stream};
use crate::rig::{Act, Ask, Fault, Gateway, Setup, Step, Told, answers, ms, secs};

fn throttle(hint: &str) -> Act {
    answers(429).with("retry-after", hint).into()
}

/// Each call is sent once.
const ONCE: Setup = Setup { retry: "max_attempts = 1", ..Setup::HARMLESS };

/// The first call is told to come back after two seconds.
async fn paused(setup: Setup, rest: Vec<Act>) -> Gateway {
    let script = std::iter::once(throttle("2")).chain(rest).collect();
    let gateway = Gateway::before(script, setup);
    assert_eq!(gateway.call("first").await.status, 429);
    gateway
}

fn callers(gateway: &Gateway, count: usize, name: &str) -> Vec<JoinHandle<Told>> {
    (0..count).map(|number| gateway.caller(Ask::keyed(&format!("{name}-{number}")))).collect()
}

async fn told(callers: Vec<JoinHandle<Told>>) -> Vec<Told> {
    let mut told = Vec::new();
    for caller in callers {
        told.push(caller.await.unwrap());
    }
    told
}

/// When each request after the first ones came.
fn arrivals(gateway: &Gateway, before: usize) -> Vec<Duration> {
    gateway.upstream.seen().iter().skip(before).map(|seen| seen.at).collect()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_within_a_hint_and_one_call_goes_first_after_it() {
    let gateway = paused(ONCE, vec![answers(201).after(ms(300)).into()]).await;
    let told = told(callers(&gateway, 100, "k")).await;

    let at = arrivals(&gateway, 1);
    assert!(at[0] >= secs(2) && at[0] < ms(2010), "{at:?}");
    assert!(at[1] >= at[0] + ms(300), "the canary alone: {at:?}");
    let soon_after = at.iter().filter(|at| **at < ms(2310)).count();
    assert!(soon_after <= 3, "then two at once: {at:?}");
    let (made, refused): (Vec<_>, Vec<_>) = told.iter().partition(|told| told.status == 201);
    assert_eq!((made.len(), refused.len()), (64, 36), "as many as the queue holds");
    assert!(made.iter().all(|told| told.at < secs(5)));
    for told in refused {
        assert_eq!(told.problem(), (429, Some(Code::RateLimited)));
        assert!(told.at < ms(10) && told.retry_after > Some(ms(1900)) && told.retry_after <= Some(secs(2)));
        assert_eq!(told.marks.attempts, 0);
    }
    assert!(gateway.kept("k-99").await.is_none(), "the key of one that was refused is free");
}

#[tokio::test(start_paused = true)]
async fn callers_wait_in_the_order_in_which_they_came() {
    let gateway = paused(ONCE, Vec::new()).await;
    let mut waiting = Vec::new();
    for number in 0..20 {
        waiting.push(gateway.caller(Ask::keyed(&format!("k-{number}"))));
        gateway.at(ms(100 + number)).await;
    }
    told(waiting).await;
    let keys: Vec<_> = gateway.upstream.seen().iter().skip(1).map(|seen| seen.key().unwrap().to_owned()).collect();
    assert_eq!(keys, (0..20).map(|number| format!("k-{number}")).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn another_credential_is_not_held_back() {
    let script = vec![throttle("30")];
    let gateway = Gateway::before(script, ONCE);
    let ask = |key: &str, token: &str| gateway.ask(Ask::keyed(key).with("authorization", token));
    assert_eq!(ask("first", "Bearer a").await.status, 429);
    let other = ask("k", "Bearer b").await;
    assert_eq!((other.status, other.at < ms(10)), (201, true));
    let same = ask("l", "Bearer a").await;
    assert!(same.status == 201 && same.at >= secs(30), "{same:?}");
}

/// Who else is held back when a call with `first` is throttled, by one line of his.
async fn are_held_back(setup: Setup, first: (&'static str, &str), others: &[(&'static str, &str)]) -> Vec<bool> {
    let gateway = Gateway::before(vec![throttle("90")], setup);
    assert_eq!(gateway.ask(Ask::keyed("first").with(first.0, first.1)).await.status, 429);
    let mut held = Vec::new();
    for (number, (name, value)) in others.iter().enumerate() {
        let told = gateway.ask(Ask::keyed(&format!("k-{number}")).with(name, value)).await;
        assert!([201, 429].contains(&told.status), "{told:?}");
        held.push(told.status == 429);
    }
    held
}

#[tokio::test(start_paused = true)]
async fn the_credential_of_the_gateway_decides_whatever_else_a_call_brings() {
    let ours = Setup { upstream: "headers = { Authorization = \"Bearer ours\" }", ..ONCE };
    let lines = [
        ("x-whatever", "1"),
        ("cookie", "a=1"),
        ("x-api-key", "k"),
        ("authorization", "Bearer b"),
        ("x-auth-token", "q"),
    ];
    assert_eq!(are_held_back(ours, ("cookie", "a=0"), &lines).await, [true; 5]);
}

#[tokio::test(start_paused = true)]
async fn no_cookie_takes_a_caller_out_of_a_pause() {
    let of = |name, value| (name, value);
    let lines = [of("cookie", "a=2"), of("x-whatever", "1"), of("x-api-key", "k"), of("x-goog-iap-jwt-assertion", "b")];
    assert_eq!(are_held_back(ONCE, of("cookie", "a=1"), &lines).await, [true, true, false, false]);
    let jwt = of("x-goog-iap-jwt-assertion", "a");
    assert_eq!(are_held_back(ONCE, jwt, &[jwt, lines[3], lines[1]]).await, [true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn who_cannot_wait_so_long_is_told_at_once_and_a_receipt_is_told_as_ever() {
    let script = vec![answers(200).into(), throttle("90")];
    let gateway = Gateway::before(script, ONCE);
    assert_eq!(gateway.call("paid").await.status, 200);
    assert_eq!(gateway.call("first").await.status, 429);
    let long = gateway.call("k").await;
    assert_eq!((long.problem(), long.retry_after > Some(secs(89))), ((429, Some(Code::RateLimited)), true));
    assert_eq!(gateway.call("paid").await.says(), (200, "says 200", true));

    let gateway = paused(ONCE, Vec::new()).await;
    let hurried = gateway.ask(Ask::keyed("k").within(secs(1))).await;
    assert_eq!(hurried.problem(), (429, Some(Code::RateLimited)));
    assert!(hurried.at < ms(10));
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_is_turned_away_pauses_again() {
    // For less than the canary has in the store, and for longer.
    for (hint, wait) in [("1", secs(1)), ("5", secs(5))] {
        let gateway = paused(ONCE, vec![throttle(hint)]).await;
        let watch = follow(&gateway);
        let told = told(callers(&gateway, 10, "k")).await;
        let at = arrivals(&gateway, 1);
        assert!(at[0] >= secs(2) && at[0] < ms(2010) && at[1] >= at[0] + wait, "{at:?}");
        assert_eq!(told.iter().filter(|told| told.status == 201).count(), 9);
        watch.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_canary_without_an_answer_is_followed_by_another() {
    for lost in [Act::Refuses, Act::Closes] {
        let gateway = paused(ONCE, vec![lost, answers(201).after(ms(300)).into()]).await;
        let told = told(callers(&gateway, 20, "k")).await;
        let at = arrivals(&gateway, 1);
        let early = at.iter().filter(|at| **at < ms(2300)).count();
        assert!(early <= 2, "one at a time until one is answered: {at:?}");
        assert_eq!(told.iter().filter(|told| told.status == 201).count(), 19, "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_takes_its_time_holds_nobody_back_and_ends_the_pause_after_all() {
    let (stream, slow) = grpc_stream();
    let setup = Setup { retry: "max_attempts = 1\nattempt_timeout = \"2s\"", ..Setup::HARMLESS };
    let gateway = paused(setup, vec![slow]).await;
    let canary = gateway.caller(Ask::keyed("slow"));
    let phase = || gateway.engine.shared().gates.pauses()[0].pause.phase;
    gateway.at(secs(5)).await;
    assert_eq!(phase(), "canary");
    stream.send(GRPC_END).unwrap();
    assert_eq!(canary.await.unwrap().status, 200);
    gateway.is_idle().await;
    assert_eq!(phase(), "ramp");
}

#[tokio::test(start_paused = true)]
async fn three_throttles_without_a_hint_are_one() {
    let gateway = Gateway::before((0..3).map(|_| answers(429).into()).collect(), ONCE);
    for number in 0..3 {
        assert_eq!(gateway.call(&format!("t-{number}")).await.status, 429);
    }
    assert!(gateway.elapsed() < ms(10));
    let told = gateway.call("k").await;
    assert!(told.status == 201 && told.at >= secs(1) && told.at < ms(1020), "{told:?}");
}

/// KarpelesLab/teamclaude#288.
#[tokio::test(start_paused = true)]
async fn one_throttle_without_a_hint_holds_nobody_else_back() {
    let gateway = Gateway::before(vec![answers(429).into(), answers(429).into()], Setup::HARMLESS);
    let throttled = [gateway.caller(Ask::keyed("t-1")), gateway.caller(Ask::keyed("t-2"))];
    gateway.upstream.has_seen(2).await;
    let other = gateway.call("k").await;
    assert!(other.status == 201 && other.at < ms(10), "{other:?}");
    for told in told(throttled.into()).await {
        assert!(told.status == 201 && told.at < secs(3), "{told:?}");
    }
}

/// linkerd/linkerd2#986.
#[tokio::test(start_paused = true)]
async fn who_leaves_the_line_is_not_sent() {
    let gateway = paused(ONCE, Vec::new()).await;
    let [left, stays] = ["left", "stays"].map(|key| gateway.caller(Ask::keyed(key)));
    gateway.at(secs(1)).await;
    left.abort();
    assert_eq!(stays.await.unwrap().status, 201);
    gateway.at(secs(10)).await;
    assert_eq!(gateway.upstream.seen().len(), 2);
    assert!(gateway.kept("left").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_for_a_pause_that_another_call_met() {
    let script = vec![answers(503).into(), throttle("20"), answers(201).into()];
    let gateway = Gateway::before(script, Setup::HARMLESS);
    let retrying = gateway.caller(Ask::keyed("k"));
    gateway.upstream.has_seen(1).await;
    let other = gateway.ask(Ask::keyed("l").within(secs(10))).await;
    assert_eq!(other.status, 429);
    let told = retrying.await.unwrap();
    assert!(told.status == 201 && told.at >= secs(20) && told.at < ms(20_050), "{told:?}");
    assert_eq!(gateway.states("k").await, [S::Sent, S::Waiting, S::Sent, S::Succeeded]);
}

/// Looks as often as the worker does.
fn follow(gateway: &Gateway) -> JoinHandle<()> {
    let engine = gateway.engine.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(ms(50)).await;
            engine.look_at_pauses().await.unwrap();
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_fleet_shares_a_pause_and_its_canary() {
    let gateway = paused(ONCE, vec![answers(201).after(ms(400)).into()]).await;
    let neighbour = gateway.neighbour();
    let watches = [follow(&gateway), follow(&neighbour)];
    gateway.at(ms(100)).await;
    let mut waiting = callers(&gateway, 100, "here");
    waiting.extend(callers(&neighbour, 100, "there"));
    let told = told(waiting).await;

    let at = arrivals(&gateway, 1);
    assert!(at[0] >= secs(2), "nothing within the hint: {at:?}");
    assert!(at[1] >= at[0] + ms(400), "one canary for both: {at:?}");
    assert_eq!(told.iter().filter(|told| told.status == 201).count(), 128);
    watches.iter().for_each(JoinHandle::abort);
}

/// Its caller takes a receipt that another gateway has made meanwhile.
#[tokio::test(start_paused = true)]
async fn a_canary_that_sends_nothing_is_followed_at_once() {
    let gateway = paused(ONCE, vec![answers(201).after(secs(4)).into()]).await;
    let neighbour = gateway.neighbour();
    let watch = follow(&gateway);
    let waiting = callers(&gateway, 3, "k");
    gateway.at(ms(100)).await;
    let elsewhere = neighbour.caller(Ask::keyed("k-0"));
    gateway.upstream.has_seen(2).await;
    let told = told(waiting).await;
    assert!(told.iter().all(|told| told.status == 201), "{told:?}");
    let at = arrivals(&gateway, 2);
    assert!(at.len() == 2 && at.iter().all(|at| *at >= secs(2) && *at < ms(2500)), "{at:?}");
    assert_eq!(elsewhere.await.unwrap().status, 201);
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_here_while_the_store_does_not_hear_of_it() {
    let gateway = Gateway::before(vec![throttle("2")], ONCE);
    gateway.store.fails(Step::Hold, Fault::Unheard, 3);
    assert_eq!(gateway.call("first").await.status, 429);
    assert!(gateway.engine.look_at_pauses().await.is_err());
    let told = gateway.call("k").await;
    assert!(told.status == 201 && told.at >= secs(2), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn an_operator_sets_and_ends_a_pause_for_the_fleet() {
    let gateway = Gateway::before(Vec::new(), ONCE);
    let neighbour = gateway.neighbour();
    let watch = follow(&neighbour);
    let say = async |seconds, credential: Option<&str>| {
        let (upstream, credential) = ("payments".to_owned(), credential.map(str::to_owned));
        let command = PauseCommand { upstream, credential, wait: secs(seconds) };
        let store: &dyn Store = &*gateway.store;
        gateway.engine.shared().gates.command(store, &command).await
    };
    say(600, None).await.unwrap();
    gateway.at(ms(100)).await;
    assert_eq!(neighbour.call("k").await.problem(), (429, Some(Code::RateLimited)));
    let shown = neighbour.engine.shared().gates.pauses();
    assert_eq!((shown.len(), shown[0].pause.credential.as_str(), shown[0].pause.phase), (1, "*", "paused"));
    say(1, None).await.unwrap();
    gateway.at(ms(200)).await;
    for lefts in [&gateway, &neighbour].map(|gateway| gateway.engine.shared().gates.pauses()) {
        assert!(lefts[0].pause.left_ms <= 900, "what was said last is so: {lefts:?}");
    }
    say(0, None).await.unwrap();
    gateway.at(ms(300)).await;
    assert_eq!((gateway.call("l").await.status, neighbour.call("m").await.status), (201, 201));
    assert!(gateway.elapsed() < secs(1));
    assert!(say(5, Some("no digest")).await.is_err());
    watch.abort();
}

/// Each comes with a credential that is never seen again.
#[tokio::test(start_paused = true)]
async fn pauses_of_credentials_that_never_come_back_are_forgotten() {
    let gateway = Gateway::before((0..20).map(|_| throttle("2")).collect(), ONCE);
    let watch = follow(&gateway);
    for number in 0..20 {
        let ask = Ask::keyed(&format!("t-{number}")).with("authorization", &format!("Bearer {number}"));
        assert_eq!(gateway.ask(ask).await.status, 429);
    }
    let pauses = || gateway.engine.shared().gates.pauses().len();
    gateway.at(secs(61)).await;
    assert_eq!(pauses(), 20);
    gateway.at(secs(63)).await;
    assert_eq!(pauses(), 0);
    watch.abort();
}

/// The run at another gateway ends between the look at the record and the claim.
#[tokio::test(start_paused = true)]
async fn who_has_claimed_past_a_pause_is_told_when_it_is_over() {
    let gateway =
        Gateway::before(vec![answers(429).after(secs(1)).into()], Setup { retry: ONCE.retry, ..Setup::UNSAFE });
    let elsewhere = gateway.neighbour().caller(Ask::keyed("k"));
    gateway.upstream.has_seen(1).await;
    operator_says(&gateway, secs(600)).await;
    gateway.store.fails(Step::Claim, Fault::Slow(secs(2)), 1);
    let told = gateway.call("k").await;
    assert_eq!(elsewhere.await.unwrap().status, 429);
    assert_eq!((told.problem(), told.retry_after > Some(secs(590))), ((429, Some(Code::RateLimited)), true));
    let kept = gateway.kept("k").await.unwrap().operation;
    assert_eq!((kept.state.name(), kept.dead_letter()), (S::NotExecuted, None));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

/// An operator says how long everybody waits, at this gateway.
async fn operator_says(gateway: &Gateway, wait: Duration) {
    let command = PauseCommand { upstream: "payments".to_owned(), credential: None, wait };
    gateway.engine.shared().gates.command(&*gateway.store, &command).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_is_set_while_a_canary_is_out_outlives_it_at_every_gateway() {
    for is_elsewhere in [false, true] {
        let gateway = Gateway::before(vec![answers(201).after(ms(400)).into()], ONCE);
        let neighbour = gateway.neighbour();
        let watches = [follow(&gateway), follow(&neighbour)];
        operator_says(&gateway, secs(1)).await;
        let canary = gateway.caller(Ask::keyed("canary"));
        gateway.at(ms(1200)).await;
        operator_says(if is_elsewhere { &neighbour } else { &gateway }, secs(20)).await;
        assert_eq!(canary.await.unwrap().status, 201);
        gateway.at(secs(2)).await;
        for (gateway, key) in [(&gateway, "here"), (&neighbour, "there")] {
            let told = gateway.ask(Ask::keyed(key).within(secs(5))).await;
            assert_eq!(told.problem(), (429, Some(Code::RateLimited)), "elsewhere: {is_elsewhere}");
        }
        watches.iter().for_each(JoinHandle::abort);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_pause_that_a_canary_is_told_lasts_as_long_as_it_says() {
    let gateway = paused(ONCE, vec![throttle("1"), answers(201).after(ms(400)).into()]).await;
    let watch = follow(&gateway);
    told(callers(&gateway, 10, "k")).await;
    let at = arrivals(&gateway, 1);
    assert!(at[1] >= at[0] + secs(1), "after the second hint: {at:?}");
    assert!(at[2] >= at[1] + ms(400), "one canary again: {at:?}");
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_pause_that_is_ended_goes_at_once() {
    let gateway = Gateway::before(Vec::new(), ONCE);
    operator_says(&gateway, secs(50)).await;
    let waiting = callers(&gateway, 3, "k");
    gateway.at(secs(1)).await;
    operator_says(&gateway, Duration::ZERO).await;
    assert!(told(waiting).await.iter().all(|told| told.status == 201 && told.at < ms(1100)));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_pause_of_its_own_is_not_the_canary_of_everybodys() {
    let gateway = Gateway::before(vec![throttle("40")], ONCE);
    let ask = |key: &str, token: &str| Ask::keyed(key).with("authorization", token);
    assert_eq!(gateway.ask(ask("first", "Bearer a")).await.status, 429);
    operator_says(&gateway, secs(2)).await;
    let own = gateway.caller(ask("k", "Bearer a"));
    gateway.at(secs(1)).await;
    let other = gateway.ask(ask("l", "Bearer b")).await;
    assert!(other.status == 201 && other.at < secs(3), "{other:?}");
    assert_eq!(own.await.unwrap().status, 201);
}

#[tokio::test(start_paused = true)]
async fn a_call_in_line_for_a_place_is_nobodys_canary() {
    let setup = Setup { limit: "concurrency = 1\nqueue = 9", ..ONCE };
    let script = vec![throttle("2"), answers(201).after(secs(20)).into()];
    let gateway = Gateway::before(script, setup);
    let ask = |key: &str, token: &str| Ask::keyed(key).with("authorization", token);
    assert_eq!(gateway.ask(ask("first", "Bearer a")).await.status, 429);
    let long = gateway.caller(ask("long", "Bearer b"));
    gateway.upstream.has_seen(2).await;
    let in_line = gateway.caller(ask("k", "Bearer a"));
    gateway.at(secs(5)).await;
    let pauses = gateway.engine.shared().gates.pauses();
    assert_eq!((pauses.len(), pauses[0].pause.phase, pauses[0].pause.queued), (1, "canary", 0));
    let second = gateway.caller(ask("l", "Bearer a").within(secs(60)));
    gateway.at(secs(6)).await;
    assert_eq!(gateway.engine.shared().gates.pauses()[0].pause.queued, 0, "it stands in line for a place as well");
    for call in [long, in_line, second] {
        assert_eq!(call.await.unwrap().status, 201);
    }
}

#[tokio::test(start_paused = true)]
async fn who_stood_in_line_for_a_place_is_not_sent_into_a_pause() {
    let setup = Setup { limit: "concurrency = 1\nqueue = 20", ..ONCE };
    let throttled = answers(429).with("retry-after", "30").after(ms(100)).into();
    let gateway = Gateway::before(vec![throttled], setup);
    let told = told(callers(&gateway, 20, "k")).await;
    let at = arrivals(&gateway, 0);
    assert!(at.len() == 20 && at[1] >= secs(30) && at[19] < secs(35), "{at:?}");
    assert_eq!(told.iter().filter(|told| told.status == 201).count(), 19);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_stood_in_line_is_not_sent_into_a_pause() {
    let setup = Setup { limit: "concurrency = 1\nqueue = 9", retry: "base_interval = \"1ms\"", ..Setup::HARMLESS };
    let throttled = answers(429).with("retry-after", "30").with("x-should-retry", "false").after(secs(1)).into();
    let gateway = Gateway::before(vec![answers(503).after(ms(100)).into(), throttled], setup);
    let retrying = gateway.caller(Ask::keyed("k"));
    gateway.upstream.has_seen(1).await;
    let other = gateway.caller(Ask::keyed("l"));
    assert_eq!(other.await.unwrap().status, 429);
    let told = retrying.await.unwrap();
    assert!(told.status == 201 && told.at >= secs(31), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_begins_while_another_one_is_waited_for_counts() {
    let gateway = Gateway::before(vec![answers(429).with("retry-after", "30").after(secs(1)).into()], ONCE);
    let ask = |key: &str| gateway.caller(Ask::keyed(key).with("authorization", "Bearer a"));
    let first = ask("first");
    gateway.upstream.has_seen(1).await;
    operator_says(&gateway, secs(2)).await;
    let waiting = ask("k");
    assert_eq!(first.await.unwrap().status, 429);
    let told = waiting.await.unwrap();
    assert!(told.status == 201 && told.at >= secs(31), "{told:?}");
}
