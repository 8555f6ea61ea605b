//! A service on real sockets that does to each call what its script says, and remembers what it saw.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::PATIENCE;
use crate::support::script::read_call;
pub use crate::support::script::{Reply, Seen, Step};

/// The service. Calls beyond its script are answered with [`Reply::charge`].
pub struct ScriptedUpstream {
    shared: Arc<Shared>,
    socket: Socket,
    address: SocketAddr,
    /// Connections that hold others up.
    queue: Vec<TcpStream>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    script: VecDeque<Step>,
    seen: Vec<Seen>,
    effects: usize,
    /// The number of the charge that each key made, where keys are honoured.
    by_key: Option<HashMap<String, usize>>,
    releases: usize,
    stopped: bool,
}

impl ScriptedUpstream {
    pub fn start() -> Self {
        let upstream = Self::refusing();
        upstream.open();
        upstream
    }

    /// A service that does the same key once, and answers its repeats with the same charge.
    pub fn honouring_keys() -> Self {
        let upstream = Self::start();
        upstream.state().by_key = Some(HashMap::new());
        upstream
    }

    /// A service that is down: its port is taken, and connections to it are refused until it is opened.
    pub fn refusing() -> Self {
        Self::refusing_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// Another service at 127.0.0.2, on the port of this one.
    pub fn beside(&self) -> Self {
        let upstream = Self::refusing_at(SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), self.address.port())));
        upstream.open();
        upstream
    }

    fn refusing_at(address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&address.into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        Self { shared: Arc::default(), socket, address, queue: Vec::new() }
    }

    /// A service that does not take connections and does not refuse them either, until it is opened: its queue is full.
    pub fn stalling() -> Self {
        let mut upstream = Self::refusing();
        upstream.socket.listen(0).unwrap();
        let next = || TcpStream::connect_timeout(&upstream.address, Duration::from_millis(100)).ok();
        upstream.queue = std::iter::from_fn(next).collect();
        upstream
    }

    /// The service is up from now on.
    pub fn open(&self) {
        open(&self.socket, &self.shared);
    }

    /// The service comes up this much later.
    pub fn open_after(&self, outage: Duration) {
        let (socket, shared) = (self.socket.try_clone().unwrap(), Arc::clone(&self.shared));
        thread::spawn(move || {
            thread::sleep(outage);
            open(&socket, &shared);
        });
    }

    /// Adds to the script.
    pub fn then(&self, step: Step) {
        self.state().script.push_back(step);
    }

    /// Lets go of all calls that are held now.
    pub fn release(&self) {
        self.state().releases += 1;
        self.shared.changed.notify_all();
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every call that was read to its end, in order.
    pub fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    /// The only call that there was.
    #[track_caller]
    pub fn only(&self) -> Seen {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }

    /// How often the service did what it was asked for.
    pub fn effects(&self) -> usize {
        self.state().effects
    }

    /// Returns when `calls` have been seen.
    #[track_caller]
    pub fn wait_for(&self, calls: usize) {
        let waiting = |state: &mut State| state.seen.len() < calls;
        let (state, timed_out) = self.shared.changed.wait_timeout_while(self.state(), PATIENCE, waiting).unwrap();
        assert!(!timed_out.timed_out(), "{calls} calls expected, {} seen", state.seen.len());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }
}

impl Drop for ScriptedUpstream {
    fn drop(&mut self) {
        self.state().stopped = true;
        self.shared.changed.notify_all();
        drop(self.socket.shutdown(Shutdown::Both));
    }
}

fn open(socket: &Socket, shared: &Arc<Shared>) {
    socket.listen(1024).unwrap();
    let (listener, shared) = (TcpListener::from(socket.try_clone().unwrap()), Arc::clone(shared));
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if !shared.turns_away() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || drop(shared.serve(stream)));
            }
        }
    });
}

/// A call that has been seen.
struct Taken {
    step: Option<Step>,
    /// What the service would say itself.
    charge: Reply,
    /// How often calls had been let go when it came.
    releases: usize,
}

impl Shared {
    fn turns_away(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        let away = matches!(state.script.front(), Some(Step::CloseUnread));
        if away {
            state.script.pop_front();
        }
        away
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        loop {
            let seen = read_call(&mut reader)?;
            let Taken { step, charge, releases } = self.take_in(seen);
            let (reply, goes_on) = match step {
                None => (charge.bytes(), true),
                Some(Step::Reply(reply)) => (reply.bytes(), true),
                Some(Step::After(delay, reply)) => {
                    thread::sleep(delay);
                    (reply.bytes(), true)
                }
                Some(Step::Held(reply)) => {
                    self.hold(releases);
                    (reply.bytes(), true)
                }
                Some(Step::HeldClose) => {
                    self.hold(releases);
                    return Ok(());
                }
                Some(Step::Close | Step::CloseUnread) => return Ok(()),
                Some(Step::Raw(bytes)) => (bytes, false),
            };
            reader.get_mut().write_all(&reply)?;
            if !goes_on {
                return Ok(());
            }
        }
    }

    fn take_in(&self, seen: Seen) -> Taken {
        let mut state = self.state.lock().unwrap();
        let step = state.script.pop_front();
        let refused = matches!(&step, Some(Step::Reply(reply) | Step::After(_, reply)) if reply.is_refusal());
        let number = if refused { 0 } else { state.number_of(seen.key()) };
        state.seen.push(seen);
        self.changed.notify_all();
        Taken { step, charge: Reply::charge(number), releases: state.releases }
    }

    fn hold(&self, releases: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.releases == releases && !state.stopped).unwrap());
    }
}

impl State {
    /// The number of the charge that a call makes, or made before.
    fn number_of(&mut self, key: Option<&str>) -> usize {
        if let (Some(by_key), Some(key)) = (&mut self.by_key, key) {
            if let Some(number) = by_key.get(key) {
                return *number;
            }
            by_key.insert(key.to_owned(), self.effects + 1);
        }
        self.effects += 1;
        self.effects
    }
}
