use super::*;

const ONE: Whom = Whom::Holder([1; 8]);
const OTHER: Whom = Whom::Holder([2; 8]);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn ask(pauses: &mut Pauses, whom: Whom, now: Duration) -> Turn {
    pauses.ask(whom, now, || ms(100))
}

/// How many of `count` go at once.
fn free(pauses: &mut Pauses, count: usize, now: Duration) -> usize {
    (0..count).filter(|_| ask(pauses, ONE, now) == Turn::Free).count()
}

#[test]
fn a_hint_holds_everybody_of_the_credential_and_nobody_else() {
    let mut pauses = Pauses::default();
    assert_eq!(pauses.throttled(ONE, Some(secs(2)), secs(10)), Some(secs(12)));
    assert_eq!(ask(&mut pauses, ONE, secs(10)), Turn::Wait(secs(2)));
    assert_eq!(ask(&mut pauses, ONE, ms(11_900)), Turn::Wait(ms(100)));
    assert_eq!(ask(&mut pauses, OTHER, secs(10)), Turn::Free);
}

#[test]
fn the_longest_hint_counts_up_to_five_minutes() {
    let mut pauses = Pauses::default();
    assert_eq!(pauses.throttled(ONE, Some(secs(9)), secs(0)), Some(secs(9)));
    assert_eq!(pauses.throttled(ONE, Some(secs(2)), secs(1)), None, "an earlier end is no news");
    assert_eq!(ask(&mut pauses, ONE, secs(1)), Turn::Wait(secs(8)));
    assert_eq!(pauses.throttled(ONE, Some(Duration::MAX), secs(1)), Some(secs(301)));
}

#[test]
fn one_canary_goes_first_and_then_batches_that_double() {
    let mut pauses = Pauses::default();
    pauses.throttled(ONE, Some(secs(2)), secs(0));
    assert_eq!(ask(&mut pauses, ONE, secs(2)), Turn::Canary(1));
    assert!((0..200).all(|_| ask(&mut pauses, ONE, secs(2)) == Turn::Wait(SOON)));
    pauses.passed(ONE, 1, secs(3));
    for (step, batch) in [2, 4, 8, 16, 32, 64, 128, 256].into_iter().enumerate() {
        let now = secs(3) + ms(100) * u32::try_from(step).unwrap();
        assert_eq!(free(&mut pauses, 1000, now), batch);
        assert_eq!(ask(&mut pauses, ONE, now), Turn::Wait(ms(100)));
    }
    assert_eq!(free(&mut pauses, 1000, ms(3_800)), 1000);
    assert!(pauses.is_empty());
}

#[test]
fn a_canary_that_is_throttled_pauses_again_and_one_that_is_lost_is_followed() {
    let mut pauses = Pauses::default();
    pauses.throttled(ONE, Some(secs(2)), secs(0));
    assert_eq!(ask(&mut pauses, ONE, secs(2)), Turn::Canary(1));
    pauses.give_back(ONE, 1, secs(2));
    assert_eq!(ask(&mut pauses, ONE, secs(2)), Turn::Canary(2));
    assert_eq!(pauses.throttled(ONE, Some(secs(7)), secs(3)), Some(secs(10)));
    pauses.give_back(ONE, 2, secs(3));
    assert_eq!(ask(&mut pauses, ONE, secs(3)), Turn::Wait(secs(7)));
    assert_eq!(ask(&mut pauses, ONE, secs(10)), Turn::Canary(3));
    assert_eq!(pauses.throttled(ONE, None, secs(10)), Some(secs(11)), "one without a hint is enough here");
}

#[test]
fn a_ramp_on_which_nobody_comes_is_over() {
    let mut pauses = Pauses::default();
    pauses.throttled(ONE, Some(secs(2)), secs(0));
    assert_eq!(ask(&mut pauses, ONE, secs(2)), Turn::Canary(1));
    pauses.passed(ONE, 1, secs(2));
    assert_eq!(free(&mut pauses, 3, secs(60)), 3);
    assert!(pauses.is_empty());
}

