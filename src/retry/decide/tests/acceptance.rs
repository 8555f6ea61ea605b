//! Whole runs against a scripted upstream, on a clock of numbers.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use super::*;
use crate::clock::Timestamp;
use crate::operation::meaning::{Meaning, Said, fact};
use crate::retry::advice::Advice;
use crate::retry::dialect::Dialect;

/// One answer of the script, and what its headers say.
pub(super) struct Reply {
    pub(super) outcome: Outcome,
    pub(super) headers: Vec<(&'static str, &'static str)>,
    pub(super) said: Said,
}

pub(super) fn replies(statuses: &[u16]) -> Vec<Reply> {
    statuses.iter().map(|number| answer(*number, &[])).collect()
}

pub(super) fn answer(number: u16, headers: &[(&'static str, &'static str)]) -> Reply {
    Reply { outcome: status(number), headers: headers.to_vec(), said: Said::Nothing }
}

pub(super) fn broken(outcome: Outcome) -> Reply {
    Reply { outcome, headers: Vec::new(), said: Said::Nothing }
}

/// What a run came to.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) waits: Vec<f64>,
    pub(super) ending: Ending,
    pub(super) stop: Option<Stop>,
    /// The last answer, which the client gets.
    pub(super) last: u16,
}

impl Course {
    pub(super) fn attempts(&self) -> usize {
        self.waits.len() + 1
    }
}

/// Who calls, and under which rules.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) repeat: Repeat,
    pub(super) policy: RetryPolicy,
    pub(super) deletes: bool,
    pub(super) replayable: bool,
    pub(super) seed: u64,
    pub(super) dialect: Dialect,
}

pub(super) fn get() -> Call {
    Call {
        repeat: Repeat::Harmless,
        policy: policy(),
        deletes: false,
        replayable: true,
        seed: 1,
        dialect: Dialect::Generic,
    }
}

pub(super) fn post() -> Call {
    Call { repeat: Repeat::Unsafe, ..get() }
}

pub(super) fn keyed_post() -> Call {
    Call { repeat: Repeat::WithKey, ..get() }
}

impl Call {
    pub(super) fn within(self, deadline: Duration) -> Self {
        Self { policy: RetryPolicy { deadline, ..self.policy }, ..self }
    }

    /// Plays the script; its last line repeats for ever. A silent upstream costs the attempt timeout, all else no time.
    pub(super) fn play(self, script: &[Reply]) -> Course {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let (mut left, mut run, mut may_have_run) = (self.policy.deadline, Run::default(), false);
        let mut waits = Vec::new();
        let mut script = script.iter().chain(std::iter::repeat(script.last().unwrap()));
        loop {
            let reply = script.next().unwrap();
            run = run.next_try();
            if reply.outcome == TIMEOUT {
                left = left.saturating_sub(self.policy.attempt_timeout);
            }
            let (headers, fact) = (header_map(&reply.headers), fact(&reply.outcome, reply.said));
            let advice = Advice::of(self.dialect, &fact, &headers, None, Timestamp(1_767_225_600_000));
            let situation = Situation {
                deletes: self.deletes,
                may_have_run,
                fact,
                vetoed: advice.vetoed,
                promoted: advice.promoted,
                replayable: self.replayable,
                hint: advice.hint,
                left,
                run,
                ..first(reply.outcome, self.repeat)
            };
            match decide(&situation, &self.policy, &mut rng) {
                Decision::Retry { wait, ended, run: next, .. } => {
                    waits.push(wait.as_secs_f64());
                    left -= wait;
                    run = next;
                    may_have_run |= ended.may_have_run;
                }
                Decision::End { ending, stop } => return Course { waits, ending, stop, last: last(reply.outcome) },
            }
        }
    }
}

fn header_map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn last(outcome: Outcome) -> u16 {
    match outcome {
        Outcome::Answer { status } | Outcome::Cut { status } => status,
        Outcome::NotSent { .. } | Outcome::TurnedAway | Outcome::BadHead | Outcome::Silent(Silence::Closed) => 502,
        Outcome::Silent(Silence::Timeout) => 504,
    }
}

/// Asserts attempts and the bounds of each wait in seconds.
#[track_caller]
pub(super) fn assert_waits(course: &Course, bounds: &[(f64, f64)]) {
    assert_eq!(course.waits.len(), bounds.len(), "{course:?}");
    for (wait, (least, most)) in course.waits.iter().zip(bounds) {
        assert!(wait >= least && wait <= most, "{course:?}");
    }
}

#[test]
fn row_01_a_get_outlives_two_503() {
    let course = get().play(&replies(&[503, 503, 200]));
    assert_waits(&course, &[(0.0, 0.1), (0.0, 0.2)]);
    assert_eq!((course.last, course.ending, course.stop), (200, Ending::Succeeded, None));
}

