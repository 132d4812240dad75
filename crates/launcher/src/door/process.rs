//! What the standard library does not do with processes: fork and continue, receive signals as
//! messages, release everything inherited.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;

/// Forks. `None` in the child. The process must have one thread, so that the child may do
/// everything that the parent may.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: with one thread, no lock is held by a thread that the child would lack.
    let pid = unsafe { libc::fork() };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(Pid::from_raw(pid)) }
}

/// Whether Yama lets only ancestors read a process's memory (`ptrace_scope` 1 and above).
pub(super) fn only_ancestors_may_read_memory() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .is_ok_and(|scope| scope.trim() != "0")
}

/// Makes this process the parent of descendants whose parent dies, so that it stays their ancestor.
pub(super) fn adopt_orphans() -> io::Result<()> {
    // The argument may be any process; only its presence counts.
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Reaps a child that has ended: its number and wait status.
pub(super) fn reap() -> Option<(Pid, i32)> {
    let ended = rustix::process::wait(rustix::process::WaitOptions::NOHANG);
    ended.ok().flatten().map(|(pid, status)| (pid, status.as_raw()))
}

/// The signals a process blocks.
pub(super) struct Mask(libc::sigset_t);

impl Mask {
    /// The signals that this process blocks now.
    pub(super) fn current() -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: with no new set, sigprocmask only writes the old one, whole.
        let failed =
            unsafe { libc::sigprocmask(libc::SIG_SETMASK, std::ptr::null(), set.as_mut_ptr()) };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so it wrote the set.
        Ok(Self(unsafe { set.assume_init() }))
    }

    /// Blocks exactly these signals again.
    pub(super) fn restore(&self) {
        // SAFETY: the set came from sigprocmask, which only reads it here; the old one is not
        // requested.
        unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        };
    }
}

/// Signals that arrive as messages and have no other effect.
pub(super) struct Signals(OwnedFd);

impl Signals {
    /// Blocks these signals and opens a descriptor that delivers them.
    pub(super) fn take(signals: &[i32]) -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set it is given.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
        };
        for &signal in signals {
            // SAFETY: the set is initialised.
            unsafe {
                libc::sigaddset(set.as_mut_ptr(), signal);
            };
        }
        // SAFETY: sigemptyset initialised it.
        let set = unsafe { set.assume_init() };
        // SAFETY: sigprocmask reads the set; the old mask is not requested.
        let blocked =
            unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if blocked != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd reads the set and makes a descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so the descriptor is new and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal that arrived: its number, and whether a process sent it rather than the
    /// kernel (a terminal sends its signals to the whole process group).
    pub(super) fn next(&self) -> Option<(i32, bool)> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        if rustix::io::read(&self.0, &mut info) != Ok(info.len()) {
            return None;
        }
        let field = |at: usize| i32::from_ne_bytes(info[at..at + 4].try_into().expect("4 bytes"));
        let code = field(mem::offset_of!(libc::signalfd_siginfo, ssi_code));
        Some((field(mem::offset_of!(libc::signalfd_siginfo, ssi_signo)), code != libc::SI_KERNEL))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Ignores the signals by which a terminal stops a process, and SIGPIPE.
pub(super) fn ignore_stops() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGPIPE] {
        // SAFETY: each of these signals may have the disposition SIG_IGN, which runs no code of
        // ours.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        };
    }
}

/// Releases the terminal, the pipes and the directory that belong to the program: only the
/// descriptors in `keep`, and standard error if it is still needed, stay. A process that waits for
/// the program to close a pipe must not wait for us.
pub(super) fn let_go(keep: &[BorrowedFd<'_>], keep_stderr: bool) {
    let keep: Vec<RawFd> = keep.iter().map(AsRawFd::as_raw_fd).collect();
    let _ = std::env::set_current_dir("/");
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2 && !keep.contains(fd)) {
        // SAFETY: a descriptor that is not in `keep` was inherited from our parent, or belonged to
        // the directory listing and is closed already; no value of this process owns it.
        unsafe {
            libc::close(fd);
        };
    }
    let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") else {
        return;
    };
    for fd in 0..if keep_stderr { 2 } else { 3 } {
        // SAFETY: both are descriptors of this process; the standard ones have no owner.
        unsafe {
            libc::dup2(null.as_raw_fd(), fd);
        };
    }
}

/// Whether explanations go to standard error.
pub(super) fn is_explaining() -> bool {
    tracing::enabled!(tracing::Level::ERROR)
}
