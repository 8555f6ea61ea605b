//! The engine on a paused clock: an upstream in memory that plays a script, a store that can be made to fail, and
//! gateways that share both. A test says what the caller was told, what the upstream saw and when, and what is stored.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "what the rig cannot do is the end of a test")]
#![expect(unreachable_pub, reason = "nobody imports from a test binary")]

mod alerts;
mod bounds;
mod dead_letters;
mod earlier;
mod failing_store;
mod flights;
mod gates;
mod grpc;
mod later;
mod leases;
mod lines;
mod live;
mod passing;
mod pauses;
mod random;
mod recovery;
mod rig;
mod ruled;
mod waits;

/// The first ones of `./test soak`.
#[test]
fn no_story_breaks_what_always_holds() {
    (0..400).for_each(random::story);
}
