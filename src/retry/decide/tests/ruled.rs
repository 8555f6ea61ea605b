//! What follows an answer that a rule of the route has read, or that asks for another try itself.

use super::*;
use crate::operation::meaning::{Meaning, Said, fact};

/// The first attempt of a run whose answer a rule has read.
fn ruled(outcome: Outcome, said: Said, repeat: Repeat) -> Situation {
    Situation { fact: fact(&outcome, said), ..first(outcome, repeat) }
}

fn by_rule(status: u16, meaning: Meaning) -> Cause {
    Cause::Ruled { status, meaning }
}

fn means(meaning: Meaning, repeat: Repeat) -> Situation {
    ruled(status(200), Said::Means(meaning), repeat)
}

/// How often a run goes on that only ever meets this answer, and how it ends.
fn course(mut situation: Situation) -> (u32, Ending) {
    let mut retries = 0;
    loop {
        match decided(situation) {
            Decision::End { ending, .. } => return (retries, ending),
            Decision::Retry { ended, run, .. } => {
                retries += 1;
                situation.may_have_run |= ended.may_have_run;
                situation.run = run.next_try();
            }
        }
    }
}

type Course = (u32, fn(Meaning) -> Ending);

#[test]
fn the_table_of_the_rules() {
    let unknown = |meaning| Ending::Unknown(by_rule(200, meaning));
    let not_run = |meaning| Ending::NotExecuted(by_rule(200, meaning));
    let (executed, failed) = (|_| Ending::Succeeded, |_| Ending::Failed { after_doubt: false });
    #[rustfmt::skip]
    let table: [(Meaning, Course, Course, Course); 7] = [
        // what a rule says      harmless                with-key                unsafe
        (Meaning::Busy,          (3, unknown),           (3, unknown),           (0, unknown)),
        (Meaning::Throttled,     (3, not_run),           (3, not_run),           (3, not_run)),
        (Meaning::NotExecuted,   (3, not_run),           (3, not_run),           (3, not_run)),
        (Meaning::Denied,        (0, not_run),           (0, not_run),           (0, not_run)),
        (Meaning::Executed,      (0, executed),          (0, executed),          (0, executed)),
        (Meaning::Failed,        (0, failed),            (0, failed),            (0, failed)),
        (Meaning::Unknown,       (3, unknown),           (3, unknown),           (0, unknown)),
    ];
    for (meaning, harmless, with_key, not_safe) in table {
        let found = REPEATS.map(|repeat| course(means(meaning, repeat)));
        assert_eq!(found, [harmless, with_key, not_safe].map(|(retries, end)| (retries, end(meaning))), "{meaning:?}");
    }
}

#[test]
fn a_rule_comes_before_the_status() {
    let busy = ruled(status(409), Said::Means(Meaning::Busy), Repeat::WithKey);
    assert_eq!(course(busy), (3, Ending::Unknown(by_rule(409, Meaning::Busy))));
    let executed = ruled(status(503), Said::Means(Meaning::Executed), Repeat::Unsafe);
    assert_eq!(end(executed), (Ending::Succeeded, None));
    let failed = ruled(status(200), Said::Means(Meaning::Failed), Repeat::Unsafe);
    assert_eq!(end(failed), (Ending::Failed { after_doubt: false }, None));
    let refused = ruled(status(503), Said::Means(Meaning::NotExecuted), Repeat::Unsafe);
    assert_eq!(course(refused), (3, Ending::NotExecuted(by_rule(503, Meaning::NotExecuted))));
}

#[test]
fn a_last_word_that_broke_off_is_asked_for_again_where_that_does_no_harm() {
    for (meaning, verdict) in [(Meaning::Executed, Verdict::Succeeded), (Meaning::Failed, Verdict::Failed)] {
        let cut = |repeat| ruled(cut(500), Said::Means(meaning), repeat);
        assert_eq!(course(cut(Repeat::WithKey)), (3, Ending::Unknown(by_rule(500, meaning))));
        assert_eq!(course(cut(Repeat::Unsafe)), (0, Ending::Executed(verdict)));
    }
}

#[test]
fn a_body_that_broke_off_before_a_rule_could_see_it_proves_nothing() {
    assert_eq!(course(ruled(cut(200), Said::Open, Repeat::Unsafe)), (0, Ending::Unknown(Cause::Status(200))));
    assert_eq!(course(ruled(cut(200), Said::Open, Repeat::WithKey)).0, 3);
}

