//! What only the store in a file promises: its lock, its modes, and what is there after a crash.

mod keys;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use oncegate::clock::Clock;
use oncegate::operation::transition::Retention;
use oncegate::operation::{OperationId, Scope, StateName};
use oncegate::store::file::{Durability, FileStore, LineageError, LockError, OpenError, SchemaError, Settings};
use oncegate::store::{Claimed, Store, StoreError, Written};
use rusqlite::Connection;

use crate::support::operations::*;
use crate::support::stores::{open_file, patient};
use crate::support::{eventually, lives};

/// Where the child process of `what_was_acknowledged_survives_a_kill` keeps its store.
const CHILD: &str = "ONCEGATE_TEST_STORE";

#[tokio::test]
async fn a_second_open_is_refused_until_the_first_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let [path, link, twin] = ["store.db", "link.db", "twin.db"].map(|name| directory.path().join(name));
    let store = open_file(&path).unwrap();
    symlink(&path, &link).unwrap();
    fs::hard_link(&path, &twin).unwrap();
    for path in [&path, &link, &twin] {
        assert!(matches!(open_file(path), Err(OpenError::Lock(LockError::Taken(_)))));
    }
    let kept = put_settled(&store, "kept", KEPT_LONG).await;
    drop(store);
    let found = open_file(&path).unwrap().read(kept.id).await.unwrap().unwrap();
    assert_eq!((found.operation, found.receipt), (kept, Some(receipt("done"))));
}

#[tokio::test]
async fn only_its_owner_can_read_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let parent = directory.path().join("made/here");
    let store = open_file(&parent.join("store.db")).unwrap();
    won(&store, claim(&store, "any")).await;
    assert_eq!(mode(&parent), 0o700);
    let files: Vec<_> = fs::read_dir(&parent).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[tokio::test]
async fn when_all_is_over_no_row_is_left_and_its_space_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let store = open_file(&path).unwrap();
        past(&store, lives::live(&store).await).await;
        lives::purge(&store).await;
        drop(store);
        sizes.push(fs::metadata(&path).unwrap().len());
        let file = Connection::open(&path).unwrap();
        for table in ["operations", "receipts", "requests", "events", "notes WHERE until IS NOT NULL"] {
            let count = format!("SELECT count(*) FROM {table}");
            assert_eq!(file.query_row(&count, [], |row| row.get::<_, i64>(0)).unwrap(), 0, "{table}");
        }
    }
    assert!(sizes[2] <= sizes[0], "{sizes:?}");
}

#[tokio::test]
async fn what_is_held_back_is_so_after_the_next_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = open_file(&path).unwrap();
    let (until, later) = (store.now().after(HOUR / 2), store.now().after(HOUR));
    for (name, until) in [("http://a *", until), ("http://a *", later), ("http://b *", until), ("http://c *", later)] {
        store.hold(name, until).await.unwrap();
    }
    store.replace_hold("http://b *", until, None).await.unwrap();
    store.replace_hold("http://c *", later, Some(until)).await.unwrap();
    store.replace_hold("http://c *", later, None).await.unwrap();
    let held = [("http://a *".to_owned(), later), ("http://c *".to_owned(), until)];
    assert_eq!(store.held().await.unwrap(), held);
    drop(store);
    assert_eq!(open_file(&path).unwrap().held().await.unwrap(), held);
}

#[tokio::test]
async fn a_file_without_a_count_of_the_unfinished_is_used_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = open_file(&path).unwrap();
    let before = put_unknown(&store, claim(&store, "before")).await;
    drop(store);
    let older = "DROP INDEX operations_unowned; ALTER TABLE operations DROP COLUMN open;";
    Connection::open(&path).unwrap().execute_batch(older).unwrap();
    let store = open_file(&path).unwrap();
    assert_eq!(store.read(before.id).await.unwrap().unwrap().operation, before);
    won(&store, claim(&store, "after")).await;
    assert_eq!(store.count_open(&Scope::none()).await.unwrap(), 1, "what is written from now on is counted");
}

