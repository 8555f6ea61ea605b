//! Calls in the lines before the gates: for a place, for their turn in a rate, for the end of a pause.

use std::time::Duration;

use oncegate::engine::answer::Execution;
use oncegate::engine::problem::Code;
use oncegate::operation::StateName as S;
use tokio::task::JoinHandle;

use crate::rig::{Act, Ask, Gateway, Setup, Told, answers, ms, secs};

/// The ways in which a call comes to stand in line for three seconds: behind a call that has the place, behind one that has
/// used the rate up, behind one that was told to wait.
const LINES: [&str; 3] = ["concurrency = 1\nqueue = 9", "rate = \"20/m\"\nburst = 1\nrate_queue = 9", ""];

/// A gateway with such a line before `rest`, at the moment at which it begins, and whoever else is in the way.
async fn line(limit: &'static str, rest: Vec<Act>) -> (Gateway, JoinHandle<Told>) {
    let first: Act = match limit {
        "" => answers(429).with("retry-after", "3").into(),
        limit if limit.contains("rate") => answers(201).into(),
        _ => answers(201).after(secs(3)).into(),
    };
    let limit = if limit.is_empty() { Setup::HARMLESS.limit } else { limit };
    let script = std::iter::once(first).chain(rest).collect();
    let gateway = Gateway::before(script, Setup { limit, retry: "max_attempts = 1", ..Setup::HARMLESS });
    let first = gateway.caller(Ask::keyed("first"));
    gateway.upstream.has_seen(1).await;
    gateway.at(ms(10)).await;
    (gateway, first)
}

async fn told(callers: Vec<JoinHandle<Told>>) -> Vec<Told> {
    let mut told = Vec::new();
    for caller in callers {
        told.push(caller.await.unwrap());
    }
    told
}

fn copies(gateway: &Gateway, count: usize) -> Vec<JoinHandle<Told>> {
    (0..count).map(|_| gateway.caller(Ask::keyed("k"))).collect()
}

fn sends_of(gateway: &Gateway, key: &str) -> usize {
    gateway.upstream.seen().iter().filter(|seen| seen.key() == Some(key)).count()
}

