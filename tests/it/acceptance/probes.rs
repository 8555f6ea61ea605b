//! Whoever asks whether a gateway is there.

use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::upstream::ScriptedUpstream;

on! { [memory]
    the_program_asks_its_own_gateway
}

fn the_program_asks_its_own_gateway(ground: Ground) {
    let mut gateway = Settings::of(&ScriptedUpstream::start()).start(&ground);
    let (is_ready, said) = gateway.command("healthcheck");
    assert!(is_ready && said.contains(r#""ready":true"#), "{said}");
    gateway.kill();
    let (is_ready, said) = gateway.command("healthcheck");
    assert!(!is_ready && said.contains("server.health"), "{said}");
}