#[tokio::test]
async fn a_file_with_another_index_of_the_unfinished_counts_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = open_file(&path).unwrap();
    put_unknown(&store, claim(&store, "unowned")).await;
    won(&store, claim(&store, "owned")).await;
    put_settled(&store, "ended", KEPT_LONG).await;
    assert_eq!(store.count_open(&Scope::none()).await.unwrap(), 2);
    drop(store);
    let older =
        "DROP INDEX operations_unowned; CREATE INDEX operations_open ON operations (open) WHERE open IS NOT NULL";
    Connection::open(&path).unwrap().execute_batch(older).unwrap();
    let store = open_file(&path).unwrap();
    assert_eq!(store.count_open(&Scope::none()).await.unwrap(), 2);
    won(&store, claim(&store, "another")).await;
    assert_eq!(store.count_open(&Scope::none()).await.unwrap(), 3);
}

/// Which writes every column but that of dead letters.
#[tokio::test]
async fn letters_that_an_older_version_wrote_over_are_put_right() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = open_file(&path).unwrap();
    let opened = put_unknown(&store, claim(&store, "opened")).await;
    put_settled(&store, "closed", KEPT_LONG).await;
    drop(store);
    let older = "UPDATE operations SET dead = CASE WHEN open IS NULL THEN 1 END";
    Connection::open(&path).unwrap().execute_batch(older).unwrap();
    let store = open_file(&path).unwrap();
    assert_eq!(store.dead_letters(None, 10).await.unwrap().operations, [opened]);
}

#[tokio::test]
async fn it_says_what_it_has_taken_of_its_disk() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_file(&directory.path().join("store.db")).unwrap();
    let space = store.space().await.unwrap().unwrap();
    assert!(space.used >= 4096 && space.limit > space.used, "{space:?}");
}

#[tokio::test]
async fn leases_of_an_earlier_life_are_over_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = open_file(&path).unwrap();
    let running = put_sent(&store, claim(&store, "running")).await;
    let ended = put_settled(&store, "ended", KEPT_LONG).await;
    drop(store);
    let store = open_file(&path).unwrap();
    assert_eq!(store.due(10).await.unwrap(), [running.id]);
    let found = store.read(running.id).await.unwrap().unwrap().operation;
    assert!(found.is_ownerless(store.now()));
    assert_eq!((found.state.name(), found.attempts, found.fence.token), (StateName::Sent, 1, running.fence.token));
    assert_eq!(store.events(running.id).await.unwrap().len(), 2);
    assert_eq!(store.read(ended.id).await.unwrap().unwrap().operation, ended);
    let taken = found.take_over(ownership(store.now(), HOUR), step(store.now())).unwrap();
    applied(&store, taken).await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    if let Ok(path) = std::env::var(CHILD) {
        return claim_and_say_so(&open_file(path.as_ref()).unwrap()).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "file_store::what_was_acknowledged_survives_a_kill", "--nocapture"])
        .env(CHILD, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    while lines.lines().count() < 200 {
        assert_ne!(said.read_line(&mut lines).unwrap(), 0, "the child ended: {lines}");
    }
    child.kill().unwrap();
    said.read_to_string(&mut lines).unwrap();
    child.wait().unwrap();
    let acknowledged: Vec<OperationId> = whole_lines(&lines).filter_map(|line| line.parse().ok()).collect();
    assert!(acknowledged.len() > 100, "{lines}");
    let store = open_file(&path).unwrap();
    for id in acknowledged {
        let found = store.read(id).await.unwrap().unwrap();
        assert_eq!(found.receipt, Some(receipt("done")));
        assert_eq!(store.events(id).await.unwrap().len(), 3);
    }
}

