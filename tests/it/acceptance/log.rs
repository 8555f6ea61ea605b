//! The log, and whoever reads it.

use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::upstream::ScriptedUpstream;

on! { [memory]
    a_log_that_nobody_reads_any_more_costs_no_call
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
