//! Which paths are redirected, and where to.

#![allow(
    unsafe_code,
    reason = "paths come as C strings, and the directory as a variable of the C environment"
)]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU8, Ordering};

use crate::netlink::refresh_counters;
use crate::variable::variable;

/// The directories that are ours, as in the tree `peerdma run` makes.
const SERVED: [&[u8]; 8] = [
    b"class/infiniband",
    b"class/infiniband_verbs",
    b"devices/virtual/peerdma",
    b"bus/peerdma",
    b"module/nvidia_peermem",
    b"module/nv_peer_mem",
    b"module/xe",
    b"kernel/mm/memory_peers",
];

/// The files of `/proc` that are ours.
const FILES: [&[u8]; 2] = [b"kallsyms", b"modules"];

/// How the names of PCI functions begin. Those that are in the tree are ours.
const FUNCTIONS: [&[u8]; 2] = [b"devices/pci", b"bus/pci/devices/"];

/// The longest path the kernel takes, with its terminator.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The directory `PEERDMA_SYSFS` names, read once: a program may change its environment while
/// another thread opens files.
struct Directory {
    state: AtomicU8,
    /// The name and a terminator; nothing is written once the state is `SET`.
    name: UnsafeCell<[u8; PATH_MAX]>,
}

const UNREAD: u8 = 0;
const READING: u8 = 1;
const UNSET: u8 = 2;
const SET: u8 = 3;

// SAFETY: `name` is written by the one thread that moved the state from UNREAD to READING, and read
// only by those that saw SET.
unsafe impl Sync for Directory {}

static DIRECTORY: Directory =
    Directory { state: AtomicU8::new(UNREAD), name: UnsafeCell::new([0; PATH_MAX]) };

impl Directory {
    /// The name, without terminator.
    fn get(&self) -> Option<&[u8]> {
        // ORDERING: pairs with the release store below: a thread that sees SET sees the name.
        let mut state = self.state.load(Ordering::Acquire);
        if state == UNREAD {
            state = self.read();
        }
        // A thread that arrives while another reads proceeds without the name: that is at most one
        // call at the start of the program.
        if state != SET {
            return None;
        }
        // SAFETY: the state is SET, so nobody writes the name.
        let name: &[u8; PATH_MAX] = unsafe { &*self.name.get() };
        name.split(|&byte| byte == 0).next()
    }

    fn read(&self) -> u8 {
        let won =
            self.state.compare_exchange(UNREAD, READING, Ordering::Acquire, Ordering::Acquire);
        if let Err(state) = won {
            return state;
        }
        let mut state = UNSET;
        let value = variable(c"PEERDMA_SYSFS");
        if let Some(value) = value.filter(|v| v.starts_with(b"/") && v.len() < PATH_MAX) {
            // SAFETY: this thread moved the state to READING, so it alone touches the name.
            let name: &mut [u8; PATH_MAX] = unsafe { &mut *self.name.get() };
            name[..value.len()].copy_from_slice(value);
            state = SET;
        }
        self.state.store(state, Ordering::Release);
        state
    }
}

/// Room for a path, on the caller's stack.
pub(crate) struct Room([u8; PATH_MAX]);

impl Room {
    pub(crate) const fn new() -> Self {
        Self([0; PATH_MAX])
    }

    /// All of it.
    pub(crate) fn bytes(&mut self) -> &mut [u8; PATH_MAX] {
        &mut self.0
    }

    /// The string in it.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }

    /// Writes these parts and a terminator, if there is room.
    pub(crate) fn write(&mut self, parts: &[&[u8]]) -> bool {
        let mut at = 0;
        for part in parts {
            let Some(space) = self.0.get_mut(at..at + part.len()) else { return false };
            space.copy_from_slice(part);
            at += part.len();
        }
        match self.0.get_mut(at) {
            Some(end) => *end = 0,
            None => return false,
        }
        true
    }
}

/// The path to use instead of this one: in `room` if it is ours, otherwise the path itself.
///
/// # Safety
///
/// `path` is null or a terminated string that stays as it is while the result is used.
pub(crate) unsafe fn redirect(path: *const c_char, room: &mut Room) -> *const c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: not null, and the caller promises that it is terminated.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let Some(directory) = DIRECTORY.get() else { return path };
    let is_ours = if let Some(below) = below_sys(bytes) {
        room.write(&[directory, b"/", below])
    } else if let Some(below) = below_dev(bytes) {
        room.write(&[directory, b"/../dev/", below])
    } else if let Some(below) = below_proc(bytes) {
        room.write(&[directory, b"/../proc/", below])
    } else if let Some(below) = below_boot(bytes) {
        room.write(&[directory, b"/../boot/", below]) && exists(room)
    } else if let Some(below) = function_below_sys(bytes) {
        room.write(&[directory, b"/", below]) && exists(room)
    } else {
        false
    };
    if is_ours && is_counter(bytes) {
        refresh_counters();
    }
    if is_ours { room.0.as_ptr().cast() } else { path }
}

