//! The contract as clients, services and operators meet it: the real program between real sockets. A test is named after
//! its row in the project's list of acceptance cases (`c...` for semantics, `s...` for security), or after what it says.

/// Runs stories over every store, or over those named: `on! { [file redis] story ... }`.
macro_rules! on {
    ([$($store:ident)+] $story:ident $($rest:tt)*) => {
        mod $story {
            $(
                #[test]
                fn $store() {
                    super::$story(crate::support::ground::Ground::$store());
                }
            )+
        }
        on! { [$($store)+] $($rest)* }
    };
    ([$($store:ident)+]) => {};
}

mod alerts;
mod bounds;
mod callers;
mod crashes;
mod damage;
mod dead_letters;
mod door;
mod egress;
mod encryption;
mod failures;
mod grpc;
mod hostile;
mod http2;
mod interim;
mod joining;
mod keys;
mod large;
mod later;
mod limits;
mod log;
mod lookups;
mod lost_memory;
mod names;
mod pauses;
mod probes;
mod receipts;
mod store_away;
mod streams;
mod tls;
mod upgrades;
mod wire;
