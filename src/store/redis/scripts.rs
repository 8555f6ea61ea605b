//! The scripts, one for each step that writes, and the requests that carry them.

use std::fmt::Display;
use std::sync::LazyLock;

use redis::{Cmd, Pipeline, RedisWrite, ToRedisArgs};

use crate::operation::WriteId;

pub(super) static CLAIM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("late.lua"), include_str!("alike.lua"), include_str!("claim.lua")))
});
pub(super) static WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("late.lua"), include_str!("alike.lua"), include_str!("write.lua")))
});
pub(super) static PURGE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("purge.lua")));
pub(super) static BEGIN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("begin.lua")));
pub(super) static CONDEMN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("condemn.lua")));
pub(super) static RAISE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("raise.lua")));
pub(super) static REMEMBER: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("remember.lua")));
pub(super) static HOLD: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("hold.lua")));
pub(super) static REPLACE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("replace.lua")));
pub(super) static RATE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("rate.lua")));
pub(super) static TIME: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("time.lua")));

/// A script and the name under which a server knows it once it has run it.
#[derive(Debug)]
pub(super) struct Script {
    source: &'static str,
    digest: String,
}

/// Something to be asked, as often as it takes: every request is safe to send twice.
pub(super) enum Request {
    One(Cmd),
    Call(Call),
    Many(Pipeline),
}

impl Request {
    /// Its first key, which decides where on a cluster it goes.
    pub(super) fn key(&self) -> Option<&[u8]> {
        match self {
            Self::One(command) => argument(command, 1),
            Self::Call(call) => argument(&call.command, 3),
            Self::Many(commands) => key_of(commands.cmd_iter().next()?),
        }
    }
}

/// The key of a command that has one, and in the usual place.
pub(super) fn key_of(command: &Cmd) -> Option<&[u8]> {
    argument(command, 1)
}

fn argument(command: &Cmd, place: usize) -> Option<&[u8]> {
    match command.args_iter().nth(place)? {
        redis::Arg::Simple(bytes) => Some(bytes),
        _ => None,
    }
}

/// One run of a script.
pub(super) struct Call {
    script: &'static Script,
    command: Cmd,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self { source, digest: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Begins a run with so many keys; `size` is about how many bytes keys and arguments have together.
    pub(super) fn call(&'static self, keys: usize, size: usize) -> Call {
        let mut command = Cmd::with_capacity(24, size + 64);
        command.arg("EVALSHA").arg(&self.digest).arg(keys);
        Call { script: self, command }
    }
}

impl Call {
    /// The next key or argument.
    pub(super) fn with(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// An argument that may be missing, which scripts see as an empty one.
    pub(super) fn with_optional(mut self, argument: Option<impl Display>) -> Self {
        match argument {
            Some(argument) => self.command.write_arg_fmt(argument),
            None => self.command.write_arg(b""),
        }
        self
    }

    /// A write identifier: what the reply will begin with.
    pub(super) fn with_write(self, write: WriteId) -> Self {
        self.with(&write.0[..])
    }

    pub(super) fn command(&self) -> &Cmd {
        &self.command
    }

    /// The same run for a server that does not know the script, which it will from then on.
    pub(super) fn with_source(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.script.source);
        for argument in self.command.args_iter().skip(2) {
            // The other kind of argument stands for the cursor of a scan.
            if let redis::Arg::Simple(bytes) = argument {
                command.write_arg(bytes);
            }
        }
        command
    }
}

impl From<Call> for Request {
    fn from(call: Call) -> Self {
        Self::Call(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_with_its_source_has_the_same_arguments() {
        let call =
            WRITE.call(1, 0).with("key").with(&b"\x00\xff"[..]).with_optional(None::<u64>).with_optional(Some(7));
        let arguments = |command: &Cmd| command.args_iter().skip(2).map(simple).collect::<Vec<_>>();
        let expected: [&[u8]; 5] = [b"1", b"key", b"\x00\xff", b"", b"7"];
        assert_eq!(arguments(call.command()), expected);
        assert_eq!(arguments(&call.with_source()), expected);
    }

    fn simple(argument: redis::Arg<&[u8]>) -> Vec<u8> {
        match argument {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            _ => panic!("no call has a cursor"),
        }
    }
}
