//! Several servers that replace each other: a master and its replica under three sentinels, and a cluster of six.

use std::net::SocketAddr;

use redis::FromRedisValue;

use crate::support::eventually;
use crate::support::redis_server::{RedisServer, free_port};
use crate::support::wall_clock::WallClock;

/// The name under which the sentinels know the master.
pub const MASTER: &str = "oncegate-test";

/// How long a server has to be silent before the others vote, in milliseconds.
const DOWN_AFTER: &str = "1000";

/// A master, its replica, and three sentinels that know of each other.
pub struct SentinelFleet {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
}

/// Three masters with a replica each.
pub struct ClusterFleet {
    pub servers: Vec<RedisServer>,
}

/// A master and a replica that has all that it has.
pub fn replicated() -> (RedisServer, RedisServer) {
    let master = RedisServer::with(REPLICATION);
    let replica = follower(&master);
    (master, replica)
}

/// A replica of `master` that has all that it has.
pub fn follower(master: &RedisServer) -> RedisServer {
    let replica = RedisServer::with(REPLICATION);
    let (host, port) = (master.address().ip().to_string(), master.address().port().to_string());
    say::<()>(replica.address(), &["REPLICAOF", &host, &port]);
    is_synced(replica.address());
    replica
}

impl SentinelFleet {
    /// Ready for a failover.
    pub fn start() -> Self {
        let (master, replica) = replicated();
        let (host, port) = (master.address().ip().to_string(), master.address().port().to_string());
        let lines = format!(
            "sentinel monitor {MASTER} {host} {port} 2\nsentinel down-after-milliseconds {MASTER} {DOWN_AFTER}\n\
             sentinel failover-timeout {MASTER} 3000\n"
        );
        let sentinels: Vec<_> = (0..3).map(|_| RedisServer::sentinel(&lines)).collect();
        let fleet = Self { servers: vec![master, replica], sentinels };
        fleet.sentinels.iter().for_each(|sentinel| {
            eventually("a sentinel that knows everybody", || {
                let about: std::collections::HashMap<String, String> =
                    say(sentinel.address(), &["SENTINEL", "MASTER", MASTER]);
                (about["num-other-sentinels"] == "2" && about["num-slaves"] == "1").then_some(())
            });
        });
        fleet
    }

    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{MASTER}", places(&self.sentinels))
    }

    /// The place of the master among the servers, as a sentinel has it.
    pub fn master(&self) -> usize {
        let (host, port): (String, u16) =
            say(self.sentinels[0].address(), &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
        let address = SocketAddr::new(host.parse().unwrap(), port);
        self.servers.iter().position(|server| server.address() == address).unwrap()
    }

    /// Returns when another server than `old` is the master.
    pub fn has_failed_over(&self, old: usize) {
        eventually("a failover", || (self.master() != old).then_some(()));
    }

    /// Returns when a server follows the master and has all that it has.
    pub fn is_replica(&self, server: usize) {
        is_synced(self.servers[server].address());
    }
}

impl ClusterFleet {
    /// Whole, and ready for a failover.
    pub fn start() -> Self {
        let start = |_| Self::node([], DOWN_AFTER);
        let fleet = Self { servers: (0..6).map(start).collect() };
        fleet.divide_slots(&[("0", "5460"), ("5461", "10922"), ("10923", "16383")]);
        fleet.meet();
        let (masters, replicas) = fleet.servers.split_at(3);
        for (master, replica) in masters.iter().zip(replicas) {
            let id: String = say(master.address(), &["CLUSTER", "MYID"]);
            eventually("a master to follow", || try_say::<()>(replica.address(), &["CLUSTER", "REPLICATE", &id]).ok());
        }
        replicas.iter().for_each(|replica| is_synced(replica.address()));
        fleet.servers.iter().for_each(|server| is_whole(server, 3));
        fleet
    }

