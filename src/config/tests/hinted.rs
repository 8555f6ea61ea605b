//! What newcomers write, and what they are told.

use super::*;

/// Lines behind the least file, whose route begins in line 4, and everything that is said about them.
const CASES: &[(&str, &str)] = &[
    ("[server]\nhost = '0.0.0.0'", "gateway.toml:9:1: server.host: unknown key `host`; here `listen`"),
    (
        "[store]\nurl = '${REDIS_URL}'",
        "gateway.toml:9:7: store.url = \"${REDIS_URL}\": { env = \"NAME\" } for what a variable says; in a string it stays \
         as it is",
    ),
    (
        "[store]\nurl = { environment = 'REDIS_URL' }",
        "gateway.toml:9:7: store.url = {...}: a string, { env = \"NAME\" } or { file = \"PATH\" }",
    ),
    (
        "[store]\nurl = 'redis://h'\nnamespace = 'a b'",
        "gateway.toml:10:13: store.namespace = \"a b\": 1 to 64 letters, digits, \".\", \"_\" or \"-\"",
    ),
    (
        "[store]\nurl = 'postgres://h'",
        "gateway.toml:9:7: store.url = \"postgres://h\": \"memory:\", \"file:PATH\", or redis://, rediss://, redis+sentinel://, \
         redis+cluster://, rediss+sentinel:// or rediss+cluster://",
    ),
];

#[test]
fn each_is_told_what_to_write() {
    for (lines, message) in CASES {
        assert_eq!(errors(&format!("{LEAST}{lines}\n")), *message, "{lines}");
    }
}

#[test]
fn upstreams_are_tables_with_names() {
    let said = errors("[[upstreams]]\nname = \"a\"\nurl = \"http://h\"\n");
    assert!(said.contains("tables with names of your own, each under [upstreams.NAME]"), "{said}");
    let said = errors(&format!("{LEAST}[upstreams.b]\nproxy_pass = \"http://h\""));
    assert!(said.contains("unknown key `proxy_pass`; here `url`"), "{said}");
    let said = errors(&LEAST.replace("http://127.0.0.1:9000", "localhost:9000"));
    assert!(said.contains("begins with its scheme"), "{said}");
}
