//! What goes on without a caller: lost owners, retention, alerts, looks at the store's space and its setup.

pub mod advice;
pub mod alerts;
pub mod certificates;
pub mod pauses;
pub mod rules;
pub mod space;
pub mod sweep;
