//! What an outage costs: its upstream, and the callers.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};
use oncegate::engine::answer::{Content, Execution};
use oncegate::engine::gates::command::PauseCommand;
use oncegate::engine::pass::Passage;
use oncegate::engine::problem::Code;
use oncegate::engine::status::RefusedSnapshot;
use oncegate::operation::{Scope, StateName as S};
use oncegate::retry::decide::Stop;
use oncegate::upstream::SendBody;
use tokio::time::Instant;

use crate::rig::upstream::{GRPC_END, grpc_stream};
use crate::rig::{Act, Ask, Gateway, Setup, Told, answers, ms, secs};

fn always(count: usize, act: impl Fn() -> Act) -> Vec<Act> {
    std::iter::repeat_with(act).take(count).collect()
}

/// So many callers at once, each with a key of its own.
async fn crowd(gateway: &Gateway, count: usize) -> Vec<Told> {
    let callers: Vec<_> = (0..count).map(|number| gateway.caller(Ask::keyed(&format!("k-{number}")))).collect();
    let mut told = Vec::new();
    for caller in callers {
        told.push(caller.await.unwrap());
    }
    told
}

fn stopped(told: &[Told], stop: Stop) -> usize {
    told.iter().filter(|told| told.marks.stop == Some(stop)).count()
}

#[tokio::test(start_paused = true)]
async fn an_outage_raises_the_traffic_by_a_fifth_and_a_floor() {
    let setup = Setup { budget: "{ percent = 20, per_second = 3 }", retry: "max_attempts = 4", ..Setup::WITH_KEY };
    for seed in 0..5 {
        let gateway = Gateway::seeded(seed, always(900, || answers(503).into()), setup);
        let told = crowd(&gateway, 200).await;
        let sends = gateway.upstream.seen().len();
        assert!((240..=270).contains(&sends), "seed {seed}: {sends} sends");
        assert!(
            told.iter().all(|told| told.says() == (503, "says 503", false)),
            "seed {seed}: the last answer, as it was"
        );
        let (budget, exhausted) = (stopped(&told, Stop::Budget), stopped(&told, Stop::Exhausted));
        assert!(budget >= 150 && budget + exhausted == 200, "seed {seed}: {budget} and {exhausted}");
    }
}

/// envoyproxy/envoy#30205: all fail at one moment, so that no retry is out when the next one is asked for.
#[tokio::test(start_paused = true)]
async fn retries_that_wait_count_in_the_budget() {
    let budget = "{ percent = 20, per_second = 0 }";
    let setup = Setup { budget, retry: "max_attempts = 2\nbase_interval = \"20s\"", ..Setup::WITH_KEY };
    let gateway = Gateway::before(always(1000, || answers(503).after(ms(100)).into()), setup);
    let told = crowd(&gateway, 1000).await;
    assert_eq!((gateway.upstream.seen().len(), stopped(&told, Stop::Budget)), (1200, 800));
}

#[tokio::test(start_paused = true)]
async fn an_empty_budget_ends_a_run_at_once_and_a_lone_call_is_not_kept_short() {
    let nothing = Setup { budget: "{ percent = 0, per_second = 0 }", ..Setup::WITH_KEY };
    let gateway = Gateway::before(always(9, || answers(503).into()), nothing);
    let told = gateway.call("k").await;
    assert_eq!((told.status, told.marks.stop, told.marks.attempts), (503, Some(Stop::Budget), 1));
    assert!(told.at < ms(10), "{:?}", told.at);

    let built_in = Setup { budget: "{ percent = 20, per_second = 3 }", ..Setup::WITH_KEY };
    let gateway = Gateway::before(always(9, || answers(503).into()), built_in);
    let told = gateway.call("k").await;
    assert_eq!((told.marks.stop, told.marks.attempts), (Some(Stop::Exhausted), 5));
}

const BREAKER: Setup = Setup { breaker: "consecutive_failures = 5\nopen_for = \"5s\"", ..Setup::HARMLESS };

/// Five calls that fail, one after the other, each once.
async fn fail(gateway: &Gateway) {
    for number in 0..5 {
        assert_eq!(gateway.call(&format!("f-{number}")).await.status, 502);
    }
}

