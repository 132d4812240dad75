//! Names and their addresses: `rdma_getaddrinfo(3)`, on top of getaddrinfo(3).
//!
//! Answers are in memory of the C library, since programs change them and free parts of them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr;

use iba::QpType;
use libc::{addrinfo, sockaddr, socklen_t};

use super::{Answer, Failure};
use crate::abi::boundary::control;
use crate::abi::errno;
use crate::abi::object::room;
use crate::abi::types::rdma::{AddrInfo, port_space, rai};

/// Addresses of InfiniBand.
const AF_IB: c_int = 27;

/// Why names are not resolved: an errno, or a code of getaddrinfo(3), which the call returns.
pub(super) enum Refused {
    Failure(Failure),
    Name(c_int),
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    res: *mut *mut AddrInfo,
) -> c_int {
    control("rdma_getaddrinfo", -1, || {
        let res = room(res);
        // SAFETY: contract: the hints are NULL or valid.
        let hints = unsafe { hints.as_ref() };
        // SAFETY: contract: the names are NULL or strings.
        match unsafe { resolve(node, service, hints) } {
            Ok(found) => {
                // SAFETY: contract: the program has room for the pointer.
                unsafe { res.write(found) };
                0
            }
            Err(Refused::Name(code)) => code,
            Err(Refused::Failure(failure)) => {
                errno::set(failure.errno());
                -1
            }
        }
    })
}

/// Resolves a name, a service, or what the hints say.
///
/// # Safety
///
/// The names are NULL or strings, and the addresses of the hints are as long as they say.
pub(super) unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Result<*mut AddrInfo, Refused> {
    let refuse =
        |errno, what: &str| Err(Failure::new(errno, format!("rdma_getaddrinfo: {what}")).into());
    if node.is_null() && service.is_null() && hints.is_none() {
        return refuse(libc::EINVAL, "neither a name, nor a service, nor hints");
    }
    if let Some(hints) = hints {
        if hints.ai_flags & rai::SA != 0 {
            let (errno, what) = if !node.is_null() || hints.ai_flags & rai::DNS != 0 {
                (libc::EOPNOTSUPP, "RAI_SA is for services alone")
            } else {
                (libc::ENOENT, "RAI_SA: RoCE has no subnet administrator to ask")
            };
            return refuse(errno, what);
        }
        if hints.ai_flags & rai::FAMILY != 0 && hints.ai_family == AF_IB {
            let what = "AF_IB: RoCE has no subnet whose addresses these would be";
            return refuse(libc::EAFNOSUPPORT, what);
        }
    }
    let found = alloc()?;
    // SAFETY: it was made just now.
    let room = unsafe { &mut *found };
    // SAFETY: the caller's promise.
    let filled = unsafe { fill(room, node, service, hints) };
    if let Err(refused) = filled {
        // SAFETY: nobody has it.
        unsafe { rdma_freeaddrinfo(found) };
        return Err(refused);
    }
    Ok(found)
}

unsafe fn fill(
    found: &mut AddrInfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Result<(), Refused> {
    if !node.is_null() || !service.is_null() {
        // SAFETY: the caller's promise.
        unsafe { ask(found, node, service, hints) }?;
    } else if let Some(hints) = hints {
        (found.ai_flags, found.ai_family) = (hints.ai_flags, hints.ai_family);
        (found.ai_qp_type, found.ai_port_space) = (hints.ai_qp_type, hints.ai_port_space);
        if hints.ai_dst_len > 0 {
            // SAFETY: contract: the address is as long as it says.
            found.ai_dst_addr = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len) }?;
            found.ai_dst_len = hints.ai_dst_len;
        }
    }
    if let Some(hints) = hints
        && found.ai_src_len == 0
        && hints.ai_src_len > 0
    {
        // SAFETY: contract: the address is as long as it says.
        found.ai_src_addr = unsafe { copy(hints.ai_src_addr, hints.ai_src_len) }?;
        found.ai_src_len = hints.ai_src_len;
    }
    Ok(())
}