#[tokio::test(start_paused = true)]
async fn a_repeat_in_line_is_told_what_has_come_of_its_call() {
    for limit in LINES {
        let (gateway, _first) = line(limit, vec![answers(201).after(secs(4)).into()]).await;
        let call = gateway.caller(Ask::keyed("k"));
        gateway.at(ms(100)).await;
        let repeat = gateway.ask(Ask::keyed("k").within(secs(5))).await;
        assert_eq!(repeat.problem(), (409, Some(Code::InProgress)), "{limit}");
        assert_eq!(repeat.marks.execution, Some(Execution::InProgress), "{limit}");
        assert_eq!(gateway.states("k").await.last(), Some(&S::Sent), "{limit}");
        assert_eq!(gateway.call("k").await.says(), (201, "says 201", true), "{limit}");
        assert_eq!((call.await.unwrap().status, sends_of(&gateway, "k")), (201, 1), "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_runs_out_of_time_in_line_is_told_what_another_gateway_has_done_meanwhile() {
    for (takes, says) in [(secs(1), (201, None)), (secs(9), (409, Some(Code::InProgress)))] {
        let (gateway, _first) = line(LINES[0], vec![answers(201).after(takes).into()]).await;
        let repeat = gateway.caller(Ask::keyed("k").within(secs(2)));
        gateway.at(ms(100)).await;
        let call = gateway.neighbour().caller(Ask::keyed("k"));
        assert_eq!(repeat.await.unwrap().problem(), says);
        assert_eq!((call.await.unwrap().status, sends_of(&gateway, "k")), (201, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_waits_for_nobody_in_line_where_a_record_answers() {
    let (gateway, _first) = line(LINES[0], vec![answers(201).after(secs(1)).into()]).await;
    let in_line = gateway.caller(Ask::keyed("k"));
    gateway.at(ms(100)).await;
    let elsewhere = gateway.neighbour().caller(Ask::keyed("k"));
    gateway.at(ms(200)).await;
    assert_eq!(gateway.call("k").await.says(), (201, "says 201", true));
    assert!(gateway.elapsed() < secs(2), "{:?}", gateway.elapsed());
    assert_eq!((elsewhere.await.unwrap().status, in_line.await.unwrap().status), (201, 201));
    assert_eq!(sends_of(&gateway, "k"), 1);
}

/// Each would wait for it as long as the first one did.
#[tokio::test(start_paused = true)]
async fn copies_hear_together_that_the_store_is_silent() {
    let (gateway, _first) = line(LINES[0], Vec::new()).await;
    gateway.store.goes_away();
    let start = gateway.elapsed();
    for told in told(copies(&gateway, 5)).await {
        assert_eq!(told.problem(), (503, Some(Code::StoreUnavailable)));
    }
    assert!(gateway.elapsed() < start + secs(2));
}

#[tokio::test(start_paused = true)]
async fn copies_of_a_call_take_one_turn() {
    for limit in LINES {
        let (gateway, _first) = line(limit, Vec::new()).await;
        let copies = copies(&gateway, 70);
        gateway.at(ms(100)).await;
        let other = gateway.call("other").await;
        assert!(other.status == 201 && other.at <= ms(6010), "behind one call: {limit}, {other:?}");
        let told = told(copies).await;
        assert!(told.iter().all(|told| told.status == 201), "{limit}: {told:?}");
        assert_eq!(told.iter().filter(|told| !told.marks.replayed).count(), 1, "{limit}");
        assert_eq!((sends_of(&gateway, "k"), gateway.upstream.seen().len()), (1, 3), "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_with_less_time_is_told_that_its_call_stands_in_line() {
    for limit in LINES {
        let (gateway, _first) = line(limit, Vec::new()).await;
        let call = gateway.caller(Ask::keyed("k"));
        gateway.at(ms(100)).await;
        for ask in [Ask::keyed("k").within(secs(1)), Ask::keyed("k").respond_async(secs(1))] {
            let (copy, begin) = (gateway.ask(ask).await, gateway.elapsed());
            assert_eq!(copy.problem(), (409, Some(Code::InProgress)), "{limit}");
            assert!(copy.says().1.contains("in line") && copy.at == begin, "{limit}: {copy:?}");
            assert!(gateway.kept("k").await.is_none(), "{limit}");
        }
        assert_eq!(call.await.unwrap().says(), (201, "says 201", false), "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_stay_in_line_go_on_where_the_first_one_leaves_or_has_no_more_time() {
    for limit in LINES {
        for leaves in [true, false] {
            let (gateway, _first) = line(limit, Vec::new()).await;
            let within = if leaves { secs(60) } else { secs(1) };
            let first = gateway.caller(Ask::keyed("k").within(within));
            gateway.at(ms(100)).await;
            let copies = copies(&gateway, 3);
            gateway.at(secs(2)).await;
            if leaves {
                first.abort();
            } else {
                let first = first.await.unwrap();
                assert_eq!(first.marks.execution, Some(Execution::NotExecuted), "{limit}");
                assert!(first.status == 429 || first.status == 503, "{limit}: {first:?}");
            }
            let told = told(copies).await;
            assert!(told.iter().all(|told| told.status == 201), "{limit}: {told:?}");
            assert_eq!(sends_of(&gateway, "k"), 1, "{limit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_would_be_told_where_to_ask_stands_in_line_no_longer_than_he_said() {
    for limit in LINES {
        for (wait, most) in [(Duration::ZERO, ms(600)), (secs(1), ms(1100))] {
            let (gateway, _first) = line(limit, Vec::new()).await;
            let told = gateway.ask(Ask::keyed("k").respond_async(wait)).await;
            assert!(told.status == 429 || told.status == 503, "{limit}: {told:?}");
            assert!(told.at <= most, "{limit}: {told:?}");
            assert_eq!(told.marks.execution, Some(Execution::NotExecuted), "{limit}");
            assert!(gateway.kept("k").await.is_none() && sends_of(&gateway, "k") == 0, "{limit}");
        }
        let (gateway, _first) = line(limit, vec![answers(201).after(secs(9)).into()]).await;
        let told = gateway.ask(Ask::keyed("k").respond_async(secs(5))).await;
        assert_eq!((told.status, told.at >= secs(5) && told.at < ms(5100)), (202, true), "{limit}: {told:?}");
        assert_eq!(gateway.states("k").await.last(), Some(&S::Sent), "{limit}");
    }
}

/// He takes the place of the caller whom he waited for, and is on record then.
#[tokio::test(start_paused = true)]
async fn who_goes_on_for_one_who_left_is_told_where_to_ask() {
    let (gateway, _first) = line(LINES[0], vec![answers(201).after(secs(9)).into()]).await;
    let leaves = gateway.caller(Ask::keyed("k"));
    gateway.at(ms(100)).await;
    let stays = gateway.caller(Ask::keyed("k").respond_async(secs(4)));
    gateway.at(secs(1)).await;
    leaves.abort();
    let told = stays.await.unwrap();
    assert_eq!((told.status, told.at >= secs(4) && told.at < ms(4200)), (202, true), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_repeat_in_line_does_not_hold_up_a_call_that_is_due() {
    let limit = "rate = \"1/h\"\nrate_queue = 9";
    let script = vec![answers(429).with("retry-after", "200").into()];
    let gateway = Gateway::before(script, Setup { limit, ..Setup::UNSAFE });
    assert_eq!(gateway.ask(Ask::keyed("k").respond_async(Duration::ZERO)).await.status, 202);
    gateway.has_become("k", S::Waiting).await;
    gateway.is_idle().await;
    gateway.at(secs(201)).await;
    let repeat = gateway.caller(Ask::keyed("k").within(secs(4000)));
    gateway.at(secs(202)).await;
    gateway.sweep().await;
    gateway.has_become("k", S::Succeeded).await;
    assert!(gateway.elapsed() < secs(204));
    assert_eq!(repeat.await.unwrap().says(), (201, "says 201", true));
    assert_eq!(gateway.upstream.seen().len(), 2);
}
