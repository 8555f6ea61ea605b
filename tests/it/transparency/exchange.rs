//! What is said: a request and the answer to it, made up from a seed.

use oncegate::entropy::Entropy;
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::message::Framing;

const KEY: &str = "Idempotency-Key";

pub type Fields = Vec<(String, Vec<u8>)>;

/// A request, and what the service says to it.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub number: usize,
    pub method: &'static str,
    pub target: String,
    pub version: &'static str,
    pub lines: Fields,
    pub framing: Framing,
    pub body: Vec<u8>,
    pub trailers: Fields,
    /// The body waits for `100 Continue`.
    pub expects: bool,
    pub reply: Reply,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub version: &'static str,
    pub status: u16,
    pub reason: &'static str,
    pub interim: Vec<(u16, Fields)>,
    pub lines: Fields,
    pub framing: Framing,
    pub body: Vec<u8>,
    pub trailers: Fields,
    /// Before the body of the request was read.
    pub early: bool,
    /// By its status and the method of the request.
    pub can_have_body: bool,
}

const METHODS: [&str; 9] = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "QUERY", "M-SEARCH"];
const TARGETS: [&str; 14] = [
    "/",
    "/charges",
    "//evil.test/a",
    "/a//b///c",
    "/%7Euser/%e2%82%ac?x=%2F&&y=",
    "/a;v=1/b,c?;=&",
    "/?",
    "/a?b?c=d&e=http://x/",
    "/a%zz%",
    "/{}|^[]",
    "/'!$()*+,;=:@-._~",
    "http://HOST/absolute?x=1",
    "http://HOST",
    "http://HOST?x",
];
const STATUSES: [(u16, &str); 24] = [
    (200, "OK"),
    (201, "Created"),
    (202, "Accepted"),
    (203, "Half Trusted"),
    (204, "No Content"),
    (205, "Reset Content"),
    (206, "Partial Content"),
    (207, "Multi-Status"),
    (226, ""),
    (299, "Strange But Fine"),
    (301, "Moved Permanently"),
    (302, "Found"),
    (303, "See Other"),
    (304, "Not Modified"),
    (307, "Temporary Redirect"),
    (308, "Permanent Redirect"),
    (400, "Bad Request"),
    (404, "Nothing Here"),
    (405, "Method Not Allowed"),
    (410, "Gone"),
    (415, "Unsupported Media Type"),
    (418, "I'm a teapot"),
    (422, "Unprocessable"),
    (451, "Unavailable For Legal Reasons"),
];

impl Exchange {
    /// Another one for each number.
    pub fn of(seed: u64, number: usize) -> Self {
        let chance = Chance(Entropy::seeded(seed.wrapping_mul(1_000_003).wrapping_add(number as u64)));
        let method = METHODS[number % METHODS.len()];
        let version = if chance.one_in(12) { "1.0" } else { "1.1" };
        let (mut framing, body) = chance.body(method, version);
        if framing == Framing::Open && version == "1.0" {
            framing = Framing::Length(body.len() as u64);
        }
        let trailers = if framing == Framing::Open && chance.one_in(2) { chance.trailers() } else { Fields::new() };
        let expects = !body.is_empty() && version == "1.1" && chance.one_in(4);
        let mut lines = chance.request_lines();
        if !chance.one_in(4) {
            announce(&mut lines, &trailers);
        }
        if number.is_multiple_of(2) {
            lines.push((KEY.to_owned(), format!("exchange-{number}").into_bytes()));
        }
        if chance.one_in(2) {
            lines.push(("TE".to_owned(), b"trailers".to_vec()));
            lines.push(("Connection".to_owned(), b"TE".to_vec()));
        }
        let reply = chance.reply(method, expects);
        let target = chance.one_of(&TARGETS).to_string();
        Self { number, method, target, version, lines, framing, body, trailers, expects, reply }
    }

