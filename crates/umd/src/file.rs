//! Descriptors of other processes: the identity of their files, and how to get them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::boundary::LOG;
use crate::refusal::{Kind, Refusal, Result, invalid};

/// The identity of a file, valid for as long as any process has it open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "handles carry it")]
pub struct Identity {
    /// The device of the file system.
    pub device: u64,
    /// The inode on it.
    pub inode: u64,
}

impl Identity {
    /// The identity of the file behind a descriptor.
    ///
    /// # Errors
    ///
    /// It cannot be asked.
    pub fn of(file: BorrowedFd<'_>) -> Result<Self> {
        let stat = rustix::fs::fstat(file);
        let stat = stat.map_err(|error| Refusal::new(Kind::System, error.to_string()))?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// A copy of descriptor `fd` of process `pid`, if it still refers to the same file.
///
/// # Errors
///
/// The process is gone or another user's, or no longer has the file.
pub fn take(pid: u32, fd: i32, file: Identity) -> Result<OwnedFd> {
    let gone = |why: &str| invalid(format!("process {pid}: {why}"));
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| gone("there is no such process"))?;
    let process =
        pidfd_open(process, PidfdFlags::empty()).map_err(|error| gone(&error.to_string()))?;
    let taken = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).map_err(|error| {
        if error == rustix::io::Errno::PERM {
            tracing::warn!(
                target: LOG,
                "taking memory of process {pid} is not permitted (pidfd_getfd: {error}); both must be the same user's, and Yama \
                 (kernel.yama.ptrace_scope) must permit it{}",
                sandbox::HINT,
            );
            let why = format!("pidfd_getfd: {error}{}", sandbox::HINT);
            return Refusal::new(Kind::NotPermitted, why);
        }
        gone(&error.to_string())
    })?;
    if Identity::of(taken.as_fd())? != file {
        return Err(gone("it was freed"));
    }
    Ok(taken)
}

/// Lets other processes of the user take our descriptors where Yama permits only parents to.
pub fn allow() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: it sets which processes may ask, and nothing else. Without Yama it returns
        // EINVAL.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    });
}
