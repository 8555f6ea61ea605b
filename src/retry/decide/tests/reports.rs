//! What went wrong elsewhere, each as the small input that showed it. `docs/retries.md` lists these and others.

use std::fs;
use std::path::Path;

use super::acceptance::{Call, Course, answer, assert_waits, broken, get, keyed_post, post};
use super::*;
use crate::operation::meaning::{Meaning, Said};
use crate::retry::dialect::Dialect;

/// A 429 with this `Retry-After`, and a good answer to whoever comes back.
fn after_hint(call: Call, hint: &'static str) -> Course {
    call.play(&[answer(429, &[("retry-after", hint)]), answer(200, &[])])
}

fn is_told_at_once(course: &Course, stop: Stop) {
    assert_eq!((course.attempts(), course.last, course.stop), (1, 429, Some(stop)));
    assert_eq!(course.ending, Ending::NotExecuted(Cause::Status(429)));
}

/// istio/istio#13851, #50506, #17145; traefik/traefik#8990; panoramicdata/PanoramicData.OData.Client#43.
#[test]
fn a_payout_that_was_answered_503_or_504_after_the_work_is_not_sent_again() {
    for number in [502, 503, 504] {
        let course = post().play(&[answer(number, &[]), answer(200, &[])]);
        assert_eq!((course.attempts(), course.ending), (1, Ending::Unknown(Cause::Status(number))));
    }
    let slow = post().play(&[broken(TIMEOUT), answer(200, &[])]);
    assert_eq!((slow.attempts(), slow.ending), (1, Ending::Unknown(Cause::Timeout)));
}

/// softonic/axios-retry#66; FGRibreau/node-request-retry#145; juspay/hyperswitch-prism#2257; haproxy/haproxy#2061.
#[test]
fn a_reset_after_the_request_is_no_proof_that_it_was_not_received() {
    let course = post().play(&[broken(CLOSED), answer(200, &[])]);
    assert_eq!((course.attempts(), course.ending), (1, Ending::Unknown(Cause::Closed)));
    assert_eq!(get().play(&[broken(CLOSED), answer(200, &[])]).attempts(), 2);
}

/// openai/openai-node#1840; openai/openai-python#3555; 1jehuang/jcode#1183; urllib3/urllib3#1338, #3743;
/// dotnet/extensions#7701.
#[test]
fn a_hint_that_is_too_long_is_neither_slept_nor_cut_short() {
    let patient = get().within(Duration::from_secs(3_600));
    for hint in ["61", "600", "3600", "86400", "9999999999"] {
        is_told_at_once(&after_hint(patient, hint), Stop::HintTooLong);
    }
    for hint in ["31", "60"] {
        is_told_at_once(&after_hint(get().within(Duration::from_secs(30)), hint), Stop::Deadline);
    }
}

/// pycontribs/jira#1805; sooperset/mcp-atlassian#1543.
#[test]
fn a_hint_is_a_lower_bound_and_zero_is_no_leave_to_hammer() {
    assert_waits(&after_hint(get().within(Duration::from_secs(30)), "10"), &[(10.0, 10.1)]);
    let always = get().play(&[answer(429, &[("retry-after", "0")])]);
    assert_eq!((always.attempts(), always.stop), (4, Some(Stop::Exhausted)));
    assert_waits(&always, &[(0.0, 0.1), (0.0, 0.2), (0.0, 0.4)]);
}

/// pydantic/pydantic-ai#7065; AstroVela/vane#469, #518; apify/crawlee-python#1995; supabase/supabase-js#2634.
#[test]
fn what_is_no_number_is_no_hint() {
    for junk in ["-1", "nan", "1e999", "inf", "soon", ""] {
        assert_waits(&after_hint(get(), junk), &[(1.0, 1.0)]);
    }
}

