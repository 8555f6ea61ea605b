//! What may be written, and what it comes to.

use std::io::Write;
use std::time::Duration;

use http::Method;

use super::*;
use crate::config::{
    Callers, DuplicateWindow, Forward, InFlight, Ingredient, KeyMode, OnChangedPayload, Rates, StoreUrl, UpstreamMode,
    init_template,
};
use crate::operation::admission::Repeat;

#[test]
fn every_setting_of_the_contract_that_this_version_has() {
    let config = config(CONTRACT);
    let route = &config.routes.0[0];
    assert_eq!(config.server.buffers, 256 << 20);
    assert!(config.server.trusted_proxies[0].contains([10, 1, 2, 3].into()));
    assert_eq!(config.store.namespace, "checkout");
    assert_eq!(config.store.max_open.get(), 5000);
    assert_eq!(route.matches.host.as_deref(), Some("tools.internal"));
    assert_eq!(route.retry.max_attempts, 2, "the policy is stronger than the defaults");
    assert_eq!(route.upstream.base_path, "/v1");
    assert!(route.upstream.carries_credential());
    assert_eq!(route.rates.all.unwrap().burst.get(), 100);
    assert!(!route.payload.store_request);
}

#[test]
fn what_is_left_out_is_as_the_contract_says() {
    let config = config(LEAST);
    let route = &config.routes.0[0];
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.server.admin.to_string(), "127.0.0.1:8081");
    assert_eq!(config.server.health.to_string(), "127.0.0.1:8082");
    assert_eq!(config.server.max_header_bytes, 32 << 10);
    assert_eq!(config.server.max_concurrent_streams.get(), 100);
    assert_eq!(config.store.url, StoreUrl::File("data/oncegate.db".into()));
    assert_eq!(config.store.lease, Duration::from_secs(10));
    assert_eq!(config.store.max_open.get(), 100_000);
    assert!(matches!(config.callers, Callers::None));
    assert_eq!(route.receipts, Duration::from_secs(86_400));
    assert_eq!(route.tombstones, Duration::from_secs(30 * 86_400));
    assert_eq!((route.in_flight, route.in_flight_wait), (InFlight::Wait, Duration::from_secs(5)));
    assert_eq!(route.duplicate_window, DuplicateWindow::Unresolved);
    assert_eq!((route.key.mode, route.key.forward), (KeyMode::Stamp, Forward::Verbatim));
    assert_eq!(route.key.on_changed_payload, OnChangedPayload::ByRepeat);
    assert_eq!(route.key.from, [Ingredient::Session, Ingredient::Step, Ingredient::Payload]);
    assert_eq!(route.retry.max_attempts, 5);
    assert_eq!(route.retry.retry_after_max, Duration::from_secs(60));
    assert_eq!(route.rates, Rates::default());
}

#[test]
fn the_file_in_the_repository_is_accepted() {
    let text = include_str!("../../../gateway.toml");
    let config = config(text);
    assert!(text.lines().count() <= 60);
    assert_eq!(config.routes.0[0].name, "payments");
    assert_eq!(config.routes.0[0].repeat_for(&Method::POST), Repeat::WithKey);
}

#[test]
fn the_file_that_init_writes_is_accepted() {
    let config = config(&init_template("https://tools.internal/v1"));
    assert_eq!(config.routes.0[0].upstream.host, "tools.internal");
    assert!(errors(&init_template("not \"a\" url")).contains("upstreams.default.url = "));
}

#[test]
fn short_times_and_odd_sizes_are_no_errors() {
    let text = "[routes.retry]\nattempt_timeout = \"1700ms\"\n[store]\nlease = \"200ms\"\n";
    assert_eq!(route(text).retry.attempt_timeout, Duration::from_millis(1_700));
    assert_eq!(config(&format!("{LEAST}{text}")).store.lease, Duration::from_millis(200));
    assert_eq!(route("max_body = \"300B\"").max_body, 300);
}

#[test]
fn a_built_in_value_gives_way_to_a_stated_bound() {
    assert_eq!(route("retry.deadline = \"350ms\"").retry.attempt_timeout, Duration::from_millis(350));
    assert_eq!(route("retry.max_interval = \"5ms\"").retry.base_interval, Duration::from_millis(5));
    assert_eq!(route("tombstones = \"1h\"").receipts, Duration::from_secs(3_600));
}

#[test]
fn a_value_comes_from_its_strongest_layer() {
    let layered = |more: &str| {
        let text = format!(
            "{LEAST}{more}\n[store]\nreceipts = \"1h\"\n[defaults]\nreceipts = \"2h\"\nin_flight = \"reject\"\n\
             [policies.p]\nreceipts = \"3h\"\n"
        );
        config(&text).routes.0[0].clone()
    };
    assert_eq!(layered("").receipts, Duration::from_secs(2 * 3_600));
    assert_eq!(layered("policy = \"p\"").receipts, Duration::from_secs(3 * 3_600));
    assert_eq!(layered("policy = \"p\"\nreceipts = \"4h\"").receipts, Duration::from_secs(4 * 3_600));
    assert_eq!(layered("policy = \"p\"").in_flight, InFlight::Reject);
    assert_eq!(route("[store]\nreceipts = \"1h\"").receipts, Duration::from_secs(3_600));
}

