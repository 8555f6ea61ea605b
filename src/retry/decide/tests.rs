use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;
use crate::operation::Cause;
use crate::operation::outcome::{Outcome, Silence, classify};
use crate::operation::transition::Verdict;
use crate::retry::budget::Budget;

mod acceptance;
mod reports;
mod ruled;

const REPEATS: [Repeat; 3] = [Repeat::Harmless, Repeat::WithKey, Repeat::Unsafe];
const REFUSED: Outcome = Outcome::NotSent { cause: Cause::Connect, reused_connection: false };
const POOLED: Outcome = Outcome::NotSent { cause: Cause::Connect, reused_connection: true };
const TIMEOUT: Outcome = Outcome::Silent(Silence::Timeout);
const CLOSED: Outcome = Outcome::Silent(Silence::Closed);

fn policy() -> RetryPolicy {
    RetryPolicy {
        max_attempts: 4,
        base_interval: Duration::from_millis(100),
        max_interval: Duration::from_secs(1),
        attempt_timeout: Duration::from_millis(500),
        deadline: Duration::from_secs(10),
        retry_after_max: Duration::from_secs(60),
        budget: Budget { percent: 20, per_second: 3 },
    }
}

/// The first attempt of a run with nothing in its way.
fn first(outcome: Outcome, repeat: Repeat) -> Situation {
    Situation {
        fact: classify(&outcome),
        repeat,
        deletes: false,
        may_have_run: false,
        vetoed: false,
        promoted: false,
        replayable: true,
        hint: None,
        may_park: false,
        left: Duration::from_secs(10),
        run: Run::default().next_try(),
    }
}

fn decided(situation: Situation) -> Decision {
    decide(&situation, &policy(), &mut StdRng::seed_from_u64(1))
}

fn status(status: u16) -> Outcome {
    Outcome::Answer { status }
}

fn cut(status: u16) -> Outcome {
    Outcome::Cut { status }
}

fn end(situation: Situation) -> (Ending, Option<Stop>) {
    match decided(situation) {
        Decision::End { ending, stop } => (ending, stop),
        Decision::Retry { .. } => panic!("goes on: {situation:?}"),
    }
}

/// What a run that only ever meets `outcome` comes to, in the words of the contract's table.
fn course(outcome: Outcome, repeat: Repeat) -> String {
    let mut situation = first(outcome, repeat);
    let mut retries = 0;
    let ending = loop {
        match decided(situation) {
            Decision::End { ending, .. } => break ending,
            Decision::Retry { ended, run, .. } => {
                retries += 1;
                situation.may_have_run |= ended.may_have_run;
                situation.run = run.next_try();
            }
        }
    };
    let end = match ending {
        Ending::Succeeded | Ending::Failed { .. } => "final",
        Ending::Executed(_) => "executed",
        Ending::NotExecuted(_) => "not executed",
        Ending::Unknown(_) => "unknown",
    };
    match retries {
        0 => end.to_owned(),
        1 => format!("once, {end}"),
        3 => format!("retry, {end}"),
        more => panic!("{more} retries"),
    }
}

