//! Who is told of dead letters.

use super::describing::line;
use super::*;

fn refused(lines: &str) -> String {
    errors(&format!("{LEAST}[alerts]\n{lines}\n"))
}

#[test]
fn what_cannot_be_told_to_anybody_is_refused() {
    for (lines, message) in [
        ("", "gateway.toml:8:1: alerts.url: missing; where alerts are posted; or say format = \"log\""),
        (
            "format = \"slack\"",
            "gateway.toml:8:1: alerts.url: missing; where alerts are posted; or say format = \"log\"",
        ),
        (
            "url = \"ftp://hooks.internal/s3cret\"",
            "gateway.toml:9:7: alerts.url: a URL such as \"https://hooks.internal/oncegate\", without user, password and \
             fragment",
        ),
        (
            "url = \"https://me:s3cret@hooks.internal/\"",
            "gateway.toml:9:7: alerts.url: a URL such as \"https://hooks.internal/oncegate\", without user, password and \
             fragment",
        ),
        (
            "format = \"log\"\nurl = \"http://hooks.internal/\"",
            "gateway.toml:8:1: alerts.url: format = \"log\" sends nothing anywhere; take one of the two away",
        ),
        (
            "format = \"log\"\nsecret = \"a\"",
            "gateway.toml:8:1: alerts.secret: format = \"log\" sends nothing anywhere; take one of the two away",
        ),
        (
            "url = \"http://hooks.internal/\"\nsecret = \"\"",
            "gateway.toml:10:10: alerts.secret: what the receiver has to check signatures with, best as { env = \"NAME\" }",
        ),
        (
            "url = \"http://hooks.internal/\"\nca_file = \"ca.pem\"",
            "gateway.toml:10:11: alerts.ca_file = \"ca.pem\": only an https:// receiver has certificates",
        ),
        (
            "format = \"log\"\ngroup_by = [\"key\"]",
            "gateway.toml:10:13: alerts.group_by = \"key\": \"upstream\", \"route\", \"reason\" or \"state\"",
        ),
        (
            "url = \"http://hooks.internal/\"\nformat = \"teams\"",
            "gateway.toml:10:10: alerts.format = \"teams\": \"json\", \"slack\" or \"log\"",
        ),
    ] {
        assert!(refused(lines).starts_with(message), "{lines}\n{}", refused(lines));
    }
}

#[test]
fn a_receiver_is_shown_without_what_may_be_a_secret() {
    let said = |lines: &str| {
        let config = config(&format!("{LEAST}[alerts]\n{lines}\n"));
        assert!(!format!("{config:?}{}", config.describe()).contains("s3cret"));
        line(&config, "alerts")
    };
    assert_eq!(
        said("url = \"https://hooks.slack.com/services/s3cret?s3cret\"\nsecret = \"s3cret\""),
        "alerts json to https://hooks.slack.com (signed), group_by [upstream, reason], group_wait 30s, repeat_interval 4h"
    );
    assert_eq!(
        said("format = \"log\"\ngroup_by = []\ngroup_wait = \"0s\"\nrepeat_interval = \"1d\""),
        "alerts log, group_by [], group_wait 0s, repeat_interval 24h"
    );
    assert_eq!(line(&config(LEAST), "alerts"), "");
}
