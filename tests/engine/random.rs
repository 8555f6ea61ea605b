//! Random stories: whatever upstream and stores do, and in whatever order, what always holds does hold.

use std::time::Duration;

use oncegate::engine::answer::Execution;
use oncegate::entropy::Entropy;
use oncegate::operation::admission::Repeat;
use oncegate::operation::{Event, EventKind, Kept, StateName as S};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;

use crate::rig::gateway::BEGIN;
use crate::rig::store::Kept as Record;
use crate::rig::upstream::{Fate, Seen};
use crate::rig::{Act, Ask, Fault, Gateway, Setup, Step, Told, answers, ms, secs};

const MAX_ATTEMPTS: usize = 4;
const RETRY: &str = "max_attempts = 4\nattempt_timeout = \"3s\"\ndeadline = \"20s\"";
/// By then everything that can end has ended.
const QUIET: Duration = secs(200);
const STATUSES: [u16; 18] = [200, 201, 204, 302, 401, 404, 408, 409, 421, 422, 425, 429, 500, 502, 503, 504, 521, 599];
const STEPS: [Step; 10] = [
    Step::Claim,
    Step::Renewal,
    Step::TakeOver,
    Step::To(S::Claimed),
    Step::To(S::Sent),
    Step::To(S::Waiting),
    Step::To(S::Succeeded),
    Step::To(S::Failed),
    Step::To(S::NotExecuted),
    Step::To(S::Unknown),
];

