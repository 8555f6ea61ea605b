//! What a story is told with: gateways, their callers, a store that fails on demand, and an upstream with a script.

pub mod gateway;
pub mod history;
pub mod setup;
pub mod store;
pub mod upstream;

use std::time::Duration;

pub use gateway::{Ask, Gateway, Told};
pub use setup::Setup;
pub use store::{Fault, Step};
pub use upstream::{Act, answers};

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A timer of the runtime fires at the next whole millisecond.
pub const TICK: Duration = ms(2);
