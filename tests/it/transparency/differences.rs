//! All that a caller or a service can see of the gateway: each difference with its words in `docs/transparency.md`, and
//! what it does to a message that went straight.

use std::collections::BTreeSet;

use http::StatusCode;

use super::exchange::Exchange;
use super::message::{Framing, Lines, Message};

/// What a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// A way through the gateway: its routes go by the host.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub host: &'static str,
    pub caller: Protocol,
    pub service: Protocol,
    pub guarded: bool,
}

/// What a difference depends on.
pub struct Way<'w> {
    pub lane: Lane,
    pub exchange: &'w Exchange,
    pub upstream: String,
}

pub struct Difference {
    pub words: &'static str,
    pub make: fn(&mut Message, &Way<'_>),
}

const fn difference(words: &'static str, make: fn(&mut Message, &Way<'_>)) -> Difference {
    Difference { words, make }
}

/// In a request, as the service sees it.
pub const IN_REQUESTS: &[Difference] = &[
    difference("`Host` is the upstream's own (`host = \"client\"` keeps the caller's).", |message, way| {
        set(message, "host", &way.upstream)
    }),
    difference(
        "What speaks of one connection ends there: `Connection` and what it names, `Keep-Alive`, `Proxy-Connection`, \
         `Proxy-Authorization`, `TE`; `TE: trailers` is said anew, and `Upgrade` where a connection may leave HTTP.",
        |message, way| {
            drop_hop_by_hop(&mut message.lines);
            if way.exchange.wants_trailers() {
                set(message, "te", "trailers");
            }
        },
    ),
    difference(
        "`Forwarded`, `X-Real-IP` and `X-Forwarded-*` of callers outside `trusted_proxies` go; `X-Forwarded-For`, \
         `X-Forwarded-Proto` and `X-Forwarded-Host` say what the gateway saw.",
        |message, way| {
            message.lines.retain(|name, _| !matches!(name.as_str(), "forwarded" | "x-real-ip"));
            set(message, "x-forwarded-for", "127.0.0.1");
            set(message, "x-forwarded-proto", "http");
            set(message, "x-forwarded-host", way.lane.host);
        },
    ),
    difference("`Via` has one more line, with the version that the caller speaks.", |message, way| {
        let version = if way.lane.caller == Protocol::Http2 { "2" } else { way.exchange.version };
        add(message, "via", &format!("{version} oncegate-*"));
    }),
    difference(
        "`Oncegate-Attempt` and `X-Request-Timeout-Ms` come; a caller's `Oncegate-*` and `Idempotent-Replayed` go.",
        |message, _| {
            drop_ours(&mut message.lines);
            set(message, "oncegate-attempt", "1");
            set(message, "x-request-timeout-ms", "*");
        },
    ),
    difference("A full URL is cut to its path: it never chooses a host.", |message, way| {
        let target = message.start.replace(&format!("http://{}", way.lane.host), "").replace(" ?", " /?");
        message.start = if target.ends_with(' ') { target + "/" } else { target };
    }),
    difference("`Max-Forwards` of an `OPTIONS` is one less.", |message, way| {
        if way.exchange.method == "OPTIONS" && message.lines.contains_key("max-forwards") {
            set(message, "max-forwards", "2");
        }
    }),
    difference("It is HTTP/1.1 or HTTP/2, whatever the caller speaks.", |message, way| {
        message.version = if way.lane.service == Protocol::Http2 { "2" } else { "1.1" };
    }),
    difference("`POST`, `PUT` and `PATCH` without a body say `Content-Length: 0`.", |message, way| {
        if message.framing == Framing::None && ["POST", "PUT", "PATCH"].contains(&way.exchange.method) {
            message.framing = Framing::Length(0);
        }
    }),
    difference("Trailers reach a service of HTTP/1.1 if a `Trailer` line names them.", |message, way| {
        if way.lane.service == Protocol::Http1 && !message.lines.contains_key("trailer") {
            message.trailers.clear();
        }
    }),
    difference("The cookies of a caller of HTTP/2 are one line.", |message, way| {
        if way.lane.caller == Protocol::Http2
            && let Some(cookies) = message.lines.get_mut("cookie")
        {
            *cookies = vec![cookies.join("; ").trim().to_owned()];
        }
    }),
    difference(
        "A guarded call is sent whole: with `Content-Length` instead of chunks, without trailers, and without `Expect`, \
         which the gateway answers itself.",
        |message, way| {
            if way.lane.guarded {
                message.lines.remove("expect");
                message.lines.remove("trailer");
                message.trailers.clear();
                if message.framing == Framing::Open {
                    message.framing = Framing::Length(message.body.len() as u64);
                }
                if message.framing == Framing::Length(0)
                    && !["POST", "PUT", "PATCH"].contains(&way.exchange.method)
                    && way.exchange.framing == Framing::Open
                {
                    message.framing = Framing::None;
                }
            }
        },
    ),
    difference(
        "A guarded call carries `Idempotency-Key`: the caller's own, or one that the gateway made.",
        |message, way| {
            if way.lane.guarded {
                set(message, "idempotency-key", "*");
            }
        },
    ),
];

