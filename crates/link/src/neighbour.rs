//! Whether the next hop towards a host is known to the kernel: what a RoCE NIC asks before it
//! builds an address.
//!
//! Real NICs put the Ethernet address of the next hop into a QP, and resolving an address waits
//! until ARP or neighbour discovery found it (`dst_fetch_ha` of `drivers/infiniband/core/addr.c`).
//! Datagrams of a socket need no such address, but a program that connects to a host that is off
//! should learn it as early.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::netdev::netlink::{self, Message};

const NDMSG: usize = 12;
const IFINFOMSG: usize = 16;
const RTMSG: usize = 12;
/// `NDA_DST`: the address of a neighbour.
const NDA_DST: u16 = 1;
/// The states in which there is, or need not be, an Ethernet address (`NUD_VALID`).
const VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;

/// Whether the next hop towards `to` is known, or need not be.
///
/// # Errors
/// The kernel's error where there is no route, or no rtnetlink.
pub fn is_known(to: SocketAddr) -> io::Result<bool> {
    let route = route(to)?;
    let index = attribute(&route, RTMSG, libc::RTA_OIF).and_then(netlink::read_u32);
    let Some(index) = index else { return Ok(true) };
    // struct rtmsg: family, destination and source prefix lengths, tos, table, protocol, scope,
    // type.
    if route.byte(7) != libc::RTN_UNICAST || resolves_nothing(index)? {
        return Ok(true);
    }
    let gateway = attribute(&route, RTMSG, libc::RTA_GATEWAY).and_then(ip);
    let hop = gateway.unwrap_or(to.ip());
    let mut body = [0; NDMSG];
    body[0] = family(hop);
    let neighbours = netlink::dump(libc::RTM_GETNEIGH, &body)?;
    // struct ndmsg: family, padding to 4, index, state (16 bits).
    let is_valid = |neighbour: &Message| {
        let state = u16::from_ne_bytes([neighbour.byte(8), neighbour.byte(9)]);
        neighbour.word(4) == index
            && state & VALID != 0
            && attribute(neighbour, NDMSG, NDA_DST).and_then(ip) == Some(hop)
    };
    Ok(neighbours.iter().any(is_valid))
}

/// Makes the kernel look for the next hop, by an empty datagram to the discard port (RFC 863).
/// Whether an answer arrives does not matter.
pub fn solicit(to: SocketAddr) {
    let from: IpAddr = match to.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut discard = to;
    discard.set_port(9);
    let sent = UdpSocket::bind((from, 0)).and_then(|socket| socket.send_to(&[], discard));
    if let Err(error) = sent {
        tracing::debug!(target: "peerdma::neighbour", "{discard}: {error}");
    }
}

/// The route that the kernel would take.
fn route(to: SocketAddr) -> io::Result<Message> {
    let mut body = vec![0; RTMSG];
    body[0] = family(to.ip());
    let octets = match to.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    body[1] = (octets.len() * 8) as u8;
    attach(&mut body, libc::RTA_DST, &octets);
    if let SocketAddr::V6(to) = to
        && to.scope_id() != 0
    {
        attach(&mut body, libc::RTA_OIF, &to.scope_id().to_ne_bytes());
    }
    netlink::ask(libc::RTM_GETROUTE, &body)
}

/// Whether the netdev has no use for neighbours: a tunnel, or `lo`.
fn resolves_nothing(index: u32) -> io::Result<bool> {
    let links = netlink::dump(libc::RTM_GETLINK, &[0; IFINFOMSG])?;
    let flags = links.iter().find(|link| link.word(4) == index).map(|link| link.word(8));
    let without = libc::IFF_NOARP | libc::IFF_LOOPBACK | libc::IFF_POINTOPOINT;
    Ok(flags.is_none_or(|flags| flags.cast_signed() & without != 0))
}

fn attach(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn attribute(message: &Message, fixed: usize, kind: u16) -> Option<&[u8]> {
    message.attributes(fixed).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    crate::netdev::ip(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netdev::netns::{Netns, with_namespaces};

    #[test]
    fn this_host_needs_no_neighbour() {
        assert!(is_known("127.0.0.1:1".parse().unwrap()).unwrap());
    }

    #[test]
    fn a_hop_that_no_host_has_is_unknown() {
        with_namespaces(|[ns]: [Netns; 1]| {
            let ip = |arguments: &str| ns.ip(arguments);
            ip("link add left type veth peer name right");
            ip("addr add 192.0.2.1/24 dev left");
            ip("link set left up");
            ip("link set right up");
            let nobody: SocketAddr = "192.0.2.77:1".parse().unwrap();
            assert!(!is_known(nobody).unwrap());
            solicit(nobody);
            assert!(!is_known(nobody).unwrap());
            ip("neigh replace 192.0.2.77 lladdr 02:00:00:00:00:01 dev left");
            assert!(is_known(nobody).unwrap());
            // Behind a router it is the router that counts.
            ip("route add 198.51.100.0/24 via 192.0.2.77");
            assert!(is_known("198.51.100.5:1".parse().unwrap()).unwrap());
            let nowhere = is_known("203.0.113.1:1".parse().unwrap()).unwrap_err();
            assert_eq!(nowhere.raw_os_error(), Some(libc::ENETUNREACH));
        });
    }
}
