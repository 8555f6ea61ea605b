//! An upstream of each kind: it runs calls at once, late or never, and answers the truth, nothing, half of it, or what
//! a hop in between made of it.

use oncegate::operation::admission::Repeat;
use oncegate::operation::{OwnerId, Sender};

use super::chance::Chance;
use super::setup::Setup;

/// What the upstream knows, and what really became of every send.
#[derive(Clone)]
pub struct Upstream {
    pub sends: Vec<Send>,
    /// By the number of the key: what a with-key upstream remembers.
    memory: Vec<Option<Memory>>,
    effects: u32,
}

/// One request on the wire.
#[derive(Clone)]
pub struct Send {
    pub key: usize,
    pub life: usize,
    pub owner: [u8; 16],
    pub attempt: u32,
    pub at: u64,
    pub fate: Fate,
    /// The status that it was answered with, whoever heard it.
    pub answered: Option<u16>,
    /// The one who waits for its answer.
    pub task: u32,
    pub number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Not read yet.
    Travelling,
    /// Read, and not begun yet.
    Queued,
    /// It will never run.
    Refused,
    Executed,
    /// Another send of the same key has run, or will.
    Known,
}

#[derive(Clone, Copy)]
struct Memory {
    until: u64,
    /// `None` while it is in work.
    answer: Option<(u16, u32)>,
}

/// What comes back on the connection of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    Answer {
        status: u16,
        body: u32,
        cut: bool,
        hint: Option<u64>,
    },
    Closed,
    BadHead,
    /// Nothing, for ever.
    Silence,
}

/// What the upstream does with a call that it has read.
#[derive(Clone, Copy)]
enum Act {
    /// Runs it or not, and answers.
    Says(u16, bool),
    /// Runs it or not, and closes.
    Closes(bool),
    Babbles(bool),
    IsSilent(bool),
    Cuts,
    Queues,
}

/// Every way that a call can go wrong.
const TROUBLES: &[Act] = &[
    Act::Says(429, false),
    Act::Says(429, false),
    Act::Says(503, false),
    Act::Says(503, true),
    Act::Says(500, false),
    Act::Says(500, true),
    Act::Says(502, true),
    Act::Says(401, false),
    Act::Says(404, false),
    Act::Says(421, false),
    Act::Says(408, false),
    Act::Says(523, false),
    Act::Closes(true),
    Act::Closes(false),
    Act::Babbles(true),
    Act::IsSilent(true),
    Act::IsSilent(true),
    Act::IsSilent(false),
    Act::IsSilent(false),
    Act::Cuts,
    Act::Cuts,
    Act::Queues,
    Act::Queues,
    Act::Queues,
];

/// One of each meaning, where every way is taken.
const FEW_TROUBLES: &[Act] =
    &[Act::Says(429, false), Act::Says(503, true), Act::Says(404, false), Act::Closes(true), Act::Cuts, Act::Queues];

/// What follows the arrival of a send.
pub enum Next {
    Answer(Heard),
    /// It runs later.
    Work,
}

impl Upstream {
    pub fn new(keys: usize) -> Self {
        Self { sends: Vec::new(), memory: vec![None; keys], effects: 0 }
    }

    pub fn of_life(&self, key: usize, life: usize) -> impl Iterator<Item = &Send> {
        self.sends.iter().filter(move |send| send.key == key && send.life == life)
    }

    /// The send of a recorded sender.
    pub fn sent_by(&self, key: usize, sender: Sender) -> Option<&Send> {
        let is_it = |send: &&Send| OwnerId(send.owner) == sender.owner && send.attempt == sender.attempt;
        self.sends.iter().filter(|send| send.key == key).find(is_it)
    }

    /// The request has been read.
    pub fn arrives(&mut self, number: usize, now: u64, setup: &Setup, trouble: bool, chance: &mut Chance) -> Next {
        let few = chance.takes_every_order();
        let acts = if few { FEW_TROUBLES } else { TROUBLES };
        let act = if trouble { acts[chance.pick(acts.len())] } else { Act::Says(200, true) };
        if setup.repeat == Repeat::WithKey
            && let Some(next) = self.recalls(number, now, act)
        {
            return next;
        }
        self.remember(number, now, setup, None);
        self.acts(number, now, setup, act, chance)
    }

