//! Refusals: logged, and returned as errno.

use std::ffi::c_int;

use dmabuf::{ExporterError, ExporterErrorKind};

use crate::errno;

/// The errno of a call that failed.
pub(crate) type Result<T> = std::result::Result<T, c_int>;

/// Logs a refusal of ours, and returns its errno.
pub(crate) fn no(driver: &str, errno: c_int, why: std::fmt::Arguments<'_>) -> c_int {
    tracing::debug!(target: "peerdma::drm", "{driver}: {why}");
    errno
}

/// Logs the GPU's refusal, and returns its errno.
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

/// The answer to an unknown request.
pub(crate) fn unknown(nr: u8) -> c_int {
    tracing::debug!(target: "peerdma::drm", "ioctl {nr:#x} is not served");
    libc::EINVAL
}