/// In an answer, as the caller sees it.
pub const IN_ANSWERS: &[Difference] = &[
    difference(
        "What speaks of one connection ends there: `Connection` and what it names, `Keep-Alive`, `Proxy-Authenticate`, \
         `Upgrade`.",
        |message, _| drop_hop_by_hop(&mut message.lines),
    ),
    difference(
        "`Oncegate-Source` comes, and on a write the other headers of the gateway; a service's `Oncegate-*` and \
         `Idempotent-Replayed` go.",
        |message, way| {
            drop_ours(&mut message.lines);
            set(message, "oncegate-source", "upstream");
            if way.exchange.is_write() {
                set(message, "oncegate-execution", "*");
                set(message, "oncegate-attempts", "1");
            }
            if way.lane.guarded {
                for name in ["idempotency-key", "oncegate-key-source", "oncegate-operation"] {
                    set(message, name, "*");
                }
            } else if way.exchange.is_write() {
                set(message, "oncegate-guarded", "no; reason=off");
            }
        },
    ),
    difference("`Via` has one more line, with the version that the service speaks.", |message, way| {
        let version = if way.lane.service == Protocol::Http2 { "2" } else { way.exchange.reply.version };
        add(message, "via", &format!("{version} oncegate"));
    }),
    difference("`Date` comes where the service said none.", |message, _| {
        message.lines.entry("date".to_owned()).or_insert_with(|| vec!["*".to_owned()]);
    }),
    difference("It has the version that the caller speaks, and HTTP/2 has no reason phrase.", |message, way| {
        message.version = if way.lane.caller == Protocol::Http2 { "2" } else { way.exchange.version };
        let status = way.exchange.reply.status.to_string();
        match (way.lane.caller, way.lane.service) {
            (Protocol::Http2, _) => message.start = status,
            (Protocol::Http1, Protocol::Http2) => message.start = with_usual_reason(way),
            (Protocol::Http1, Protocol::Http1) => {}
        }
    }),
    difference("A guarded answer has the usual reason phrase of its status, or none.", |message, way| {
        if way.lane.guarded && way.lane.caller == Protocol::Http1 {
            message.start = with_usual_reason(way);
        }
    }),
    difference(
        "A body without a length is in chunks, to HTTP/1.0 up to the end of the connection; a guarded one has its length, \
         unless trailers follow it.",
        |message, way| {
            let is_open = matches!(message.framing, Framing::Open | Framing::UntilClose);
            if is_open && way.exchange.reply.can_have_body {
                let has_trailers = way.exchange.reply.trailers.iter().any(|(name, _)| name != "Server-Timing");
                message.framing = match (way.lane.caller, way.exchange.version) {
                    _ if way.lane.guarded && !has_trailers => Framing::Length(message.body.len() as u64),
                    (Protocol::Http1, "1.0") => Framing::UntilClose,
                    _ => Framing::Open,
                };
            }
        },
    ),
    difference(
        "An answer without a body says no `Transfer-Encoding`, and a 304 no `Content-Length`.",
        |message, way| {
            let is_unchanged =
                way.lane.caller == Protocol::Http1 && way.exchange.reply.status == 304 && way.exchange.method != "HEAD";
            if !way.exchange.reply.can_have_body && (message.framing == Framing::Open || is_unchanged) {
                message.framing = Framing::None;
            }
        },
    ),
    difference(
        "Of the trailers of a guarded answer, those come that a receipt keeps: no `Server-Timing` and the like.",
        |message, way| {
            if way.lane.guarded {
                message.trailers.remove("server-timing");
            }
        },
    ),
    difference(
        "Trailers are for callers of HTTP/2, and for those of HTTP/1.1 who say `TE: trailers`: if a `Trailer` line names \
         them, or the answer is a guarded one.",
        |message, way| {
            let takes = way.exchange.wants_trailers() && way.exchange.version == "1.1";
            let announced = way.lane.guarded || message.lines.contains_key("trailer");
            if way.lane.caller == Protocol::Http1 && !(takes && announced) {
                message.trailers.clear();
            }
        },
    ),
    difference(
        "`Trailer` is dropped where none can follow, and says what follows a guarded answer.",
        |message, way| {
            let is_old = way.lane.caller == Protocol::Http1 && way.exchange.version == "1.0";
            if !way.exchange.reply.can_have_body || is_old || way.lane.guarded {
                message.lines.remove("trailer");
            }
            if way.lane.guarded && !is_old {
                let kept = way.exchange.reply.trailers.iter().map(|(name, _)| name.to_lowercase());
                let kept: Vec<_> = kept.filter(|name| name != "server-timing").collect();
                if !kept.is_empty() {
                    set(message, "trailer", &kept.join(","));
                }
            }
        },
    ),
    difference(
        "Informational answers (102, 103 and the like) are passed on where nothing is guarded, to callers of HTTP/1.1.",
        |message, way| {
            if way.lane.guarded || way.lane.caller == Protocol::Http2 || way.exchange.version == "1.0" {
                message.interim.clear();
            }
        },
    ),
];

