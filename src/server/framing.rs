//! Reads along with hyper and says where a request can be read in more than one way.
//!
//! hyper repairs some of what it is given: it drops a Content-Length beside a Transfer-Encoding, folds two equal
//! lengths, takes a bare line feed for the end of a line and cuts a fragment off a target. The next hop may repair it
//! differently, and then a request hides in another one. This module sees the bytes as they came. It never changes them
//! and it never answers: the door does, with 400 and the end of the connection. A chunk or a trailer that must not pass
//! ends the body before hyper sees it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a request head cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguity {
    BareLineFeed,
    FoldedLine,
    Fragment,
    NoLength,
    TwoLengths,
    TwoCodings,
    LengthAndCoding,
}

impl Ambiguity {
    const ALL: [Self; 7] = [
        Self::BareLineFeed,
        Self::FoldedLine,
        Self::Fragment,
        Self::NoLength,
        Self::TwoLengths,
        Self::TwoCodings,
        Self::LengthAndCoding,
    ];

    /// What is wrong, for the one who has to correct it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BareLineFeed => "a line of the head ends with a line feed alone; lines end with CR LF",
            Self::FoldedLine => "a header is folded over two lines",
            Self::Fragment => "the target has a fragment (#), which a client keeps to itself",
            Self::NoLength => "Content-Length is not a number of bytes",
            Self::TwoLengths => "there is more than one Content-Length",
            Self::TwoCodings => "there is more than one Transfer-Encoding",
            Self::LengthAndCoding => "there are both Content-Length and Transfer-Encoding",
        }
    }
}

/// The longest line that opens a chunk. hyper takes any number of zeros and blanks in one, and never shows them.
const LONGEST_CHUNK_LINE: usize = 16 << 10;

/// Why the body of a request ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a chunk does not begin with its size in hexadecimal digits, an extension at most, and CR LF")]
    ChunkLine,
    #[error("the line that opens a chunk is longer than {LONGEST_CHUNK_LINE} bytes")]
    LongChunkLine,
    #[error("a line behind the last chunk does not end with CR LF")]
    TrailerLine,
}

/// The bytes of one reading end with a malformed line.
#[derive(Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes before the line.
    pub heard: usize,
    pub malformed: Malformed,
}

/// The longest length that hyper reads as one.
const LONGEST: u64 = u64::MAX - 2;

/// Which head of a connection was ambiguous; shared between the reader of its bytes and the one who answers.
#[derive(Debug, Default)]
pub struct Verdict(AtomicU64);

/// Bits of a [`Verdict`] that hold the kind of ambiguity; the rest is the number of the head, counted from 1.
const KIND_BITS: u32 = 8;

impl Verdict {
    /// Whether the `head`-th head of the connection, or one before it, was ambiguous.
    pub fn on(&self, head: u64) -> Option<Ambiguity> {
        let found = self.0.load(Ordering::Acquire);
        let kind = usize::try_from(found & ((1 << KIND_BITS) - 1)).ok()?.checked_sub(1)?;
        let ambiguity = Ambiguity::ALL.get(kind).copied()?;
        (found >> KIND_BITS <= head).then_some(ambiguity)
    }

    fn set(&self, head: u64, ambiguity: Ambiguity) {
        self.0.store(head << KIND_BITS | (ambiguity as u64 + 1), Ordering::Release);
    }
}

/// Where in the stream of requests we are.
#[derive(Debug, Default)]
enum Place {
    #[default]
    RequestLine,
    Headers,
    /// This many bytes of a body, then the next request.
    Body(u64),
    ChunkSize,
    /// This many bytes of a chunk and its line end.
    Chunk(u64),
    Trailers,
    /// hyper ends the connection here by itself, or the door does: what follows is nobody's request.
    Over,
}

/// Follows the bytes of one connection.
#[derive(Debug, Default)]
pub struct Framing {
    place: Place,
    /// The beginning of a line whose end has not come yet. What hyper takes of a head and of trailers bounds it.
    beginning: Vec<u8>,
    heads: u64,
    /// Bytes of the header lines of the present head.
    fields: usize,
    /// The most bytes of any head so far: hyper may refuse one, and we are at what came behind it.
    longest_target: usize,
    most_fields: usize,
    /// What it says of its body.
    length: Option<u64>,
    /// The present head has a Transfer-Encoding.
    chunked: bool,
}

impl Framing {
    /// For bytes that are not HTTP/1: nothing in them is looked at.
    pub fn none() -> Self {
        Self { place: Place::Over, ..Self::default() }
    }

