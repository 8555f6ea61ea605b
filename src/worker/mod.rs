//! What goes on without a caller: lost owners, retention.

pub mod rules;
pub mod sweep;