#[test]
fn the_table_of_the_contract() {
    const UNSENT: &str = "retry, not executed";
    const DOUBT: &str = "retry, unknown";
    #[rustfmt::skip]
    let table = [
        // what happened     harmless                with-key                unsafe
        (REFUSED,            UNSENT,                 UNSENT,                 UNSENT),
        (CLOSED,             DOUBT,                  DOUBT,                  "unknown"),
        (TIMEOUT,            DOUBT,                  DOUBT,                  "unknown"),
        (cut(200),           DOUBT,                  DOUBT,                  "executed"),
        (cut(303),           DOUBT,                  DOUBT,                  "executed"),
        (cut(422),           DOUBT,                  DOUBT,                  "executed"),
        (cut(429),           UNSENT,                 UNSENT,                 UNSENT),
        (cut(401),           "not executed",         "not executed",         "not executed"),
        (cut(503),           DOUBT,                  DOUBT,                  "unknown"),
        (status(429),        UNSENT,                 UNSENT,                 UNSENT),
        (status(408),        "once, not executed",   "once, not executed",   "not executed"),
        (status(425),        "once, not executed",   "once, not executed",   "not executed"),
        (status(421),        "once, not executed",   "once, not executed",   "once, not executed"),
        (status(503),        DOUBT,                  DOUBT,                  "unknown"),
        (status(529),        DOUBT,                  DOUBT,                  "unknown"),
        (status(522),        DOUBT,                  DOUBT,                  "unknown"),
        (status(500),        DOUBT,                  "once, unknown",        "unknown"),
        (status(506),        DOUBT,                  "once, unknown",        "unknown"),
        (status(502),        DOUBT,                  DOUBT,                  "unknown"),
        (status(504),        DOUBT,                  DOUBT,                  "unknown"),
        (status(520),        DOUBT,                  DOUBT,                  "unknown"),
        (status(524),        DOUBT,                  DOUBT,                  "unknown"),
        (status(521),        UNSENT,                 UNSENT,                 "not executed"),
        (status(523),        UNSENT,                 UNSENT,                 "not executed"),
        (status(404),        "final",                "final",                "final"),
        (status(409),        "final",                "final",                "final"),
        (status(501),        "final",                "final",                "final"),
        (status(505),        "final",                "final",                "final"),
        (status(511),        "final",                "final",                "final"),
        (status(302),        "final",                "final",                "final"),
        (status(200),        "final",                "final",                "final"),
        (status(401),        "not executed",         "not executed",         "not executed"),
        (status(403),        "not executed",         "not executed",         "not executed"),
        (status(407),        "not executed",         "not executed",         "not executed"),
        (Outcome::BadHead,   "once, unknown",        "unknown",              "unknown"),
    ];
    for (outcome, harmless, with_key, not_safe) in table {
        let found = REPEATS.map(|repeat| course(outcome, repeat));
        assert_eq!(found, [harmless, with_key, not_safe], "{outcome:?}");
    }
}

#[test]
fn a_call_that_was_turned_away_is_retried_everywhere_and_the_first_time_for_nothing() {
    for repeat in REPEATS {
        let mut situation = first(Outcome::TurnedAway, repeat);
        let twice = RetryPolicy { max_attempts: 2, ..policy() };
        let next = |situation: &Situation| decide(situation, &twice, &mut StdRng::seed_from_u64(1));
        let decision = next(&situation);
        assert!(!decision.is_charged(&situation.run));
        let Decision::Retry { wait, ended, new_connection, run, .. } = decision else { panic!("it is free") };
        assert_eq!((wait, new_connection), (Duration::ZERO, false));
        assert_eq!(ended, Ended { cause: Cause::TurnedAway, may_have_run: false });
        situation.run = run.next_try();
        let Decision::Retry { run, .. } = next(&situation) else { panic!("within max_attempts") };
        situation.run = run.next_try();
        assert_eq!(
            next(&situation),
            Decision::End { ending: Ending::NotExecuted(Cause::TurnedAway), stop: Some(Stop::Exhausted) }
        );
    }
}

#[test]
fn a_dead_pooled_connection_gets_one_retry_for_nothing() {
    for repeat in REPEATS {
        let mut situation = first(POOLED, repeat);
        let lone = RetryPolicy { max_attempts: 1, ..policy() };
        let decision = decide(&situation, &lone, &mut StdRng::seed_from_u64(1));
        assert!(!decision.is_charged(&situation.run));
        let Decision::Retry { wait, ended, new_connection, run, .. } = decision else {
            panic!("a stale connection costs no attempt");
        };
        assert_eq!((wait, new_connection, run.free), (Duration::ZERO, true, true));
        assert_eq!(ended, Ended { cause: Cause::Connect, may_have_run: false });
        situation.run = run.next_try();
        assert_eq!(
            decide(&situation, &lone, &mut StdRng::seed_from_u64(1)),
            Decision::End { ending: Ending::NotExecuted(Cause::Connect), stop: Some(Stop::Exhausted) }
        );
    }
}

