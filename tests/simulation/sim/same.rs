//! When two worlds are the same one: names are numbered as they are met, times count from now, and what nobody waits for
//! any more has no name.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use oncegate::clock::Timestamp;
use oncegate::operation::{Fence, Operation, State};

use super::task::{Ask, Input, Phase, Reply, Task, Then};
use super::world::{Address, Event, World};

/// Two worlds with the same one go on in the same ways.
pub fn fingerprint(world: &World) -> u64 {
    let mut print = Print { world, names: HashMap::new(), hasher: DefaultHasher::new() };
    print.records();
    print.tasks();
    print.surroundings();
    print.queue();
    print.hasher.finish()
}

struct Print<'a> {
    world: &'a World,
    names: HashMap<[u8; 16], usize>,
    hasher: DefaultHasher,
}

impl Print<'_> {
    fn put(&mut self, part: impl Hash) {
        part.hash(&mut self.hasher);
    }

    fn name(&mut self, id: [u8; 16]) {
        let fresh = self.names.len();
        let number = *self.names.entry(id).or_insert(fresh);
        self.put((id[0], number));
    }

    fn moment(&mut self, at: u64) {
        self.put(at as i64 - self.world.now as i64);
    }

    fn timestamp(&mut self, at: Option<Timestamp>) {
        self.put(at.map(|at| at.0 as i64 - self.world.now as i64));
    }

    fn records(&mut self) {
        for record in self.world.store.records.iter().flatten() {
            self.operation(&record.operation);
            let forgotten = self.world.is_orphan(record.operation.fence.owner);
            self.put((record.life, record.receipt.is_some(), record.request.is_some(), forgotten));
        }
    }

    fn operation(&mut self, operation: &Operation) {
        self.fence(&operation.fence);
        self.put((operation.state.name(), operation.attempts, operation.attempts_before, operation.may_have_run));
        for at in [operation.due(), Some(operation.deadline), operation.expires_at, operation.first_sent_at] {
            self.timestamp(at);
        }
        if let Some(sender) = operation.sender {
            self.name(sender.owner.0);
            self.put(sender.attempt);
        }
        self.put(operation.state.settled().map(|settled| (settled.status, settled.kept as u8)));
        if let State::Waiting { not_before, .. } = operation.state {
            self.timestamp(Some(not_before));
        }
    }

    fn fence(&mut self, fence: &Fence) {
        self.name(fence.owner.0);
        self.put(fence.token);
        self.name(fence.write.0);
    }

    fn tasks(&mut self) {
        for (place, task) in self.world.tasks.values().enumerate() {
            self.put((place, task.gateway, task.key, &task.callers, task.counted));
            self.moment(task.deadline.min(self.world.now + 1_000_000));
            let tries = task.tries;
            self.put((tries.tries, tries.free, tries.refused, tries.server_failed, tries.garbled));
            self.phase(task);
            if let Some(owner) = &task.owner {
                self.operation(&owner.operation);
                self.moment(owner.held_until);
                self.put((owner.lost, owner.writing.as_ref().map(|writing| writing.adoptions_left)));
                self.put(owner.renewing.as_ref().map(|writing| writing.adoptions_left));
                self.put(owner.known.is_some());
            }
            if let Some(word) = &task.last_word {
                self.name(word.write.0);
                self.put(format!("{:?}", word.shows()));
            }
        }
    }

    fn phase(&mut self, task: &Task) {
        self.put(std::mem::discriminant(&task.phase));
        match &task.phase {
            Phase::Fetch { found, .. } => self.operation(&found.operation),
            Phase::Claim { change, .. } | Phase::Enter { change, .. } | Phase::EndLapsed { change, .. } => {
                self.operation(&change.operation);
            }
            Phase::Follow { until, pause } | Phase::Look { until, pause } => {
                self.moment(*until);
                self.put(pause);
            }
            Phase::Writing(then) | Phase::Rest { then, .. } => self.then(then),
            Phase::Tell { found, tries_left, then, .. } => {
                self.operation(&found.operation);
                self.put(tries_left);
                self.then(then);
            }
            Phase::TakeBackRest { since, pause, .. } => {
                self.moment(*since);
                self.put(pause);
            }
            Phase::Over | Phase::Recover | Phase::Due | Phase::Connect | Phase::Send | Phase::Pause => {}
        }
    }

    fn then(&mut self, then: &Then) {
        self.put(std::mem::discriminant(then));
        match then {
            Then::Ready { renewals_left } => self.put(renewals_left),
            Then::Pause { wait, .. } => self.put(wait),
            Then::Show { until, pause, again, .. } => {
                self.moment(*until);
                self.put((pause, again));
            }
            Then::End { .. } => {}
            Then::Keep { pause, again, .. } => self.put((pause, again)),
            Then::TakeBack { since, pause, .. } => {
                self.moment(*since);
                self.put(pause);
            }
        }
    }

    fn surroundings(&mut self) {
        let world = self.world;
        for gateway in &world.gateways {
            self.put((gateway.up, gateway.frozen_until.saturating_sub(world.now)));
            self.put(world.now.saturating_sub(gateway.up_since.max(gateway.frozen_until)).min(5_000));
            for pilot in &gateway.flights {
                self.put(pilot.and_then(|pilot| self.rank(pilot)));
            }
        }
        self.put((&world.callers, world.faults, world.store.away_until.saturating_sub(world.now)));
        for send in &world.upstream.sends {
            self.name(send.owner);
            self.put((send.key, send.life, send.attempt, send.fate, send.answered));
            self.moment(send.at);
            self.address(Address { task: send.task, number: send.number, beside: false });
        }
        for key in 0..world.setup.keys {
            self.put(world.upstream.remembers(key).map(|(until, answer)| (until.saturating_sub(world.now), answer)));
        }
        self.put(world.watch.past(world.now));
    }

    fn rank(&self, task: u32) -> Option<usize> {
        self.world.tasks.keys().position(|id| *id == task)
    }

    fn address(&mut self, to: Address) {
        let awaited = self
            .world
            .tasks
            .get(&to.task)
            .is_some_and(|task| to.number == if to.beside { task.awaited_beside } else { task.awaited });
        let rank = if awaited { self.rank(to.task) } else { None };
        self.put((rank, to.beside));
    }

    /// In no order but that of time.
    fn queue(&mut self) {
        let mut sum = 0u64;
        for due in &self.world.queue {
            let mut print = Print { world: self.world, names: self.names.clone(), hasher: DefaultHasher::new() };
            print.moment(due.at);
            print.event(&due.event);
            sum = sum.wrapping_add(print.hasher.finish());
        }
        self.put(sum);
    }

    fn event(&mut self, event: &Event) {
        self.put(std::mem::discriminant(event));
        match event {
            Event::Call { caller: number } | Event::Arrive { send: number } | Event::Work { send: number } => {
                self.put(number);
            }
            Event::Sweep { gateway } | Event::Restart { gateway } => self.put(gateway),
            Event::Sync => {}
            Event::Store { to, key, ask } => {
                self.address(*to);
                self.put((key, std::mem::discriminant(ask)));
                match ask {
                    Ask::Claim(change) | Ask::Write(change) => {
                        self.operation(&change.operation);
                        if let Some(expected) = &change.expected {
                            self.fence(expected);
                        }
                    }
                    Ask::Read | Ask::Request => {}
                }
            }
            Event::Resume { to, input } => {
                self.address(*to);
                self.input(input);
            }
        }
    }

    fn input(&mut self, input: &Input) {
        match input {
            Input::Woken => self.put(0),
            Input::Heard(send, heard) => self.put((1, send, heard)),
            Input::Reply(reply) => {
                self.put(reply.in_words());
                if let Reply::Read(Some(found)) = reply {
                    self.operation(&found.operation);
                }
            }
        }
    }
}
