//! What is refused, in the log and as errno.

use std::ffi::c_int;

use dmabuf::{ExporterError, ExporterErrorKind};

use crate::errno;

/// Errno of a call that failed.
pub(crate) type Result<T> = std::result::Result<T, c_int>;

/// A refusal of ours, in the log, and its errno.
pub(crate) fn no(driver: &str, errno: c_int, why: std::fmt::Arguments<'_>) -> c_int {
    tracing::debug!(target: "peerdma::drm", "{driver}: {why}");
    errno
}

/// The GPU's refusal, in the log, and its errno.
pub(crate) fn refused(error: &ExporterError) -> c_int {
    tracing::debug!(target: "peerdma::drm", "{error}");
    match error.kind {
        ExporterErrorKind::Invalid => libc::EINVAL,
        ExporterErrorKind::Busy => libc::EBUSY,
        ExporterErrorKind::NotSupported => libc::EOPNOTSUPP,
        ExporterErrorKind::Unsupported => errno::ENOTSUPP,
        ExporterErrorKind::NoDevice => libc::ENODEV,
        ExporterErrorKind::NotPermitted => libc::EPERM,
        ExporterErrorKind::NoMemory => libc::ENOMEM,
        ExporterErrorKind::Again => libc::EAGAIN,
        ExporterErrorKind::Kernel(errno) => errno.raw_os_error(),
        _ => libc::EIO,
    }
}

/// The answer to a request that nobody knows.
pub(crate) fn unknown(nr: u8) -> c_int {
    tracing::debug!(target: "peerdma::drm", "ioctl {nr:#x} is not served");
    libc::EINVAL
}
