//! Raw bytes on loopback sockets against the listener, the door and the reading of bodies together.

mod http2;
mod tls;

use std::sync::Mutex;

use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::*;
use crate::engine::answer::{Marks, Piece};
use crate::engine::buffers::Buffers;
use crate::engine::problem::Problem;
use crate::entropy::Entropy;
use crate::idleness::Idleness;
use crate::server::body::{BodyLimits, read_body};
use crate::server::door::{Door, Instance};
use crate::server::respond;

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(150);
const MAX_BODY: u64 = 1000;
/// Bytes of what `/large` answers.
const LARGE: usize = 1 << 20;

/// A service that says what it was sent, behind the checks that every request passes.
struct Echo {
    door: Door,
    body: BodyLimits,
    /// Paths of the requests that passed.
    served: Mutex<Vec<String>>,
    /// `/slow` waits for it, and says that it does.
    go: Notify,
    waiting: Notify,
    /// What `/cut` and `/refusals` still have to say.
    live: Live,
    /// Requests without an answer.
    under_way: Arc<Idleness>,
}

type Live = Mutex<Option<mpsc::Sender<Piece>>>;

impl Echo {
    fn new(body_idle: Duration) -> Self {
        let door = Door::with_limits(2000, 300, Instance::new(&Entropy::seeded(1)));
        let body = BodyLimits { size: MAX_BODY, idle: body_idle, buffers: Buffers::new(2 * MAX_BODY) };
        Self {
            door,
            body,
            served: Mutex::default(),
            go: Notify::new(),
            waiting: Notify::new(),
            live: Mutex::default(),
            under_way: Idleness::new(),
        }
    }

    async fn answer(&self, request: Request<RequestBody>, peer: Peer) -> Response<ResponseBody> {
        let under_way = self.under_way.begin();
        let passed = self.pass(request, peer).await;
        drop(under_way);
        passed.unwrap_or_else(|problem| respond::problem(problem, &Marks::default()))
    }

    async fn pass(&self, request: Request<RequestBody>, peer: Peer) -> Result<Response<ResponseBody>, Problem> {
        let (head, body) = request.into_parts();
        self.door.check(&head, peer.ambiguity)?;
        let body = read_body(body, &self.body).await?;
        self.served.lock().unwrap().push(head.uri.path().to_owned());
        if head.uri.path() == "/slow" {
            self.waiting.notify_one();
            self.go.notified().await;
        }
        Ok(upstream(&head.method, head.uri.path(), body.bytes, &self.live))
    }

    fn served(&self) -> Vec<String> {
        self.served.lock().unwrap().clone()
    }
}

fn upstream(method: &Method, path: &str, body: Bytes, live: &Live) -> Response<ResponseBody> {
    let mut headers = http::HeaderMap::new();
    let body = match path {
        "/cut" => {
            let (sender, pieces) = mpsc::channel(1);
            sender.try_send(Piece::Data(Bytes::from_static(b"half"))).unwrap();
            *live.lock().unwrap() = Some(sender);
            ResponseBody::Live(pieces)
        }
        "/refusals" => {
            let (sender, pieces) = mpsc::channel(2);
            headers.insert("content-length", (REFUSAL.len() * REFUSALS).into());
            *live.lock().unwrap() = Some(sender);
            ResponseBody::Live(pieces)
        }
        "/broken" => {
            let (_gone, pieces) = mpsc::channel(1);
            ResponseBody::Live(pieces)
        }
        "/large" => Bytes::from_static(&[b'x'; LARGE]).into(),
        "/length" => {
            headers.insert("content-length", "9757".parse().unwrap());
            ResponseBody::Empty
        }
        _ => Bytes::from(format!("{path}:{}", body.len())).into(),
    };
    respond::upstream(StatusCode::OK, headers, body, method, &Marks::default())
}

