//! A message as one of its ends sees it, free of the protocol that carried it.

use std::collections::BTreeMap;
use std::fmt;

/// The values of each name, in their order and as printable text. How names are spelled, and in which order different
/// ones stand, means nothing (RFC 9110, section 5.3).
pub type Lines = BTreeMap<String, Vec<String>>;

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body, and nothing says so.
    None,
    Length(u64),
    /// In chunks, or by the end of a stream of HTTP/2.
    Open,
    UntilClose,
}

/// A request or an answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Method and target, or status and reason.
    pub start: String,
    pub version: &'static str,
    pub lines: Lines,
    pub framing: Framing,
    pub body: Vec<u8>,
    pub trailers: Lines,
    /// Informational answers that came before it.
    pub interim: Vec<(String, Lines)>,
}

impl Message {
    /// Without a body so far.
    pub fn new(start: String, version: &'static str, mut lines: Lines) -> Self {
        let coded = lines.remove("transfer-encoding").is_some();
        let length = lines.remove("content-length").map(|values| values.concat());
        let framing = match (coded, length) {
            (true, _) => Framing::Open,
            (false, Some(length)) => Framing::Length(length.parse().unwrap()),
            (false, None) => Framing::None,
        };
        let (trailers, interim) = (Lines::new(), Vec::new());
        Self { start, version, lines, framing, body: Vec::new(), trailers, interim }
    }

    /// What is different here, line by line.
    pub fn compare(&self, expected: &Self) -> Option<String> {
        if self == expected {
            return None;
        }
        let (seen, expected) = (format!("{self:?}"), format!("{expected:?}"));
        let mark = |sign: char, one: &str, other: &str| {
            let lines = one.lines().filter(|line| !other.lines().any(|known| known == *line));
            lines.map(|line| format!("  {sign} {line}\n")).collect::<String>()
        };
        Some(mark('-', &expected, &seen) + &mark('+', &seen, &expected))
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (status, lines) in &self.interim {
            write_lines(f, status, lines)?;
        }
        writeln!(f, "{} ({})", self.start, self.version)?;
        write_lines(f, "", &self.lines)?;
        writeln!(f, "framing: {:?}\nbody: {}", self.framing, self.body.escape_ascii())?;
        write_lines(f, "trailer ", &self.trailers)
    }
}

fn write_lines(f: &mut fmt::Formatter<'_>, prefix: &str, lines: &Lines) -> fmt::Result {
    lines.iter().try_for_each(|(name, values)| writeln!(f, "{prefix}{name}: {values:?}"))
}

/// Header lines as they are sent.
pub fn lines<'l>(sent: impl IntoIterator<Item = (&'l str, &'l [u8])>) -> Lines {
    let mut lines = Lines::new();
    for (name, value) in sent {
        lines.entry(name.to_ascii_lowercase()).or_default().push(value.trim_ascii().escape_ascii().to_string());
    }
    lines
}
