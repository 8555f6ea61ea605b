//! A caller that says a request in one of the protocols and shows what came back.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderValue, Request, Uri};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::exchange::Exchange;
use super::http1::{Head, framed, framing_line, read_body, read_head, written};
use super::message::{Framing, Message};
use super::service::{NUMBER, of_map, receive, to_map};

pub async fn call_http1(exchange: &Exchange, address: SocketAddr, host: &str) -> io::Result<Message> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    stream.get_ref().set_nodelay(true)?;
    let target = exchange.target.replace("HOST", host);
    let mut head = format!("{} {target} HTTP/{}\r\n", exchange.method, exchange.version);
    head += &format!("Host: {host}\r\n{NUMBER}: {}\r\n{}", exchange.number, framing_line(exchange.framing));
    head += if exchange.expects { "Expect: 100-continue\r\n" } else { "" };
    stream.write_all(&[head.as_bytes(), &written(&exchange.lines), b"\r\n"].concat()).await?;
    let body = framed(exchange.framing, &exchange.body, &exchange.trailers);
    let mut interim = Vec::new();
    if !exchange.expects && exchange.framing != Framing::None {
        stream.write_all(&body).await?;
    }
    loop {
        let Head { start, lines } = read_head(&mut stream).await?;
        let (version, status) = start.split_once(' ').unwrap();
        if status.starts_with("100 ") && exchange.expects {
            stream.write_all(&body).await?;
        } else if status.starts_with('1') {
            interim.push((status.split(' ').next().unwrap().to_owned(), lines));
        } else {
            let version = if version == "HTTP/1.0" { "1.0" } else { "1.1" };
            let mut answer = Message { interim, ..Message::new(status.to_owned(), version, lines) };
            let has_body = exchange.method != "HEAD" && !["204", "304"].iter().any(|code| status.starts_with(code));
            if has_body && answer.framing == Framing::None {
                answer.framing = Framing::UntilClose;
            }
            if has_body {
                read_body(&mut stream, &mut answer).await?;
            }
            return Ok(answer);
        }
    }
}

pub async fn call_http2(exchange: &Exchange, address: SocketAddr, host: &str) -> Result<Message, h2::Error> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (client, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    let mut request = Request::new(());
    let target = exchange.target.replace("http://HOST", "");
    let target = if target.starts_with('/') { target } else { format!("/{target}") };
    *request.uri_mut() = Uri::builder().scheme("http").authority(host).path_and_query(target).build().unwrap();
    *request.method_mut() = exchange.method.parse().unwrap();
    *request.headers_mut() = to_map(&exchange.lines);
    request.headers_mut().insert(NUMBER, HeaderValue::from(exchange.number));
    if let Framing::Length(length) = exchange.framing {
        request.headers_mut().insert("content-length", length.into());
    }
    let is_all = exchange.framing == Framing::None;
    let (mut answer, mut stream) = client.ready().await?.send_request(request, is_all)?;
    if !is_all {
        stream.send_data(Bytes::from(exchange.body.clone()), exchange.trailers.is_empty())?;
        if !exchange.trailers.is_empty() {
            stream.send_trailers(to_map(&exchange.trailers))?;
        }
    }
    let mut interim = Vec::new();
    while let Some(told) = poll_fn(|context| answer.poll_informational(context)).await.transpose()? {
        interim.push((told.status().as_str().to_owned(), of_map(told.headers())));
    }
    let (head, body) = answer.await?.into_parts();
    let message = Message::new(head.status.as_u16().to_string(), "2", of_map(&head.headers));
    let mut message = Message { interim, ..message };
    receive(body, &mut message).await?;
    Ok(message)
}
