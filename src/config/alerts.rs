//! `[alerts]`: who is told of operations that need a person.

use std::fmt;
use std::time::Duration;

use super::certificates;
use super::error::Problem;
use super::reader::{Reader, Section, or};
use super::units;
use super::words::{Word, word};
use super::{ClientTls, Secret, schema, url};

/// `[alerts]`, where it is stated.
#[derive(Clone, Debug)]
pub struct Alerts {
    pub format: AlertFormat,
    /// Where they are posted; `None` with [`AlertFormat::Log`], and only then.
    pub receiver: Option<Receiver>,
    /// Letters that are alike in all of these share an alert.
    pub group_by: Vec<GroupBy>,
    /// From the first letter of an alert to the alert.
    pub group_wait: Duration,
    /// Between two alerts of letters that stay open.
    pub repeat_interval: Duration,
}

/// Where alerts are posted. Path and query of its URL are often a secret.
#[derive(Clone, Debug)]
pub struct Receiver {
    pub tls: bool,
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
    /// `host[:port]` as it stands in the URL.
    pub authority: String,
    /// Path and query.
    pub target: Secret,
    pub client_tls: Option<ClientTls>,
    /// Signs the body.
    pub secret: Option<Secret>,
}

/// What an alert looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertFormat {
    Json,
    /// For an incoming webhook of Slack.
    Slack,
    /// A line of the log.
    Log,
}

/// What letters of one alert have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    Upstream,
    Route,
    Reason,
    State,
}

impl GroupBy {
    /// Its word in the file, and in an alert.
    pub fn as_str(self) -> &'static str {
        self.word()
    }
}

pub(super) fn read(reader: &mut Reader<'_>, root: &Section<'_>) -> Option<Alerts> {
    let section = &reader.child(root, "alerts", &schema::ALERTS);
    let format = or(reader.text(section, "format", word), AlertFormat::Json);
    let is_stated = root.states("alerts");
    let receiver = receiver(reader, section, format, is_stated);
    let alerts = Alerts {
        format,
        receiver,
        group_by: or(reader.list(section, "group_by", word), vec![GroupBy::Upstream, GroupBy::Reason]),
        group_wait: or(reader.text(section, "group_wait", units::duration_or_zero), Duration::from_secs(30)),
        repeat_interval: or(reader.text(section, "repeat_interval", units::duration), Duration::from_secs(4 * 3_600)),
    };
    is_stated.then_some(alerts)
}

fn receiver(reader: &mut Reader<'_>, section: &Section<'_>, format: AlertFormat, is_stated: bool) -> Option<Receiver> {
    let stated = reader.secret(section, "url", |text| url::receiver(&text.text));
    let secret = reader.secret(section, "secret", |text| match text.text.as_str() {
        "" => Err("what the receiver has to check signatures with, best as { env = \"NAME\" }".into()),
        text => Ok(Secret(text.to_owned())),
    });
    let is_plain = stated.as_ref().is_some_and(|stated| !stated.value.0.tls);
    let client_tls =
        certificates::read(reader, section, is_plain.then_some("only an https:// receiver has certificates"));
    if format == AlertFormat::Log {
        for key in ["url", "secret"].into_iter().filter(|key| section.states(key)) {
            let problem =
                Problem::Contradiction("format = \"log\" sends nothing anywhere; take one of the two away".into());
            reader.errors.push(section.refused(key, problem));
        }
        return None;
    }
    if is_stated && !section.states("url") {
        let problem = Problem::Missing("where alerts are posted; or say format = \"log\"");
        reader.errors.push(section.refused("url", problem));
    }
    let (address, target) = stated?.value;
    let secret = secret.map(|secret| secret.value);
    let url::Address { tls, host, port, authority, base_path: _ } = address;
    Some(Receiver { tls, host, port, authority, target: Secret(target), client_tls, secret })
}

impl fmt::Display for Alerts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.format.word())?;
        if let Some(receiver) = &self.receiver {
            let scheme = if receiver.tls { "https" } else { "http" };
            let signed = if receiver.secret.is_some() { "signed" } else { "not signed" };
            write!(f, " to {scheme}://{} ({signed})", receiver.authority)?;
        }
        let by: Vec<_> = self.group_by.iter().map(|by| by.word()).collect();
        let (wait, repeat) = (units::duration_text(self.group_wait), units::duration_text(self.repeat_interval));
        write!(f, ", group_by [{}], group_wait {wait}, repeat_interval {repeat}", by.join(", "))
    }
}
