//! The gateway of the demo: this program as a child process with a configuration, a store and a log of its own.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::DemoError;
use crate::command::Process;

/// How long a gateway may take to get ready, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(30);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Folders of demos that were killed may be in the way.
const FOLDERS: u32 = 1000;

/// A gateway that can be started and killed. Its process and its folder end with this.
pub(super) struct Gateway {
    // Dropped first: the process writes into the folder.
    child: Option<Running>,
    folder: Folder,
    program: PathBuf,
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
    health: SocketAddr,
}

struct Running(Child);

struct Folder(PathBuf);

impl Gateway {
    /// Before its first start: on free ports, with an empty store, in front of `upstream`.
    pub(super) fn new(process: &Process, upstream: SocketAddr) -> Result<Self, DemoError> {
        let program = (process.program)().map_err(DemoError::Start)?;
        let folder = Folder::create(&(process.scratch)())?;
        let [listen, admin, health] = free_addresses()?;
        let gateway = Self { child: None, folder, program, listen, admin, health };
        fs::write(gateway.path("gateway.toml"), gateway.configuration(upstream))?;
        Ok(gateway)
    }

    /// Starts it, and returns when it takes calls.
    pub(super) async fn start(&mut self) -> Result<(), DemoError> {
        let child = Command::new(&self.program)
            .args(["serve", "--config"])
            .arg(self.path("gateway.toml"))
            .current_dir(&self.folder.0)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::options().create(true).append(true).open(self.path("log"))?)
            .spawn()
            .map_err(DemoError::Start)?;
        self.child = Some(Running(child));
        self.ready().await
    }

    /// `kill -9`: it gets no chance to finish anything.
    pub(super) fn kill(&mut self) {
        self.child = None;
    }

    async fn ready(&mut self) -> Result<(), DemoError> {
        let latest = Instant::now() + PATIENCE;
        while !is_ready(self.health).await {
            let has_ended = match &mut self.child {
                Some(Running(child)) => child.try_wait()?.is_some(),
                None => true,
            };
            if has_ended || Instant::now() > latest {
                return Err(DemoError::NotReady { log: fs::read_to_string(self.path("log"))? });
            }
            sleep(BETWEEN_LOOKS).await;
        }
        Ok(())
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.0.join(file)
    }

    fn configuration(&self, upstream: SocketAddr) -> String {
        let Self { listen, admin, health, .. } = self;
        format!(
            r#"
[server]
listen = "{listen}"
admin = "{admin}"
health = "{health}"

[store]
url = "file:oncegate.db"

[upstreams.payments]
url = "http://{upstream}"
repeat = "with-key"      # the service honours Idempotency-Key

[[routes]]
name = "payments"
match = {{ path = "/charges" }}
upstream = "payments"

[routes.payload]
ignore = ["/reason"]     # a model words it anew each time
"#
        )
    }
}

/// Bound together, so that they differ. Between here and the gateway's own bind another process could take one.
fn free_addresses() -> io::Result<[SocketAddr; 3]> {
    let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (one, two, three) = (free()?, free()?, free()?);
    Ok([one.local_addr()?, two.local_addr()?, three.local_addr()?])
}

async fn is_ready(health: SocketAddr) -> bool {
    let mut answer = [0; 12];
    let asked = async {
        let mut stream = TcpStream::connect(health).await?;
        stream
            .write_all(format!("GET /readyz HTTP/1.1\r\nHost: {health}\r\nConnection: close\r\n\r\n").as_bytes())
            .await?;
        stream.read_exact(&mut answer).await
    };
    asked.await.is_ok() && answer == *b"HTTP/1.1 200"
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself: Ctrl-C reaches both.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Folder {
    fn create(scratch: &Path) -> io::Result<Self> {
        let create = |number| {
            let path = scratch.join(format!("oncegate-demo-{}-{number}", std::process::id()));
            DirBuilder::new().mode(0o700).create(&path).map(|()| Self(path))
        };
        let mut created = create(0);
        for number in 1..FOLDERS {
            match &created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => created = create(number),
                Ok(_) | Err(_) => break,
            }
        }
        created
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}
