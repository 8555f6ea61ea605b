//! The begin of a body, read before anybody takes it.

use std::collections::VecDeque;

use bytes::Bytes;
use http_body::Frame;

use super::received::BodyError;

/// What a look ahead has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookedAhead {
    Whole(Bytes),
    /// It goes on beyond what was to be looked at.
    Longer,
    /// It broke off.
    Cut,
}

/// What has been read, in its order, and its end if that came.
#[derive(Default)]
pub(super) struct Ahead {
    frames: VecDeque<Frame<Bytes>>,
    end: Option<Result<(), BodyError>>,
    length: u64,
}

impl Ahead {
    /// Bytes that nobody has taken yet.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn put(&mut self, frame: Frame<Bytes>) {
        self.length += data_length(&frame);
        self.frames.push_back(frame);
    }

    pub(super) fn end(&mut self, end: Result<(), BodyError>) {
        self.end = Some(end);
    }

    /// The next frame or the end, if either is here.
    pub(super) fn take(&mut self) -> Option<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.frames.pop_front() {
            Some(frame) => {
                self.length -= data_length(&frame);
                Some(Some(Ok(frame)))
            }
            None if matches!(self.end, Some(Ok(()))) => Some(None),
            None => self.end.take().map(|end| end.err().map(Err)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && !matches!(self.end, Some(Err(_)))
    }

    /// All data in one piece.
    pub(super) fn whole(&self) -> Bytes {
        let mut pieces = self.frames.iter().filter_map(Frame::data_ref);
        match (pieces.next(), pieces.next()) {
            (None, _) => Bytes::new(),
            (Some(only), None) => only.clone(),
            (Some(_), Some(_)) => self.frames.iter().filter_map(Frame::data_ref).fold(Vec::new(), joined).into(),
        }
    }
}

fn joined(mut all: Vec<u8>, piece: &Bytes) -> Vec<u8> {
    all.extend_from_slice(piece);
    all
}

fn data_length(frame: &Frame<Bytes>) -> u64 {
    frame.data_ref().map_or(0, |data| data.len() as u64)
}
