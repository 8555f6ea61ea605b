//! What lies in the store: no body, no credential, and nothing that opens in another place or without its key.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::stored::{Part, Stored};
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [file redis]
    bodies_are_not_in_the_store
    a_new_key_encrypts_and_the_old_one_still_decrypts
    an_answer_opens_for_no_other_operation
}

on! { [redis]
    without_its_key_nothing_is_lost_and_nothing_runs_again
    what_was_stored_before_there_was_a_key_is_read
}

const OLD: &str = "6b2f1fd36f8e1ee2c3c1d0f5f3a9a86bb1f6f65d8b1d0c2f4b7d6e2a9c405162";
const NEW: &str = "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=";
const SPOKEN: &str = "wireless-canary";

/// Settings with a key file of these lines.
fn with_keys(upstream: &ScriptedUpstream, directory: &TempDir, lines: &[&str]) -> Settings {
    let path = directory.path().join("keys");
    fs::write(&path, lines.join("\n")).unwrap();
    Settings::of(upstream).top(&format!("store.encryption = {{ file = '{}' }}", path.display()))
}

fn told(gateway: &Gateway, key: &str, body: &[u8]) {
    let answer = gateway.charge(key).send().expect(201);
    assert_eq!((answer.is_replay(), answer.body.as_slice()), (true, body));
}

fn bodies_are_not_in_the_store(mut ground: Ground) {
    let (upstream, directory) = (ScriptedUpstream::start(), tempfile::tempdir().unwrap());
    upstream.then(Step::Held(Reply::new(201).body(format!("{SPOKEN} answer"))));
    let mut gateway = with_keys(&upstream, &directory, &[OLD]).start(&ground);
    let charge = |gateway: &Gateway| {
        let charge = gateway.post("/charges").key("k-1").json(format!("\"{SPOKEN} request\""));
        charge.header("Authorization", format!("Bearer {SPOKEN}"))
    };
    let call = charge(&gateway).begin();
    upstream.wait_for(1);
    let id = gateway.wait_for("sent").0["id"].as_str().unwrap().to_owned();
    let mut stored = Stored::of(&ground, &id, 1);
    assert_eq!(stored.read(Part::Request)[0], b'2');
    upstream.release();
    call.answer().expect(201);
    assert_eq!(stored.read(Part::Receipt)[0], b'2');
    drop(stored);

    gateway.kill();
    for (file, bytes) in files_of(&mut ground) {
        let found = bytes.windows(SPOKEN.len()).any(|window| window == SPOKEN.as_bytes());
        assert!(!found, "{file} holds what was said");
    }
    gateway.restart();
    assert_eq!(charge(&gateway).send().expect(201).body, format!("{SPOKEN} answer").into_bytes());
    assert_eq!(upstream.seen().len(), 1);
}

/// Everything that the store has on the disk.
fn files_of(ground: &mut Ground) -> Vec<(String, Vec<u8>)> {
    let root = match ground {
        Ground::File(directory) => directory.path().to_owned(),
        Ground::Redis(server) => server.directory(),
        Ground::Memory => panic!("nothing is on the disk"),
    };
    let mut files = Vec::new();
    collect(&root, &mut files);
    assert!(files.iter().any(|(_, bytes)| bytes.windows(3).any(|window| window == b"k-1")), "the keys are in clear");
    files
}

fn collect(directory: &Path, files: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
}

