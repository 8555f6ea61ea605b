//! Many callers at once before a Redis that takes everything and says nothing.

use std::time::{Duration, Instant};

use super::scene::{Scene, TIMEOUT, expect_away};
use crate::support::client::Pending;
use crate::support::toxic::Toxic;

const CALLERS: usize = 2000;
const ROUNDS: usize = 3;
/// What a busy machine may add for all of them together.
const MARGIN: Duration = Duration::from_secs(20);
/// Bytes by which the memory may grow from the first crowd to the last.
const GROWTH: u64 = 64 << 20;

#[test]
fn a_crowd_before_a_silent_store_is_answered_in_time_and_takes_no_more_memory_each_time() {
    let scene = Scene::new();
    scene.proxy.turn(Toxic::Silent);
    let sends = scene.upstream.seen().len();
    let mut memory = Vec::new();
    for round in 0..ROUNDS {
        let since = Instant::now();
        let crowd = (0..CALLERS).map(|number| scene.gateway.charge(&format!("{round}-{number}")).begin());
        let crowd: Vec<Pending> = crowd.collect();
        crowd.into_iter().for_each(|pending| expect_away(pending.answer()));
        let took = since.elapsed();
        memory.push(scene.gateway.resident_memory());
        println!("{CALLERS} callers answered within {took:?}, timeout {TIMEOUT:?}, memory {memory:?}");
        assert!(took < TIMEOUT + MARGIN, "{took:?}");
    }
    assert!(memory[ROUNDS - 1] < memory[0] + GROWTH, "{memory:?}");
    assert_eq!(scene.upstream.seen().len(), sends);
    scene.proxy.heal();
    assert_eq!(scene.runs("after").status, 201);
}
