//! Calls that make descriptors, end them, or change what they stand for.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::arch::naked_asm;
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{sockaddr, socklen_t};

use crate::config::config;
use crate::epoll;
use crate::next::{Next, errno, functions, set_errno};
use crate::process;
use crate::table::{self, Entry, Kind, Role};

functions! {
    libc c"socket": libc_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = -1;
    libc c"accept4": libc_accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = -1;
    libc c"connect": libc_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = -1;
    libc c"listen": libc_listen(fd: c_int, backlog: c_int) -> c_int = -1;
    libc c"close": libc_close(fd: c_int) -> c_int = -1;
    libc c"dup": libc_dup(fd: c_int) -> c_int = -1;
    libc c"dup2": libc_dup2(from: c_int, to: c_int) -> c_int = -1;
    libc c"dup3": libc_dup3(from: c_int, to: c_int, flags: c_int) -> c_int = -1;
    libc c"fcntl": libc_fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int = -1;
    libc c"ioctl": libc_ioctl(fd: c_int, request: libc::c_ulong, arg: *mut c_void) -> c_int = -1;
    rdmacm c"rsocket": rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = -1;
    rdmacm c"raccept": raccept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = -1;
    rdmacm c"rconnect": rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = -1;
    rdmacm c"rlisten": rlisten(fd: c_int, backlog: c_int) -> c_int = -1;
    rdmacm c"rclose": rclose(fd: c_int) -> c_int = -1;
    rdmacm c"rfcntl": rfcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int = -1;
    rdmacm c"rsetsockopt": rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = -1;
    rdmacm c"rgetsockopt": rgetsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int = -1;
    rdmacm c"rrecv": rrecv(fd: c_int, buf: *mut c_void, len: libc::size_t, flags: c_int) -> libc::ssize_t = -1;
}

/// A descriptor of the program's own, of an empty file.
fn placeholder(is_cloexec: bool) -> c_int {
    let flags = libc::O_RDWR | if is_cloexec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: the path is a string.
    unsafe { libc::open(c"/dev/null".as_ptr(), flags) }
}

/// Gives the program a descriptor for a socket, and closes the socket if there is none.
fn give(entry: Entry, is_cloexec: bool) -> c_int {
    let fd = placeholder(is_cloexec);
    if fd >= 0 && table::has_room(fd) {
        table::add(fd, entry);
        return fd;
    }
    let why = if fd >= 0 { libc::EMFILE } else { errno() };
    if fd >= 0 {
        // SAFETY: it was opened just now.
        unsafe { libc_close(fd) };
    }
    end(entry);
    set_errno(why);
    -1
}

/// Closes a socket that no descriptor leads to any more.
fn end(entry: Entry) -> c_int {
    match entry.kind {
        // SAFETY: the descriptor is of an rsocket.
        Kind::Rsocket => unsafe { rclose(entry.fd) },
        // SAFETY: the descriptor is one of ours.
        Kind::Kernel | Kind::Undecided(_) => unsafe { libc_close(entry.fd) },
        Kind::Epoll => epoll::end(entry.fd),
    }
}

/// Sets the sizes that the environment gives; the socket also works without them.
pub(crate) fn set_sizes(fd: c_int) {
    const SOL_RDMA: c_int = 0x10000;
    for (option, size) in config().sizes.iter().enumerate().filter(|(_, size)| **size > 0) {
        let (value, length) = ((&raw const *size).cast(), size_of::<c_int>() as socklen_t);
        // SAFETY: the value is an integer.
        unsafe { rsetsockopt(fd, SOL_RDMA, option as c_int, value, length) };
    }
}

/// `socket(2)`. It passes on its caller's address: the library that has rsockets makes sockets of
/// its own, which must not become rsockets.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rcx, [rsp]", "jmp {socket}", socket = sym socket_from);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x3, x30", "b {socket}", socket = sym socket_from);
    #[cfg(target_arch = "riscv64")]
    naked_asm!("mv a3, ra", "tail {socket}", socket = sym socket_from);
}

unsafe extern "C" fn socket_from(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    caller: *const c_void,
) -> c_int {
    process::watch();
    let config = config();
    if !config.wants(domain, kind, protocol) || is_own(caller) || process::is_guest() {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc_socket(domain, kind, protocol) };
    }
    let is_cloexec = kind & libc::SOCK_CLOEXEC != 0;
    let is_stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
    if config.is_fork_safe && is_stream {
        // SAFETY: the arguments are the caller's.
        let fd = unsafe { libc_socket(domain, kind, protocol) };
        if fd < 0 {
            return fd;
        }
        return give(Entry { kind: Kind::Undecided(Role::New), fd }, is_cloexec);
    }
    // SAFETY: there are no pointers.
    let fd = unsafe { rsocket(domain, kind, protocol) };
    if fd < 0 {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc_socket(domain, kind, protocol) };
    }
    set_sizes(fd);
    give(Entry { kind: Kind::Rsocket, fd }, is_cloexec)
}

