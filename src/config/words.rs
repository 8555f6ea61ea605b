//! The fixed words of the file, each beside the value that it names.

use crate::operation::admission::Repeat;
use crate::protocol::Protocol;
use crate::retry::dialect::Dialect;

use super::presets::PresetName;
use super::rules::{
    ClientKey, Compare, Effect, Forward, InFlight, KeyFormat, KeyMode, OnChangedPayload, OnLargeBody, OnStoreDown,
};
use super::units::Accepts;
use super::{AlertFormat, Durability, GroupBy, LogFormat};

/// A value that the file names by one of a few words.
pub(super) trait Word: Copy + 'static {
    const ALL: &'static [Self];

    fn word(self) -> &'static str;
}

/// Reads a word; the error lists all of them.
pub(super) fn word<T: Word>(text: &str) -> Result<T, Accepts> {
    let known = T::ALL.iter().copied().find(|value| value.word() == text);
    known.ok_or_else(|| one_of(T::ALL.iter().map(|value| value.word())))
}

/// `"a", "b" or "c"`.
pub(super) fn one_of<'w>(words: impl Iterator<Item = &'w str>) -> Accepts {
    let mut quoted: Vec<String> = words.map(|word| format!("{word:?}")).collect();
    match quoted.pop() {
        Some(last) if !quoted.is_empty() => format!("{} or {last}", quoted.join(", ")).into(),
        Some(last) => last.into(),
        None => Accepts::default(),
    }
}

macro_rules! words {
    ($type:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl Word for $type {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }
    };
}

words!(Repeat { Unsafe = "unsafe", WithKey = "with-key", Harmless = "harmless" });
words!(Effect { Read = "read", Write = "write" });
words!(OnLargeBody { Reject = "reject", PassUnguarded = "pass-unguarded" });
words!(InFlight { Wait = "wait", Reject = "reject" });
words!(OnStoreDown { Reject = "reject", Pass = "pass" });
words!(KeyMode { Stamp = "stamp", Required = "required", Off = "off" });
words!(ClientKey { Trust = "trust", PreferDerived = "prefer-derived", Ignore = "ignore" });
words!(Forward { Verbatim = "verbatim", Made = "made" });
words!(KeyFormat { Hex = "hex", Base64Url = "base64url", Uuid = "uuid" });
words!(Compare { Auto = "auto", Json = "json", Form = "form", Multipart = "multipart", Bytes = "bytes" });
words!(Durability { Fsync = "fsync", Os = "os", Single = "single", Replicas = "replicas" });
words!(Protocol { Auto = "auto", Http1 = "http1", Http2 = "h2" });
words!(AlertFormat { Json = "json", Slack = "slack", Log = "log" });
words!(GroupBy { Upstream = "upstream", Route = "route", Reason = "reason", State = "state" });
words!(LogFormat { Auto = "auto", Pretty = "pretty", Json = "json" });

words!(Dialect {
    Generic = "generic",
    OpenAi = "openai",
    Anthropic = "anthropic",
    GitHub = "github",
    Google = "google",
    Stripe = "stripe",
});
words!(PresetName {
    Stripe = "stripe",
    OpenAi = "openai",
    Anthropic = "anthropic",
    GitHub = "github",
    Slack = "slack",
    Envoy = "envoy",
    Nginx = "nginx",
    Alb = "alb",
    Cloudflare = "cloudflare",
});

impl Word for OnChangedPayload {
    /// `ByRepeat` is what stands where the file says nothing.
    const ALL: &'static [Self] = &[Self::Run, Self::Reject];

    fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Reject => "reject",
            Self::ByRepeat => "reject if unsafe, else run",
        }
    }
}
