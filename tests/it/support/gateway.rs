//! The real program on free ports, with a `gateway.toml` of a test's own, to be asked, hurt and started again.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::client::{Answer, Call};
use crate::support::eventually;
use crate::support::ground::Ground;
use crate::support::names::Names;
use crate::support::upstream::ScriptedUpstream;

/// Of all gateways that share a store.
pub const NAMESPACE: &str = "it";

/// A `gateway.toml` with one route, `payments`, at `/`. Nothing is declared of its upstream, so that POST is unsafe.
#[derive(Clone)]
pub struct Settings {
    /// Dotted keys before all tables.
    top: String,
    route: String,
    more: String,
    environment: Vec<(&'static str, String)>,
    /// Begins the command line.
    wrapper: Vec<String>,
}

impl Settings {
    pub fn of(upstream: &ScriptedUpstream) -> Self {
        Self::towards(&upstream.url())
    }

    /// The upstream is at `url`.
    pub fn towards(url: &str) -> Self {
        Self {
            // A test that is not about the breaker lets services fail as often as it likes.
            top: format!("upstreams.payments.url = '{url}'\ndefaults.breaker.consecutive_failures = 0\n"),
            route: "[[routes]]\nname = 'payments'\nmatch.path = '/'\nupstream = 'payments'\n".to_owned(),
            more: String::new(),
            environment: Vec::new(),
            wrapper: Vec::new(),
        }
    }

    /// A key with its whole path, such as `store.lease = '1s'`.
    pub fn top(mut self, line: &str) -> Self {
        self.top += &format!("{line}\n");
        self
    }

    /// A key of the route, such as `retry.base_interval = '20ms'`.
    pub fn route(mut self, line: &str) -> Self {
        self.route += &format!("{line}\n");
        self
    }

    /// Further tables.
    pub fn and(mut self, tables: &str) -> Self {
        self.more += &format!("{tables}\n");
        self
    }

    pub fn with_key(self) -> Self {
        self.top("upstreams.payments.repeat = 'with-key'")
    }

    /// Retries as they are, but soon, and as many as there are in that time.
    pub fn quick(self) -> Self {
        let soon = self.route("retry.base_interval = '20ms'").route("retry.max_interval = '40ms'");
        soon.route("retry.budget.per_second = 1000")
    }

    /// A variable that every process of the gateway starts with.
    pub fn environment(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// A small file system in memory at `place`, which only the gateway sees; others by [`Gateway::view`].
    pub fn on_small_disk(self, place: &Path) -> Self {
        self.behind("mount -t tmpfs -o size=512k none \"$0\"", place)
    }

    /// It is told by that file how long it is up, as in a container that has an uptime of its own.
    pub fn with_uptime(self, file: &Path) -> Self {
        self.behind("mount --bind \"$0\" /proc/uptime", file)
    }

    /// It is not told in which life of the machine it runs.
    pub fn without_boot(self) -> Self {
        self.behind("mount --bind \"$0\" /proc/sys/kernel/random/boot_id", Path::new("/dev/null"))
    }

    /// Names mean for it what they say.
    pub fn with_names(self, names: &Names) -> Self {
        let mounts = ["hosts", "resolv.conf"].map(|file| format!("mount --bind \"$0\"/{file} /etc/{file}"));
        self.behind(&mounts.join(" && "), names.directory())
    }

    /// Whoever reads its log goes away when it is ready.
    pub fn read_until_ready(mut self) -> Self {
        let reader = "grep -m 1 '\"message\":\"ready\"' pipe >&2";
        let script = format!("mkfifo pipe 2>&-; {reader} & exec \"$@\" 2>pipe");
        self.wrapper = ["sh", "-c", &script, "sh"].map(str::to_owned).into();
        self.environment("PATH", "/usr/bin:/bin")
    }

    /// It may have no more than `count` files and sockets open.
    pub fn with_descriptors(mut self, count: u32) -> Self {
        self.wrapper = ["sh", "-c", "ulimit -n \"$0\" && exec \"$@\"", &count.to_string()].map(str::to_owned).into();
        self.environment("PATH", "/usr/bin:/bin")
    }

    fn behind(mut self, mount: &str, place: &Path) -> Self {
        let mount = format!("{mount} && exec \"$@\"");
        let wrapper = ["unshare", "--map-root-user", "--mount", "sh", "-c", &mount];
        self.wrapper = wrapper.map(str::to_owned).into();
        self.wrapper.push(place.display().to_string());
        self.environment("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
    }

    /// Starts a gateway; returns when it is ready.
    pub fn start(&self, ground: &Ground) -> Gateway {
        self.start_on(&ground.url())
    }

    /// Its records are at `store`.
    pub fn start_on(&self, store: &str) -> Gateway {
        let settings = self.on_store(store);
        let directory = tempfile::tempdir().unwrap();
        let (process, ports) = settings.launch(&directory);
        Gateway { settings, directory, process, ports }
    }

    /// What a gateway says that does not start on `store`.
    pub fn refusal(&self, store: &str) -> String {
        let settings = self.on_store(store);
        let directory = tempfile::tempdir().unwrap();
        settings.write(&directory);
        let status = settings.spawn(&directory).0.wait().unwrap();
        assert!(!status.success(), "{}", log(&directory));
        log(&directory)
    }

    fn on_store(&self, store: &str) -> Self {
        let top = format!("store.url = '{store}'\nstore.namespace = '{NAMESPACE}'\n{}", self.top);
        Self { top, ..self.clone() }
    }

    /// Somebody else may take a port before the gateway does; then others are tried.
    fn launch(&self, directory: &TempDir) -> (Process, Ports) {
        eventually("a gateway on free ports", || {
            let ports = self.write(directory);
            let said = log(directory).len();
            let mut process = self.spawn(directory);
            process.is_ready(&ports, directory, said).then_some((process, ports))
        })
    }

    fn write(&self, directory: &TempDir) -> Ports {
        let ports = Ports::free();
        let text = format!("{}{}{}{}", ports.settings(), self.top, self.route, self.more);
        fs::write(directory.path().join("gateway.toml"), text).unwrap();
        ports
    }

    fn spawn(&self, directory: &TempDir) -> Process {
        let log = File::options().create(true).append(true).open(directory.path().join("log")).unwrap();
        let gateway = [env!("CARGO_BIN_EXE_oncegate"), "serve", "--config", "gateway.toml"];
        let mut words = self.wrapper.iter().map(String::as_str).chain(gateway);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).current_dir(directory.path());
        command.env_clear().envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Process(command.spawn().unwrap())
    }
}

/// A gateway. Its process ends when this is dropped, and its log is shown if the test has failed.
pub struct Gateway {
    settings: Settings,
    directory: TempDir,
    process: Process,
    ports: Ports,
}

#[derive(Clone, Copy)]
struct Ports {
    agents: SocketAddr,
    admin: SocketAddr,
    health: SocketAddr,
}

struct Process(Child);

impl Gateway {
    pub fn address(&self) -> SocketAddr {
        self.ports.agents
    }

