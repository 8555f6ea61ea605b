//! From a host to addresses, without the ones that a name must never lead to.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::ConnectError;

/// Metadata services of clouds that lie outside the link-local ranges.
const METADATA_V4: [Ipv4Addr; 1] = [Ipv4Addr::new(100, 100, 100, 200)];
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// The addresses behind `host`, in the resolver's order and never empty. Asked anew for every connection, so that a
/// name cannot pass the check and then change.
///
/// A literal address is taken as it is: it was written into the file by somebody who may.
pub(super) async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    if let Ok(literal) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(literal, port)]);
    }
    let unresolved = |source| ConnectError::Name { host: host.to_owned(), source };
    let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await.map_err(unresolved)?.collect();
    if addresses.is_empty() {
        return Err(unresolved(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
    }
    match addresses.iter().find(|address| is_denied(address.ip())) {
        Some(address) => Err(ConnectError::Denied { host: host.to_owned(), address: address.ip() }),
        None => Ok(addresses),
    }
}

/// Link-local or a cloud's metadata service, also when written as an IPv4-mapped IPv6 address.
fn is_denied(address: IpAddr) -> bool {
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

    #[tokio::test]
    async fn a_literal_is_consent_and_a_name_for_the_same_address_is_not() {
        assert_eq!(resolve("169.254.169.254", 80).await.unwrap(), ["169.254.169.254:80".parse().unwrap()]);
        assert_eq!(resolve("fe80::1", 80).await.unwrap(), ["[fe80::1]:80".parse().unwrap()]);
        // Not an address in URL syntax, but every resolver knows this spelling of 169.254.169.254.
        let denied = resolve("0xa9fea9fe", 80).await.unwrap_err();
        assert!(matches!(denied, ConnectError::Denied { address, .. } if address.to_string() == "169.254.169.254"));
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_a_name_error() {
        let missing = resolve("does-not-exist.invalid", 80).await.unwrap_err();
        assert!(matches!(missing, ConnectError::Name { host, .. } if host == "does-not-exist.invalid"));
    }
}