#[test]
fn all_other_retries_are_charged_and_may_be_stopped() {
    for (free, outcome) in [(false, REFUSED), (true, POOLED), (false, status(503)), (true, TIMEOUT)] {
        let run = Run { tries: 2, free, ..Run::default() };
        let situation = Situation { run, ..first(outcome, Repeat::WithKey) };
        let decision = decide(&situation, &policy(), &mut StdRng::seed_from_u64(1));
        assert!(matches!(decision, Decision::Retry { .. }) && decision.is_charged(&run), "{outcome:?}");
        let Decision::End { ending, stop } = situation.stopped(Stop::Budget) else { panic!("it ends") };
        assert_eq!(stop, Some(Stop::Budget));
        assert_eq!(ending.ended().unwrap().may_have_run, situation.fact.may_have_run(), "{outcome:?}");
    }
}

#[test]
fn the_free_retry_moves_neither_attempts_nor_backoff() {
    let run = Run { tries: 2, free: true, ..Run::default() };
    for seed in 0..100 {
        let decision = decide(
            &Situation { run, ..first(status(503), Repeat::Harmless) },
            &policy(),
            &mut StdRng::seed_from_u64(seed),
        );
        assert!(matches!(decision, Decision::Retry { wait, .. } if wait <= Duration::from_millis(100)));
    }
    let fourth = Run { tries: 4, ..run };
    assert!(matches!(
        decided(Situation { run: fourth, ..first(status(503), Repeat::Harmless) }),
        Decision::Retry { .. }
    ));
    let fifth = Run { tries: 5, ..run };
    assert_eq!(end(Situation { run: fifth, ..first(status(503), Repeat::Harmless) }).1, Some(Stop::Exhausted));
}

#[test]
fn a_take_over_goes_on_counting() {
    let taken_over = Situation { run: Run::after(3).next_try(), ..first(status(503), Repeat::Harmless) };
    assert_eq!(end(taken_over).1, Some(Stop::Exhausted));
}

#[test]
fn a_misdirected_or_timed_out_request_leaves_its_connection() {
    for (outcome, expected) in [(status(421), true), (status(408), true), (status(425), false), (status(503), false)] {
        let decision = decided(first(outcome, Repeat::Harmless));
        assert!(
            matches!(decision, Decision::Retry { new_connection, .. } if new_connection == expected),
            "{outcome:?}"
        );
    }
}

#[test]
fn the_first_stop_that_applies_is_the_one_told() {
    let all = Situation {
        vetoed: true,
        replayable: false,
        hint: Some(Hint(Duration::MAX)),
        may_park: false,
        run: Run { tries: 4, ..Run::default() },
        ..first(status(503), Repeat::Unsafe)
    };
    assert_eq!(end(all).1, Some(Stop::Exhausted));
    let all = Situation { run: Run { tries: 1, ..Run::default() }, ..all };
    assert_eq!(end(all).1, Some(Stop::Vetoed));
    let all = Situation { vetoed: false, ..all };
    assert_eq!(end(all).1, Some(Stop::Unsafe));
    let all = Situation { repeat: Repeat::WithKey, ..all };
    assert_eq!(end(all).1, Some(Stop::Body));
    let all = Situation { replayable: true, ..all };
    assert_eq!(end(all).1, Some(Stop::HintTooLong));
    let all = Situation { hint: Some(Hint(Duration::from_secs(30))), ..all };
    assert_eq!(end(all).1, Some(Stop::Deadline));
}

