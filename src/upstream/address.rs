//! Addresses, and the ones that a name must never lead to.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

/// Metadata services of clouds that lie outside the link-local ranges.
const METADATA_V4: [Ipv4Addr; 1] = [Ipv4Addr::new(100, 100, 100, 200)];
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// One address behind a name. Whoever holds a connection to it sees whether the name still leads there.
#[derive(Debug)]
pub(super) struct Address {
    pub(super) socket: SocketAddr,
    gone: AtomicBool,
}

impl Address {
    pub(super) fn new(socket: SocketAddr) -> Self {
        Self { socket, gone: AtomicBool::new(false) }
    }

    /// The name leads elsewhere now.
    pub(super) fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

/// Tells the addresses behind a name, the best one first.
#[async_trait]
pub(super) trait Resolver: Send + Sync {
    /// # Errors
    /// The name has no address, or nobody could say.
    async fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The operating system's: it goes by the same files, services and search domains as every program on the machine.
pub(super) struct System;

#[async_trait]
impl Resolver for System {
    async fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
        match addresses.as_slice() {
            [] => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
            [..] => Ok(addresses),
        }
    }
}

/// Link-local or a cloud's metadata service, also when written as an IPv4-mapped IPv6 address.
pub(super) fn is_denied(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local() || METADATA_V4.contains(&v4),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || METADATA_V6.contains(&v6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_and_metadata_addresses_are_denied() {
        for denied in ["169.254.169.254", "169.254.0.1", "::ffff:169.254.169.254", "fe80::1", "febf::1"] {
            assert!(is_denied(denied.parse().unwrap()), "{denied}");
        }
        for denied in ["fd00:ec2::254", "fd20:ce::254", "100.100.100.200"] {
            assert!(is_denied(denied.parse().unwrap()), "{denied}");
        }
        for allowed in ["127.0.0.1", "10.0.0.1", "192.168.1.1", "8.8.8.8", "::1", "fd00::1", "169.253.1.1"] {
            assert!(!is_denied(allowed.parse().unwrap()), "{allowed}");
        }
    }
}
