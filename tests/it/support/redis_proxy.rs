//! Stands between a store and its server, and spoils the answer to a script when it is told to.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What becomes of one answer; the server has done what it was asked in every case.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The connection ends instead.
    Cut,
    /// The client gets this and the connection goes on.
    Instead(&'static [u8]),
    /// The client gets this and the connection ends.
    CutAfter(&'static [u8]),
    /// Nothing is answered on this connection any more, and it stays open.
    Silence,
}

/// Runs on the runtime of the test.
pub struct RedisProxy {
    address: SocketAddr,
    next: Arc<Mutex<Option<Fault>>>,
}

impl RedisProxy {
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let next = Arc::new(Mutex::new(None));
        let faults = next.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(server).await {
                    tokio::spawn(relay(client, server, faults.clone()));
                }
            }
        });
        Self { address, next }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Spoils the answer to the next script that comes by, once.
    pub fn spoil(&self, fault: Fault) {
        *self.next.lock().unwrap() = Some(fault);
    }

    /// Whether the fault has happened.
    pub fn has_spoiled(&self) -> bool {
        self.next.lock().unwrap().is_none()
    }
}

async fn relay(mut client: TcpStream, mut server: TcpStream, faults: Arc<Mutex<Option<Fault>>>) -> Option<()> {
    let (mut asked, mut said) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            length = client.read(&mut asked) => {
                let request = filled(&asked, length.ok()?)?;
                server.write_all(request).await.ok()?;
                if !request.windows(4).any(|word| word == b"EVAL") {
                    continue;
                }
                let Some(fault) = faults.lock().unwrap().take() else { continue };
                let length = server.read(&mut said).await.ok()?;
                filled(&said, length)?;
                spoil(&mut client, fault).await?;
            }
            length = server.read(&mut said) => client.write_all(filled(&said, length.ok()?)?).await.ok()?,
        }
    }
}

/// `None` ends the connection.
async fn spoil(client: &mut TcpStream, fault: Fault) -> Option<()> {
    match fault {
        Fault::Cut => None,
        Fault::Instead(bytes) => client.write_all(bytes).await.ok(),
        Fault::CutAfter(bytes) => {
            client.write_all(bytes).await.ok()?;
            None
        }
        Fault::Silence => {
            let mut unheard = [0; 1024];
            while client.read(&mut unheard).await.ok()? > 0 {}
            None
        }
    }
}

fn filled(buffer: &[u8], length: usize) -> Option<&[u8]> {
    (length > 0).then(|| &buffer[..length])
}
