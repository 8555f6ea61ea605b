//! A program that was built for tests dies or stands still where it is told to, and no other does.

use std::os::unix::process::ExitStatusExt;

use crate::support::PATIENCE;
use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::upstream::ScriptedUpstream;

const BUILT_FOR_TESTS: bool = cfg!(feature = "crash-points");
const SIGKILL: i32 = 9;

fn told_to(orders: &str, upstream: &ScriptedUpstream) -> Settings {
    Settings::of(upstream).environment("ONCEGATE_CRASH_POINTS", orders)
}

#[test]
fn a_program_that_is_told_to_dies_at_a_point() {
    let upstream = ScriptedUpstream::start();
    let mut gateway = told_to("AfterClaim:2:kill", &upstream).start(&Ground::memory());
    gateway.charge("k-1").send().expect(201);
    let second = gateway.charge("k-2").try_send(PATIENCE);
    if BUILT_FOR_TESTS {
        second.unwrap_err();
        assert_eq!((gateway.exit().signal(), upstream.seen().len()), (Some(SIGKILL), 1));
    } else {
        second.unwrap().expect(201);
    }
}

#[test]
fn a_program_that_is_told_to_stands_still_at_a_point() {
    let upstream = ScriptedUpstream::start();
    let gateway = told_to("BeforeSend:1:stop", &upstream).start(&Ground::memory());
    let call = gateway.charge("k-1").begin();
    if BUILT_FOR_TESTS {
        gateway.wait_until_stopped();
        assert_eq!(upstream.seen().len(), 0);
        gateway.thaw();
    }
    call.answer().expect(201);
}
