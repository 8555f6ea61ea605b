//! `deploy/compose.yaml`: one agent with its gateway, and a fleet on Redis.

use clap::Parser;
use oncegate::command::Arguments;
use oncegate::config::{Callers, Config, StoreUrl};
use serde_json::Value;

use crate::image::{holds, image};
use crate::{IMAGE, assert_store_within, at, called, config, list, seconds, string, text, yaml};

pub(crate) const SIDECAR: &str = "deploy/compose/gateway.toml";
pub(crate) const FLEET: &str = "deploy/compose/fleet/gateway.toml";

const GATEWAYS: [(&str, &str); 2] = [("oncegate", SIDECAR), ("oncegate-fleet", FLEET)];

fn file() -> Value {
    let [file] = yaml("deploy/compose.yaml").try_into().unwrap();
    file
}

fn gateway(file: &Value, service: &str, toml: &str) -> Config {
    let variables = at(file, &format!("/services/{service}/environment")).as_object().unwrap();
    config(toml, &text(toml), variables.keys().cloned())
}

fn mounts<'v>(file: &'v Value, service: &str) -> Vec<(&'v str, &'v str)> {
    let volumes = list(file, &format!("/services/{service}/volumes"));
    volumes.iter().map(|volume| volume.as_str().unwrap().split_once(':').unwrap()).collect()
}

#[test]
fn gateways_are_reachable_from_other_containers_and_ask_who_calls() {
    let file = file();
    for (service, toml) in GATEWAYS {
        let config = gateway(&file, service, toml);
        let image = image();
        assert!(config.server.listen.ip().is_unspecified(), "{service}");
        assert!(config.server.admin.ip().is_loopback(), "{service}");
        assert!(matches!(config.callers, Callers::Token(_)), "{service}");
        assert_eq!(image.ports, [config.server.listen.port(), config.server.health.port()], "{service}");
    }
}

#[test]
fn gateways_run_the_image_without_privileges() {
    let file = file();
    for (service, _) in GATEWAYS {
        let gateway = at(&file, &format!("/services/{service}"));
        assert_eq!(at(gateway, "/image"), IMAGE);
        assert_eq!(at(gateway, "/build/dockerfile"), "deploy/Containerfile");
        assert_eq!(at(gateway, "/read_only"), true);
        assert!(holds(list(gateway, "/cap_drop"), "ALL"));
        assert!(holds(list(gateway, "/security_opt"), "no-new-privileges:true"));
        assert!(gateway.get("user").is_none(), "the image's own user owns the volume");
    }
}

#[test]
fn gateways_find_their_configuration_and_have_time_to_drain() {
    let file = file();
    for (service, toml) in GATEWAYS {
        let source = format!("./{}", toml.strip_prefix("deploy/").unwrap());
        let target = format!("{}:ro", image().config);
        assert!(mounts(&file, service).contains(&(source.as_str(), target.as_str())), "{service}");
        let grace = seconds(string(&file, &format!("/services/{service}/stop_grace_period")));
        assert!(grace > gateway(&file, service, toml).server.drain, "{service}");
    }
}

#[test]
fn the_agent_begins_when_its_gateway_is_ready() {
    let file = file();
    assert_eq!(at(&file, "/services/agent/depends_on/oncegate/condition"), "service_healthy");
    for (service, _) in GATEWAYS {
        let image = image();
        let asked = list(&file, &format!("/services/{service}/healthcheck/test"));
        let asked: Vec<_> = asked.iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(asked, ["CMD", &image.program, "healthcheck", "--config", &image.config]);
        assert!(Arguments::try_parse_from(&asked[1..]).is_ok());
    }
}

#[test]
fn the_sidecar_keeps_its_store_in_a_volume() {
    let file = file();
    let image = image();
    assert_store_within(&gateway(&file, "oncegate", SIDECAR), &image.volume);
    let mounts = mounts(&file, "oncegate");
    let (volume, _) = mounts.iter().find(|(_, target)| *target == image.volume).unwrap();
    assert!(at(&file, "/volumes").get(volume).is_some(), "{volume} is not declared");
}

#[test]
fn the_agent_calls_the_gateway_and_shows_its_token() {
    let file = file();
    let config = gateway(&file, "oncegate", SIDECAR);
    let agent = at(&file, "/services/agent/environment");
    assert_eq!(called(string(agent, "/PAYMENTS_URL"), &config), ("oncegate", config.server.listen.port()));
    assert_eq!(at(agent, "/AGENT_TOKEN"), at(&file, "/services/oncegate/environment/AGENT_TOKEN"));
}

#[test]
fn the_fleet_shares_a_redis_that_forgets_nothing() {
    let file = file();
    let StoreUrl::Redis(url) = gateway(&file, "oncegate-fleet", FLEET).store.url else { panic!("no Redis") };
    assert!(url.to_string().starts_with("redis://redis:6379"));
    let redis = at(&file, "/services/redis");
    for promise in ["--appendonly yes", "--appendfsync always", "--maxmemory-policy noeviction"] {
        assert!(string(redis, "/command").contains(promise), "{promise}");
    }
    assert_eq!(at(redis, "/profiles"), at(&file, "/services/oncegate-fleet/profiles"));
    let (store, fleet) = (list(redis, "/networks"), list(&file, "/services/oncegate-fleet/networks"));
    assert!(store.iter().all(|network| fleet.contains(network)), "the fleet cannot reach its store");
    assert_eq!(mounts(&file, "redis"), [("redis-data", "/data")]);
}
