//! oncegate: an idempotent tool gateway.
//!
//! Modules are declared in layer order; imports go downward only (`tests/architecture.rs`). `ARCHITECTURE.md` is the map.

#[cfg(all(feature = "crash-points", not(debug_assertions)))]
compile_error!("the feature `crash-points` is for tests: a release has no places at which it can be told to die");

pub mod clock;
pub mod crash_point;
pub mod credential;
pub mod entropy;
pub mod idleness;
pub mod protocol;
pub mod redis_url;
pub mod tls;

pub mod operation;

pub mod retry;
pub mod sealing_key;

pub mod config;
pub mod store;
pub mod upstream;

pub mod engine;

pub mod server;
pub mod worker;

pub mod telemetry;

pub mod app;
pub mod command;
