//! The server is well, and the way to it is not.

use super::scene::{Scene, TIMEOUT};
use crate::support::toxic::Toxic;

fn outage(toxic: Toxic) {
    Scene::new().outage(&name(toxic), |scene| scene.proxy.turn(toxic), |scene| scene.proxy.heal());
}

fn name(toxic: Toxic) -> String {
    match toxic {
        Toxic::Instead(bytes) => format!("Instead({})", bytes[..bytes.len().min(40)].escape_ascii()),
        Toxic::Before(bytes) => format!("Before({})", bytes.escape_ascii()),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_way_that_takes_longer_than_the_timeout() {
    outage(Toxic::Latency(TIMEOUT * 2));
}

#[test]
fn a_byte_a_second() {
    outage(Toxic::DripQuestions);
    outage(Toxic::DripAnswers);
}

#[test]
fn connections_that_end() {
    outage(Toxic::Cut);
    outage(Toxic::Refuse);
}

#[test]
fn half_an_answer() {
    outage(Toxic::CutAfter(3));
    outage(Toxic::CutAfter(40));
}

#[test]
fn connections_on_which_nothing_comes() {
    outage(Toxic::Silent);
    outage(Toxic::Unheard);
    outage(Toxic::Blackhole);
}

/// A thousand lists, one in the other.
const NESTED: &[u8] = &{
    let mut bytes = [b'\n'; 4000];
    let mut at = 0;
    while at < bytes.len() {
        (bytes[at], bytes[at + 1], bytes[at + 2]) = (b'*', b'1', b'\r');
        at += 4;
    }
    bytes
};

#[test]
fn answers_that_are_none() {
    outage(Toxic::Instead(b"\x00\xff\xfe garbage\r\n"));
    outage(Toxic::Instead(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    outage(Toxic::Instead(NESTED));
}

#[test]
fn answers_beyond_all_bounds() {
    outage(Toxic::Instead(b"$999999999999\r\n"));
    outage(Toxic::Instead(b"*999999999999\r\n"));
    outage(Toxic::Instead(b"%-1\r\n"));
}

#[test]
fn answers_to_other_questions() {
    outage(Toxic::Before(b"+OK\r\n"));
    outage(Toxic::Instead(b"$16\r\n0123456789abcdef\r\n"));
    outage(Toxic::Instead(b"*2\r\n:1\r\n$-1\r\n"));
}

#[test]
fn errors_that_nobody_knows() {
    outage(Toxic::Instead(b"-WEIRD this is new\r\n"));
    outage(Toxic::Instead(b"-ERR Error running script: Script killed by user with SCRIPT KILL.\r\n"));
    outage(Toxic::Instead(b"-LOADING Redis is loading the dataset in memory\r\n"));
    outage(Toxic::Instead(b"-CLUSTERDOWN The cluster is down\r\n"));
}

/// What a server that wants TLS says to somebody who does not speak it.
#[test]
fn an_alert_of_tls() {
    outage(Toxic::Instead(b"\x15\x03\x03\x00\x02\x02\x46"));
}
