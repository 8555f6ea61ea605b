//! A small `gateway.toml` for one story.

use std::sync::Arc;

use oncegate::config::{Config, Environment};

/// The words in which a story differs from the built-in values; each is a line or more of the file.
#[derive(Clone, Copy)]
pub struct Setup {
    pub name: &'static str,
    pub repeat: &'static str,
    pub lease: &'static str,
    pub store: &'static str,
    pub url: &'static str,
    pub upstream: &'static str,
    pub route: &'static str,
    pub key: &'static str,
    pub retry: &'static str,
    /// So wide that only those stories meet it that are about it.
    pub budget: &'static str,
    /// None, likewise.
    pub breaker: &'static str,
    pub limit: &'static str,
}

impl Setup {
    pub const UNSAFE: Self = Self::of("unsafe");
    pub const WITH_KEY: Self = Self::of("with-key");
    pub const HARMLESS: Self = Self::of("harmless");

    const fn of(repeat: &'static str) -> Self {
        Self {
            name: "payments",
            repeat,
            lease: "10s",
            store: "",
            url: "http://payments.internal/v1",
            upstream: "",
            route: "",
            key: "",
            retry: "",
            budget: "{ percent = 100, per_second = 10000 }",
            breaker: "consecutive_failures = 0",
            limit: "concurrency = 100000",
        }
    }

    pub fn config(&self) -> Arc<Config> {
        let Self { name, repeat, lease, store, url, upstream, route, key, retry, budget, breaker, limit } = self;
        let text = format!(
            r#"
            [store]
            url = "memory:"
            lease = "{lease}"
            {store}
            [upstreams.payments]
            url = "{url}"
            repeat = "{repeat}"
            {upstream}
            [[routes]]
            name = "{name}"
            match = {{ path = "/" }}
            upstream = "payments"
            {route}
            [routes.key]
            {key}
            [routes.retry]
            budget = {budget}
            {retry}
            [routes.breaker]
            {breaker}
            [routes.limit]
            {limit}
            "#
        );
        Arc::new(
            Config::parse(&text, "gateway.toml", &Environment::default()).unwrap_or_else(|error| panic!("{error}")),
        )
    }
}
