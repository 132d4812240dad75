//! Which descriptors are buffers: memfds with a name that marks them, in every process, however it
//! got the descriptor.

#![allow(unsafe_code, reason = "the kernel's calls, which must not come back here")]

use core::ffi::{c_char, c_int, c_long};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::drm::{self, FileOps};
use crate::errno;

/// How the link of a buffer's descriptor begins.
const LINK: &[u8] = b"/memfd:peerdma:";

/// The device number of memfds, plus one; 0 while it is not known.
static DEVICE: AtomicU64 = AtomicU64::new(0);

/// The functions, if this descriptor is a buffer.
pub(crate) fn ops_of(fd: c_int) -> Option<&'static FileOps> {
    if is_buffer(fd) { drm::find() } else { None }
}

/// Costs one system call for a descriptor that is not a file in shared memory.
pub(crate) fn is_buffer(fd: c_int) -> bool {
    let Some(stat) = stat(fd) else { return false };
    stat.st_mode & libc::S_IFMT == libc::S_IFREG && Some(stat.st_dev) == device() && is_named(fd)
}

fn stat(fd: c_int) -> Option<libc::stat> {
    if fd < 0 {
        return None;
    }
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    keep_errno(|| {
        // SAFETY: the kernel fills the structure, or returns EBADF. On these machines it is the one
        // of libc.
        let done = unsafe { libc::syscall(libc::SYS_fstat, c_long::from(fd), stat.as_mut_ptr()) };
        // SAFETY: it was filled.
        (done == 0).then(|| unsafe { stat.assume_init() })
    })
}

/// The device that memfds are on, taken from one of them.
fn device() -> Option<u64> {
    let known = DEVICE.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known - 1);
    }
    let fd = keep_errno(|| {
        let (name, flags) = (c"peerdma-preload".as_ptr(), c_long::from(libc::MFD_CLOEXEC));
        // SAFETY: the name is terminated.
        unsafe { libc::syscall(libc::SYS_memfd_create, name, flags) }
    });
    // CAST: a descriptor, or -1.
    let found = stat(fd as c_int)?.st_dev;
    // SAFETY: it is ours.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    DEVICE.store(found + 1, Ordering::Relaxed);
    Some(found)
}

fn is_named(fd: c_int) -> bool {
    let mut path = [0_u8; 32];
    let prefix = b"/proc/self/fd/";
    path[..prefix.len()].copy_from_slice(prefix);
    let (mut digits, mut left) = ([0_u8; 10], fd.unsigned_abs());
    let mut first = digits.len();
    loop {
        first -= 1;
        // CAST: below 10.
        digits[first] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let digits = &digits[first..];
    path[prefix.len()..][..digits.len()].copy_from_slice(digits);
    let mut link = [0_u8; LINK.len()];
    let room = link.len();
    let read = keep_errno(|| {
        let (path, link) = (path.as_ptr().cast::<c_char>(), link.as_mut_ptr());
        // SAFETY: the path is terminated, and the array has this much room. `AT_FDCWD` does not
        // matter to it.
        unsafe {
            libc::syscall(libc::SYS_readlinkat, c_long::from(libc::AT_FDCWD), path, link, room)
        }
    });
    usize::try_from(read) == Ok(room) && link == LINK
}

/// Leaves errno as it was.
fn keep_errno<T>(body: impl FnOnce() -> T) -> T {
    let before = errno::get();
    let result = body();
    errno::set(before);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_known_by_its_name_and_others_are_not() {
        let make = |name: &core::ffi::CStr| {
            // SAFETY: the name is terminated.
            unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) }
        };
        let (buffer, pool) = (make(c"peerdma:gpu0.bo1@0000000000000000.1"), make(c"peerdma-gpu0"));
        assert!(is_buffer(buffer) && !is_buffer(pool) && !is_buffer(0) && !is_buffer(-1));
        for fd in [buffer, pool] {
            // SAFETY: they are ours.
            unsafe { libc::close(fd) };
        }
        assert!(!is_buffer(buffer), "it is closed");
    }
}
