//! The seccomp listener: installing the filter, receiving notifications, answering them
//! (`seccomp_unotify(2)`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::counters::Counter;
use super::filter;

/// Wakes the supervisor on the program's CPU: the program waits for it anyway (Linux 6.6).
const SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: u64 = 1;

/// A system call that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notification {
    /// Identifies the call until it is answered or its thread is interrupted or dies.
    pub(super) id: u64,
    /// The thread that makes the call.
    pub(super) tid: i32,
    /// The number of the call.
    pub(super) number: i32,
    /// Its arguments.
    pub(super) args: [u64; 6],
}

/// How a call ends.
#[derive(Debug)]
pub(super) enum Answer {
    /// The kernel executes it unchanged.
    Continue,
    /// It returns this value.
    Value(i64),
    /// It fails with this errno.
    Error(Errno),
    /// It returns this file as a new descriptor.
    File { file: OwnedFd, cloexec: bool },
    /// It returns a counter, which is not known yet; if it cannot be, this file.
    Counter { counter: Counter, file: OwnedFd, cloexec: bool },
}

/// Where notifications of one filter arrive.
pub(super) struct Listener {
    fd: Arc<OwnedFd>,
    /// The kernel clears and fills as many bytes as its own structure has, which may be more than
    /// ours.
    buffer: Vec<u64>,
}

/// Installs the filter on this thread, for good, and returns the listener.
///
/// A process that is privileged in its user namespace keeps its ability to run setuid programs; any
/// other loses it (`PR_SET_NO_NEW_PRIVS`), since the kernel lets no other process install a filter.
pub(super) fn install() -> io::Result<OwnedFd> {
    // A filter cannot be removed, and an older kernel cannot put files into the program. (gVisor
    // reports 4.4.)
    if !is_at_least(rustix::system::uname().release().to_bytes(), (5, 9)) {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    match install_as_we_are() {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            rustix::thread::set_no_new_privs(true)?;
            install_as_we_are()
        }
        other => other,
    }
}

/// Whether a kernel release (`6.1.0-13-amd64`) is at least this version.
fn is_at_least(release: &[u8], version: (u32, u32)) -> bool {
    let mut numbers = release
        .split(|byte| !byte.is_ascii_digit())
        .map(|digits| std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()));
    let mut next = || numbers.next().flatten().unwrap_or(0);
    (next(), next()) >= version
}

fn install_as_we_are() -> io::Result<OwnedFd> {
    let mut code = filter::program();
    let program = libc::sock_fprog {
        len: u16::try_from(code.len()).expect("the filter is far below BPF_MAXINSNS"),
        filter: code.as_mut_ptr(),
    };
    // SPEC_ALLOW: old kernels would slow the whole program down with mitigations it did not ask
    // for.
    // WAIT_KILLABLE_RECV: signals (Go sends many) do not restart a call we have begun to answer;
    // Linux 5.19.
    let base = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let mut result = Err(io::ErrorKind::Unsupported.into());
    for flags in [base | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, base] {
        // SAFETY: seccomp reads `program` and the instructions it points to, both alive here, and
        // keeps neither.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        };
        result = if fd < 0 {
            Err(io::Error::last_os_error())
        } else {
            // SAFETY: the call succeeded, so it returned a new descriptor with no other owner.
            Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
        };
        let unknown_flag =
            matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EINVAL));
        if !unknown_flag {
            break;
        }
    }
    result
}

