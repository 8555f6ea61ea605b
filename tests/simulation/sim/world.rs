//! Gateways, callers, messages and time: a queue of events, and what chance makes of it.

use std::collections::BTreeMap;
use std::time::Duration;

use oncegate::clock::Timestamp;
use oncegate::operation::transition::{Ownership, Step};
use oncegate::operation::{OwnerId, WriteId};

use super::chance::Chance;
use super::setup::{Broken, LEASE, SKEW, STORE_TIMEOUT, Setup};
use super::store::Store;
use super::task::{Ask, Input, Task, Told};
use super::upstream::Upstream;
use super::watch::Watch;

const SWEEP_EVERY: u64 = 1_000;
const SYNC_EVERY: u64 = 1_000;
/// Stories that go on for longer never end.
const MOST_STEPS: usize = 20_000;

/// Everything there is, at one moment.
#[derive(Clone)]
pub struct World {
    pub setup: Setup,
    pub chance: Chance,
    pub now: u64,
    pub gateways: Vec<Gateway>,
    pub callers: Vec<Caller>,
    pub tasks: BTreeMap<u32, Box<Task>>,
    pub queue: Vec<Due>,
    pub store: Store,
    pub upstream: Upstream,
    pub watch: Watch,
    /// What may still go wrong.
    pub faults: usize,
    pub minted: u64,
    pub steps: u64,
    /// The story line by line, where somebody is to read it.
    pub story: Option<Vec<String>>,
}

/// One process.
#[derive(Clone)]
pub struct Gateway {
    pub up: bool,
    pub up_since: u64,
    /// Owners with a lesser number are of an earlier life, or have stood still: nobody counts on them.
    pub first_number: u64,
    pub frozen_until: u64,
    /// Of its estimate of the store's clock, added to `now`.
    pub ahead: u64,
    /// By the number of the key: the task that flies.
    pub flights: Vec<Option<u32>>,
}

#[derive(Clone, Hash)]
pub struct Caller {
    pub key: usize,
    pub calls_left: usize,
    pub waits: bool,
}

#[derive(Clone)]
pub struct Due {
    pub at: u64,
    pub order: u64,
    pub event: Event,
}

#[derive(Clone)]
pub enum Event {
    Call {
        caller: usize,
    },
    Sweep {
        gateway: usize,
    },
    Restart {
        gateway: usize,
    },
    Sync,
    /// A step arrives at the store.
    Store {
        to: Address,
        key: usize,
        ask: Ask,
    },
    /// What a task waits for.
    Resume {
        to: Address,
        input: Input,
    },
    Arrive {
        send: usize,
    },
    Work {
        send: usize,
    },
}

/// Who waits for something. A task waits for one thing, and beside it for the renewal of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub task: u32,
    pub number: u64,
    pub beside: bool,
}

