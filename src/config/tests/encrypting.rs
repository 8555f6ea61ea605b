//! Keys for what lies in the store: what they may look like, and how little is said of them.

use super::describing::line;
use super::*;

#[test]
fn what_is_no_key_is_refused_and_not_shown() {
    for (lines, message) in [
        (
            "encryption = \"correct horse\"",
            "gateway.toml:9:14: store.encryption: one key a line, the first of which encrypts; line 1 is not a key of \
             256 bits, as 64 hexadecimal digits or in base64; `openssl rand -hex 32` makes one",
        ),
        (
            "encryption = { env = \"NO_KEY\" }",
            "gateway.toml:9:14: store.encryption: the environment variable `NO_KEY` is not set, or not UTF-8",
        ),
        (
            "url = \"memory:\"\nencryption = \"q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=\"",
            "gateway.toml:10:14: store.encryption = ...: memory: keeps nothing that could be read later; take the key \
             away or name another store",
        ),
    ] {
        assert_eq!(errors(&format!("{LEAST}[store]\n{lines}\n")), message, "{lines}");
    }
}

#[test]
fn a_key_is_named_by_its_id_only() {
    let keys = [
        "71ad6ab8dd2ed9ea51b3d0f3ec2f3c9d4c2c4fb9db6a8c6c0d1f2e3a4b5c6d7e",
        "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=",
    ];
    let environment = environment(&[("KEYS", &keys.join("\n"))]);
    let at_rest = |store: &str| {
        let text = format!("{LEAST}[store]\n{store}");
        let config = Config::parse(&text, "gateway.toml", &environment).unwrap_or_else(|errors| panic!("{errors}"));
        let said = format!("{}\n{config:?}", config.describe());
        assert!(keys.iter().all(|key| !said.contains(key)), "{said}");
        line(&config, "at rest")
    };
    let ids = crate::sealing_key::SealingKey::parse_lines(&keys.join("\n")).unwrap();
    let named = format!("at rest encrypted with key {}, read also with {}", ids[0].id(), ids[1].id());
    assert_eq!(at_rest("encryption = { env = \"KEYS\" }"), named);
    assert_eq!(at_rest(""), "at rest encrypted with a key that the first start makes in data/oncegate.db.key");
    assert_eq!(at_rest("url = \"redis://127.0.0.1:1\"\nnamespace = \"a\""), "at rest not encrypted");
    assert_eq!(at_rest("url = \"memory:\""), "");
}
