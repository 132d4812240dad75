//! The working directory, when it is in the tree that `peerdma run` shows as `/sys`.
//!
//! No process can change another's directory, so the door leaves `chdir` to the kernel
//! (`launcher::door`). But it answers `open`, and a descriptor of a directory is all that `fchdir`
//! needs: a `chdir` to what may be ours is made of the two. From there the kernel walks relative
//! paths in the tree, for the program and for all that it starts, also for static programs.
//!
//! The kernel has another name for that directory: one that begins with `(unreachable)`, as the
//! tree is mounted nowhere, or that of a temporary directory. `getcwd` shows the name in `/sys`.

#![allow(unsafe_code, reason = "system calls, and paths as C strings")]

use core::ffi::{CStr, c_char, c_int};

use crate::errno;
use crate::redirect::{Room, is_served, real_directory};

/// What the kernel puts in front of the name of a directory that is mounted nowhere (`getcwd(2)`).
const UNREACHABLE: &[u8] = b"(unreachable)";
/// How the names of temporary directories begin that hold a tree (`launcher::door::backing`).
const TEMPORARY: &[u8] = b"/peerdma-sysfs.";

/// The name in `/sys` of a directory for which the kernel has this name, if it is one of the tree:
/// what begins it, and what follows.
fn in_tree<'a>(name: &'a [u8], tree: Option<&[u8]>) -> Option<(&'static [u8], &'a [u8])> {
    let is_end = |below: &[u8]| below.is_empty() || below.starts_with(b"/");
    if let Some(below) = tree.and_then(|tree| name.strip_prefix(tree)) {
        return is_end(below).then_some((b"/sys", below));
    }
    let below = if let Some(below) = name.strip_prefix(UNREACHABLE) {
        below
    } else {
        let at = name.windows(TEMPORARY.len()).position(|part| part == TEMPORARY)?;
        let behind = &name[at + 1..];
        &behind[behind.iter().position(|&byte| byte == b'/')?..]
    };
    let is_ours =
        [&b"/sys"[..], b"/dev"].iter().any(|it| below.strip_prefix(*it).is_some_and(is_end));
    is_ours.then_some((b"", below))
}

/// Whether a path, absolute or below `from`, may lead into the tree.
fn may_be_ours(path: &[u8], from: impl FnOnce() -> bool) -> bool {
    match path.iter().position(|&byte| byte != b'/') {
        Some(0) => from(),
        Some(start) => [&b"sys"[..], b"dev/"].iter().any(|it| path[start..].starts_with(it)),
        None => false,
    }
}

/// The kernel's name for the working directory.
fn name(room: &mut Room) -> Option<&[u8]> {
    let bytes = room.bytes();
    // SAFETY: the buffer is as long as the call is told.
    let length = unsafe { libc::syscall(libc::SYS_getcwd, bytes.as_mut_ptr(), bytes.len()) };
    // It counts the terminator.
    let length = usize::try_from(length).ok()?.checked_sub(1)?;
    bytes.get(..length)
}

/// The working directory's name in `/sys`, if it is in the tree: written to `room`, with a
/// terminator.
pub(crate) fn shown(room: &mut Room) -> Option<&CStr> {
    let mut own = Room::new();
    let (begin, below) = in_tree(name(&mut own)?, real_directory())?;
    room.write(&[begin, below]).then(|| room.as_c_str())
}

/// A path that begins at a directory of the tree, as one of `/sys`: in `room`. Any other one as it
/// is.
///
/// # Safety
///
/// `path` is null or a terminated string that stays as it is while the result is used.
pub(crate) unsafe fn absolute(path: *const c_char, room: &mut Room) -> *const c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: not null, and the caller promises that it is terminated.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if bytes.is_empty() || bytes.starts_with(b"/") {
        return path;
    }
    let mut here = Room::new();
    match shown(&mut here) {
        Some(here) if room.write(&[here.to_bytes(), b"/", bytes]) => room.as_c_str().as_ptr(),
        _ => path,
    }
}