    /// The end of a queue.
    pub fn works(&mut self, number: usize, now: u64, setup: &Setup) -> Heard {
        let body = self.run(number);
        self.remember(number, now, setup, Some((200, body)));
        self.say(number, 200, body)
    }

    /// A key that is known: what was answered then, unless the answer is lost again.
    fn recalls(&mut self, number: usize, now: u64, act: Act) -> Option<Next> {
        let memory = self.memory[self.sends[number].key].filter(|memory| now < memory.until)?;
        self.sends[number].fate = Fate::Known;
        Some(Next::Answer(match (memory.answer, act) {
            (_, Act::Says(status @ (429 | 503 | 502), _)) => self.say(number, status, 0),
            (_, Act::Closes(_)) => Heard::Closed,
            (_, Act::IsSilent(_)) => Heard::Silence,
            (None, _) => self.say(number, 409, 0),
            (Some((status, body)), Act::Cuts) => self.say(number, status, body).cut(),
            (Some((status, body)), _) => self.say(number, status, body),
        }))
    }

    fn acts(&mut self, number: usize, now: u64, setup: &Setup, act: Act, chance: &mut Chance) -> Next {
        let hint = chance.pick(if chance.takes_every_order() { 1 } else { 3 });
        let body = match act {
            Act::Says(_, true) | Act::Closes(true) | Act::Babbles(true) | Act::IsSilent(true) | Act::Cuts => {
                self.run(number)
            }
            Act::Says(_, false) | Act::Closes(false) | Act::Babbles(false) | Act::IsSilent(false) => {
                self.sends[number].fate = Fate::Refused;
                0
            }
            Act::Queues => {
                self.sends[number].fate = Fate::Queued;
                return Next::Work;
            }
        };
        let ran = self.sends[number].fate == Fate::Executed;
        let known = match act {
            Act::Says(404, _) => Some((404, 0)),
            _ if ran => Some((200, body)),
            _ => None,
        };
        match known {
            Some(answer) => self.remember(number, now, setup, Some(answer)),
            None => self.memory[self.sends[number].key] = None,
        }
        Next::Answer(match act {
            Act::Says(status, _) => self.say(number, status, body).asking([None, Some(1_000), Some(8_000)][hint]),
            Act::Cuts => self.say(number, 200, body).cut(),
            Act::Babbles(_) => Heard::BadHead,
            Act::IsSilent(_) => Heard::Silence,
            Act::Closes(_) | Act::Queues => Heard::Closed,
        })
    }

    fn run(&mut self, number: usize) -> u32 {
        self.sends[number].fate = Fate::Executed;
        self.effects += 1;
        self.effects
    }

    fn say(&mut self, number: usize, status: u16, body: u32) -> Heard {
        self.sends[number].answered = Some(status);
        Heard::Answer { status, body, cut: false, hint: None }
    }

    /// From the first time on that it sees a key.
    fn remember(&mut self, number: usize, now: u64, setup: &Setup, answer: Option<(u16, u32)>) {
        let slot = &mut self.memory[self.sends[number].key];
        let since = slot.filter(|memory| now < memory.until).map(|memory| memory.until);
        let until = since.unwrap_or(now + setup.key_retention.as_millis() as u64);
        *slot = Some(Memory { until, answer });
    }

    /// What is remembered of a key, and until when.
    pub fn remembers(&self, key: usize) -> Option<(u64, Option<(u16, u32)>)> {
        self.memory[key].map(|memory| (memory.until, memory.answer))
    }
}

impl Heard {
    fn cut(self) -> Self {
        match self {
            Self::Answer { status, body, hint, .. } => Self::Answer { status, body, cut: true, hint },
            other => other,
        }
    }

    fn asking(self, hint: Option<u64>) -> Self {
        match self {
            Self::Answer { status, body, cut, .. } => Self::Answer { status, body, cut, hint },
            other => other,
        }
    }
}
