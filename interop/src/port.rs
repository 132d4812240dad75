//! TCP ports for the side channel of the programs, each leased to one test.

use std::net::{Ipv6Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below Linux's default range of ephemeral ports (32768), so no client socket takes one by
/// accident.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// A TCP port without a listener, leased until it is dropped.
///
/// The lease is an abstract Unix socket: it ends with the process, so a test that dies leaves
/// nothing behind.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lease: UnixListener,
}

impl Port {
    /// Leases a free port.
    ///
    /// # Panics
    ///
    /// If ten thousand ports are all taken.
    pub fn lease() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        // Different processes start at different ports, to collide less often.
        let start = (std::process::id() as u16).wrapping_mul(97);
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let number = FIRST + start.wrapping_add(step) % COUNT;
            let name = SocketAddr::from_abstract_name(format!("peerdma-interop-port-{number}"))
                .expect("a short name");
            let Ok(lease) = UnixListener::bind_addr(&name) else { continue };
            // Dual-stack: a port in use by either family is refused.
            if TcpListener::bind((Ipv6Addr::UNSPECIFIED, number)).is_ok() {
                return Self { number, _lease: lease };
            }
        }
        panic!("no free TCP port between {FIRST} and {}", FIRST + COUNT);
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.number
    }
}
