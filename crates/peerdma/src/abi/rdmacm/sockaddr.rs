//! Socket addresses, from C and to C.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

pub(in crate::abi) use crate::abi::types::sockaddr::to_c as write;

use super::{Answer, Failure};

/// Addresses of InfiniBand.
const AF_IB: sa_family_t = 27;

/// Reads an address of a program.
///
/// # Errors
/// EINVAL for NULL and for a family that is not IPv4 or IPv6, as librdmacm answers.
///
/// # Safety
///
/// `addr` is NULL or points to an address as long as its family says.
pub(in crate::abi) unsafe fn read(call: &str, addr: *const sockaddr) -> Answer<SocketAddr> {
    if addr.is_null() {
        return Err(Failure::new(libc::EINVAL, format!("{call}: no address")));
    }
    // SAFETY: the caller's promise; every address begins with its family.
    let family = unsafe { addr.cast::<sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the caller's promise, for this family.
            let v4 = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: the caller's promise, for this family.
            let v6 = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into())
        }
        _ if family == AF_IB => {
            let what =
                "AF_IB: RoCE has no subnet whose addresses these would be; use AF_INET or AF_INET6";
            Err(Failure::new(libc::EINVAL, format!("{call}: {what}")))
        }
        other => Err(Failure::new(libc::EINVAL, format!("{call}: address family {other}"))),
    }
}

/// The port in an address that [`write`] made, in network order; 0 if there is none.
pub(super) fn port_be(room: &sockaddr_storage) -> u16 {
    match i32::from(room.ss_family) {
        // The port stands in the same place in both families.
        libc::AF_INET | libc::AF_INET6 => {
            // SAFETY: the room is as large as any address.
            unsafe { (&raw const *room).cast::<sockaddr_in>().read() }.sin_port
        }
        _ => 0,
    }
}

/// The wildcard of a family.
pub(super) const fn wildcard(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_both_ways() {
        for text in ["10.1.2.3:7471", "[fd00::1]:1", "[fe80::2%7]:65535"] {
            let addr: SocketAddr = text.parse().unwrap();
            let room = write(addr);
            // SAFETY: it was written just now.
            assert_eq!(unsafe { read("test", (&raw const room).cast()) }, Ok(addr));
            assert_eq!(u16::from_be(port_be(&room)), addr.port());
        }
    }

    #[test]
    fn infiniband_and_nothing_are_refused() {
        // SAFETY: NULL is allowed.
        let nothing = unsafe { read("test", std::ptr::null()) };
        assert_eq!(nothing.map_err(Failure::errno), Err(libc::EINVAL));
        let mut room = write("10.1.2.3:1".parse().unwrap());
        for family in [AF_IB, libc::AF_UNIX as sa_family_t] {
            room.ss_family = family;
            // SAFETY: the room is as large as any address.
            let refused = unsafe { read("test", (&raw const room).cast()) };
            assert_eq!(refused.map_err(Failure::errno), Err(libc::EINVAL));
        }
        assert_eq!(port_be(&room), 0);
    }
}