#[test]
fn three_throttles_without_a_hint_pause_for_longer_each_time() {
    let mut pauses = Pauses::default();
    assert_eq!([0, 1, 11].map(|at| pauses.throttled(ONE, None, secs(at))), [None; 3], "not within ten seconds");
    assert_eq!(pauses.throttled(ONE, None, secs(12)), None);
    assert_eq!(pauses.throttled(ONE, Some(Duration::ZERO), secs(13)), Some(secs(14)));
    assert_eq!(pauses.throttled(ONE, None, secs(13)), None, "one that was under way");
    assert_eq!(ask(&mut pauses, ONE, secs(14)), Turn::Canary(1));
    assert_eq!(pauses.throttled(ONE, None, secs(14)), Some(secs(16)));
    assert_eq!(ask(&mut pauses, ONE, secs(16)), Turn::Canary(2));
    assert_eq!(pauses.throttled(ONE, None, secs(16)), Some(secs(20)));
}

#[test]
fn the_store_adds_lengthens_and_ends_pauses() {
    let mut pauses = Pauses::default();
    pauses.compare(&HashMap::from([(ONE, secs(9)), (OTHER, secs(5))]), secs(1), secs(1));
    assert_eq!(ask(&mut pauses, ONE, secs(1)), Turn::Wait(secs(8)));
    pauses.compare(&HashMap::from([(ONE, secs(20))]), secs(2), secs(2));
    assert_eq!(ask(&mut pauses, ONE, secs(2)), Turn::Wait(secs(18)));
    assert_eq!(free(&mut pauses, 1, secs(2)), 0);
    assert_eq!(pauses.ask(OTHER, secs(2), || ms(100)), Turn::Free, "ended elsewhere: a ramp");

    pauses.throttled(Whom::Everybody, Some(secs(60)), secs(3));
    pauses.compare(&HashMap::new(), secs(4), secs(4));
    assert_eq!(pauses.wait(Whom::Everybody, secs(4)), Some(secs(59)), "the store has not heard of it yet");
    pauses.stored(Whom::Everybody, secs(5));
    pauses.compare(&HashMap::new(), secs(4), secs(4));
    assert_eq!(pauses.wait(Whom::Everybody, secs(5)), Some(secs(58)), "it was asked before that");
    pauses.compare(&HashMap::new(), secs(6), secs(6));
    assert_eq!(pauses.wait(Whom::Everybody, secs(6)), None);
}

#[test]
fn a_person_shortens_a_pause_here_and_elsewhere() {
    let (mut pauses, mut elsewhere) = (Pauses::default(), Pauses::default());
    pauses.hold(ONE, secs(600), None);
    elsewhere.compare(&HashMap::from([(ONE, secs(600))]), secs(1), secs(1));
    pauses.set(ONE, secs(10));
    assert_eq!(pauses.wait(ONE, secs(2)), Some(secs(8)));
    elsewhere.compare(&HashMap::from([(ONE, ms(599_500))]), secs(2), secs(2));
    assert_eq!(elsewhere.wait(ONE, secs(2)), Some(secs(598)), "the clocks differ by so much");
    elsewhere.compare(&HashMap::from([(ONE, secs(10))]), secs(2), secs(2));
    assert_eq!(elsewhere.wait(ONE, secs(2)), Some(secs(8)));

    pauses.throttled(ONE, Some(secs(60)), secs(3));
    pauses.compare(&HashMap::from([(ONE, secs(10))]), secs(4), secs(4));
    assert_eq!(pauses.wait(ONE, secs(4)), Some(secs(59)), "the store has not heard of it yet");
}

#[test]
fn a_person_ends_a_pause_and_sees_what_there_is() {
    let mut pauses = Pauses::default();
    pauses.hold(ONE, secs(9), None);
    pauses.hold(Whom::Everybody, secs(5), None);
    let shown: Vec<_> = pauses.shown(secs(1)).iter().map(|shown| (shown.whom, shown.phase, shown.left)).collect();
    assert_eq!(shown, [(Whom::Everybody, "paused", secs(4)), (ONE, "paused", secs(8))]);
    pauses.clear(ONE);
    assert_eq!(ask(&mut pauses, ONE, secs(1)), Turn::Free);
}

