//! The way to the software GPU: which paths are its nodes, and the library that is behind them.
//!
//! `PEERDMA_DRM_NODE` lists the render nodes, which do not exist otherwise: `peerdma run --gpu`
//! chose free names. The first open of one finds `libpeerdma.so`, which is loaded as well, and from
//! then on it is shown what might concern it. Until then, and without the variable, nothing here
//! costs more than the look at an atomic.

#![allow(unsafe_code, reason = "C strings, the C environment, and functions of another library")]

use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::variable::variable;

/// Where nodes are.
const DIRECTORY: &[u8] = b"/dev/dri/";

/// The first render node's minor number; the card beside it has this much less.
const FIRST_RENDER: u32 = 128;

/// The major number of DRM.
const MAJOR: u32 = 226;

/// The most nodes that are looked at.
const MOST: usize = 32;

/// Minor numbers of the render nodes, each plus one, in the order of the variable; 0 is the end.
static MINORS: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
static STATE: AtomicU32 = AtomicU32::new(UNREAD);

const UNREAD: u32 = 0;
const READING: u32 = 1;
const READ: u32 = 2;

/// `libpeerdma.so`'s side, with the layout of its `Door`.
#[repr(C)]
pub(crate) struct Door {
    open: extern "C" fn(node: c_int, is_card: bool, flags: c_int) -> c_int,
    pub(crate) owns: extern "C" fn(fd: c_int) -> bool,
    node: extern "C" fn(fd: c_int, is_card: &mut bool) -> c_int,
    pub(crate) ioctl: unsafe extern "C" fn(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int,
    pub(crate) mmap: Mmap,
    pub(crate) forget: extern "C" fn(addr: usize, len: usize),
    pub(crate) is_mapped: extern "C" fn(addr: usize, len: usize) -> bool,
    pub(crate) closed: extern "C" fn(),
    pub(crate) buffer_ioctl:
        unsafe extern "C" fn(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int,
    pub(crate) buffer_mmap: Mmap,
    pub(crate) buffer_poll: extern "C" fn(fd: c_int, events: c_int) -> c_int,
    pub(crate) buffer_seek: extern "C" fn(fd: c_int, offset: i64, whence: c_int) -> i64,
}

type Mmap = unsafe extern "C" fn(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void;

static DOOR: AtomicPtr<Door> = AtomicPtr::new(core::ptr::null_mut());

/// The door, if a node or a buffer was ever met.
pub(crate) fn door() -> Option<&'static Door> {
    // ORDERING: pairs with the release in `open`.
    let door = DOOR.load(Ordering::Acquire);
    // SAFETY: null, or a table that is static in a library that is never unloaded.
    unsafe { door.as_ref() }
}

/// The door, looked for if need be: none in a program that is without `libpeerdma.so`.
pub(crate) fn find() -> Option<&'static Door> {
    if let Some(door) = door() {
        return Some(door);
    }
    // SAFETY: the name is terminated; any library that is loaded may have it, but only ours does.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"peerdma_drm_door".as_ptr()) };
    if !found.is_null() {
        // SAFETY: this is the function's signature, in the library of the same build.
        let find: extern "C" fn() -> *const Door = unsafe { core::mem::transmute(found) };
        DOOR.store(find().cast_mut(), Ordering::Release);
    }
    door()
}

/// One of our nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    index: usize,
    is_card: bool,
    minor: u32,
}

/// Which of our nodes a path names.
///
/// # Safety
///
/// `path` is null or a terminated string.
pub(crate) unsafe fn node(path: *const c_char) -> Option<Node> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller says it is terminated.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes().strip_prefix(DIRECTORY)?;
    let (minor, is_card) = parse(name)?;
    read();
    let first = if is_card { minor + FIRST_RENDER } else { minor };
    let index = MINORS.iter().position(|known| known.load(Ordering::Relaxed) == first + 1)?;
    Some(Node { index, is_card, minor })
}

/// Which node a descriptor is of.
pub(crate) fn node_of(fd: c_int) -> Option<Node> {
    let door = door().filter(|door| (door.owns)(fd))?;
    let mut is_card = false;
    let index = usize::try_from((door.node)(fd, &mut is_card)).ok()?;
    let first = MINORS.get(index)?.load(Ordering::Relaxed).checked_sub(1)?;
    let minor = if is_card { first - FIRST_RENDER } else { first };
    Some(Node { index, is_card, minor })
}

/// Opens a node.
pub(crate) fn open(node: Node, flags: c_int) -> c_int {
    match find() {
        // CAST: at most MOST.
        Some(door) => (door.open)(node.index as c_int, node.is_card, flags),
        None => {
            // SAFETY: __errno_location gives the thread's errno, always valid.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: as above.
            unsafe { *errno = libc::ENXIO };
            -1
        }
    }
}

/// What `st_rdev` of a node is.
pub(crate) fn device(node: Node) -> libc::dev_t {
    libc::makedev(MAJOR, node.minor)
}

/// Reads the variable, once.
fn read() {
    // ORDERING: pairs with the release store below: whoever sees READ sees the numbers.
    let state = STATE.compare_exchange(UNREAD, READING, Ordering::Acquire, Ordering::Acquire);
    if state.is_err() {
        return;
    }
    if let Some(value) = variable(c"PEERDMA_DRM_NODE") {
        let listed = value.split(|&byte| byte == b',');
        let minors = listed.filter_map(|path| parse(path.strip_prefix(DIRECTORY)?));
        for ((minor, _), slot) in minors.filter(|(_, is_card)| !is_card).zip(&MINORS) {
            slot.store(minor + 1, Ordering::Relaxed);
        }
    }
    STATE.store(READ, Ordering::Release);
}

/// The number in `renderD128` or `card0`.
fn parse(name: &[u8]) -> Option<(u32, bool)> {
    let (digits, is_card) = match (name.strip_prefix(b"renderD"), name.strip_prefix(b"card")) {
        (Some(digits), _) => (digits, false),
        (_, Some(digits)) => (digits, true),
        _ => return None,
    };
    let mut number = 0u32;
    if digits.is_empty() || digits.len() > 4 {
        return None;
    }
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u32::from(digit - b'0');
    }
    Some((number, is_card))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_numbers() {
        assert_eq!(parse(b"renderD128"), Some((128, false)));
        assert_eq!(parse(b"card0"), Some((0, true)));
        for name in [&b"renderD"[..], b"renderD12x", b"by-path", b"card", b"card12345"] {
            assert_eq!(parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn without_the_variable_there_are_no_nodes() {
        // SAFETY: the path is a terminated constant.
        assert_eq!(unsafe { node(c"/dev/dri/renderD128".as_ptr()) }, None);
    }
}
