//! From a key to its owner: the order of `engine/claim.rs`, `engine/meet.rs` and `engine/recover.rs`, restated as steps
//! between two waits. What is decided is decided by the functions that the engine calls.

use std::sync::Arc;

use bytes::Bytes;
use oncegate::operation::admission::{Admission, Repeat, ResendRule};
use oncegate::operation::dead_letter::Next;
use oncegate::operation::transition::{Change, Ended, Opening, RequestChange, claim};
use oncegate::operation::{
    Cause, Fence, Fingerprint, Identity, KeySource, Operation, OperationId, Scope, State, StateName, StoredRequest,
};
use oncegate::retry::decide;
use oncegate::store::{Claimed, Found, Written};

use super::setup::{Broken, IN_FLIGHT_WAIT, LEASE};
use super::task::{Ask, LastWord, Owner, Phase, Reply, Task, Then, Told, Transition, Word};
use super::world::World;

pub const FIRST_PAUSE: u64 = 50;
/// `engine/recover.rs`: how long a flight has to notice that its operation has no owner.
const OWN_FLIGHT: u64 = 1_000;
const POLL_FIRST: u64 = 40;
const POLL_MAX: u64 = 1_000;

impl World {
    /// `Engine::fly`: the first caller of a key flies, the others of this process wait for where he lands.
    pub fn call(&mut self, caller: usize) {
        let up: Vec<usize> = (0..self.gateways.len()).filter(|gateway| self.gateways[*gateway].up).collect();
        if up.is_empty() {
            return self.after(LEASE, super::world::Event::Call { caller });
        }
        let gateway = up[self.chance.pick(up.len())];
        let key = self.callers[caller].key;
        self.callers[caller].calls_left -= 1;
        self.callers[caller].waits = true;
        self.note(|| format!("caller {caller} calls gateway {gateway} with key {key}"));
        let pilot = self.gateways[gateway].flights[key].and_then(|pilot| self.tasks.get_mut(&pilot));
        if let Some(pilot) = pilot {
            return pilot.callers.push(caller);
        }
        let mut task = self.task(gateway, key);
        task.callers.push(caller);
        self.take_seat(&task);
        self.claim(task);
    }

    pub fn task(&mut self, gateway: usize, key: usize) -> Box<Task> {
        let id = self.mint() as u32;
        Box::new(Task {
            id,
            gateway,
            key,
            callers: Vec::new(),
            deadline: self.now + self.setup.policy.deadline.as_millis() as u64,
            phase: Phase::Over,
            awaited: 0,
            awaited_beside: 0,
            owner: None,
            last_word: None,
            tries: decide::Run::default(),
            counted: false,
        })
    }

    fn take_seat(&mut self, task: &Task) {
        self.gateways[task.gateway].flights[task.key] = Some(task.id);
    }

    /// `Engine::claim`.
    fn claim(&mut self, mut task: Box<Task>) {
        let ownership = self.ownership(task.gateway, task.deadline);
        let opening = Opening::of(self.setup.repeat);
        let step = self.step_of(task.gateway);
        let (identity, request) = (identity(task.key), request(self.setup.had_credential));
        let change = claim(operation_id(task.key), identity, request, ownership, opening, step);
        let change = Box::new(change.expect("a claim is an edge"));
        self.ask(&mut task, Ask::Claim(change.clone()), false);
        task.phase = Phase::Claim { change, since: self.now };
        self.keep(task);
    }

    pub fn claimed(&mut self, task: Box<Task>, change: Box<Change>, since: u64, reply: Reply) {
        match reply {
            Reply::Claimed(Claimed::Won) => self.own(task, change.operation, since),
            Reply::Claimed(Claimed::Exists(found) | Claimed::Alike(found)) => self.meet(task, found),
            reply => self.claim_failed(task, change, &reply),
        }
    }

    fn claim_failed(&mut self, task: Box<Task>, change: Box<Change>, reply: &Reply) {
        if matches!(reply, Reply::Timeout) {
            self.withdraw(&task, change);
        }
        self.conclude(task, Told::Problem("store unavailable"));
    }

    /// `Engine::meet`, one row.
    pub fn meet(&mut self, mut task: Box<Task>, found: Box<Found>) {
        let rule = self.rule_for(&found.operation);
        let fingerprint = fingerprint(task.key);
        let row = found.operation.admit(Some(&fingerprint), &rule, self.view(task.gateway));
        match row {
            Admission::InProgress => {
                let until = (self.now + IN_FLIGHT_WAIT).min(task.deadline);
                self.follow(task, until, POLL_FIRST);
            }
            Admission::TakeOver if self.is_due_too_late(&task, &found.operation) => {
                self.conclude(task, Told::Problem("in progress"));
            }
            admission @ (Admission::TakeOver | Admission::ClaimAgain) => {
                self.ask(&mut task, Ask::Request, false);
                task.phase = Phase::Fetch { found, admission };
                self.keep(task);
            }
            Admission::Lapse => self.end_lapsed(task, &found.operation, false),
            Admission::KeyReused => unreachable!("all callers of a key ask for the same"),
            row => {
                let told = self.told_of(&found, row);
                self.conclude(task, told);
            }
        }
    }