struct Gateway {
    address: SocketAddr,
    echo: Arc<Echo>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Gateway {
    fn start() -> Self {
        Self::with(limits(), Semaphore::MAX_PERMITS, LONG)
    }

    fn with(limits: Limits, places: usize, body_idle: Duration) -> Self {
        Self::greeting(None, limits, places, body_idle)
    }

    fn greeting(certificates: Option<Certificates>, limits: Limits, places: usize, body_idle: Duration) -> Self {
        let socket = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = socket.local_addr().unwrap();
        let (stop, echo) = (CancellationToken::new(), Arc::new(Echo::new(body_idle)));
        let listener = Listener::new(socket, limits, Arc::new(Semaphore::new(places)), stop.clone()).unwrap();
        let listener = listener.with_certificates(certificates);
        let service = Arc::clone(&echo);
        let serving = tokio::spawn(listener.serve(move |request, peer| {
            let service = Arc::clone(&service);
            async move { service.answer(request, peer).await }
        }));
        Self { address, echo, stop, serving }
    }

    async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    /// Everything that comes back for `bytes` until the gateway closes.
    async fn tell(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut client = self.connect().await;
        client.send(bytes).await;
        client.rest().await
    }

    /// A client that has said everything still gets its answer.
    async fn answers_half_closed<S: AsyncRead + AsyncWrite + Unpin>(&self, mut client: Client<S>) {
        client.send("GET /slow HTTP/1.1\r\nHost: gw\r\n\r\n").await;
        client.0.shutdown().await.unwrap();
        self.echo.waiting.notified().await;
        self.echo.go.notify_one();
        assert_eq!(status(&client.rest().await), "200");
    }
}

fn limits() -> Limits {
    Limits { header_timeout: LONG, write_idle: LONG, drain: LONG, max_head: 2300, max_concurrent_streams: 100 }
}

struct Client<S = TcpStream>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// What comes until `end` is in it.
    async fn until(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !text.contains(end) {
            let mut byte = [0];
            assert_eq!(self.0.read(&mut byte).await.unwrap(), 1, "closed after {text:?}");
            text.push(char::from(byte[0]));
        }
        text
    }

