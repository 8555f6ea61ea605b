//! Reads along with hyper and says where a request can be read in more than one way.
//!
//! hyper repairs some of what it is given: it drops a Content-Length beside a Transfer-Encoding, folds two equal
//! lengths, takes a bare line feed for the end of a line and cuts a fragment off a target. The next hop may repair it
//! differently, and then a request hides in another one. This module sees the bytes as they came. It never changes them
//! and it never answers: the door does, with 400 and the end of the connection.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a request head cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguity {
    BareLineFeed,
    FoldedLine,
    Fragment,
    TwoLengths,
    TwoCodings,
    LengthAndCoding,
}

impl Ambiguity {
    const ALL: [Self; 6] = [
        Self::BareLineFeed,
        Self::FoldedLine,
        Self::Fragment,
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
            Self::TwoLengths => "there is more than one Content-Length",
            Self::TwoCodings => "there is more than one Transfer-Encoding",
            Self::LengthAndCoding => "there are both Content-Length and Transfer-Encoding",
        }
    }
}

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
    /// The beginning of a line whose end has not come yet. What hyper takes of a head bounds it.
    beginning: Vec<u8>,
    heads: u64,
    /// Of the present head.
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
    pub fn follow(&mut self, mut bytes: &[u8], verdict: &Verdict) {
        while !bytes.is_empty() {
            bytes = match self.place {
                Place::Over => return,
                Place::Body(left) => self.skip(bytes, left, Place::RequestLine, Place::Body),
                Place::Chunk(left) => self.skip(bytes, left, Place::ChunkSize, Place::Chunk),
                Place::RequestLine | Place::Headers | Place::ChunkSize | Place::Trailers => self.piece(bytes, verdict),
            };
        }
    }

    fn skip<'a>(&mut self, bytes: &'a [u8], left: u64, then: Place, more: fn(u64) -> Place) -> &'a [u8] {
        let here = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - here as u64;
        self.place = if left == 0 { then } else { more(left) };
        bytes.get(here..).unwrap_or_default()
    }

    /// Takes bytes up to the end of a line and gives back the others.
    fn piece<'a>(&mut self, bytes: &'a [u8], verdict: &Verdict) -> &'a [u8] {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.beginning.extend_from_slice(bytes);
            return &[];
        };
        let (piece, rest) = bytes.split_at(end + 1);
        let read = if self.beginning.is_empty() {
            self.line(piece)
        } else {
            self.beginning.extend_from_slice(piece);
            let whole = std::mem::take(&mut self.beginning);
            self.line(&whole)
        };
        if let Err(ambiguity) = read {
            verdict.set(self.heads, ambiguity);
            self.place = Place::Over;
        }
        rest
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Ambiguity> {
        let text = line.strip_suffix(b"\r\n");
        match self.place {
            Place::RequestLine if text.is_some_and(<[u8]>::is_empty) => {}
            Place::RequestLine => {
                self.heads += 1;
                self.request_line(text.ok_or(Ambiguity::BareLineFeed)?)?;
            }
            Place::Headers => self.header(text.ok_or(Ambiguity::BareLineFeed)?)?,
            Place::ChunkSize => self.place = text.and_then(chunk_size).unwrap_or(Place::Over),
            Place::Trailers if text.is_some_and(<[u8]>::is_empty) => self.place = Place::RequestLine,
            Place::Trailers | Place::Body(_) | Place::Chunk(_) | Place::Over => {}
        }
        Ok(())
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

    /// A length that is no number is hyper's to refuse.
    fn content_length(&mut self, value: &[u8]) -> Result<(), Ambiguity> {
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
        let length = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0);
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

/// What follows the line that opens a chunk; `None` if hyper will not read it either.
fn chunk_size(text: &[u8]) -> Option<Place> {
    let digits = text.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    let size = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    match size {
        0 => Some(Place::Trailers),
        size => size.checked_add(2).map(Place::Chunk),
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
            framing.follow(piece, &verdict);
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

    #[test]
    fn nothing_is_looked_for_behind_a_body_that_hyper_refuses() {
        let bytes = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nGET /#f HTTP/1.1\r\n\r\n";
        assert_eq!(read(bytes), None);
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
