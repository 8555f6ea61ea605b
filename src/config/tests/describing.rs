//! What `oncegate check` says about a file that is accepted.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// The line of a setting in the description, without its padding.
pub(super) fn line(config: &Config, key: &str) -> String {
    let text = config.describe();
    let found = text.lines().find(|line| line.trim_start().starts_with(key)).unwrap_or_default();
    found.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_value_has_an_origin() {
    let text = CONTRACT.replace("receipts = \"24h\"\ntombstones = \"30d\"\nmax_body", "max_body");
    let environment: Environment =
        [("BOT_TOKEN", "b0t"), ("PAYMENTS_TOKEN", "Bearer s3cret"), ("ONCEGATE__ROUTES__0__RETRY__DEADLINE", "60s")]
            .into_iter()
            .collect();
    let config = Config::parse(&text, "gateway.toml", &environment).unwrap();
    assert_eq!(line(&config, "receipts"), "receipts 24h store");
    let file = std::path::absolute("data/oncegate.db").unwrap().display().to_string();
    assert_eq!(
        line(&config, "store "),
        format!("store file:{file}, max_open 5000, lease 10s, timeout 1s, durability fsync")
    );
    assert_eq!(line(&config, "retry.max_attempts"), "retry.max_attempts 2 policy careful");
    assert_eq!(line(&config, "retry.base_interval"), "retry.base_interval 250ms route");
    assert_eq!(line(&config, "retry.deadline"), "retry.deadline 60s environment ONCEGATE__ROUTES__0__RETRY__DEADLINE");
    assert_eq!(line(&config, "key.from"), "key.from [session, step, payload] route");
}

#[test]
fn the_bounds_on_connections_are_shown() {
    let config = config(&format!("{LEAST}[server]\nmax_connections = 7\nmax_concurrent_streams = 3\n"));
    assert_eq!(line(&config, "bounds"), "bounds 7 connections, in HTTP/2 3 streams on each");
}

#[test]
fn the_protocol_of_an_upstream_is_shown_where_it_is_stated() {
    let to = |stated: &str| line(&config(&LEAST.replace("[[routes]]", &format!("{stated}\n[[routes]]"))), "to ");
    assert_eq!(to(""), "to http://127.0.0.1:9000 (upstream main)");
    assert_eq!(to("protocol = \"h2\""), "to http://127.0.0.1:9000 (upstream main, protocol h2)");
}

#[test]
fn origins_of_the_weaker_layers() {
    let text = LEAST.replace("[[routes]]", "repeat = \"with-key\"\n[[routes]]");
    let config = config(&format!("{text}[defaults]\nin_flight = \"reject\"\n"));
    assert_eq!(line(&config, "repeat"), "repeat with-key upstream main");
    assert_eq!(line(&config, "in_flight "), "in_flight reject defaults");
    assert_eq!(line(&config, "effect"), "effect by method built-in");
    assert_eq!(line(&config, "limit.rate"), "");
}

#[test]
fn no_secret_is_described() {
    let store = "redis+sentinel://me:p4ss@127.0.0.1:6379/m\"\nsentinel_password = \"s3nt";
    let text = format!("{CONTRACT}\n").replace("\"fsync\"", "\"single\"");
    let config = config(&text.replace("file:data/oncegate.db", store));
    let said = format!("{}\n{config:?}", config.describe());
    for secret in ["s3cret", "b0t", "the-next-one", "p4ss", "s3nt"] {
        assert!(!said.contains(secret), "{secret} in {said}");
    }
    assert!(config.describe().contains("redis+sentinel://***@127.0.0.1:6379/m"));
}

#[test]
fn what_the_store_survives_is_shown() {
    let store = |more: &str| line(&config(&format!("{LEAST}[store]\n{more}")), "store");
    assert!(store("").ends_with("max_open 100000, lease 10s, timeout 1s, durability fsync"), "what is built in");
    assert!(store("durability = \"os\"").ends_with(", durability os"));
    let redis = store("url = \"redis://h\"\nnamespace = \"n\"");
    assert!(redis.contains("redis://h:6379, namespace n, ") && redis.ends_with(", durability single"), "{redis}");
    let replicas = store("url = \"redis://h\"\nnamespace = \"n\"\ndurability = \"replicas\"\nreplicas = 2");
    assert!(replicas.ends_with(", durability replicas (2)"), "{replicas}");
    assert_eq!(store("url = \"memory:\""), "store memory:, max_open 100000, lease 10s, timeout 1s");
}

#[test]
fn weak_promises_are_warned_about() {
    let warned = |more: &str| config(&format!("{LEAST}{more}")).warnings().join("\n");
    assert!(warned("").contains("route all: writes go to upstream main, which does not state `repeat`"));
    assert_eq!(warned("effect = \"read\""), "");
    assert_eq!(warned("repeat = \"unsafe\""), "", "who states it knows it");
    assert!(warned("[store]\nurl = \"memory:\"").contains("within the life of this process only"));
    assert!(warned("[store]\ndurability = \"os\"").contains("a power loss takes about the last second"));
    assert!(warned("max_body = \"1GiB\"").contains("more than server.buffers"));
    assert!(warned("repeat = \"with-key\"\nkey.upstream_header = \"off\"").contains("sends it none of our keys"));
    assert!(warned("[server]\nlisten = \"[::]:80\"\n[callers]\nscope = \"none\"").contains("shares the same keys"));
}

#[test]
fn settings_that_do_nothing_are_warned_about() {
    let warned = |more: &str| config(&format!("{LEAST}repeat = \"unsafe\"\n{more}")).warnings().join("\n");
    let per_scope = "limit.rate_per_scope = \"5/s\"";
    assert!(warned(per_scope).contains("route all: `rate_per_scope` bounds all callers together"));
    assert_eq!(warned(&format!("{per_scope}\n[callers]\nscope = \"credential\"")), "");
    assert!(warned("retry.retry_after_max = \"10m\"").contains("longer than `deadline` (120s)"));
    assert_eq!(warned("retry.retry_after_max = \"2m\""), "");
    assert_eq!(warned("retry.deadline = \"10s\""), "", "what is built in is nobody's mistake");
}

#[test]
fn a_value_that_gives_way_says_what_to() {
    let short = config(&format!("{LEAST}retry.deadline = \"10s\"\n"));
    assert_eq!(line(&short, "retry.attempt_timeout"), "retry.attempt_timeout 10s built-in, at most deadline");
    assert_eq!(line(&short, "retry.deadline"), "retry.deadline 10s route");
    assert_eq!(line(&config(LEAST), "retry.attempt_timeout"), "retry.attempt_timeout 30s built-in");
}

#[test]
fn values_and_their_origins_stand_in_columns() {
    let text = config(LEAST).describe();
    let settings = text.lines().filter(|line| line.ends_with(" built-in"));
    let columns: Vec<_> = settings.map(|line| (line.find(" built-in"), line)).collect();
    assert!(columns.len() >= 30 && columns.iter().all(|(column, _)| *column == columns[0].0), "{text}");
}

#[test]
fn a_key_that_others_can_read_is_warned_about() {
    let folder = tempfile::tempdir().unwrap();
    let (store, key) = (folder.path().join("s.db"), folder.path().join("s.db.key"));
    let warned =
        || config(&format!("{LEAST}repeat = \"unsafe\"\n[store]\nurl = \"file:{}\"", store.display())).warnings();
    std::fs::write(&key, "").unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o640)).unwrap();
    assert!(warned().join("").contains("s.db.key; `chmod 600` it"), "{:?}", warned());
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(warned(), [""; 0]);
}

