//! Sealed memory files, mapped: the only module that directly accesses memory shared with a peer.
#![allow(unsafe_code, reason = "maps memory and accesses its words")]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use umem::Foreign;

use crate::sync::{Ordering, Words};

/// Seals that every memory file has: the file cannot shrink below a mapping (SIGBUS), and seals
/// cannot be added later.
pub(crate) const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// Why memory that a peer sent is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadMemory {
    #[error("it is not a memory file with seals ({0})")]
    NotMemfd(Errno),
    #[error("its memory file has seals {got:?}, and {need:?} are required")]
    Seals { got: SealFlags, need: SealFlags },
    #[error("its memory file has {got} bytes, and {need} are required")]
    Size { got: u64, need: u64 },
    #[error("its memory file is in huge pages, which can be removed")]
    HugePages,
    #[error("a ring cannot have {0} bytes")]
    Capacity(usize),
    #[error("its memory file cannot be mapped ({0})")]
    Map(Errno),
}

/// A mapping of a sealed memory file, shared with one or more peers. Not inherited by fork.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process and not to a thread; all access is by atomics or
// through `Foreign`, which expects concurrent writers.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a zeroed memory file of `len` bytes, maps it writable, and then seals it.
    pub(crate) fn create(name: &str, len: usize, seals: SealFlags) -> io::Result<(OwnedFd, Self)> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(no_memory_file)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        let mapping = Self::map(&fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
        // F_SEAL_FUTURE_WRITE leaves the mapping above writable.
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        Ok((fd, mapping))
    }

    /// Maps a memory file that a peer sent, after checking that it has at least `seals` and
    /// exactly `len` bytes. Read-only if sealed with `F_SEAL_FUTURE_WRITE`.
    pub(crate) fn open(
        fd: BorrowedFd<'_>,
        len: usize,
        seals: SealFlags,
    ) -> Result<Self, BadMemory> {
        let got = rustix::fs::fcntl_get_seals(fd).map_err(BadMemory::NotMemfd)?;
        if !got.contains(seals) {
            return Err(BadMemory::Seals { got, need: seals });
        }
        if umem::host::is_in_huge_pages(fd).map_err(BadMemory::NotMemfd)? {
            return Err(BadMemory::HugePages);
        }
        let stat = rustix::fs::fstat(fd).map_err(BadMemory::NotMemfd)?;
        if stat.st_size as u64 != len as u64 {
            return Err(BadMemory::Size { got: stat.st_size as u64, need: len as u64 });
        }
        let prot = if seals.contains(SealFlags::FUTURE_WRITE) {
            ProtFlags::READ
        } else {
            ProtFlags::READ | ProtFlags::WRITE
        };
        Self::map(fd, len, prot).map_err(BadMemory::Map)
    }

    /// The `len` bytes at offset `at`, as memory that others write.
    ///
    /// # Panics
    /// If they are not inside the mapping: callers check every offset that comes from a peer.
    #[inline]
    pub(crate) fn foreign(&self, at: usize, len: usize) -> Foreign<'_> {
        assert!(at <= self.len && len <= self.len - at, "{at}+{len} in a mapping of {}", self.len);
        // SAFETY: `at <= self.len`, so the result is in the mapping or at its end.
        let start = unsafe { self.base.add(at) };
        // SAFETY: `start..start+len` is inside a mapping that lives as long as `self`, and its
        // pages cannot vanish: the file is sealed against shrinking and not in huge pages.
        unsafe { Foreign::new(start.as_ptr(), len) }
    }

    fn map<Fd: std::os::fd::AsFd>(fd: Fd, len: usize, prot: ProtFlags) -> rustix::io::Result<Self> {
        // SAFETY: the kernel chooses the address, so that no other memory is affected.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self { base, len };
        // SAFETY: the range is the mapping above; the advice only concerns children.
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at <= self.len - 8 && at.is_multiple_of(8), "word {at} of {}", self.len);
        // SAFETY: `at + 8 <= self.len`.
        let word = unsafe { self.base.add(at) };
        // SAFETY: the word is mapped as long as `self` lives and aligned (the base is a page). All
        // users access it atomically; a hostile peer that does not can change the value, which
        // every user checks.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }
}

impl Words for Mapping {
    #[inline]
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    #[inline]
    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }

    #[inline]
    fn swap(&self, at: usize, value: u64) -> u64 {
        self.word(at).swap(value, Ordering::AcqRel)
    }

    fn update(&self, at: usize, f: impl Fn(u64) -> u64) {
        let word = self.word(at);
        // An error is impossible: the closure always has an answer.
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |v| Some(f(v)));
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, and no `Foreign` outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// `vm.memfd_noexec` and filters of system calls forbid memory files; other errors stay as they
/// are.
fn no_memory_file(errno: Errno) -> io::Error {
    let error = io::Error::from(errno);
    match sandbox::hint(errno.raw_os_error()) {
        "" => error,
        hint => io::Error::new(error.kind(), format!("memfd_create: {error}{hint}")),
    }
}