#[test]
fn row_02_the_last_answer_comes_back_when_tries_are_used_up() {
    let course = get().play(&replies(&[500]));
    assert_waits(&course, &[(0.0, 0.1), (0.0, 0.2), (0.0, 0.4)]);
    assert_eq!((course.last, course.stop), (500, Some(Stop::Exhausted)));
}

#[test]
fn row_03_the_wait_of_a_thousand_seeds_averages_half() {
    let waits: Vec<f64> = (1..=1000).map(|seed| Call { seed, ..get() }.play(&replies(&[503, 200])).waits[0]).collect();
    let mean = waits.iter().sum::<f64>() / 1000.0;
    assert!((mean - 0.05).abs() < 0.005, "{mean}");
    assert!(waits.iter().all(|wait| *wait <= 0.1));
    assert!(waits.iter().any(|wait| *wait < 0.01));
}

#[test]
fn row_04_a_client_error_is_final() {
    let course = get().play(&replies(&[400, 200]));
    assert_eq!((course.attempts(), course.ending), (1, Ending::Failed { after_doubt: false }));
}

#[test]
fn row_05_a_hint_is_a_lower_bound() {
    assert_waits(&get().play(&[answer(429, &[("retry-after", "1")]), answer(200, &[])]), &[(1.0, 1.25)]);
}

#[test]
fn row_06_a_hint_beyond_the_deadline_goes_to_the_client_at_once() {
    let course = get().within(Duration::from_secs(2)).play(&[answer(429, &[("retry-after", "30")])]);
    assert_eq!((course.attempts(), course.last, course.stop), (1, 429, Some(Stop::Deadline)));
}

#[test]
fn rows_07_08_invalid_hints_are_backoff() {
    for value in ["-1", "+5", "nan", "1e3", "²", "soon", ""] {
        assert_waits(&get().play(&[answer(503, &[("retry-after", value)]), answer(200, &[])]), &[(0.0, 0.1)]);
    }
}

#[test]
fn rows_09_10_huge_hints_stop_instead_of_wrapping() {
    for value in ["99999999999999999999999", "18446744073709552"] {
        let course = get().play(&[answer(429, &[("retry-after", value)]), answer(200, &[])]);
        assert_eq!((course.attempts(), course.last, course.stop), (1, 429, Some(Stop::HintTooLong)));
    }
}

#[test]
fn row_11_decimals_are_hints() {
    assert_waits(&get().play(&[answer(503, &[("retry-after", "0.5")]), answer(200, &[])]), &[(0.5, 0.75)]);
}

#[test]
fn rows_12_13_dates_are_hints_by_the_clock_of_the_upstream() {
    let date = ("date", "Wed, 31 Dec 2025 23:00:00 GMT");
    for value in ["Wed, 31 Dec 2025 23:00:02 GMT", "Wednesday, 31-Dec-25 23:00:02 GMT", "Wed Dec 31 23:00:02 2025"] {
        assert_waits(&get().play(&[answer(503, &[date, ("retry-after", value)]), answer(200, &[])]), &[(2.0, 2.35)]);
    }
}

