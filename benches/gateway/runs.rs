//! What is compared. Where a case grows, its cost must not.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};

use crate::Failure;
use crate::gateway::Gateway;
use crate::herd::Illness;
use crate::load::{Call, Key, run, run_by, silent};
use crate::way::{HTTP1, HTTP2, HTTPS1, HTTPS2, Papers, Way};
use crate::{events, herd, service};

/// Clients of a case, unless it is about their number.
const CLIENTS: usize = 32;
/// An ordinary call and its answer, in bytes.
const SMALL: usize = 330;

type Run = fn() -> Result<(), Failure>;

pub(crate) const ALL: &[(&str, Run)] = &[
    ("stores", stores),
    ("bodies", bodies),
    ("protocols", protocols),
    ("events", events),
    ("connections", connections),
    ("silence", silence),
    ("routes", routes),
    ("keys", keys),
    ("herd", herd),
    ("gates", gates),
];

const KINDS: [(&str, Key); 3] = [("pass", Key::None), ("fresh", Key::Fresh), ("replay", Key::OneOf(100))];

fn call(key: Key, up: usize, down: usize) -> Call {
    Call { path: format!("/answer/{down}"), body: Bytes::from(vec![b'x'; up]), key }
}

/// One route at `/` to `service`.
fn one_route(service: SocketAddr) -> String {
    format!("{}[[routes]]\nname = 'bench'\nmatch.path = '/'\nupstream = 'bench'\n", upstream(service))
}

fn upstream(service: SocketAddr) -> String {
    format!(
        "[upstreams.bench]\nurl = 'http://{service}'\nrepeat = 'with-key'\n[defaults]\nmax_body = '2MiB'\nmax_receipt = '2MiB'\n"
    )
}

fn stores() -> Result<(), Failure> {
    let service = service::start()?;
    for store in ["memory:", "file:oncegate.db"] {
        let gateway = Gateway::start(store, &one_route(service))?;
        for (kind, key) in KINDS {
            run(&gateway, CLIENTS, &call(key, SMALL, SMALL))?.print(&format!("{store}, {kind}"));
        }
    }
    Ok(())
}