    /// Two masters without replicas, half of the slots each; the second goes by `clock`, and neither gives up the other.
    pub fn by_two_clocks(clock: &WallClock) -> Self {
        let servers = vec![Self::node([], "60000"), Self::node(clock.environment(), "60000")];
        let fleet = Self { servers };
        fleet.divide_slots(&[("0", "8191"), ("8192", "16383")]);
        fleet.meet();
        fleet.servers.iter().for_each(|server| is_whole(server, 0));
        fleet
    }

    fn node(environment: impl IntoIterator<Item = (&'static str, String)>, down_after: &str) -> RedisServer {
        let bus = free_port().to_string();
        let cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", down_after, "--cluster-port", &bus];
        RedisServer::within(environment, &[REPLICATION, &cluster[..]].concat())
    }

    pub fn url(&self) -> String {
        format!("redis+cluster://{}", places(&self.servers))
    }

    /// Whether a server is a master that the others follow.
    pub fn serves(&self, server: usize) -> bool {
        let about: String = try_say(self.servers[server].address(), &["CLUSTER", "NODES"]).unwrap_or_default();
        about.lines().any(|line| line.contains("myself,master") && line.contains('-') && line.split(' ').count() > 8)
    }

    /// Returns when a server serves slots.
    pub fn has_taken_over(&self, server: usize) {
        eventually("a failover", || self.serves(server).then_some(()));
    }

    fn divide_slots(&self, ranges: &[(&str, &str)]) {
        for (number, (first, last)) in ranges.iter().enumerate() {
            let address = self.servers[number].address();
            say::<()>(address, &["CLUSTER", "ADDSLOTSRANGE", first, last]);
            say::<()>(address, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
    }

    fn meet(&self) {
        let first = self.servers[0].address();
        for server in &self.servers[1..] {
            let (host, port) = (server.address().ip().to_string(), server.address().port().to_string());
            let nodes: String = say(server.address(), &["CLUSTER", "NODES"]);
            let bus = nodes.split(['@', ' ']).nth(2).unwrap().to_owned();
            say::<()>(first, &["CLUSTER", "MEET", &host, &port, &bus]);
        }
        for server in &self.servers {
            eventually("nodes that know each other", || {
                let nodes: String = say(server.address(), &["CLUSTER", "NODES"]);
                (nodes.lines().count() == self.servers.len() && !nodes.contains("handshake")).then_some(())
            });
        }
    }
}

/// Without the pause that lets more replicas join, which would only be waited for.
const REPLICATION: &[&str] = &["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];

fn places(servers: &[RedisServer]) -> String {
    servers.iter().map(|server| server.address().to_string()).collect::<Vec<_>>().join(",")
}

pub fn is_synced(replica: SocketAddr) {
    eventually("a replica with all the data", || {
        let about = try_say::<String>(replica, &["INFO", "replication"]);
        // A server that changes its role ends its connections.
        about.is_ok_and(|about| about.contains("master_link_status:up")).then_some(())
    });
}

fn is_whole(server: &RedisServer, replicas: usize) {
    eventually("a cluster that is whole", || {
        let about: String = say(server.address(), &["CLUSTER", "INFO"]);
        let nodes: String = say(server.address(), &["CLUSTER", "NODES"]);
        let following = nodes.lines().filter(|line| line.contains("slave")).count();
        (about.contains("cluster_state:ok") && following == replicas).then_some(())
    });
}

/// Says something to one server, as an operator would: once more, if the connection ends, as it does when a server
/// changes its role.
pub fn say<T: FromRedisValue>(server: SocketAddr, words: &[&str]) -> T {
    eventually("an answer of Redis", || match try_say(server, words) {
        Err(error) if error.is_io_error() => None,
        answer => Some(answer.unwrap()),
    })
}

/// The same to one that may be gone.
///
/// # Errors
/// It is, or it refused.
pub fn try_say<T: FromRedisValue>(server: SocketAddr, words: &[&str]) -> redis::RedisResult<T> {
    let (name, arguments) = words.split_first().unwrap();
    let client = redis::Client::open(format!("redis://{server}"))?;
    let mut connection = client.get_connection_with_timeout(std::time::Duration::from_secs(5))?;
    connection.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
    redis::cmd(name).arg(arguments).query(&mut connection)
}
