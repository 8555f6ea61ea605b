//! Calls that nobody records, with a body that comes while it is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body::{Body, Frame, SizeHint};
use oncegate::engine::answer::{Answer, Content};
use oncegate::engine::pass::Passage;
use oncegate::upstream::SendBody;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep};

use crate::rig::{Act, Gateway, Setup, ms, secs};

/// What its client says of the length, and the pieces as they come.
struct Upload(u64, UnboundedReceiver<Bytes>);

impl Body for Upload {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = std::task::ready!(self.1.poll_recv(cx));
        self.0 -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

fn passage(gateway: &Gateway, body: SendBody) -> Passage {
    Passage {
        route: Arc::clone(gateway.route()),
        method: Method::PUT,
        target: "/v1/files/1".to_owned(),
        headers: HeaderMap::new(),
        body,
        interim: None,
        key: None,
        unguarded: None,
        deadline: Instant::now() + secs(60),
    }
}

fn status(answer: &Answer) -> u16 {
    match &answer.content {
        Content::Upstream { status, .. } => status.as_u16(),
        Content::Accepted => 202,
        Content::Problem(problem) => problem.status,
    }
}

/// As a client with `Expect: 100-continue` does it: the body comes when somebody asks for it.
#[tokio::test(start_paused = true)]
async fn an_upload_that_is_sent_again_is_whole() {
    for seed in 0..10 {
        let gateway = Gateway::seeded(seed, vec![Act::Hurries], Setup::HARMLESS);
        let (client, pieces) = unbounded_channel();
        let passage = passage(&gateway, SendBody::streaming(Upload(10, pieces)));
        let engine = Arc::clone(&gateway.engine);
        let call = tokio::spawn(async move { engine.unguarded(passage).await });
        gateway.upstream.has_seen(1).await;
        sleep(ms(20)).await;
        client.send(Bytes::from_static(b"all of it!")).unwrap();

        assert_eq!(status(&call.await.unwrap()), 201, "seed {seed}");
        let seen = gateway.upstream.seen();
        assert_eq!((seen.len(), &seen[1].body[..]), (2, &b"all of it!"[..]), "seed {seed}");
    }
}
