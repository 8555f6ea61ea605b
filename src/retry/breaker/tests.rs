use crate::operation::outcome::{Outcome, classify};

use super::*;

const BUILT_IN: BreakerPolicy =
    BreakerPolicy { consecutive_failures: 5, failure_rate: None, open_for: Duration::from_secs(5) };
/// Half of at least twenty within half a minute.
const BY_RATE: BreakerPolicy = BreakerPolicy {
    consecutive_failures: 0,
    failure_rate: Some(FailureRate { percent: 50, minimum_calls: 20, window: Duration::from_secs(30) }),
    open_for: Duration::from_secs(5),
};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// An attempt from its begin to its end, if it is let through; without a spread.
fn attempt(breaker: &mut Breaker, health: Health, now: Duration) -> Result<bool, Duration> {
    let ticket = breaker.admit(true, now)?;
    Ok(breaker.report(ticket, health, now, || 20))
}

fn opened(policy: BreakerPolicy) -> Breaker {
    let mut breaker = Breaker::new(policy);
    assert!((0..5).all(|_| attempt(&mut breaker, Health::Failed, secs(0)).is_ok()));
    assert_eq!(breaker.shown(secs(0)), ("open", secs(5)));
    breaker
}

#[test]
fn failures_in_a_row_open_it_and_a_success_in_between_does_not() {
    let mut breaker = Breaker::new(BUILT_IN);
    for health in [Health::Failed, Health::Failed, Health::Failed, Health::Failed, Health::Well, Health::Failed] {
        assert_eq!(attempt(&mut breaker, health, secs(0)), Ok(false));
    }
    for health in [Health::Failed, Health::Unclear, Health::Failed, Health::Unclear, Health::Failed] {
        assert_eq!(attempt(&mut breaker, health, secs(1)), Ok(false), "what says nothing neither counts nor resets");
    }
    assert_eq!(attempt(&mut breaker, Health::Failed, secs(1)), Ok(true));
    assert_eq!(attempt(&mut breaker, Health::Well, secs(2)), Err(secs(4)));
    assert!(breaker.look(true, secs(5)).is_err() && breaker.look(true, secs(6)).is_ok());
}

#[test]
fn a_rate_counts_only_over_enough_calls_of_its_window() {
    let mut breaker = Breaker::new(BY_RATE);
    for round in 0..9 {
        assert_eq!(attempt(&mut breaker, Health::Failed, secs(round)), Ok(false));
        assert_eq!(attempt(&mut breaker, Health::Well, secs(round)), Ok(false));
    }
    assert_eq!(attempt(&mut breaker, Health::Well, secs(9)), Ok(false));
    assert_eq!(attempt(&mut breaker, Health::Failed, secs(9)), Ok(true), "ten of twenty");

    let mut breaker = Breaker::new(BY_RATE);
    assert!((0..19).all(|_| attempt(&mut breaker, Health::Failed, secs(0)).is_ok()));
    assert_eq!(attempt(&mut breaker, Health::Failed, secs(31)), Ok(false), "the others are forgotten");
}

#[test]
fn one_probe_at_a_time_and_two_close_it() {
    let mut breaker = opened(BUILT_IN);
    let first = breaker.admit(true, secs(5)).unwrap();
    assert!(first.is_probe);
    assert!((0..50).all(|_| breaker.admit(true, secs(5)) == Err(SOON)));
    breaker.report(first, Health::Well, secs(6), || 20);
    assert_eq!(breaker.shown(secs(6)).0, "half-open");
    let second = breaker.admit(true, secs(6)).unwrap();
    assert_eq!(breaker.admit(true, secs(6)), Err(SOON));
    breaker.report(second, Health::Well, secs(7), || 20);
    assert_eq!(breaker.shown(secs(7)).0, "closed");
    assert!((0..50).all(|_| breaker.admit(false, secs(7)).is_ok()));
}

#[test]
fn a_probe_that_is_given_up_or_says_nothing_leaves_its_place_to_the_next() {
    let mut breaker = opened(BUILT_IN);
    let probe = breaker.admit(true, secs(5)).unwrap();
    breaker.give_back(probe);
    let probe = breaker.admit(true, secs(5)).unwrap();
    breaker.report(probe, Health::Unclear, secs(6), || 20);
    assert!(breaker.admit(true, secs(6)).is_ok());
}

