//! `sendmsg`, `recvmsg` and `recvmmsg` with the control messages RoCE needs, and the socket options
//! that have no safe wrapper.
//!
//! These are direct system calls. The functions of libc are cancellation points, and a thread that
//! was cancelled here would leave its device locked; a cancellation point also costs each call two
//! atomic operations.
//!
//! An existing UDP crate does not suffice: the whole type of service and the hop limit of an
//! address vector must reach the packet, and those of a received packet must reach the GRH that a
//! UD receive begins with.
#![allow(unsafe_code, reason = "the system calls take pointers to buffers of control messages")]

use std::ffi::{c_int, c_long};
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use socket2::SockAddr;

/// How many buffers one `recvmmsg` fills.
pub(super) const BATCH: usize = 8;

/// Room for the control messages of one packet: pktinfo (20 bytes), class, hop limit and segment
/// size, each after a 16-byte header and rounded up to 8, make 112.
const CONTROL: usize = 128;

/// What one `sendmsg` passes besides the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendMeta {
    pub(super) dst: SocketAddr,
    pub(super) src: Option<IpAddr>,
    /// The netdev that `src` is on; 0 leaves it to the routing table.
    pub(super) ifindex: u32,
    pub(super) traffic_class: u8,
    /// 0 leaves the kernel's default.
    pub(super) hop_limit: u8,
    pub(super) segment_size: Option<u16>,
}

/// What the kernel reports about one buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvMeta {
    pub(super) src: SocketAddr,
    pub(super) dst: Option<IpAddr>,
    pub(super) ifindex: u32,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    /// Bytes in the buffer.
    pub(super) len: usize,
    /// Bytes in each datagram but the last, when several were coalesced.
    pub(super) stride: usize,
    /// Whether the buffer was too small: the end is lost.
    pub(super) truncated: bool,
}

/// Sets an option that is an `int`.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the call and is only
    // read.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Attaches the classic BPF program that picks a socket of a reuseport group
/// (`SO_ATTACH_REUSEPORT_CBPF`).
pub(crate) fn attach_reuseport_cbpf(
    fd: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The kernel copies the instructions and writes none of them (`__get_filter`).
    let fprog = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the pointer and the length describe `fprog`, and those in it `program`; both outlive
    // the call.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const fprog).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends `bytes` as one datagram, or as several of `segment_size` bytes.
pub(super) fn send(fd: BorrowedFd<'_>, meta: &SendMeta, bytes: &[u8]) -> io::Result<()> {
    let name = SockAddr::from(meta.dst);
    let mut control = Control::new();
    match (meta.dst, meta.src) {
        (SocketAddr::V4(_), src) => {
            // In place of spec_dst an unspecified address lets the routing table choose.
            let src = if let Some(IpAddr::V4(src)) = src { src } else { Ipv4Addr::UNSPECIFIED };
            if !src.is_unspecified() || meta.ifindex != 0 {
                let info = libc::in_pktinfo {
                    ipi_ifindex: meta.ifindex.cast_signed(),
                    ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(src.octets()) },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
            }
            control.push(libc::IPPROTO_IP, libc::IP_TOS, c_int::from(meta.traffic_class));
            if meta.hop_limit != 0 {
                control.push(libc::IPPROTO_IP, libc::IP_TTL, c_int::from(meta.hop_limit));
            }
        }
        (SocketAddr::V6(_), src) => {
            let src = if let Some(IpAddr::V6(src)) = src { src } else { Ipv6Addr::UNSPECIFIED };
            if !src.is_unspecified() || meta.ifindex != 0 {
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: src.octets() },
                    ipi6_ifindex: meta.ifindex as _,
                };
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
            }
            control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, c_int::from(meta.traffic_class));
            if meta.hop_limit != 0 {
                control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, c_int::from(meta.hop_limit));
            }
        }
    }
    if let Some(size) = meta.segment_size {
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, size);
    }
    send_with(fd, Some(&name), &mut control, bytes)
}

/// The same on a connected socket, which knows the rest.
pub(super) fn send_connected(
    fd: BorrowedFd<'_>,
    bytes: &[u8],
    segment_size: Option<u16>,
) -> io::Result<()> {
    let mut control = Control::new();
    if let Some(size) = segment_size {
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, size);
    }
    send_with(fd, None, &mut control, bytes)
}

