//! An upstream that knows what it did: how often it ran the call of each key.
//!
//! Where a call is read whole, it runs, whether or not anybody hears the answer. At `/with-key` it remembers keys, as a
//! payment service does; elsewhere it runs whatever comes.

use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use oncegate::entropy::Entropy;
use socket2::{Domain, Socket, Type};

use super::Repeat;
use crate::support::PATIENCE;
use crate::support::script::{Reply, read_call};

/// Connections that wait before a door that is shut; the next one hangs in its handshake.
const PORCH: i32 = 64;
/// A handshake through loopback that is not done by then hangs.
const AT_ONCE: Duration = Duration::from_millis(50);

/// What the oracle did for one key.
#[derive(Clone, Debug, Default)]
pub struct Account {
    pub effects: u32,
    pub sends: u32,
}

pub struct Oracle {
    pub address: SocketAddr,
    books: Arc<Books>,
    /// Those who fill it while the door is shut.
    porch: Vec<TcpStream>,
}

struct Books {
    state: Mutex<State>,
    changed: Condvar,
    entropy: Entropy,
    /// Answers take up to so long, in milliseconds.
    slowest: u64,
}

#[derive(Default)]
struct State {
    accounts: HashMap<String, Account>,
    holds: bool,
    shut: bool,
    /// The door has been seen shut: nobody is let in any more.
    is_parked: bool,
    ended: bool,
}

impl Oracle {
    /// Answers take a random time up to `slowest` milliseconds.
    pub fn start(entropy: Entropy, slowest: u64) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket.listen(PORCH).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let books = Arc::new(Books { state: Mutex::default(), changed: Condvar::new(), entropy, slowest });
        let for_accepting = Arc::clone(&books);
        thread::spawn(move || for_accepting.accept(&listener));
        Self { address, books, porch: Vec::new() }
    }

    pub fn account(&self, key: &str) -> Account {
        self.books.state().accounts.get(key).cloned().unwrap_or_default()
    }

    pub fn accounts(&self) -> HashMap<String, Account> {
        self.books.state().accounts.clone()
    }

    /// From now on calls run and their answers stay here.
    pub fn hold(&self) {
        self.books.change(|state| state.holds = true);
    }

    pub fn release(&self) {
        self.books.change(|state| state.holds = false);
    }

    /// Returns when the call of `key` has run.
    pub fn wait_for(&self, key: &str) {
        self.books.wait(key, |state| state.accounts.contains_key(key));
    }

    /// From now on nobody gets a connection: whoever wants one hangs in `connect`.
    pub fn shut(&mut self) {
        self.books.change(|state| (state.shut, state.is_parked) = (true, false));
        self.porch.push(TcpStream::connect(self.address).unwrap());
        self.books.wait("a shut door", |state| state.is_parked);
        while let Ok(guest) = TcpStream::connect_timeout(&self.address, AT_ONCE) {
            self.porch.push(guest);
        }
    }

    pub fn open(&mut self) {
        self.porch.clear();
        self.books.change(|state| state.shut = false);
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        self.books.change(|state| (state.ended, state.shut, state.holds) = (true, false, false));
        drop(TcpStream::connect(self.address));
    }
}

impl Books {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut state = self.state();
            state.is_parked = state.shut;
            self.changed.notify_all();
            let state = self.changed.wait_while(state, |state| state.shut).unwrap();
            if state.ended {
                return;
            }
            let books = Arc::clone(self);
            thread::spawn(move || drop(books.serve(stream)));
        }
    }

    /// One call to a connection: every send shows whether a connection can be had.
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let call = read_call(&mut reader)?;
        let key = call.key().unwrap_or_default();
        let Account { effects, sends } = self.run(key, call.target == Repeat::WithKey.path());
        drop(self.changed.wait_while(self.state(), |state| state.holds).unwrap());
        thread::sleep(Duration::from_millis(self.entropy.up_to(self.slowest)));
        // Two answers to one key differ: whoever mixes them up is seen.
        let reply = Reply::new(201).line("Connection: close").line(&format!("X-Send: {sends}"));
        let reply = reply.body(format!(r#"{{"charge": "{key}", "effect": {effects}}}"#));
        reader.get_mut().write_all(&reply.bytes())
    }

    fn run(&self, key: &str, remembers: bool) -> Account {
        let mut state = self.state();
        let account = state.accounts.entry(key.to_owned()).or_default();
        account.sends += 1;
        if account.effects == 0 || !remembers {
            account.effects += 1;
        }
        self.changed.notify_all();
        account.clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    fn wait(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let waited = self.changed.wait_timeout_while(self.state(), PATIENCE, |state| !is_so(state)).unwrap();
        let timed_out = waited.1.timed_out();
        drop(waited);
        assert!(!timed_out, "{what}: not within {PATIENCE:?}");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}
