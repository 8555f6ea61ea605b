//! What must not be told again, however it was written.

use super::*;

#[test]
fn a_refused_secret_is_not_shown() {
    let message = errors(&format!(
        "{LEAST}[callers]\nscope = \"token\"\ntokens = [{{ name = \"a\", token = \"hush hush\" }}]\n\
         [upstreams.b]\nurl = \"http://h\"\nheaders = {{ Authorization = \"hush\\nhush\" }}\n"
    ));
    assert_eq!(message.lines().count(), 2, "{message}");
    assert!(!message.contains("hush"), "{message}");
}

#[test]
fn a_secret_in_the_wrong_form_is_not_shown_either() {
    let key = "-----BEGIN PRIVATE KEY-----\\nhush\\n-----END PRIVATE KEY-----";
    for text in [
        format!("{LEAST}[callers]\nscope = \"token\"\ntokens = \"hush\""),
        format!("{LEAST}[callers]\nscope = \"token\"\ntokens = [\"hush\"]"),
        format!("{LEAST}[upstreams.b]\nurl = \"http://h\"\nheaders = \"Authorization: hush\""),
        format!("{LEAST}[upstreams.b]\nurl = \"https://h\"\nclient_cert = \"{key}\"\nclient_key = \"{key}\""),
        format!("{LEAST}[server]\ntls = {{ cert = \"{key}\", key = \"{key}\" }}"),
        format!("{LEAST}[store]\nnamespace = \"n\"\nurl = \"redis://host?password=hush\""),
        format!("{LEAST}[upstreams.b]\nurl = \"http://h\"\nproxy = \"http://h:1/?hush\""),
    ] {
        let message = errors(&text);
        assert!(!message.is_empty() && !message.contains("hush"), "{message}");
    }
}

#[test]
fn a_secret_in_the_wrong_form_in_the_environment_is_not_shown_either() {
    let environment =
        environment(&[("ONCEGATE__CALLERS__TOKENS", "hush"), ("ONCEGATE__STORE__URL", "redis://h?p=hush")]);
    let message = Config::parse(LEAST, "gateway.toml", &environment).unwrap_err().to_string();
    assert!(message.contains("callers.tokens") && message.contains("store.url"), "{message}");
    assert!(!message.contains("hush"), "{message}");
}

#[test]
fn headers_from_elsewhere_are_asked_for_one_by_one() {
    let message = errors(&format!("{LEAST}[upstreams.b]\nurl = \"http://h\"\nheaders = {{ env = \"BOT_TOKEN\" }}"));
    let place = "gateway.toml:10:11: upstreams.b.headers: names, each with a string; ";
    assert!(message.starts_with(place), "{message}");
}