fn send_with(
    fd: BorrowedFd<'_>,
    name: Option<&SockAddr>,
    control: &mut Control,
    bytes: &[u8],
) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut header = empty_header();
    if let Some(name) = name {
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len();
    }
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    if control.len > 0 {
        header.msg_control = control.bytes.as_mut_ptr().cast();
        header.msg_controllen = control.len as _;
    }
    loop {
        // SAFETY: each pointer in `header` is paired with the length of the live local or argument
        // it points to, and sendmsg only reads through them.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendmsg,
                c_long::from(fd.as_raw_fd()),
                &raw const header,
                c_long::from(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
            )
        };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Fills up to `N` of [`BATCH`] equal parts of `buffer`, and describes each; returns the number
/// filled, which is 0 when nothing waits. A buffer whose sender is of an unknown address family has
/// length
/// 0. Source and destination address are not requested where they are known.
pub(super) fn recv<const N: usize>(
    fd: BorrowedFd<'_>,
    known: Option<(SocketAddr, IpAddr)>,
    buffer: &mut [u8],
    metas: &mut [Option<RecvMeta>; N],
) -> io::Result<usize> {
    const { assert!(N <= BATCH) };
    let part = buffer.len() / BATCH;
    // SAFETY: sockaddr_in6 is integers, for which zeros are a value.
    let mut names: [libc::sockaddr_in6; N] = unsafe { mem::zeroed() };
    let mut controls = [const { Control::new() }; N];
    let mut iovs = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; N];
    let mut headers = [libc::mmsghdr { msg_hdr: empty_header(), msg_len: 0 }; N];
    let parts = buffer.chunks_exact_mut(part);
    for ((((header, name), control), iov), part) in
        headers.iter_mut().zip(&mut names).zip(&mut controls).zip(&mut iovs).zip(parts)
    {
        *iov = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        if known.is_none() {
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
        }
        header.msg_hdr.msg_iov = &raw mut *iov;
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = control.bytes.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = CONTROL as _;
    }
    let fd = c_long::from(fd.as_raw_fd());
    let flags = c_long::from(libc::MSG_DONTWAIT);
    let filled = if let [first] = &mut headers[..] {
        // SAFETY: each pointer in `first` is paired with the length of a part of `buffer` or of a
        // local, all disjoint, writable and alive through the call.
        unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut first.msg_hdr, flags) }
    } else {
        let (count, no_timeout) = (N as c_long, ptr::null_mut::<libc::timespec>());
        // SAFETY: `headers` has `N` elements; the pointers in each are as above.
        unsafe {
            libc::syscall(libc::SYS_recvmmsg, fd, headers.as_mut_ptr(), count, flags, no_timeout)
        }
    };
    if filled < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(0),
            _ => Err(error),
        };
    }
    let filled = if let [first] = &mut headers[..] {
        // CAST: `recvmsg` returns the length, which is at most that of the buffer.
        first.msg_len = filled as libc::c_uint;
        1
    } else {
        filled as usize
    };
    for (((meta, header), name), control) in
        metas.iter_mut().zip(&headers).zip(&names).zip(&controls).take(filled)
    {
        let src = known.map(|(src, _)| src).or_else(|| address(name));
        let to = known.map(|(_, to)| to);
        *meta = src.map(|src| {
            #[allow(clippy::unnecessary_cast, reason = "narrower in other libcs")]
            let control_len = (header.msg_hdr.msg_controllen as usize).min(CONTROL);
            RecvMeta::new(
                src,
                to,
                header.msg_len as usize,
                header.msg_hdr.msg_flags,
                &control.bytes[..control_len],
            )
        });
    }
    Ok(filled)
}

