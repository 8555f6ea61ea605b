//! Which route a call takes, which target the upstream gets, and what names an operation.

use http::{HeaderMap, HeaderValue, Method};
use proptest::prelude::*;

use super::*;
use crate::config::{Effect, IdentityChanges, upstream_target};
use crate::operation::admission::Repeat;

fn table(matches: &[&str]) -> Config {
    let mut text = LEAST.split("[[routes]]").next().unwrap().to_owned();
    for (index, conditions) in matches.iter().enumerate() {
        text += &format!("[[routes]]\nname = \"r{index}\"\nupstream = \"main\"\nmatch = {{ {conditions} }}\n");
    }
    config(&text)
}

fn found<'c>(config: &'c Config, method: Method, host: &str, path: &str, headers: &HeaderMap) -> Option<&'c str> {
    config.routes.find(&method, host, path, headers).map(|route| route.name.as_str())
}

fn by_path<'c>(config: &'c Config, path: &str) -> Option<&'c str> {
    found(config, Method::POST, "h", path, &HeaderMap::new())
}

#[test]
fn the_longest_prefix_of_whole_segments_wins() {
    let config = table(&["path = \"/a\"", "path = \"/a/b\"", "path = \"/ab\""]);
    assert_eq!(by_path(&config, "/a"), Some("r0"));
    assert_eq!(by_path(&config, "/a/"), Some("r0"));
    assert_eq!(by_path(&config, "/a/bc"), Some("r0"));
    assert_eq!(by_path(&config, "/a/b/c"), Some("r1"));
    assert_eq!(by_path(&config, "/abc"), None);
    assert_eq!(by_path(&config, "/%61"), None, "the path is raw");
    assert_eq!(by_path(&config, "/"), None);
}

#[test]
fn the_root_matches_everything() {
    let config = table(&["path = \"/\""]);
    for path in ["/", "/a", "//a", "/a/b/"] {
        assert_eq!(by_path(&config, path), Some("r0"), "{path}");
    }
}

#[test]
fn of_equal_paths_the_one_that_asks_for_more_comes_first() {
    let config = table(&[
        "path = \"/\"",
        "path = \"/\", methods = [\"POST\"]",
        "path = \"/\", host = \"tools.internal\"",
        "path = \"/\", headers = { X-Team = \"a\" }",
    ]);
    let team = HeaderMap::from_iter([(http::HeaderName::from_static("x-team"), HeaderValue::from_static("a"))]);
    let none = HeaderMap::new();
    assert_eq!(found(&config, Method::GET, "other", "/", &none), Some("r0"));
    assert_eq!(found(&config, Method::POST, "other", "/", &none), Some("r1"));
    assert_eq!(found(&config, Method::POST, "TOOLS.internal:8080", "/", &none), Some("r2"));
    assert_eq!(found(&config, Method::GET, "other", "/", &team), Some("r3"));
}

#[test]
fn a_longer_path_gives_way_where_its_other_conditions_fail() {
    let config = table(&["path = \"/\"", "path = \"/a\", methods = [\"POST\"]"]);
    assert_eq!(found(&config, Method::GET, "h", "/a", &HeaderMap::new()), Some("r0"));
    assert_eq!(found(&config, Method::POST, "h", "/a", &HeaderMap::new()), Some("r1"));
}

#[test]
fn an_ipv6_host_keeps_its_colons() {
    let config = table(&["path = \"/\", host = \"[::1]\""]);
    for host in ["[::1]", "[::1]:8080"] {
        assert_eq!(found(&config, Method::GET, host, "/", &HeaderMap::new()), Some("r0"), "{host}");
    }
}

#[test]
fn methods_that_share_nothing_may_share_a_path() {
    let config = table(&["path = \"/\", methods = [\"POST\"]", "path = \"/\", methods = [\"PUT\"]"]);
    assert_eq!(found(&config, Method::PUT, "h", "/", &HeaderMap::new()), Some("r1"));
}

#[test]
fn a_method_decides_where_nothing_is_stated() {
    let route = route("");
    for (method, repeat, effect) in [
        ("GET", Repeat::Harmless, Effect::Read),
        ("HEAD", Repeat::Harmless, Effect::Read),
        ("OPTIONS", Repeat::Harmless, Effect::Read),
        ("QUERY", Repeat::Harmless, Effect::Read),
        ("PUT", Repeat::Harmless, Effect::Write),
        ("DELETE", Repeat::Harmless, Effect::Write),
        ("POST", Repeat::Unsafe, Effect::Write),
        ("PATCH", Repeat::Unsafe, Effect::Write),
        ("CHARGE", Repeat::Unsafe, Effect::Write),
        ("get", Repeat::Unsafe, Effect::Write),
    ] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        assert_eq!((route.repeat_for(&method), route.effect_for(&method)), (repeat, effect), "{method}");
    }
}

