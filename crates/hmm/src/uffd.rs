//! userfaultfd(2) and ioctl_userfaultfd(2).
#![allow(unsafe_code, reason = "ioctls by address")]

use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use linux_raw_sys::general::{
    UFFD_API, UFFD_EVENT_PAGEFAULT, UFFD_EVENT_REMAP, UFFD_EVENT_REMOVE, UFFD_EVENT_UNMAP,
    UFFD_FEATURE_EVENT_REMAP, UFFD_FEATURE_EVENT_REMOVE, UFFD_FEATURE_EVENT_UNMAP,
    UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_PAGEFAULT_FLAG_WP, UFFD_PAGEFAULT_FLAG_WRITE,
    UFFD_USER_MODE_ONLY, UFFDIO_COPY_MODE_WP, UFFDIO_REGISTER_MODE_MISSING,
    UFFDIO_REGISTER_MODE_WP, uffd_msg, uffdio_api, uffdio_copy, uffdio_range, uffdio_register,
    uffdio_writeprotect, uffdio_zeropage,
};
use linux_raw_sys::ioctl::{
    UFFDIO_API, UFFDIO_COPY, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_WRITEPROTECT,
    UFFDIO_ZEROPAGE,
};
use rustix::io::Errno;
use rustix::mm::UserfaultfdFlags;

use crate::PAGE;
use crate::error::{Result, system};

/// What the kernel must report: pages that are not there, writes to protected ones, and what the
/// program does to the range. It has had all of that since Linux 5.7.
const FEATURES: u32 = UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | UFFD_FEATURE_EVENT_REMAP
    | UFFD_FEATURE_EVENT_REMOVE
    | UFFD_FEATURE_EVENT_UNMAP;

/// `UFFDIO_WRITEPROTECT_MODE_WP`.
const PROTECT: u64 = 1;

/// A userfaultfd.
#[derive(Debug)]
pub(crate) struct Uffd {
    fd: OwnedFd,
    is_user_mode_only: bool,
}

/// What the kernel reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A page that is not there was touched, or a protected one written.
    Fault { addr: usize, is_protection: bool, is_write: bool },
    /// The program dropped pages.
    Remove { start: usize, end: usize },
    /// It unmapped pages.
    Unmap { start: usize, end: usize },
    /// It moved pages.
    Remap { from: usize, to: usize, len: u64 },
    /// An event that was not requested.
    Other,
}