impl Listener {
    /// Takes over a listener.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let mut sizes =
            libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
        // SAFETY: the operation writes three 16-bit sizes to `sizes`, which has that layout.
        let failed = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes)
        } != 0;
        if failed {
            return Err(io::Error::last_os_error());
        }
        let bytes = usize::from(sizes.seccomp_notif).max(size_of::<libc::seccomp_notif>());
        let listener = Self { fd: Arc::new(fd), buffer: vec![0; bytes.div_ceil(8)] };
        // A kernel without it is slower, but no worse otherwise. SAFETY: the argument of this ioctl
        // is a plain number.
        let _ = unsafe {
            libc::ioctl(
                listener.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP,
            )
        };
        Ok(listener)
    }

    /// The same for another thread.
    pub(super) fn share(&self) -> Self {
        Self { fd: Arc::clone(&self.fd), buffer: self.buffer.clone() }
    }

    /// The next notification; `None` if its thread has exited or was interrupted meanwhile.
    pub(super) fn receive(&mut self) -> io::Result<Option<Notification>> {
        // The kernel refuses a buffer that is not zero.
        self.buffer.fill(0);
        let notification = self.buffer.as_mut_ptr().cast::<libc::seccomp_notif>();
        // SAFETY: the buffer has at least the bytes that the kernel reported it writes, and the
        // alignment of u64, which is that of the structure.
        let failed = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, notification)
        } != 0;
        if failed {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the buffer is large enough and aligned for the structure, whose every bit pattern
        // is valid.
        let notification = unsafe { notification.read() };
        Ok(Some(Notification {
            id: notification.id,
            tid: notification.pid as i32,
            number: notification.data.nr,
            args: notification.data.args,
        }))
    }

    /// Whether the thread still waits, and thus whether memory read by its thread id was its own.
    pub(super) fn is_waiting(&self, id: u64) -> bool {
        // SAFETY: the ioctl reads one u64.
        let result = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id)
        };
        result == 0
    }

    /// Ends a call. It is no error if its thread has exited meanwhile.
    pub(super) fn answer(&self, id: u64, answer: Answer) -> io::Result<()> {
        let result = match answer {
            Answer::Continue => {
                self.respond(id, 0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32)
            }
            Answer::Value(value) => self.respond(id, value, 0, 0),
            Answer::Error(errno) => self.respond(id, 0, -errno.raw_os_error(), 0),
            Answer::File { file, cloexec } | Answer::Counter { file, cloexec, .. } => {
                self.put(id, file.as_fd(), cloexec)
            }
        };
        match result {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    fn respond(&self, id: u64, val: i64, error: i32, flags: u32) -> io::Result<()> {
        let response = libc::seccomp_notif_resp { id, val, error, flags };
        // SAFETY: the ioctl reads one seccomp_notif_resp.
        let result = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Installs a file and returns its number from the call, in one step where the kernel can
    /// (5.14).
    fn put(&self, id: u64, file: BorrowedFd<'_>, cloexec: bool) -> io::Result<()> {
        let send = libc::SECCOMP_ADDFD_FLAG_SEND as u32;
        let mut result = self.add(id, file.as_raw_fd(), cloexec, send).map(drop);
        if matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EINVAL)) {
            result = self
                .add(id, file.as_raw_fd(), cloexec, 0)
                .and_then(|number| self.respond(id, number, 0, 0));
        }
        match result {
            // For instance, the program's descriptor table is full: the call fails as the kernel's
            // own would.
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                self.respond(id, 0, -error.raw_os_error().unwrap_or(libc::EMFILE), 0)
            }
            other => other,
        }
    }

    fn add(&self, id: u64, file: RawFd, cloexec: bool, flags: u32) -> io::Result<i64> {
        let addfd = libc::seccomp_notif_addfd {
            id,
            flags,
            srcfd: file as u32,
            newfd: 0,
            newfd_flags: if cloexec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the ioctl reads one seccomp_notif_addfd.
        let result = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const addfd)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(i64::from(result)) }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::is_at_least;

    #[test]
    fn releases_are_compared_by_number() {
        assert!(is_at_least(b"5.10.0-8-amd64", (5, 9)));
        assert!(is_at_least(b"6.1", (5, 9)));
        assert!(!is_at_least(b"5.4.0", (5, 9)));
        assert!(!is_at_least(b"4.4.0", (5, 9)));
        assert!(!is_at_least(b"strange", (5, 9)));
    }
}
