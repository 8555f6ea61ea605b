//! The program under measurement, and what the system says of it.

use std::fs::{self, File};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Failure;

const PROGRAM: &str = env!("CARGO_BIN_EXE_oncegate");
const START: Duration = Duration::from_secs(10);

/// One gateway in a folder of its own. Ends when it is dropped.
pub(crate) struct Gateway {
    process: Child,
    pub(crate) address: SocketAddr,
    _directory: TempDir,
}

impl Gateway {
    /// Starts it with `tables` behind the addresses; `store` may name a file, which is in the folder.
    pub(crate) fn start(store: &str, tables: &str) -> Result<Self, Failure> {
        let directory = tempfile::tempdir()?;
        let [listen, admin, health] = free_ports()?;
        let server = format!("[server]\nlisten = '{listen}'\nadmin = '{admin}'\nhealth = '{health}'\n");
        let text = format!("{server}[store]\nurl = '{store}'\nnamespace = 'bench'\n[log]\nlevel = 'warn'\n{tables}");
        fs::write(directory.path().join("gateway.toml"), text)?;
        let log = directory.path().join("log");
        let mut command = Command::new(PROGRAM);
        let process = command.arg("serve").current_dir(&directory).stderr(File::create(&log)?).spawn()?;
        let mut gateway = Self { process, address: listen, _directory: directory };
        gateway.wait_until_it_listens(&log)?;
        Ok(gateway)
    }

    fn wait_until_it_listens(&mut self, log: &Path) -> Result<(), Failure> {
        let end = Instant::now() + START;
        while TcpStream::connect(self.address).is_err() {
            if Instant::now() > end || self.process.try_wait()?.is_some() {
                let mut said = String::new();
                File::open(log)?.read_to_string(&mut said)?;
                return Err(format!("the gateway does not start: {said}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Of all its threads, since they began.
    pub(crate) fn cpu(&self) -> Result<Duration, Failure> {
        let mut nanoseconds = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            nanoseconds += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Resident memory in MiB.
    pub(crate) fn memory(&self) -> Result<f64, Failure> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let kibibytes = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
        Ok(kibibytes.ok_or("the system does not tell memory")?.parse::<f64>()? / 1024.0)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn free_ports() -> Result<[SocketAddr; 3], Failure> {
    let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held = [free()?, free()?, free()?];
    let [listen, admin, health] = held.each_ref().map(TcpListener::local_addr);
    Ok([listen?, admin?, health?])
}