#[test]
fn what_may_wait_is_put_off_and_what_may_not_is_stopped() {
    let long = Duration::from_secs(5);
    let waits = Situation { may_park: true, ..first(status(503), Repeat::Harmless) };
    let put_off = waits.put_off(decided(waits), long, Stop::Budget);
    assert!(matches!(put_off, Decision::Retry { wait, parked: true, .. } if wait == long), "{put_off:?}");
    let hurries = Situation { may_park: false, ..waits };
    for situation in [waits, hurries] {
        let ended = situation.put_off(situation.stopped(Stop::Vetoed), long, Stop::Budget);
        assert_eq!(ended, situation.stopped(Stop::Budget));
    }
    assert_eq!(hurries.put_off(decided(hurries), long, Stop::Budget), hurries.stopped(Stop::Budget));
}

#[test]
fn the_words_of_the_header() {
    let stops = [Stop::Exhausted, Stop::Vetoed, Stop::Unsafe, Stop::Body, Stop::HintTooLong, Stop::Deadline];
    let words = ["exhausted", "vetoed", "unsafe", "body", "hint-too-long", "deadline"];
    assert_eq!(stops.map(Stop::as_str), words);
}

#[test]
fn a_final_answer_says_nothing_about_stopping() {
    for number in [200, 302, 404, 409, 501, 401] {
        assert_eq!(end(first(status(number), Repeat::WithKey)).1, None);
    }
}

#[test]
fn after_a_doubt_answers_of_a_with_key_upstream_stand_but_for_those_that_speak_of_this_try_only() {
    let doubted = |number| end(Situation { may_have_run: true, ..first(status(number), Repeat::WithKey) }).0;
    for number in [200, 201, 204, 303] {
        assert_eq!(doubted(number), Ending::Succeeded);
    }
    for number in [400, 402, 404, 410, 412, 422] {
        assert_eq!(doubted(number), Ending::Failed { after_doubt: false });
    }
    for number in [401, 403, 407, 409, 501, 505, 511] {
        assert_eq!(doubted(number), Ending::Unknown(Cause::Status(number)));
    }
    for number in [408, 421, 425, 429] {
        let spent = Run { tries: 4, ..Run::default() };
        let used_up = Situation { may_have_run: true, run: spent, ..first(status(number), Repeat::WithKey) };
        assert_eq!(end(used_up), (Ending::Unknown(Cause::Status(number)), Some(Stop::Exhausted)));
    }
}

#[test]
fn after_a_doubt_a_harmless_no_may_be_our_own_doing() {
    let failed =
        |deletes, number| end(Situation { may_have_run: true, deletes, ..first(status(number), Repeat::Harmless) }).0;
    for (deletes, number, after_doubt) in [
        (true, 404, true),
        (true, 410, true),
        (false, 404, false),
        (false, 409, true),
        (true, 412, true),
        (true, 422, false),
    ] {
        assert_eq!(failed(deletes, number), Ending::Failed { after_doubt }, "{number}");
    }
    assert_eq!(failed(true, 204), Ending::Succeeded);
    assert_eq!(
        end(Situation { deletes: true, ..first(status(404), Repeat::Harmless) }).0,
        Ending::Failed { after_doubt: false }
    );
}

/// A key that ran out while the attempt was under way.
#[test]
fn after_a_doubt_an_unsafe_upstream_can_only_say_yes() {
    let doubted = |outcome| end(Situation { may_have_run: true, ..first(outcome, Repeat::Unsafe) });
    assert_eq!(doubted(status(201)), (Ending::Succeeded, None));
    assert_eq!(doubted(status(422)), (Ending::Unknown(Cause::Status(422)), None));
    assert_eq!(doubted(cut(422)), (Ending::Unknown(Cause::Status(422)), Some(Stop::Unsafe)));
    assert_eq!(doubted(status(429)), (Ending::Unknown(Cause::Status(429)), Some(Stop::Unsafe)));
    assert_eq!(doubted(REFUSED), (Ending::Unknown(Cause::Connect), Some(Stop::Unsafe)));
}