impl RecvMeta {
    fn new(src: SocketAddr, dst: Option<IpAddr>, len: usize, flags: c_int, control: &[u8]) -> Self {
        let truncated = flags & libc::MSG_TRUNC != 0;
        let mut meta = Self {
            src,
            dst,
            ifindex: 0,
            traffic_class: 0,
            hop_limit: 0,
            len,
            stride: len,
            truncated,
        };
        for (level, kind, value) in ControlMessages(control) {
            match (level, kind) {
                // struct in_pktinfo: index, spec_dst, addr; struct in6_pktinfo: addr, index.
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if value.len() >= 12 => {
                    meta.ifindex = word(value);
                    meta.dst = <[u8; 4]>::try_from(&value[8..12]).ok().map(IpAddr::from);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if value.len() >= 20 => {
                    meta.ifindex = word(&value[16..]);
                    meta.dst = <[u8; 16]>::try_from(&value[..16]).ok().map(IpAddr::from);
                }
                // This one is a single byte.
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    meta.traffic_class = value.first().copied().unwrap_or(0);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => meta.traffic_class = word(value) as u8,
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    meta.hop_limit = word(value) as u8;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => meta.stride = word(value) as usize,
                _ => {}
            }
        }
        meta
    }
}

/// A buffer of control messages, aligned as `struct cmsghdr` is.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control {
    bytes: [u8; CONTROL],
    len: usize,
}

/// Bytes of a `struct cmsghdr` including the padding in front of its data.
const CMSG_HEADER: usize = size_of::<libc::cmsghdr>().next_multiple_of(size_of::<usize>());

impl Control {
    const fn new() -> Self {
        Self { bytes: [0; CONTROL], len: 0 }
    }

    fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        let end = self.len + (CMSG_HEADER + size_of::<T>()).next_multiple_of(size_of::<usize>());
        assert!(end <= CONTROL, "CONTROL has room for one message of each kind");
        // SAFETY: cmsghdr is integers, for which zeros are a value; some libcs have padding fields
        // in it.
        let mut header: libc::cmsghdr = unsafe { mem::zeroed() };
        header.cmsg_len = (CMSG_HEADER + size_of::<T>()) as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        let at = self.bytes[self.len..].as_mut_ptr();
        // SAFETY: the assertion keeps header and value within `bytes`; an unaligned write needs no
        // more.
        unsafe { at.cast::<libc::cmsghdr>().write_unaligned(header) };
        let at = self.bytes[self.len + CMSG_HEADER..].as_mut_ptr();
        // SAFETY: likewise.
        unsafe { at.cast::<T>().write_unaligned(value) };
        self.len = end;
    }
}

/// The messages in a control buffer: level, type and data.
pub(crate) struct ControlMessages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for ControlMessages<'a> {
    type Item = (c_int, c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.len() < size_of::<libc::cmsghdr>() {
            return None;
        }
        // SAFETY: the length was checked, and any bytes are a cmsghdr.
        let header = unsafe { self.0.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        #[allow(clippy::unnecessary_cast, reason = "narrower in other libcs")]
        let length = header.cmsg_len as usize;
        let value = self.0.get(CMSG_HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        Some((header.cmsg_level, header.cmsg_type, value))
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.get(..4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn empty_header() -> libc::msghdr {
    // SAFETY: msghdr is integers and pointers, for which zeros are a value; some libcs have private
    // padding in it, so that it cannot be written as a literal.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The address in `name`, if it is one of IPv4 or IPv6: no socket of ours has a longer one.
fn address(name: &libc::sockaddr_in6) -> Option<SocketAddr> {
    match c_int::from(name.sin6_family) {
        libc::AF_INET => {
            // SAFETY: sockaddr_in6 is larger than sockaddr_in and as strictly aligned, and any
            // bytes are one.
            let v4 = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(SocketAddrV6::new(ip, port, name.sin6_flowinfo, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_round_trip() {
        let mut control = Control::new();
        control.push(libc::IPPROTO_IP, libc::IP_TOS, 0x1a_i32);
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, 1024_u16);
        let all: Vec<_> = ControlMessages(&control.bytes[..control.len]).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].0, all[0].1, word(all[0].2)), (libc::IPPROTO_IP, libc::IP_TOS, 0x1a));
        assert_eq!(all[1].2, 1024_u16.to_ne_bytes());
    }

    #[test]
    fn the_largest_set_of_messages_fits() {
        let mut control = Control::new();
        let info =
            libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: [0; 16] }, ipi6_ifindex: 0 };
        control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0);
        control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, 0);
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, 0_u16);
        assert!(control.len <= CONTROL);
    }
}
