//! Redis is away between the send and the receipt: what the first caller is told, and those who repeat the call, here and
//! at another gateway.

use std::time::{Duration, Instant};

use super::scene::{TIMEOUT, settings};
use crate::support::client::{Answer, Pending};
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::redis_server::RedisServer;
use crate::support::toxic::{Toxic, ToxicProxy};
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

/// Of the first call: how long its owner tries before the answer goes out without a receipt.
const DEADLINE: Duration = Duration::from_secs(3);

/// What a busy machine may add.
const GRACE: Duration = Duration::from_secs(8);

/// Two gateways on one store; the way of the first one may be lost.
struct Pair {
    upstream: ScriptedUpstream,
    proxy: ToxicProxy,
    owner: Gateway,
    other: Gateway,
    _server: RedisServer,
}

impl Pair {
    fn new(declare: impl Fn(Settings) -> Settings) -> Self {
        let (server, upstream) = (RedisServer::start(), ScriptedUpstream::honouring_keys());
        let proxy = ToxicProxy::to(server.address());
        let settings = declare(settings(&upstream));
        let (owner, other) = (settings.start_on(&proxy.url()), settings.start_on(&server.url()));
        Self { upstream, proxy, owner, other, _server: server }
    }

    fn with_key() -> Self {
        Self::new(Settings::with_key)
    }

    fn r#unsafe() -> Self {
        Self::new(|settings| settings)
    }

    /// The call is out, and its owner loses the store.
    fn lose_store_during_a_call(&self) -> Pending {
        self.upstream.then(Step::Held(Reply::charge(1)));
        let deadline = DEADLINE.as_millis().to_string();
        let call = self.owner.charge("k").header("X-Request-Timeout-Ms", deadline).begin();
        self.upstream.wait_for(1);
        self.proxy.turn(Toxic::Refuse);
        call
    }

    /// And gets its true answer, which could not be kept.
    fn answer_without_receipt(&self) -> Answer {
        let since = Instant::now();
        let call = self.lose_store_during_a_call();
        self.upstream.release();
        let answer = call.answer().expect(201);
        let took = since.elapsed();
        println!("answered without a receipt after {took:?}, deadline {DEADLINE:?}");
        assert!(took >= DEADLINE && took < DEADLINE + GRACE, "{took:?}");
        assert_eq!(answer.header("Oncegate-Receipt"), Some("none"), "{answer:?}");
        assert_eq!((&answer.body[..], answer.execution()), (CHARGED, Some("executed")));
        answer
    }

    fn replays_at_both(&self) {
        for gateway in [&self.owner, &self.other] {
            let kept = eventually("the receipt", || Some(gateway.charge("k").send()).filter(Answer::is_replay));
            assert_eq!((kept.status, &kept.body[..], kept.header("Oncegate-Receipt")), (201, CHARGED, None));
        }
    }
}

const CHARGED: &[u8] = br#"{"id": "ch_1"}"#;

#[test]
fn an_owner_that_hears_of_its_store_again_in_time_tells_a_receipt() {
    let pair = Pair::r#unsafe();
    let call = pair.lose_store_during_a_call();
    pair.upstream.release();
    eventually("a receipt that is not taken", || pair.owner.log().contains("receipt not kept yet").then_some(()));
    pair.proxy.heal();
    let answer = call.answer().expect(201);
    assert_eq!((answer.header("Oncegate-Receipt"), answer.is_replay()), (None, false), "{answer:?}");
    pair.replays_at_both();
    assert_eq!(pair.upstream.effects(), 1);
}

