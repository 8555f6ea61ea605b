//! The store on a `redis-server` of its own, and the server's own benchmark of the same work.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::store::redis::RedisStore;

use super::{CALLERS, Failure, call, steps};

const START: Duration = Duration::from_secs(10);
/// About what a claim and a settle write, by one script each: a record, an event, a body, an entry in an index.
const SCRIPT: &str = "if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET') then \
                      redis.call('HSET', KEYS[2], 1, ARGV[2]) redis.call('SET', KEYS[3], ARGV[3]) \
                      redis.call('ZADD', KEYS[4], 1, KEYS[1]) end return 1";

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// With `appendfsync everysec` and `always`.
pub(crate) async fn measure(directory: &Path) -> Result<(), Failure> {
    for fsync in ["everysec", "always"] {
        let (_server, port) = start(directory, fsync)?;
        for callers in CALLERS {
            one(port, fsync, callers).await?;
        }
    }
    Ok(())
}

async fn one(port: u16, fsync: &str, callers: usize) -> Result<(), Failure> {
    let url = format!("redis://127.0.0.1:{port}");
    let store = RedisStore::connect(&url, "ops", call::HOUR).await?;
    let measured = steps(Arc::new(store), callers).await?;
    measured.print(&format!("redis, {fsync}"), callers);
    let (connections, record, body) = (callers.to_string(), "x".repeat(512), "x".repeat(1024));
    let get = benchmark(port, &connections, &["GET", "key:__rand_int__"])?;
    let set = benchmark(port, &connections, &["SET", "key:__rand_int__", &record, "NX", "GET"])?;
    let keys = ["4", "k:{b}:__rand_int__", "e:{b}:__rand_int__", "r:{b}:__rand_int__", "i:{b}"];
    let script = [&["EVAL", SCRIPT][..], &keys, &[&record, "an event of about that length", &body]].concat();
    let script = benchmark(port, &connections, &script)?;
    println!(
        "; redis-benchmark: GET {get:.0}/s, SET NX GET {set:.0}/s, a script of that size {script:.0}/s: {:.0} % of it",
        measured.per_second / script * 100.0
    );
    Ok(())
}

/// Requests in a second.
fn benchmark(port: u16, connections: &str, command: &[&str]) -> Result<f64, Failure> {
    let port = port.to_string();
    let count = if connections == "1" { "2000" } else { "20000" };
    let given = ["-p", &port, "-c", connections, "-n", count, "-r", "1000000000", "-P", "1", "--csv"];
    let output = Command::new("redis-benchmark").args(given).args(command).output()?;
    let said = String::from_utf8(output.stdout)?;
    let line = said.lines().rev().find(|line| line.starts_with('"')).ok_or("redis-benchmark said nothing")?;
    // The command itself is quoted first, and may have commas.
    let numbers = line.rsplit_once("\",\"").ok_or("no figures")?.0;
    let rate = numbers.rsplit("\",\"").nth(5).ok_or("no rate")?;
    Ok(rate.parse()?)
}

fn start(directory: &Path, fsync: &str) -> Result<(Server, u16), Failure> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let data = directory.join(fsync);
    fs::create_dir(&data)?;
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "yes", "--appendfsync", fsync]);
    command.args(["--maxmemory-policy", "noeviction", "--bind", "127.0.0.1"]).arg("--dir").arg(data);
    let server = Server(command.stdout(Stdio::null()).spawn()?);
    let give_up = Instant::now() + START;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if Instant::now() > give_up {
            return Err("redis-server does not start".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((server, port))
}