fn a_new_key_encrypts_and_the_old_one_still_decrypts(ground: Ground) {
    let (upstream, directory) = (ScriptedUpstream::start(), tempfile::tempdir().unwrap());
    let mut gateway = with_keys(&upstream, &directory, &[OLD]).start(&ground);
    gateway.charge("k-1").send().expect(201);
    gateway.kill();

    let mut gateway = with_keys(&upstream, &directory, &[NEW, OLD]).start(&ground);
    told(&gateway, "k-1", br#"{"id": "ch_1"}"#);
    gateway.charge("k-2").send().expect(201);
    gateway.kill();

    let gateway = with_keys(&upstream, &directory, &[NEW]).start(&ground);
    told(&gateway, "k-2", br#"{"id": "ch_2"}"#);
    let gone = gateway.charge("k-1").send().expect_problem(409, "result-unavailable");
    assert_eq!((gone.execution(), &gone.json()["result"]["status"]), (Some("executed"), &201.into()));
    let warnings = gateway.admin("/v1/status")["warnings"].to_string();
    assert!(warnings.contains("which is none of those that are configured"), "{warnings}");
    assert_eq!(upstream.seen().len(), 2);
}

fn an_answer_opens_for_no_other_operation(ground: Ground) {
    let (upstream, directory) = (ScriptedUpstream::start(), tempfile::tempdir().unwrap());
    let gateway = with_keys(&upstream, &directory, &[OLD]).start(&ground);
    let ids = ["k-1", "k-2"].map(|key| gateway.charge(key).send().expect(201).operation().to_owned());
    let [mut first, mut second] = [Stored::of(&ground, &ids[0], 1), Stored::of(&ground, &ids[1], 2)];
    let (one, two) = (first.read(Part::Receipt), second.read(Part::Receipt));
    first.write(Part::Receipt, &two);
    second.write(Part::Receipt, &one);

    for key in ["k-1", "k-2"] {
        gateway.charge(key).send().expect_problem(409, "result-unavailable");
    }
    assert_eq!(upstream.seen().len(), 2);
}

fn without_its_key_nothing_is_lost_and_nothing_runs_again(ground: Ground) {
    let (upstream, directory) = (ScriptedUpstream::honouring_keys(), tempfile::tempdir().unwrap());
    let pass = |settings: Settings| settings.with_key().top("store.lease = '1s'").route("on_store_down = 'pass'");
    let keys = ["key.mode = 'required'", "in_flight = 'reject'"];
    let route = |settings: Settings| keys.iter().fold(pass(settings), |settings, line| settings.route(line));
    let mut gateway = route(with_keys(&upstream, &directory, &[OLD])).start(&ground);
    gateway.charge("k-1").send().expect(201);
    upstream.then(Step::Held(Reply::charge(2)));
    let call = gateway.charge("k-2").begin();
    upstream.wait_for(2);
    gateway.kill();
    drop(call);

    let mut forgetful = route(Settings::of(&upstream)).start(&ground);
    let told_off = forgetful.charge("k-1").send().expect_problem(503, "store-unavailable");
    assert!(told_off.retry_after().is_some());
    assert!(told_off.json()["detail"].as_str().unwrap().contains("store.encryption"), "{told_off:?}");
    forgetful.charge("k-2").send();
    let warnings = forgetful.admin("/v1/status")["warnings"].to_string();
    assert!(warnings.contains("no key is configured"), "{warnings}");
    forgetful.kill();
    assert_eq!(upstream.seen().len(), 2, "not even past the store");

    let gateway = route(with_keys(&upstream, &directory, &[OLD])).start(&ground);
    told(&gateway, "k-1", br#"{"id": "ch_1"}"#);
    gateway.operations("").iter().for_each(|operation| assert_ne!(operation.state(), "unknown", "{operation:?}"));
}

fn what_was_stored_before_there_was_a_key_is_read(ground: Ground) {
    let (upstream, directory) = (ScriptedUpstream::start(), tempfile::tempdir().unwrap());
    let mut gateway = Settings::of(&upstream).start(&ground);
    gateway.charge("k-1").send().expect(201);
    gateway.kill();

    let gateway = with_keys(&upstream, &directory, &[OLD]).start(&ground);
    told(&gateway, "k-1", br#"{"id": "ch_1"}"#);
    let second = gateway.charge("k-2").send().expect(201);
    assert_eq!(Stored::of(&ground, second.operation(), 2).read(Part::Receipt)[0], b'2');
}
