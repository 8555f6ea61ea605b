//! oncegate: an idempotent tool gateway.
//!
//! Modules are declared in layer order; imports go downward only (`tests/architecture.rs`). `ARCHITECTURE.md` is the map.

pub mod clock;
pub mod entropy;

pub mod operation;

pub mod retry;

pub mod config;
pub mod store;
pub mod upstream;

pub mod engine;

pub mod server;
pub mod worker;

pub mod telemetry;

pub mod app;
pub mod command;