fn target(url: &str, lines: &str, target: &str) -> String {
    let text = LEAST.replace("http://127.0.0.1:9000", url).replace("match = { path = \"/\" }", lines);
    upstream_target(&config(&text).routes.0[0], target)
}

#[test]
fn a_target_goes_on_byte_for_byte() {
    let root = "match.path = \"/\"";
    assert_eq!(target("http://h", root, "/a//b/%7e?x=%20&y"), "/a//b/%7e?x=%20&y");
    assert_eq!(target("http://h/v1/", root, "/a?"), "/v1/a?");
    assert_eq!(target("http://h", root, "*"), "*");
    assert_eq!(target("http://h/v1", root, "//b?c=/d"), "/v1//b?c=/d");
}

#[test]
fn the_matched_prefix_is_replaced() {
    let stripped = "match.path = \"/pay\"\nupstream_path = \"/\"";
    let renamed = "match.path = \"/pay\"\nupstream_path = \"/charges\"";
    assert_eq!(target("http://h", stripped, "/pay"), "/");
    assert_eq!(target("http://h", stripped, "/pay?a=/pay"), "/?a=/pay");
    assert_eq!(target("http://h/v1", stripped, "/pay/a//b"), "/v1/a//b");
    assert_eq!(target("http://h", renamed, "/pay/a"), "/charges/a");
    assert_eq!(target("http://h", renamed, "/pay"), "/charges");
    assert_eq!(target("http://h", renamed, "/pay//a"), "/charges//a");
}

#[test]
fn a_cut_prefix_never_leaves_another_host() {
    let stripped = "match.path = \"/pay\"\nupstream_path = \"/\"";
    assert_eq!(target("http://h", stripped, "/pay//evil.example/x"), "/evil.example/x");
    assert_eq!(target("http://h", stripped, "/pay///evil.example/x"), "/evil.example/x");
}

proptest! {
    #[test]
    fn a_rewritten_target_is_absolute_and_keeps_its_query(rest in "(/[a-z/]{0,8})?", query in "(\\?[ -~&&[^?#]]{0,8})?") {
        let sent = target("http://h", "match.path = \"/pay\"\nupstream_path = \"/\"", &format!("/pay{rest}{query}"));
        prop_assert!(sent.starts_with('/') && !sent.starts_with("//"), "{}", sent);
        prop_assert!(sent.ends_with(&query), "{}", sent);
    }
}

#[test]
fn identity_is_what_names_an_operation_and_nothing_else() {
    let plain = route("").rules;
    for same in [
        "retry.max_attempts = 1",
        "max_body = \"1B\"",
        "key.mode = \"required\"",
        "key.upstream_header = \"off\"",
        "in_flight = \"reject\"",
    ] {
        assert_eq!(route(same).rules, plain, "{same}");
    }
    for other in [
        "key.client_key = \"ignore\"",
        "key.from = [\"session\"]",
        "key.header = \"X-Key\"",
        "key.session_header = \"X-Run\"",
        "key.step_header = \"X-Turn\"",
        "key.headers = [\"Stripe-Account\"]",
        "key.format = \"uuid\"",
        "key.on_changed_payload = \"reject\"",
        "repeat = \"unsafe\"",
        "payload.compare = \"bytes\"",
        "payload.ignore = [\"/reason\"]",
        "[callers]\nscope = \"credential\"",
    ] {
        assert_ne!(route(other).rules, plain, "{other}");
    }
    assert_ne!(config(&LEAST.replace("\"all\"", "\"every\"")).routes.0[0].rules, plain);
    assert_eq!(
        route("key.headers = [\"A\", \"B\"]").rules,
        route("key.headers = [\"b\", \"a\"]").rules,
        "a set has no order and header names no case"
    );
}

#[test]
fn a_wildcard_is_no_prefix() {
    for (path, prefix, below) in
        [("/charges/*", "/charges", "/charges/"), ("/v1/*/x", "/v1", "/v1/"), ("/*", "/", "/"), ("/a/b*", "/a", "/a/")]
    {
        let said = errors(&LEAST.replace("path = \"/\"", &format!("path = \"{path}\"")));
        let expected = format!("a prefix without `*`: \"{prefix}\" takes all that begins with \"{below}\"");
        assert!(said.contains(&expected), "{said}");
    }
    assert_eq!(by_path(&table(&["path = \"/a*b\""]), "/a*b/c"), Some("r0"));
}

#[test]
fn the_digest_of_the_rules_is_stable() {
    let hex: String = route("").rules.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "00995309216a44e8", "live keys of every running gateway were made under it");
}