#[test]
fn credentials_that_change_each_time_do_not_fill_the_memory() {
    let mut pauses = Pauses::default();
    for number in 0..5000_u64 {
        pauses.throttled(Whom::Holder(number.to_be_bytes()), Some(secs(60)), secs(0));
        pauses.throttled(Whom::Holder((number + 5000).to_be_bytes()), None, secs(0));
    }
    assert_eq!(pauses.paused.len(), CREDENTIALS);
    assert!(pauses.hold(Whom::Everybody, secs(60), None), "there is room for everybody's");
    assert!(pauses.strikes.len() <= CREDENTIALS);
}

#[test]
fn a_pause_whose_end_nobody_comes_for_is_forgotten() {
    let at_ends: [fn(&mut Pauses); 3] = [
        |_| (),
        |pauses| {
            ask(pauses, ONE, secs(2));
            pauses.give_back(ONE, 1, secs(2));
        },
        |pauses| {
            ask(pauses, ONE, secs(2));
            pauses.passed(ONE, 1, secs(2));
        },
    ];
    for at_end in at_ends {
        let mut pauses = Pauses::default();
        pauses.throttled(ONE, Some(secs(2)), secs(0));
        at_end(&mut pauses);
        pauses.forget(secs(61));
        assert!(pauses.is_paused(ONE));
        pauses.forget(secs(62));
        assert!(pauses.is_empty());
    }
    let mut pauses = Pauses::default();
    pauses.throttled(ONE, Some(secs(2)), secs(0));
    assert_eq!(ask(&mut pauses, ONE, secs(2)), Turn::Canary(1));
    pauses.forget(secs(300));
    assert_eq!(ask(&mut pauses, ONE, secs(300)), Turn::Wait(SOON), "its canary is on its way");
}

#[test]
fn a_canary_of_a_pause_that_is_over_changes_nothing_of_the_next_one() {
    let mut pauses = Pauses::default();
    pauses.throttled(ONE, Some(secs(2)), secs(0));
    assert_eq!(ask(&mut pauses, ONE, secs(2)), Turn::Canary(1));
    pauses.set(ONE, secs(4));
    assert_eq!(ask(&mut pauses, ONE, secs(4)), Turn::Canary(2));
    pauses.give_back(ONE, 1, secs(4));
    pauses.passed(ONE, 1, secs(4));
    assert_eq!(ask(&mut pauses, ONE, secs(4)), Turn::Wait(SOON));
}

#[test]
fn a_canary_that_was_let_go_ends_its_own_pause_when_it_is_answered_after_all() {
    for next_is_out in [false, true] {
        let mut pauses = Pauses::default();
        pauses.throttled(ONE, Some(secs(2)), secs(0));
        assert_eq!(ask(&mut pauses, ONE, secs(2)), Turn::Canary(1));
        pauses.give_back(ONE, 1, secs(3));
        if next_is_out {
            assert_eq!(ask(&mut pauses, ONE, secs(3)), Turn::Canary(2));
        }
        pauses.passed(ONE, 1, secs(4));
        assert_eq!(free(&mut pauses, 9, secs(4)), 2);
        pauses.passed(ONE, 2, secs(4));
        assert_eq!(free(&mut pauses, 9, secs(4)), 0, "no second ramp");
    }
}

#[test]
fn a_pause_that_ends_while_the_store_is_asked_was_ended_by_nobody() {
    let mut pauses = Pauses::default();
    pauses.compare(&HashMap::from([(ONE, secs(2))]), secs(1), secs(1));
    pauses.compare(&HashMap::new(), ms(1900), ms(1950));
    assert_eq!(ask(&mut pauses, ONE, secs(2)), Turn::Canary(1));
}