/// supabase/supabase-js#2634; will-ockmore/httpx-retries#13.
#[test]
fn a_date_is_a_hint_and_one_in_the_past_is_backoff() {
    assert_waits(&after_hint(get(), "Thu, 01 Jan 2026 00:00:03 GMT"), &[(3.0, 3.3)]);
    assert_waits(&after_hint(get(), "Sun, 06 Nov 1994 08:49:37 GMT"), &[(0.0, 0.1)]);
}

/// getsentry/sentry#7919; wojtekmach/req#464; urllib3/urllib3#2861.
#[test]
fn decimals_are_hints() {
    assert_waits(&after_hint(get(), "0.314"), &[(0.314, 0.565)]);
    assert_waits(&after_hint(get(), "0.503"), &[(0.503, 0.754)]);
    let patient = get().within(Duration::from_secs(400));
    is_told_at_once(&after_hint(patient, "292.052427053"), Stop::HintTooLong);
}

/// App-vNext/Polly#2163, #1866; dragonflyoss/dragonfly#4851; hemilabs/heminetwork#664.
#[test]
fn the_wait_of_a_late_attempt_is_neither_negative_nor_endless() {
    let backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(20));
    for n in [31, 32, 63, 64, 1_024, 1_025, u32::MAX] {
        assert_eq!(backoff.ceiling(n), Duration::from_secs(20), "{n}");
    }
}

/// aws/aws-sdk-net#4341; boto/botocore#2635.
#[test]
fn a_bare_429_is_retried_and_never_at_once() {
    for seed in 0..50 {
        let course = Call { seed, ..get() }.play(&[answer(429, &[]), answer(200, &[])]);
        assert_eq!(course.attempts(), 2);
        assert!(course.waits[0] >= 1.0, "{course:?}");
    }
}

/// crmne/ruby_llm#850.
#[test]
fn six_minutes_are_not_six_seconds() {
    let spent = [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "6m0s")];
    let patient = Call { dialect: Dialect::OpenAi, ..get() }.within(Duration::from_secs(600));
    is_told_at_once(&patient.play(&[answer(429, &spent), answer(200, &[])]), Stop::HintTooLong);
}

/// anthropics/anthropic-sdk-typescript#357.
#[test]
fn a_reset_of_anthropic_alone_is_a_hint() {
    let spent = [
        ("anthropic-ratelimit-requests-remaining", "0"),
        ("anthropic-ratelimit-requests-reset", "2026-01-01T00:00:05Z"),
    ];
    let call = Call { dialect: Dialect::Anthropic, ..get() };
    assert_waits(&call.play(&[answer(429, &spent), answer(200, &[])]), &[(5.0, 5.25)]);
}

/// stripe/stripe-ruby#431.
#[test]
fn a_key_in_use_after_a_timeout_is_waited_for() {
    let mut busy = answer(409, &[]);
    busy.said = Said::Means(Meaning::Busy);
    let course = keyed_post().play(&[broken(TIMEOUT), busy, answer(200, &[])]);
    assert_eq!((course.attempts(), course.ending), (3, Ending::Succeeded));
}

/// KarpelesLab/teamclaude#288.
#[test]
fn no_wait_is_invented() {
    let course = get().play(&[answer(429, &[("x-ratelimit-reset", "60")]), answer(200, &[])]);
    assert_waits(&course, &[(1.0, 1.0)]);
}

#[test]
fn every_report_of_the_table_is_named_by_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let page = read("docs/retries.md");
    let table = page.split("## Known reports").nth(1).unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ") && line.contains('#')).collect();
    assert!(rows.len() > 25);
    for row in rows {
        let named = row.split('`').filter(|word| word.ends_with(".rs"));
        let tests: String = named.chain(["src/retry/decide/tests/reports.rs"]).map(read).collect();
        let reports = row.split('|').nth(1).unwrap().split([' ', ',', ';']).filter(|word| word.contains('#'));
        reports.for_each(|report| assert!(tests.contains(report), "{report}"));
    }
}
