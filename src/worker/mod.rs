//! What goes on without a caller: lost owners, retention, a look at the store's space.

pub mod rules;
pub mod space;
pub mod sweep;