#[test]
fn rows_14_15_a_hint_of_zero_is_no_leave_to_hammer() {
    let past = answer(503, &[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")]);
    assert_waits(&get().play(&[past, answer(200, &[])]), &[(0.0, 0.1)]);
    let course = get().play(&[answer(429, &[("retry-after", "0")])]);
    assert_waits(&course, &[(0.0, 0.1), (0.0, 0.2), (0.0, 0.4)]);
    assert_eq!((course.last, course.stop), (429, Some(Stop::Exhausted)));
    let third = |seed| Call { seed, ..get() }.play(&[answer(429, &[("retry-after", "0")])]).waits[2];
    assert!((1..100).map(third).any(|wait| wait > 0.35), "the ceiling of the third wait is not that of a hint");
}

#[test]
fn rows_16_17_18_several_hints() {
    let two = answer(429, &[("retry-after", "1"), ("retry-after", "3")]);
    assert_waits(&get().play(&[two, answer(200, &[])]), &[(3.0, 3.35)]);
    let junk = answer(429, &[("retry-after", "garbage"), ("retry-after", "1")]);
    assert_waits(&get().play(&[junk, answer(200, &[])]), &[(1.0, 1.25)]);
    let fine = answer(429, &[("retry-after-ms", "1500"), ("retry-after", "1")]);
    assert_waits(&get().play(&[fine, answer(200, &[])]), &[(1.5, 1.75)]);
}

#[test]
fn rows_20_21_22_an_unsafe_call_is_never_sent_twice_on_a_guess() {
    for (reply, cause) in [
        (broken(CLOSED), Cause::Closed),
        (broken(TIMEOUT), Cause::Timeout),
        (answer(503, &[]), Cause::Status(503)),
        (answer(503, &[("retry-after", "1")]), Cause::Status(503)),
    ] {
        let course = post().play(&[reply, answer(200, &[])]);
        assert_eq!((course.attempts(), course.ending), (1, Ending::Unknown(cause)));
        assert_eq!(course.stop, Some(Stop::Unsafe));
    }
}

#[test]
fn row_23_what_was_never_sent_is_sent_again_even_unsafe() {
    let course = post().play(&[broken(REFUSED), answer(200, &[])]);
    assert_waits(&course, &[(0.0, 0.1)]);
    assert_eq!(course.ending, Ending::Succeeded);
}

#[test]
fn row_24_a_keyed_post_is_sent_again_after_silence() {
    let course = keyed_post().play(&[broken(TIMEOUT), answer(201, &[])]);
    assert_eq!((course.attempts(), course.ending), (2, Ending::Succeeded));
}

#[test]
fn row_25_in_progress_after_silence_is_no_failure() {
    let course = keyed_post().play(&[broken(TIMEOUT), answer(409, &[])]);
    assert_eq!((course.attempts(), course.ending), (2, Ending::Unknown(Cause::Status(409))));
}

#[test]
fn row_25_in_progress_that_a_rule_knows_is_waited_for() {
    let busy = Reply { said: Said::Means(Meaning::Busy), ..answer(409, &[("retry-after", "1")]) };
    let course = keyed_post().play(&[broken(TIMEOUT), busy, answer(201, &[])]);
    assert_eq!((course.attempts(), course.ending), (3, Ending::Succeeded));
    assert!(course.waits[1] >= 1.0, "its hint is honoured: {course:?}");
}

#[test]
fn row_19_only_the_reset_of_a_limit_that_is_spent_counts() {
    let throttled = answer(
        429,
        &[
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "2s"),
            ("x-ratelimit-remaining-tokens", "900"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ],
    );
    let course = Call { dialect: Dialect::OpenAi, ..get() }.play(&[throttled, answer(200, &[])]);
    assert_waits(&course, &[(2.0, 2.35)]);
}

#[test]
fn row_26_not_found_after_a_doubtful_delete_keeps_the_doubt() {
    let course = Call { deletes: true, ..get() }.play(&[broken(TIMEOUT), answer(404, &[])]);
    assert_eq!((course.attempts(), course.ending), (2, Ending::Failed { after_doubt: true }));
}

#[test]
fn row_28_a_body_that_is_gone_is_not_sent_again() {
    let course = Call { replayable: false, ..keyed_post() }.play(&replies(&[503]));
    assert_eq!((course.attempts(), course.last, course.stop), (1, 503, Some(Stop::Body)));
}

#[test]
fn rows_30_31_a_veto_stops_and_a_yes_promotes_nothing_unsafe() {
    let course = get().play(&[answer(503, &[("x-should-retry", "false")])]);
    assert_eq!((course.attempts(), course.last, course.stop), (1, 503, Some(Stop::Vetoed)));
    let course = post().play(&[answer(500, &[("x-should-retry", "true")])]);
    assert_eq!((course.attempts(), course.ending), (1, Ending::Unknown(Cause::Status(500))));
}

#[test]
fn row_42_two_clocks_are_both_obeyed() {
    let course = get().within(Duration::from_millis(700)).play(&[broken(TIMEOUT)]);
    assert_eq!((course.attempts(), course.last, course.stop), (2, 504, Some(Stop::Deadline)));
    assert!(course.waits[0] <= 0.1);
}

#[test]
fn row_44_a_thousand_attempts_stay_below_the_ceiling() {
    let (base_interval, max_interval) = (Duration::from_millis(1), Duration::from_millis(2));
    let policy = RetryPolicy { max_attempts: 1000, base_interval, max_interval, ..policy() };
    let patient = Call { policy, ..get() };
    let script: Vec<u16> = std::iter::repeat_n(503, 999).chain([200]).collect();
    let course = patient.play(&replies(&script));
    assert_eq!((course.attempts(), course.last), (1000, 200));
    assert!(course.waits.iter().all(|wait| *wait <= 0.002));
}

#[test]
fn row_46_a_hint_longer_than_we_wait_goes_to_the_client_at_once() {
    let course = get().within(Duration::from_secs(600)).play(&[answer(429, &[("retry-after", "120")])]);
    assert_eq!((course.attempts(), course.stop), (1, Some(Stop::HintTooLong)));
}

#[test]
fn a_refusal_after_silence_does_not_erase_the_doubt() {
    for number in [401, 403, 407] {
        let course = keyed_post().play(&[broken(TIMEOUT), answer(number, &[])]);
        assert_eq!(course.ending, Ending::Unknown(Cause::Status(number)));
    }
    let course = keyed_post().play(&[broken(TIMEOUT), answer(429, &[("retry-after", "0")])]);
    assert_eq!((course.attempts(), course.ending), (4, Ending::Unknown(Cause::Status(429))));
}

#[test]
fn throttles_without_a_hint_are_not_drawn_near_zero() {
    assert_waits(&get().play(&replies(&[429, 529, 200])), &[(1.0, 1.0), (1.0, 2.0)]);
}
