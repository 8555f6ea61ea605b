//! What a host leads to: looked up once at a time, used for a while, followed when it moves.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::address::{Address, Resolver, System, is_denied};

/// How long the last addresses of a name serve while the resolver fails (RFC 8767, section 5, allows for days).
const STALE: Duration = Duration::from_secs(3_600);

/// How long a new connection waits for the resolver where there are older addresses.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why a host leads nowhere.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NameError {
    #[error("cannot resolve {host}")]
    Unresolved { host: String, source: Arc<io::Error> },
    #[error("{host} resolves to {address}, which is link-local or a metadata service")]
    Denied { host: String, address: IpAddr },
}

/// In the resolver's order, never empty.
type Addresses = Arc<[Arc<Address>]>;
type Answer = Result<Addresses, NameError>;

/// Where connections go.
pub(super) enum Host {
    /// Taken as it is: it was written into the file by somebody who may.
    Literal(Addresses),
    Name(Arc<Name>),
}

impl Host {
    /// `ttl` is how long the addresses of a name are used before they are looked up again.
    pub(super) fn new(host: &str, port: u16, ttl: Duration) -> Self {
        match host.parse::<IpAddr>() {
            Ok(literal) => Self::Literal(Arc::new([Arc::new(Address::new(SocketAddr::new(literal, port)))])),
            Err(_) => Self::Name(Arc::new(Name::new(host, port, ttl, Box::new(System)))),
        }
    }

    pub(super) async fn addresses(&self) -> Answer {
        match self {
            Self::Literal(addresses) => Ok(Arc::clone(addresses)),
            Self::Name(name) => name.addresses().await,
        }
    }

    /// Looks a name up again before its time is over, so that nobody has to wait for it.
    pub(super) fn renew(&self) {
        match self {
            Self::Literal(_) => {}
            Self::Name(name) => name.renew(),
        }
    }

    /// None of the addresses answers: the name may lead elsewhere by now.
    pub(super) fn doubt(&self) {
        match self {
            Self::Literal(_) => {}
            Self::Name(name) => name.lock().renewed = None,
        }
    }
}

/// A name, and the addresses that it had when it was looked up last.
pub(super) struct Name {
    host: String,
    port: u16,
    ttl: Duration,
    resolver: Box<dyn Resolver>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Checked when they were looked up, so that a name cannot pass the check and then change.
    addresses: Addresses,
    told: Option<Instant>,
    /// When they were told, or kept because nobody told anything.
    renewed: Option<Instant>,
    /// The one that is under way.
    lookup: Option<watch::Receiver<Option<Answer>>>,
}

impl Name {
    pub(super) fn new(host: &str, port: u16, ttl: Duration, resolver: Box<dyn Resolver>) -> Self {
        Self { host: host.to_owned(), port, ttl, resolver, known: Mutex::default() }
    }

    async fn addresses(self: &Arc<Self>) -> Answer {
        if let Some(addresses) = self.lock().within(self.ttl) {
            return Ok(addresses);
        }
        let mut lookup = self.look_up();
        if let Ok(answer) = timeout(PATIENCE, self.answer(&mut lookup)).await {
            return answer;
        }
        let older = self.keep(&mut self.lock());
        match older {
            Some(addresses) => Ok(addresses),
            None => self.answer(&mut lookup).await,
        }
    }

    fn renew(self: &Arc<Self>) {
        let is_new = self.lock().within(self.ttl / 2).is_some();
        if !is_new {
            drop(self.look_up());
        }
    }

    /// Joins the lookup that is under way, or begins one. It goes on without those who wait for it: a thread is busy with
    /// it in any case.
    fn look_up(self: &Arc<Self>) -> watch::Receiver<Option<Answer>> {
        let mut known = self.lock();
        let running = known.lookup.as_ref().filter(|lookup| lookup.has_changed().is_ok());
        if let Some(running) = running {
            return running.clone();
        }
        let (told, lookup) = watch::channel(None);
        known.lookup = Some(lookup.clone());
        let name = Arc::clone(self);
        tokio::spawn(async move { told.send_replace(Some(name.ask().await)) });
        lookup
    }

    async fn answer(&self, lookup: &mut watch::Receiver<Option<Answer>>) -> Answer {
        let answer = lookup.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        answer.unwrap_or_else(|| Err(self.unresolved(io::ErrorKind::Interrupted.into())))
    }

    async fn ask(&self) -> Answer {
        let found = self.resolver.look_up(&self.host, self.port).await;
        let mut known = self.lock();
        known.lookup = None;
        let sockets = match found {
            Ok(sockets) => sockets,
            Err(source) => return self.keep(&mut known).ok_or_else(|| self.unresolved(source)),
        };
        if let Some(denied) = sockets.iter().find(|socket| is_denied(socket.ip())) {
            known.forget();
            return Err(NameError::Denied { host: self.host.clone(), address: denied.ip() });
        }
        Ok(known.learn(&sockets))
    }

    fn keep(&self, known: &mut Known) -> Option<Addresses> {
        let was_told = known.renewed == known.told;
        let kept = known.keep()?;
        if was_told {
            tracing::warn!(host = self.host, "a name cannot be resolved; its last addresses are used");
        }
        Some(kept)
    }

    fn unresolved(&self, source: io::Error) -> NameError {
        NameError::Unresolved { host: self.host.clone(), source: Arc::new(source) }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn within(&self, ttl: Duration) -> Option<Addresses> {
        let is_new = self.renewed.is_some_and(|renewed| renewed.elapsed() < ttl);
        is_new.then(|| Arc::clone(&self.addresses))
    }

    fn learn(&mut self, sockets: &[SocketAddr]) -> Addresses {
        self.told = Some(Instant::now());
        self.renewed = self.told;
        self.replace(sockets)
    }

    /// The addresses for another while, unless nobody has told them for too long.
    fn keep(&mut self) -> Option<Addresses> {
        if self.told.is_none_or(|told| told.elapsed() >= STALE) {
            self.forget();
            return None;
        }
        self.renewed = Some(Instant::now());
        Some(Arc::clone(&self.addresses))
    }

    fn forget(&mut self) {
        (self.told, self.renewed) = (None, None);
        self.replace(&[]);
    }

    /// Connections to an address that stays see nothing of it.
    fn replace(&mut self, sockets: &[SocketAddr]) -> Addresses {
        let before = std::mem::take(&mut self.addresses);
        before.iter().filter(|address| !sockets.contains(&address.socket)).for_each(|address| address.leave());
        let known = |socket: &SocketAddr| before.iter().find(|address| address.socket == *socket).map(Arc::clone);
        let addresses = sockets.iter().map(|socket| known(socket).unwrap_or_else(|| Arc::new(Address::new(*socket))));
        self.addresses = addresses.collect();
        Arc::clone(&self.addresses)
    }
}
