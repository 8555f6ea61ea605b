//! The rig for Redis does what the suites that stand on it believe.

use std::time::Duration;

use redis::{Commands, Connection};

use crate::support::redis_server::RedisServer;

#[test]
fn a_killed_server_comes_back_with_its_data() {
    let mut server = RedisServer::start();
    connect(&server).set::<_, _, ()>("kept", "yes").unwrap();
    server.kill();
    assert!(redis::Client::open(server.url()).unwrap().get_connection().is_err());
    server.restart();
    assert_eq!(connect(&server).get::<_, String>("kept").unwrap(), "yes");
}

#[test]
fn a_frozen_server_answers_only_when_thawed() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    connection.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    server.freeze();
    assert!(connection.get::<_, Option<String>>("any").unwrap_err().is_timeout());
    server.thaw();
    assert_eq!(connect(&server).get::<_, Option<String>>("any").unwrap(), None);
}

#[test]
fn two_servers_do_not_meet() {
    let (one, other) = (RedisServer::start(), RedisServer::start());
    connect(&one).set::<_, _, ()>("whose", "one").unwrap();
    assert_eq!(connect(&other).get::<_, Option<String>>("whose").unwrap(), None);
}

fn connect(server: &RedisServer) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}