    /// Of the probes.
    pub fn health(&self) -> SocketAddr {
        self.ports.health
    }

    pub fn call(&self, method: &str, target: &str) -> Call {
        Call::new(self.ports.agents, method, target)
    }

    /// A charge under a key: the call that most stories are about.
    pub fn charge(&self, key: &str) -> Call {
        self.post("/charges").key(key).json(r#"{"amount": 500}"#)
    }

    pub fn post(&self, target: &str) -> Call {
        self.call("POST", target)
    }

    /// As the caller without a scope sees it.
    pub fn look_up(&self, id: &str, query: &str) -> Answer {
        self.call("GET", &format!("/.oncegate/operations/{id}{query}")).send()
    }

    /// Of the operators' API.
    pub fn admin_call(&self, method: &str, target: &str) -> Call {
        Call::new(self.ports.admin, method, target)
    }

    /// What the operators' API says.
    #[track_caller]
    pub fn admin(&self, target: &str) -> Value {
        let answer = self.admin_call("GET", target).send();
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// An operation with its events, as operators see it.
    #[track_caller]
    pub fn operation(&self, id: &str) -> Operation {
        Operation(self.admin(&format!("/v1/operations/{id}")))
    }

    /// All operations of a filter, newest first.
    #[track_caller]
    pub fn operations(&self, filter: &str) -> Vec<Operation> {
        let list = self.admin(&format!("/v1/operations{filter}"));
        list["operations"].as_array().unwrap().iter().cloned().map(Operation).collect()
    }

    /// The state of the only operation there is.
    pub fn state(&self) -> Option<String> {
        self.operations("").first().map(|operation| operation.state().to_owned())
    }

    /// Returns when the only operation is in `state`.
    #[track_caller]
    pub fn wait_for(&self, state: &str) -> Operation {
        eventually(state, || self.operations("").into_iter().find(|operation| operation.state() == state))
    }

    /// What `/v1/status` says of the route `payments`.
    #[track_caller]
    pub fn counts(&self) -> Value {
        self.admin("/v1/status")["routes"]["payments"].take()
    }

    pub fn readiness(&self) -> Answer {
        self.probe("/readyz")
    }

    /// What the health port says.
    pub fn probe(&self, target: &str) -> Answer {
        Call::new(self.ports.health, "GET", target).send()
    }

    /// As somebody asks who wants to know of the store.
    pub fn store_readiness(&self) -> Answer {
        Call::new(self.ports.health, "GET", "/readyz?store=1").send()
    }

    /// Bytes of memory that the process has now.
    pub fn resident_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).unwrap();
        let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        kilobytes.unwrap().parse::<u64>().unwrap() << 10
    }

