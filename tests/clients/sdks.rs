//! SDKs that retry by themselves, as they are published and set up: what a service gets to see of one call without the
//! gateway and with it, and what they make of the gateway's own answers.

use std::fmt::{self, Display, Formatter};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::FOLDER;
use crate::installed::{node_script, python};
use crate::relay::Relay;
use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

/// Of the gateway, where the SDKs make three.
const ATTEMPTS: usize = 4;
/// Of the service, less what a timer may be early.
const HINT: Duration = Duration::from_millis(990);
/// A call that the service takes longer for than its caller waits.
const SLOW: Duration = Duration::from_secs(3);

/// One of them, in a process that makes the calls it is told to.
struct Sdk {
    name: &'static str,
    process: Child,
    asks: ChildStdin,
    tells: Lines<BufReader<ChildStdout>>,
}

/// What came of a call for whoever made it.
#[derive(Debug)]
struct Came {
    raised: Option<String>,
    text: String,
}

impl Sdk {
    fn python(name: &'static str) -> Self {
        Self::start(name, Command::new(python()).arg(Path::new(FOLDER).join("sdks.py")).arg(name))
    }

    fn node(name: &'static str) -> Self {
        Self::start(name, Command::new("node").arg(node_script("sdks.mjs")))
    }

    fn start(name: &'static str, command: &mut Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (asks, tells) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { name, process, asks, tells: BufReader::new(tells).lines() }
    }

    /// Stripe's never waits as it is told, does not come back after a 429, and names its calls.
    fn is_stripe(&self) -> bool {
        self.name == "stripe"
    }

    fn call(&mut self, url: &str, mut how: Value) -> Came {
        how["url"] = url.into();
        writeln!(self.asks, "{how}").unwrap();
        let told: Value = serde_json::from_str(&self.tells.next().unwrap().unwrap()).unwrap();
        Came { raised: told["raised"].as_str().map(str::to_owned), text: told["text"].as_str().unwrap().to_owned() }
    }
}

impl Drop for Sdk {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// What a service does to a call, and how often it gets to do it.
struct Story {
    title: &'static str,
    /// Whether a second run does harm there.
    is_unsafe: bool,
    steps: Vec<Step>,
    how: Value,
    /// What the gateway leaves between two sends.
    pause: Duration,
    /// Of the SDKs of OpenAI and Anthropic, and of Stripe's.
    expected: [Figures; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    /// Without the gateway.
    straight: usize,
    through: usize,
    /// Requests of the SDK that the gateway got.
    asked: usize,
    raises: bool,
}

const fn answered(straight: usize, through: usize, asked: usize) -> Figures {
    Figures { straight, through, asked, raises: false }
}

const fn raised(straight: usize, through: usize, asked: usize) -> Figures {
    Figures { straight, through, asked, raises: true }
}

const fn both(figures: Figures) -> [Figures; 2] {
    [figures, figures]
}

fn story<const N: usize>(title: &'static str, steps: [Step; N], expected: [Figures; 2]) -> Story {
    Story { title, is_unsafe: false, steps: steps.into(), how: json!({}), pause: Duration::ZERO, expected }
}

/// Where a second run does harm.
fn unsafe_story<const N: usize>(title: &'static str, steps: [Step; N], expected: [Figures; 2]) -> Story {
    Story { is_unsafe: true, ..story(title, steps, expected) }
}

impl Story {
    fn called(self, how: Value) -> Self {
        Self { how, ..self }
    }

    fn apart(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    fn upstream(&self) -> ScriptedUpstream {
        let upstream = ScriptedUpstream::start();
        self.steps.iter().for_each(|step| upstream.then(step.clone()));
        upstream
    }

    fn repeat(&self, sdk: &Sdk) -> &'static str {
        match (self.is_unsafe, sdk.is_stripe()) {
            (true, _) => "unsafe",
            (false, true) => "with-key",
            (false, false) => "harmless",
        }
    }