/// Whether an address is in the library that has rsockets.
fn is_own(caller: *const c_void) -> bool {
    static RSOCKET: Next = Next::rdmacm(c"rsocket");
    static BASE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // ORDERING: the address is all there is.
    let mut base = BASE.load(Ordering::Relaxed);
    if base.is_null() {
        base = object(RSOCKET.address()).cast_mut();
        BASE.store(base, Ordering::Relaxed);
    }
    !base.is_null() && core::ptr::eq(object(caller), base)
}

/// The start of the object that contains an address.
fn object(address: *const c_void) -> *const c_void {
    // SAFETY: the structure is made of pointers, for which zero is a value.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: there is room for the answer.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 {
        core::ptr::null()
    } else {
        info.dli_fbase
    }
}

/// `accept(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the arguments are the caller's.
    unsafe { accept4(fd, addr, len, 0) }
}

/// `accept4(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let Some(entry) = table::get(fd) else {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc_accept4(fd, addr, len, flags) };
    };
    let is_cloexec = flags & libc::SOCK_CLOEXEC != 0;
    if entry.kind != Kind::Rsocket {
        // SAFETY: the arguments are the caller's except for the descriptor, which is the socket's.
        let new = unsafe { libc_accept4(entry.fd, addr, len, flags) };
        if new < 0 || entry.kind != Kind::Undecided(Role::Listener) {
            return new;
        }
        return give(Entry { kind: Kind::Undecided(Role::Passive), fd: new }, is_cloexec);
    }
    // SAFETY: the arguments are the caller's except for the descriptor, which is of an rsocket.
    let new = unsafe { raccept(entry.fd, addr, len) };
    if new < 0 {
        return new;
    }
    // Unlike an rsocket, a socket from accept(2) inherits nothing.
    let nonblocking = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
    // SAFETY: the descriptor is of an rsocket.
    unsafe { rfcntl(new, libc::F_SETFL, nonblocking.into()) };
    give(Entry { kind: Kind::Rsocket, fd: new }, is_cloexec)
}

/// `listen(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match table::get(fd) {
        // SAFETY: the descriptor is of an rsocket.
        Some(Entry { kind: Kind::Rsocket, fd }) => unsafe { rlisten(fd, backlog) },
        Some(entry) => {
            // SAFETY: there are no pointers.
            let answer = unsafe { libc_listen(entry.fd, backlog) };
            if answer == 0 && entry.kind == Kind::Undecided(Role::New) {
                table::replace(fd, Entry { kind: Kind::Undecided(Role::Listener), ..entry });
            }
            answer
        }
        // SAFETY: there are no pointers.
        None => unsafe { libc_listen(fd, backlog) },
    }
}

/// `connect(2)`. Where no rsocket can connect, a kernel socket may.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let Some(entry) = table::get(fd) else {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc_connect(fd, addr, len) };
    };
    if entry.kind == Kind::Rsocket {
        // SAFETY: the arguments are the caller's except for the descriptor, which is of an rsocket.
        let answer = unsafe { rconnect(entry.fd, addr, len) };
        let is_final =
            matches!(errno(), libc::EINPROGRESS | libc::EALREADY | libc::EISCONN | libc::EINTR);
        if answer == 0 || is_final {
            return answer;
        }
        let Some(kernel) = fall_back(entry.fd, addr) else { return answer };
        table::replace(fd, Entry { kind: Kind::Kernel, fd: kernel });
        // SAFETY: the descriptor is of an rsocket that nothing else knows any more.
        unsafe { rclose(entry.fd) };
        // SAFETY: the arguments are the caller's except for the descriptor, which is the socket's.
        return unsafe { libc_connect(kernel, addr, len) };
    }
    if entry.kind == Kind::Undecided(Role::New) {
        table::replace(fd, Entry { kind: Kind::Undecided(Role::Active), ..entry });
    }
    // SAFETY: the arguments are the caller's except for the descriptor, which is the socket's.
    unsafe { libc_connect(entry.fd, addr, len) }
}

/// A kernel socket with the flags and the common options of an rsocket.
fn fall_back(from: c_int, addr: *const sockaddr) -> Option<c_int> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: the caller of `connect` gave an address, which begins with its family.
    let family = unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() };
    let option = |level, name| {
        let (mut value, mut length) = (0 as c_int, size_of::<c_int>() as socklen_t);
        // SAFETY: there is room for an integer.
        let answer =
            unsafe { rgetsockopt(from, level, name, (&raw mut value).cast(), &raw mut length) };
        (answer == 0).then_some(value)
    };
    let kind = option(libc::SOL_SOCKET, libc::SO_TYPE).unwrap_or(libc::SOCK_STREAM);
    // SAFETY: there are no pointers.
    let to = unsafe { libc_socket(family.into(), kind, 0) };
    if to < 0 {
        return None;
    }
    // SAFETY: there are no pointers.
    let flags = unsafe { rfcntl(from, libc::F_GETFL, 0) };
    // SAFETY: there are no pointers.
    unsafe { libc_fcntl(to, libc::F_SETFL, flags.into()) };
    for (level, name) in
        [(libc::SOL_SOCKET, libc::SO_REUSEADDR), (libc::IPPROTO_TCP, libc::TCP_NODELAY)]
    {
        if let Some(value @ 1..) = option(level, name) {
            let length = size_of::<c_int>() as socklen_t;
            // SAFETY: the value is an integer.
            unsafe { libc::setsockopt(to, level, name, (&raw const value).cast(), length) };
        }
    }
    Some(to)
}

