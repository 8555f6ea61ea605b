//! `oncegate healthcheck`: asks the gateway of this configuration whether it is ready; for images without a shell.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use crate::command::Source;
use crate::command::terminal::say;
use crate::config::{ConfigErrors, Environment};

/// For each of: to connect, to ask, to be answered.
const PATIENCE: Duration = Duration::from_secs(2);
/// The answer is a line.
const LONGEST_ANSWER: u64 = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum HealthcheckError {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error("no answer from {address} (server.health)")]
    NoAnswer {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Prints what `/readyz` says, and fails unless it says ready.
///
/// # Errors
/// The configuration is not valid, or nobody answers.
pub fn run(source: &Source, environment: &Environment) -> Result<ExitCode, HealthcheckError> {
    let address = on_this_machine(source.load(environment)?.server.health);
    let answer = ask(address).map_err(|source| HealthcheckError::NoAnswer { address, source })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    say(body);
    Ok(if head.split(' ').nth(1) == Some("200") { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A gateway that listens on all addresses is asked on loopback.
fn on_this_machine(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(any) if any.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(any) if any.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

fn ask(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_asked_on_loopback() {
        for (stated, asked) in [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("127.0.0.2:1", "127.0.0.2:1")] {
            assert_eq!(on_this_machine(stated.parse().unwrap()), asked.parse().unwrap());
        }
    }
}
