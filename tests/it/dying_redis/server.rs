//! The server itself is ill, and says so, or ends.

use std::fs;
use std::thread::{self, JoinHandle};

use super::scene::Scene;
use crate::support::eventually;
use crate::support::redis_server::{RedisServer, say};

/// Sets something, and sets it back.
fn outage(setting: &str, ill: &str, well: &str) {
    let set = |scene: &mut Scene, value: &str| scene.server.say::<()>(&["CONFIG", "SET", setting, value]);
    Scene::new().outage(&format!("{setting} {ill}"), |scene| set(scene, ill), |scene| set(scene, well));
}

#[test]
fn memory_that_is_full() {
    outage("maxmemory", "1mb", "0");
}

#[test]
fn replicas_that_are_missing() {
    outage("min-replicas-to-write", "1", "0");
}

#[test]
fn a_server_that_stands_still() {
    Scene::new().outage("SIGSTOP", |scene| scene.server.freeze(), |scene| scene.server.thaw());
}

#[test]
fn a_server_that_is_killed() {
    Scene::new().outage("SIGKILL", |scene| scene.server.kill(), |scene| scene.server.restart());
}

#[test]
fn a_master_that_is_demoted_and_promoted_again() {
    let demote = |scene: &mut Scene| scene.server.say::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    let promote = |scene: &mut Scene| scene.server.say::<()>(&["REPLICAOF", "NO", "ONE"]);
    Scene::new().outage("REPLICAOF", demote, promote);
}

#[test]
fn a_password_that_is_changed() {
    let mut scene = Scene::new();
    let mut admin = scene.server.admin();
    let mut change = |password: &str| {
        say::<()>(&mut admin, &["CONFIG", "SET", "requirepass", password]);
        say::<()>(&mut admin, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    };
    change("");
    let change = std::cell::RefCell::new(change);
    scene.outage("requirepass", |_| change.borrow_mut()("secret"), |_| change.borrow_mut()(""));
}

/// A dump cannot take the place of a directory.
#[test]
fn dumps_that_fail() {
    let dump = |scene: &Scene| scene.server.directory().join("dump.rdb");
    let save = |scene: &mut Scene, status: &str| {
        scene.server.say::<()>(&["BGSAVE"]);
        let is_said = |info: String| info.lines().any(|line| line == format!("rdb_last_bgsave_status:{status}"));
        eventually("the end of the dump", || {
            let info: String = scene.server.say(&["INFO", "persistence"]);
            (info.contains("rdb_bgsave_in_progress:0") && is_said(info)).then_some(())
        });
    };
    let fail = |scene: &mut Scene| {
        scene.server.say::<()>(&["CONFIG", "SET", "save", "3600 1000000"]);
        fs::create_dir(dump(scene)).unwrap();
        save(scene, "err");
    };
    let succeed = |scene: &mut Scene| {
        fs::remove_dir(dump(scene)).unwrap();
        save(scene, "ok");
    };
    Scene::new().outage("MISCONF", fail, succeed);
}

#[test]
fn data_that_is_still_being_loaded() {
    let load = |scene: &mut Scene| {
        scene.server.say::<()>(&["DEBUG", "POPULATE", "20000"]);
        scene.server.say::<()>(&["BGREWRITEAOF"]);
        eventually("a file to load", || {
            let info: String = scene.server.say(&["INFO", "persistence"]);
            info.contains("aof_rewrite_in_progress:0").then_some(())
        });
        scene.server.kill();
        scene.server.restart_with(&["--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024"]);
    };
    let loaded = |scene: &mut Scene| scene.server.say::<()>(&["CONFIG", "SET", "key-load-delay", "0"]);
    Scene::new().outage("LOADING", load, loaded);
}

#[test]
fn a_server_that_somebody_elses_script_keeps_busy() {
    let mut busy: Option<JoinHandle<()>> = None;
    let mut scene = Scene::new();
    let (mut admin, mut other) = (scene.server.admin(), scene.server.admin());
    say::<()>(&mut admin, &["CONFIG", "SET", "busy-reply-threshold", "1"]);
    let begin = |_: &mut Scene| {
        busy = Some(thread::spawn(move || {
            drop(redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut other));
        }));
        eventually("a busy server", || redis::cmd("PING").query::<()>(&mut admin).err());
    };
    let server = scene.server.url();
    let end = |_: &mut Scene| {
        let mut admin = redis::Client::open(server).unwrap().get_connection().unwrap();
        say::<()>(&mut admin, &["SCRIPT", "KILL"]);
    };
    scene.outage("BUSY", begin, end);
    busy.unwrap().join().unwrap();
}

/// A probe of the server does not see it.
#[test]
fn keys_of_ours_that_hold_something_else() {
    for index in ["l", "o"] {
        let scene = Scene::new();
        let over_all = |command: &str, value: &str| {
            let name = format!("string.format('oncegate:{{it:%02x}}:{index}', bucket)");
            let script = format!("for bucket = 0, 255 do redis.call('{command}', {name}{value}) end");
            scene.server.say::<()>(&["EVAL", &script, "0"]);
        };
        over_all("SET", ", 'theirs'");
        scene.calls_are_refused();
        over_all("DEL", "");
        scene.comes_back();
    }
}

/// A server that writes every step to the disk ends when that is full.
#[test]
fn a_disk_that_is_full() {
    let mut scene = Scene::on(RedisServer::on_small_disk(8));
    let ballast = scene.server.directory().join("ballast");
    let fill = |scene: &mut Scene| {
        fs::write(&ballast, vec![0; 8 << 20]).unwrap_err();
        let mut numbers = 0..;
        // The last page of its file may still have room, and then it is the receipt that has none.
        eventually("a write that fails", || {
            let charge = scene.gateway.charge(&format!("filling-{}", numbers.next()?));
            let answer = charge.header("X-Request-Timeout-Ms", "500").send();
            (answer.status == 503 || answer.header("Oncegate-Receipt") == Some("none")).then_some(())
        });
        scene.server.wait_for_end();
    };
    let make_room = |scene: &mut Scene| {
        fs::remove_file(&ballast).unwrap();
        scene.server.restart();
    };
    scene.outage("ENOSPC", fill, make_room);
}

/// Nobody notices.
#[test]
fn scripts_that_are_flushed() {
    let scene = Scene::new();
    for number in 0..3 {
        scene.server.say::<()>(&["SCRIPT", "FLUSH"]);
        scene.gateway.charge(&format!("flushed-{number}")).send().expect(201);
    }
    assert_eq!(scene.upstream.effects(), 4);
}