#[test]
fn a_shared_credential_is_warned_about() {
    let text = LEAST.replace("http://127.0.0.1:9000\"", "http://pay.internal\"\nheaders = { Authorization = \"x\" }");
    let warnings = config(&format!("{text}key.forward = \"verbatim\"\n[callers]\nscope = \"credential\"")).warnings();
    let warnings = warnings.join("\n");
    assert!(warnings.contains("equal keys of two callers meet at upstream main"), "{warnings}");
    assert!(warnings.contains("a credential goes to upstream main in the clear"), "{warnings}");
    assert!(!config(&text.replace("http://pay", "https://pay")).warnings().join("").contains("in the clear"));
}

#[test]
fn routes_are_listed_in_the_order_of_trying() {
    let text = format!(
        "{LEAST}[[routes]]\nname = \"first\"\nupstream = \"main\"\nmatch = {{ path = \"/a\" }}\neffect = \"read\""
    );
    let description = config(&text).describe();
    let (first, second) = (description.find("route first: any method /a"), description.find("route all: any method /"));
    assert!(first.is_some() && first < second, "{description}");
    assert_eq!(line(&config(&text), "effect"), "effect read route");
}

#[test]
fn a_token_that_may_be_guessed_is_warned_of() {
    let with = |token: &str| {
        let text = format!("{LEAST}[callers]\nscope = \"token\"\ntokens = [{{ name = \"bot\", token = \"{token}\" }}]");
        config(&text).warnings().join("\n")
    };
    assert!(with("abc").contains("a token of bot is shorter than 16 characters"));
    assert!(!with("0123456789abcdef").contains("token"));
}
