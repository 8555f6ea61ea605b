//! The file that `oncegate init` writes.

const TEMPLATE: &str = include_str!("init.toml");

/// A short commented `gateway.toml` for one upstream.
pub fn init_template(upstream_url: &str) -> String {
    TEMPLATE.replace("\"UPSTREAM_URL\"", &toml::Value::from(upstream_url).to_string())
}
