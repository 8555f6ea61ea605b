//! What an answer means: rules of a route, of a preset, of a dialect.

use super::refused::refuses;
use super::*;
use crate::config::schema;
use crate::config::words::Word;
use crate::config::{IdentityChanges, UpstreamMode, presets::PresetName, tree};
use crate::operation::admission::Repeat;
use crate::operation::meaning::Meaning;
use crate::retry::dialect::Dialect;

/// The description's lines for a setting, without their padding.
fn lines(config: &Config, key: &str) -> Vec<String> {
    let text = config.describe();
    let found = text.lines().filter(|line| line.trim_start().starts_with(key));
    found.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The least file with more lines for its upstream.
fn upstream(more: &str) -> Config {
    config(&LEAST.replace("url = \"http://127.0.0.1:9000\"", more))
}

#[test]
fn the_rules_of_all_layers_count_the_strongest_first() {
    let text = format!(
        "{}policy = \"p\"\nclassify = [{{ status = 409, as = \"busy\" }}]\n\
         [defaults]\nclassify = [{{ status = \"500-599\", as = \"unknown\" }}]\n\
         [policies.p]\nclassify = [{{ headers = {{ X-Ran = \"no*\", Via = true }}, as = \"not-executed\" }}]\n",
        LEAST.replace("[[routes]]", "preset = \"alb\"\ndialect = \"stripe\"\n[[routes]]")
    );
    assert_eq!(
        lines(&config(&text), "classify"),
        [
            "classify 409 is busy route",
            "classify via: true, x-ran: \"no*\" is not-executed policy p",
            "classify 503, server: \"awselb/2.0\" is not-executed preset alb",
            "classify 500-599 is unknown defaults",
            "classify 409, /error/code = \"idempotency_key_in_use\" or \"lock_timeout\" is busy dialect stripe",
        ]
    );
}

#[test]
fn every_form_of_a_condition_is_read() {
    let read = |condition: &str| {
        let rules = route(&format!("classify = [{{ {condition}, as = \"failed\" }}]")).classify.clone();
        rules.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(read("status = [409, \"500-504\"]"), "409 500-504");
    assert_eq!(read("json = { \"/a\" = 1.50, \"/b\" = false }"), "/a = 15e-1, /b = false");
    assert_eq!(read("json = { \"/a~1b\" = [\"x\", 2] }"), "/a~1b = \"x\" or 2e0");
    assert_eq!(read("json = { \"/a\" = { exists = true } }"), "/a = { exists = true }");
    assert_eq!(read("json = { \"/a\" = { contains = \"limit\" } }"), "/a = { contains = \"limit\" }");
}

#[test]
fn the_environment_changes_a_rule() {
    let text = format!("{LEAST}classify = [{{ status = 409, as = \"busy\" }}]");
    let environment = environment(&[("ONCEGATE__ROUTES__0__CLASSIFY__0__AS", "failed")]);
    let config = Config::parse(&text, "gateway.toml", &environment).unwrap();
    assert_eq!(lines(&config, "classify"), ["classify 409 is failed route"]);
}

const RULES: &[(&str, &str)] = &[
    (
        r#"classify = [{ status = 409 }]"#,
        r#"gateway.toml:8:13: routes.classify.as: missing; what such an answer means"#,
    ),
    (
        r#"classify = [{ as = "busy" }]"#,
        r#"gateway.toml:8:13: routes.classify.status: missing; at least one of `status`, `headers`, `json`"#,
    ),
    (
        r#"classify = [{ status = 409, as = "retry" }]"#,
        r#"gateway.toml:8:34: routes.classify.as = "retry": "busy", "throttled", "not-executed", "denied", "executed", "failed" or "unknown""#,
    ),
    (
        r#"classify = [{ status = 99, as = "busy" }]"#,
        r#"gateway.toml:8:24: routes.classify.status = 99: statuses from 200 to 999: 409, "500-599", or a list of both"#,
    ),
    (
        r#"classify = [{ status = "5xx", as = "busy" }]"#,
        r#"gateway.toml:8:24: routes.classify.status = "5xx": statuses from 200 to 999: 409, "500-599", or a list of both"#,
    ),
    (
        r#"classify = [{ status = ["504-500"], as = "busy" }]"#,
        r#"gateway.toml:8:24: routes.classify.status = [...]: statuses from 200 to 999: 409, "500-599", or a list of both"#,
    ),
    (
        r#"classify = [{ headers = { X-A = false }, as = "busy" }]"#,
        r#"gateway.toml:8:33: routes.classify.headers.X-A = false: its value, "...*" for how it begins, or true where it has to be there"#,
    ),
    (
        r#"classify = [{ headers = { Server = "*Python*" }, as = "busy" }]"#,
        r#"gateway.toml:8:36: routes.classify.headers.Server = "*Python*": a `*` at the end only: "...*" is how the value begins"#,
    ),
    (
        r#"classify = [{ headers = { Server = "a*b" }, as = "busy" }]"#,
        r#"gateway.toml:8:36: routes.classify.headers.Server = "a*b": a `*` at the end only: "...*" is how the value begins"#,
    ),
    (
        r#"classify = [{ headers = { Server = "*" }, as = "busy" }]"#,
        r#"gateway.toml:8:36: routes.classify.headers.Server = "*": true where it has to be there, whatever it says"#,
    ),
    (
        r#"classify = [{ json = { "/code" = ["a", "rate*"] }, as = "busy" }]"#,
        r#"gateway.toml:8:34: routes.classify.json./code = [...]: a whole value, without `*`; { contains = "text" } is a part of one"#,
    ),
    (
        r#"classify = [{ json = { "/code" = { contains = "*limit" } }, as = "busy" }]"#,
        r#"gateway.toml:8:34: routes.classify.json./code = {...}: a whole value, without `*`; { contains = "text" } is a part of one"#,
    ),
    (
        r#"classify = [{ headers = {}, as = "busy" }]"#,
        r#"gateway.toml:8:25: routes.classify.headers = {...}: a table of at least one condition"#,
    ),
    (
        r#"classify = [{ json = { "ok" = false }, as = "busy" }]"#,
        r#"gateway.toml:8:31: routes.classify.json.ok = false: a JSON pointer such as "/order/id", with "~1" for a "/" in a name and "~0" for "~""#,
    ),
    (
        r#"classify = [{ json = { "/ok" = [] }, as = "busy" }]"#,
        r#"gateway.toml:8:32: routes.classify.json./ok = [...]: a value, a list of values, { exists = true } or { contains = "text" }"#,
    ),
    (
        r#"classify = [{ json = { "/ok" = { exists = false } }, as = "busy" }]"#,
        r#"gateway.toml:8:32: routes.classify.json./ok = {...}: a value, a list of values, { exists = true } or { contains = "text" }"#,
    ),
    (
        r#"classify = [{ statuses = [409], as = "busy" }]"#,
        r#"gateway.toml:8:13: routes.classify.status: missing; at least one of `status`, `headers`, `json`
gateway.toml:8:15: routes.classify.statuses: unknown key `statuses`; did you mean `status`? [[routes.classify]] accepts status, headers, json, as"#,
    ),
    (r#"classify = "busy""#, r#"gateway.toml:8:12: routes.classify = "busy": tables, each under [[routes.classify]]"#),
    (
        r#"[upstreams.b]
url = "http://h"
dialect = "azure""#,
        r#"gateway.toml:10:11: upstreams.b.dialect = "azure": "generic", "openai", "anthropic", "github", "google" or "stripe""#,
    ),
    (
        r#"[upstreams.b]
preset = "paypal""#,
        r#"gateway.toml:9:10: upstreams.b.preset = "paypal": "stripe", "openai", "anthropic", "github", "slack", "envoy", "nginx", "alb" or "cloudflare""#,
    ),
    (
        r#"[upstreams.b]
preset = "envoy""#,
        r#"gateway.toml:8:1: upstreams.b.url: missing; this preset is of what stands before a service: say where that is (without a file: --upstream URL)"#,
    ),
    (
        r#"[upstreams.b]
preset = "envoy"
url = "h:80""#,
        r#"gateway.toml:10:7: upstreams.b.url = "h:80": a URL that begins with its scheme, such as "http://127.0.0.1:9000""#,
    ),
    (
        r#"[upstreams.b]
preset = ["stripe", "slack"]"#,
        r#"gateway.toml:8:1: upstreams.b.preset: two services; at most one of them can be here"#,
    ),
];

#[test]
fn rules_that_cannot_be() {
    refuses(RULES);
}

#[test]
fn a_preset_says_what_the_upstream_does_not() {
    let config = upstream("preset = [\"stripe\", \"cloudflare\"]");
    let found = &config.routes.0[0].upstream;
    assert_eq!((found.authority.as_str(), found.tls, found.dialect), ("api.stripe.com", true, Dialect::Stripe));
    assert_eq!(lines(&config, "repeat"), ["repeat with-key preset stripe"]);
    assert_eq!(
        lines(&config, "upstream."),
        [
            "upstream.url https://api.stripe.com preset stripe",
            "upstream.key_retention 24h preset stripe",
            "upstream.dialect stripe preset stripe",
        ]
    );
    assert_eq!(lines(&config, "classify").len(), 2);
}

#[test]
fn values_resolve_from_built_in_over_defaults_preset_upstream_and_policy_to_route() {
    let text = LEAST.replace("url = \"http://127.0.0.1:9000\"", "preset = \"stripe\"\nurl = \"http://127.0.0.1:1\"");
    let repeat = |text: &str| lines(&config(text), "repeat")[0].clone();
    assert_eq!(repeat(&format!("{text}[defaults]\nrepeat = \"unsafe\"")), "repeat with-key preset stripe");
    let own = text.replace("[[routes]]", "repeat = \"harmless\"\n[[routes]]");
    assert_eq!(repeat(&own), "repeat harmless upstream main");
    let policy = format!("{own}policy = \"p\"\n[policies.p]\nrepeat = \"unsafe\"");
    assert_eq!(repeat(&policy), "repeat unsafe policy p");
    assert_eq!(config(&text).routes.0[0].upstream.port, 1);
    assert_eq!(lines(&config(&text), "upstream.url"), ["upstream.url http://127.0.0.1:1 upstream main"]);
}

#[test]
fn a_preset_changes_no_key() {
    for name in PresetName::ALL {
        let word = name.word();
        let with = upstream(&format!("url = \"http://127.0.0.1:9000\"\npreset = \"{word}\""));
        let repeat = with.routes.0[0].repeat.map(Repeat::as_str).map(|word| format!("\nrepeat = \"{word}\""));
        let without = upstream(&format!("url = \"http://127.0.0.1:9000\"{}", repeat.unwrap_or_default()));
        assert_eq!(Config::changes_of_identity(&with, &without), IdentityChanges::default(), "{word}");
        assert_eq!(with.routes.0[0].rules, without.routes.0[0].rules, "{word}");
        assert_eq!(with.routes.0[0].destination, without.routes.0[0].destination, "{word}");
    }
    let names = ["name", "match", "headers", "header", "key", "payload", "scope", "callers"];
    assert!(names.iter().all(|name| !schema::PRESET.keys.contains(name)), "a part of key identity");
}

#[test]
fn no_preset_sends_a_bad_token_again() {
    let mut denials = 0;
    for name in PresetName::ALL {
        let config = upstream(&format!("url = \"http://127.0.0.1:9000\"\npreset = \"{}\"", name.word()));
        for rule in &config.routes.0[0].classify.0 {
            let text = rule.to_string();
            let is_of_tokens = text.contains("auth") || text.contains("token");
            assert_eq!(rule.meaning == Meaning::Denied, is_of_tokens, "{}: {text}", name.word());
            denials += usize::from(is_of_tokens);
        }
    }
    assert_eq!(denials, 1);
}

#[test]
fn everything_that_is_known_belongs_to_a_word() {
    let known = tree::parse(include_str!("../presets/known.toml")).unwrap();
    let words = |kind: &str| match &known.get(kind).unwrap().value {
        tree::Value::Table(table) => table.0.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    let mut presets: Vec<_> = PresetName::ALL.iter().map(|name| name.word()).collect();
    presets.sort_unstable();
    let mut found = words("presets");
    found.sort_unstable();
    assert_eq!(found, presets);
    let dialects: Vec<_> = Dialect::ALL.iter().map(|dialect| dialect.word().to_owned()).collect();
    assert!(words("dialects").iter().all(|word| dialects.contains(word)));
    for dialect in Dialect::ALL {
        upstream(&format!("url = \"http://h\"\ndialect = \"{}\"", dialect.word()));
    }
}

#[test]
fn without_a_file_a_preset_is_enough() {
    let mode = |preset: &str| UpstreamMode { preset: Some(preset.to_owned()), ..UpstreamMode::default() };
    let config = Config::for_upstream(mode("stripe, envoy"), &Environment::default()).unwrap();
    assert_eq!(config.routes.0[0].upstream.authority, "api.stripe.com");
    assert_eq!(lines(&config, "classify").len(), 3);
    let environment = environment(&[("ONCEGATE__PRESET", "slack"), ("ONCEGATE__UPSTREAM", "http://127.0.0.1:1")]);
    assert!(UpstreamMode::is_asked_by(&environment));
    let config = Config::for_upstream(UpstreamMode::default(), &environment).unwrap();
    assert_eq!((config.routes.0[0].upstream.port, lines(&config, "classify").len()), (1, 4));
    let refused = Config::for_upstream(mode("stripe,visa"), &Environment::default()).unwrap_err().to_string();
    assert!(refused.contains("--preset: upstreams.default.preset = \"visa\": \"stripe\""), "{refused}");
}
