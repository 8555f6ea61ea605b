//! `ONCEGATE__A__B=value`.

use super::*;

fn overridden(pairs: &[(&str, &str)]) -> Result<Config, String> {
    Config::parse(CONTRACT, "gateway.toml", &secrets_and(pairs)).map_err(|errors| errors.to_string())
}

fn secrets_and(pairs: &[(&str, &str)]) -> Environment {
    [("BOT_TOKEN", "b0t"), ("PAYMENTS_TOKEN", "Bearer s3cret")].iter().chain(pairs).copied().collect()
}

fn refusal(name: &str, value: &str) -> String {
    overridden(&[(name, value)]).err().unwrap_or_default()
}

#[test]
fn any_setting_can_be_replaced() {
    let config = overridden(&[
        ("ONCEGATE__SERVER__LISTEN", "127.0.0.1:7000"),
        ("oncegate__server__admin", "ignored: the prefix is in upper case"),
        ("ONCEGATE__SERVER__THREADS", "2"),
        ("ONCEGATE__STORE__NAMESPACE", "123"),
        ("ONCEGATE__UPSTREAMS__PAYMENTS__URL", "http://127.0.0.1:1"),
        ("ONCEGATE__UPSTREAMS__PAYMENTS__HEADERS__AUTHORIZATION", "Bearer other"),
        ("ONCEGATE__ROUTES__0__RETRY__MAX_ATTEMPTS", "7"),
        ("ONCEGATE__ROUTES__0__KEY__FROM", "[\"session\"]"),
        ("ONCEGATE__CALLERS__TOKENS__1__NAME", "other-bot"),
        ("ONCEGATE__LOG__Level", "debug"),
        ("ONCEGATE_LOG", "no setting"),
    ])
    .unwrap();
    let route = &config.routes.0[0];
    assert_eq!(config.server.listen.port(), 7000);
    assert_eq!(config.server.threads.get(), 2);
    assert_eq!(config.store.namespace, "123", "a string may look like a number");
    assert_eq!(route.upstream.port, 1);
    assert_eq!(route.upstream.headers[0].1, "Bearer other");
    assert_eq!(route.retry.max_attempts, 7);
    assert_eq!(route.key.from.len(), 1);
    assert_eq!(config.log.level, tracing::Level::DEBUG);
}

#[test]
fn what_is_not_in_the_file_can_be_added() {
    let environment = environment(&[
        ("ONCEGATE__UPSTREAMS__MAIN__URL", "http://127.0.0.1:1"),
        ("ONCEGATE__ROUTES", "[{ name = \"all\", upstream = \"main\", match = { path = \"/\" } }]"),
        ("ONCEGATE__ROUTES__0__EFFECT", "read"),
    ]);
    let config = Config::parse("", "gateway.toml", &environment).unwrap();
    assert_eq!(config.routes.0[0].upstream.port, 1);
    assert_eq!(config.routes.0[0].effect, Some(crate::config::Effect::Read));
}

#[test]
fn what_holds_without_a_file_says_what_to_write_beside_one() {
    for (name, value, instead) in [
        ("ONCEGATE__UPSTREAM", "http://127.0.0.1:1", "ONCEGATE__UPSTREAMS__NAME__URL"),
        ("ONCEGATE__PRESET", "stripe", "ONCEGATE__UPSTREAMS__NAME__PRESET"),
        ("ONCEGATE__REPEAT", "harmless", "ONCEGATE__UPSTREAMS__NAME__REPEAT"),
        ("ONCEGATE__STORE", "memory:", "ONCEGATE__STORE__URL"),
    ] {
        let expected =
            format!("{name}: holds only where there is no file; beside this one say {instead}, or take the file away");
        assert_eq!(refusal(name, value), expected);
    }
    assert!(overridden(&[("ONCEGATE__STORE", "{ url = 'memory:' }")]).is_ok());
}

#[test]
fn a_dash_in_a_name_is_an_underscore_in_a_variable() {
    let text = LEAST.replace("upstreams.main", "upstreams.main-eu").replace("\"main\"", "\"main-eu\"");
    let environment = environment(&[("ONCEGATE__UPSTREAMS__MAIN_EU__URL", "http://127.0.0.1:7")]);
    let config = Config::parse(&text, "gateway.toml", &environment).unwrap();
    assert_eq!(config.routes.0[0].upstream.port, 7);
}

#[test]
fn what_does_not_fit_names_the_variable() {
    assert_eq!(
        refusal("ONCEGATE__SERVER__LISTN", "x"),
        "ONCEGATE__SERVER__LISTN: server.listn: unknown key `listn`; did you mean `listen`? [server] accepts listen, \
         admin, health, header_timeout, body_idle_timeout, drain, max_connections, max_concurrent_streams, \
         max_header_bytes, max_uri_bytes, threads, buffers, trusted_proxies, tls"
    );
    assert_eq!(
        refusal("ONCEGATE__STORE__LEASE", "soon"),
        "ONCEGATE__STORE__LEASE: store.lease = \"soon\": a duration such as \"250ms\", \"10s\", \"5m\", \"24h\" or \"30d\""
    );
    assert_eq!(
        refusal("ONCEGATE__STORE__LEASE__MAX", "1s"),
        "ONCEGATE__STORE__LEASE__MAX: a name that ends where its setting ends: this one leads into a plain value"
    );
    assert_eq!(
        refusal("ONCEGATE__ROUTES__7__NAME", "x"),
        "ONCEGATE__ROUTES__7__NAME: the number of an entry: 0 to 0, or the next one to add"
    );
    assert_eq!(
        refusal("ONCEGATE__ROUTES__X__NAME", "x"),
        "ONCEGATE__ROUTES__X__NAME: the number of an entry: 0 to 0, or the next one to add"
    );
    assert_eq!(refusal("ONCEGATE____", "x"), "ONCEGATE____: a setting, such as ONCEGATE__SERVER__LISTEN");
}

#[test]
fn a_refused_secret_is_not_shown() {
    let message = refusal("ONCEGATE__CALLERS__TOKENS__0__TOKEN", "hush hush");
    assert_eq!(
        message,
        "ONCEGATE__CALLERS__TOKENS__0__TOKEN: callers.tokens.token: visible ASCII characters without spaces"
    );
    for (name, shown) in
        [("ONCEGATE__UPSTREAMS__PAYMENTS__PROXY", "upstreams.payments.proxy"), ("ONCEGATE__STORE__URL", "store.url")]
    {
        let message = refusal(name, "user:hunter2@egress:3128");
        assert!(message.starts_with(&format!("{name}: {shown} = \"***@egress:3128\": ")), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn a_variable_that_misses_an_underscore_is_warned_of() {
    let set = environment(&[
        ("ONCEGATE_SERVER_LISTEN", "127.0.0.1:1"),
        ("ONCEGATE_STORE_URL", "memory:"),
        ("ONCEGATE_KEY", "k"),
        ("ONCEGATE__LOG__LEVEL", "warn"),
    ]);
    let text = format!("{LEAST}[store]\nurl = {{ env = \"ONCEGATE_STORE_URL\" }}");
    let warnings = Config::parse(&text, "gateway.toml", &set).unwrap().warnings();
    let told: Vec<_> = warnings.iter().filter(|warning| warning.starts_with("environment: ")).collect();
    assert!(told.len() == 1 && told[0].contains("ONCEGATE_SERVER_LISTEN is not read"), "{told:?}");
}
