//! One gateway before a Redis that falls ill and gets well again.

use std::time::{Duration, Instant};

use crate::support::client::Answer;
use crate::support::gateway::{Gateway, Settings};
use crate::support::redis_server::RedisServer;
use crate::support::toxic::ToxicProxy;
use crate::support::upstream::ScriptedUpstream;
use crate::support::{PATIENCE, eventually};

/// Of the gateway's store.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// What a busy machine may add; an idle one adds a hundredth of it.
const MARGIN: Duration = Duration::from_secs(5);
const CALLS: usize = 12;

/// The way to the server goes over a proxy.
pub struct Scene {
    pub server: RedisServer,
    pub proxy: ToxicProxy,
    pub upstream: ScriptedUpstream,
    pub gateway: Gateway,
}

impl Scene {
    pub fn new() -> Self {
        Self::on(RedisServer::start())
    }

    /// All is well, and one charge is kept.
    pub fn on(server: RedisServer) -> Self {
        let (proxy, upstream) = (ToxicProxy::to(server.address()), ScriptedUpstream::start());
        let gateway = settings(&upstream).start_on(&proxy.url());
        let scene = Self { server, proxy, upstream, gateway };
        scene.runs("before");
        scene
    }

    /// From the moment at which `fall_ill` returns until `get_well` begins.
    pub fn outage(&mut self, what: &str, fall_ill: impl FnOnce(&mut Self), get_well: impl FnOnce(&mut Self)) {
        fall_ill(self);
        let mut refused = self.calls_are_refused();
        self.others_go_on();
        self.probes_see_it();
        get_well(self);
        let back = self.comes_back();
        refused.sort();
        let (half, last) = (refused[refused.len() / 2], refused[refused.len() - 1]);
        println!("{what}: refused in {half:?}, at most {last:?} (timeout {TIMEOUT:?}), back after {back:?}");
        assert!(last < TIMEOUT + MARGIN, "{what}: {refused:?}");
    }

    /// One after the other and then all at once; how long each waited.
    pub fn calls_are_refused(&self) -> Vec<Duration> {
        let sends = self.upstream.seen().len();
        let mut waits: Vec<Duration> = (0..CALLS / 2)
            .map(|number| {
                let since = Instant::now();
                expect_away(self.gateway.charge(&format!("call-{number}")).send());
                since.elapsed()
            })
            .collect();
        let since = Instant::now();
        let together = (CALLS / 2..CALLS).map(|number| self.gateway.charge(&format!("call-{number}")).begin());
        for pending in together.collect::<Vec<_>>() {
            expect_away(pending.answer());
            waits.push(since.elapsed());
        }
        let before = self.gateway.charge("before").send();
        if !before.is_replay() {
            expect_away(before);
        }
        assert_eq!(self.upstream.seen().len(), sends, "something was sent");
        waits
    }

    /// What needs no record, and what may go without one.
    fn others_go_on(&self) {
        self.gateway.call("GET", "/charges").send().expect(201);
        let passed = self.gateway.call("PUT", "/open").key("open").json("{}").send().expect(201);
        assert_eq!(passed.header("Oncegate-Guarded"), Some("no; reason=store"), "{passed:?}");
    }

    /// What the gateway said of its store a second ago is told again.
    fn probes_see_it(&self) {
        assert_eq!(self.gateway.readiness().status, 200, "the gateway itself is ready");
        let told = eventually("a probe that sees it", || {
            Some(self.gateway.store_readiness()).filter(|answer| answer.status == 503)
        });
        let store = &told.json()["store"];
        assert!(store["ok"] == false && store["error"].as_str().is_some_and(|why| !why.is_empty()), "{told:?}");
    }

    /// Every refused call runs once, when it is made again, and what was kept is there. How long the first one took.
    pub fn comes_back(&self) -> Duration {
        let since = Instant::now();
        let ran = self.runs("call-0");
        let back = since.elapsed();
        for number in 1..CALLS {
            self.runs(&format!("call-{number}"));
        }
        let again = self.runs("call-0");
        assert!(again.is_replay() && again.body == ran.body, "{again:?}");
        assert!(self.runs("before").is_replay());
        for number in 0..CALLS {
            let key = format!("call-{number}");
            let sends = self.upstream.seen().iter().filter(|call| call.key() == Some(&key)).count();
            assert_eq!(sends, 1, "{key}");
        }
        eventually("a probe that sees it is over", || (self.gateway.store_readiness().status == 200).then_some(()));
        back
    }

    /// A client that goes on as it is told to.
    pub fn runs(&self, key: &str) -> Answer {
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = self.gateway.charge(key).send();
            if answer.status == 201 {
                return answer.expect(201);
            }
            let is_passing = answer.retry_after().is_some() && matches!(answer.status, 503 | 409);
            assert!(is_passing && Instant::now() < until, "{key}: {answer:?}");
        }
    }
}

/// The route `open` lets calls pass that cannot be recorded.
pub fn settings(upstream: &ScriptedUpstream) -> Settings {
    let settings = Settings::of(upstream).top(&format!("store.timeout = '{}ms'", TIMEOUT.as_millis()));
    settings.top("store.lease = '2s'").route("in_flight = 'reject'").and(
        "[[routes]]\nname = 'open'\nmatch.path = '/open'\nmatch.methods = ['PUT']\nupstream = 'payments'\n\
         on_store_down = 'pass'\nkey.mode = 'required'",
    )
}

/// I8.
#[track_caller]
pub fn expect_away(answer: Answer) {
    let answer = answer.expect_problem(503, "store-unavailable");
    assert_eq!(answer.execution(), Some("not-executed"), "{answer:?}");
    assert!(answer.retry_after() >= Some(1), "{answer:?}");
}