    fn is_due_too_late(&self, task: &Task, operation: &Operation) -> bool {
        let State::Waiting { not_before, .. } = operation.state else { return false };
        let wait = not_before.since(self.view(task.gateway)).as_millis() as u64;
        self.now + wait >= task.deadline
    }

    /// `Engine::enter`, or the middle of `Engine::recover` when nobody calls.
    pub fn fetched(&mut self, task: Box<Task>, found: Box<Found>, admission: Admission, reply: Reply) {
        let Reply::Request(kept) = reply else {
            return self.conclude(task, Told::Problem("store unavailable"));
        };
        let alone = task.callers.is_empty();
        let operation = &found.operation;
        if alone {
            let (rule, now) = (self.rule(), self.view(task.gateway));
            let goes_on = kept.as_ref().is_some_and(|kept| operation.may_go_on_alone(kept, &rule, now));
            return match admission {
                Admission::TakeOver if goes_on => self.enter(task, operation, admission, kept, true),
                Admission::TakeOver | Admission::Lapse => self.end_lapsed(task, operation, true),
                _ => self.conclude(task, Told::Lost),
            };
        }
        if kept.is_none() && (operation.may_have_run || operation.state.name() == StateName::Sent) {
            return match admission {
                Admission::TakeOver => self.end_lapsed(task, operation, false),
                _ => self.conclude(task, Told::Problem("outcome unknown")),
            };
        }
        self.enter(task, operation, admission, kept, false);
    }

    fn enter(
        &mut self,
        mut task: Box<Task>,
        operation: &Operation,
        admission: Admission,
        kept: Option<Box<StoredRequest>>,
        alone: bool,
    ) {
        let ownership = self.ownership(task.gateway, task.deadline);
        let step = self.step_of(task.gateway);
        let change = match admission {
            Admission::TakeOver => operation.take_over(ownership, step),
            _ => operation.claim_again(ownership, Opening::of(self.setup.repeat), step),
        };
        let Ok(mut change) = change.map(Box::new) else { return self.conclude(task, Told::Problem("internal")) };
        if kept.is_none() {
            change.request = RequestChange::Put(request(self.setup.had_credential));
        }
        self.ask(&mut task, Ask::Write(change.clone()), false);
        task.phase = Phase::Enter { change, since: self.now, alone };
        self.keep(task);
    }

    pub fn entered(&mut self, task: Box<Task>, change: Box<Change>, since: u64, alone: bool, reply: Reply) {
        match (reply, alone) {
            (Reply::Written(Written::Applied), _) => self.own(task, change.operation, since),
            (Reply::Written(Written::Refused(found)), false) => self.meet(task, found),
            (Reply::Written(Written::Gone), false) => self.claim(task),
            (reply, false) => self.claim_failed(task, change, &reply),
            (_, true) => {
                // The next sweep finds it, a lease later if the write was taken.
                self.watch.leaves(change.operation.fence.owner);
                self.conclude(task, Told::Lost);
            }
        }
    }

    fn end_lapsed(&mut self, mut task: Box<Task>, operation: &Operation, alone: bool) {
        let step = self.step_of(task.gateway);
        let ended = Ended { cause: Cause::OwnerLost, may_have_run: false };
        let change = match self.setup.broken {
            Broken::LeaseFreesSent => operation.end(ended, Next::Person, self.setup.keep, step),
            _ => operation.lapse(self.setup.keep, step),
        };
        let Ok(change) = change.map(Box::new) else { return self.conclude(task, Told::Problem("internal")) };
        self.ask(&mut task, Ask::Write(change.clone()), false);
        task.phase = Phase::EndLapsed { change, alone };
        self.keep(task);
    }

    pub fn lapsed(&mut self, task: Box<Task>, change: Box<Change>, alone: bool, reply: Reply) {
        match reply {
            _ if alone => self.conclude(task, Told::Lost),
            Reply::Written(Written::Applied) => {
                self.meet(task, Box::new(Found::new(change.operation, None)));
            }
            Reply::Written(Written::Refused(found)) => self.meet(task, found),
            Reply::Written(Written::Gone) => self.claim(task),
            _ => self.conclude(task, Told::Problem("store unavailable")),
        }
    }

    /// `Engine::follow`.
    pub fn follow(&mut self, mut task: Box<Task>, until: u64, pause: u64) {
        if self.now >= until {
            return self.conclude(task, Told::Problem("in progress"));
        }
        self.sleep(&mut task, pause.min(until - self.now));
        task.phase = Phase::Follow { until, pause };
        self.keep(task);
    }

    pub fn look(&mut self, mut task: Box<Task>, until: u64, pause: u64) {
        self.ask(&mut task, Ask::Read, false);
        task.phase = Phase::Look { until, pause: (pause * 2).min(POLL_MAX) };
        self.keep(task);
    }

    pub fn looked(&mut self, task: Box<Task>, until: u64, pause: u64, reply: Reply) {
        match reply {
            Reply::Read(None) => self.claim(task),
            Reply::Read(Some(found)) if found.operation.is_ownerless(self.view(task.gateway)) => self.meet(task, found),
            Reply::Read(Some(_)) => self.follow(task, until, pause),
            _ => self.conclude(task, Told::Problem("store unavailable")),
        }
    }

