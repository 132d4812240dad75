//! Whole Ethernet frames to and from a netdev: packet sockets.
//!
//! ```text
//!   Sender::send(frame) ----> netdev ----> wire, or the other end of a veth pair
//!                               |  what goes out is shown as well: the loopback of a NIC's embedded switch
//!   Listener::receive()  <---------+------- wire
//! ```
//!
//! The kernel opens such a socket for processes with CAP_NET_RAW over the network namespace, as its
//! RDMA core lets the same processes create raw packet QPs. A listener gets a *copy* of each frame:
//! the kernel's own stack also gets it.
//!
//! Frames are bytes here. A VLAN tag that the kernel removed from a frame is put back.

mod sys;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use descriptors::{Inherited, Known};

/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// Bytes before a VLAN tag: two addresses.
const ADDRESSES: usize = 12;
/// The longest header before the IP packet: Ethernet's, with a tag.
const HEADER: usize = 14 + TAG;
/// Bytes of receive buffer to ask for.
const BUFFER: usize = 8 << 20;

/// Which netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Port {
    /// Its index.
    pub ifindex: u32,
    /// Whether it is the loopback device, where every outgoing frame comes in again.
    pub is_loopback: bool,
    /// Bytes of its largest IP packet.
    pub mtu: u32,
}

/// Why there is no packet socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The process lacks the permission.
    #[error("a packet socket needs CAP_NET_RAW over the network namespace: {0}{hint}", hint = sandbox::HINT)]
    NotPermitted(io::Error),
    /// Anything else.
    #[error("no packet socket: {0}{hint}", hint = sandbox::hint(.0.raw_os_error()))]
    Io(io::Error),
}

/// Why a frame was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The socket has no room now.
    #[error("the socket has no room")]
    WouldBlock,
    /// The netdev did not accept the frame, as it is too long or the link is down: it is lost.
    #[error("the frame is lost: {0}")]
    Lost(io::Error),
}

/// How a frame passed the netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the device handles each")]
pub enum Passed {
    /// In, to an address that the netdev listens to.
    In,
    /// In, to another host's address: a netdev that is not promiscuous would have dropped it.
    Astray,
    /// Out.
    Out,
}

/// A frame that passed the netdev.
#[derive(Debug)]
#[non_exhaustive]
pub struct Frame<'a> {
    /// Which way.
    pub passed: Passed,
    /// From the destination address on, without the check sequence. The buffer is the receiver's
    /// until the next call.
    pub bytes: &'a mut [u8],
    /// Whether its sender, on this host, left the checksum of TCP or UDP to the netdev, and it has
    /// not been written yet.
    pub is_unfinished: bool,
}

/// Sends frames.
#[derive(Debug)]
pub struct Sender {
    socket: Known,
}

/// Receives copies of frames.
#[derive(Debug)]
pub struct Listener {
    socket: Known,
    buffer: Vec<u8>,
    last: Option<Last>,
    /// Whether to return it again.
    is_kept: bool,
    too_long: u64,
}

/// The frame received last, in the buffer.
#[derive(Debug)]
struct Last {
    start: usize,
    end: usize,
    passed: Passed,
    is_unfinished: bool,
}

impl Sender {
    /// A socket that sends by `port` and receives nothing.
    pub fn open(port: Port) -> Result<Self, OpenError> {
        let socket = Known::new(sys::socket()?);
        sys::bind(socket.as_fd(), port.ifindex, 0).map_err(OpenError::Io)?;
        Ok(Self { socket })
    }

    /// Sends a frame, which begins with its destination address.
    pub fn send(&self, frame: &[u8]) -> Result<(), SendError> {
        loop {
            let error =
                match rustix::net::send(&self.socket, frame, rustix::net::SendFlags::DONTWAIT) {
                    Ok(_) => return Ok(()),
                    Err(error) => error,
                };
            return match error {
                rustix::io::Errno::INTR => continue,
                rustix::io::Errno::AGAIN => Err(SendError::WouldBlock),
                error => Err(SendError::Lost(error.into())),
            };
        }
    }

    /// For the child after a fork: closes the socket and touches nothing else.
    pub fn abandon_in_child(self) {
        crate::fork::abandon(self);
    }

    pub(crate) fn inherited(&self, out: &mut Vec<Inherited>) {
        out.push(self.socket.inherited());
    }
}

impl Listener {
    /// A socket that receives all frames of `port` from now on.
    pub fn open(port: Port) -> Result<Self, OpenError> {
        let socket = Known::new(sys::socket()?);
        sys::prepare(socket.as_fd(), port.is_loopback, BUFFER).map_err(OpenError::Io)?;
        sys::bind(socket.as_fd(), port.ifindex, sys::EVERY_PROTOCOL).map_err(OpenError::Io)?;
        let room = TAG + HEADER + port.mtu as usize;
        Ok(Self { socket, buffer: vec![0; room], last: None, is_kept: false, too_long: 0 })
    }

    /// The next frame, if there is one. Frames longer than the port's MTU allows (the kernel joins
    /// and splits such frames within a host) are skipped, and counted.
    pub fn receive(&mut self) -> io::Result<Option<Frame<'_>>> {
        if !std::mem::take(&mut self.is_kept) {
            self.last = None;
            while self.last.is_none() {
                let Some(got) = sys::receive(self.socket.as_fd(), &mut self.buffer[TAG..])? else {
                    return Ok(None);
                };
                if got.length > self.buffer.len() - TAG {
                    self.too_long += 1;
                    continue;
                }
                let end = TAG + got.length;
                let start = match got.tag {
                    Some(tag) if got.length >= ADDRESSES => {
                        put_tag_back(&mut self.buffer[..end], tag);
                        0
                    }
                    _ => TAG,
                };
                let (passed, is_unfinished) = (got.passed, got.is_unfinished);
                self.last = Some(Last { start, end, passed, is_unfinished });
            }
        }
        let Self { buffer, last, .. } = self;
        Ok(last.as_ref().map(|&Last { start, end, passed, is_unfinished }| Frame {
            passed,
            bytes: &mut buffer[start..end],
            is_unfinished,
        }))
    }

    /// Makes [`Listener::receive`] return its last frame once more.
    pub fn keep(&mut self) {
        self.is_kept = self.last.is_some();
    }

    /// How many frames were skipped as too long.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// For the child after a fork: closes the socket and touches nothing else.
    pub fn abandon_in_child(self) {
        crate::fork::abandon(self);
    }

    pub(crate) fn inherited(&self, out: &mut Vec<Inherited>) {
        out.push(self.socket.inherited());
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Moves the addresses to the front, and puts a tag (its type and its contents) between them and
/// the rest.
fn put_tag_back(buffer: &mut [u8], (kind, tci): (u16, u16)) {
    buffer.copy_within(TAG..TAG + ADDRESSES, 0);
    buffer[ADDRESSES..ADDRESSES + 2].copy_from_slice(&kind.to_be_bytes());
    buffer[ADDRESSES + 2..ADDRESSES + 4].copy_from_slice(&tci.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_stands_between_the_addresses_and_the_type() {
        let mut buffer = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0, 9];
        put_tag_back(&mut buffer, (0x8100, 0xac0c));
        assert_eq!(buffer, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x81, 0, 0xac, 0x0c, 8, 0, 9]);
    }
}
