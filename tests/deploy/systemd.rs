//! `deploy/oncegate.service`: the gateway as a service of a host.

use oncegate::config::Config;

use crate::image::image;
use crate::{assert_store_within, config, seconds, text};

pub(crate) const GATEWAY: &str = "deploy/systemd/gateway.toml";

fn assignments(file: &str) -> Vec<(String, String)> {
    let text = text(file);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn setting(name: &str) -> String {
    let unit = assignments("deploy/oncegate.service");
    let mut values = unit.into_iter().filter(|(setting, _)| setting == name).map(|(_, value)| value);
    values.next().unwrap_or_else(|| panic!("{name} is missing"))
}

fn gateway() -> Config {
    let variables = assignments("deploy/systemd/environment").into_iter().map(|(name, _)| name);
    config(GATEWAY, &text(GATEWAY), variables)
}

#[test]
fn the_service_runs_the_program_with_the_installed_configuration() {
    let image = image();
    assert_eq!(setting("ExecStart"), format!("{} serve --config {}", image.program, image.config));
    assert!(text(GATEWAY).starts_with(&format!("# {}", image.config)));
    assert!(text("deploy/systemd/environment").starts_with(&format!("# {}", setting("EnvironmentFile"))));
}

#[test]
fn the_service_has_time_to_drain() {
    assert_eq!(setting("KillSignal"), "SIGTERM");
    assert!(seconds(&setting("TimeoutStopSec")) > gateway().server.drain);
}

#[test]
fn the_service_writes_its_state_and_nothing_else() {
    assert_store_within(&gateway(), &format!("/var/lib/{}", setting("StateDirectory")));
    let hardening = [
        ("DynamicUser", "yes"),
        ("ProtectSystem", "strict"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
    ];
    for (name, value) in hardening {
        assert_eq!(setting(name), value, "{name}");
    }
}

/// From one start to the next the time of the store goes by the uptime, which is told by `/proc/sys`.
#[test]
fn the_service_sees_how_long_its_machine_is_up() {
    assert!(assignments("deploy/oncegate.service").iter().all(|(name, _)| name != "ProcSubset"));
}

#[test]
fn the_service_is_reached_from_its_host_only() {
    let server = gateway().server;
    assert!([server.listen, server.admin, server.health].iter().all(|address| address.ip().is_loopback()));
}