    /// Takes the next bytes of the connection; an ambiguity goes to `verdict`.
    ///
    /// # Errors
    /// A line of the body must not be read by anybody, nor what follows it.
    pub fn follow(&mut self, bytes: &[u8], verdict: &Verdict) -> Result<(), Cut> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = match self.place {
                Place::Over => return Ok(()),
                Place::Body(left) => self.skip(rest, left, Place::RequestLine, Place::Body),
                Place::Chunk(left) => self.skip(rest, left, Place::ChunkSize, Place::Chunk),
                Place::RequestLine | Place::Headers | Place::ChunkSize | Place::Trailers => {
                    let heard = bytes.len() - rest.len();
                    self.piece(rest, verdict).map_err(|malformed| Cut { heard, malformed })?
                }
            };
        }
        Ok(())
    }

    /// Whether a head that is too long is so for its target.
    pub fn is_mostly_target(&self) -> bool {
        let target_is_coming = matches!(self.place, Place::RequestLine) && !self.beginning.is_empty();
        target_is_coming || self.longest_target > self.most_fields.max(self.fields + self.beginning.len())
    }

    fn skip<'a>(&mut self, bytes: &'a [u8], left: u64, then: Place, more: fn(u64) -> Place) -> &'a [u8] {
        let here = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - here as u64;
        self.place = if left == 0 { then } else { more(left) };
        bytes.get(here..).unwrap_or_default()
    }

    /// Takes bytes up to the end of a line and gives back the others.
    fn piece<'a>(&mut self, bytes: &'a [u8], verdict: &Verdict) -> Result<&'a [u8], Malformed> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (piece, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        if matches!(self.place, Place::ChunkSize) && self.beginning.len() + piece.len() > LONGEST_CHUNK_LINE {
            self.place = Place::Over;
            return Err(Malformed::LongChunkLine);
        }
        if end.is_none() {
            self.beginning.extend_from_slice(piece);
            return Ok(rest);
        }
        if self.beginning.is_empty() {
            self.line(piece, verdict)?;
        } else {
            self.beginning.extend_from_slice(piece);
            let whole = std::mem::take(&mut self.beginning);
            self.line(&whole, verdict)?;
        }
        Ok(rest)
    }

    fn line(&mut self, line: &[u8], verdict: &Verdict) -> Result<(), Malformed> {
        let text = line.strip_suffix(b"\r\n");
        let next = match self.place {
            Place::RequestLine if text.is_some_and(<[u8]>::is_empty) => return Ok(()),
            Place::RequestLine => {
                self.heads += 1;
                (self.longest_target, self.fields) = (self.longest_target.max(line.len()), 0);
                let read = text.ok_or(Ambiguity::BareLineFeed).and_then(|text| self.request_line(text));
                self.judge(read, verdict);
                return Ok(());
            }
            Place::Headers => {
                self.fields += line.len();
                self.most_fields = self.most_fields.max(self.fields);
                let read = text.ok_or(Ambiguity::BareLineFeed).and_then(|text| self.header(text));
                self.judge(read, verdict);
                return Ok(());
            }
            Place::ChunkSize => text.ok_or(Malformed::ChunkLine).and_then(after_chunk_line),
            Place::Trailers => match text {
                Some([]) => Ok(Place::RequestLine),
                Some(_) => Ok(Place::Trailers),
                None => Err(Malformed::TrailerLine),
            },
            Place::Body(_) | Place::Chunk(_) | Place::Over => return Ok(()),
        };
        self.place = next.inspect_err(|_| self.place = Place::Over)?;
        Ok(())
    }

    fn judge(&mut self, read: Result<(), Ambiguity>, verdict: &Verdict) {
        if let Err(ambiguity) = read {
            verdict.set(self.heads, ambiguity);
            self.place = Place::Over;
        }
    }

    fn request_line(&mut self, text: &[u8]) -> Result<(), Ambiguity> {
        (self.length, self.chunked, self.place) = (None, false, Place::Headers);
        if text.contains(&b'#') { Err(Ambiguity::Fragment) } else { Ok(()) }
    }

    fn header(&mut self, text: &[u8]) -> Result<(), Ambiguity> {
        let Some(first) = text.first() else {
            self.place = self.body();
            return Ok(());
        };
        if matches!(first, b' ' | b'\t') {
            return Err(Ambiguity::FoldedLine);
        }
        let (name, value) = text.split_at(text.iter().position(|byte| *byte == b':').unwrap_or(text.len()));
        if name.eq_ignore_ascii_case(b"content-length") {
            self.content_length(value)
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.transfer_encoding()
        } else {
            Ok(())
        }
    }

    fn content_length(&mut self, value: &[u8]) -> Result<(), Ambiguity> {
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
        let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let length = digits.and_then(|digits| digits.parse().ok()).filter(|length| *length <= LONGEST);
        let length = length.ok_or(Ambiguity::NoLength)?;
        match (self.length.replace(length), self.chunked) {
            (Some(_), _) => Err(Ambiguity::TwoLengths),
            (None, true) => Err(Ambiguity::LengthAndCoding),
            (None, false) => Ok(()),
        }
    }

    fn transfer_encoding(&mut self) -> Result<(), Ambiguity> {
        match (self.length, std::mem::replace(&mut self.chunked, true)) {
            (Some(_), _) => Err(Ambiguity::LengthAndCoding),
            (None, true) => Err(Ambiguity::TwoCodings),
            (None, false) => Ok(()),
        }
    }

    fn body(&self) -> Place {
        match self.length {
            _ if self.chunked => Place::ChunkSize,
            None | Some(0) => Place::RequestLine,
            Some(length) => Place::Body(length),
        }
    }
}