/// Changes the working directory; `next` is libc's `chdir`.
///
/// # Safety
///
/// `path` is a terminated string.
pub(crate) unsafe fn change(path: *const c_char, next: impl Fn(*const c_char) -> c_int) -> c_int {
    // SAFETY: the caller promises that it is terminated.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_from_sys = || {
        let mut room = Room::new();
        let is_ours = shown(&mut room).is_some();
        is_ours || name(&mut room).is_some_and(|name| name.starts_with(b"/sys"))
    };
    // SAFETY: the caller promises that it is terminated.
    let through = || unsafe { change_through(path) };
    let done = if may_be_ours(bytes, is_from_sys) { through() } else { None };
    let done = done.unwrap_or_else(|| next(path));
    if done == 0 {
        leave_parents(next);
    }
    done
}

/// Changes the working directory through a descriptor; `None` if there is none free. libc's
/// functions may be hooks of ours.
///
/// # Safety
///
/// `path` is a terminated string.
unsafe fn change_through(path: *const c_char) -> Option<c_int> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the caller promises that it is terminated.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) };
    if fd < 0 {
        // What is not shown is not there, even if the kernel has it.
        return (!matches!(errno::get(), libc::EMFILE | libc::ENFILE)).then_some(-1);
    }
    // SAFETY: the descriptor is ours.
    let done = unsafe { libc::syscall(libc::SYS_fchdir, fd) };
    let why = errno::get();
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    errno::set(why);
    // CAST: 0 or -1.
    Some(done as c_int)
}

/// The directories above those that are ours are in the tree, too, but with nothing of the kernel's
/// in them. A program that went up into one is put into the kernel's, if the kernel has it.
fn leave_parents(next: impl Fn(*const c_char) -> c_int) {
    let mut room = Room::new();
    if let Some(shown) = shown(&mut room)
        && !is_served(shown.to_bytes())
    {
        next(shown.as_ptr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_in_sys(name: &str, tree: Option<&str>) -> Option<String> {
        let (begin, below) = in_tree(name.as_bytes(), tree.map(str::as_bytes))?;
        Some(String::from_utf8([begin, below].concat()).expect("text"))
    }

    #[test]
    fn a_directory_of_the_tree_has_its_name_in_sys() {
        let name = |name| name_in_sys(name, None);
        let is = |name: &str| Some(name.to_owned());
        assert_eq!(name("(unreachable)/sys/class/infiniband"), is("/sys/class/infiniband"));
        assert_eq!(
            name("/dev/shm/peerdma-sysfs.12.0/sys/bus/peerdma/devices"),
            is("/sys/bus/peerdma/devices"),
        );
        for other in [
            "/sys/class",
            "/",
            "(unreachable)/home",
            "(unreachable)/system",
            "/tmp/peerdma-sysfs.12.0",
            "/home/peerdma-sysfs",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
        let copied = |name| name_in_sys(name, Some("/srv/copy/sys"));
        assert_eq!(copied("/srv/copy/sys/class/infiniband"), is("/sys/class/infiniband"));
        assert_eq!(copied("/srv/copy/sys"), is("/sys"));
        assert_eq!(copied("/srv/copy/system"), None);
    }

    #[test]
    fn only_paths_to_sys_are_opened_first() {
        for path in ["/sys", "//sys/class/infiniband", "/dev/infiniband"] {
            assert!(may_be_ours(path.as_bytes(), || false), "{path}");
        }
        for path in ["/", "/home", "/usr/sys", "/dev"] {
            assert!(!may_be_ours(path.as_bytes(), || true), "{path}");
        }
        assert!(may_be_ours(b"..", || true) && !may_be_ours(b"..", || false), "by where it is");
        assert!(!may_be_ours(b"", || false));
    }

    #[test]
    fn the_directory_of_a_test_is_not_in_the_tree() {
        let here = std::env::current_dir().expect("there is one");
        let mut room = Room::new();
        assert_eq!(name(&mut room), Some(here.as_os_str().as_encoded_bytes()));
        assert_eq!(shown(&mut room), None);
    }
}