#[test]
fn a_probe_that_is_let_go_counts_and_frees_no_place_but_its_own() {
    let let_go = |breaker: &mut Breaker, at| {
        let ticket = breaker.admit(true, at).unwrap();
        breaker.give_back(ticket);
        Ticket { is_probe: false, ..ticket }
    };
    let mut breaker = opened(BUILT_IN);
    let slow = [let_go(&mut breaker, secs(5)), let_go(&mut breaker, secs(6)), let_go(&mut breaker, secs(6))];
    let probe = breaker.admit(true, secs(7)).unwrap();
    for (slow, health) in slow.into_iter().zip([Health::Unclear, Health::Well]) {
        breaker.report(slow, health, secs(8), || 20);
        breaker.give_back(slow);
        assert_eq!(breaker.admit(true, secs(8)), Err(SOON), "the probe is still under way");
    }
    breaker.report(slow[2], Health::Well, secs(9), || 20);
    assert_eq!(breaker.shown(secs(9)).0, "closed");
    assert!(!breaker.report(probe, Health::Failed, secs(9), || 20));

    let mut breaker = opened(BUILT_IN);
    let slow = let_go(&mut breaker, secs(5));
    assert!(breaker.report(slow, Health::Failed, secs(9), || 20));
}

#[test]
fn what_must_not_run_twice_is_a_probe_only_where_nothing_else_comes() {
    let mut breaker = Breaker::new(BUILT_IN);
    let tickets: Vec<_> = (0..5).map(|_| breaker.admit(false, secs(0)).unwrap()).collect();
    for ticket in tickets {
        breaker.report(ticket, Health::Failed, secs(0), || 20);
    }
    for at in 0..65 {
        assert_eq!(breaker.admit(false, secs(at)), Err(secs(65 - at)), "what is left until it may");
    }
    let probe = breaker.admit(false, secs(65)).unwrap();
    assert_eq!((probe.is_probe, breaker.admit(false, secs(65))), (true, Err(SOON)));
    breaker.report(probe, Health::Well, secs(66), || 20);
    assert!(breaker.admit(false, secs(66)).unwrap().is_probe);
}

#[test]
fn where_harmless_calls_come_the_others_are_told_to_come_soon_after_them() {
    let mut breaker = opened(BUILT_IN);
    assert_eq!(breaker.admit(false, secs(1)), Err(secs(4)));
    assert_eq!(breaker.admit(true, secs(4)), Err(secs(1)));
    assert_eq!(breaker.admit(false, secs(5)), Err(SOON));
    for (at, wait) in [(6, 2), (12, 8), (30, 26), (60, 5), (64, 1)] {
        assert_eq!(breaker.admit(false, secs(at)), Err(secs(wait)), "at {at}");
    }
}

#[test]
fn where_no_failure_reached_the_upstream_any_call_may_be_the_probe() {
    let refused = |breaker: &mut Breaker, healths: &[Health]| {
        let tickets: Vec<_> = healths.iter().map(|_| breaker.admit(false, secs(0)).unwrap()).collect();
        for (ticket, health) in tickets.into_iter().zip(healths) {
            breaker.report(ticket, *health, secs(0), || 20);
        }
        (breaker.look(false, secs(1)), breaker.look(false, secs(5)))
    };
    let (all, one_did) = (Health::Unreached, Health::Failed);
    let at_once = (Err(secs(4)), Ok(()));
    let late = (Err(secs(64)), Err(secs(60)));
    assert_eq!(refused(&mut Breaker::new(BUILT_IN), &[all; 5]), at_once);
    assert_eq!(refused(&mut Breaker::new(BUILT_IN), &[all, all, one_did, all, all]), late);
    assert_eq!(refused(&mut Breaker::new(BUILT_IN), &[one_did, Health::Well, all, all, all, all, all]), at_once);
    assert_eq!(refused(&mut Breaker::new(BY_RATE), &[all; 20]), at_once);
    let mut mixed = [all; 20];
    mixed[0] = one_did;
    assert_eq!(refused(&mut Breaker::new(BY_RATE), &mixed), late);

    let mut breaker = Breaker::new(BUILT_IN);
    assert_eq!(refused(&mut breaker, &[all; 5]), at_once);
    let probe = breaker.admit(false, secs(5)).unwrap();
    assert_eq!(breaker.admit(false, secs(5)), Err(SOON), "one at a time");
    assert!(breaker.report(probe, one_did, secs(6), || 20), "this one reached it");
    assert_eq!(breaker.look(false, secs(16)), Err(secs(60)));
}