#[test]
fn a_repeat_of_an_unsafe_call_is_told_what_its_gateway_knows() {
    let pair = Pair::r#unsafe();
    let first = pair.answer_without_receipt();

    let here = pair.owner.charge("k").send().expect(201);
    assert_eq!((here.header("Oncegate-Receipt"), &here.body), (Some("none"), &first.body), "{here:?}");
    let told = |code: &str| (pair.other.charge("k").send().json()["code"] == code).then_some(());
    eventually("the end of the lease", || told("outcome-unknown"));
    assert_eq!(pair.upstream.seen().len(), 1, "nothing is sent for a call that may have run");

    pair.proxy.heal();
    pair.replays_at_both();
    assert_eq!(pair.upstream.seen().len(), 1);
    let states: Vec<String> = pair.other.operations("").iter().map(|one| one.state().to_owned()).collect();
    assert_eq!(states, ["succeeded"], "the answer of the attempt that was sent is evidence");
}

#[test]
fn a_repeat_of_a_call_with_a_key_is_made_by_another_gateway_and_that_receipt_counts() {
    let pair = Pair::with_key();
    pair.answer_without_receipt();

    let other = eventually("the end of the lease", || Some(pair.other.charge("k").send()).filter(|a| a.status == 201));
    assert_eq!((&other.body[..], other.header("Oncegate-Receipt")), (CHARGED, None), "{other:?}");
    let here = pair.owner.charge("k").send().expect(201);
    assert_eq!((here.header("Oncegate-Receipt"), &here.body[..]), (Some("none"), CHARGED), "{here:?}");

    pair.proxy.heal();
    pair.replays_at_both();
    assert_eq!(pair.upstream.effects(), 1);
    let id = other.operation();
    let settled = pair.other.operation(id).events().iter().filter(|event| **event == "settled").count();
    assert_eq!(settled, 1, "a late owner changes nothing");
}

#[test]
fn a_repeat_while_the_owner_waits_for_its_store_is_told_that_the_store_is_away() {
    let pair = Pair::r#unsafe();
    let call = pair.lose_store_during_a_call();
    let since = Instant::now();
    let repeat = pair.owner.charge("k").send().expect_problem(503, "store-unavailable");
    assert!(since.elapsed() < TIMEOUT + GRACE, "{:?}", since.elapsed());
    assert_eq!((repeat.execution(), repeat.retry_after()), (Some("in-progress"), Some(1)), "{repeat:?}");
    pair.proxy.heal();
    pair.upstream.release();
    call.answer().expect(201);
    pair.replays_at_both();
    assert_eq!(pair.upstream.seen().len(), 1);
}

/// Its own attempt is still out when another gateway has made the call.
#[test]
fn a_repeat_at_an_owner_that_was_overtaken_gets_the_receipt() {
    let pair = Pair::with_key();
    let call = pair.lose_store_during_a_call();
    eventually("the end of the lease", || Some(pair.other.charge("k").send()).filter(|a| a.status == 201));
    pair.proxy.heal();
    let here = eventually("the receipt", || Some(pair.owner.charge("k").send()).filter(|a| a.status == 201));
    assert!(here.is_replay() && here.body == CHARGED, "{here:?}");
    pair.upstream.release();
    drop(call);
    assert_eq!(pair.upstream.effects(), 1);
}

/// The write was done, and its answer swallowed: the same write again finds itself.
#[test]
fn a_claim_and_a_receipt_whose_acknowledgements_are_lost_count() {
    let pair = Pair::with_key();
    for (key, watchword) in [("claim", &b"EVALSHA"[..]), ("receipt", b"\xa9succeeded")] {
        for toxic in [Toxic::Cut, Toxic::Blackhole, Toxic::CutAfter(5)] {
            let key = format!("{key} {toxic:?}").replace(' ', "-");
            pair.proxy.spoil(watchword, toxic);
            let answer = eventually("an answer", || Some(pair.owner.charge(&key).send()).filter(|a| a.status == 201));
            assert!(pair.proxy.has_spoiled());
            let again = pair.owner.charge(&key).send().expect(201);
            assert!(again.is_replay() && again.body == answer.body, "{again:?}");
        }
    }
    assert_eq!(pair.upstream.effects(), 6);
}
