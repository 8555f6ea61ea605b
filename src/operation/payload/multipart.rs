//! `multipart/form-data` bodies by their parts, without the boundary that changes with every encoding (RFC 2046, 7578).

use super::content::parameter;
use super::{Ignored, Sink, is_ignored};

/// Characters of a boundary (RFC 2046, section 5.1.1).
const LONGEST_BOUNDARY: usize = 70;

/// The parts of a body in their order.
#[derive(Clone, Debug)]
pub struct Multipart<'a>(Vec<Part<'a>>);

#[derive(Clone, Debug)]
struct Part<'a> {
    /// Sorted by name; lines of one name in their order.
    headers: Vec<Header<'a>>,
    body: &'a [u8],
}

#[derive(Clone, Debug)]
struct Header<'a> {
    /// In lower case.
    name: Vec<u8>,
    value: &'a [u8],
}

/// `None` unless `body` is parts and nothing else: text before the first or after the last delimiter, which some
/// services read and others skip, makes it bytes, and so does a bare line feed where a line has to end.
pub fn read<'a>(boundary: &[u8], body: &'a [u8]) -> Option<Multipart<'a>> {
    if boundary.is_empty() || boundary.len() > LONGEST_BOUNDARY {
        return None;
    }
    let delimiter = [b"\r\n--", boundary].concat();
    let mut parts = Vec::new();
    let mut rest = body.strip_prefix(delimiter.strip_prefix(b"\r\n")?)?;
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            return matches!(end, b"" | b"\r\n").then_some(Multipart(parts));
        }
        let (part, after) = split(rest.strip_prefix(b"\r\n")?, &delimiter)?;
        parts.push(read_part(part)?);
        rest = after;
    }
}

impl Multipart<'_> {
    /// Writes for each part that is not ignored its headers, one `name:value` line each, and its body, both with their
    /// length before them (8 bytes, most significant first).
    pub(super) fn write(&self, ignored: &[Ignored], sink: &mut impl Sink) {
        for part in self.0.iter().filter(|part| !part.is_ignored(ignored)) {
            for piece in [&part.head()[..], part.body] {
                sink.put(&(piece.len() as u64).to_be_bytes());
                sink.put(piece);
            }
        }
    }
}

impl Part<'_> {
    fn head(&self) -> Vec<u8> {
        self.headers.iter().flat_map(|Header { name, value }| [name, &b":"[..], value, b"\n"].concat()).collect()
    }

    fn is_ignored(&self, ignored: &[Ignored]) -> bool {
        self.name().is_some_and(|name| is_ignored(&name, ignored))
    }

    /// A part that is named twice has no name.
    fn name(&self) -> Option<Vec<u8>> {
        let mut lines = self.headers.iter().filter(|header| header.name == b"content-disposition");
        let name = parameter(lines.next()?.value, "name")?;
        lines.next().is_none().then_some(name)
    }
}

/// A part without headers begins with its empty line.
fn read_part(part: &[u8]) -> Option<Part<'_>> {
    let mut headers = Vec::new();
    let mut rest = part;
    loop {
        let (line, after) = split(rest, b"\r\n")?;
        rest = after;
        if line.is_empty() {
            headers.sort_by(|left: &Header<'_>, right| left.name.cmp(&right.name));
            return Some(Part { headers, body: rest });
        }
        headers.push(read_header(line)?);
    }
}

/// Folded lines, obsolete for longer than most services, are refused with all that has no name.
fn read_header(line: &[u8]) -> Option<Header<'_>> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (line.get(..colon)?, line.get(colon + 1..)?);
    let clean =
        !name.is_empty() && name.iter().all(u8::is_ascii_graphic) && !value.iter().any(|byte| b"\r\n".contains(byte));
    clean.then(|| Header { name: name.to_ascii_lowercase(), value: value.trim_ascii() })
}

/// What comes before and after the first `mark`, which begins with a carriage return.
fn split<'a>(text: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.iter().position(|byte| *byte == b'\r')?;
        if let Some(after) = text.get(at..)?.strip_prefix(mark) {
            return Some((text.get(..at)?, after));
        }
        from = at + 1;
    }
}
