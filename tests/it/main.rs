//! One binary for everything that runs the gateway's parts against each other or against real servers.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "what the rig cannot do is the end of a test")]
#![expect(unreachable_pub, reason = "nobody imports from a test binary")]

mod acceptance;
mod broken_disk;
mod clocks;
mod crash_points;
mod crashes;
mod dying_redis;
#[allow(dead_code, reason = "what only the other suites need")]
mod faults;
mod file_store;
mod recorded;
mod redis_server;
mod redis_store;
mod store_contract;
#[allow(dead_code, reason = "what only the other suites need")]
mod support;
mod transparency;