#[test]
fn endings_reach_the_record_without_losing_the_doubt() {
    let cause = Cause::Timeout;
    assert_eq!(Ending::Unknown(cause).ended(), Some(Ended { cause, may_have_run: true }));
    assert_eq!(Ending::NotExecuted(cause).ended(), Some(Ended { cause, may_have_run: false }));
    assert_eq!(Ending::Executed(Verdict::Failed).verdict(), Some(Verdict::Failed));
    assert_eq!((Ending::Succeeded.ended(), Ending::Succeeded.verdict()), (None, Some(Verdict::Succeeded)));
    assert_eq!(Ending::Failed { after_doubt: true }.verdict(), Some(Verdict::Failed));
    assert_eq!(Ending::Unknown(cause).verdict(), None);
}

fn every_outcome() -> impl Iterator<Item = Outcome> {
    let broken = [REFUSED, POOLED, Outcome::TurnedAway, TIMEOUT, CLOSED, Outcome::BadHead];
    broken.into_iter().chain((0..=999).flat_map(|number| [status(number), cut(number)]))
}

/// Every outcome on every upstream, with and without each circumstance.
fn every_situation() -> impl Iterator<Item = Situation> {
    every_outcome().flat_map(|outcome| {
        REPEATS.into_iter().flat_map(move |repeat| {
            (0..32_u8).map(move |bits| {
                let bit = |place: u8| bits >> place & 1 == 1;
                Situation {
                    deletes: bit(0),
                    may_have_run: bit(1),
                    vetoed: bit(2),
                    run: if bit(3) { Run::default().next_try() } else { Run::after(4) },
                    hint: bit(4).then_some(Hint(Duration::from_secs(1))),
                    may_park: false,
                    ..first(outcome, repeat)
                }
            })
        })
    })
}

#[test]
fn doubt_is_never_lost() {
    for situation in every_situation().filter(|situation| situation.may_have_run || situation.fact.may_have_run()) {
        match decided(situation) {
            Decision::End { ending, .. } => assert!(!matches!(ending, Ending::NotExecuted(_)), "{situation:?}"),
            Decision::Retry { ended, .. } => {
                assert_eq!(ended.may_have_run, situation.fact.may_have_run(), "{situation:?}");
            }
        }
    }
}

#[test]
fn doubt_on_an_unsafe_upstream_is_never_followed_by_another_attempt() {
    for situation in every_situation().filter(|situation| situation.repeat == Repeat::Unsafe) {
        if situation.may_have_run || situation.fact.may_have_run() {
            assert!(matches!(decided(situation), Decision::End { .. }), "{situation:?}");
        }
    }
}

#[test]
fn nothing_that_certainly_did_not_run_ends_as_a_receipt_or_unknown() {
    for situation in every_situation().filter(|situation| !situation.may_have_run) {
        let refused = !situation.fact.may_have_run() && !matches!(situation.fact, Fact::Final { .. });
        if let (true, Decision::End { ending, .. }) = (refused, decided(situation)) {
            assert!(matches!(ending, Ending::NotExecuted(_)), "{situation:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_try_begins_too_late_or_before_the_hint(
        number in 200..600_u16, tries in 1..2000_u32, max_attempts: u32, hint in prop::option::of(0..200_000_u64),
        left in 0..200_000_u64, seed: u64,
    ) {
        let hint = hint.map(|hint| Hint(Duration::from_millis(hint)));
        let left = Duration::from_millis(left);
        let situation = Situation { hint, left, run: Run::after(tries), ..first(status(number), Repeat::Harmless) };
        let policy = RetryPolicy { max_attempts, ..policy() };
        if let Decision::Retry { wait, .. } = decide(&situation, &policy, &mut StdRng::seed_from_u64(seed)) {
            prop_assert!(wait + LEAST_TRY <= left);
            prop_assert!(hint.is_none_or(|Hint(asked)| asked <= wait && asked <= policy.retry_after_max));
            prop_assert!(tries < max_attempts);
        }
    }
}