impl World {
    pub fn new(setup: Setup, mut chance: Chance) -> Self {
        let gateways = (0..setup.gateways).map(|_| Gateway {
            up: true,
            up_since: 0,
            first_number: 0,
            frozen_until: 0,
            ahead: if chance.takes_every_order() { SKEW } else { chance.within(2 * SKEW) },
            flights: vec![None; setup.keys],
        });
        let gateways = gateways.collect();
        let callers =
            (0..setup.callers).map(|caller| Caller { key: caller % setup.keys, calls_left: setup.calls, waits: false });
        let callers: Vec<_> = callers.collect();
        let mut world = Self {
            now: 100_000,
            gateways,
            callers,
            tasks: BTreeMap::new(),
            queue: Vec::new(),
            store: Store::new(&setup),
            upstream: Upstream::new(setup.keys),
            watch: Watch::new(setup.keys),
            faults: setup.faults,
            minted: 0,
            steps: 0,
            story: None,
            setup,
            chance,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for caller in 0..self.callers.len() {
            let wait = self.chance.within(self.setup.begin);
            self.after(wait, Event::Call { caller });
        }
        for gateway in 0..self.gateways.len() {
            self.after(SWEEP_EVERY, Event::Sweep { gateway });
        }
        if self.setup.broken == Broken::TailLost {
            self.after(SYNC_EVERY, Event::Sync);
        }
    }

    /// To the end of the story, or to the first thing that must not be.
    pub fn run(&mut self) {
        for _ in 0..MOST_STEPS {
            if !self.step() || self.watch.violation.is_some() {
                return;
            }
        }
        self.watch.violates("a story never ends", format!("{MOST_STEPS} steps"));
    }

    /// One event, or one stroke of bad luck. False at the end.
    pub fn step(&mut self) -> bool {
        if self.is_over() {
            self.check_end();
            return false;
        }
        self.steps += 1;
        let trouble = self.strikes(self.setup.odds_of_trouble) && self.trouble();
        if !trouble {
            self.deliver();
        }
        self.check();
        true
    }

    /// Whether something goes wrong here; each costs one of the faults that the story may have.
    pub fn strikes(&mut self, odds: usize) -> bool {
        let strikes = self.faults > 0 && self.chance.happens(odds);
        self.faults -= usize::from(strikes);
        strikes
    }

    /// Everything that can end has ended.
    pub fn is_over(&self) -> bool {
        let idle = |event: &Event| matches!(event, Event::Sweep { .. } | Event::Sync | Event::Restart { .. });
        self.tasks.is_empty()
            && self.callers.iter().all(|caller| caller.calls_left == 0 && !caller.waits)
            && self.queue.iter().all(|due| idle(&due.event))
            && self.store.records.iter().flatten().all(|record| record.operation.due().is_none())
    }

    pub fn after(&mut self, wait: u64, event: Event) {
        self.minted += 1;
        self.queue.push(Due { at: self.now + wait, order: self.minted, event });
    }

    fn deliver(&mut self) {
        let Some(first) = self.queue.iter().map(|due| self.ready_at(due)).min() else { return };
        let ready = |due: &Due| self.ready_at(due) == first;
        let mut due: Vec<usize> = (0..self.queue.len()).filter(|place| ready(&self.queue[*place])).collect();
        due.sort_by_key(|place| (self.queue[*place].at, self.queue[*place].order));
        let chosen = if self.chance.takes_every_order() { self.chance.pick(due.len()) } else { 0 };
        let event = self.queue.swap_remove(due[chosen]).event;
        self.now = first.max(self.now);
        self.happens(event);
    }

    /// A frozen gateway sees everything when it thaws.
    fn ready_at(&self, due: &Due) -> u64 {
        let gateway = match &due.event {
            Event::Resume { to, .. } => self.tasks.get(&to.task).map(|task| task.gateway),
            Event::Sweep { gateway } => Some(*gateway),
            Event::Call { .. }
            | Event::Restart { .. }
            | Event::Sync
            | Event::Store { .. }
            | Event::Arrive { .. }
            | Event::Work { .. } => None,
        };
        gateway.map_or(due.at, |gateway| due.at.max(self.gateways[gateway].frozen_until))
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Call { caller } => self.call(caller),
            Event::Sweep { gateway } => self.sweep(gateway),
            Event::Restart { gateway } => {
                self.note(|| format!("gateway {gateway} is up again"));
                let (now, number) = (self.now, self.mint());
                let process = &mut self.gateways[gateway];
                (process.up, process.up_since, process.first_number) = (true, now, number);
                self.after(0, Event::Sweep { gateway });
            }
            Event::Sync => {
                self.store.sync();
                self.after(SYNC_EVERY, Event::Sync);
            }
            Event::Store { to, key, ask } => self.store_step(to, key, &ask),
            Event::Resume { to, input } => self.resume(to, input),
            Event::Arrive { send } => self.arrive(send),
            Event::Work { send } => {
                self.note(|| format!("upstream runs send {send} late"));
                let heard = self.upstream.works(send, self.now, &self.setup);
                self.executed(send);
                self.answer(send, heard);
            }
        }
    }

    /// A gateway dies or stands still, or the store goes away or restarts.
    fn trouble(&mut self) -> bool {
        let gateway = self.chance.pick(self.gateways.len());
        match self.chance.pick(if self.setup.broken == Broken::TailLost { 4 } else { 3 }) {
            0 if self.gateways[gateway].up => self.crash(gateway),
            1 if self.gateways[gateway].up => self.freeze(gateway),
            2 => {
                let length = self.chance.within(2 * LEASE);
                self.note(|| format!("store away for {length} ms"));
                self.store.away_until = self.now + length;
                self.watch.troubled_until(self.now + length + STORE_TIMEOUT);
            }
            3 if self.setup.broken == Broken::TailLost => {
                self.note(|| "store restarts".to_owned());
                self.store.restart();
            }
            _ => return false,
        }
        true
    }