#[test]
fn changes_of_identity_are_listed() {
    let old = config(&format!("{LEAST}key.headers = [\"A\"]"));
    let new_keys = |old: &Config, new: &Config| Config::changes_of_identity(old, new).new_keys;
    let new = config(&format!("{LEAST}key.headers = [\"B\"]\nretry.max_attempts = 1\n[store]\nnamespace = \"n\""));
    let told = new_keys(&old, &new);
    assert_eq!(told, ["route all: key.headers was [\"a\"], is [\"b\"]"], "a file has no namespace");
    let [one, other] = ["m", "n"]
        .map(|namespace| config(&format!("{LEAST}[store]\nurl = \"redis://h\"\nnamespace = \"{namespace}\"")));
    assert_eq!(new_keys(&one, &other), ["store.namespace was m, is n"]);
    let renamed = config(&LEAST.replace("\"all\"", "\"every\""));
    assert_eq!(new_keys(&old, &renamed), ["route all: gone; under another name its calls get new keys"]);
    assert_eq!(Config::changes_of_identity(&old, &old), IdentityChanges::default());
}

#[test]
fn a_change_under_which_calls_are_still_found_is_told_apart() {
    let old = config(LEAST);
    let declared = config(&format!("{LEAST}repeat = \"with-key\""));
    let expected = IdentityChanges {
        new_keys: Vec::new(),
        still_found: vec!["route all: key.on_changed_payload was by method, is run".to_owned()],
    };
    assert_eq!(Config::changes_of_identity(&old, &declared), expected);
}

/// What `check --against` says of `new` where `old` was before.
fn changes(old: &str, new: &str) -> Vec<String> {
    Config::changes_of_identity(&config(old), &config(new)).new_keys
}

#[test]
fn calls_that_another_route_takes_are_listed() {
    let with = |name: &str, matches: &str| {
        format!("{LEAST}[[routes]]\nname = \"{name}\"\nmatch = {{ {matches} }}\nupstream = \"main\"\n")
    };
    let refunds = "route all: DELETE PATCH POST PUT /refunds is taken by route new, where calls get new keys";
    assert_eq!(changes(LEAST, &with("new", "path = \"/refunds\"")), [refunds]);
    let posts = with("new", "path = \"/\", methods = [\"POST\"]");
    assert_eq!(changes(LEAST, &posts), ["route all: POST / is taken by route new, where calls get new keys"]);
    let off = with("new", "path = \"/refunds\", host = \"a\"") + "key.mode = \"off\"";
    assert_eq!(
        changes(LEAST, &off),
        ["route all: DELETE PATCH POST PUT /refunds is taken by route new, which does not guard them"]
    );
    let (two, swapped) =
        (with("new", "path = \"/refunds\""), with("new", "path = \"/refunds\"").replace("\"all\"", "\"x\""));
    let swapped = swapped.replace("\"new\"", "\"all\"").replace("\"x\"", "\"new\"");
    assert_eq!(changes(&two, &swapped).len(), 2);
    assert!(changes(&two, &two).is_empty());
}

#[test]
fn calls_that_are_not_guarded_any_more_are_listed() {
    for line in ["key.mode = \"off\"", "effect = \"read\""] {
        let off = format!("{LEAST}{line}");
        assert_eq!(changes(LEAST, &off), ["route all: DELETE PATCH POST PUT / is not guarded any more"], "{line}");
        assert!(changes(&off, LEAST).is_empty(), "{line}");
    }
}

#[test]
fn callers_and_stores_of_another_name_are_listed() {
    let token = |name: &str| {
        format!("{LEAST}[callers]\nscope = \"token\"\n[[callers.tokens]]\nname = \"{name}\"\ntoken = \"t\"")
    };
    assert_eq!(changes(&token("bot"), &token("agent")), ["callers.tokens: bot is called agent"]);
    let store = |url: &str| format!("{LEAST}[store]\nnamespace = \"n\"\nurl = \"{url}\"");
    let listed = |old: &str, new: &str| changes(&store(old), &store(new));
    let lines = listed("redis://h/0", "redis://me:s3cret@h/1");
    assert_eq!(
        lines,
        ["store.url was redis://h:6379, is redis://***@h:6379/1: what is in the one is not in the other"]
    );
    assert_eq!(listed("file:a.db", "file:b.db").len(), 1);
    assert_eq!(listed("memory:", "redis://h").len(), 1);
    assert!(listed("redis://h", "rediss://me:s3cret@h").is_empty());
    assert!(listed("redis+sentinel://a/m", "redis+sentinel://b,c/m").is_empty());
}
