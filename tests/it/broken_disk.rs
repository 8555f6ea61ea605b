//! A store in a file on a disk that fails: nothing is sent that could be forgotten, and nothing is tried on luck.

use oncegate::entropy::Entropy;

use crate::support::client::Answer;
use crate::support::disk::{Disk, Fault, Leaves};
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

const INPUT_OUTPUT: i32 = 5;
const NO_SPACE: i32 = 28;
const READ_ONLY: i32 = 30;
/// How the documentation names the exit of a gateway whose store ended.
const ENDED: Option<i32> = Some(74);

#[test]
fn after_an_fsync_error_nothing_is_sent_and_the_gateway_ends() {
    let (disk, upstream) = (Disk::new(), ScriptedUpstream::start());
    let mut gateway = disk.under(settings(&upstream)).start_on(&disk.url());
    gateway.charge("kept").send().expect(201);
    upstream.then(Step::Held(Reply::charge(2)));
    let held = gateway.charge("under-way").begin();
    upstream.wait_for(2);

    disk.fail(Fault::Sync("-wal", INPUT_OUTPUT));
    let refused = gateway.charge("refused").send().expect_problem(503, "store-unavailable");
    assert_eq!(refused.execution(), Some("not-executed"));
    let says_no = |told: &Answer| told.json()["store"]["ok"] == false;
    let told = eventually("a store that says so", || Some(gateway.store_readiness()).filter(says_no));
    assert_eq!((told.status, told.json()["stage"].as_str()), (503, Some("draining")));
    assert!(told.json()["store"]["error"].as_str().unwrap().contains("takes no more writes"), "{told:?}");

    upstream.release();
    let answer = held.answer().expect(201);
    assert_eq!((answer.header("Oncegate-Receipt"), answer.execution()), (Some("none"), Some("executed")));
    assert_eq!(gateway.exit().code(), ENDED);
    assert!(gateway.log().contains("a write may not have reached the disk"));
    let syncs = disk.syncs();
    assert_eq!(
        syncs.iter().position(|sync| sync.ends_with("failed")),
        Some(syncs.len() - 1),
        "none after it: {syncs:?}"
    );

    gateway.restart();
    assert!(gateway.charge("kept").send().expect(201).is_replay());
    gateway.charge("under-way").send().expect_problem(409, "outcome-unknown");
    // The disk may hold its claim; then the new gateway may have made the call by itself.
    gateway.charge("refused").send().expect(201);
    assert_eq!(upstream.seen().len(), 3);
    power_loss(&disk, &mut gateway);
    assert!(gateway.charge("kept").send().expect(201).is_replay());
    gateway.charge("under-way").send().expect_problem(409, "outcome-unknown");
    assert!(gateway.charge("refused").send().expect(201).is_replay());
    assert_eq!(upstream.seen().len(), 3);
}

/// What was moved into the file is lost then, and the log still has it: the next start must not trust the page cache.
#[test]
fn an_fsync_error_while_pages_are_moved_is_one_too() {
    for file in ["store.db", "-wal"] {
        let (disk, upstream) = (Disk::new(), ScriptedUpstream::start());
        let mut gateway = disk.under(settings(&upstream).top("store.durability = 'os'")).start_on(&disk.url());
        gateway.charge("before").send().expect(201);
        disk.fail(Fault::Sync(file, INPUT_OUTPUT));
        assert_eq!(gateway.exit().code(), ENDED, "{file}");
        assert!(disk.has_failed());
        gateway.restart();
        power_loss(&disk, &mut gateway);
        assert!(gateway.charge("before").send().expect(201).is_replay(), "{file}");
        assert_eq!(upstream.seen().len(), 1);
    }
}

#[test]
fn a_write_that_fails_ends_the_gateway_too() {
    for error in [INPUT_OUTPUT, READ_ONLY] {
        let (disk, upstream) = (Disk::new(), ScriptedUpstream::start());
        let mut gateway = disk.under(settings(&upstream)).start_on(&disk.url());
        gateway.charge("kept").send().expect(201);
        disk.fail(Fault::Write("-wal", error));
        gateway.charge("refused").send().expect_problem(503, "store-unavailable");
        assert_eq!(gateway.exit().code(), ENDED, "error {error}");
        disk.heal();
        gateway.restart();
        assert!(gateway.charge("kept").send().expect(201).is_replay());
        assert_eq!(upstream.seen().len(), 1);
    }
}

