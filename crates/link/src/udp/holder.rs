//! Which process holds a UDP port.
//!
//! The kernel shows the sockets of a network namespace, with their addresses and their users, to
//! everyone in it (`/proc/net/udp`, `udp4_format_sock`).

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A socket on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The address it is bound to; unspecified for all.
    pub ip: IpAddr,
    /// Its user, as we see it: the one that created it, or got it by `fchown`. Users that our user
    /// namespace does not know all show as the overflow user (65534).
    pub uid: u32,
}

/// The sockets on `port` in the network namespace of the calling thread.
pub fn holders(port: u16) -> io::Result<Vec<Holder>> {
    let mut found = Vec::new();
    for family in ["udp", "udp6"] {
        match table(family) {
            Ok(table) => found.extend(table.lines().filter_map(|line| holder(line, port))),
            // A host without the family.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The kernel's table of a family.
///
/// For each read the kernel finds its place again by counting sockets from the first, so a socket
/// that closes between two reads hides another. A read with room for a page of lines (31) gets them
/// in one walk; with an empty `String`, the first reads are of 32 bytes.
fn table(family: &str) -> io::Result<String> {
    let mut text = String::with_capacity(1 << 16);
    File::open(format!("/proc/thread-self/net/{family}"))?.read_to_string(&mut text)?;
    Ok(text)
}

/// Whether packets to `ip` may have been received by a socket of user `uid`. As the kernel does,
/// sockets that are bound to exactly that address come first, then those bound to every address of
/// its family, then those of IPv6 that take IPv4 as well.
pub fn may_receive(holders: &[Holder], uid: u32, ip: IpAddr) -> bool {
    let wildcards = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let wildcards = &wildcards[usize::from(ip.is_ipv6())..];
    let bound_to = |ip: IpAddr| holders.iter().filter(move |holder| holder.ip == ip);
    let first = std::iter::once(ip)
        .chain(wildcards.iter().copied())
        .find(|ip| bound_to(*ip).next().is_some());
    first.is_some_and(|ip| bound_to(ip).any(|holder| holder.uid == uid))
}

/// The socket that a line describes, if it is on `port`:
/// `sl local rem st tx:rx tr:when retrnsmt uid ...`.
fn holder(line: &str, wanted: u16) -> Option<Holder> {
    let mut fields = line.split_ascii_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != wanted {
        return None;
    }
    let uid = fields.nth(5)?.parse().ok()?;
    Some(Holder { ip: address(ip)?, uid })
}

/// An address in hexadecimal words of 32 bits, each in this machine's byte order, of bytes in
/// network order.
fn address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match text.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?);
            }
            Some(IpAddr::from(bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_socket_is_found_with_our_user() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let Ok(socket) = std::net::UdpSocket::bind(address) else { continue };
            let bound = socket.local_addr().expect("bound");
            let uid = rustix::process::geteuid().as_raw();
            let found = holders(bound.port()).expect("/proc is mounted");
            assert!(found.contains(&Holder { ip: bound.ip(), uid }), "{found:?}");
        }
    }

    #[test]
    fn lines_that_describe_no_socket_are_skipped() {
        let head = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout";
        assert_eq!(holder(head, 4791), None);
        assert_eq!(holder("", 4791), None);
        assert_eq!(holder("1: 0000:12B7 0 07 0 0 0 7", 4791), None);
        let line =
            "9: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000 0 9 2";
        let ip = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        assert_eq!(holder(line, 4791), Some(Holder { ip, uid: 1000 }));
        assert_eq!(holder(line, 4790), None);
    }

    #[test]
    fn the_closest_binding_receives() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let holder = |text: &str, uid| Holder { ip: ip(text), uid };
        let (v4, v6) = (ip("10.0.0.1"), ip("fd00::1"));

        let all = [holder("0.0.0.0", 1), holder("::", 2)];
        assert!(may_receive(&all, 1, v4) && !may_receive(&all, 2, v4));
        assert!(may_receive(&all, 2, v6) && !may_receive(&all, 1, v6));

        let one = [holder("10.0.0.1", 3), holder("0.0.0.0", 1), holder("127.0.0.1", 4)];
        assert!(may_receive(&one, 3, v4) && !may_receive(&one, 1, v4) && !may_receive(&one, 4, v4));

        // An IPv6 socket takes IPv4 as well, unless it is IPv6-only.
        let dual = [holder("::", 2)];
        assert!(may_receive(&dual, 2, v4) && !may_receive(&dual, 1, v4));
        assert!(!may_receive(&[], 0, v4));
    }
}