#[test]
fn a_no_of_an_unsafe_service_says_nothing_of_an_earlier_attempt() {
    let doubted = |repeat| end(Situation { may_have_run: true, ..means(Meaning::Failed, repeat) }).0;
    assert_eq!(doubted(Repeat::Unsafe), Ending::Unknown(by_rule(200, Meaning::Failed)));
    assert_eq!(doubted(Repeat::WithKey), Ending::Failed { after_doubt: false });
    let conflict = ruled(status(409), Said::Means(Meaning::Failed), Repeat::Harmless);
    assert_eq!(end(Situation { may_have_run: true, ..conflict }).0, Ending::Failed { after_doubt: true });
}

#[test]
fn a_throttle_of_a_rule_waits_as_every_throttle_does() {
    for seed in 0..50 {
        let decision = decide(&means(Meaning::Throttled, Repeat::Unsafe), &policy(), &mut StdRng::seed_from_u64(seed));
        assert!(matches!(decision, Decision::Retry { wait, .. } if wait >= Duration::from_secs(1)));
    }
}

#[test]
fn an_answer_that_asks_for_another_try_gets_one_where_that_does_no_harm() {
    let promoted = |number, repeat| course(Situation { promoted: true, ..first(status(number), repeat) });
    for (number, with_key) in [
        (409, Ending::Unknown(Cause::Status(409))),
        (404, Ending::NotExecuted(Cause::Status(404))),
        (401, Ending::NotExecuted(Cause::Status(401))),
        (500, Ending::Unknown(Cause::Status(500))),
        (501, Ending::Unknown(Cause::Status(501))),
        (503, Ending::Unknown(Cause::Status(503))),
    ] {
        assert_eq!(promoted(number, Repeat::WithKey), (3, with_key), "{number}");
    }
    assert_eq!(promoted(200, Repeat::WithKey), (0, Ending::Succeeded));
    assert_eq!(promoted(302, Repeat::Harmless), (0, Ending::Succeeded));
    assert_eq!(promoted(409, Repeat::Unsafe), (0, Ending::Failed { after_doubt: false }));
    assert_eq!(promoted(500, Repeat::Unsafe), (0, Ending::Unknown(Cause::Status(500))));
    let ruled = Situation { promoted: true, ..means(Meaning::Failed, Repeat::WithKey) };
    assert_eq!(course(ruled), (0, Ending::Failed { after_doubt: false }), "a rule comes first");
}

/// One status of each row of the table.
const STATUSES: [u16; 16] = [200, 201, 302, 400, 401, 408, 409, 421, 425, 429, 500, 501, 502, 503, 521, 529];

/// Every answer under every rule and every circumstance.
fn every_ruled_situation() -> impl Iterator<Item = Situation> {
    let said = Meaning::ALL.into_iter().map(Said::Means).chain([Said::Open, Said::Nothing]);
    let outcomes = || STATUSES.into_iter().flat_map(|number| [status(number), cut(number)]);
    let answers = said.flat_map(move |said| outcomes().map(move |outcome| (outcome, said)));
    let on_each = answers.flat_map(|(outcome, said)| REPEATS.map(|repeat| ruled(outcome, said, repeat)));
    on_each.flat_map(|situation| {
        (0..16_u8).map(move |bits| {
            let bit = |place: u8| bits >> place & 1 == 1;
            Situation {
                deletes: bit(0),
                may_have_run: bit(1),
                promoted: bit(2),
                run: if bit(3) { Run::default().next_try() } else { Run::after(4) },
                ..situation
            }
        })
    })
}

#[test]
fn no_rule_and_no_wish_of_an_upstream_loses_a_doubt() {
    for situation in every_ruled_situation() {
        let in_doubt = situation.may_have_run || situation.fact.may_have_run();
        let unsafe_doubt = in_doubt && situation.repeat == Repeat::Unsafe;
        match decided(situation) {
            Decision::End { ending, .. } if in_doubt => {
                assert!(!matches!(ending, Ending::NotExecuted(_)), "{situation:?}");
            }
            Decision::End { .. } => {}
            Decision::Retry { ended, .. } => {
                assert!(!unsafe_doubt, "{situation:?}");
                assert!(ended.may_have_run || !situation.fact.may_have_run(), "{situation:?}");
            }
        }
    }
}

#[test]
fn what_a_rule_says_did_not_run_is_no_receipt_and_no_doubt_by_itself() {
    let refused = |situation: &Situation| {
        let meaning = if let Fact::Ruled { meaning, .. } = situation.fact { Some(meaning) } else { None };
        matches!(meaning, Some(Meaning::NotExecuted | Meaning::Denied | Meaning::Throttled)) && !situation.may_have_run
    };
    for situation in every_ruled_situation().filter(refused) {
        match decided(situation) {
            Decision::End { ending, .. } => assert!(matches!(ending, Ending::NotExecuted(_)), "{situation:?}"),
            Decision::Retry { ended, .. } => assert!(!ended.may_have_run, "{situation:?}"),
        }
    }
}
