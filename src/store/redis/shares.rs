//! One request to several servers of a cluster: who is asked what, and the answers in the order of the commands.
//!
//! What a server sends elsewhere is asked for by itself. Of a slot that is on its way one key may have gone ahead of the
//! others, and that is no matter of all slots.

use std::collections::BTreeMap;

use redis::{Cmd, Pipeline, Value};

use crate::redis_url::Host;
use crate::store::redis::replies;
use crate::store::redis::scripts::Request;

/// What is left to ask, and what was answered.
#[derive(Default)]
pub(super) struct Shares {
    open: Vec<Share>,
    answers: Vec<(usize, Value)>,
}

/// Commands that go to the same server, and where they stood in the request.
pub(super) struct Share {
    pub(super) request: Request,
    places: Vec<usize>,
}

impl Shares {
    /// By the server that has each command's keys, as far as `host_of` knows.
    pub(super) fn of<'h>(commands: &Pipeline, host_of: impl Fn(&Cmd) -> Option<&'h Host>) -> Self {
        let mut by_host: BTreeMap<Option<&Host>, (Pipeline, Vec<usize>)> = BTreeMap::new();
        for (place, command) in commands.cmd_iter().enumerate() {
            let (commands, places) = by_host.entry(host_of(command)).or_default();
            commands.add_command(command.clone());
            places.push(place);
        }
        let share = |(commands, places)| Share { request: Request::Many(commands), places };
        Self { open: by_host.into_values().map(share).collect(), answers: Vec::new() }
    }

    pub(super) fn next(&mut self) -> Option<Share> {
        self.open.pop()
    }

    /// `answer` is one that [`replies::in_part`] took.
    pub(super) fn answered(&mut self, share: Share, answer: Value) {
        match (share.request, answer) {
            (Request::Many(commands), Value::Array(answers)) => {
                for ((place, command), answer) in share.places.into_iter().zip(commands.cmd_iter()).zip(answers) {
                    if replies::is_elsewhere(&answer) {
                        self.open.push(Share { request: Request::One(command.clone()), places: vec![place] });
                    } else {
                        self.answers.push((place, answer));
                    }
                }
            }
            (Request::One(_) | Request::Call(_) | Request::Many(_), answer) => {
                self.answers.extend(share.places.into_iter().zip([answer]));
            }
        }
    }

    /// All answers, once there is nothing left to ask.
    pub(super) fn all(mut self) -> Value {
        self.answers.sort_unstable_by_key(|(place, _)| *place);
        Value::Array(self.answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &[u8]) -> Value {
        redis::parse_redis_value(line).unwrap()
    }

    #[test]
    fn answers_stand_where_their_commands_stood() {
        let hosts = ["a", "b"].map(|name| Host { name: name.to_owned(), port: 1 });
        let mut commands = Pipeline::new();
        for key in ["0", "1", "2", "3"] {
            commands.cmd("GET").arg(key);
        }
        let is_odd = |command: &Cmd| matches!(command.args_iter().nth(1), Some(redis::Arg::Simple(b"1" | b"3")));
        let mut shares = Shares::of(&commands, |command| hosts.get(usize::from(is_odd(command))));
        let mut asked = Vec::new();
        while let Some(share) = shares.next() {
            let answer = match share.places.as_slice() {
                [0, 2] => Value::Array(vec![Value::Int(0), said(b"-ASK 7 c:1\r\n")]),
                [1, 3] => Value::Array(vec![said(b"-MOVED 7 c:1\r\n"), Value::Int(3)]),
                [place] => Value::Int(i64::try_from(*place).unwrap()),
                places => panic!("{places:?}"),
            };
            asked.push(share.places.clone());
            shares.answered(share, answer);
        }
        assert_eq!(asked.len(), 4, "{asked:?}");
        assert_eq!(shares.all(), Value::Array((0..4).map(Value::Int).collect()));
    }
}
