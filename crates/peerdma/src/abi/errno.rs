//! From the kind of a refusal to its errno: the only file that knows both.

use std::ffi::c_int;
use std::ptr;

use device::{Kind, Refusal};

/// The errno of a kind of refusal, as `docs/semantics.md` and the manual pages of the verbs say.
pub(crate) fn of(kind: Kind) -> c_int {
    match kind {
        Kind::AddressInUse => libc::EADDRINUSE,
        Kind::AddressNotAvailable => libc::EADDRNOTAVAIL,
        Kind::BadAddress => libc::EFAULT,
        Kind::BadFd => libc::EBADF,
        Kind::Busy => libc::EBUSY,
        Kind::Invalid => libc::EINVAL,
        Kind::NoDevice => libc::ENODEV,
        Kind::NoMemory => libc::ENOMEM,
        Kind::NotFound => libc::ENOENT,
        Kind::NotPermitted => libc::EPERM,
        Kind::NotSupported => libc::EOPNOTSUPP,
        Kind::Unsupported => ENOTSUPP,
        Kind::ReadOnly => libc::EACCES,
        Kind::TimedOut => libc::ETIMEDOUT,
        Kind::Unreachable => libc::ENETUNREACH,
        Kind::WouldBlock => libc::EAGAIN,
        // `Io`, and any kind that this table does not list yet.
        _ => libc::EIO,
    }
}

/// The kernel's own number for an unsupported operation: no C library has a name for it.
pub(crate) const ENOTSUPP: c_int = 524;

/// The thread's errno.
pub(crate) fn get() -> c_int {
    // SAFETY: the C library gives each thread an errno that lives as long as the thread does.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: `place` is valid and only this thread uses it.
    unsafe { place.read() }
}

/// Sets the thread's errno.
pub(crate) fn set(errno: c_int) {
    // SAFETY: the C library gives each thread an errno that lives as long as the thread does.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: `place` is valid and only this thread uses it.
    unsafe { place.write(errno) };
}

/// For calls that return 0 or the errno.
pub(crate) fn or_errno(result: Result<(), Refusal>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(refusal) => of(refusal.kind()),
    }
}

/// For calls that return 0 or -1 and set errno.
pub(crate) fn or_minus_one(result: Result<(), Refusal>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(refusal) => {
            set(of(refusal.kind()));
            -1
        }
    }
}

/// For calls that return an object or NULL and set errno.
pub(crate) fn or_null<T>(result: Result<*mut T, Refusal>) -> *mut T {
    match result {
        Ok(object) => object,
        Err(refusal) => {
            set(of(refusal.kind()));
            ptr::null_mut()
        }
    }
}