/// One story. Its seed is printed if it ends badly.
pub fn story(seed: u64) {
    let _printed = Printed(seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(told(&Draw(Entropy::seeded(seed)), seed));
}

struct Printed(u64);

impl Drop for Printed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

async fn told(draw: &Draw, seed: u64) {
    let base = *draw.one(&[Setup::UNSAFE, Setup::WITH_KEY, Setup::HARMLESS]);
    let setup = Setup { lease: "2s", retry: RETRY, ..base };
    let script = (0..draw.upto(8)).map(|place| draw.act(place)).collect();
    let first = Gateway::seeded(seed, script, setup);
    let gateways = [first.clone(), first.neighbour()];
    for gateway in &gateways {
        draw.trouble(gateway);
        gateway.worker();
    }
    let callers: Vec<_> = (0..=draw.upto(4)).map(|_| draw.caller(draw.one(&gateways))).collect();
    first.at(QUIET).await;

    let mut all = Vec::new();
    for caller in callers {
        assert!(caller.is_finished(), "a caller still waits");
        all.extend(caller.await.ok());
    }
    let seen = first.upstream.seen();
    match first.kept("k").await {
        Some(record) => check(&record, &seen, &all, first.route().repeat_for(&http::Method::POST)),
        None => assert!(seen.is_empty(), "sent without a record"),
    }
}

fn check(record: &Record, seen: &[Seen], told: &[Told], repeat: Repeat) {
    let story = || in_lines(record, seen, told);
    assert!(seen.iter().all(|send| send.request() == seen[0].request()), "not the same request: {}", story());
    let in_time = |send: &Seen| send.header("x-request-timeout-ms") != Some("0");
    assert!(seen.iter().all(in_time), "sent after the deadline: {}", story());
    if repeat == Repeat::Unsafe {
        let refused_before = |pair: &[Seen]| pair[0].fate == Fate::Refused && pair[0].decided <= pair[1].at;
        assert!(seen.windows(2).all(refused_before), "sent twice: {}", story());
    }
    for (run, bound) in runs(&record.events) {
        let sends = seen.iter().filter(|send| run.contains(&attempt(send))).count();
        assert!(sends <= bound, "{sends} sends in one run: {}", story());
    }
    let fates = |fate| seen.iter().any(|send| send.fate == fate);
    match record.operation.state.name() {
        S::Succeeded | S::Failed => assert!(fates(Fate::Final), "nothing to settle with: {}", story()),
        S::NotExecuted => assert!(!fates(Fate::Final) && !fates(Fate::Open), "it may have run: {}", story()),
        S::Unknown => {}
        _ => panic!("not ended: {}", story()),
    }
    let kept = record.operation.state.settled().filter(|settled| settled.kept == Kept::Whole);
    assert_eq!(kept.is_some(), record.receipt.is_some(), "{}", story());
    for told in told.iter().filter(|told| told.is_receipt()) {
        let receipt = record.receipt.as_ref().map(|receipt| (receipt.status, &receipt.body));
        assert_eq!(receipt, Some((told.status, &told.body)), "another receipt: {}", story());
    }
}

/// The story for whoever has to understand it.
fn in_lines(record: &Record, seen: &[Seen], told: &[Told]) -> String {
    let events = record.events.iter().map(|event| {
        let Event { at, kind, from, to, attempts, token, cause, .. } = event;
        format!("{:?} {kind:?} {from:?} -> {to:?}, {attempts} attempts, token {token}, {cause:?}", at.since(BEGIN))
    });
    let sends =
        seen.iter().map(|send| format!("{:?} send {}: {:?} at {:?}", send.at, attempt(send), send.fate, send.decided));
    let told = told
        .iter()
        .map(|told| format!("{:?} told {} {:?}, {:?}", told.at, told.status, told.code, told.marks.execution));
    let lines: Vec<_> = events.chain(sends).chain(told).collect();
    format!("{:?}\n{}", record.operation.state, lines.join("\n"))
}

impl Told {
    /// The caller may rely on being told the same again.
    fn is_receipt(&self) -> bool {
        self.code.is_none() && self.marks.execution == Some(Execution::Executed) && !self.marks.receipt_none
    }
}

fn attempt(send: &Seen) -> u32 {
    send.header("oncegate-attempt").unwrap().parse().unwrap()
}

/// The numbers of the attempts of each run, and how many there may be: each take-over of a call that was lost in the
/// middle of an attempt has one more.
fn runs(events: &[Event]) -> Vec<(std::ops::RangeInclusive<u32>, usize)> {
    let is_begin = |event: &&Event| matches!(event.kind, EventKind::Claimed | EventKind::ClaimedAgain);
    let begins: Vec<_> = events.iter().filter(is_begin).collect();
    let run = |(place, begin): (usize, &&Event)| {
        let first = begin.attempts + u32::from(begin.to != Some(S::Sent));
        let next = begins.get(place + 1);
        let last = next.map_or(u32::MAX, |next| next.attempts - u32::from(next.to == Some(S::Sent)));
        let until = next.map_or(u64::MAX, |next| next.revision);
        let taken_over =
            |event: &&Event| event.kind == EventKind::TakenOver && (begin.revision..until).contains(&event.revision);
        (first..=last, MAX_ATTEMPTS + events.iter().filter(taken_over).count())
    };
    begins.iter().enumerate().map(run).collect()
}

/// What is left to chance.
struct Draw(Entropy);

impl Draw {
    fn upto(&self, most: u64) -> u64 {
        self.0.up_to(most)
    }

    fn one<'a, T>(&self, all: &'a [T]) -> &'a T {
        &all[self.upto(all.len() as u64 - 1) as usize]
    }

    fn within(&self, most: Duration) -> Duration {
        ms(self.upto(most.as_millis() as u64))
    }

    fn act(&self, place: u64) -> Act {
        match self.upto(11) {
            0 => Act::Refuses,
            1 => Act::ConnectsAfter(self.within(secs(4))),
            2 => Act::Closes,
            3 => Act::IsSilent,
            4 => Act::Babbles,
            _ => self.answer(place),
        }
    }

    fn answer(&self, place: u64) -> Act {
        let mut reply = answers(*self.one(&STATUSES)).body(&format!("answer {place}")).after(self.within(ms(2900)));
        if self.upto(3) == 0 {
            reply = reply.with("retry-after", *self.one(&["0", "2", "9", "90"]));
        }
        if self.upto(9) == 0 {
            reply = reply.with("x-should-retry", "false");
        }
        if self.upto(5) == 0 { reply.cut().into() } else { reply.into() }
    }

    /// Steps that fail, and a time without a store.
    fn trouble(&self, gateway: &Gateway) {
        for _ in 0..self.upto(3) {
            let wait = self.within(secs(5));
            let fault = *self.one(&[Fault::Unheard, Fault::ReplyLost, Fault::Late(wait), Fault::Slow(wait)]);
            gateway.store.fails(*self.one(&STEPS), fault, 1 + self.upto(2) as usize);
        }
        if self.upto(1) == 0 {
            let (begin, length, gateway) = (self.within(secs(20)), self.within(secs(30)), gateway.clone());
            tokio::spawn(async move {
                gateway.at(begin).await;
                gateway.store.goes_away();
                gateway.at(begin + length).await;
                gateway.store.comes_back();
            });
        }
    }

    /// Somebody who calls at some time, from somewhere, and may hang up.
    fn caller(&self, gateway: &Gateway) -> JoinHandle<Told> {
        let (begin, gateway) = (self.within(secs(30)), gateway.clone());
        let mut ask = Ask::keyed("k");
        if self.upto(3) == 0 {
            ask = ask.within(ms(100) + self.within(secs(10)));
        }
        let hangs_up = (self.upto(4) == 0).then(|| begin + self.within(secs(5)));
        let end = gateway.clone();
        let caller = tokio::spawn(async move {
            gateway.at(begin).await;
            gateway.ask(ask).await
        });
        if let Some(moment) = hangs_up {
            let caller = caller.abort_handle();
            tokio::spawn(async move {
                end.at(moment).await;
                caller.abort();
            });
        }
        caller
    }
}
