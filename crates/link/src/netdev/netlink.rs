//! As much of rtnetlink as the facts of a netdev need: dumps of links, addresses and routes, and
//! their multicast groups.

use std::io;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with, sockopt,
};

/// `struct nlmsghdr` is 16 bytes: length, type, flags, sequence, port.
const HEADER: usize = 16;
/// The sequence number of our only request on a socket.
const SEQUENCE: u32 = 1;
/// The kernel dumps at most 32 KiB at a time (`netlink_dump`).
const BUFFER: usize = 64 << 10;
/// How often to repeat a dump that changed while it was read.
const RETRIES: usize = 4;

/// One message of a dump or a group: its type, and what follows `struct nlmsghdr`.
pub(crate) struct Message {
    pub(crate) kind: u16,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// The attributes after a fixed part of `fixed` bytes.
    pub(crate) fn attributes(&self, fixed: usize) -> Attributes<'_> {
        Attributes(self.body.get(fixed..).unwrap_or_default())
    }

    /// The byte at `offset` of the fixed part; 0 if the message is shorter.
    pub(crate) fn byte(&self, offset: usize) -> u8 {
        self.body.get(offset).copied().unwrap_or(0)
    }

    /// The 32-bit word at `offset` of the fixed part; 0 if the message is shorter.
    pub(crate) fn word(&self, offset: usize) -> u32 {
        self.body.get(offset..).and_then(read_u32).unwrap_or(0)
    }
}

/// The attributes of a message or of a nested attribute: type and bytes.
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        // The two highest bits of a type are flags (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
        let length = usize::from(read_u16(self.0)?);
        let kind = read_u16(self.0.get(2..)?)? & 0x3fff;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// The first four bytes in host order, as netlink writes numbers.
pub(crate) fn read_u32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn read_u16(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?))
}

/// Asks for every object of `request` (`RTM_GETLINK`, `RTM_GETADDR`, `RTM_GETROUTE`); `body` is the
/// request's fixed part.
pub(crate) fn dump(request: u16, body: &[u8]) -> io::Result<Vec<Message>> {
    let mut result = Err(io::ErrorKind::Interrupted.into());
    for _ in 0..RETRIES {
        result = exchange(request, libc::NLM_F_DUMP, body);
        match &result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    result
}

/// Asks for one object, such as the route to an address; `body` is the whole request, attributes
/// included.
pub(crate) fn ask(request: u16, body: &[u8]) -> io::Result<Message> {
    let found = exchange(request, 0, body)?;
    found.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A nonblocking socket that receives the changes of `groups` (a mask of `RTMGRP_*`).
pub(crate) fn listen(groups: u32) -> io::Result<OwnedFd> {
    let fd = open(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

/// Reads what waits on a socket of [`listen`], discards it, and returns whether there was anything.
pub(crate) fn drain(fd: &OwnedFd) -> io::Result<bool> {
    let mut any = false;
    // The first bytes of a message are enough to take it off the queue.
    let mut buffer = [0; HEADER];
    loop {
        match rustix::net::recv(fd, &mut buffer, RecvFlags::DONTWAIT) {
            Ok(_) => any = true,
            Err(rustix::io::Errno::AGAIN) => return Ok(any),
            // The queue overflowed: changes were lost, so there were some.
            Err(rustix::io::Errno::NOBUFS) => any = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn open(flags: SocketFlags) -> io::Result<OwnedFd> {
    // NETLINK_ROUTE is protocol 0, the default.
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?)
}

/// Sends one request and reads its answer: one message, or all of a dump.
fn exchange(request: u16, flags: i32, body: &[u8]) -> io::Result<Vec<Message>> {
    let fd = open(SocketFlags::CLOEXEC)?;
    // The kernel answers within the request; a sandbox's imitation might not answer at all.
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(Duration::from_secs(2)))?;

    let is_dump = flags == libc::NLM_F_DUMP;
    let flags = (libc::NLM_F_REQUEST | flags) as u16;
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&request.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&SEQUENCE.to_ne_bytes());
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(body);
    sendto(&fd, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;

    let mut found = Vec::new();
    let mut interrupted = false;
    let mut buffer = vec![0; BUFFER];
    loop {
        let (length, _, from) = recvfrom(&fd, &mut buffer[..], RecvFlags::empty())?;
        // Anyone may send to a netlink port; the kernel's own is 0.
        let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
        if from.is_none_or(|from| from.pid() != 0) {
            continue;
        }
        let is_done = parse(&buffer[..length], &mut found, &mut interrupted)?;
        if is_done || !is_dump && !found.is_empty() {
            break;
        }
    }
    if interrupted { Err(io::ErrorKind::Interrupted.into()) } else { Ok(found) }
}

/// Splits one datagram of a dump into messages; true when the dump is complete.
fn parse(
    mut datagram: &[u8],
    found: &mut Vec<Message>,
    interrupted: &mut bool,
) -> io::Result<bool> {
    while datagram.len() >= HEADER {
        let length = read_u32(datagram).unwrap_or(0) as usize;
        let kind = read_u16(&datagram[4..]).unwrap_or(0);
        let flags = read_u16(&datagram[6..]).unwrap_or(0);
        let sequence = read_u32(&datagram[8..]).unwrap_or(0);
        let Some(body) = datagram.get(HEADER..length) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if sequence == SEQUENCE {
            *interrupted |= i32::from(flags) & libc::NLM_F_DUMP_INTR != 0;
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(true),
                libc::NLMSG_ERROR => {
                    let code = read_u32(body).unwrap_or(0).cast_signed();
                    return Err(io::Error::from_raw_os_error(-code));
                }
                _ => found.push(Message { kind, body: body.to_vec() }),
            }
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_namespace_has_a_loopback_device() {
        // struct ifinfomsg is 16 bytes; its index is the word at 4.
        let links = dump(libc::RTM_GETLINK, &[0; 16]).expect("links can be listed unprivileged");
        assert!(links.iter().any(|link| link.word(4) == 1));
    }

    #[test]
    fn attributes_with_a_wrong_length_end_the_list() {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&[5u16.to_ne_bytes(), 7u16.to_ne_bytes()].concat());
        bytes.extend_from_slice(&[1, 0, 0, 0]); // one byte of value and three of padding
        bytes.extend_from_slice(&[200u16.to_ne_bytes(), 8u16.to_ne_bytes()].concat());
        let all: Vec<_> = Attributes(&bytes).collect();
        assert_eq!(all, [(7, &[1u8][..])]);
        assert_eq!(Attributes(&[0, 0, 0, 0]).count(), 0);
    }

    #[test]
    fn a_message_longer_than_its_datagram_is_refused() {
        let mut bytes = vec![0; HEADER];
        bytes[..4].copy_from_slice(&100u32.to_ne_bytes());
        assert!(parse(&bytes, &mut Vec::new(), &mut false).is_err());
    }
}