#[tokio::test]
async fn purging_takes_receipts_out_of_the_file_and_leaves_tombstones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = open_file(&path).unwrap();
    let keep = Retention { receipts: SOON, tombstones: HOUR, unknowns: None };
    put_settled(&store, "tombstone", keep).await;
    let ended = put_settled(&store, "gone", Retention { receipts: SOON, tombstones: SOON, unknowns: None }).await;
    past(&store, ended.expires_at.unwrap()).await;
    assert_eq!(
        (store.purge(1).await.unwrap(), store.purge(9).await.unwrap(), store.purge(9).await.unwrap()),
        (1, 1, 0)
    );
    drop(store);
    let file = Connection::open(&path).unwrap();
    let rows = |table: &str| file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0));
    let counts: Vec<i64> = ["operations", "receipts", "requests", "events"].map(|t| rows(t).unwrap()).into();
    assert_eq!(counts, [1, 0, 0, 3]);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_refuses_in_time_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = FileStore::open(&path, patient(Duration::from_millis(300)), Clock::system(), &[]).unwrap();
    let shell = Connection::open(&path).unwrap();
    shell.execute_batch("BEGIN IMMEDIATE").unwrap();
    let change = claim(&store, "held-up");
    let error = store.claim(&change, None).await.unwrap_err();
    assert!(matches!(error, StoreError::Timeout | StoreError::Refused(_)), "{error:?}");
    assert_eq!(store.read(change.operation.id).await.unwrap(), None);
    shell.execute_batch("ROLLBACK").unwrap();
    let again = claim(&store, "held-up");
    while store.ping().await.is_err() {}
    assert_eq!(store.claim(&again, None).await.unwrap(), Claimed::Won, "a claim that was given up left nothing");
    assert_eq!(store.write(&sent(&store, &again.operation)).await.unwrap(), Written::Applied);
}

#[tokio::test]
async fn what_is_at_hand_is_what_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = open_file(&path).unwrap();
    let running = claim(&store, "running");
    won(&store, running.clone()).await;
    assert_eq!(store.at_hand(running.operation.id), None, "it has no receipt yet");
    let kept = put_settled(&store, "kept", KEPT_LONG).await;
    let found = store.at_hand(kept.id).unwrap();
    assert_eq!(Some(&found), store.read(kept.id).await.unwrap().as_ref());
    assert_eq!(found.receipt, Some(receipt("done")));

    let shell = Connection::open(&path).unwrap();
    shell.execute("UPDATE receipts SET receipt = zeroblob(40)", []).unwrap();
    assert_eq!(store.at_hand(kept.id), None, "a damaged receipt is left to the claim, which tells");
    shell.execute("DELETE FROM operations", []).unwrap();
    assert_eq!(store.at_hand(kept.id), None);
    let short = put_settled(&store, "short", Retention { receipts: SOON, tombstones: HOUR, unknowns: None }).await;
    past(&store, short.state.settled().unwrap().receipt_until).await;
    assert_eq!(store.at_hand(short.id), None, "its time is over");
    drop(store);
    let store = open_file(&path).unwrap();
    assert_eq!(store.at_hand(short.id), None);
}

#[test]
fn a_file_of_another_kind_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    let text = "not a database ".repeat(1000);
    fs::write(&path, &text).unwrap();
    assert!(matches!(open_file(&path), Err(OpenError::Schema(SchemaError::Damaged(_)))));
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

/// Who is told that it is damaged moves it away, and its keys are forgotten.
#[test]
fn a_file_that_somebody_holds_at_the_start_is_not_called_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    drop(open_file(&path).unwrap());
    let shell = Connection::open(&path).unwrap();
    shell.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = FileStore::open(&path, patient(Duration::from_millis(50)), Clock::system(), &[]).err().unwrap();
    assert!(matches!(error, OpenError::Schema(SchemaError::Unusable(_))), "{error}");
    shell.execute_batch("ROLLBACK").unwrap();
    open_file(&path).unwrap();
}

#[test]
fn a_mark_that_is_none_is_refused_and_it_is_said_how_to_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let [path, lock] = ["store.db", "store.db.lock"].map(|name| directory.path().join(name));
    drop(open_file(&path).unwrap());
    fs::write(&lock, "4711").unwrap();
    let error = open_file(&path).err().unwrap();
    assert!(matches!(error, OpenError::Lineage(LineageError::Unmarked { .. })), "{error}");
    assert!(error.to_string().contains(&format!("remove {}", lock.display())), "{error}");
    fs::remove_file(&lock).unwrap();
    open_file(&path).unwrap();
}