    fn crash(&mut self, gateway: usize) {
        self.note(|| format!("gateway {gateway} is killed"));
        let dead: Vec<u32> = self.tasks.values().filter(|task| task.gateway == gateway).map(|task| task.id).collect();
        let callers: Vec<usize> =
            dead.iter().filter_map(|id| self.tasks.remove(id)).flat_map(|task| task.callers).collect();
        for caller in callers {
            self.tell(caller, Told::Lost);
        }
        self.queue.retain(|due| !matches!(&due.event, Event::Resume { to, .. } if dead.contains(&to.task)));
        self.gateways[gateway].up = false;
        self.gateways[gateway].flights.fill(None);
        let wait = self.chance.within(2 * LEASE);
        self.after(wait, Event::Restart { gateway });
    }

    fn freeze(&mut self, gateway: usize) {
        let length = self.chance.within(LEASE * 4);
        self.note(|| format!("gateway {gateway} stands still for {length} ms"));
        let number = self.mint();
        let process = &mut self.gateways[gateway];
        (process.frozen_until, process.first_number) = (self.now + length, number);
    }

    pub fn is_awake(&self, gateway: usize) -> bool {
        self.gateways[gateway].up && self.gateways[gateway].frozen_until <= self.now
    }

    /// `worker/sweep.rs`: everybody whose lease is over, once a second.
    fn sweep(&mut self, gateway: usize) {
        let again =
            self.queue.iter().any(|due| matches!(due.event, Event::Sweep { gateway: other } if other == gateway));
        if !self.gateways[gateway].up || again || self.setup.broken == Broken::NobodySweeps {
            return;
        }
        let now = self.store_time();
        for key in 0..self.setup.keys {
            let due = self.store.live(key, now).and_then(|record| record.operation.due());
            if due.is_some_and(|until| until <= now) && !self.store.is_away(self.now) {
                self.recover(gateway, key);
            }
        }
        let next = self.next_lease_end().map_or(LEASE, |end| end.saturating_sub(self.now));
        // A sweep that would find nothing is none.
        self.after(next.div_ceil(SWEEP_EVERY).max(1) * SWEEP_EVERY, Event::Sweep { gateway });
    }

    fn next_lease_end(&self) -> Option<u64> {
        let ends = self.store.records.iter().flatten().filter_map(|record| record.operation.due());
        ends.map(|until| until.0).min().map(|end| end.min(self.now + LEASE))
    }

    /// Hands a caller what came of the call; whoever got no receipt, or wants to see it again, calls again.
    pub fn tell(&mut self, caller: usize, told: Told) {
        self.note(|| format!("caller {caller} is told {told:?}"));
        self.check_told(self.callers[caller].key, &told);
        self.callers[caller].waits = false;
        if self.callers[caller].calls_left > 0 {
            let wait = self.chance.within(6_000);
            self.after(wait, Event::Call { caller });
        }
    }

    /// A number that nobody had before.
    pub fn mint(&mut self) -> u64 {
        self.minted += 1;
        self.minted
    }

    pub fn await_next(&mut self, task: &mut Task, beside: bool) -> Address {
        let number = self.mint();
        if beside {
            task.awaited_beside = number;
        } else {
            task.awaited = number;
        }
        Address { task: task.id, number, beside }
    }

    pub fn store_time(&self) -> Timestamp {
        Timestamp(self.now)
    }

    /// What a gateway takes for the store's time.
    pub fn view(&self, gateway: usize) -> Timestamp {
        Timestamp(self.now + self.gateways[gateway].ahead - SKEW)
    }

    pub fn step_of(&mut self, gateway: usize) -> Step {
        let number = self.mint();
        Step { now: self.view(gateway), write: WriteId(id(gateway, number)) }
    }

    /// `Engine::ownership`.
    pub fn ownership(&mut self, gateway: usize, deadline: u64) -> Ownership {
        let owner = OwnerId(id(gateway, self.mint()));
        let left = Duration::from_millis(deadline.saturating_sub(self.now));
        Ownership {
            owner,
            lease: Duration::from_millis(LEASE),
            deadline: self.view(gateway).after(left),
            destination: [0; 8],
            accepted: false,
        }
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(format!("{:>8} ms  {}", self.now - 100_000, line()));
        }
    }
}

/// Sixteen bytes that nobody else has, and that tell a reader whose they are.
fn id(gateway: usize, number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = gateway as u8;
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    bytes
}
