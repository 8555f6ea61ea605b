//! What users may write, what it comes to, and what they are told otherwise.

mod accepted;
mod alerting;
mod certified;
mod describing;
mod documented;
mod encrypting;
mod gates;
mod hinted;
mod naming;
mod overriding;
mod refused;
mod routing;
mod ruled;
mod secrets;

use std::sync::Arc;

use super::{Config, ConfigErrors, Environment, Route};

const CONTRACT: &str = include_str!("contract.toml");

/// The least that a file has to say; further lines belong to its route.
const LEAST: &str = r#"
[upstreams.main]
url = "http://127.0.0.1:9000"
[[routes]]
name = "all"
match = { path = "/" }
upstream = "main"
"#;

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().copied().collect()
}

fn secrets() -> Environment {
    environment(&[("BOT_TOKEN", "b0t"), ("PAYMENTS_TOKEN", "Bearer s3cret")])
}

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(text, "gateway.toml", &secrets())
}

fn config(text: &str) -> Config {
    parse(text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn errors(text: &str) -> String {
    parse(text).err().map(|errors| errors.to_string()).unwrap_or_default()
}

/// The only route of the least file with more lines.
fn route(more: &str) -> Arc<Route> {
    config(&format!("{LEAST}{more}")).routes.0[0].clone()
}