fn once(breaker: Setup) -> Setup {
    Setup { retry: "max_attempts = 1", ..breaker }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_fails_is_left_alone_and_nothing_is_claimed() {
    let gateway = Gateway::before(always(5, || answers(502).into()), once(BREAKER));
    fail(&gateway).await;
    for told in crowd(&gateway, 50).await {
        assert_eq!(told.problem(), (503, Some(Code::BreakerOpen)));
        assert!(told.retry_after >= Some(ms(1)) && told.retry_after <= Some(secs(6)), "{:?}", told.retry_after);
        assert_eq!((told.marks.attempts, told.marks.execution), (0, Some(Execution::NotExecuted)));
    }
    assert_eq!(gateway.upstream.seen().len(), 5);
    assert!(gateway.kept("k-0").await.is_none(), "the key is free");
}

/// projectbeskar/virtrigaud#70.
#[tokio::test(start_paused = true)]
async fn one_probe_goes_out_and_an_earlier_receipt_is_told_meanwhile() {
    let mut script = vec![answers(200).into()];
    script.extend(always(5, || answers(502).into()));
    script.push(answers(201).after(secs(3)).into());
    let gateway = Gateway::before(script, once(BREAKER));
    assert_eq!(gateway.call("paid").await.says(), (200, "says 200", false));
    fail(&gateway).await;
    assert_eq!(gateway.call("paid").await.says(), (200, "says 200", true));

    gateway.at(secs(10)).await;
    let told = crowd(&gateway, 50).await;
    let count = |status| told.iter().filter(|told| told.status == status).count();
    assert_eq!((count(201), count(503)), (1, 49));
    assert_eq!(gateway.upstream.seen().len(), 7);
    assert_eq!(gateway.call("another").await.status, 201, "the second probe, which closes it");
    assert!(crowd(&gateway, 50).await.iter().all(|told| told.status < 300));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_must_not_run_twice_is_no_probe() {
    let unsafe_calls = Setup { breaker: BREAKER.breaker, ..once(Setup::UNSAFE) };
    let gateway = Gateway::before(always(5, || answers(502).into()), unsafe_calls);
    fail(&gateway).await;
    gateway.at(secs(10)).await;
    assert!(crowd(&gateway, 20).await.iter().all(|told| told.problem() == (503, Some(Code::BreakerOpen))));
    assert_eq!(gateway.upstream.seen().len(), 5);
    gateway.at(secs(71)).await;
    assert_eq!(gateway.call("k").await.status, 201, "where nothing else comes, one of them is, after a minute");
}

/// A caller who does as he is told comes back once.
#[tokio::test(start_paused = true)]
async fn what_a_shut_out_caller_is_told_is_true() {
    let acts: [(fn() -> Act, _); 2] = [(|| answers(502).into(), secs(60)), (|| Act::Refuses, ms(1))];
    for (act, least) in acts {
        let unsafe_calls = Setup { breaker: BREAKER.breaker, ..once(Setup::UNSAFE) };
        let gateway = Gateway::before(always(5, act), unsafe_calls);
        fail(&gateway).await;
        for begin in [ms(500), secs(3)] {
            gateway.at(begin).await;
            let told = gateway.call("k").await;
            assert_eq!(told.problem(), (503, Some(Code::BreakerOpen)));
            let wait = told.retry_after.unwrap();
            assert!(wait >= least && wait <= least + secs(6), "{wait:?}");
            if begin > secs(1) {
                gateway.at(begin + wait).await;
            }
        }
        assert_eq!(gateway.call("k").await.status, 201);
        assert_eq!(gateway.call("l").await.status, 201, "and the second one closes it");
    }
}

/// A GET, and what its caller is told.
async fn read(gateway: &Gateway) -> u16 {
    let passage = Passage {
        route: Arc::clone(gateway.route()),
        scope: Scope::none(),
        method: Method::GET,
        target: "/v1/charges".to_owned(),
        headers: HeaderMap::new(),
        body: SendBody::Full(Bytes::new()),
        interim: None,
        key: None,
        unguarded: None,
        deadline: Instant::now() + secs(60),
    };
    match gateway.engine.unguarded(passage).await.content {
        Content::Upstream { status, .. } => status.as_u16(),
        Content::Problem(problem) => problem.status,
        Content::Accepted => 202,
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_is_a_probe_on_every_route() {
    for setup in [Setup::UNSAFE, Setup::WITH_KEY] {
        let gateway =
            Gateway::before(always(5, || answers(502).into()), Setup { breaker: BREAKER.breaker, ..once(setup) });
        fail(&gateway).await;
        assert_eq!(read(&gateway).await, 503);
        gateway.at(secs(10)).await;
        assert_eq!((read(&gateway).await, read(&gateway).await), (201, 201));
        assert_eq!(gateway.call("k").await.status, 201, "it is closed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_stops_at_an_open_breaker_with_the_last_answer() {
    let setup = Setup { retry: "max_attempts = 9", ..BREAKER };
    let gateway = Gateway::before(always(9, || answers(503).into()), setup);
    let told = gateway.call("k").await;
    assert_eq!(told.says(), (503, "says 503", false));
    assert_eq!((told.marks.stop, told.marks.attempts), (Some(Stop::Breaker), 5));
}

/// It opened while the retry waited for its turn.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_a_breaker_that_opened_meanwhile() {
    let mut script: Vec<Act> = vec![answers(503).body("later").into()];
    script.extend(always(4, || answers(502).with("x-should-retry", "false").into()));
    let setup = Setup { breaker: "consecutive_failures = 5\nopen_for = \"60s\"", ..BREAKER };
    let gateway = Gateway::before(script, Setup { retry: "base_interval = \"20s\"", ..setup });
    let waiting = gateway.caller(Ask::keyed("k"));
    gateway.upstream.has_seen(1).await;
    for number in 0..4 {
        assert_eq!(gateway.call(&format!("f-{number}")).await.marks.stop, Some(Stop::Vetoed));
    }
    assert!(gateway.elapsed() < ms(10));
    let told = waiting.await.unwrap();
    assert_eq!(told.says(), (503, "later", false));
    assert_eq!((told.marks.stop, told.marks.execution), (Some(Stop::Breaker), Some(Execution::Unknown)));
    assert_eq!(gateway.states("k").await, [S::Sent, S::Waiting, S::Unknown]);
}

#[tokio::test(start_paused = true)]
async fn callers_in_a_hurry_do_not_shut_an_upstream_for_all() {
    let gateway = Gateway::before(always(20, || Act::IsSilent), once(BREAKER));
    for number in 0..10 {
        let told = gateway.ask(Ask::keyed(&format!("h-{number}")).within(secs(1))).await;
        assert_eq!(told.status, 504);
    }
    assert_eq!(gateway.upstream.seen().len(), 10);
}

/// zeromicro/go-zero#5011: a call counts from its send, not from its answer.
#[tokio::test(start_paused = true)]
async fn a_route_has_so_many_calls_under_way_and_refuses_the_rest_at_once() {
    let setup = Setup { limit: "concurrency = 5", ..Setup::UNSAFE };
    let mut script = vec![answers(200).into()];
    script.extend(always(5, || answers(201).after(secs(1)).into()));
    let gateway = Gateway::before(script, setup);
    assert_eq!(gateway.call("paid").await.status, 200);
    let crowd = {
        let gateway = gateway.clone();
        tokio::spawn(async move { crowd(&gateway, 20).await })
    };
    gateway.upstream.has_seen(6).await;
    assert_eq!(gateway.call("paid").await.says(), (200, "says 200", true), "a receipt waits for nobody");
    assert_eq!(gateway.call("k-0").await.says(), (201, "says 201", true), "and so does who joins a call");
    let told = crowd.await.unwrap();
    let refused: Vec<_> = told.iter().filter(|told| told.problem() == (503, Some(Code::Overloaded))).collect();
    assert_eq!((refused.len(), told.iter().filter(|told| told.status == 201).count()), (15, 5));
    assert!(refused.iter().all(|told| told.at < ms(10) && told.retry_after == Some(secs(1))));
    assert_eq!(gateway.upstream.seen().len(), 6);
    assert!(gateway.kept("k-19").await.is_none());
    assert_eq!(gateway.call("k-19").await.status, 201, "the places are free again");
}

#[tokio::test(start_paused = true)]
async fn who_stands_in_line_is_served_and_who_waits_for_a_retry_holds_no_place() {
    let setup = Setup { limit: "concurrency = 1\nqueue = 10", ..Setup::HARMLESS };
    let script = vec![answers(503).with("retry-after-ms", "0").after(ms(100)).into()];
    let gateway = Gateway::before(script, Setup { retry: "base_interval = \"20s\"", ..setup });
    let first = gateway.caller(Ask::keyed("first"));
    gateway.upstream.has_seen(1).await;
    let told = crowd(&gateway, 9).await;
    assert!(told.iter().all(|told| told.status == 201 && told.at < ms(150)), "{told:?}");
    assert_eq!(first.await.unwrap().status, 201);
}

const NARROW: Setup = Setup { limit: "concurrency = 1\nqueue = 10", retry: "max_attempts = 1", ..BREAKER };

#[tokio::test(start_paused = true)]
async fn who_stood_in_line_is_not_sent_after_the_breaker_opened() {
    let mut script = vec![answers(502).after(ms(100)).into()];
    script.extend(always(4, || answers(502).into()));
    let gateway = Gateway::before(script, NARROW);
    let told = crowd(&gateway, 9).await;
    assert_eq!(told.iter().filter(|told| told.status == 502).count(), 5);
    assert_eq!(told.iter().filter(|told| told.problem() == (503, Some(Code::BreakerOpen))).count(), 4);
    assert_eq!(gateway.upstream.seen().len(), 5);
}

/// A call that was sent before the breaker opened has one of the places, and the probe the other.
#[tokio::test(start_paused = true)]
async fn nobody_stands_in_line_for_what_is_shut() {
    let wide = Setup { limit: "concurrency = 2\nqueue = 10", retry: "max_attempts = 1", ..BREAKER };
    let mut script = vec![answers(201).after(secs(20)).into()];
    script.extend(always(5, || answers(502).into()));
    script.push(answers(201).after(secs(20)).into());
    let gateway = Gateway::before(script, wide);
    let slow = gateway.caller(Ask::keyed("slow"));
    gateway.upstream.has_seen(1).await;
    fail(&gateway).await;
    gateway.at(secs(10)).await;
    let probe = gateway.caller(Ask::keyed("probe"));
    gateway.upstream.has_seen(7).await;
    let shut = gateway.ask(Ask::keyed("k").within(secs(2))).await;
    assert_eq!(shut.problem(), (503, Some(Code::BreakerOpen)));
    assert!(shut.at < ms(10_050), "{:?}", shut.at);
    assert_eq!((slow.await.unwrap().status, probe.await.unwrap().status), (201, 201));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_sent_with_too_little_time_left() {
    let gateway = Gateway::before(vec![answers(201).after(ms(950)).into()], NARROW);
    let first = gateway.caller(Ask::keyed("first"));
    gateway.upstream.has_seen(1).await;
    let late = gateway.ask(Ask::keyed("late").within(secs(1))).await;
    assert_eq!(late.problem(), (503, Some(Code::Overloaded)));
    assert_eq!((gateway.upstream.seen().len(), first.await.unwrap().status), (1, 201));
}

fn refused(gateway: &Gateway) -> RefusedSnapshot {
    gateway.engine.shared().status.snapshot().routes.remove("payments").unwrap().refused
}

const NONE: RefusedSnapshot = RefusedSnapshot { rate: 0, pause: 0, breaker: 0, concurrency: 0, max_open: 0, store: 0 };

/// After each refusal the one call that the rate has left is made.
#[tokio::test(start_paused = true)]
async fn a_call_that_a_gate_turns_away_takes_nothing_from_the_rate() {
    let gateway = Gateway::before(Vec::new(), Setup { limit: "rate = \"1/m\"", ..Setup::UNSAFE });
    for seconds in [600, 0] {
        let pause = PauseCommand { upstream: "payments".to_owned(), credential: None, wait: secs(seconds) };
        gateway.engine.shared().gates.command(&*gateway.store, &pause).await.unwrap();
        if seconds > 0 {
            assert_eq!((gateway.call("k").await.status, read(&gateway).await), (429, 429));
        }
    }
    assert_eq!((gateway.call("k").await.status, gateway.call("l").await.status, read(&gateway).await), (201, 429, 429));
    assert_eq!(refused(&gateway), RefusedSnapshot { pause: 2, rate: 2, ..NONE });

    let limit = "rate = \"1/m\"\nburst = 6";
    let gateway = Gateway::before(always(5, || answers(502).into()), Setup { limit, ..once(BREAKER) });
    fail(&gateway).await;
    assert_eq!((gateway.call("k").await.problem().1, read(&gateway).await), (Some(Code::BreakerOpen), 503));
    gateway.at(secs(10)).await;
    assert_eq!((gateway.call("k").await.status, gateway.call("l").await.status), (201, 429));
    assert_eq!(refused(&gateway), RefusedSnapshot { breaker: 2, rate: 1, ..NONE });

    let limit = "rate = \"1/m\"\nburst = 2\nconcurrency = 1";
    let gateway = Gateway::before(vec![answers(201).after(secs(1)).into()], Setup { limit, ..Setup::UNSAFE });
    let first = gateway.caller(Ask::keyed("first"));
    gateway.upstream.has_seen(1).await;
    assert_eq!((gateway.call("k").await.problem().1, read(&gateway).await), (Some(Code::Overloaded), 503));
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!((gateway.call("k").await.status, gateway.call("l").await.status), (201, 429));
    assert_eq!(refused(&gateway), RefusedSnapshot { concurrency: 2, rate: 1, ..NONE });
    assert_eq!(gateway.engine.shared().gates.places()["payments"].refused, 2);
}

const BY_BODY: &str = r#"classify = [{ status = 200, json = { "/ok" = false }, as = "failed" }]"#;

#[tokio::test(start_paused = true)]
async fn answers_that_are_judged_by_their_body_close_the_breaker_and_end_a_pause() {
    let said = || Act::from(answers(200).body("{\"ok\": true}"));
    let script = always(5, || answers(502).into()).into_iter().chain(always(3, said)).collect();
    let gateway = Gateway::before(script, Setup { route: BY_BODY, ..once(BREAKER) });
    fail(&gateway).await;
    gateway.at(secs(10)).await;
    for key in ["a", "b"] {
        assert_eq!(gateway.call(key).await.status, 200);
    }
    assert!(crowd(&gateway, 20).await.iter().all(|told| told.status == 200 || told.status == 201), "it is closed");

    let throttle = answers(429).with("retry-after", "2").into();
    let script = std::iter::once(throttle).chain(always(90, said)).collect();
    let gateway = Gateway::before(script, Setup { route: BY_BODY, ..once(Setup::HARMLESS) });
    assert_eq!(gateway.call("first").await.status, 429);
    assert!(crowd(&gateway, 20).await.iter().all(|told| told.status == 200));
    assert!(gateway.elapsed() < secs(4), "{:?}", gateway.elapsed());
    assert_eq!(gateway.engine.shared().gates.pauses().len(), 1);
    assert_ne!(gateway.engine.shared().gates.pauses()[0].pause.phase, "canary");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_its_time_keeps_no_probe_and_counts_when_it_ends() {
    let setup =
        Setup { retry: "max_attempts = 1\nattempt_timeout = \"2s\"", breaker: BREAKER.breaker, ..Setup::HARMLESS };
    let [(one, slow), (other, probe)] = [grpc_stream(), grpc_stream()];
    let script = always(5, || answers(502).into()).into_iter().chain([slow, probe]).collect();
    let gateway = Gateway::before(script, setup);
    fail(&gateway).await;
    gateway.at(secs(10)).await;
    let slow = gateway.caller(Ask::keyed("slow"));
    gateway.upstream.has_seen(6).await;
    assert_eq!(gateway.call("early").await.problem(), (503, Some(Code::BreakerOpen)), "it is the probe");
    gateway.at(secs(13)).await;
    let probe = gateway.caller(Ask::keyed("probe"));
    gateway.upstream.has_seen(7).await;
    one.send(GRPC_END).unwrap();
    assert_eq!(slow.await.unwrap().status, 200);
    let state = || gateway.engine.shared().gates.snapshot()["payments"].breakers[0].state;
    assert_eq!(state(), "half-open");
    assert_eq!(gateway.call("k").await.problem(), (503, Some(Code::BreakerOpen)), "one probe at a time");
    other.send(GRPC_END).unwrap();
    assert_eq!((probe.await.unwrap().status, state()), (200, "closed"));
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_somebody_else_keeps_no_last_resort_from_a_shut_upstream() {
    let unsafe_calls = Setup { breaker: BREAKER.breaker, ..once(Setup::UNSAFE) };
    let mut script = always(5, || answers(502).into());
    script.insert(0, answers(429).with("retry-after", "300").into());
    let gateway = Gateway::before(script, unsafe_calls);
    let other = gateway.ask(Ask::keyed("other").with("authorization", "Bearer b")).await;
    assert_eq!(other.status, 429);
    fail(&gateway).await;
    gateway.at(secs(72)).await;
    assert_eq!(gateway.call("k").await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn a_first_try_that_may_still_run_stays_so_where_the_budget_ends_the_run() {
    let nothing = Setup { budget: "{ percent = 0, per_second = 0 }", ..Setup::WITH_KEY };
    let still_runs = answers(409).with("x-should-retry", "true").into();
    let gateway = Gateway::before(vec![still_runs], nothing);
    let told = gateway.call("k").await;
    assert_eq!((told.marks.stop, told.marks.execution), (Some(Stop::Budget), Some(Execution::Unknown)));
    assert_eq!(gateway.states("k").await, [S::Sent, S::Unknown]);
}