/// `close(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if table::get(fd).is_none() || process::is_guest() {
        // SAFETY: the caller's promise.
        return unsafe { libc_close(fd) };
    }
    let last = table::remove(fd);
    // SAFETY: it is the program's descriptor, of an empty file.
    let answer = unsafe { libc_close(fd) };
    match last {
        Some(Entry { kind: Kind::Epoll, fd: ours }) => {
            epoll::end(ours);
            answer
        }
        Some(entry) => end(entry),
        None => 0,
    }
}

/// A copy of a descriptor stands for what the descriptor does.
fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0
        && let Some(entry) = table::get(from)
        && !process::is_guest()
    {
        if !table::has_room(to) {
            // SAFETY: it was made just now.
            unsafe { libc_close(to) };
            set_errno(libc::EMFILE);
            return -1;
        }
        table::add(to, entry);
    }
    to
}

/// `dup(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: there are no pointers.
    copied(fd, unsafe { libc_dup(fd) })
}

/// `dup2(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if from == to {
        // SAFETY: there are no pointers.
        return unsafe { libc_dup2(from, to) };
    }
    // SAFETY: there are no pointers.
    unsafe { dup3(from, to, 0) }
}

/// `dup3(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if from != to && table::get(to).is_some() && !process::is_guest() {
        // The old descriptor is closed first. SAFETY: the caller promises that nothing else uses
        // it.
        unsafe { close(to) };
    }
    // SAFETY: there are no pointers.
    copied(from, unsafe { libc_dup3(from, to, flags) })
}

/// `fcntl(2)`. Its argument is variadic in C; on all our machines it is passed as a named one would
/// be, and a caller that passes none leaves garbage, which commands without argument ignore.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    let Some(entry) = table::get(fd) else {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc_fcntl(fd, cmd, arg) };
    };
    match (cmd, entry.kind) {
        (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC, _) => {
            // SAFETY: there are no pointers.
            let to = unsafe { libc_fcntl(fd, cmd, arg) };
            copied(fd, to)
        }
        (libc::F_GETFL | libc::F_SETFL, Kind::Rsocket) => {
            // SAFETY: there are no pointers.
            unsafe { rfcntl(entry.fd, cmd, arg) }
        }
        (libc::F_GETFL | libc::F_SETFL, Kind::Kernel | Kind::Undecided(_)) => {
            // SAFETY: there are no pointers.
            unsafe { libc_fcntl(entry.fd, cmd, arg) }
        }
        // The remaining commands concern the descriptor. SAFETY: the arguments are the caller's.
        _ => unsafe { libc_fcntl(fd, cmd, arg) },
    }
}

/// `fcntl(2)` with large files, as [`fcntl`].
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    // SAFETY: the arguments are the caller's. On our machines all files are large.
    unsafe { fcntl(fd, cmd, arg) }
}

/// `ioctl(2)`, variadic as [`fcntl`]: whether a socket blocks, and how much there is to read.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, arg: *mut c_void) -> c_int {
    match (table::get(fd), request) {
        (Some(Entry { kind: Kind::Rsocket, fd }), libc::FIONBIO) => {
            // SAFETY: the request takes a pointer to an integer.
            let is_on = unsafe { arg.cast::<c_int>().read() } != 0;
            // SAFETY: there are no pointers.
            let flags = unsafe { rfcntl(fd, libc::F_GETFL, 0) };
            let flags = if is_on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
            // SAFETY: there are no pointers.
            unsafe { rfcntl(fd, libc::F_SETFL, flags.into()) }
        }
        (Some(Entry { kind: Kind::Rsocket, fd }), libc::FIONREAD) => {
            // SAFETY: the request takes a pointer to an integer.
            unsafe { arg.cast::<c_int>().write(available(fd)) };
            0
        }
        // SAFETY: the arguments are the caller's except for the descriptor, which is the socket's.
        (Some(Entry { kind: Kind::Kernel | Kind::Undecided(_), fd }), _) => unsafe {
            libc_ioctl(fd, request, arg)
        },
        // SAFETY: the arguments are the caller's.
        _ => unsafe { libc_ioctl(fd, request, arg) },
    }
}

/// Bytes that can be read now, at most as many as one peek returns.
fn available(fd: c_int) -> c_int {
    let mut room = [0_u8; 65536];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: there is room.
    let seen = unsafe { rrecv(fd, room.as_mut_ptr().cast(), room.len(), flags) };
    c_int::try_from(seen).unwrap_or(0).max(0)
}
