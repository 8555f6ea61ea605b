//! Names: how often they are looked up, and where calls go when they move.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;

use async_trait::async_trait;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;
use tokio::time::{Instant, advance, timeout};

use super::http2::{answer, service};
use super::peer::Seen;
use super::*;
use crate::upstream::address::{Address, Resolver};
use crate::upstream::connector::alternating;
use crate::upstream::name::{Host, Name};

const TTL: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// A resolver that says what it is told to.
#[derive(Clone)]
struct Directory(Arc<Mutex<(Says, usize)>>);

#[derive(Clone)]
enum Says {
    Addresses(Vec<SocketAddr>),
    Failure,
    Nothing,
}

impl Directory {
    fn with(addresses: &[SocketAddr]) -> Self {
        Self(Arc::new(Mutex::new((Says::Addresses(addresses.to_vec()), 0))))
    }

    fn says(&self, says: Says) {
        self.0.lock().unwrap().0 = says;
    }

    fn moves_to(&self, address: SocketAddr) {
        self.says(Says::Addresses(vec![address]));
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().1
    }

    fn name(&self, ttl: Duration) -> Host {
        Host::Name(Arc::new(Name::new("tool.test", 80, ttl, Box::new(self.clone()))))
    }

    /// A client that looks the name up whenever it may.
    fn client(&self, settings: Settings) -> Client {
        let endpoint = Endpoint { tls: false, host: "tool.test".to_owned(), port: 80 };
        Client::new(Arc::new(TcpConnector::by_name(self.name(Duration::ZERO))), endpoint, settings)
    }

