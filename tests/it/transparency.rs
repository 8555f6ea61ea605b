//! What a caller and a service notice of a gateway between them: exchanges made up from a seed go straight to a service
//! and through the gateway, and both ends have to see the same, but for the differences that `docs/transparency.md` lists.

mod caller;
mod differences;
mod exchange;
mod http1;
mod message;
mod service;

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::faults::any_seed;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;

use caller::{call_http1, call_http2};
use differences::{Difference, IN_ANSWERS, IN_REQUESTS, Lane, Protocol, Way, steady};
use exchange::Exchange;
use message::Message;
use service::Service;

const EXCHANGES: usize = 360;

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

/// What was found, and which differences it took to explain the rest.
#[derive(Default)]
struct Findings {
    text: String,
    compared: usize,
    used: Vec<&'static str>,
}

#[test]
fn both_ends_see_what_they_would_without_a_gateway() {
    let seed = any_seed();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let findings = runtime.block_on(async {
        let exchanges: Vec<_> = (0..EXCHANGES).map(|number| Exchange::of(seed, number)).collect();
        let service = Service::start(exchanges.clone()).await;
        let gateway = gateway(&service);
        let (service, address) = (Arc::new(service), gateway.address());
        let mut findings = Findings::default();
        for exchanges in exchanges.chunks(AT_ONCE) {
            let mut sights = JoinSet::new();
            for exchange in exchanges.iter().cloned() {
                sights.spawn(see(Arc::clone(&service), address, exchange));
            }
            for (exchange, lane, straight, through) in sights.join_all().await.into_iter().flatten() {
                findings.compare(&service, &exchange, lane, straight, through);
            }
        }
        findings
    });
    assert!(findings.text.is_empty(), "ONCEGATE_TEST_SEED={seed}\n{}", findings.text);
    assert!(findings.compared > 2 * EXCHANGES, "{} comparisons", findings.compared);
    let stale = |difference: &&Difference| !findings.used.contains(&difference.words);
    let stale: Vec<_> = IN_REQUESTS.iter().chain(IN_ANSWERS).filter(stale).map(|difference| difference.words).collect();
    assert!(stale.is_empty(), "nothing needs these differences: {stale:#?}");
}

#[test]
fn what_a_gateway_changes_is_documented() {
    let document = include_str!("../../docs/transparency.md");
    for (heading, differences) in [("In a request", IN_REQUESTS), ("In an answer", IN_ANSWERS)] {
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
async fn see(service: Arc<Service>, gateway: SocketAddr, exchange: Exchange) -> Vec<(Exchange, Lane, Sight, Sight)> {
    let mut sights = Vec::new();
    for lane in LANES.into_iter().filter(|lane| fits(lane, &exchange)) {
        let straight = straight(&service, &exchange, lane).await;
        let through = through(&service, gateway, &exchange, lane).await;
        sights.push((exchange.clone(), lane, straight, through));
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
    let answer = match lane.caller {
        Protocol::Http1 => call_http1(exchange, gateway, lane.host).await,
        Protocol::Http2 => call_http2(exchange, gateway, lane.host).await.map_err(std::io::Error::other),
    };
    let answer = answer.unwrap_or_else(|error| panic!("{error} through {lane:?}: {exchange:?}"));
    let request = service.only(exchange.number);
    let request = request.unwrap_or_else(|| panic!("nothing came through {lane:?}: {exchange:?} {answer:?}"));
    Sight { request, answer }
}

impl Findings {
    fn compare(&mut self, service: &Service, exchange: &Exchange, lane: Lane, straight: Sight, through: Sight) {
        let upstream = if lane.service == Protocol::Http2 { service.http2 } else { service.http1 };
        let way = Way { lane, exchange, upstream: upstream.to_string() };
        self.compared += 1;
        let sides = [
            ("request", IN_REQUESTS, straight.request, through.request),
            ("answer", IN_ANSWERS, straight.answer, through.answer),
        ];
        for (side, differences, mut expected, mut seen) in sides {
            for difference in differences {
                let before = expected.clone();
                (difference.make)(&mut expected, &way);
                if expected != before && !self.used.contains(&difference.words) {
                    self.used.push(difference.words);
                }
            }
            steady(&mut expected);
            steady(&mut seen);
            if let Some(found) = seen.compare(&expected) {
                let Exchange { number, method, target, version, reply, .. } = exchange;
                let Lane { caller, service, guarded, .. } = lane;
                let what = format!("{method} {target} {version} -> {} {}", reply.version, reply.status);
                writeln!(self.text, "{side} {number} {caller:?}-{service:?} guarded {guarded}: {what}\n{found}")
                    .unwrap();
            }
        }
    }
}
