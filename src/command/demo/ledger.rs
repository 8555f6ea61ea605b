//! What the payment service of the demo does for a request, and what it remembers of it.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use bytes::Bytes;

/// How long a busy service wants to be left alone, in seconds.
pub(super) const BUSY_SECONDS: u32 = 1;

/// The books of the service.
#[derive(Debug)]
pub(super) struct Ledger {
    mishaps: VecDeque<Mishap>,
    requests: u32,
    charges: u32,
    by_key: HashMap<Vec<u8>, Known>,
    /// Not yet shown.
    deeds: Vec<Deed>,
}

/// What a key was used for.
#[derive(Debug)]
struct Known {
    body: Bytes,
    charge: u32,
}

/// A bad moment of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    /// It works, and does not come to the answer.
    Slow,
    /// It works, then the connection breaks.
    AnswerLost,
    /// It says 429, and does nothing.
    TooBusy,
}

/// What was done for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deed {
    request: u32,
    pub(super) work: Work,
    pub(super) mishap: Option<Mishap>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Nothing: too busy.
    Refused,
    Charged(u32),
    /// Nothing: the key was used for the same request before, which made this charge.
    Known(u32),
    /// Nothing: the key was used for another request before.
    KeyReused,
}

impl Ledger {
    /// An empty one; `mishaps` happen to the first requests, in this order.
    pub(super) fn new(mishaps: impl IntoIterator<Item = Mishap>) -> Self {
        let mishaps = mishaps.into_iter().collect();
        Self { mishaps, requests: 0, charges: 0, by_key: HashMap::new(), deeds: Vec::new() }
    }

    /// Does the work for a request, once for each key; a request without a key is always new.
    pub(super) fn take(&mut self, key: Option<Vec<u8>>, body: Bytes) -> Deed {
        self.requests += 1;
        let mishap = self.mishaps.pop_front();
        let work = match mishap {
            Some(Mishap::TooBusy) => Work::Refused,
            Some(Mishap::Slow | Mishap::AnswerLost) | None => self.work(key, body),
        };
        let deed = Deed { request: self.requests, work, mishap };
        self.deeds.push(deed);
        deed
    }

    fn work(&mut self, key: Option<Vec<u8>>, body: Bytes) -> Work {
        match key.as_ref().and_then(|key| self.by_key.get(key)) {
            Some(known) if known.body == body => return Work::Known(known.charge),
            Some(_) => return Work::KeyReused,
            None => {}
        }
        self.charges += 1;
        if let Some(key) = key {
            self.by_key.insert(key, Known { body, charge: self.charges });
        }
        Work::Charged(self.charges)
    }

    /// How many charges were made.
    pub(super) fn charges(&self) -> u32 {
        self.charges
    }

    pub(super) fn has_deeds(&self) -> bool {
        !self.deeds.is_empty()
    }

    /// What was done since the last time somebody asked.
    pub(super) fn take_deeds(&mut self) -> Vec<Deed> {
        std::mem::take(&mut self.deeds)
    }
}

impl Deed {
    /// Whether money moved.
    pub(super) fn is_charge(&self) -> bool {
        matches!(self.work, Work::Charged(_))
    }
}

/// As the service's column shows it.
impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}: ", self.request)?;
        match self.work {
            Work::Refused => write!(f, "429, Retry-After: {BUSY_SECONDS}")?,
            Work::Charged(charge) => write!(f, "CHARGED, ch_{charge}")?,
            Work::Known(charge) => write!(f, "key known, ch_{charge} again")?,
            Work::KeyReused => f.write_str("422, key used for another request")?,
        }
        match self.mishap {
            Some(Mishap::AnswerLost) => f.write_str("; answer lost"),
            Some(Mishap::Slow) => f.write_str("; no answer yet"),
            Some(Mishap::TooBusy) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn works(ledger: &mut Ledger, requests: &[(Option<&str>, &'static str)]) -> Vec<Work> {
        let take = |(key, body): &(Option<&str>, &'static str)| {
            ledger.take(key.map(|key| key.as_bytes().to_owned()), Bytes::from_static(body.as_bytes())).work
        };
        requests.iter().map(take).collect()
    }

    #[test]
    fn a_key_charges_once_and_no_key_each_time() {
        let mut ledger = Ledger::new([]);
        let worked = works(&mut ledger, &[(None, "a"), (None, "a"), (Some("k"), "a"), (Some("k"), "a")]);
        assert_eq!(worked, [Work::Charged(1), Work::Charged(2), Work::Charged(3), Work::Known(3)]);
        assert_eq!(ledger.charges(), 3);
    }

    #[test]
    fn a_key_stands_for_one_body() {
        let mut ledger = Ledger::new([]);
        assert_eq!(works(&mut ledger, &[(Some("k"), "a"), (Some("k"), "b")]), [Work::Charged(1), Work::KeyReused]);
        assert_eq!(ledger.charges(), 1);
    }

    #[test]
    fn only_a_refusal_does_not_work() {
        let mut ledger = Ledger::new([Mishap::Slow, Mishap::AnswerLost, Mishap::TooBusy]);
        let worked = works(&mut ledger, &[(None, "a"); 4]);
        assert_eq!(worked, [Work::Charged(1), Work::Charged(2), Work::Refused, Work::Charged(3)]);
        let shown: Vec<_> = ledger.take_deeds().iter().map(Deed::to_string).collect();
        assert_eq!(shown[1..3], ["request 2: CHARGED, ch_2; answer lost", "request 3: 429, Retry-After: 1"]);
        assert!(!ledger.has_deeds());
    }
}
