//! Socket addresses in the room that `rdma_cm` has for them.

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{sa_family_t, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// An address in room for any address. What it does not use is 0, so equal addresses are equal
/// bytes.
pub fn to_c(addr: SocketAddr) -> sockaddr_storage {
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut room: sockaddr_storage = unsafe { mem::zeroed() };
    let place = &raw mut room;
    match addr {
        SocketAddr::V4(addr) => {
            // SAFETY: as above.
            let mut v4: sockaddr_in = unsafe { mem::zeroed() };
            v4.sin_family = libc::AF_INET as sa_family_t;
            v4.sin_port = addr.port().to_be();
            v4.sin_addr.s_addr = u32::from(*addr.ip()).to_be();
            // SAFETY: the room is for every address, and aligned for all.
            unsafe { place.cast::<sockaddr_in>().write(v4) };
        }
        SocketAddr::V6(addr) => {
            // SAFETY: as above.
            let mut v6: sockaddr_in6 = unsafe { mem::zeroed() };
            v6.sin6_family = libc::AF_INET6 as sa_family_t;
            v6.sin6_port = addr.port().to_be();
            v6.sin6_addr.s6_addr = addr.ip().octets();
            v6.sin6_scope_id = addr.scope_id();
            // SAFETY: as above.
            unsafe { place.cast::<sockaddr_in6>().write(v6) };
        }
    }
    room
}

/// The address in such room; `None` if it is neither of IPv4 nor of IPv6.
pub fn from_c(room: &sockaddr_storage) -> Option<SocketAddr> {
    let place = &raw const *room;
    match i32::from(room.ss_family) {
        libc::AF_INET => {
            // SAFETY: the room is larger, and aligned for all; every value of the fields is one.
            let v4 = unsafe { place.cast::<sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { place.cast::<sockaddr_in6>().read() };
            let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
            Some(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        let link_local = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 3);
        for addr in ["192.0.2.7:4791".parse().unwrap(), link_local.into()] {
            assert_eq!(from_c(&to_c(addr)), Some(addr));
        }
    }

    #[test]
    fn another_family_is_no_address() {
        let mut room = to_c("[::1]:1".parse().unwrap());
        room.ss_family = libc::AF_UNIX as sa_family_t;
        assert_eq!(from_c(&room), None);
    }
}
