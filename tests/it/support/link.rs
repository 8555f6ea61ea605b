//! A way to a server on which answers can be held up: the server has done what it was asked, and nobody hears of it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Lives as long as its process.
pub struct Link {
    pub address: SocketAddr,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    watchword: Option<&'static [u8]>,
    is_shut: bool,
}

impl Link {
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let gate: Arc<Gate> = Arc::default();
        let for_clients = Arc::clone(&gate);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { continue };
                for_clients.join(client, server);
            }
        });
        Self { address, gate }
    }

    /// From the first question on in which `watchword` comes.
    pub fn hold_answers_from(&self, watchword: &'static [u8]) {
        self.gate.change(|state| state.watchword = Some(watchword));
    }

    /// What was held up arrives now.
    pub fn let_answers_go(&self) {
        self.gate.change(|state| *state = State::default());
    }
}

impl Gate {
    fn join(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let (asks, asked) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (for_questions, for_answers) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || drop(pass(asks, asked, |question| for_questions.listen(question))));
        thread::spawn(move || drop(pass(server, client, |_| for_answers.wait())));
    }

    fn listen(&self, question: &[u8]) {
        self.change(|state| {
            let is_in = |word: &[u8]| question.windows(word.len()).any(|bytes| bytes == word);
            state.is_shut |= state.watchword.is_some_and(is_in);
        });
    }

    fn wait(&self) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| state.is_shut).unwrap());
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }
}

/// Shows everything to `gate` before it goes on.
fn pass(mut from: TcpStream, mut to: TcpStream, gate: impl Fn(&[u8])) -> io::Result<()> {
    let mut bytes = [0; 1 << 14];
    loop {
        let length = from.read(&mut bytes)?;
        gate(&bytes[..length]);
        if length == 0 {
            return to.shutdown(Shutdown::Write);
        }
        to.write_all(&bytes[..length])?;
    }
}