/// Whether an absolute path is of a directory that is ours, or in one.
pub(crate) fn is_served(path: &[u8]) -> bool {
    below_sys(path).is_some() || below_dev(path).is_some() || function_below_sys(path).is_some()
}

/// The directory that stands for `/sys`, if there is a tree.
pub(crate) fn real_directory() -> Option<&'static [u8]> {
    DIRECTORY.get()
}

/// Whether there is a tree.
pub(crate) fn has_tree() -> bool {
    DIRECTORY.get().is_some()
}

/// The path of a file beside the tree, if there is a tree.
pub(crate) fn beside_tree(room: &mut Room, file: &[u8]) -> Option<*const c_char> {
    let directory = DIRECTORY.get()?;
    room.write(&[directory, b"/../", file]).then(|| room.0.as_ptr().cast())
}

/// The device number of a uverbs device of ours: that of the kernel's (`IB_UVERBS_MAJOR`,
/// `IB_UVERBS_BASE_MINOR`).
///
/// # Safety
///
/// `path` is null or a terminated string.
#[cfg_attr(test, expect(dead_code, reason = "the hooks are not in the tests"))]
pub(crate) unsafe fn uverbs(path: *const c_char) -> Option<libc::dev_t> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller promises that it is terminated.
    let below = below_dev(unsafe { CStr::from_ptr(path) }.to_bytes())?;
    DIRECTORY.get()?;
    let index = core::str::from_utf8(below.strip_prefix(b"infiniband/uverbs")?).ok()?;
    Some(libc::makedev(231, 192 + index.parse::<u8>().ok()? as u32))
}

/// The reverse: a path in the directory becomes one of `/sys`, for functions that return a path.
/// Works in place, since the result is shorter or fits by `room`: `size` bytes at `path`.
///
/// # Safety
///
/// `path` is a terminated string in `size` writable bytes.
#[cfg_attr(test, expect(dead_code, reason = "the hooks are not in the tests"))]
pub(crate) unsafe fn restore(path: *mut c_char, size: usize) {
    let Some(directory) = DIRECTORY.get() else { return };
    let mut room = Room::new();
    // SAFETY: the caller promises that the string is terminated.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let Some(below) = bytes.strip_prefix(directory) else { return };
    if !below.is_empty() && !below.starts_with(b"/") {
        return;
    }
    if room.write(&[b"/sys", below]) && b"/sys".len() + below.len() < size {
        let length = b"/sys".len() + below.len() + 1;
        // SAFETY: `room` holds `length` bytes, the caller's buffer `size`, which is not less, and
        // they are apart.
        unsafe { core::ptr::copy_nonoverlapping(room.0.as_ptr().cast(), path, length) };
    }
}

/// What follows `/sys/` in a path of ours. Slashes may be doubled; `.` and `..` are not resolved.
fn below_sys(path: &[u8]) -> Option<&[u8]> {
    let (_, below) = strip(path, b"sys")?;
    SERVED.iter().any(|served| is_below(below, served)).then_some(below)
}

/// Whether a path that is ours names a counter.
fn is_counter(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|&byte| byte == b'/').filter(|part| !part.is_empty());
    parts.next().is_some()
        && matches!(parts.next(), Some(b"counters" | b"hw_counters"))
        && parts.nth(1).is_some_and(|ports| ports == b"ports")
}

/// What follows `/sys/` in a path that may name a PCI function of ours.
fn function_below_sys(path: &[u8]) -> Option<&[u8]> {
    let (_, below) = strip(path, b"sys")?;
    let start = below.iter().position(|&byte| byte != b'/')?;
    let below = &below[start..];
    FUNCTIONS.iter().any(|function| below.starts_with(function)).then_some(below)
}

/// Whether a file of this name exists. libc's function for this may be one of our hooks.
fn exists(room: &Room) -> bool {
    let path = room.0.as_ptr();
    // SAFETY: a terminated string that lives as long as the call.
    let found = unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, libc::F_OK) };
    found == 0
}