    /// `Engine::recover`.
    pub fn recover(&mut self, gateway: usize, key: usize) {
        let mut task = self.task(gateway, key);
        self.ask(&mut task, Ask::Read, false);
        task.phase = Phase::Recover;
        self.keep(task);
    }

    pub fn recovers(&mut self, mut task: Box<Task>, reply: Reply) {
        let Reply::Read(Some(found)) = reply else { return };
        let flight = &mut self.gateways[task.gateway].flights[task.key];
        let long_lost = found.operation.due().is_some_and(|until| until.0 + OWN_FLIGHT <= self.now);
        if long_lost && self.setup.broken != Broken::SeatIsKept {
            *flight = None;
        }
        if flight.is_some() {
            return;
        }
        self.take_seat(&task);
        let rule = self.rule_for(&found.operation);
        let admission = found.operation.admit(None, &rule, self.view(task.gateway));
        self.ask(&mut task, Ask::Request, false);
        task.phase = Phase::Fetch { found, admission };
        self.keep(task);
    }

    /// `Engine::withdraw`.
    fn withdraw(&mut self, task: &Task, change: Box<Change>) {
        if self.setup.broken == Broken::ClaimNotTakenBack {
            return;
        }
        let mut task = self.task(task.gateway, task.key);
        let write = self.step_of(task.gateway).write;
        let ended = Ended { cause: Cause::Store, may_have_run: false };
        let word = LastWord { word: Word::End(ended, Next::Client), keep: self.setup.keep, write };
        let before = change.expected;
        task.owner = Some(Owner::new(change.operation, self.now));
        self.take_back(task, before, word, self.now, FIRST_PAUSE);
    }

    /// One round of `take_back`.
    pub fn take_back(&mut self, mut task: Box<Task>, before: Option<Fence>, word: LastWord, since: u64, pause: u64) {
        let word = Box::new(word);
        let then = Then::TakeBack { before, word: word.clone(), since, pause };
        task.deadline = u64::MAX;
        self.write(task, Transition::Last(word), then);
    }

    /// The rule by which a record is admitted.
    fn rule_for(&self, operation: &Operation) -> ResendRule {
        let rule = self.rule();
        match self.setup.broken {
            Broken::TakeOverResends if operation.state.name() == StateName::Sent => {
                ResendRule { repeat: Repeat::Harmless, ..rule }
            }
            _ => rule,
        }
    }

    /// The rule as the gateways believe it.
    pub fn rule(&self) -> ResendRule {
        let rule = self.setup.rule();
        match self.setup.broken {
            Broken::KeyKnownForEver => ResendRule { key_retention: rule.key_retention * 1_000, ..rule },
            _ => rule,
        }
    }

    /// `refusal::of_record`.
    pub fn told_of(&mut self, found: &Found, row: Admission) -> Told {
        match row {
            Admission::Replay => match &found.receipt {
                Some(receipt) => Told::of_receipt(receipt),
                None => {
                    let until = found.operation.state.settled().map(|settled| settled.receipt_until);
                    if until.is_some_and(|until| until > self.store_time()) {
                        self.watch
                            .violates("a receipt vanishes before its time", format!("{:?}", found.operation.state));
                    }
                    Told::Problem("result expired")
                }
            },
            Admission::ClaimAgain => Told::Problem("did not run"),
            Admission::InProgress | Admission::TakeOver | Admission::Lapse => Told::Problem("in progress"),
            Admission::Expired => Told::Problem("result expired"),
            Admission::Unavailable(_) => Told::Problem("result unavailable"),
            Admission::Unknown => Told::Problem("outcome unknown"),
            Admission::KeyReused | Admission::AwaitingApproval | Admission::Rejected | Admission::Abandoned => {
                Told::Problem("refused")
            }
        }
    }

    /// `FirstCaller::answer` and `Pilot::land`.
    pub fn conclude(&mut self, task: Box<Task>, told: Told) {
        let flight = &mut self.gateways[task.gateway].flights[task.key];
        flight.take_if(|pilot| *pilot == task.id);
        self.cancel(task.id, None);
        for caller in task.callers {
            self.tell(caller, told.clone());
        }
    }
}

fn identity(key: usize) -> Identity {
    Identity {
        scope: Scope::none(),
        route: "payments".to_owned(),
        key: key.to_string(),
        upstream_key: Some(key.to_string()),
        source: KeySource::Client,
        fingerprint: fingerprint(key),
        session: None,
        step: None,
        alike: None,
        rules: [0; 8],
    }
}

fn fingerprint(key: usize) -> Fingerprint {
    Fingerprint { version: 1, digest: [key as u8; 32] }
}

fn operation_id(key: usize) -> OperationId {
    OperationId::from_bytes([key as u8; 20])
}

fn request(had_credential: bool) -> StoredRequest {
    StoredRequest {
        method: "POST".to_owned(),
        target: "/payments".to_owned(),
        headers: Arc::default(),
        body: Bytes::new(),
        had_credential,
    }
}
