//! What a server may send. The library believes every length that it is told; a server that is none, or is no friend,
//! must not fill the memory with an answer that nobody asked for.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of one string: what a server takes as a value unless it is told otherwise.
const STRING: u64 = 512 << 20;
/// Entries of one list.
const ENTRIES: u64 = 1 << 20;
/// Bytes of a line: a number, a status, an error.
const LINE: usize = 1 << 16;

/// A connection that ends where an answer goes beyond all bounds, before its bytes are waited for.
pub(super) struct Bounded<S> {
    stream: S,
    place: Place,
}

impl<S> Bounded<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, place: Place::default() }
    }
}

/// Where in the answers the reader is.
#[derive(Debug, Default)]
struct Place {
    /// Of the line that has begun.
    length: usize,
    kind: u8,
    number: u64,
    is_negative: bool,
    /// What is left of a string, with its end.
    string: u64,
}

/// The answer is larger than any may be.
#[derive(Debug, thiserror::Error)]
#[error("an answer of Redis is larger than any may be")]
struct TooLarge;

impl Place {
    fn advance(&mut self, mut bytes: &[u8]) -> Result<(), TooLarge> {
        while let Some((byte, rest)) = bytes.split_first() {
            if self.string > 0 {
                let passed = usize::try_from(self.string).unwrap_or(usize::MAX).min(bytes.len());
                self.string -= passed as u64;
                bytes = bytes.get(passed..).unwrap_or_default();
                continue;
            }
            self.take(*byte)?;
            bytes = rest;
        }
        Ok(())
    }

    /// One more byte of a line.
    fn take(&mut self, byte: u8) -> Result<(), TooLarge> {
        self.length += 1;
        match byte {
            _ if self.length > LINE => return Err(TooLarge),
            _ if self.length == 1 => self.kind = byte,
            b'0'..=b'9' => self.number = self.number.saturating_mul(10).saturating_add(u64::from(byte - b'0')),
            b'-' => self.is_negative = true,
            b'\n' => {
                self.string = self.end_of_line()?;
                (self.length, self.number, self.is_negative) = (0, 0, false);
            }
            _ => {}
        }
        Ok(())
    }

    /// How many bytes follow that are no lines.
    fn end_of_line(&self) -> Result<u64, TooLarge> {
        match self.kind {
            b'$' | b'*' if self.is_negative => Ok(0),
            b'$' | b'!' | b'=' if self.number <= STRING && !self.is_negative => Ok(self.number + 2),
            b'*' | b'%' | b'~' | b'>' | b'|' if self.number <= ENTRIES && !self.is_negative => Ok(0),
            b'$' | b'!' | b'=' | b'*' | b'%' | b'~' | b'>' | b'|' => Err(TooLarge),
            _ => Ok(0),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        Poll::Ready(self.place.advance(read).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_taken(answers: &[u8]) -> bool {
        Place::default().advance(answers).is_ok()
    }

    #[test]
    fn an_answer_ends_where_it_goes_beyond_all_bounds() {
        for answer in [
            "$999999999999\r\n",
            "$99999999999999999999999999\r\n",
            "=-1\r\n",
            "!-1\r\n",
            "*999999999\r\n",
            "*2\r\n+OK\r\n%9999999\r\n",
            "|-1\r\n",
            "$3\r\n$99\r\n~9999999\r\n",
        ] {
            assert!(!is_taken(answer.as_bytes()), "{answer}");
        }
        assert!(!is_taken(&[b'+'; LINE + 1]));
    }

    #[test]
    fn what_stands_in_a_string_is_no_length() {
        for answer in
            ["$15\r\n$999999999999\r\n\r\n:1\r\n", "$-1\r\n*-1\r\n*0\r\n", ":999999999999\r\n", "-ERR 999999999\r\n"]
        {
            assert!(is_taken(answer.as_bytes()), "{answer}");
        }
        let largest = [format!("${STRING}\r\n").as_bytes(), &[b'9'; 1 << 10]].concat();
        assert!(is_taken(&largest));
    }

    proptest! {
        /// However the bytes come, they mean the same.
        #[test]
        fn pieces_make_no_difference(cuts in prop::collection::vec(1usize..9, 1..40)) {
            let answers = b"*2\r\n$5\r\n*9\r\n$\r\n:12\r\n$-1\r\n+OK\r\n$12\r\n$99999999999\r\n*1048577\r\n";
            let mut place = Place::default();
            let (mut at, mut last) = (0, Ok(()));
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(answers.len());
                last = place.advance(&answers[at..end]);
                at = end;
                if at == answers.len() || last.is_err() {
                    break;
                }
            }
            prop_assert!(last.is_err() && at == answers.len(), "{at}");
        }
    }
}
