//! A service that answers each exchange as it has it, and keeps what it saw of the request.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::exchange::{Exchange, Fields, Reply};
use super::http1::{framed, framing_line, read_body, read_head, written};
use super::message::{Framing, Lines, Message, lines};

/// Says which exchange a request belongs to.
pub const NUMBER: &str = "x-exchange";

/// Names that HTTP/2 has no place for.
pub const OF_HTTP1: [&str; 6] = ["connection", "keep-alive", "proxy-connection", "upgrade", "x-hop", "host"];

/// Listens in both protocols.
pub struct Service {
    pub http1: SocketAddr,
    pub http2: SocketAddr,
    seen: Arc<Seen>,
}

struct Seen {
    exchanges: Vec<Exchange>,
    requests: Mutex<HashMap<usize, Vec<Message>>>,
}

impl Service {
    pub async fn start(exchanges: Vec<Exchange>) -> Self {
        let listen = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (first, second) = (listen().await, listen().await);
        let (http1, http2) = (first.local_addr().unwrap(), second.local_addr().unwrap());
        let seen = Arc::new(Seen { exchanges, requests: Mutex::default() });
        tokio::spawn(accept(first, Arc::clone(&seen), serve_http1));
        tokio::spawn(accept(second, Arc::clone(&seen), serve_http2));
        Self { http1, http2, seen }
    }

    /// The only request of an exchange since the last look.
    pub fn only(&self, number: usize) -> Option<Message> {
        let mut requests = self.seen.requests.lock().unwrap().remove(&number).unwrap_or_default();
        (requests.len() == 1).then(|| requests.remove(0))
    }
}

impl Seen {
    fn exchange(&self, lines: &Lines) -> &Exchange {
        &self.exchanges[lines[NUMBER][0].parse::<usize>().unwrap()]
    }

    fn note(&self, number: usize, request: Message) {
        self.requests.lock().unwrap().entry(number).or_default().push(request);
    }
}

async fn accept<F>(listener: TcpListener, seen: Arc<Seen>, serve: fn(TcpStream, Arc<Seen>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        tokio::spawn(serve(stream, Arc::clone(&seen)));
    }
}

async fn serve_http1(stream: TcpStream, seen: Arc<Seen>) {
    drop(answer_all(stream, &seen).await);
}

async fn answer_all(stream: TcpStream, seen: &Seen) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let head = read_head(&mut stream).await?;
        let (start, version) = head.start.rsplit_once(" HTTP/").unwrap();
        let version = if version == "1.0" { "1.0" } else { "1.1" };
        let exchange = seen.exchange(&head.lines);
        let mut request = Message::new(start.to_owned(), version, head.lines);
        if !exchange.reply.early {
            if request.lines.contains_key("expect") {
                stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
            }
            read_body(&mut stream, &mut request).await?;
        }
        seen.note(exchange.number, request);
        stream.write_all(&answer(&exchange.reply)).await?;
        if exchange.reply.framing == Framing::UntilClose || exchange.reply.version == "1.0" || exchange.reply.early {
            stream.shutdown().await?;
            // What is closed with unread bytes is reset, and a reset takes the answer along.
            return tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map(|_| ());
        }
    }
}

fn answer(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (status, fields) in &reply.interim {
        bytes.extend([format!("HTTP/1.1 {status} Interim\r\n").as_bytes(), &written(fields), b"\r\n"].concat());
    }
    bytes.extend(format!("HTTP/{} {} {}\r\n", reply.version, reply.status, reply.reason).into_bytes());
    bytes.extend(written(&reply.lines));
    bytes.extend([framing_line(reply.framing).as_bytes(), b"\r\n"].concat());
    let has_body = !reply.body.is_empty() || (reply.framing == Framing::Open && reply.can_have_body);
    if has_body {
        bytes.extend(framed(reply.framing, &reply.body, &reply.trailers));
    }
    bytes
}

async fn serve_http2(stream: TcpStream, seen: Arc<Seen>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        let seen = Arc::clone(&seen);
        tokio::spawn(async move { drop(serve_stream(request, respond, &seen).await) });
    }
}

async fn serve_stream(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    seen: &Seen,
) -> Result<(), h2::Error> {
    let (head, body) = request.into_parts();
    let mut fields = of_map(&head.headers);
    let host = head.uri.authority().unwrap().as_str();
    fields.insert("host".to_owned(), vec![host.to_owned()]);
    let target = head.uri.path_and_query().unwrap();
    let mut message = Message::new(format!("{} {target}", head.method), "2", fields);
    receive(body, &mut message).await?;
    let exchange = seen.exchange(&message.lines);
    seen.note(exchange.number, message);
    let reply = &exchange.reply;
    let mut response = Response::new(());
    *response.status_mut() = reply.status.try_into().unwrap();
    *response.headers_mut() = to_map(&reply.lines);
    if let Framing::Length(length) = reply.framing {
        response.headers_mut().insert("content-length", length.into());
    }
    let is_open = matches!(reply.framing, Framing::Open | Framing::UntilClose);
    let is_all = !reply.can_have_body || (reply.body.is_empty() && !is_open);
    for (status, fields) in &reply.interim {
        let mut interim = Response::new(());
        *interim.status_mut() = (*status).try_into().unwrap();
        *interim.headers_mut() = to_map(fields);
        respond.send_informational(interim)?;
    }
    let mut stream = respond.send_response(response, is_all)?;
    if !is_all {
        let body = Bytes::from(reply.body.clone());
        stream.send_data(body, reply.trailers.is_empty())?;
        if !reply.trailers.is_empty() {
            stream.send_trailers(to_map(&reply.trailers))?;
        }
    }
    Ok(())
}

/// The rest of a message of HTTP/2.
pub async fn receive(mut body: RecvStream, message: &mut Message) -> Result<(), h2::Error> {
    if message.framing == Framing::None && !body.is_end_stream() {
        message.framing = Framing::Open;
    }
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        message.body.extend(data);
    }
    message.trailers = body.trailers().await?.map(|trailers| of_map(&trailers)).unwrap_or_default();
    Ok(())
}

pub fn of_map(map: &HeaderMap) -> Lines {
    lines(map.iter().map(|(name, value)| (name.as_str(), value.as_bytes())))
}

/// Without what HTTP/2 has no place for.
pub fn to_map(fields: &Fields) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        let name = name.to_ascii_lowercase();
        if !OF_HTTP1.contains(&name.as_str()) {
            map.append(HeaderName::try_from(name).unwrap(), HeaderValue::from_bytes(value).unwrap());
        }
    }
    map
}
