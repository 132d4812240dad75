//! Connections of programs that fork (`RDMAV_FORK_SAFE`).
//!
//! Queue pairs do not survive a fork. So a connection begins as a kernel socket; the process that
//! first moves data makes it an rsocket:
//!
//! ```text
//!   accepted side                                  connected side
//!   listens with an rsocket at the same port
//!   four bytes of 0 over TCP  ------------------>  waits for them
//!   takes the connection      <------------------  connects an rsocket to the same address
//! ```
//!
//! One process at a time can listen at a port: others wait for it, for up to half a minute. A side
//! that receives anything other than four bytes of 0 talks to a peer without this library, and
//! stays with TCP.

#![allow(unsafe_code, reason = "calls of C")]

use core::ffi::{c_int, c_void};
use core::mem;
use std::time::{Duration, Instant};

use libc::{sockaddr, sockaddr_in6, socklen_t};

use crate::hooks::calls;
use crate::lifetime::{
    raccept, rclose, rconnect, rfcntl, rlisten, rsetsockopt, rsocket, set_sizes,
};
use crate::next::{errno, functions};
use crate::table::{self, Entry, Kind, Role};

functions! {
    libc c"close": close(fd: c_int) -> c_int = -1;
    libc c"fcntl": fcntl(fd: c_int, cmd: c_int, arg: core::ffi::c_long) -> c_int = -1;
}

/// How long another process may have the port.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes an undecided connection an rsocket, if its peer does too. Returns the resulting entry.
pub(crate) fn decide(fd: c_int, entry: Entry, role: Role) -> Entry {
    let made = match role {
        Role::Passive => passive(entry.fd),
        Role::Active => active(entry.fd),
        Role::New | Role::Listener => return entry,
    };
    let now = match made {
        Some(rsocket) => {
            set_sizes(rsocket);
            // SAFETY: there are no pointers.
            let flags = unsafe { fcntl(entry.fd, libc::F_GETFL, 0) };
            // SAFETY: there are no pointers.
            unsafe { rfcntl(rsocket, libc::F_SETFL, flags.into()) };
            Entry { kind: Kind::Rsocket, fd: rsocket }
        }
        None => Entry { kind: Kind::Kernel, ..entry },
    };
    table::replace(fd, now);
    if made.is_some() {
        // SAFETY: the descriptor is ours, and nothing else knows it any more.
        unsafe { close(entry.fd) };
    }
    now
}

/// An address, with room for the longest of the Internet.
struct Name {
    // The families have their port in the same place.
    room: sockaddr_in6,
    length: socklen_t,
}

type Ask = unsafe fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

impl Name {
    fn of(fd: c_int, ask: Ask) -> Option<Self> {
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut room: sockaddr_in6 = unsafe { mem::zeroed() };
        let mut length = size_of::<sockaddr_in6>() as socklen_t;
        // SAFETY: there is room.
        let answer = unsafe { ask(fd, (&raw mut room).cast(), &raw mut length) };
        (answer == 0).then_some(Self { room, length })
    }

    fn family(&self) -> c_int {
        self.room.sin6_family.into()
    }

    fn as_ptr(&self) -> *const sockaddr {
        (&raw const self.room).cast()
    }
}

/// The side that accepted: listens, tells the peer, and takes the connection.
fn passive(fd: c_int) -> Option<c_int> {
    let mut name = Name::of(fd, calls::getsockname)?;
    if name.family() == libc::AF_INET {
        // SAFETY: the room is longer, and of this family.
        let v4 = unsafe { &mut *(&raw mut name.room).cast::<libc::sockaddr_in>() };
        v4.sin_addr.s_addr = 0;
    } else {
        (name.room.sin6_flowinfo, name.room.sin6_scope_id) = (0, 0);
        name.room.sin6_addr.s6_addr = [0; 16];
    }
    let listener = listen(&name)?;
    let word = 0_u32;
    let (bytes, length) = ((&raw const word).cast::<c_void>(), size_of::<u32>());
    // SAFETY: the word has the given length.
    let told = unsafe { calls::write(fd, bytes, length) } == length.cast_signed();
    let mut accepted = -1;
    if told {
        // SAFETY: no address is requested.
        accepted = unsafe { raccept(listener, core::ptr::null_mut(), core::ptr::null_mut()) };
    }
    // SAFETY: there are no pointers.
    unsafe { rclose(listener) };
    (accepted >= 0).then_some(accepted)
}

/// An rsocket that listens at an address, as soon as no other socket does.
fn listen(name: &Name) -> Option<c_int> {
    let until = Instant::now() + PATIENCE;
    loop {
        // SAFETY: there are no pointers.
        let listener = unsafe { rsocket(name.family(), libc::SOCK_STREAM, 0) };
        if listener < 0 {
            return None;
        }
        set_sizes(listener);
        // SAFETY: the address has the given length.
        let bound = unsafe { calls::rbind(listener, name.as_ptr(), name.length) } == 0;
        // SAFETY: there are no pointers.
        if bound && unsafe { rlisten(listener, 1) } == 0 {
            return Some(listener);
        }
        let why = errno();
        // SAFETY: there are no pointers.
        unsafe { rclose(listener) };
        if why != libc::EADDRINUSE || Instant::now() >= until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The side that connected: waits until the other side listens, and connects.
fn active(fd: c_int) -> Option<c_int> {
    // SAFETY: there are no pointers.
    let flags = unsafe { fcntl(fd, libc::F_GETFL, 0) };
    // SAFETY: there are no pointers.
    unsafe { fcntl(fd, libc::F_SETFL, (flags & !libc::O_NONBLOCK).into()) };
    let mut word = u32::MAX;
    let (room, length) = ((&raw mut word).cast::<c_void>(), size_of::<u32>());
    // SAFETY: there is room for a word.
    let seen = unsafe { calls::recv(fd, room, length, libc::MSG_PEEK | libc::MSG_WAITALL) };
    // SAFETY: there are no pointers.
    unsafe { fcntl(fd, libc::F_SETFL, flags.into()) };
    if seen != length.cast_signed() || word != 0 {
        return None;
    }
    let name = Name::of(fd, calls::getpeername)?;
    // SAFETY: there are no pointers.
    let made = unsafe { rsocket(name.family(), libc::SOCK_STREAM, 0) };
    if made < 0 {
        return None;
    }
    set_sizes(made);
    // SAFETY: the address has the given length.
    if unsafe { rconnect(made, name.as_ptr(), name.length) } != 0 {
        // SAFETY: there are no pointers.
        unsafe { rclose(made) };
        return None;
    }
    let on: c_int = 1;
    let (value, length) = ((&raw const on).cast(), size_of::<c_int>() as socklen_t);
    // SAFETY: the value is an integer.
    unsafe { rsetsockopt(made, libc::IPPROTO_TCP, libc::TCP_NODELAY, value, length) };
    Some(made)
}
