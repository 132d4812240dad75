//! Asks whether a socket listens at an address, without a new descriptor for each question.

use descriptors::{Inherited, Known};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, connect};

use super::socket::new_socket;

/// The socket that asks, once there is one. One that was refused can ask again.
#[derive(Debug, Default)]
pub(super) struct Probe(Option<Known>);

impl Probe {
    /// Whether a socket listens at `at`. One that has the address and refuses connections counts as
    /// none.
    pub(super) fn is_held(&mut self, at: &SocketAddrUnix) -> bool {
        // A number that the program took is left to it.
        let kept = self.0.take().filter(Known::is_ours);
        let socket = match kept.map_or_else(|| new_socket().map(Known::new), Ok) {
            Ok(socket) => socket,
            // Without a descriptor nothing is known to be free.
            Err(_) => return true,
        };
        let is_held = connect(&socket, at) != Err(Errno::CONNREFUSED);
        if !is_held {
            self.0 = Some(socket);
        }
        is_held
    }

    pub(super) fn inherited(&self) -> Option<Inherited> {
        self.0.as_ref().map(Known::inherited)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn one_socket_asks_until_it_is_answered() {
        let at = |name: &str| {
            let name = format!("peerdma-test/probe/{}/{name}", std::process::id());
            SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("short")
        };
        let listener = new_socket().expect("descriptors");
        rustix::net::bind(&listener, &at("held")).expect("free");
        rustix::net::listen(&listener, 1).expect("it is bound");
        let mut probe = Probe::default();
        assert!(!probe.is_held(&at("free")));
        let number = |probe: &Probe| probe.0.as_ref().map(AsRawFd::as_raw_fd);
        let first = number(&probe);
        assert!(first.is_some() && !probe.is_held(&at("another")));
        assert_eq!(number(&probe), first);
        assert!(probe.is_held(&at("held")));
        assert_eq!(number(&probe), None, "it belongs to the connection now");
        assert!(!probe.is_held(&at("free")));
    }
}