    async fn rest(mut self) -> String {
        let mut bytes = Vec::new();
        timeout(LONG, self.0.read_to_end(&mut bytes)).await.expect("the connection stays open").unwrap();
        String::from_utf8(bytes).unwrap()
    }
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

/// As hyper writes one.
const REFUSAL: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\
    date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n";
/// How many of them make the body of `/refusals`.
const REFUSALS: usize = 3;

const EVIL: &str = "GET /evil HTTP/1.1\r\nHost: gw\r\n\r\n";

/// The answer to a request with something else behind it, which must never be taken for a request.
async fn refused(head_and_body: &str) -> String {
    let gateway = Gateway::start();
    let answer = gateway.tell(format!("{head_and_body}{EVIL}")).await;
    assert!(!gateway.echo.served().contains(&"/evil".to_owned()), "{head_and_body:?}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{head_and_body:?}: {answer}");
    answer
}

#[tokio::test]
async fn what_is_ambiguous_is_explained_and_ends_the_connection() {
    for (request, expected) in [
        ("POST / HTTP/1.1\r\nHost: gw\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501"),
        (
            "POST / HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "400",
        ),
        ("GET / HTTP/1.1\nHost: gw\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: gw\n\r\n", "400"),
        ("GET /a#b HTTP/1.1\r\nHost: gw\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: gw\r\nHost: gw\r\n\r\n", "400"),
        ("GET http://other/ HTTP/1.1\r\nHost: gw\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nExpect: wonders\r\nContent-Length: 0\r\n\r\n", "417"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na\r\n0\r\n\r\n", "400"),
    ] {
        let answer = refused(request).await;
        assert_eq!(status(&answer), expected, "{request:?}: {answer}");
        assert!(answer.contains("connection: close") && answer.contains("invalid-request"), "{request:?}: {answer}");
    }
}

/// These never reach a handler, and are explained all the same.
#[tokio::test]
async fn what_hyper_refuses_by_itself_is_explained_too() {
    let many = "a: b\r\n".repeat(100);
    let large = format!("a: {}\r\n", "b".repeat(3000));
    for (request, expected) in [
        ("POST / HTTP/1.1\r\nHost: gw\r\nContent-Length: 0\r\nContent-Length: 50\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nContent-Length: +5\r\n\r\nhello", "400"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nContent-Length:\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "400"),
        ("POST / HTTP/1.0\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: gw\r\nA : b\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: gw\r\n: b\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: gw\r\nA: b\r\n c\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: gw\r\nA: b\0c\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: gw\r\nA: b\rc\r\n\r\n", "400"),
        ("GET /a\u{7f}b HTTP/1.1\r\nHost: gw\r\n\r\n", "400"),
        (format!("GET / HTTP/1.1\r\nHost: gw\r\n{many}\r\n").as_str(), "431"),
        (format!("GET / HTTP/1.1\r\nHost: gw\r\n{large}\r\n").as_str(), "431"),
    ] {
        let answer = refused(request).await;
        assert_eq!(status(&answer), expected, "{request:?}: {answer}");
        assert!(answer.contains("\r\nconnection: close\r\n") && answer.contains("\r\ndate: "), "{request:?}: {answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{request:?}: {answer}");
        let told: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((&told["code"], told["status"].to_string().as_str()), (&"invalid-request".into(), expected));
    }
}

/// Also the last piece, which is written when hyper has let go of the body.
#[tokio::test]
async fn a_body_that_looks_like_a_refusal_of_hyper_stays_as_it_is() {
    let gateway = Gateway::start();
    let mut client = gateway.connect().await;
    for _ in 0..2 {
        client.send("GET /refusals HTTP/1.1\r\nHost: gw\r\n\r\n").await;
        assert_eq!(status(&client.until("\r\n\r\n").await), "200");
        let sender = gateway.echo.live.lock().unwrap().take().unwrap();
        for _ in 0..REFUSALS {
            sender.send(Piece::Data(Bytes::from_static(REFUSAL.as_bytes()))).await.unwrap();
            assert_eq!(client.until("\r\n\r\n").await, REFUSAL);
        }
    }
    client.send("GET / HTTP/1.1\r\nHost: gw\r\nA : b\r\n\r\n").await;
    let refused = client.rest().await;
    assert!(refused.starts_with("HTTP/1.1 400 ") && refused.contains("invalid-request"), "{refused}");
}

#[tokio::test]
async fn a_head_beyond_what_hyper_reads_is_refused_for_its_longer_part() {
    let target = Gateway::start().tell(format!("GET /{} HTTP/1.1\r\nHost: gw\r\n\r\n", "a".repeat(3000))).await;
    assert_eq!((status(&target), target.contains("server.max_uri_bytes")), ("414", true), "{target}");
}

#[tokio::test]
async fn limits_of_the_head_are_explained_where_hyper_lets_it_pass() {
    let uri = refused(&format!("GET /{} HTTP/1.1\r\nHost: gw\r\n\r\n", "a".repeat(300))).await;
    assert_eq!((status(&uri), uri.contains("300 bytes")), ("414", true), "{uri}");
    let headers = refused(&format!("GET / HTTP/1.1\r\nHost: gw\r\nA: {}\r\n\r\n", "b".repeat(2000))).await;
    assert_eq!((status(&headers), headers.contains("2000 bytes")), ("431", true), "{headers}");
}

#[tokio::test]
async fn requests_behind_one_another_are_answered_in_order() {
    let gateway = Gateway::start();
    let requests = "POST /1 HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
        POST /2 HTTP/1.1\r\nHost: gw\r\nContent-Length: 2\r\nUpgrade: foo/2\r\n\r\nhi\
        GET /3 HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n";
    let answers = gateway.tell(requests).await;
    let bodies: Vec<_> = answers.match_indices("/").filter_map(|(at, _)| answers.get(at..at + 4)).collect();
    assert_eq!(bodies.iter().filter(|body| body.contains(':')).collect::<Vec<_>>(), [&"/1:3", &"/2:2", &"/3:0"]);
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let gateway = Gateway::with(Limits { header_timeout: SHORT, ..limits() }, 10, LONG);
    assert_eq!(gateway.tell("").await, "");
    assert_eq!(gateway.tell("GET / HTTP/1.1\r\nHo").await, "");
    let idle = gateway.tell("GET /1 HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    assert_eq!(status(&idle), "200");
}

#[tokio::test]
async fn a_body_that_stalls_is_answered() {
    let gateway = Gateway::with(limits(), 10, SHORT);
    let answer = gateway.tell("POST /s HTTP/1.1\r\nHost: gw\r\nContent-Length: 100\r\n\r\nhalf").await;
    assert_eq!((status(&answer), answer.contains("connection: close")), ("408", true), "{answer}");
}

#[tokio::test]
async fn a_body_is_judged_before_it_is_invited() {
    let gateway = Gateway::start();
    let mut client = gateway.connect().await;
    client.send("PUT /f HTTP/1.1\r\nHost: gw\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n").await;
    assert_eq!(client.until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("abc").await;
    assert_eq!(status(&client.until("/f:3").await), "200");
    let refused =
        gateway.tell("PUT /f HTTP/1.1\r\nHost: gw\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n").await;
    assert_eq!(status(&refused), "413");
}

#[tokio::test]
async fn a_client_that_sends_a_large_body_all_the_same_gets_its_answer() {
    let gateway = Gateway::start();
    let body = vec![b'x'; 8 << 20];
    let mut client = gateway.connect().await;
    client.send(format!("PUT /f HTTP/1.1\r\nHost: gw\r\nContent-Length: {}\r\n\r\n", body.len())).await;
    client.send(body).await;
    assert_eq!(status(&client.rest().await), "413");
    let chunked = format!("PUT /f HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n", 2000);
    let answer = gateway.tell(chunked + &"x".repeat(2000) + "\r\n0\r\n\r\n").await;
    assert_eq!(status(&answer), "413");
}

#[tokio::test]
async fn a_client_that_has_said_everything_still_gets_its_answer() {
    let gateway = Gateway::start();
    let client = gateway.connect().await;
    gateway.answers_half_closed(client).await;
}

#[tokio::test]
async fn an_answer_that_cannot_be_ended_is_cut() {
    let gateway = Gateway::start();
    let mut client = gateway.connect().await;
    client.send("GET /cut HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    client.until("4\r\nhalf\r\n").await;
    drop(gateway.echo.live.lock().unwrap().take());
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn an_answer_that_breaks_at_once_still_has_its_status() {
    let answer = Gateway::start().tell("GET /broken HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn head_speaks_of_a_body_that_it_does_not_bring() {
    let gateway = Gateway::start();
    let head = gateway.tell("HEAD /length HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n").await;
    assert!(head.contains("content-length: 9757\r\n") && head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_a_place() {
    let gateway = Gateway::with(limits(), 1, LONG);
    let mut first = gateway.connect().await;
    first.send("GET /1 HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    first.until("/1:0").await;
    let mut second = gateway.connect().await;
    second.send("GET /2 HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    first.send("GET /slow HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n").await;
    gateway.echo.waiting.notified().await;
    assert_eq!(gateway.echo.served(), ["/1", "/slow"]);
    gateway.echo.go.notify_one();
    first.rest().await;
    second.until("/2:0").await;
}

#[tokio::test]
async fn a_stop_ends_idle_connections_lets_requests_finish_and_takes_no_more() {
    let gateway = Gateway::start();
    let silent = gateway.connect().await;
    let mut idle = gateway.connect().await;
    idle.send("GET /1 HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    idle.until("/1:0").await;
    let mut busy = gateway.connect().await;
    busy.send("GET /slow HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    gateway.echo.waiting.notified().await;
    gateway.stop.cancel();
    assert_eq!((silent.rest().await, idle.rest().await), (String::new(), String::new()));
    assert!(TcpStream::connect(gateway.address).await.is_err());
    gateway.echo.go.notify_one();
    let answer = busy.rest().await;
    assert!(answer.contains("connection: close") && answer.ends_with("/slow:0"), "{answer}");
    gateway.serving.await.unwrap();
}

#[tokio::test]
async fn what_is_not_done_after_the_drain_time_is_cut() {
    let gateway = Gateway::with(Limits { drain: SHORT, ..limits() }, 10, LONG);
    let mut busy = gateway.connect().await;
    busy.send("GET /slow HTTP/1.1\r\nHost: gw\r\n\r\n").await;
    gateway.echo.waiting.notified().await;
    gateway.stop.cancel();
    gateway.serving.await.unwrap();
    assert_eq!(busy.rest().await, "");
}

#[tokio::test]
async fn an_address_is_shared_only_on_purpose() {
    let first = bind("127.0.0.1:0".parse().unwrap(), true).unwrap();
    let address = first.local_addr().unwrap();
    assert!(bind(address, true).is_ok());
    assert_eq!(bind(address, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert!(bind("[::1]:0".parse().unwrap(), false).is_ok());
}

#[test]
fn only_what_one_connection_did_is_no_reason_to_rest() {
    const EMFILE: i32 = 24;
    const ECONNABORTED: i32 = 103;
    assert!(is_of_one_connection(&io::Error::from_raw_os_error(ECONNABORTED)));
    assert!(!is_of_one_connection(&io::Error::from_raw_os_error(EMFILE)));
}