    /// Whether it can be told in HTTP/2 from its beginning to its end.
    pub fn fits_http2(&self) -> bool {
        self.version == "1.1" && !self.expects && !self.target.contains(['{', '|', '^'])
    }

    /// Whether it may be asked for again.
    pub fn has_key(&self) -> bool {
        self.lines.iter().any(|(name, _)| name == KEY)
    }

    pub fn is_write(&self) -> bool {
        !matches!(self.method, "GET" | "HEAD" | "OPTIONS" | "QUERY")
    }

    pub fn wants_trailers(&self) -> bool {
        self.lines.iter().any(|(name, _)| name == "TE")
    }
}

/// The lines that tell of the trailers.
fn announce(lines: &mut Fields, trailers: &Fields) {
    for (name, _) in trailers {
        lines.push(("Trailer".to_owned(), name.clone().into_bytes()));
    }
}

struct Chance(Entropy);

impl Chance {
    fn one_in(&self, times: u32) -> bool {
        self.0.with(|rng| rng.random_range(0..times) == 0)
    }

    fn one_of<'t, T>(&self, all: &'t [T]) -> &'t T {
        self.0.with(|rng| all.choose(rng).unwrap())
    }

    fn below(&self, limit: usize) -> usize {
        self.0.with(|rng| rng.random_range(0..limit))
    }

    fn bytes(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.with(|rng| rng.fill(&mut bytes[..]));
        bytes
    }

    fn body(&self, method: &str, version: &str) -> (Framing, Vec<u8>) {
        let lengths = [0, 1, 17, 300, 1000, 70_000];
        let body = self.bytes(*self.one_of(&lengths));
        let rarely = matches!(method, "GET" | "HEAD" | "OPTIONS" | "DELETE");
        match self.below(if rarely { 12 } else { 4 }) {
            0 if version == "1.1" => (Framing::Open, body),
            1 | 2 => (Framing::Length(body.len() as u64), body),
            _ => (Framing::None, Vec::new()),
        }
    }

    /// Any bytes that a value may have, of any length.
    fn value(&self) -> Vec<u8> {
        match self.below(6) {
            0 => Vec::new(),
            1 => self.bytes(12).into_iter().map(|byte| if byte < b'!' || byte == 0x7f { b'x' } else { byte }).collect(),
            2 => vec![b'l'; 4000],
            3 => b"a, b;q=0.1,\t\"c, d\"".to_vec(),
            4 => b"W/\"\xe9\xff\"".to_vec(),
            _ => b"plain".to_vec(),
        }
    }

    fn fields(&self, names: &[&str]) -> Fields {
        let count = self.below(8);
        (0..count).map(|_| (self.one_of(names).to_string(), self.value())).collect()
    }

    fn request_lines(&self) -> Fields {
        let mut fields = self.fields(&[
            "X-One",
            "x-one",
            "X-Two",
            "Accept",
            "User-Agent",
            "Cookie",
            "If-None-Match",
            "Prefer",
            "Range",
            "Referer",
            "Content-Encoding",
            "Content-Language",
            "Traceparent",
            "baggage",
            "Authorization",
            "x_under",
            "Date",
            "!#$%&'*+-.^_`|~",
        ]);
        let hops: [&[(&str, &str)]; 8] = [
            &[],
            &[("Connection", "keep-alive"), ("Keep-Alive", "timeout=5")],
            &[("Connection", "X-Hop, close"), ("X-Hop", "1"), ("x-hop", "2")],
            &[("Connection", "x-hop"), ("Connection", "close"), ("X-Hop", "")],
            &[("Proxy-Connection", "keep-alive"), ("Proxy-Authorization", "Basic eDp5")],
            &[("X-Forwarded-For", "10.0.0.1"), ("Forwarded", "for=1"), ("X-Real-IP", "10.0.0.2")],
            &[("Via", "1.0 fred, 1.1 p.example"), ("Via", "1.1 other")],
            &[("Oncegate-Attempt", "7"), ("Idempotent-Replayed", "true"), ("Max-Forwards", "3")],
        ];
        fields.extend(self.one_of(&hops).iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())));
        fields
    }

    fn trailers(&self) -> Fields {
        let mut fields = self.fields(&["X-Sum", "X-Late", "Server-Timing"]);
        fields.push(("X-Checksum".to_owned(), self.value()));
        fields
    }

    fn reply(&self, method: &str, expects: bool) -> Reply {
        let (status, reason) = *self.one_of(&STATUSES);
        let early = expects && self.one_in(3);
        let version = if self.one_in(10) { "1.0" } else { "1.1" };
        let (framing, body) = self.reply_body(method, status, version);
        let trailers = if framing == Framing::Open && method != "HEAD" && self.one_in(2) {
            self.trailers()
        } else {
            Fields::new()
        };
        let mut lines = self.reply_lines();
        if !self.one_in(4) {
            announce(&mut lines, &trailers);
        }
        let interim = if version == "1.1" && !early && self.one_in(6) { self.interim() } else { Vec::new() };
        let can_have_body = method != "HEAD" && !matches!(status, 204 | 304);
        Reply { version, status, reason, interim, lines, framing, body, trailers, early, can_have_body }
    }

    fn reply_body(&self, method: &str, status: u16, version: &str) -> (Framing, Vec<u8>) {
        let body = self.bytes(*self.one_of(&[0, 1, 300, 5000, 90_000]));
        let length = Framing::Length(body.len() as u64);
        match (method, status) {
            (_, 204) => (Framing::None, Vec::new()),
            (_, 304) | ("HEAD", _) => {
                let framing = *self.one_of(&[Framing::None, length, Framing::Open]);
                (
                    if framing == Framing::Open && (version == "1.0" || status == 304) {
                        Framing::None
                    } else {
                        framing
                    },
                    Vec::new(),
                )
            }
            (_, 205) => (Framing::Length(0), Vec::new()),
            _ if version == "1.0" => (*self.one_of(&[length, Framing::UntilClose]), body),
            _ => (*self.one_of(&[length, Framing::Open, Framing::Open, Framing::UntilClose]), body),
        }
    }

    fn reply_lines(&self) -> Fields {
        let mut fields = self.fields(&[
            "X-One",
            "X-Two",
            "x-two",
            "Set-Cookie",
            "set-cookie",
            "Content-Type",
            "Content-Encoding",
            "ETag",
            "Link",
            "Vary",
            "Location",
            "WWW-Authenticate",
            "Cache-Control",
            "Server",
            "Age",
            "Alt-Svc",
            "Server-Timing",
            "Strict-Transport-Security",
        ]);
        let hops: [&[(&str, &str)]; 6] = [
            &[],
            &[("Connection", "X-Hop"), ("X-Hop", "1")],
            &[("Keep-Alive", "timeout=5"), ("Proxy-Authenticate", "Basic")],
            &[("Upgrade", "h2c"), ("Connection", "upgrade")],
            &[("Via", "1.1 inner"), ("Date", "Sun, 06 Nov 1994 08:49:37 GMT")],
            &[("Oncegate-Execution", "unknown"), ("Idempotent-Replayed", "true"), ("Oncegate-Own", "1")],
        ];
        fields.extend(self.one_of(&hops).iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())));
        fields
    }

    fn interim(&self) -> Vec<(u16, Fields)> {
        let hints = vec![
            ("Link".to_owned(), b"</a.css>; rel=preload".to_vec()),
            ("Link".to_owned(), b"</b.js>; rel=preload".to_vec()),
            ("X-Note".to_owned(), self.value()),
        ];
        let all = [(102, Vec::new()), (103, hints), (199, Vec::new())];
        (0..=self.below(2)).map(|_| self.one_of(&all).clone()).collect()
    }
}