    /// Without the gateway, and with it.
    fn tell(&self, sdk: &mut Sdk) -> Figures {
        let alone = self.upstream();
        sdk.call(&alone.url(), self.how.clone());
        let (upstream, repeat) = (self.upstream(), self.repeat(sdk));
        let settings = Settings::of(&upstream).route(&format!("retry.max_attempts = {ATTEMPTS}"));
        let gateway = settings.top(&format!("upstreams.payments.repeat = '{repeat}'")).start(&Ground::memory());
        let relay = Relay::to(gateway.address());
        let came = sdk.call(&relay.url(), self.how.clone());
        let (straight, through, asked) = (alone.seen().len(), upstream.seen().len(), relay.requests().len());
        let title = format!("{}, {repeat}", self.title);
        println!("{:9} {title:48} {straight:8} {through:7} {asked:5}  {came}", sdk.name);
        assert!(least_gap(upstream.seen().iter().map(|seen| seen.at)) >= self.pause, "{title}");
        let says_so = if sdk.is_stripe() { 0 } else { asked - 1 };
        assert_eq!(gateway.counts()["client_retries"], says_so, "{title}");
        Figures { straight, through, asked, raises: came.raised.is_some() }
    }
}

/// For ever, where there is only one.
fn least_gap(moments: impl Iterator<Item = Instant>) -> Duration {
    let moments: Vec<_> = moments.collect();
    moments.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(Duration::MAX)
}

impl Display for Came {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.raised {
            None => f.write_str("-"),
            Some(raised) => write!(f, "{raised}: {}", self.text.chars().take(60).collect::<String>()),
        }
    }
}

fn stories() -> Vec<Story> {
    const EVER: usize = 30;
    let says =
        |status, lines: &[&str]| Step::Reply(lines.iter().fold(Reply::new(status), |reply, line| reply.line(line)));
    let ever = |step: Step| [(); EVER].map(|()| step.clone());
    let (failed, conflict) = (says(503, &[]), says(409, &[]));
    let [failed_for, throttled] = [503, 429].map(|status| says(status, &["Retry-After: 1"]));
    let slow = Step::After(SLOW, Reply::charge(1));
    let hurry = json!({"timeout": 1});
    let named = json!({"timeout": 1, "headers": {"X-Session-Id": "s-1", "X-Step-Index": "1"}});
    vec![
        unsafe_story("answered", [], both(answered(1, 1, 1))),
        story("503 once", [failed.clone()], both(answered(2, 2, 1))),
        story("503 for ever", ever(failed.clone()), both(raised(3, 4, 1))),
        unsafe_story("503 for ever", ever(failed), both(raised(3, 1, 1))),
        story("503, Retry-After: 1 for ever", ever(failed_for.clone()), both(raised(3, 4, 1))).apart(HINT),
        // The first one leaves it open whether it ran, so that the second is turned away.
        unsafe_story("503, Retry-After: 1 for ever", ever(failed_for), both(raised(3, 1, 2))),
        unsafe_story("429, Retry-After: 1 once", [throttled.clone()], [answered(2, 2, 1), answered(1, 2, 1)])
            .apart(HINT),
        unsafe_story("429, Retry-After: 1 for ever", ever(throttled), [raised(3, 4, 1), raised(1, 4, 1)]).apart(HINT),
        unsafe_story("409 for ever", ever(conflict), [raised(3, 3, 3), raised(3, 1, 3)]),
        unsafe_story("works and hangs up", ever(Step::Close), both(raised(3, 1, 1))),
        story("works and hangs up once", [Step::Close], both(answered(2, 2, 1))),
        unsafe_story("slower than the SDK waits", ever(slow.clone()), [raised(3, 3, 3), answered(3, 1, 3)])
            .called(hurry),
        unsafe_story("the same, session and step", ever(slow), both(answered(3, 1, 3))).called(named),
    ]
}

/// An answer of the gateway's own, and what the SDK makes of it.
struct Refusal {
    title: &'static str,
    /// Requests of the call that is refused.
    requests: Vec<Instant>,
    came: Came,
    advice: &'static str,
}

impl Refusal {
    /// The service takes longer than the SDK waits, which asks again then.
    fn in_progress(sdk: &mut Sdk) -> Self {
        let upstream = ScriptedUpstream::start();
        upstream.then(Step::Held(Reply::charge(1)));
        let gateway = Settings::of(&upstream).route("in_flight = 'reject'").start(&Ground::memory());
        let relay = Relay::to(gateway.address());
        let came = sdk.call(&relay.url(), json!({"key": "k-1", "timeout": 1}));
        upstream.only();
        let advice = "Wait as Retry-After says, then send the same call with the same key again";
        // What the first one waits for is no business of the gateway's.
        Self { title: "409 in-progress", requests: relay.requests().split_off(1), came, advice }
    }

    fn key_reused(sdk: &mut Sdk) -> Self {
        let upstream = ScriptedUpstream::start();
        let gateway = Settings::of(&upstream).start(&Ground::memory());
        sdk.call(&format!("http://{}", gateway.address()), json!({"key": "k-1", "amount": 1}));
        let relay = Relay::to(gateway.address());
        let came = sdk.call(&relay.url(), json!({"key": "k-1", "amount": 2}));
        upstream.only();
        let advice = "Use a new key if this is a new intent";
        Self { title: "422 key-reused", requests: relay.requests(), came, advice }
    }

