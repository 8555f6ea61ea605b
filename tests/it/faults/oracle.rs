//! An upstream that knows what it did: how often it ran the call of each key.
//!
//! Where a call is read whole, it runs, whether or not anybody hears the answer. At `/with-key` it remembers keys, as a
//! payment service does; elsewhere it runs whatever comes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use oncegate::entropy::Entropy;
use socket2::{Domain, Socket, Type};

use super::Repeat;
use super::journal::Entry;
use crate::support::PATIENCE;
use crate::support::script::{Reply, Seen, read_call};

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

/// How one send of a key is taken; its later ones are answered at once.
#[derive(Clone, Debug)]
pub enum Manner {
    /// It runs, and the sender hears nothing for as long as he lives.
    Silent,
    /// It runs, and half of an answer of that length comes.
    Half(usize),
    /// It runs, and the answer says that it failed, with this line in its head.
    Failing(u16, &'static str),
    /// It does not run, and the answer says so, with this line in its head.
    Refusing(u16, &'static str),
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
    manners: HashMap<String, Manner>,
    /// Where every send is on the disk before it is answered.
    journal: Option<File>,
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

    /// From now on every send is an entry of the journal at `path` before anything of an answer goes.
    pub fn keep_journal(&self, path: &Path) {
        let journal = File::options().create(true).append(true).open(path).unwrap();
        self.books.state().journal = Some(journal);
    }

    /// How the next send of `key` will be taken; without a manner it is answered.
    pub fn take_next(&self, key: &str, manner: Option<Manner>) {
        let manners = &mut self.books.state().manners;
        manners.remove(key);
        manners.extend(manner.map(|manner| (key.to_owned(), manner)));
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
        let (manner, Account { effects, sends }) = self.take_in(&call, key);
        drop(self.changed.wait_while(self.state(), |state| state.holds).unwrap());
        thread::sleep(Duration::from_millis(self.entropy.up_to(self.slowest)));
        // Two answers to one key differ: whoever mixes them up is seen.
        let reply = Reply::new(201).line("Connection: close").line(&format!("X-Send: {sends}"));
        let reply = reply.body(format!(r#"{{"charge": "{key}", "effect": {effects}}}"#));
        let said = match manner {
            None => reply.bytes(),
            Some(Manner::Refusing(status, line) | Manner::Failing(status, line)) => {
                Reply::new(status).line("Connection: close").line(line).bytes()
            }
            Some(Manner::Silent) => Vec::new(),
            Some(Manner::Half(length)) => {
                let whole = reply.body(vec![b'x'; length]).bytes();
                whole[..whole.len() - length / 2].to_vec()
            }
        };
        reader.get_mut().write_all(&said)?;
        if matches!(manner, Some(Manner::Silent | Manner::Half(_))) {
            wait_for_end(reader.get_mut())?;
        }
        Ok(())
    }

    fn take_in(&self, call: &Seen, key: &str) -> (Option<Manner>, Account) {
        let mut state = self.state();
        let manner = state.manners.remove(key);
        let account = state.accounts.entry(key.to_owned()).or_default();
        account.sends += 1;
        let remembers = call.target == Repeat::WithKey.path();
        let is_known = remembers && account.effects > 0;
        let runs = !is_known && !matches!(manner, Some(Manner::Refusing(..)));
        account.effects += u32::from(runs);
        let account = account.clone();
        if let Some(journal) = &mut state.journal {
            let entry = Entry::of(key, account.sends, runs, &call.body);
            writeln!(journal, "{entry}").and_then(|()| journal.sync_data()).unwrap();
        }
        self.changed.notify_all();
        (manner, account)
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

/// Returns when the other side has closed the connection.
fn wait_for_end(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.read(&mut [0]).map(drop)
}
