//! The way from a client to its server, on which requests are noted as they pass.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

/// Ends every line that begins a request.
const VERSION: &[u8] = b" HTTP/1.1\r\n";

/// Lives as long as its process.
pub struct Relay {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Instant>>>,
}

impl Relay {
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, requests) = (listener.local_addr().unwrap(), Arc::default());
        let noted = Arc::clone(&requests);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                drop(join(client, server, &noted));
            }
        });
        Self { address, requests }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// When each request began to pass.
    pub fn requests(&self) -> Vec<Instant> {
        self.requests.lock().unwrap().clone()
    }
}

fn join(client: TcpStream, server: SocketAddr, noted: &Arc<Mutex<Vec<Instant>>>) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    let (asks, asked, noted) = (client.try_clone()?, server.try_clone()?, Arc::clone(noted));
    let note = move |bytes: &[u8]| {
        let begun = bytes.windows(VERSION.len()).filter(|window| *window == VERSION).count();
        noted.lock().unwrap().extend(vec![Instant::now(); begun]);
    };
    thread::spawn(move || drop(pass(asks, asked, note)));
    thread::spawn(move || drop(pass(server, client, |_| ())));
    Ok(())
}

/// One direction. Its end is the end of both.
fn pass(mut from: TcpStream, mut to: TcpStream, note: impl Fn(&[u8])) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut bytes).unwrap_or_default();
        note(&bytes[..length]);
        if length == 0 || to.write_all(&bytes[..length]).is_err() {
            to.shutdown(Shutdown::Both)?;
            return from.shutdown(Shutdown::Both);
        }
    }
}