impl Uffd {
    /// Opens one that also reports faults of the kernel, if the process is allowed that.
    pub(crate) fn open() -> Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let user_mode = UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        let (fd, is_user_mode_only) = match new(flags) {
            // userfaultfd(2): EPERM without CAP_SYS_PTRACE and vm.unprivileged_userfaultfd.
            Err(Errno::PERM) => (new(flags | user_mode), true),
            other => (other, false),
        };
        let uffd = Self { fd: fd.map_err(system("userfaultfd"))?, is_user_mode_only };
        let mut api = uffdio_api { api: UFFD_API.into(), features: FEATURES.into(), ioctls: 0 };
        uffd.ioctl(UFFDIO_API, &mut api).map_err(system("UFFDIO_API"))?;
        Ok(uffd)
    }

    pub(crate) fn is_user_mode_only(&self) -> bool {
        self.is_user_mode_only
    }

    /// Faults of this range are reported from now on.
    pub(crate) fn register(&self, addr: usize, len: u64) -> std::result::Result<(), Errno> {
        let mode = u64::from(UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
        let mut args = uffdio_register { range: range(addr, len), mode, ioctls: 0 };
        self.ioctl(UFFDIO_REGISTER, &mut args)
    }

    pub(crate) fn unregister(&self, addr: usize, len: u64) -> std::result::Result<(), Errno> {
        self.ioctl(UFFDIO_UNREGISTER, &mut range(addr, len))
    }

    /// Puts a page there, write-protected or not, and wakes the threads that wait for it. EEXIST:
    /// there is a page already.
    pub(crate) fn copy(
        &self,
        addr: usize,
        bytes: &[u8; PAGE as usize],
        is_protected: bool,
    ) -> std::result::Result<(), Errno> {
        let src = bytes.as_ptr().addr() as u64;
        let mode = if is_protected { UFFDIO_COPY_MODE_WP.into() } else { 0 };
        let mut args = uffdio_copy { dst: addr as u64, src, len: PAGE, mode, copy: 0 };
        self.ioctl(UFFDIO_COPY, &mut args)
    }

    /// Puts a page of zeros there, likewise.
    pub(crate) fn zero(&self, addr: usize) -> std::result::Result<(), Errno> {
        let mut args = uffdio_zeropage { range: range(addr, PAGE), mode: 0, zeropage: 0 };
        self.ioctl(UFFDIO_ZEROPAGE, &mut args)
    }

    /// Makes writes to the page fault from now on, or no longer fault, which wakes the threads that
    /// wait to write.
    pub(crate) fn protect(&self, addr: usize, is_on: bool) -> std::result::Result<(), Errno> {
        let mode = if is_on { PROTECT } else { 0 };
        let mut args = uffdio_writeprotect { range: range(addr, PAGE), mode };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut args)
    }

    /// Lets threads that wait for the page try again.
    pub(crate) fn wake(&self, addr: usize) -> std::result::Result<(), Errno> {
        self.ioctl(UFFDIO_WAKE, &mut range(addr, PAGE))
    }

    /// The next report, if there is one.
    pub(crate) fn next(&self) -> std::result::Result<Option<Event>, Errno> {
        let mut bytes = [0; size_of::<uffd_msg>()];
        match rustix::io::read(&self.fd, &mut bytes) {
            Ok(got) if got == bytes.len() => Ok(Some(parse(bytes))),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn ioctl<T>(&self, call: u32, args: &mut T) -> std::result::Result<(), Errno> {
        // SAFETY: each call above passes the structure that its number is made of, and ranges of
        // memory that this crate owns or was lent (`Mirror::over`): the kernel fills pages that are
        // missing there and no others, and reads `bytes` while they are borrowed.
        let done = unsafe { libc::ioctl(self.fd.as_raw_fd(), call.into(), args) };
        if done == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn new(flags: UserfaultfdFlags) -> std::result::Result<OwnedFd, Errno> {
    // SAFETY: the call itself touches no memory; this module justifies what it does with the
    // descriptor.
    unsafe { rustix::mm::userfaultfd(flags) }
}

fn range(addr: usize, len: u64) -> uffdio_range {
    uffdio_range { start: addr as u64, len }
}

fn parse(bytes: [u8; size_of::<uffd_msg>()]) -> Event {
    // SAFETY: the message is plain numbers, for which all bytes zero are fine.
    let mut message: uffd_msg = unsafe { zeroed() };
    // SAFETY: source and destination are as long as the message, and do not overlap.
    unsafe { (&raw mut message).cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
    let arg = message.arg;
    match u32::from(message.event) {
        UFFD_EVENT_PAGEFAULT => {
            // SAFETY: this member is what the event says, and all members are numbers.
            let fault = unsafe { arg.pagefault };
            let is_protection = fault.flags & u64::from(UFFD_PAGEFAULT_FLAG_WP) != 0;
            let is_write = fault.flags & u64::from(UFFD_PAGEFAULT_FLAG_WRITE) != 0;
            // CAST: an address of this process.
            Event::Fault { addr: fault.address as usize, is_protection, is_write }
        }
        UFFD_EVENT_REMOVE | UFFD_EVENT_UNMAP => {
            // SAFETY: as above.
            let range = unsafe { arg.remove };
            let (start, end) = (range.start as usize, range.end as usize);
            if u32::from(message.event) == UFFD_EVENT_REMOVE {
                Event::Remove { start, end }
            } else {
                Event::Unmap { start, end }
            }
        }
        UFFD_EVENT_REMAP => {
            // SAFETY: as above.
            let remap = unsafe { arg.remap };
            let (from, to, len) = (remap.from as usize, remap.to as usize, remap.len);
            Event::Remap { from, to, len }
        }
        _ => Event::Other,
    }
}
