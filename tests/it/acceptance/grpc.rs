//! gRPC through the gateway: statuses of its own, and trailers that are part of the answer.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};

use crate::acceptance::http2::with_client;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;

/// A message of five bytes, as gRPC frames it.
const MESSAGE: &[u8] = b"\0\0\0\0\x05hello";

on! { [memory file redis]
    a_grpc_answer_is_replayed_with_its_trailers
}

on! { [memory]
    a_long_grpc_answer_is_told_with_its_trailers
    a_long_grpc_answer_without_a_good_status_settles_nothing
    a_grpc_status_says_what_may_be_repeated
    a_grpc_status_behind_the_message_counts_too
    an_unguarded_grpc_call_passes_both_ways
}

/// How the service answers a call.
#[derive(Clone, Copy)]
enum Says {
    /// A message, then this status in trailers.
    Message(&'static str),
    /// This status, without a message.
    Only(&'static str),
}

/// A service that answers in turn as it is told, and the calls that it saw.
struct Service {
    address: SocketAddr,
    seen: Receiver<HeaderMap>,
}

impl Service {
    fn start(script: Vec<Says>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, (told, seen)) = (listener.local_addr().unwrap(), channel());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serve(listener, script, told));
        });
        Self { address, seen }
    }

    fn settings(&self) -> Settings {
        Settings::towards(&format!("http://{}", self.address)).top("upstreams.payments.protocol = 'h2'").quick()
    }
}

async fn serve(listener: std::net::TcpListener, script: Vec<Says>, told: Sender<HeaderMap>) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let mut script = script.into_iter();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, respond))) = connection.accept().await {
            told.send(request.headers().clone()).unwrap();
            answer(respond, script.next().expect("a call too many"));
        }
    }
}

fn answer(mut respond: SendResponse<Bytes>, says: Says) {
    let head = Response::builder().header("content-type", "application/grpc");
    match says {
        Says::Only(status) => {
            drop(respond.send_response(head.header("grpc-status", status).body(()).unwrap(), true).unwrap());
        }
        Says::Message(status) => {
            let mut body = respond.send_response(head.body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(MESSAGE), false).unwrap();
            let status = ("grpc-status".parse().unwrap(), HeaderValue::from_static(status));
            body.send_trailers(HeaderMap::from_iter([status])).unwrap();
        }
    }
}

/// What a client of gRPC sees.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    message: Vec<u8>,
    status: String,
    replayed: bool,
}

fn call(gateway: &Gateway, key: &str) -> Seen {
    let (address, mut seen) = (gateway.address(), None);
    with_client(address, async |mut client: SendRequest<Bytes>| {
        let request = Request::post(format!("http://{address}/pay.Payments/Charge"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("idempotency-key", key);
        let (answer, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
        body.send_data(Bytes::from_static(MESSAGE), true).unwrap();
        let (head, mut body) = answer.await.unwrap().into_parts();
        let mut message = Vec::new();
        while let Some(piece) = body.data().await {
            message.extend_from_slice(&piece.unwrap());
        }
        let trailers = body.trailers().await.unwrap().unwrap_or_default();
        let status = trailers.get("grpc-status").or(head.headers.get("grpc-status")).unwrap().to_str().unwrap();
        let replayed = head.headers.contains_key("idempotent-replayed");
        seen = Some(Seen { message, status: status.to_owned(), replayed });
    });
    seen.unwrap()
}

fn a_grpc_answer_is_replayed_with_its_trailers(ground: Ground) {
    let service = Service::start(vec![Says::Message("0"), Says::Message("5")]);
    let gateway = service.settings().start(&ground);

    for (key, status) in [("k-1", "0"), ("k-2", "5")] {
        let first = call(&gateway, key);
        assert_eq!(first, Seen { message: MESSAGE.to_vec(), status: status.to_owned(), replayed: false });
        assert_eq!(call(&gateway, key), Seen { replayed: true, ..first });
    }

    let seen: Vec<_> = service.seen.try_iter().collect();
    assert_eq!(
        (seen.len(), &seen[0]["te"], &seen[0]["idempotency-key"]),
        (2, &HeaderValue::from_static("trailers"), &HeaderValue::from_static("k-1"))
    );
}

/// Longer than a receipt may be, so that it is told while it comes.
fn a_long_grpc_answer_is_told_with_its_trailers(ground: Ground) {
    let service = Service::start(vec![Says::Message("0")]);
    let gateway = service.settings().route("max_receipt = '1B'").start(&ground);

    assert_eq!(call(&gateway, "k-1"), Seen { message: MESSAGE.to_vec(), status: "0".to_owned(), replayed: false });
}

/// What was told cannot be taken back, but nobody says that it was done.
fn a_long_grpc_answer_without_a_good_status_settles_nothing(ground: Ground) {
    let service = Service::start(vec![Says::Message("14"), Says::Message("0")]);
    let gateway = service.settings().route("max_receipt = '1B'").start(&ground);

    assert_eq!(call(&gateway, "k-1"), Seen { message: MESSAGE.to_vec(), status: "14".to_owned(), replayed: false });
    gateway.wait_for("unknown");
    assert_eq!(call(&gateway, "k-2").status, "0");
    assert_eq!(gateway.operations("?state=succeeded").len(), 1);
    assert_eq!(service.seen.try_iter().count(), 2);
}

fn a_grpc_status_says_what_may_be_repeated(ground: Ground) {
    let service = Service::start(vec![Says::Only("14"), Says::Message("0"), Says::Only("9")]);
    let gateway = service.settings().route("repeat = 'harmless'").start(&ground);

    assert_eq!(call(&gateway, "k-1").status, "0");
    assert_eq!(call(&gateway, "k-2").status, "9");
    assert_eq!(service.seen.try_iter().count(), 3);
}

fn an_unguarded_grpc_call_passes_both_ways(ground: Ground) {
    let service = Service::start(vec![Says::Message("0"), Says::Only("12")]);
    let gateway = service.settings().route("key.mode = 'off'").start(&ground);

    for (message, status) in [(MESSAGE, "0"), (b"", "12")] {
        assert_eq!(
            call(&gateway, "k-1"),
            Seen { message: message.to_vec(), status: status.to_owned(), replayed: false }
        );
    }
}

fn a_grpc_status_behind_the_message_counts_too(ground: Ground) {
    let service = Service::start(vec![Says::Message("14"), Says::Message("8"), Says::Message("0")]);
    let gateway = service.settings().start(&ground);

    assert_eq!(call(&gateway, "k-1").status, "14");
    gateway.wait_for("unknown");
    assert_eq!(call(&gateway, "k-2").status, "0");
    assert_eq!(service.seen.try_iter().count(), 3);
}
