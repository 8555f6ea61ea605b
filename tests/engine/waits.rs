//! When the next attempt is made, when none is, and what the caller is told instead.

use std::time::Duration;

use oncegate::engine::answer::Execution;
use oncegate::engine::problem::Code;
use oncegate::operation::StateName as S;
use oncegate::retry::decide::Stop;

use crate::rig::{Act, Ask, Gateway, Setup, TICK, answers, ms, secs};

/// `count` times the same answer.
fn always(count: usize, act: impl Fn() -> Act) -> Vec<Act> {
    std::iter::repeat_with(act).take(count).collect()
}

/// From each send to the next.
fn gaps(gateway: &Gateway) -> Vec<Duration> {
    gateway.upstream.seen().windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

#[tokio::test(start_paused = true)]
async fn waits_are_drawn_from_all_of_the_growing_bounds() {
    let mut drawn = [const { Vec::new() }; 4];
    for seed in 0..60 {
        let gateway = Gateway::seeded(seed, always(4, || answers(503).into()), Setup::WITH_KEY);
        assert_eq!(gateway.call("k").await.says(), (201, "says 201", false), "seed {seed}");
        drawn.iter_mut().zip(gaps(&gateway)).for_each(|(drawn, gap)| drawn.push(gap));
    }
    for (n, drawn) in drawn.iter().enumerate() {
        let ceiling = ms(250) * 2_u32.pow(n as u32);
        let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
        assert!(*most <= ceiling + TICK, "wait {n}: {most:?}");
        assert!(*least < ceiling / 5 && *most > ceiling / 5 * 4, "wait {n} is from {least:?} to {most:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttle_without_a_hint_is_given_a_second_at_least() {
    let gateway = Gateway::before(always(4, || answers(429).into()), Setup::UNSAFE);
    assert_eq!(gateway.call("k").await.status, 201);
    for (n, gap) in gaps(&gateway).into_iter().enumerate() {
        assert!(gap >= secs(1) && gap <= secs(1 << n) + TICK, "wait {n}: {gap:?}");
    }
}

/// The one wait after a 429 with these headers.
async fn wait_after(headers: &[(&'static str, &str)]) -> Duration {
    let throttled = headers.iter().fold(answers(429), |reply, (name, value)| reply.with(name, *value));
    let gateway = Gateway::before(vec![throttled.into()], Setup::UNSAFE);
    let told = gateway.call("k").await;
    assert_eq!((told.status, told.marks.attempts), (201, 2));
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Waiting, S::Sent, S::Succeeded]);
    gaps(&gateway)[0]
}

#[tokio::test(start_paused = true)]
async fn a_hint_is_a_lower_bound() {
    const WRONG_CLOCK: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    for (headers, hint) in [
        (&[("retry-after", "7")][..], secs(7)),
        (&[("retry-after", "Sun, 06 Nov 1994 08:49:46 GMT"), WRONG_CLOCK], secs(9)),
        (&[("retry-after", "Sunday, 06-Nov-94 08:50:07 GMT"), WRONG_CLOCK], secs(30)),
        (&[("retry-after", "Thu, 01 Jan 2026 00:00:12 GMT")], secs(12)),
        (&[("retry-after", "50"), ("retry-after-ms", "1500")], ms(1500)),
        (&[("retry-after", "60")], secs(60)),
    ] {
        let wait = wait_after(headers).await;
        let spread = ms(250);
        assert!(wait >= hint && wait <= hint + spread + TICK, "{headers:?}: {wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hint_that_is_too_long_goes_to_the_caller_at_once() {
    for (hint, within, stop) in [
        ("61", secs(120), Stop::HintTooLong),
        ("9", secs(5), Stop::Deadline),
        ("18446744073709552", secs(120), Stop::HintTooLong),
        ("99999999999999999999999", secs(120), Stop::HintTooLong),
    ] {
        let throttled = answers(429).with("retry-after", hint).body("slow down").into();
        let gateway = Gateway::before(vec![throttled], Setup::UNSAFE);
        let told = gateway.ask(Ask::keyed("k").within(within)).await;
        assert_eq!(told.says(), (429, "slow down", false));
        assert_eq!(told.headers["retry-after"], hint);
        assert!(told.at < ms(10), "{:?}", told.at);
        assert_eq!((told.marks.stop, told.marks.execution), (Some(stop), Some(Execution::NotExecuted)));
        assert_eq!(gateway.upstream.seen().len(), 1);
        assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::NotExecuted]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hint_or_a_veto_counts_even_where_its_answer_is_cut() {
    for (name, value) in [("retry-after", "3600"), ("x-should-retry", "false")] {
        let throttled = answers(429).with(name, value).cut().into();
        let gateway = Gateway::before(vec![throttled], Setup::UNSAFE);
        let told = gateway.call("k").await;
        assert_eq!(gateway.upstream.seen().len(), 1, "{name}");
        assert_eq!(told.marks.execution, Some(Execution::NotExecuted), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_veto_stops() {
    for name in ["x-should-retry", "stripe-should-retry"] {
        let gateway = Gateway::before(vec![answers(503).with(name, "false").into()], Setup::WITH_KEY);
        let told = gateway.call("k").await;
        assert_eq!(told.says(), (503, "says 503", false), "{name}");
        assert_eq!((told.marks.stop, told.marks.attempts), (Some(Stop::Vetoed), 1), "{name}");
        assert_eq!(gateway.upstream.seen().len(), 1, "{name}");
        assert_eq!(gateway.states("k").await, [S::Sent, S::Unknown], "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_attempt_begins_after_the_deadline() {
    let setup = Setup { retry: "max_attempts = 1000\ndeadline = \"3s\"", ..Setup::WITH_KEY };
    for seed in 0..20 {
        let gateway = Gateway::seeded(seed, always(999, || answers(503).after(ms(20)).into()), setup);
        let told = gateway.call("k").await;
        assert_eq!((told.status, told.marks.stop), (503, Some(Stop::Deadline)), "seed {seed}");
        assert!(told.at < secs(3), "seed {seed}: told at {:?}", told.at);
        assert!(gateway.upstream.seen().len() > 2, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_not_waited_for_beyond_the_deadline() {
    let gateway = Gateway::before(vec![Act::IsSilent], Setup::WITH_KEY);
    let told = gateway.ask(Ask::keyed("k").within(secs(5))).await;
    assert_eq!(told.problem(), (504, Some(Code::OutcomeUnknown)));
    assert!(told.at >= secs(5) && told.at < ms(5010), "{:?}", told.at);
    assert_eq!(gateway.upstream.seen()[0].header("x-request-timeout-ms"), Some("5000"));
    assert_eq!(gateway.states("k").await, [S::Sent, S::Unknown]);
}

#[tokio::test(start_paused = true)]
async fn no_upstream_is_told_that_nothing_is_left() {
    let once = Setup { retry: "max_attempts = 1", ..Setup::UNSAFE };
    for (setup, within, sends) in [(once, 999, 0), (Setup::UNSAFE, 999, 0), (once, 1000, 1), (once, 1999, 1)] {
        let gateway = Gateway::before(Vec::new(), setup);
        let ask = Ask::keyed("k").with("grpc-timeout", "1m").within(Duration::from_micros(within));
        let told = gateway.ask(ask).await;
        let seen = gateway.upstream.seen();
        assert_eq!(seen.len(), sends, "{within}");
        if sends == 0 {
            assert_eq!((told.problem(), told.marks.stop), ((504, Some(Code::UpstreamTimeout)), Some(Stop::Deadline)));
            assert_eq!(told.marks.execution, Some(Execution::NotExecuted));
        }
        for seen in seen {
            assert_eq!((seen.header("x-request-timeout-ms"), seen.header("grpc-timeout")), (Some("1"), Some("1m")));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_has_what_is_left_of_the_deadline() {
    let setup = Setup { retry: "attempt_timeout = \"500ms\"\nbase_interval = \"100ms\"", ..Setup::HARMLESS };
    let gateway = Gateway::before(always(9, || Act::IsSilent), setup);
    let told = gateway.ask(Ask::keyed("k").within(ms(700))).await;
    assert_eq!((told.status, told.marks.stop), (504, Some(Stop::Deadline)));
    assert!(told.at >= ms(700) && told.at <= ms(700) + TICK, "{:?}", told.at);
    assert_eq!(gateway.upstream.seen().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_an_answer_said_that_was_not_the_last_is_not_told() {
    let busy = answers(503).with("set-cookie", "a=1").with("x-said", "1").body("later").into();
    let gateway = Gateway::before(vec![busy], Setup::WITH_KEY);
    let told = gateway.call("k").await;
    assert_eq!(told.says(), (201, "says 201", false));
    assert!(told.headers.get("set-cookie").is_none() && told.headers.get("x-said").is_none(), "{told:?}");
}

/// Portkey-AI/gateway#1012.
#[tokio::test(start_paused = true)]
async fn sends_are_told_also_where_nothing_is_repeated() {
    let once = Setup { retry: "max_attempts = 1", ..Setup::UNSAFE };
    for (act, status, sends) in [(answers(429).into(), 429, 1), (Act::Closes, 502, 1), (Act::Refuses, 502, 0)] {
        let gateway = Gateway::before(vec![act], once);
        let told = gateway.call("k").await;
        assert_eq!((told.status, told.marks.attempts), (status, sends));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_eats_the_time_lets_nothing_begin_after_the_deadline() {
    use crate::rig::{Fault, Step};
    for (setup, step) in [(Setup::WITH_KEY, Step::Claim), (Setup::UNSAFE, Step::To(S::Sent))] {
        let gateway = Gateway::before(vec![], setup);
        gateway.store.fails(step, Fault::Slow(secs(2)), 1);
        let told = gateway.ask(Ask::keyed("k").within(secs(1))).await;
        assert_eq!(told.problem(), (504, Some(Code::UpstreamTimeout)), "{step:?}");
        assert_eq!(gateway.upstream.seen().len(), 0, "{step:?}");
        assert_eq!(gateway.states("k").await.last(), Some(&S::NotExecuted), "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_upstream_that_honours_keys_gets_the_same_call_again() {
    let setup = Setup { retry: "attempt_timeout = \"4s\"", ..Setup::WITH_KEY };
    let gateway = Gateway::before(vec![Act::IsSilent, answers(200).body("charged").into()], setup);
    let told = gateway.call("k").await;
    assert_eq!(told.says(), (200, "charged", false));
    assert_eq!((told.marks.attempts, told.marks.execution), (2, Some(Execution::Executed)));

    let seen = gateway.upstream.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].request(), seen[1].request());
    assert_eq!(seen[0].key(), Some("k"));
    assert_eq!(seen[0].line, "POST /v1/charges?expand=a%20b HTTP/1.1");
    assert_eq!(seen[0].body, "{\"amount\": 1.0,  \"to\": \"\u{e9}\"}");
    assert_eq!([0, 1].map(|n: usize| seen[n].header("oncegate-attempt").unwrap()), ["1", "2"]);
    assert!(seen[1].at >= secs(4) && seen[1].at <= ms(4250) + TICK, "{:?}", seen[1].at);
    assert_ne!(seen[0].connection, seen[1].connection);

    assert_eq!(gateway.states("k").await, [S::Sent, S::Waiting, S::Sent, S::Succeeded]);
    let kept = gateway.kept("k").await.unwrap();
    assert_eq!((kept.operation.attempts, kept.operation.may_have_run), (2, false));
    assert_eq!(kept.receipt.unwrap().body, "charged");
    assert_eq!(gateway.call("k").await.says(), (200, "charged", true));
}

#[tokio::test(start_paused = true)]
async fn a_silent_upstream_that_may_not_be_asked_twice_is_unknown() {
    for (act, status) in [(Act::IsSilent, 504), (Act::Closes, 502), (Act::Babbles, 502)] {
        let gateway = Gateway::before(vec![act], Setup::UNSAFE);
        let told = gateway.call("k").await;
        assert_eq!(told.problem(), (status, Some(Code::OutcomeUnknown)));
        assert_eq!((told.marks.stop, told.marks.execution), (Some(Stop::Unsafe), Some(Execution::Unknown)));
        assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Unknown]);

        let again = gateway.call("k").await;
        assert_eq!(again.problem(), (409, Some(Code::OutcomeUnknown)));
        gateway.at(secs(3600)).await;
        assert_eq!(gateway.call("k").await.problem(), (409, Some(Code::OutcomeUnknown)));
        assert_eq!(gateway.upstream.seen().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded_for_each_run_and_counted_over_all() {
    let setup = Setup { retry: "max_attempts = 3", ..Setup::UNSAFE };
    let gateway = Gateway::before(always(5, || answers(429).body("later").into()), setup);
    let told = gateway.call("k").await;
    assert_eq!(told.says(), (429, "later", false));
    assert_eq!((told.marks.stop, told.marks.attempts), (Some(Stop::Exhausted), 3));
    assert_eq!(gateway.upstream.seen().len(), 3);

    let told = gateway.call("k").await;
    assert_eq!((told.says(), told.marks.attempts), ((201, "says 201", false), 3));
    let kept = gateway.kept("k").await.unwrap();
    assert_eq!((kept.operation.attempts, kept.operation.attempts_before), (6, 3));
    let attempts: Vec<_> =
        gateway.upstream.seen().iter().map(|seen| seen.header("oncegate-attempt").unwrap().to_owned()).collect();
    assert_eq!(attempts, ["1", "2", "3", "4", "5", "6"]);
}

#[tokio::test(start_paused = true)]
async fn what_may_be_repeated_once_is_repeated_once() {
    for (setup, status, end) in [
        (Setup::WITH_KEY, 500, S::Unknown),
        (Setup::WITH_KEY, 421, S::NotExecuted),
        (Setup::UNSAFE, 421, S::NotExecuted),
        (Setup::WITH_KEY, 408, S::NotExecuted),
        (Setup::HARMLESS, 425, S::NotExecuted),
    ] {
        let gateway = Gateway::before(always(9, || answers(status).into()), setup);
        let told = gateway.call("k").await;
        assert_eq!((told.status, told.marks.stop), (status, Some(Stop::Exhausted)));
        assert_eq!(gateway.upstream.seen().len(), 2, "{status}");
        assert_eq!(gateway.states("k").await.last(), Some(&end), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_misdirected_request_tries_another_connection() {
    let gateway = Gateway::before(vec![answers(200).into(), answers(421).into()], Setup::UNSAFE);
    gateway.call("first").await;
    assert_eq!(gateway.call("k").await.status, 201);
    let connections: Vec<_> = gateway.upstream.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_is_tried_again_everywhere() {
    for (setup, states) in [
        (Setup::UNSAFE, &[S::Claimed, S::Sent, S::Succeeded][..]),
        (Setup::WITH_KEY, &[S::Sent, S::Waiting, S::Sent, S::Succeeded]),
        (Setup::HARMLESS, &[S::Sent, S::Waiting, S::Sent, S::Succeeded]),
    ] {
        let gateway = Gateway::before(vec![Act::Refuses, answers(200).body("charged").into()], setup);
        let told = gateway.call("k").await;
        assert_eq!(told.says(), (200, "charged", false));
        assert!(!told.marks.receipt_none);
        assert_eq!(gateway.upstream.seen().len(), 1);
        assert_eq!(gateway.states("k").await, states);
        assert_eq!(gateway.call("k").await.says(), (200, "charged", true));
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_never_there_was_not_called() {
    let gateway = Gateway::before(always(9, || Act::Refuses), Setup::UNSAFE);
    let told = gateway.call("k").await;
    assert_eq!(told.problem(), (502, Some(Code::UpstreamFailed)));
    assert_eq!((told.marks.stop, told.marks.execution), (Some(Stop::Exhausted), Some(Execution::NotExecuted)));
    assert_eq!(gateway.states("k").await, [S::Claimed, S::NotExecuted]);
    assert_eq!(gateway.kept("k").await.unwrap().operation.attempts, 0);
}

/// hyperium/hyper-util#150.
#[tokio::test(start_paused = true)]
async fn a_service_that_closes_every_connection_is_tried_as_often_as_any() {
    let setup = |setup| Setup { retry: "max_attempts = 4", ..setup };
    for setup in [Setup::UNSAFE, Setup::WITH_KEY, Setup::HARMLESS].map(setup) {
        let gateway = Gateway::before(always(50, || Act::ClosesUnread), setup);
        let told = gateway.call("k").await;
        assert_eq!(told.problem(), (502, Some(Code::UpstreamFailed)));
        assert_eq!((told.marks.stop, told.marks.execution), (Some(Stop::Exhausted), Some(Execution::NotExecuted)));
        assert_eq!((gateway.upstream.connections(), gateway.upstream.seen().len()), (4, 0));
    }
}

/// varnishcache/varnish-cache#4413.
#[tokio::test(start_paused = true)]
async fn a_call_without_a_body_that_was_lost_on_a_used_connection_may_have_run() {
    let gateway = Gateway::before(vec![answers(200).into(), Act::Closes], Setup::UNSAFE);
    gateway.call("first").await;
    let told = gateway.ask(Ask::keyed("k").body("")).await;
    assert_eq!(told.problem(), (502, Some(Code::OutcomeUnknown)));
    let connections: Vec<_> = gateway.upstream.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [1, 1]);
}