#[test]
fn a_full_disk_is_waited_for() {
    let (disk, upstream) = (Disk::new(), ScriptedUpstream::start());
    let gateway = disk.under(settings(&upstream)).start_on(&disk.url());
    gateway.charge("kept").send().expect(201);
    upstream.then(Step::Held(Reply::charge(2)));
    let held = gateway.charge("under-way").begin();
    upstream.wait_for(2);

    disk.fail(Fault::Write("-wal", NO_SPACE));
    gateway.charge("refused").send().expect_problem(503, "store-unavailable");
    assert!(gateway.charge("kept").send().expect(201).is_replay(), "what is known needs no space");
    let told = eventually("a store that says so", || Some(gateway.store_readiness()).filter(|told| told.status == 503));
    assert_eq!(told.json()["stage"], "ready");
    upstream.release();
    assert_eq!(held.answer().expect(201).header("Oncegate-Receipt"), Some("none"));
    assert_eq!(upstream.seen().len(), 2);

    disk.heal();
    eventually("the receipt", || gateway.charge("under-way").send().is_replay().then_some(()));
    gateway.charge("refused").send().expect(201);
    assert_eq!((gateway.store_readiness().status, upstream.seen().len()), (200, 3));
}

#[test]
fn a_full_file_system_is_waited_for() {
    let (place, upstream) = (tempfile::tempdir().unwrap(), ScriptedUpstream::start());
    let settings = settings(&upstream).on_small_disk(place.path());
    let gateway = settings.start_on(&format!("file:{}/store.db", place.path().display()));
    gateway.charge("kept").send().expect(201);
    let filler = gateway.view(&place.path().join("filler"));
    let full = std::fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(NO_SPACE));

    // What the log has allocated may still take a few, and more once its pages are in the file.
    let key = |number: usize| format!("k-{number}");
    let mut fits = 0;
    let (refused, told) = eventually("a store that says so", || {
        let mut refused = gateway.charge(&key(fits)).send();
        while refused.status == 201 {
            fits += 1;
            refused = gateway.charge(&key(fits)).send();
        }
        Some((refused, gateway.store_readiness())).filter(|(_, told)| told.status == 503)
    });
    refused.expect_problem(503, "store-unavailable");
    assert_eq!(told.json()["stage"], "ready");
    assert_eq!(upstream.seen().len(), fits + 1);

    std::fs::remove_file(&filler).unwrap();
    let again = || Some(gateway.charge(&key(fits)).send()).filter(|answer| answer.status == 201);
    eventually("a store with space", again);
    assert!(gateway.charge("kept").send().expect(201).is_replay());
    assert_eq!(upstream.seen().len(), fits + 2);
}

#[test]
fn a_file_that_is_taken_away_ends_the_gateway() {
    for name in ["store.db", "store.db-wal", "store.db-shm", "store.db.lock"] {
        let (disk, upstream) = (Disk::new(), ScriptedUpstream::start());
        let mut gateway = disk.under(settings(&upstream)).start_on(&disk.url());
        gateway.charge("kept").send().expect(201);
        std::fs::rename(disk.live(name), disk.live("elsewhere")).unwrap();
        assert_eq!(gateway.exit().code(), ENDED, "nobody has to call for it to be noticed: {name}");
        assert!(gateway.log().contains("was removed or replaced"), "{name}");
        std::fs::rename(disk.live("elsewhere"), disk.live(name)).unwrap();
        gateway.restart();
        assert!(gateway.charge("kept").send().expect(201).is_replay(), "{name}");
        assert_eq!(upstream.seen().len(), 1);
    }
}

fn settings(upstream: &ScriptedUpstream) -> Settings {
    Settings::of(upstream).route("retry.deadline = '5s'").route("retry.attempt_timeout = '5s'")
}

/// Of the machine, with the gateway on it.
fn power_loss(disk: &Disk, gateway: &mut Gateway) {
    gateway.kill();
    disk.lose_power(Leaves::Nothing, &Entropy::seeded(0));
    gateway.restart();
}