/// Asks the C library, and takes its first answer.
unsafe fn ask(
    found: &mut AddrInfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Result<(), Refused> {
    let question = hints.map(question);
    let hints_of_c = question.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut answers: *mut addrinfo = ptr::null_mut();
    // SAFETY: the caller's promise.
    let code = unsafe { libc::getaddrinfo(node, service, hints_of_c, &raw mut answers) };
    if code != 0 {
        // SAFETY: any code is allowed.
        let why = unsafe { libc::gai_strerror(code) };
        // SAFETY: the C library never frees its texts.
        let why = unsafe { CStr::from_ptr(why) };
        tracing::info!(target: "peerdma::refusal", "rdma_getaddrinfo: {}", why.to_string_lossy());
        return Err(Refused::Name(code));
    }
    // SAFETY: there is at least one answer, and it is ours until it is freed.
    let first = unsafe { &*answers };
    // SAFETY: as above.
    let taken = unsafe { take(found, hints, first) };
    // SAFETY: it is not used any more.
    unsafe { libc::freeaddrinfo(answers) };
    Ok(taken?)
}

/// The hints as the C library takes them.
fn question(hints: &AddrInfo) -> addrinfo {
    // SAFETY: the structure is made of integers and pointers, for which zero is a value.
    let mut ask: addrinfo = unsafe { mem::zeroed() };
    if hints.ai_flags & rai::PASSIVE != 0 {
        ask.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & rai::NUMERICHOST != 0 {
        ask.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_family != AF_IB {
        ask.ai_family = hints.ai_family;
    }
    const CONNECTED: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::XrcSend, QpType::XrcRecv];
    if CONNECTED.iter().any(|qp_type| *qp_type as c_int == hints.ai_qp_type) {
        ask.ai_socktype = libc::SOCK_STREAM;
    } else if hints.ai_qp_type == QpType::Ud as c_int {
        ask.ai_socktype = libc::SOCK_DGRAM;
    }
    ask.ai_protocol = match hints.ai_port_space.cast_unsigned() {
        port_space::TCP => libc::IPPROTO_TCP,
        port_space::IPOIB | port_space::UDP => libc::IPPROTO_UDP,
        port_space::IB if ask.ai_socktype == libc::SOCK_STREAM => libc::IPPROTO_TCP,
        port_space::IB if ask.ai_socktype == libc::SOCK_DGRAM => libc::IPPROTO_UDP,
        _ => 0,
    };
    ask
}

/// Takes over an answer of the C library.
unsafe fn take(found: &mut AddrInfo, hints: Option<&AddrInfo>, answer: &addrinfo) -> Answer {
    let wanted = |value: fn(&AddrInfo) -> c_int| hints.map(value).filter(|value| *value != 0);
    found.ai_qp_type = wanted(|hints| hints.ai_qp_type).unwrap_or(match answer.ai_socktype {
        libc::SOCK_STREAM => QpType::Rc as c_int,
        libc::SOCK_DGRAM => QpType::Ud as c_int,
        _ => 0,
    });
    found.ai_port_space = wanted(|hints| hints.ai_port_space).unwrap_or(match answer.ai_protocol {
        libc::IPPROTO_TCP => port_space::TCP.cast_signed(),
        libc::IPPROTO_UDP => port_space::UDP.cast_signed(),
        _ => 0,
    });
    found.ai_family = answer.ai_family;
    // SAFETY: the caller's promise.
    let addr = unsafe { copy(answer.ai_addr, answer.ai_addrlen) }?;
    let name = if answer.ai_canonname.is_null() {
        ptr::null_mut()
    } else {
        // SAFETY: the caller's promise.
        unsafe { libc::strdup(answer.ai_canonname) }
    };
    if answer.ai_flags & libc::AI_PASSIVE != 0 {
        found.ai_flags = rai::PASSIVE;
        (found.ai_src_addr, found.ai_src_len) = (addr, answer.ai_addrlen);
        found.ai_src_canonname = name;
    } else {
        (found.ai_dst_addr, found.ai_dst_len) = (addr, answer.ai_addrlen);
        found.ai_dst_canonname = name;
    }
    Ok(())
}

fn alloc() -> Answer<*mut AddrInfo> {
    // SAFETY: any sizes are allowed.
    let room = unsafe { libc::calloc(1, size_of::<AddrInfo>()) };
    if room.is_null() {
        return Err(Failure::new(libc::ENOMEM, "rdma_getaddrinfo: no memory"));
    }
    Ok(room.cast())
}

/// A copy in the C library's memory.
unsafe fn copy(addr: *const sockaddr, length: socklen_t) -> Answer<*mut sockaddr> {
    let length = length as usize;
    // SAFETY: any size is allowed.
    let room = unsafe { libc::malloc(length) };
    if room.is_null() || addr.is_null() {
        // SAFETY: NULL is allowed, and it is not used any more.
        unsafe { libc::free(room) };
        return Err(Failure::new(libc::ENOMEM, "rdma_getaddrinfo: no memory, or no address"));
    }
    // SAFETY: the caller's promise; the room was made for it.
    unsafe { ptr::copy_nonoverlapping(addr.cast::<u8>(), room.cast(), length) };
    Ok(room.cast())
}

pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(res: *mut AddrInfo) {
    let mut next = res;
    while !next.is_null() {
        // SAFETY: contract: the answers are ours, in a chain that ends.
        let info = unsafe { next.read() };
        let parts: [*mut c_void; 7] = [
            info.ai_connect,
            info.ai_route,
            info.ai_src_canonname.cast(),
            info.ai_dst_canonname.cast(),
            info.ai_src_addr.cast(),
            info.ai_dst_addr.cast(),
            next.cast(),
        ];
        for part in parts {
            // SAFETY: contract: each is NULL or from the C library, and the program uses it no
            // more.
            unsafe { libc::free(part) };
        }
        next = info.ai_next;
    }
}