    /// Returns when somebody has learned what the directory says now.
    async fn is_heard(&self, client: &Client) {
        let before = self.asked();
        client.connector.renew();
        while self.asked() == before {
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl Resolver for Directory {
    async fn look_up(&self, _host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
        let says = {
            let mut state = self.0.lock().unwrap();
            state.1 += 1;
            state.0.clone()
        };
        match says {
            Says::Addresses(addresses) => Ok(addresses),
            Says::Failure => Err(io::ErrorKind::NotFound.into()),
            Says::Nothing => pending().await,
        }
    }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn place(peer: &Peer) -> SocketAddr {
    local(peer.endpoint().port)
}

async fn sockets(host: &Host) -> Vec<SocketAddr> {
    host.addresses().await.unwrap().iter().map(|address| address.socket).collect()
}

#[tokio::test(start_paused = true)]
async fn a_name_is_looked_up_once_for_all_and_again_when_its_time_is_over() {
    let (old, new) = (at("10.0.0.1:80"), at("10.0.0.2:80"));
    let directory = Directory::with(&[old]);
    let host = directory.name(TTL);
    let (first, second) = tokio::join!(sockets(&host), sockets(&host));
    assert_eq!((first, second, directory.asked()), (vec![old], vec![old], 1));
    directory.moves_to(new);
    advance(TTL - SECOND).await;
    assert_eq!((sockets(&host).await, directory.asked()), (vec![old], 1));
    advance(SECOND).await;
    assert_eq!((sockets(&host).await, directory.asked()), (vec![new], 2));
}

#[tokio::test(start_paused = true)]
async fn a_name_in_use_is_looked_up_before_anybody_has_to_wait() {
    let (old, new) = (at("10.0.0.1:80"), at("10.0.0.2:80"));
    let directory = Directory::with(&[old]);
    let host = directory.name(TTL);
    sockets(&host).await;
    directory.moves_to(new);
    for (pause, asked, leads_to) in [(TTL / 2 - SECOND, 1, old), (SECOND, 2, new)] {
        advance(pause).await;
        host.renew();
        tokio::task::yield_now().await;
        assert_eq!((directory.asked(), sockets(&host).await), (asked, vec![leads_to]));
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_addresses_serve_while_the_resolver_fails_but_not_for_ever() {
    let address = at("10.0.0.1:80");
    let directory = Directory::with(&[address]);
    let host = directory.name(TTL);
    let first = host.addresses().await.unwrap();
    directory.says(Says::Failure);
    advance(Duration::from_secs(3_599)).await;
    assert_eq!((sockets(&host).await, directory.asked()), (vec![address], 2));
    advance(TTL).await;
    let failed = host.addresses().await.unwrap_err();
    assert!(matches!(&failed, NameError::Unresolved { host, .. } if host == "tool.test"), "{failed:?}");
    assert!(first[0].is_gone());
    directory.moves_to(address);
    assert_eq!(sockets(&host).await, [address]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_resolver_holds_up_one_connection_for_a_second() {
    let address = at("10.0.0.1:80");
    let directory = Directory::with(&[address]);
    let host = directory.name(TTL);
    sockets(&host).await;
    directory.says(Says::Nothing);
    advance(TTL).await;
    for waits in [SECOND, Duration::ZERO] {
        let start = Instant::now();
        assert_eq!(sockets(&host).await, [address]);
        assert_eq!(start.elapsed(), waits);
    }
    advance(TTL).await;
    sockets(&host).await;
    assert_eq!(directory.asked(), 2, "one is still under way");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_nobody_knows_is_asked_for_by_the_next_call_again() {
    let directory = Directory::with(&[]);
    directory.says(Says::Failure);
    let host = directory.name(TTL);
    let (first, second) = tokio::join!(host.addresses(), host.addresses());
    assert!(first.is_err() && second.is_err());
    assert_eq!(directory.asked(), 1);
    directory.moves_to(at("10.0.0.1:80"));
    assert_eq!(sockets(&host).await, [at("10.0.0.1:80")]);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_begins_to_lead_where_it_must_not_leads_nowhere() {
    let directory = Directory::with(&[at("10.0.0.1:80")]);
    let host = directory.name(TTL);
    let before = host.addresses().await.unwrap();
    directory.says(Says::Addresses(vec![at("10.0.0.1:80"), at("169.254.169.254:80")]));
    advance(TTL).await;
    let denied = host.addresses().await.unwrap_err();
    assert!(matches!(denied, NameError::Denied { address, .. } if address.to_string() == "169.254.169.254"));
    assert!(before[0].is_gone());
}

#[tokio::test]
async fn a_literal_is_consent_and_a_name_for_the_same_address_is_not() {
    assert_eq!(sockets(&Host::new("169.254.169.254", 80, TTL)).await, [at("169.254.169.254:80")]);
    assert_eq!(sockets(&Host::new("fe80::1", 80, TTL)).await, [at("[fe80::1]:80")]);
    // Not an address in URL syntax, but every resolver knows this spelling of 169.254.169.254.
    let denied = Host::new("0xa9fea9fe", 80, TTL).addresses().await.unwrap_err();
    assert!(matches!(denied, NameError::Denied { .. }), "{denied:?}");
}

#[tokio::test]
async fn a_name_without_an_address_means_that_nothing_was_sent() {
    let endpoint = Endpoint { tls: false, host: "does-not-exist.invalid".to_owned(), port: 80 };
    let missing = client_of(endpoint, None, None, SETTINGS).checkout(Freshness::Reuse).await.err().unwrap();
    assert_eq!(missing.to_string(), "cannot resolve does-not-exist.invalid");
}

#[test]
fn both_families_take_turns() {
    let [a, b, c, d] = ["[fd00::1]:80", "[fd00::2]:80", "10.0.0.1:80", "[fd00::3]:80"].map(at);
    let addresses = [a, b, c, d].map(|socket| Arc::new(Address::new(socket)));
    let order: Vec<_> = alternating(&addresses).iter().map(|address| address.socket).collect();
    assert_eq!(order, [a, c, b, d]);
    assert_eq!(alternating(&[]).len(), 0);
}

/// Takes no connection and refuses none: its queue is full.
async fn stalling() -> (SocketAddr, Vec<TcpStream>, Socket) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&local(0).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut queue = Vec::new();
    while let Ok(Ok(stream)) = timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
        queue.push(stream);
    }
    (address, queue, socket)
}

#[tokio::test]
async fn an_address_that_refuses_or_is_silent_leaves_the_call_to_the_next_one() {
    let (silent, _queue, _socket) = stalling().await;
    let refusing = local(failures::free_port().await);
    for first in [refusing, silent] {
        let mut peer = Peer::answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        let client = Directory::with(&[first, place(&peer)]).client(SETTINGS);
        assert_eq!(text(send(&client, post()).await.unwrap()).await, "ok", "{first}");
        peer.sees(Seen::Connected).await;
        peer.sees_request().await;
    }
}

#[tokio::test]
async fn a_name_none_of_whose_addresses_answers_is_looked_up_again() {
    let refusing = local(failures::free_port().await);
    let peer = Peer::answers(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let directory = Directory::with(&[refusing]);
    let host = directory.name(TTL);
    let endpoint = peer.endpoint();
    let client = Client::new(Arc::new(TcpConnector::by_name(host)), endpoint, SETTINGS);
    let refused = client.checkout(Freshness::Reuse).await.err().unwrap();
    assert!(matches!(refused, ConnectError::Refused { address, .. } if address == refusing), "{refused:?}");
    directory.moves_to(place(&peer));
    send(&client, post()).await.unwrap();
}

#[tokio::test]
async fn no_call_begins_on_a_connection_to_an_address_that_is_gone() {
    let mut left = Peer::answers(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold").await;
    let taken = Peer::answers(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew").await;
    let directory = Directory::with(&[place(&left)]);
    let client = directory.client(SETTINGS);
    assert_eq!(text(send(&client, post()).await.unwrap()).await, "old");

    directory.says(Says::Addresses(vec![place(&left), place(&taken)]));
    directory.is_heard(&client).await;
    let connection = client.checkout(Freshness::Careful).await.unwrap();
    assert!(connection.reused(), "one more address takes none away");
    assert_eq!(text(connection.send(post()).await.unwrap()).await, "old");

    directory.moves_to(place(&taken));
    directory.is_heard(&client).await;
    assert_eq!(text(send(&client, post()).await.unwrap()).await, "new");
    left.sees(Seen::Connected).await;
    left.sees_request().await;
    left.sees_request().await;
    left.sees(Seen::Gone).await;
}

#[tokio::test]
async fn a_stream_under_way_goes_on_where_new_ones_do_not_begin() {
    let (left, mut asked_before, _connections) = service(10).await;
    let (taken, mut asked_after, _connections) = service(10).await;
    let directory = Directory::with(&[place(&left)]);
    let client = directory.client(Settings { protocol: Protocol::Http2, ..SETTINGS });
    let call = || {
        let client = client.clone();
        tokio::spawn(async move { text(send(&client, post()).await.unwrap()).await })
    };
    let first = call();
    let under_way = asked_before.recv().await.unwrap().1;
    directory.moves_to(place(&taken));
    directory.is_heard(&client).await;
    let second = call();
    answer(asked_after.recv().await.unwrap().1, "new");
    answer(under_way, "old");
    assert_eq!((first.await.unwrap().as_str(), second.await.unwrap().as_str()), ("old", "new"));
}
