//! The log, and whoever reads it.

use crate::support::eventually;
use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::upstream::ScriptedUpstream;

on! { [memory]
    a_log_that_nobody_reads_any_more_costs_no_call
}

on! { [file]
    stopped_is_said_when_all_is_free
}

fn stopped_is_said_when_all_is_free(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let first = Settings::of(&upstream).start(&ground);
    // What is written is moved into the file beside it, with pauses that nobody waits for at the end.
    for key in ["k-1", "k-2", "k-3"] {
        first.charge(key).send().expect(201);
    }
    first.terminate();
    eventually("the last word", || first.log().contains(r#""message":"stopped""#).then_some(()));
    assert!(Settings::of(&upstream).start(&ground).charge("k-1").send().expect(201).is_replay());
}

fn a_log_that_nobody_reads_any_more_costs_no_call(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).read_until_ready().start(&ground);
    for key in ["k-1", "k-2"] {
        assert!(!gateway.charge(key).send().expect(201).is_replay());
        assert!(gateway.charge(key).send().expect(201).is_replay());
    }
    let status = gateway.admin("/v1/status");
    assert!(status["lost_log_lines"].as_u64().unwrap() > 0, "{status}");
    assert!(status["warnings"].to_string().contains("lines of the log are lost"), "{status}");
}