#[test]
fn late_answers_from_before_change_nothing() {
    let mut breaker = Breaker::new(BUILT_IN);
    let late: Vec<_> = (0..20).map(|_| breaker.admit(true, secs(0)).unwrap()).collect();
    assert!((0..5).all(|_| attempt(&mut breaker, Health::Failed, secs(0)).is_ok()));
    for (ticket, health) in late.iter().zip([Health::Well, Health::Failed].into_iter().cycle()) {
        assert!(!breaker.report(*ticket, health, secs(1), || 20));
    }
    assert_eq!(breaker.shown(secs(1)), ("open", secs(4)));

    let probe = breaker.admit(true, secs(5)).unwrap();
    breaker.report(late[0], Health::Failed, secs(5), || 20);
    breaker.give_back(late[1]);
    assert_eq!(breaker.admit(true, secs(5)), Err(SOON), "the probe is still under way");
    assert!(breaker.report(probe, Health::Failed, secs(5), || 20));
}

#[test]
fn each_failed_probe_doubles_the_time_up_to_a_minute_and_a_close_forgets_it() {
    let mut breaker = opened(BUILT_IN);
    let mut now = secs(0);
    for seconds in [5, 10, 20, 40, 60, 60] {
        assert_eq!(breaker.shown(now), ("open", secs(seconds)));
        now += secs(seconds);
        assert_eq!(attempt(&mut breaker, Health::Failed, now), Ok(true));
    }
    now += secs(60);
    assert!((0..2).all(|_| attempt(&mut breaker, Health::Well, now).is_ok()));
    assert!((0..5).all(|_| attempt(&mut breaker, Health::Failed, now).is_ok()));
    assert_eq!(breaker.shown(now), ("open", secs(5)));
}

#[test]
fn gateways_that_opened_together_do_not_come_back_together() {
    for (spread, length) in [(0, 4), (20, 5), (40, 6), (u32::MAX, 6)] {
        let mut breaker = Breaker::new(BreakerPolicy { consecutive_failures: 1, ..BUILT_IN });
        let ticket = breaker.admit(true, secs(0)).unwrap();
        assert!(breaker.report(ticket, Health::Failed, secs(0), || spread));
        assert_eq!(breaker.shown(secs(0)), ("open", secs(length)));
    }
    let mut long = Breaker::new(BreakerPolicy { consecutive_failures: 1, open_for: secs(600), failure_rate: None });
    assert_eq!(attempt(&mut long, Health::Failed, secs(0)), Ok(true));
    assert_eq!(long.shown(secs(0)), ("open", secs(600)));
}

#[test]
fn only_what_blames_the_upstream_is_a_failure() {
    let of = |outcome| health(&classify(&outcome), true);
    let by_rule = |meaning| health(&Fact::Ruled { status: 503, meaning, cut: false, by_rule: true }, true);
    assert_eq!((by_rule(Meaning::Unknown), by_rule(Meaning::NotExecuted)), (Health::Failed, Health::Unreached));
    for status in [500, 502, 503, 504, 511, 520, 521, 522, 523, 524, 599] {
        assert_eq!(of(Outcome::Answer { status }), Health::Failed, "{status}");
    }
    for status in [200, 302, 400, 401, 404, 408, 409, 421, 425, 499, 501, 505] {
        assert_eq!(of(Outcome::Answer { status }), Health::Well, "{status}");
    }
    for status in [429, 529] {
        assert_eq!(of(Outcome::Answer { status }), Health::Unclear, "{status}");
    }
    let unsent = |cause, reused_connection| of(Outcome::NotSent { cause, reused_connection });
    assert_eq!(unsent(Cause::Connect, false), Health::Unreached);
    assert_eq!((unsent(Cause::Connect, true), unsent(Cause::Deadline, false)), (Health::Unclear, Health::Unclear));
    assert_eq!((of(Outcome::TurnedAway), of(Outcome::BadHead)), (Health::Unclear, Health::Failed));
    let timeout = classify(&Outcome::Silent(Silence::Timeout));
    assert_eq!((health(&timeout, true), health(&timeout, false)), (Health::Failed, Health::Unclear));
}