fn bodies() -> Result<(), Failure> {
    let service = service::start()?;
    let sizes = [("1 KiB", 1 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];
    for (kind, key) in KINDS {
        for (name, size) in sizes {
            for (way, up, down) in [("up", size, SMALL), ("down", SMALL, size)] {
                let gateway = Gateway::start("memory:", &one_route(service))?;
                run(&gateway, CLIENTS, &call(key, up, down))?.print(&format!("{kind}, {name} {way}"));
            }
        }
    }
    Ok(())
}

/// Agents by one protocol, the service by another. A hundred clients, which are as many streams of one connection in HTTP/2.
fn protocols() -> Result<(), Failure> {
    const CLIENTS: usize = 100;
    let papers = Papers::made()?;
    for (name, agents, service) in [
        ("http/1.1 to http/1.1", HTTP1, HTTP1),
        ("h2 to http/1.1", HTTP2, HTTP1),
        ("http/1.1 to h2", HTTP1, HTTP2),
        ("TLS to http/1.1", HTTPS1, HTTP1),
        ("TLS to TLS", HTTPS1, HTTPS1),
        ("h2 on TLS to h2 on TLS", HTTPS2, HTTPS2),
    ] {
        for (kind, key) in KINDS {
            let gateway = between(agents, service, &papers)?;
            let measured = run_by(agents, &papers, &gateway, CLIENTS, &call(key, SMALL, SMALL))?;
            measured.print(&format!("{kind}, {name}"));
        }
    }
    Ok(())
}

/// A gateway that speaks so to its agents and to a service of its own.
fn between(agents: Way, service: Way, papers: &Papers) -> Result<Gateway, Failure> {
    let acceptor = if service.tls { Some(papers.acceptor(service)?) } else { None };
    let port = service::start_by(service, acceptor)?;
    let mut tables = one_route(port);
    let (scheme, protocol) = (service.scheme(), service.protocol());
    tables = tables.replace("url = 'http:", &format!("protocol = '{protocol}'\nurl = '{scheme}:"));
    if service.tls {
        tables = tables.replace("url = ", &format!("ca_file = '{}'\nurl = ", papers.path("cert.pem")));
    }
    if agents.tls {
        let (certificate, key) = (papers.path("cert.pem"), papers.path("key.pem"));
        write!(tables, "[server.tls]\ncert = '{certificate}'\nkey = '{key}'\n")?;
    }
    Gateway::start("memory:", &tables)
}

/// Connections that stay open without a call.
fn silence() -> Result<(), Failure> {
    let papers = Papers::made()?;
    for (name, agents, count) in [("http/1.1", HTTP1, 10_000), ("http/1.1 on TLS", HTTPS1, 1_000)] {
        let gateway = between(agents, HTTP1, &papers)?;
        let grown = silent(agents, &papers, &gateway, count, &call(Key::None, 0, SMALL))?;
        let (all, each) = (gateway.memory()?, grown * 1024.0 / count as f64);
        println!("  {count} connections of {name}: {all:.1} MiB, {each:.1} KiB each");
    }
    Ok(())
}

/// An event each 100 ms on each of 500 streams; the first line is without the gateway.
fn events() -> Result<(), Failure> {
    const STREAMS: usize = 500;
    let service = service::start()?;
    events::run(service, STREAMS, &Method::GET, None)?.print("straight");
    for (kind, method) in [("pass", Method::GET), ("fresh", Method::POST)] {
        let gateway = Gateway::start("memory:", &one_route(service))?;
        events::run(gateway.address, STREAMS, &method, Some(&gateway))?.print(kind);
    }
    Ok(())
}

fn connections() -> Result<(), Failure> {
    let service = service::start()?;
    for (kind, key) in KINDS {
        for clients in [1, 32, 128, 512] {
            let gateway = Gateway::start("memory:", &one_route(service))?;
            run(&gateway, clients, &call(key, SMALL, SMALL))?.print(&format!("{kind}, {clients} connections"));
        }
    }
    Ok(())
}

fn routes() -> Result<(), Failure> {
    let service = service::start()?;
    for count in [1, 10, 100, 1000] {
        let mut tables = upstream(service);
        for number in 1..=count {
            write!(tables, "[[routes]]\nname = 'r{number}'\nmatch.path = '/r{number}'\nupstream = 'bench'\n")?;
        }
        let gateway = Gateway::start("memory:", &tables)?;
        for (kind, key) in KINDS {
            let call = Call { path: format!("/r{count}/{SMALL}"), ..call(key, SMALL, SMALL) };
            run(&gateway, CLIENTS, &call)?.print(&format!("{kind}, last of {count} routes"));
        }
    }
    Ok(())
}

/// Each case finds the keys of those before it.
fn keys() -> Result<(), Failure> {
    let service = service::start()?;
    for store in ["memory:", "file:oncegate.db"] {
        let gateway = Gateway::start(store, &one_route(service))?;
        for round in 1..=5 {
            run(&gateway, CLIENTS, &call(Key::Fresh, SMALL, SMALL))?.print(&format!("{store}, fresh, round {round}"));
        }
    }
    Ok(())
}

/// What comes back to a service that turns 500 clients away for a moment.
fn herd() -> Result<(), Failure> {
    const ATTEMPTS: &str = "retry.max_attempts = 4\nlimit.concurrency = 500\n";
    const JITTER_ALONE: &str = "retry.budget.percent = 1000\nbreaker.consecutive_failures = 0\n";
    let silent = Illness { status: StatusCode::SERVICE_UNAVAILABLE, hint: None, length: Duration::from_millis(200) };
    let stated = Illness { status: StatusCode::TOO_MANY_REQUESTS, hint: Some(1), length: Duration::from_secs(1) };
    for (name, illness, tables) in [
        ("503, straight", silent, None),
        ("503, oncegate without breaker and budget", silent, Some([ATTEMPTS, JITTER_ALONE].concat())),
        ("503, oncegate", silent, Some(ATTEMPTS.to_owned())),
        ("429 with Retry-After: 1, straight", stated, None),
        ("429 with Retry-After: 1, oncegate", stated, Some(ATTEMPTS.to_owned())),
    ] {
        let service = herd::Service::start(illness)?;
        let gateway =
            tables.map(|tables| Gateway::start("memory:", &(one_route(service.address) + &tables))).transpose()?;
        let address = gateway.as_ref().map_or(service.address, |gateway| gateway.address);
        herd::run(address, &service)?.print(name);
    }
    Ok(())
}

/// All that may refuse a call, beside as little of it as can be: in turns, and the best of many rounds, for the difference
/// is small and whatever disturbs only adds.
fn gates() -> Result<(), Failure> {
    const ROUNDS: usize = 9;
    const NONE: &str = "breaker.consecutive_failures = 0\n";
    const ALL: &str = "breaker.failure_percent = 50\nlimit.concurrency = 1000\nlimit.queue = 1000\n\
        limit.rate = '1000000/s'\nlimit.rate_per_scope = '1000000/s'\nlimit.rate_queue = 1000\n";
    let service = service::start()?;
    let start = |gates| Gateway::start("memory:", &(one_route(service) + gates));
    let gateways = [("off", start(NONE)?), ("on", start(ALL)?)];
    for (kind, key) in KINDS {
        let mut costs = [[0.0; ROUNDS]; 2];
        for round in 0..ROUNDS {
            for ((_, gateway), costs) in gateways.iter().zip(&mut costs) {
                costs[round] = run(gateway, CLIENTS, &call(key, SMALL, SMALL))?.microseconds();
            }
        }
        for ((gates, _), mut costs) in gateways.iter().zip(costs) {
            costs.sort_by(f64::total_cmp);
            let (case, least, middle) = (format!("{kind}, gates {gates}"), costs[0], costs[ROUNDS / 2]);
            println!(
                "  {case:34} CPU {least:7.1} us/call in the best of {ROUNDS} rounds, {middle:.1} in the middle one"
            );
        }
    }
    Ok(())
}
