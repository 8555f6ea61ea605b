//! What a caller and a service notice of a gateway between them: exchanges made up from a seed go straight to a service
//! and through the gateway, and both ends have to see the same, but for the differences that `docs/transparency.md` lists.

mod caller;
mod differences;
mod exchange;
mod http1;
mod message;
mod service;

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;

use caller::{call_http1, call_http2};
use differences::{Difference, IN_ANSWERS, IN_REPLAYS, IN_REQUESTS, Lane, Protocol, Way, steady};
use exchange::Exchange;
use message::Message;
use service::Service;

const EXCHANGES: usize = 324;

/// At a time.
const AT_ONCE: usize = 20;

const LANES: [Lane; 6] = [
    Lane { host: "open-1.test", caller: Protocol::Http1, service: Protocol::Http1, guarded: false },
    Lane { host: "open-1.test", caller: Protocol::Http2, service: Protocol::Http1, guarded: false },
    Lane { host: "open-2.test", caller: Protocol::Http1, service: Protocol::Http2, guarded: false },
    Lane { host: "open-2.test", caller: Protocol::Http2, service: Protocol::Http2, guarded: false },
    Lane { host: "guarded-1.test", caller: Protocol::Http1, service: Protocol::Http1, guarded: true },
    Lane { host: "guarded-2.test", caller: Protocol::Http2, service: Protocol::Http2, guarded: true },
];

/// What both ends saw.
struct Sight {
    request: Message,
    answer: Message,
}

/// An exchange without a gateway, and with one; a guarded one is asked for again.
struct Seen {
    exchange: Exchange,
    lane: Lane,
    straight: Sight,
    through: Sight,
    replay: Option<Message>,
}

/// What was found, and which differences it took to explain the rest.
#[derive(Default)]
pub struct Findings {
    text: String,
    compared: usize,
    used: Vec<&'static str>,
}

/// The same exchanges in each run, so that no run lacks one for each difference; `./test soak` takes others.
#[test]
fn both_ends_see_what_they_would_without_a_gateway() {
    let findings = play(1);
    assert!(findings.compared > 2 * EXCHANGES, "{} comparisons", findings.compared);
    let listed = [IN_REQUESTS, IN_ANSWERS, IN_REPLAYS].into_iter().flatten().map(|difference| difference.words);
    let stale: Vec<_> = listed.filter(|words| !findings.used.contains(words)).collect();
    assert!(stale.is_empty(), "nothing needs these differences: {stale:#?}");
}

/// Compares the exchanges of a seed.
pub fn play(seed: u64) -> Findings {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let findings = runtime.block_on(async {
        let exchanges: Vec<_> = (0..EXCHANGES).map(|number| Exchange::of(seed, number)).collect();
        let service = Arc::new(Service::start(exchanges.clone()).await);
        let gateway = gateway(&service);
        let mut findings = Findings::default();
        for exchanges in exchanges.chunks(AT_ONCE) {
            let mut sights = JoinSet::new();
            for exchange in exchanges.iter().cloned() {
                sights.spawn(see(Arc::clone(&service), gateway.address(), exchange));
            }
            for seen in sights.join_all().await.into_iter().flatten() {
                findings.compare(&service, seen);
            }
        }
        findings
    });
    assert!(findings.text.is_empty(), "with the exchanges of {seed}\n{}", findings.text);
    findings
}