#[test]
fn what_an_upstream_says_of_itself_is_stronger_than_defaults_and_weaker_than_a_route() {
    let declared = |more: &str| {
        let text = LEAST.replace("[[routes]]", "repeat = \"with-key\"\n[[routes]]");
        config(&format!("{text}{more}")).routes.0[0].repeat_for(&Method::POST)
    };
    assert_eq!(declared("[defaults]\nrepeat = \"unsafe\""), Repeat::WithKey);
    assert_eq!(declared("repeat = \"unsafe\""), Repeat::Unsafe);
    assert_eq!(route("[defaults]\nrepeat = \"harmless\"").repeat_for(&Method::POST), Repeat::Harmless);
}

#[test]
fn keys_are_made_where_the_upstream_sees_one_credential_for_all() {
    let forward = |headers: &str| {
        let text = LEAST.replace("[[routes]]", &format!("headers = {{ {headers} }}\n[[routes]]"));
        config(&text).routes.0[0].key.forward
    };
    assert_eq!(forward("X-Team = \"a\""), Forward::Verbatim);
    assert_eq!(forward("X-Team = { env = \"BOT_TOKEN\" }"), Forward::Made);
    assert_eq!(forward("Authorization = \"Bearer x\""), Forward::Made);
    assert_eq!(forward("X-Api-Key = \"x\""), Forward::Made);
}

#[test]
fn keys_are_made_where_the_gateway_keeps_the_callers_credentials_to_itself() {
    let callers = "[callers]\nscope = \"token\"\n[[callers.tokens]]\nname = \"bot\"\ntoken = \"t\"";
    assert_eq!(config(&format!("{LEAST}{callers}")).routes.0[0].key.forward, Forward::Made);
    assert_eq!(config(LEAST).routes.0[0].key.forward, Forward::Verbatim);
}

#[test]
fn a_string_may_come_from_a_file_without_its_last_newline() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"from-a-file\r\n").unwrap();
    let text = format!("{LEAST}[store]\nnamespace = {{ file = {:?} }}\n", file.path().to_str().unwrap());
    assert_eq!(config(&text).store.namespace, "from-a-file");
}

#[test]
fn pass_is_for_calls_that_may_run_once_more() {
    for lines in [
        "repeat = \"harmless\"",
        "repeat = \"with-key\"\nkey.mode = \"required\"",
        "key.mode = \"off\"",
        "match.methods = [\"PUT\", \"GET\"]",
    ] {
        let text = LEAST.replace("match = { path = \"/\" }", "match.path = \"/\"");
        config(&format!("{text}on_store_down = \"pass\"\n{lines}\n"));
    }
}

#[test]
fn localhost_may_be_a_service_beside_another_loopback_address() {
    for listen in ["127.0.0.2:8080", "[::1]:8081"] {
        let text = LEAST.replace("http://127.0.0.1:9000", "http://localhost:8080");
        config(&format!("{text}[server]\nlisten = \"{listen}\""));
    }
}

#[test]
fn off_loopback_the_scope_is_stated() {
    let listening = |callers: &str| {
        parse(&format!("{LEAST}[server]\nlisten = \"0.0.0.0:80\"\n{callers}")).map(|config| config.callers)
    };
    assert!(matches!(listening("[callers]\nscope = \"none\""), Ok(Callers::None)));
    assert!(matches!(listening("[callers]\nscope = \"credential\""), Ok(Callers::Credential)));
    let trusting = "trusted_proxies = [\"10.0.0.0/8\"]\n[callers]\nscope = \"header:X-Agent\"";
    assert!(matches!(listening(trusting), Ok(Callers::Header(_))));
    assert!(listening("").is_err());
    assert!(listening("[callers]\nscope = \"header:X-Agent\"").is_err());
}

#[test]
fn without_a_file_there_is_one_route_for_everything() {
    let mode = UpstreamMode {
        url: Some("http://127.0.0.1:9000".to_owned()),
        repeat: Some("with-key".to_owned()),
        store: Some("memory:".to_owned()),
        ..UpstreamMode::default()
    };
    let config = Config::for_upstream(mode, &Environment::default()).unwrap();
    let route = &config.routes.0[0];
    assert_eq!((route.name.as_str(), route.matches.path.as_str()), ("default", "/"));
    assert_eq!(route.repeat_for(&Method::POST), Repeat::WithKey);
    assert_eq!(config.store.url, StoreUrl::Memory);
}

#[test]
fn without_a_file_the_environment_gives_what_no_argument_does() {
    let environment = environment(&[
        ("ONCEGATE__UPSTREAM", "http://127.0.0.1:1"),
        ("ONCEGATE__REPEAT", "harmless"),
        ("ONCEGATE__SERVER__LISTEN", "127.0.0.1:7000"),
    ]);
    assert!(UpstreamMode::is_asked_by(&environment));
    let typed = UpstreamMode { url: Some("http://127.0.0.1:2".to_owned()), ..UpstreamMode::default() };
    let config = Config::for_upstream(typed, &environment).unwrap();
    assert_eq!(config.routes.0[0].upstream.port, 2, "an argument wins over its variable");
    assert_eq!(config.routes.0[0].upstream.repeat, Some(Repeat::Harmless));
    assert_eq!(config.server.listen.port(), 7000);
    assert_eq!(config.store.url, StoreUrl::File("data/oncegate.db".into()));
}

#[test]
fn a_fleet_needs_no_file_either() {
    let text = |text: &str| Some(text.to_owned());
    let mode = UpstreamMode { url: text("http://h"), store: text("redis://h"), ..Default::default() };
    let config = Config::for_upstream(mode, &Environment::default()).unwrap();
    assert_eq!((config.store.url.kind(), config.store.namespace.as_str()), ("redis", "oncegate"));
}