#[test]
fn a_file_of_a_newer_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    drop(open_file(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 2).unwrap();
    assert!(matches!(open_file(&path), Err(OpenError::Schema(SchemaError::TooNew(2)))));
}

#[test]
fn a_path_that_cannot_be_made_is_refused() {
    let error = open_file(Path::new("/proc/oncegate/data/store.db")).err().unwrap();
    assert!(
        matches!(&error, OpenError::Lock(LockError::NoDirectory { path, .. }) if path == Path::new("/proc/oncegate")),
        "{error}"
    );
}

/// Until it is killed.
async fn claim_and_say_so(store: &FileStore) {
    for number in 0.. {
        let ended = put_settled(store, &format!("child-{number}"), KEPT_LONG).await;
        println!("{}", ended.id);
    }
}

fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn another_file_or_an_older_one_is_not_taken_for_the_last() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let (first, last, lock) =
        (directory.path().join("first"), directory.path().join("last"), directory.path().join("store.db.lock"));
    drop(open_file(&path).unwrap());
    fs::copy(&path, &first).unwrap();
    let store = open_file(&path).unwrap();
    let kept = put_settled(&store, "kept", KEPT_LONG).await;
    drop(store);
    fs::copy(&path, &last).unwrap();

    fs::copy(&first, &path).unwrap();
    assert!(matches!(open_file(&path), Err(OpenError::Lineage(LineageError::Older(_)))));
    fs::remove_file(&path).unwrap();
    for _ in 0..2 {
        let error = open_file(&path).err().unwrap();
        assert!(matches!(error, OpenError::Lineage(LineageError::Missing(_))), "also on the next try: {error}");
    }
    let other = tempfile::tempdir().unwrap();
    drop(open_file(&other.path().join("other.db")).unwrap());
    fs::copy(other.path().join("other.db"), &path).unwrap();
    assert!(matches!(open_file(&path), Err(OpenError::Lineage(LineageError::Replaced(_)))));

    fs::copy(&last, &path).unwrap();
    assert_eq!(open_file(&path).unwrap().read(kept.id).await.unwrap().unwrap().operation, kept);
    fs::copy(&first, &path).unwrap();
    fs::remove_file(&lock).unwrap();
    assert_eq!(open_file(&path).unwrap().read(kept.id).await.unwrap(), None, "the loss was accepted");
}

/// The lock learns from a checkpoint what no power loss takes from the file any more.
#[tokio::test]
async fn an_older_copy_is_noticed_where_a_power_loss_may_take_a_commit() {
    let directory = tempfile::tempdir().unwrap();
    let [path, copy, lock] = ["store.db", "copy.db", "store.db.lock"].map(|name| directory.path().join(name));
    let settings = Settings { durability: Durability::Os, ..patient(Duration::from_secs(30)) };
    let open = || FileStore::open(&path, settings, Clock::system(), &[]);
    let store = open().unwrap();
    fs::copy(&path, &copy).unwrap();
    let begun = fs::read(&lock).unwrap();
    let kept = put_settled(&store, "kept", KEPT_LONG).await;
    eventually("a mark that has moved on", || (fs::read(&lock).unwrap() != begun).then_some(()));
    drop(store);

    assert_eq!(open().unwrap().read(kept.id).await.unwrap().unwrap().operation, kept);
    fs::copy(&copy, &path).unwrap();
    assert!(matches!(open(), Err(OpenError::Lineage(LineageError::Older(_)))));
}

