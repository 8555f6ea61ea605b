//! Everything that listens: the agents' door, the operators' API, the health port.
//!
//! Owns connections and HTTP; decides nothing about operations.

pub mod admin;
pub mod answers;
pub mod bare;
pub mod body;
pub mod caller;
mod document;
pub mod door;
pub mod filter;
pub mod framing;
pub mod handshake;
pub mod health;
mod http2;
mod interim;
pub mod listener;
pub mod lookup;
pub mod pages;
pub mod passing;
mod pauses;
mod presence;
pub mod proxy;
pub mod request_body;
pub mod respond;
#[cfg(test)]
mod test_store;
pub mod tunnel;
pub mod view;
pub mod wire;
