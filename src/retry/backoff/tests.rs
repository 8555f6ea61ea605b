use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;

const BASE: Duration = Duration::from_millis(100);
const MAX: Duration = Duration::from_secs(1);
const AMPLE: Duration = Duration::from_secs(3600);
const DRAWS: u32 = 10_000;

fn backoff() -> Backoff {
    Backoff::new(BASE, MAX)
}

fn seeded(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Draws as shares of `max`, sorted.
fn shares(max: Duration, mut draw: impl FnMut() -> Duration) -> Vec<f64> {
    let mut shares: Vec<f64> = (0..DRAWS).map(|_| draw().as_secs_f64() / max.as_secs_f64()).collect();
    shares.sort_by(f64::total_cmp);
    shares
}

/// The greatest distance between the distribution of sorted draws and the uniform one (Kolmogorov-Smirnov).
fn distance_from_uniform(sorted: &[f64]) -> f64 {
    let count = f64::from(DRAWS);
    let steps = (0..DRAWS).map(f64::from);
    sorted
        .iter()
        .zip(steps)
        .map(|(draw, step)| (draw - step / count).max((step + 1.0) / count - draw))
        .fold(0.0, f64::max)
}

#[test]
fn odd_intervals_do_no_harm() {
    let never = Backoff::new(Duration::ZERO, MAX);
    assert_eq!(never.ceiling(u32::MAX), Duration::ZERO);
    assert_eq!(never.throttled().ceiling(0), Duration::from_secs(1));
    assert_eq!(Backoff::new(MAX, BASE).ceiling(0), BASE);
}

#[test]
fn the_ceiling_doubles_up_to_the_maximum() {
    let ceilings: Vec<u128> = (0..6).map(|n| backoff().ceiling(n).as_millis()).collect();
    assert_eq!(ceilings, [100, 200, 400, 800, 1000, 1000]);
}

#[test]
fn row_44_no_exponent_overflows() {
    for n in [31, 32, 63, 64, 65, 127, 128, 1024, u32::MAX] {
        assert_eq!(backoff().ceiling(n), MAX, "{n}");
    }
    let longest = Backoff::new(Duration::MAX, Duration::MAX);
    assert!(longest.ceiling(u32::MAX) > Duration::from_secs(500 * 365 * 86_400));
}

#[test]
fn row_03_waits_are_uniform_and_average_half_the_ceiling() {
    let critical = 1.628 / f64::from(DRAWS).sqrt();
    for (seed, n) in [(1, 0), (2, 1), (3, 3), (4, 40)] {
        let (mut rng, ceiling) = (seeded(seed), backoff().ceiling(n));
        let draws = shares(ceiling, || backoff().wait(n, AMPLE, &mut rng).unwrap());
        let distance = distance_from_uniform(&draws);
        assert!(distance < critical, "seed {seed}: {distance}");
        let mean = draws.iter().sum::<f64>() / f64::from(DRAWS);
        assert!((mean - 0.5).abs() < 0.01, "seed {seed}: {mean}");
        assert!(draws.first().unwrap() < &0.01 && draws.last().unwrap() > &0.99);
    }
}

#[test]
fn the_test_of_uniformity_knows_equal_jitter_from_full() {
    let mut rng = seeded(1);
    let equal = || BASE / 2 + backoff().wait(0, AMPLE, &mut rng).unwrap() / 2;
    assert!(distance_from_uniform(&shares(BASE, equal)) > 0.4);
}

#[test]
fn the_spread_above_a_hint_is_uniform() {
    let (mut rng, hint) = (seeded(5), Duration::from_secs(20));
    let wide = Backoff::new(BASE, Duration::from_secs(60));
    let spread = Duration::from_secs(2);
    let draws = shares(spread, || wide.wait_for(hint, 9, AMPLE, &mut rng).unwrap() - hint);
    assert!(distance_from_uniform(&draws) < 1.628 / f64::from(DRAWS).sqrt());
}

#[test]
fn a_throttle_without_a_hint_never_waits_less_than_a_second() {
    let mut rng = seeded(6);
    for n in [0, 1, 5, u32::MAX] {
        let waits: Vec<Duration> = (0..200).map(|_| backoff().throttled().wait(n, AMPLE, &mut rng).unwrap()).collect();
        assert!(waits.iter().all(|wait| *wait == Duration::from_secs(1)), "{n}");
    }
    let slow = Backoff::new(Duration::from_millis(250), Duration::from_secs(20)).throttled();
    assert_eq!(slow.ceiling(3), Duration::from_secs(8));
    assert_eq!(slow.wait(3, Duration::from_millis(999), &mut rng), None);
    assert_eq!(slow.wait(3, Duration::from_secs(1), &mut rng), Some(Duration::from_secs(1)));
}

#[test]
fn a_hint_that_does_not_fit_is_no_wait() {
    let mut rng = seeded(7);
    let second = Duration::from_secs(1);
    assert_eq!(backoff().wait_for(second, 0, Duration::from_millis(999), &mut rng), None);
    assert_eq!(backoff().wait_for(second, 0, second, &mut rng), Some(second));
    assert_eq!(backoff().wait_for(Duration::MAX, 0, AMPLE, &mut rng), None);
    assert!(backoff().wait_for(Duration::MAX, 0, Duration::MAX, &mut rng) == Some(Duration::MAX));
}

prop_compose! {
    fn any_backoff()(base: u64, max: u64) -> Backoff {
        Backoff::new(Duration::from_nanos(base), Duration::from_nanos(max))
    }
}

prop_compose! {
    fn any_duration()(seconds: u64, nanos in 0..1_000_000_000_u32) -> Duration {
        Duration::new(seconds, nanos)
    }
}

fn any_length() -> impl Strategy<Value = Duration> {
    prop_oneof![
        any_duration(),
        (0..120_000_u64).prop_map(Duration::from_millis),
        Just(Duration::ZERO),
        Just(Duration::MAX)
    ]
}

proptest! {
    #[test]
    fn the_ceiling_is_the_formula(base in 1..1_000_000_u64, max in 1_000_000..u64::MAX, n in 0..100_u32) {
        let expected = u128::from(base).saturating_mul(1 << n).min(u128::from(max));
        let backoff = Backoff::new(Duration::from_nanos(base), Duration::from_nanos(max));
        prop_assert_eq!(backoff.ceiling(n).as_nanos(), expected);
    }

    #[test]
    fn the_ceiling_never_falls(backoff in any_backoff(), n: u32) {
        prop_assert!(backoff.ceiling(n) <= backoff.ceiling(n.saturating_add(1)));
    }

    #[test]
    fn waits_stay_within_their_bounds(backoff in any_backoff(), n: u32, room in any_length(), seed: u64) {
        let wait = backoff.wait(n, room, &mut seeded(seed)).unwrap();
        prop_assert!(wait <= backoff.ceiling(n) && wait <= room);
        match backoff.throttled().wait(n, room, &mut seeded(seed)) {
            Some(wait) => prop_assert!(wait >= THROTTLE_FLOOR && wait <= room),
            None => prop_assert!(room < THROTTLE_FLOOR),
        }
    }

    #[test]
    fn a_hint_is_a_lower_bound(backoff in any_backoff(), n: u32, hint in any_length(), room in any_length(), seed: u64) {
        let most = backoff.ceiling(n).min(Duration::from_millis(250).max(hint / 10)).min(Duration::from_secs(5));
        match backoff.wait_for(hint, n, room, &mut seeded(seed)) {
            Some(wait) => prop_assert!(wait >= hint && wait - hint <= most && wait <= room),
            None => prop_assert!(room < hint),
        }
    }
}