/// A service manager starts the gateway again before a person has put the file back.
#[tokio::test]
async fn a_start_without_the_file_leaves_its_log_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let [path, log, lock] = ["store.db", "store.db-wal", "store.db.lock"].map(|name| directory.path().join(name));
    let store = open_file(&path).unwrap();
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM operations").unwrap();
    let kept = put_settled(&store, "kept", KEPT_LONG).await;
    let [file, bytes, mark] = [&path, &log, &lock].map(|path| fs::read(path).unwrap());
    drop(reader);
    drop(store);
    fs::remove_file(&path).unwrap();
    fs::write(&log, &bytes).unwrap();
    fs::write(&lock, mark).unwrap();
    for is_empty in [false, true] {
        if is_empty {
            fs::write(&path, "").unwrap();
        }
        assert!(matches!(open_file(&path), Err(OpenError::Lineage(LineageError::Missing(_)))));
        assert_eq!((fs::read(&log).unwrap() == bytes, path.exists()), (true, is_empty));
    }
    fs::write(&path, file).unwrap();
    assert_eq!(open_file(&path).unwrap().read(kept.id).await.unwrap().unwrap().operation, kept);
}

#[tokio::test]
async fn a_link_to_nothing_is_no_place_for_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link.db");
    symlink(directory.path().join("nothing.db"), &link).unwrap();
    assert!(matches!(open_file(&link), Err(OpenError::Lock(LockError::Unusable { .. }))));
}

/// As a kill leaves it: the log holds what is not in the file.
#[tokio::test]
async fn a_log_that_is_gone_or_damaged_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let [path, log, lock] = ["store.db", "store.db-wal", "store.db.lock"].map(|name| directory.path().join(name));
    let store = open_file(&path).unwrap();
    // While somebody reads, nothing is moved out of the log.
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM operations").unwrap();
    let file = fs::read(&path).unwrap();
    let begun = fs::read(&lock).unwrap();
    for key in ["one", "two", "three"] {
        put_settled(&store, key, KEPT_LONG).await;
    }
    assert_ne!(fs::read(&lock).unwrap(), begun, "the first step counts, and then one in each second");
    let (bytes, mark) = (fs::read(&log).unwrap(), fs::read(&lock).unwrap());
    drop(reader);
    drop(store);
    let put_back = |log_bytes: &[u8]| {
        fs::write(&path, &file).unwrap();
        fs::write(&log, log_bytes).unwrap();
        fs::write(&lock, &mark).unwrap();
    };

    put_back(&bytes);
    fs::remove_file(&log).unwrap();
    assert!(matches!(open_file(&path), Err(OpenError::Lineage(LineageError::Older(_)))));
    put_back(&bytes[..32]);
    assert!(matches!(open_file(&path), Err(OpenError::Lineage(LineageError::Older(_)))));
    for place in [0, 100, bytes.len() / 2] {
        let mut garbage = bytes.clone();
        garbage[place..place + 24].fill(0x5a);
        put_back(&garbage);
        assert!(matches!(open_file(&path), Err(OpenError::LogDamaged(_))), "at {place}");
    }
    put_back(&bytes);
    let store = open_file(&path).unwrap();
    assert_eq!(store.list(None, 9).await.unwrap().operations.len(), 3);
}

#[tokio::test]
async fn a_damaged_page_is_found_before_a_key_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = open_file(&path).unwrap();
    for number in 0..20 {
        put_settled(&store, &format!("key-{number}"), KEPT_LONG).await;
    }
    drop(store);
    let whole = fs::read(&path).unwrap();
    for (page, filler) in (0..whole.len() / 4096).flat_map(|page| [(page, 0x5a), (page, 0)]) {
        let mut damaged = whole.clone();
        damaged[page * 4096..][..4096].fill(filler);
        fs::write(&path, damaged).unwrap();
        let error = open_file(&path).err().unwrap_or_else(|| panic!("page {page} full of {filler}"));
        assert!(matches!(error, OpenError::Schema(_) | OpenError::Lineage(_)), "{error}");
    }
    fs::write(&path, whole).unwrap();
    open_file(&path).unwrap();
}

#[tokio::test]
async fn a_log_that_cannot_be_read_is_named_in_the_refusal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    drop(open_file(&path).unwrap());
    let log = directory.path().join("store.db-wal");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let error = open_file(&path).err().unwrap();
    assert!(matches!(error, OpenError::LogUnreadable { .. }), "{error:?}");
    assert!(error.to_string().contains("store.db, `-wal`, cannot be read"), "{error}");
}
