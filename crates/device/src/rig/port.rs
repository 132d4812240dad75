//! UDP ports for the NICs of tests, including those of other crates.

use std::net::{Ipv4Addr, UdpSocket};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Below those that Linux assigns by itself (32768 and up), so that no program gets one by
/// accident.
const PORTS: Range<u16> = 10_000..20_000;

/// A UDP port that no other NIC of a test has while this process lives. Two NICs with the same port
/// would get each other's packets.
///
/// The lease is an abstract Unix socket, which ends with the process.
pub(super) fn lease() -> u16 {
    // Different processes begin at different ports, to collide less often.
    let start = std::process::id() as usize * 97 % PORTS.len();
    let mut ports = PORTS.cycle().skip(start).take(PORTS.len());
    ports.find(|port| is_leased(*port)).expect("one of ten thousand is free")
}

/// Leases a port, if it is free.
fn is_leased(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("peerdma-test-udp-{port}"));
    let Ok(lease) = UnixListener::bind_addr(&name.expect("a short name")) else { return false };
    let is_free = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
    if is_free {
        std::mem::forget(lease);
    }
    is_free
}
