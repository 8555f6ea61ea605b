//! The key that a store in a file makes for itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use oncegate::store::Store;
use oncegate::store::file::{KeyError, OpenError};
use rusqlite::Connection;

use crate::support::operations::*;
use crate::support::stores::open_file;

#[tokio::test]
async fn a_key_is_made_once_and_for_its_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let (path, key) = (directory.path().join("store.db"), directory.path().join("store.db.key"));
    let store = open_file(&path).unwrap();
    let ended = put_settled(&store, "kept", KEPT_LONG).await;
    drop(store);
    let line = fs::read_to_string(&key).unwrap();
    assert_eq!((line.len(), fs::metadata(&key).unwrap().permissions().mode() & 0o777), (65, 0o600));
    let store = open_file(&path).unwrap();
    assert_eq!(store.read(ended.id).await.unwrap().unwrap().receipt, Some(receipt("done")));
    assert_eq!(fs::read_to_string(&key).unwrap(), line);
    let first: Vec<u8> =
        Connection::open(&path).unwrap().query_row("SELECT receipt FROM receipts", [], |row| row.get(0)).unwrap();
    assert!(!first.windows(4).any(|window| window == b"done"));
}

#[tokio::test]
async fn a_key_that_went_away_is_never_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (path, key) = (directory.path().join("store.db"), directory.path().join("store.db.key"));
    let store = open_file(&path).unwrap();
    let ended = put_settled(&store, "kept", KEPT_LONG).await;
    drop(store);
    let line = fs::read_to_string(&key).unwrap();
    fs::remove_file(&key).unwrap();
    for _ in 0..2 {
        let error = open_file(&path).err().unwrap();
        assert!(matches!(error, OpenError::Key(KeyError::Missing { .. })), "{error:?}");
        assert!(!key.exists());
    }
    fs::write(&key, line).unwrap();
    let found = open_file(&path).unwrap().read(ended.id).await.unwrap().unwrap();
    assert_eq!(found.receipt, Some(receipt("done")));
}

#[test]
fn a_key_file_that_holds_something_else_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (path, key) = (directory.path().join("store.db"), directory.path().join("store.db.key"));
    fs::write(&key, "not a key\n").unwrap();
    let error = open_file(&path).err().unwrap();
    assert!(matches!(error, OpenError::Key(KeyError::Malformed { .. })), "{error:?}");
    assert_eq!(fs::read_to_string(&key).unwrap(), "not a key\n");
}

#[test]
fn a_start_that_ended_in_the_middle_leaves_nothing_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    let (path, key) = (directory.path().join("store.db"), directory.path().join("store.db.key"));
    fs::write(&key, "").unwrap();
    open_file(&path).unwrap();
    assert_eq!(fs::read_to_string(&key).unwrap().len(), 65);
    fs::write(&key, "").unwrap();
    let error = open_file(&path).err().unwrap();
    assert!(
        matches!(error, OpenError::Key(KeyError::Missing { .. })),
        "once it was used it is never replaced: {error:?}"
    );
}
