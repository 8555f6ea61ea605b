//! The first walks of `./test soak`, so that every run of the tests takes some.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "soak/transitions.rs"]
mod transitions;

#[test]
fn no_order_of_steps_breaks_what_always_holds() {
    (0..2_000).for_each(transitions::walk);
}