/// What follows the line that opens a chunk. An extension is let pass unread, for nobody gives it a meaning.
fn after_chunk_line(text: &[u8]) -> Result<Place, Malformed> {
    let (size, extension) = text.split_at(text.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(text.len()));
    let size = std::str::from_utf8(size).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let is_plain = extension.iter().all(|byte| !byte.is_ascii_control() || *byte == b'\t');
    let is_extension = extension.is_empty() || extension.trim_ascii_start().starts_with(b";");
    match size.filter(|_| is_plain && is_extension) {
        Some(0) => Ok(Place::Trailers),
        Some(size) => size.checked_add(2).map(Place::Chunk).ok_or(Malformed::ChunkLine),
        None => Err(Malformed::ChunkLine),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first ambiguity in `bytes`, with the number of the head.
    fn read(bytes: &[u8]) -> Option<(u64, Ambiguity)> {
        read_in(&[bytes]).1
    }

    fn read_in(pieces: &[&[u8]]) -> (u64, Option<(u64, Ambiguity)>) {
        let (mut framing, verdict) = (Framing::default(), Verdict::default());
        for piece in pieces {
            if framing.follow(piece, &verdict).is_err() {
                break;
            }
        }
        (framing.heads, (1..=framing.heads).find_map(|head| verdict.on(head).map(|found| (head, found))))
    }

    #[test]
    fn what_may_be_read_in_two_ways_is_named() {
        let cases: &[(&str, Ambiguity)] = &[
            ("POST / HTTP/1.1\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n", Ambiguity::LengthAndCoding),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 6\r\n\r\n", Ambiguity::LengthAndCoding),
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", Ambiguity::TwoLengths),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
                Ambiguity::TwoCodings,
            ),
            ("GET / HTTP/1.1\nHost: a\r\n\r\n", Ambiguity::BareLineFeed),
            ("GET / HTTP/1.1\r\nHost: a\n\r\n", Ambiguity::BareLineFeed),
            ("GET / HTTP/1.1\r\nHost: a\r\n\n", Ambiguity::BareLineFeed),
            ("\nGET / HTTP/1.1\r\n\r\n", Ambiguity::BareLineFeed),
            ("GET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n", Ambiguity::FoldedLine),
            ("GET /a#b HTTP/1.1\r\n\r\n", Ambiguity::Fragment),
            ("POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", Ambiguity::NoLength),
            ("POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello", Ambiguity::NoLength),
            ("POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\nhello", Ambiguity::NoLength),
            ("POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\nhello", Ambiguity::NoLength),
        ];
        for (bytes, ambiguity) in cases {
            assert_eq!(read(bytes.as_bytes()), Some((1, *ambiguity)), "{bytes:?}");
        }
    }

    #[test]
    fn a_plain_request_is_not_doubted() {
        for bytes in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n#\n\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n\n#\r\n0\r\nX: y\r\n\r\n",
        ] {
            assert_eq!(read(bytes.as_bytes()), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_doubt_names_the_request_and_not_those_before_it() {
        let bytes = b"POST /1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n\
            POST /2 HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET /3#f HTTP/1.1\r\n\r\n";
        assert_eq!(read(bytes), Some((3, Ambiguity::Fragment)));
    }

    /// What of a chunked body is heard before its malformed line.
    fn cut(body: &str) -> Option<(String, Malformed)> {
        const HEAD: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        let bytes = format!("{HEAD}{body}");
        let cut = Framing::default().follow(bytes.as_bytes(), &Verdict::default()).err()?;
        Some((bytes[HEAD.len()..cut.heard].to_owned(), cut.malformed))
    }

    #[test]
    fn a_chunk_has_one_size_in_plain_digits() {
        for line in
            ["", "g", "0x1", "+1", "-1", " 1", "1 ", "1_0", "1\r", "1;a\0", "1;a\rb", "1 a", "ffffffffffffffff", "1\n1"]
        {
            let body = format!("2\r\nab\r\n{line}\r\nc\r\n0\r\n\r\n");
            assert_eq!(cut(&body), Some(("2\r\nab\r\n".to_owned(), Malformed::ChunkLine)), "{line:?}");
        }
        for line in ["1", "1;", "1;a=b", "1 ;\ta=\"\u{e9}\"", "0001", "00000000000000000001"] {
            assert_eq!(cut(&format!("{line}\r\nc\r\n0\r\n\r\n")), None, "{line:?}");
        }
    }

    #[test]
    fn a_chunk_is_opened_by_a_line_of_bounded_length() {
        let zeros = "0".repeat(LONGEST_CHUNK_LINE - "1\r\n".len());
        assert_eq!(cut(&format!("{zeros}1\r\nc\r\n0\r\n\r\n")), None);
        assert_eq!(cut(&format!("{zeros}01\r\nc\r\n")), Some((String::new(), Malformed::LongChunkLine)));
        let (mut framing, verdict) = (Framing::default(), Verdict::default());
        framing.follow(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", &verdict).unwrap();
        let ended = (0..1000).find_map(|_| framing.follow(&[b'0'; 1000], &verdict).err());
        assert_eq!(ended, Some(Cut { heard: 0, malformed: Malformed::LongChunkLine }));
        assert!(framing.beginning.len() <= LONGEST_CHUNK_LINE);
    }

    #[test]
    fn a_trailer_ends_as_every_line_does() {
        for line in ["X: y\n", "\n"] {
            let heard = "0\r\nX-Sum: 1\r\n".to_owned();
            assert_eq!(cut(&format!("{heard}{line}\r\n")), Some((heard, Malformed::TrailerLine)), "{line:?}");
        }
    }

    #[test]
    fn nothing_is_looked_for_behind_a_malformed_line() {
        let (mut framing, verdict) = (Framing::default(), Verdict::default());
        let bytes = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nGET /#f HTTP/1.1\r\n\r\n";
        assert!(framing.follow(bytes, &verdict).is_err());
        assert_eq!((framing.follow(bytes, &verdict), framing.heads, verdict.on(9)), (Ok(()), 1, None));
    }

    fn request() -> impl Strategy<Value = String> {
        let text = "[ -~\r\n]{0,40}";
        prop_oneof![
            Just("GET /a?b=c HTTP/1.1\r\nHost: gw\r\n\r\n".to_owned()),
            text.prop_map(|body| format!("POST / HTTP/1.1\r\ncontent-LENGTH:{}\r\n\r\n{body}", body.len())),
            "[ -~\r\n]{1,40}".prop_map(|body| {
                let length = body.len();
                format!("PUT / HTTP/1.1\r\nTransfer-encoding: chunked\r\n\r\n{length:X}\r\n{body}\r\n0\r\n\r\n")
            }),
        ]
    }

    proptest! {
        #[test]
        fn every_request_is_counted_and_none_is_doubted(requests in prop::collection::vec(request(), 1..6)) {
            let bytes = requests.concat();
            prop_assert_eq!(read_in(&[bytes.as_bytes()]), (requests.len() as u64, None));
        }

        #[test]
        fn pieces_read_as_the_whole(bytes in "[#:;0-9\r\n a]{0,80}", cut in 0usize..120, start in any::<bool>()) {
            let head = if start { "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" } else { "" };
            let bytes = format!("{head}{bytes}");
            let (one, two) = bytes.as_bytes().split_at(cut.min(bytes.len()));
            prop_assert_eq!(read_in(&[one, two]), read_in(&[bytes.as_bytes()]));
        }
    }
}