/// What follows `/dev/` in a path of ours.
fn below_dev(path: &[u8]) -> Option<&[u8]> {
    let (_, below) = strip(path, b"dev")?;
    is_below(below, b"infiniband").then_some(below)
}

/// What follows `/proc/` in the path of a file of ours.
fn below_proc(path: &[u8]) -> Option<&[u8]> {
    let (_, below) = strip(path, b"proc")?;
    FILES.contains(&below).then_some(below)
}

/// What follows `/boot/` in the path of a file that may be ours.
fn below_boot(path: &[u8]) -> Option<&[u8]> {
    let (_, below) = strip(path, b"boot")?;
    below.starts_with(b"config-").then_some(below)
}

/// Whether a path is this directory or in it.
fn is_below(path: &[u8], directory: &[u8]) -> bool {
    let mut rest = path;
    let mut first = true;
    for name in directory.split(|&byte| byte == b'/') {
        let found = if first { rest.strip_prefix(name) } else { strip(rest, name).map(|it| it.0) };
        match found {
            Some(behind) if behind.is_empty() || behind[0] == b'/' => rest = behind,
            _ => return false,
        }
        first = false;
    }
    true
}

/// Strips slashes and a name: returns what follows, with and without its leading slashes.
fn strip<'a>(path: &'a [u8], name: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let start = path.iter().position(|&byte| byte != b'/').filter(|&start| start > 0)?;
    let behind = path[start..].strip_prefix(name)?;
    let slashes = behind.iter().take_while(|&&byte| byte == b'/').count();
    (behind.is_empty() || slashes > 0).then(|| (behind, &behind[slashes..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_directories_are_found() {
        let below = |path: &'static str| below_sys(path.as_bytes());
        assert_eq!(below("/sys/class/infiniband"), Some(&b"class/infiniband"[..]));
        assert_eq!(below("//sys//class/infiniband/a"), Some(&b"class/infiniband/a"[..]));
        assert_eq!(below("/sys/class//infiniband_verbs/"), Some(&b"class//infiniband_verbs/"[..]));
        let srcversion = "/sys/module/xe/srcversion";
        assert_eq!(below(srcversion), Some(&b"module/xe/srcversion"[..]));
        for path in ["/sys", "/sys/class", "/sys/class/infiniband_mad", "/sys/module/xen"] {
            assert_eq!(below(path), None, "{path}");
        }
        assert_eq!(below("sys/class/infiniband"), None);
    }

    #[test]
    fn devices_are_found() {
        assert_eq!(below_dev(b"/dev/infiniband/uverbs0"), Some(&b"infiniband/uverbs0"[..]));
        assert_eq!(below_dev(b"/dev/infinibands"), None);
        assert_eq!(below_dev(b"/sys/dev/infiniband"), None);
    }

    #[test]
    fn files_of_proc_are_found() {
        assert_eq!(below_proc(b"/proc/kallsyms"), Some(&b"kallsyms"[..]));
        assert_eq!(below_proc(b"//proc//modules"), Some(&b"modules"[..]));
        for path in [&b"/proc/modules2"[..], b"/proc/self/modules", b"/sys/proc/modules", b"proc"] {
            assert_eq!(below_proc(path), None);
        }
    }

    #[test]
    fn the_configuration_of_a_kernel_may_be_ours() {
        assert_eq!(below_boot(b"/boot//config-6.1.0"), Some(&b"config-6.1.0"[..]));
        assert_eq!(below_boot(b"/boot/vmlinuz-6.1.0"), None);
        assert_eq!(below_boot(b"/mnt/boot/config-6.1.0"), None);
    }

    #[test]
    fn a_path_that_does_not_fit_is_left_alone() {
        let mut room = Room::new();
        assert!(room.write(&[b"/a", b"/", b"b"]));
        assert_eq!(&room.0[..5], b"/a/b\0");
        assert!(!room.write(&[&[b'x'; PATH_MAX]]));
        assert!(room.write(&[&[b'x'; PATH_MAX - 1]]));
    }

    #[test]
    fn without_the_variable_nothing_is_redirected() {
        let path = c"/sys/class/infiniband";
        let mut room = Room::new();
        // SAFETY: the path is a terminated constant.
        let redirected = unsafe { redirect(path.as_ptr(), &mut room) };
        assert_eq!(redirected, path.as_ptr());
    }
}
