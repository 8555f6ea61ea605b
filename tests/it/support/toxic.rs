//! A way to a server that turns bad when it is told to, for the connections that are there as for those to come.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::eventually;

/// How long a byte takes that drips.
const DRIP: Duration = Duration::from_secs(1);

/// What is wrong with the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toxic {
    /// Every piece takes this much longer, in both directions.
    Latency(Duration),
    /// One byte of a question goes on in a second.
    DripQuestions,
    /// One byte of an answer comes in a second.
    DripAnswers,
    /// Connections end, and new ones end at once.
    Cut,
    /// So many bytes of an answer come, and then the connection ends.
    CutAfter(usize),
    /// This comes instead of each answer.
    Instead(&'static [u8]),
    /// This comes before each answer, so that all are out of step.
    Before(&'static [u8]),
    /// Connections are taken and nothing goes on; all of it arrives when the way is good again.
    Silent,
    /// The server does what it is asked, and its answers arrive when the way is good again.
    Unheard,
    /// What is under way is lost and no end is told, and this connection stays so for ever.
    Blackhole,
    /// Connections end, and new ones are refused.
    Refuse,
}

/// Lives as long as its process.
pub struct ToxicProxy {
    listener: Socket,
    way: Arc<Way>,
    pub address: SocketAddr,
}

/// What all connections share.
struct Way {
    server: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    toxic: Option<Toxic>,
    trigger: Option<Trigger>,
    /// To be ended with the others.
    open: Vec<TcpStream>,
}

/// What happens with the next question in which the watchword comes.
#[derive(Clone, Copy)]
struct Trigger {
    watchword: &'static [u8],
    toxic: Toxic,
    /// Only its own answer is spoiled.
    is_single: bool,
}

/// One connection, of which two threads take care.
#[derive(Default)]
struct Connection {
    /// For the next answer.
    armed: Mutex<Option<Toxic>>,
    is_lost: Mutex<bool>,
}

impl ToxicProxy {
    pub fn to(server: SocketAddr) -> Self {
        let (listener, address) = eventually("a port that is free", || {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
            let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            // A port that is asked for by its number is kept while nobody listens on it, and may be listened on again
            // while connections to it end.
            listener.set_reuse_address(true).unwrap();
            listener.bind(&free.into()).ok().map(|()| (listener, free))
        });
        let way = Arc::new(Way { server, state: Mutex::default(), changed: Condvar::new() });
        let proxy = Self { listener, way, address };
        proxy.open();
        proxy
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// From now on.
    pub fn turn(&self, toxic: Toxic) {
        if toxic == Toxic::Refuse {
            self.listener.shutdown(Shutdown::Both).unwrap();
        }
        self.way.turn(toxic);
    }

    /// From the first question on in which `watchword` comes.
    pub fn turn_at(&self, watchword: &'static [u8], toxic: Toxic) {
        self.way.change(|state| state.trigger = Some(Trigger { watchword, toxic, is_single: false }));
    }

    /// Spoils the answer to the next question in which `watchword` comes, once. The server has done what it was asked.
    pub fn spoil(&self, watchword: &'static [u8], toxic: Toxic) {
        self.way.change(|state| state.trigger = Some(Trigger { watchword, toxic, is_single: true }));
    }

    /// Whether the watchword has come.
    pub fn has_spoiled(&self) -> bool {
        self.way.state().trigger.is_none()
    }

    /// The way is good again, and what was held up arrives.
    pub fn heal(&self) {
        let was = self.way.state().toxic;
        self.way.change(|state| (state.toxic, state.trigger) = (None, None));
        if was == Some(Toxic::Refuse) {
            self.open();
        }
    }

    fn open(&self) {
        self.listener.listen(1024).unwrap();
        let (listener, way) = (TcpListener::from(self.listener.try_clone().unwrap()), Arc::clone(&self.way));
        thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(|client| way.join(client)));
    }
}

impl Way {
    fn join(self: &Arc<Self>, client: TcpStream) {
        if self.state().toxic == Some(Toxic::Cut) {
            return;
        }
        let Ok(server) = TcpStream::connect(self.server) else { return };
        let [asks, asked] = [&client, &server].map(|stream| stream.try_clone().unwrap());
        asks.set_nodelay(true).and_then(|()| asked.set_nodelay(true)).unwrap();
        self.state().open.extend([&client, &server].map(|stream| stream.try_clone().unwrap()));
        let connection = Arc::new(Connection::default());
        let (way, both) = (Arc::clone(self), Arc::clone(&connection));
        thread::spawn(move || drop(pass(asks, asked, &both, |to, question| way.ask(&both, to, question))));
        let way = Arc::clone(self);
        thread::spawn(move || {
            drop(pass(server, client, &connection, |to, answer| way.answer(&connection, to, answer)))
        });
    }

    fn ask(&self, connection: &Connection, to: &mut TcpStream, question: &[u8]) -> io::Result<()> {
        self.listen_for_watchword(connection, question);
        let toxic = self.state().toxic;
        match toxic {
            Some(Toxic::Latency(wait)) => thread::sleep(wait),
            Some(Toxic::DripQuestions) => return self.drip(to, question),
            Some(Toxic::Silent) => self.outlast(Toxic::Silent),
            Some(Toxic::Blackhole) => connection.lose(),
            _ => {}
        }
        connection.write(to, question)
    }

    fn answer(&self, connection: &Connection, to: &mut TcpStream, answer: &[u8]) -> io::Result<()> {
        let is_end = answer.is_empty();
        let armed = connection.armed.lock().unwrap().take_if(|_| !is_end);
        let toxic = armed.or(self.state().toxic);
        match toxic {
            None | Some(Toxic::DripQuestions | Toxic::Refuse) => {}
            Some(Toxic::Latency(wait)) => thread::sleep(wait),
            Some(Toxic::DripAnswers) => return self.drip(to, answer),
            Some(Toxic::Cut) => return Err(io::ErrorKind::ConnectionAborted.into()),
            Some(Toxic::CutAfter(length)) => {
                to.write_all(&answer[..length.min(answer.len())])?;
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Some(Toxic::Instead(_) | Toxic::Before(_)) if is_end => {}
            Some(Toxic::Instead(bytes)) => return to.write_all(bytes),
            Some(Toxic::Before(bytes)) => to.write_all(bytes)?,
            Some(held @ (Toxic::Silent | Toxic::Unheard)) => self.outlast(held),
            Some(Toxic::Blackhole) => connection.lose(),
        }
        connection.write(to, answer)
    }

    fn listen_for_watchword(&self, connection: &Connection, question: &[u8]) {
        let is_in = |word: &[u8]| question.windows(word.len()).any(|bytes| bytes == word);
        let taken = self.state().trigger.take_if(|trigger| is_in(trigger.watchword));
        match taken {
            Some(Trigger { toxic, is_single: true, .. }) => *connection.armed.lock().unwrap() = Some(toxic),
            Some(Trigger { toxic, is_single: false, .. }) => self.turn(toxic),
            None => {}
        }
    }

    /// One byte after the other, until something changes.
    fn drip(&self, to: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        let toxic = self.state().toxic;
        for (at, byte) in bytes.iter().enumerate() {
            let dripping = |state: &mut State| state.toxic == toxic;
            drop(self.changed.wait_timeout_while(self.state(), DRIP, dripping).unwrap());
            if self.state().toxic != toxic {
                return to.write_all(&bytes[at..]);
            }
            to.write_all(&[*byte])?;
        }
        Ok(())
    }

    fn outlast(&self, toxic: Toxic) {
        drop(self.changed.wait_while(self.state(), |state| state.toxic == Some(toxic)).unwrap());
    }

    fn turn(&self, toxic: Toxic) {
        self.change(|state| {
            state.toxic = Some(toxic);
            if matches!(toxic, Toxic::Cut | Toxic::Refuse) {
                state.open.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Connection {
    fn lose(&self) {
        *self.is_lost.lock().unwrap() = true;
    }

    fn is_lost(&self) -> bool {
        *self.is_lost.lock().unwrap()
    }

    fn write(&self, to: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        if self.is_lost() { Ok(()) } else { to.write_all(bytes) }
    }
}

/// One direction of a connection. Its end goes the same way, as nothing, and is told to both sides unless the connection
/// is lost.
fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    connection: &Connection,
    mut go_on: impl FnMut(&mut TcpStream, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    let mut relayed = Ok(());
    let mut length = bytes.len();
    while relayed.is_ok() && length > 0 {
        length = from.read(&mut bytes).unwrap_or_default();
        relayed = go_on(&mut to, &bytes[..length]);
    }
    if !connection.is_lost() {
        to.shutdown(Shutdown::Both)?;
        from.shutdown(Shutdown::Both)?;
    }
    relayed
}