#[test]
fn what_a_gateway_changes_is_documented() {
    let document = include_str!("../../../docs/transparency.md");
    for (heading, differences) in
        [("In a request", IN_REQUESTS), ("In an answer", IN_ANSWERS), ("In a replay", IN_REPLAYS)]
    {
        let (_, section) = document.split_once(&format!("## {heading}\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let points = section.split("\n- ").skip(1).map(|point| point.split_whitespace().collect::<Vec<_>>().join(" "));
        let words: Vec<_> = differences.iter().map(|difference| difference.words).collect();
        assert_eq!(points.collect::<Vec<_>>(), words, "{heading}");
    }
}

fn gateway(service: &Service) -> Gateway {
    let route = |name: &str, mode: &str| {
        format!(
            "[[routes]]\nname = '{name}'\nmatch.path = '/'\nmatch.host = '{name}.test'\nupstream = 'u{}'\nkey.mode = \
             '{mode}'\nretry.max_attempts = 1\n",
            &name[name.len() - 1..]
        )
    };
    let settings = Settings::towards("http://127.0.0.1:9")
        .top(&format!("upstreams.u1.url = 'http://{}'", service.http1))
        .top(&format!("upstreams.u2.url = 'http://{}'\nupstreams.u2.protocol = 'h2'", service.http2));
    let routes = [("open-1", "off"), ("open-2", "off"), ("guarded-1", "stamp"), ("guarded-2", "stamp")];
    routes
        .into_iter()
        .fold(settings, |settings, (name, mode)| settings.and(&route(name, mode)))
        .start(&Ground::memory())
}

/// A guarded call that is answered before its body was read is none that can be compared: the gateway has the body.
fn fits(lane: &Lane, exchange: &Exchange) -> bool {
    let speaks_http2 = lane.caller == Protocol::Http2 || lane.service == Protocol::Http2;
    (!speaks_http2 || exchange.fits_http2()) && (!lane.guarded || (exchange.is_write() && !exchange.reply.early))
}

/// An exchange on all lanes that it fits.
async fn see(service: Arc<Service>, gateway: SocketAddr, exchange: Exchange) -> Vec<Seen> {
    let mut sights = Vec::new();
    for lane in LANES.into_iter().filter(|lane| fits(lane, &exchange)) {
        let straight = straight(&service, &exchange, lane).await;
        let through = through(&service, gateway, &exchange, lane).await;
        let replay = match lane.guarded && exchange.has_key() && exchange.reply.can_have_body {
            true => Some(ask(gateway, &exchange, lane).await),
            false => None,
        };
        assert!(service.only(exchange.number).is_none(), "called twice through {lane:?}: {exchange:?}");
        sights.push(Seen { exchange: exchange.clone(), lane, straight, through, replay });
    }
    sights
}

async fn straight(service: &Service, exchange: &Exchange, lane: Lane) -> Sight {
    let answer = match lane.caller {
        Protocol::Http1 => call_http1(exchange, service.http1, lane.host).await.unwrap(),
        Protocol::Http2 => call_http2(exchange, service.http2, lane.host).await.unwrap(),
    };
    Sight { request: service.only(exchange.number).unwrap(), answer }
}

async fn through(service: &Service, gateway: SocketAddr, exchange: &Exchange, lane: Lane) -> Sight {
    let answer = ask(gateway, exchange, lane).await;
    let request = service.only(exchange.number);
    let request = request.unwrap_or_else(|| panic!("nothing came through {lane:?}: {exchange:?} {answer:?}"));
    Sight { request, answer }
}

async fn ask(gateway: SocketAddr, exchange: &Exchange, lane: Lane) -> Message {
    let answer = match lane.caller {
        Protocol::Http1 => call_http1(exchange, gateway, lane.host).await,
        Protocol::Http2 => call_http2(exchange, gateway, lane.host).await.map_err(io::Error::other),
    };
    answer.unwrap_or_else(|error| panic!("{error} through {lane:?}: {exchange:?}"))
}

impl Findings {
    fn compare(&mut self, service: &Service, seen: Seen) {
        let Seen { exchange, lane, straight, through, replay } = seen;
        let upstream = if lane.service == Protocol::Http2 { service.http2 } else { service.http1 };
        let way = Way { lane, exchange: &exchange, upstream: upstream.to_string() };
        self.explain("request", &[IN_REQUESTS], straight.request, through.request, &way);
        if let Some(replay) = replay {
            self.explain("replay", &[IN_ANSWERS, IN_REPLAYS], straight.answer.clone(), replay, &way);
        }
        self.explain("answer", &[IN_ANSWERS], straight.answer, through.answer, &way);
    }

    fn explain(
        &mut self,
        what: &str,
        differences: &[&'static [Difference]],
        mut expected: Message,
        mut seen: Message,
        way: &Way<'_>,
    ) {
        self.compared += 1;
        for difference in differences.iter().copied().flatten() {
            let before = expected.clone();
            (difference.make)(&mut expected, way);
            if expected != before && !self.used.contains(&difference.words) {
                self.used.push(difference.words);
            }
        }
        steady(&mut expected);
        steady(&mut seen);
        if let Some(found) = seen.compare(&expected) {
            let Exchange { number, method, target, version, reply, .. } = way.exchange;
            let Lane { caller, service, guarded, .. } = way.lane;
            let told = format!("{method} {target} {version} -> {} {}", reply.version, reply.status);
            writeln!(self.text, "{what} {number} {caller:?}-{service:?} guarded {guarded}: {told}\n{found}").unwrap();
        }
    }
}