    fn outcome_unknown(sdk: &mut Sdk) -> Self {
        let upstream = ScriptedUpstream::start();
        upstream.then(Step::Close);
        let gateway = Settings::of(&upstream).start(&Ground::memory());
        let relay = Relay::to(gateway.address());
        let came = sdk.call(&relay.url(), json!({}));
        upstream.only();
        let advice = "Do not repeat this call with a new key, because it may already have run";
        Self { title: "502 outcome-unknown", requests: relay.requests(), came, advice }
    }

    fn rate_limited(sdk: &mut Sdk) -> Self {
        let upstream = ScriptedUpstream::start();
        let settings = Settings::of(&upstream).route("limit.rate = '30/m'").route("limit.burst = 1");
        let gateway = settings.start(&Ground::memory());
        sdk.call(&format!("http://{}", gateway.address()), json!({"amount": 1}));
        let relay = Relay::to(gateway.address());
        let came = sdk.call(&relay.url(), json!({"amount": 2}));
        let advice = "Wait as Retry-After says, then send the same call again";
        Self { title: "429 rate-limited", requests: relay.requests(), came, advice }
    }

    fn overloaded(sdk: &mut Sdk) -> Self {
        let upstream = ScriptedUpstream::start();
        upstream.then(Step::Held(Reply::charge(1)));
        let gateway = Settings::of(&upstream).route("limit.concurrency = 1").start(&Ground::memory());
        let relay = Relay::to(gateway.address());
        let came = thread::scope(|scope| {
            scope.spawn(|| gateway.charge("other").send());
            upstream.wait_for(1);
            let came = sdk.call(&relay.url(), json!({}));
            upstream.release();
            came
        });
        upstream.only();
        let advice = "Wait as Retry-After says and send the same call again; nothing was sent.";
        Self { title: "503 overloaded", requests: relay.requests(), came, advice }
    }

    /// It came so often, and not sooner than after `pause`.
    #[track_caller]
    fn is_borne(&self, sdk: &Sdk, times: usize, pause: Duration) {
        let least = least_gap(self.requests.iter().copied());
        let told = if times > 1 { format!("{least:.1?} apart") } else { String::new() };
        println!("{:9} {:20} {:5} {told:11}  {}", sdk.name, self.title, self.requests.len(), self.came);
        assert_eq!(self.requests.len(), times, "{}", self.came.text);
        assert!(least >= pause, "{}: {least:?}", self.title);
        assert!(self.came.raised.is_none() || self.came.text.contains(self.advice), "{}", self.came.text);
    }
}

fn is_well_behaved(mut sdk: Sdk) {
    tells_all(&mut sdk);
    bears_refusals(&mut sdk);
}

fn tells_all(sdk: &mut Sdk) {
    println!("{:58} straight through asked  raised", "sends to the service, requests to the gateway");
    let mut wrong = Vec::new();
    for story in stories() {
        let (told, expected) = (story.tell(sdk), story.expected[usize::from(sdk.is_stripe())]);
        if told != expected {
            wrong.push(format!("{}: {told:?}, not {expected:?}", story.title));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Each gets 1 s for `Retry-After`, and 2 s where it is over its rate. Stripe's goes by half a second of its own.
fn bears_refusals(sdk: &mut Sdk) {
    let told = |pause: f64| Duration::from_secs_f64(if sdk.is_stripe() { 0.49 } else { pause });
    let (one, two) = (told(0.99), told(1.9));
    Refusal::in_progress(sdk).is_borne(sdk, 2, one);
    Refusal::key_reused(sdk).is_borne(sdk, 1, one);
    Refusal::outcome_unknown(sdk).is_borne(sdk, 1, one);
    let limited = Refusal::rate_limited(sdk);
    limited.is_borne(sdk, if sdk.is_stripe() { 1 } else { 2 }, two);
    assert_eq!(limited.came.raised.is_some(), sdk.is_stripe());
    Refusal::overloaded(sdk).is_borne(sdk, 3, one);
}

#[test]
fn openai() {
    is_well_behaved(Sdk::python("openai"));
}

#[test]
fn anthropic() {
    is_well_behaved(Sdk::python("anthropic"));
}

#[test]
fn stripe() {
    is_well_behaved(Sdk::python("stripe"));
}

#[test]
fn openai_of_node() {
    is_well_behaved(Sdk::node("openai.js"));
}
