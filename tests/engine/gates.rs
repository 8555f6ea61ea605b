//! What an outage costs: its upstream, and the callers.

use oncegate::retry::decide::Stop;

use crate::rig::{Act, Ask, Gateway, Setup, Told, answers, ms};

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
