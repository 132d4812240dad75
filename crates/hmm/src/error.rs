//! Why a mirror refuses.

use rustix::io::Errno;

/// Why a mirror refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The range extends beyond the mirror, or does not consist of whole pages.
    #[error("{call}: {len} bytes at {offset:#x}: {why}")]
    Range {
        /// Which call.
        call: &'static str,
        /// Where it begins.
        offset: u64,
        /// How long it is.
        len: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The program has unmapped the page (EFAULT).
    #[error("the page at {offset:#x} is not mapped any more")]
    Unmapped {
        /// Where.
        offset: u64,
    },
    /// Memory behind the mirror cannot be reached: the device took it away.
    #[error("memory of the device: {0}")]
    Memory(#[from] umem::Fault),
    /// There is no memory for it.
    #[error(transparent)]
    Host(#[from] umem::HostBufError),
    /// The process is a child of the one whose memory is mirrored.
    #[error("a child of a fork has the bytes, but no mirror")]
    Child,
    /// The kernel refused a call.
    #[error("{call}: {errno}{}", sandbox::hint(errno.raw_os_error()))]
    System {
        /// Which call.
        call: &'static str,
        /// The error.
        errno: Errno,
    },
    /// The thread that handles faults cannot be started, or `/proc` cannot be read.
    #[error("no thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What calls of a mirror return.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_by_a_sandbox_names_doctor_and_a_fault_does_not() {
        let refused = system("userfaultfd")(Errno::PERM).to_string();
        assert!(refused.ends_with(sandbox::HINT), "{refused}");
        let failed = system("UFFDIO_COPY")(Errno::FAULT).to_string();
        assert!(!failed.contains("doctor"), "{failed}");
    }
}