/// In an answer that is made again from a receipt, beside those.
pub const IN_REPLAYS: &[Difference] = &[
    difference("`Idempotent-Replayed: true` comes.", |message, _| set(message, "idempotent-replayed", "true")),
    difference(
        "What was for one client or one moment is gone: `Set-Cookie`, authentication challenges, `Clear-Site-Data`, `Age`, \
         `Alt-Svc`, `Retry-After`, rate limits, `Server-Timing`.",
        |message, _| {
            for name in ["set-cookie", "www-authenticate", "age", "alt-svc", "server-timing"] {
                message.lines.remove(name);
            }
        },
    ),
    difference("`Date` and `Via` are the gateway's own.", |message, _| {
        set(message, "date", "*");
        set(message, "via", "1.1 oncegate");
    }),
];

/// What is another one each time, or says nothing of the exchange.
pub fn steady(message: &mut Message) {
    message.lines.remove("connection");
    if let Some(named) = message.lines.remove("trailer") {
        let names: BTreeSet<_> =
            named.iter().flat_map(|line| line.split(',')).map(|name| name.trim().to_lowercase()).collect();
        message.lines.insert("trailer".to_owned(), names.into_iter().collect());
    }
    for name in
        ["x-request-timeout-ms", "oncegate-operation", "oncegate-key-source", "idempotency-key", "oncegate-execution"]
    {
        if message.lines.contains_key(name) {
            set(message, name, "*");
        }
    }
    if message.lines.get("date").is_some_and(|date| !date[0].contains("1994"))
        && message.start.starts_with(char::is_numeric)
    {
        set(message, "date", "*");
    }
    for via in message.lines.get_mut("via").into_iter().flatten() {
        if let Some(name) = via.find("oncegate-") {
            via.replace_range(name.., "oncegate-*");
        }
    }
}

fn with_usual_reason(way: &Way<'_>) -> String {
    let status = StatusCode::from_u16(way.exchange.reply.status).unwrap();
    format!("{} {}", status.as_str(), status.canonical_reason().unwrap_or_default())
}

fn set(message: &mut Message, name: &str, value: &str) {
    message.lines.insert(name.to_owned(), vec![value.to_owned()]);
}

fn add(message: &mut Message, name: &str, value: &str) {
    message.lines.entry(name.to_owned()).or_default().push(value.to_owned());
}

fn drop_hop_by_hop(lines: &mut Lines) {
    let named = lines.get("connection").cloned().unwrap_or_default();
    let named: Vec<_> =
        named.iter().flat_map(|line| line.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect();
    lines.retain(|name, _| {
        let fixed = [
            "connection",
            "keep-alive",
            "proxy-connection",
            "proxy-authorization",
            "proxy-authenticate",
            "te",
            "upgrade",
        ];
        !fixed.contains(&name.as_str()) && !named.contains(name)
    });
}

fn drop_ours(lines: &mut Lines) {
    lines.retain(|name, _| !name.starts_with("oncegate-") && name != "idempotent-replayed");
}
