//! Packet sockets: their options, their addresses, and what the kernel reports with a frame.
#![allow(unsafe_code, reason = "libc's structures for packet sockets have no safe wrapper")]

use std::ffi::c_int;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::{OpenError, Passed};
use crate::udp::{ControlMessages, set_option};

/// `ETH_P_ALL`.
pub(super) const EVERY_PROTOCOL: u16 = 3;

/// Room for a `struct tpacket_auxdata` after its header.
const CONTROL: usize = 64;

/// What was received.
pub(super) struct Received {
    /// Bytes of the frame, of which no more than the buffer holds are in it.
    pub(super) length: usize,
    pub(super) passed: Passed,
    /// Whether the kernel left a checksum to the netdev.
    pub(super) is_unfinished: bool,
    /// Type and contents of the tag that the kernel removed.
    pub(super) tag: Option<(u16, u16)>,
}

/// A packet socket that belongs to no protocol and so receives nothing.
pub(super) fn socket() -> Result<OwnedFd, OpenError> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted(error),
            _ => OpenError::Io(error),
        });
    }
    // SAFETY: it was opened just now, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds to a netdev. With protocol 0 the socket still receives nothing.
pub(super) fn bind(fd: BorrowedFd<'_>, ifindex: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: sockaddr_ll is integers, for which zeros are a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `address`, which outlives the call and is only
    // read.
    let failed = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Enables the reporting of VLAN tags, requests a long queue, and ignores outgoing frames if they
/// come in again anyway.
pub(super) fn prepare(fd: BorrowedFd<'_>, ignore_outgoing: bool, buffer: usize) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    if ignore_outgoing {
        set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    }
    let bytes = c_int::try_from(buffer).unwrap_or(c_int::MAX);
    // The first needs CAP_NET_ADMIN; the second is capped at the system's limit. With less, more
    // frames are lost.
    if set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
    }
    Ok(())
}

/// Receives one frame, if there is one.
pub(super) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    /// Aligned as `struct cmsghdr` is.
    #[repr(C, align(8))]
    struct Control([u8; CONTROL]);

    // SAFETY: sockaddr_ll is integers, for which zeros are a value.
    let mut from: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let mut control = Control([0; CONTROL]);
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is integers and pointers, for which zeros are a value; some libcs have private
    // padding in it, so that it cannot be written as a literal.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_name = (&raw mut from).cast();
    header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    loop {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL as _;
        // With MSG_TRUNC the call returns the length of the frame, not of what was copied.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the header names the address, one buffer and the control buffer, with their
        // lengths, and all outlive the call.
        let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
        if let Ok(length) = usize::try_from(length) {
            #[allow(clippy::unnecessary_cast, reason = "narrower in other libcs")]
            let told = (header.msg_controllen as usize).min(CONTROL);
            let told = ControlMessages(&control.0[..told]).find_map(auxdata);
            let status = told.map_or(0, |told| told.tp_status);
            return Ok(Some(Received {
                length,
                passed: passed(from.sll_pkttype),
                is_unfinished: status & libc::TP_STATUS_CSUMNOTREADY != 0,
                tag: told.and_then(|told| tag_of(&told)),
            }));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN) => return Ok(None),
            _ => return Err(error),
        }
    }
}

fn passed(kind: u8) -> Passed {
    match kind {
        libc::PACKET_OUTGOING => Passed::Out,
        libc::PACKET_OTHERHOST => Passed::Astray,
        _ => Passed::In,
    }
}

/// What a control message says about a frame, if it concerns one.
fn auxdata((level, kind, value): (c_int, c_int, &[u8])) -> Option<libc::tpacket_auxdata> {
    if (level, kind) != (libc::SOL_PACKET, libc::PACKET_AUXDATA)
        || value.len() < size_of::<libc::tpacket_auxdata>()
    {
        return None;
    }
    let at: *const libc::tpacket_auxdata = ptr::from_ref(value).cast();
    // SAFETY: the length was checked, and any bytes are such a structure, which is integers.
    Some(unsafe { at.read_unaligned() })
}

/// The tag that was removed, if one was.
fn tag_of(told: &libc::tpacket_auxdata) -> Option<(u16, u16)> {
    if told.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let is_typed = told.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    // `ETH_P_8021Q`, where an old kernel does not report it.
    Some((if is_typed { told.tp_vlan_tpid } else { 0x8100 }, told.tp_vlan_tci))
}