    /// How long it has worked so far.
    pub fn processor_time(&self) -> Duration {
        const TICK: Duration = Duration::from_millis(10);
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        [fields[11], fields[12]].map(|ticks| TICK * ticks.parse::<u32>().unwrap()).iter().sum()
    }

    pub fn log(&self) -> String {
        log(&self.directory)
    }

    /// What the gateway sees at `path`.
    pub fn view(&self, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.process.0.id());
        Path::new(&root).join(path.strip_prefix("/").unwrap())
    }

    /// Whether a command succeeds beside it, with its settings, and all that it says.
    pub fn command(&self, name: &str) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
        let output = command.arg(name).current_dir(self.directory.path()).env_clear().output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    /// As `kill -9` does it.
    pub fn kill(&mut self) {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
    }

    /// The same settings on the same store, after `kill`; the ports are others.
    pub fn restart(&mut self) {
        (self.process, self.ports) = self.settings.launch(&self.directory);
    }

    /// What its processes start with from the next one on, instead of what they started with before.
    pub fn set_environment(&mut self, name: &'static str, value: Option<String>) {
        self.settings.environment.retain(|(other, _)| *other != name);
        self.settings.environment.extend(value.map(|value| (name, value)));
    }

    /// As `restart`, for a process that may end before it is ready. How it ended, if it does within `patience`.
    pub fn restart_to_its_end(&mut self, patience: Duration) -> Option<ExitStatus> {
        loop {
            self.ports = self.settings.write(&self.directory);
            self.process = self.settings.spawn(&self.directory);
            let status = self.exit_within(patience);
            if !self.log().contains("cannot listen") {
                return status;
            }
            self.forget_log();
        }
    }

    /// So that looking through it stays cheap.
    pub fn forget_log(&self) {
        fs::write(self.directory.path().join("log"), "").unwrap();
    }

    /// How it ended, if it does within `patience`.
    pub fn exit_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        let give_up = Instant::now() + patience;
        loop {
            match self.process.0.try_wait().unwrap() {
                None if Instant::now() < give_up => thread::sleep(Duration::from_millis(2)),
                status => return status,
            }
        }
    }

    /// The process stands still, and its connections stay open.
    pub fn freeze(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Returns when the process stands still.
    pub fn wait_until_stopped(&self) {
        eventually("a process that stands still", || self.is_stopped().then_some(()));
    }

    pub fn is_stopped(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.process.0)), options).unwrap().is_some()
    }

    pub fn thaw(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Asks it to end, as an orchestrator does.
    pub fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// How it ended, after `terminate`.
    #[track_caller]
    pub fn exit(&mut self) -> ExitStatus {
        eventually("the end of the gateway", || self.process.0.try_wait().unwrap())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- log of the gateway at {}\n{}", self.ports.agents, self.log());
        }
    }
}

impl Ports {
    /// Three that are free now.
    fn free() -> Self {
        let held = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let [agents, admin, health] = held.each_ref().map(|listener| listener.local_addr().unwrap());
        Self { agents, admin, health }
    }

    fn settings(&self) -> String {
        let Self { agents, admin, health } = self;
        format!("server.listen = '{agents}'\nserver.admin = '{admin}'\nserver.health = '{health}'\n")
    }
}

impl Process {
    /// False if it ended because a port was taken. What was `said` before it began is not its own word.
    fn is_ready(&mut self, ports: &Ports, directory: &TempDir, said: usize) -> bool {
        let says_so = format!(r#""message":"ready","listen":"{}""#, ports.agents);
        let ready = eventually("a ready gateway", || match self.0.try_wait().unwrap() {
            Some(_) => Some(false),
            None => log(directory)[said..].contains(&says_so).then_some(true),
        });
        if ready {
            let answer = Call::new(ports.health, "GET", "/readyz").send();
            assert_eq!(answer.status, 200, "{answer:?}");
        } else {
            assert!(log(directory)[said..].contains("cannot listen"), "the gateway did not start:\n{}", log(directory));
        }
        ready
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn log(directory: &TempDir) -> String {
    fs::read_to_string(directory.path().join("log")).unwrap_or_default()
}

/// An operation as operators see it.
#[derive(Debug)]
pub struct Operation(pub Value);

impl Operation {
    pub fn state(&self) -> &str {
        self.0["state"].as_str().unwrap()
    }

    pub fn attempts(&self) -> u64 {
        self.0["attempts"].as_u64().unwrap()
    }

    /// The kinds of its events, in order.
    pub fn events(&self) -> Vec<&str> {
        self.0["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect()
    }
}
