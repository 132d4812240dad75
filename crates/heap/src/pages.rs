//! The range of addresses that blocks lie in, and the file behind it.

#![allow(
    unsafe_code,
    reason = "mappings at addresses of our own choice, and a descriptor by number"
)]

use core::cell::Cell;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

/// What is reserved of the address space, where there is as much: addresses cost nothing.
const RESERVED: usize = 1 << 40;
/// Less is not worth it.
const LEAST_RESERVED: usize = 64 << 20;
/// The file grows by what it has already, between these: a peer maps it anew when it has grown.
const STEP: (usize, usize) = (4 << 20, 1 << 30);
/// Where the numbers of our descriptors begin, above those that a program gets for its files.
const FIRST_FD: u64 = 512;

/// The range, for those who only want to know whether an address is in it.
static SPAN: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Whether an address lies in the range.
pub(crate) fn holds(addr: usize) -> bool {
    // ORDERING: whoever has an address in the range got it after the range was there.
    let [start, end] = &SPAN;
    addr >= start.load(Ordering::Relaxed) && addr < end.load(Ordering::Relaxed)
}

/// A descriptor of ours, whose number the program may have closed or used for a file of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    fd: RawFd,
    device: u64,
    pub(crate) inode: u64,
}

impl File {
    /// A file of no bytes, which can grow and not shrink.
    pub(crate) fn new() -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"peerdma-heap", flags)?;
        // Peers map it, and must find their pages for as long as they do.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // CAST: at most 512.
        let first = FIRST_FD.min(limit / 2) as RawFd;
        let file = rustix::io::fcntl_dupfd_cloexec(&file, first).unwrap_or(file);
        let stat = rustix::fs::fstat(&file)?;
        Ok(Self { fd: file.into_raw_fd(), device: stat.st_dev, inode: stat.st_ino })
    }

    /// The descriptor, unless the number is the program's by now.
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        // SAFETY: the number is looked at below, before it is used for anything else. It is closed
        // by `close` alone, which takes the value.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let stat = rustix::fs::fstat(fd)?;
        if (stat.st_dev, stat.st_ino) == (self.device, self.inode) {
            Ok(fd)
        } else {
            Err(Errno::BADF)
        }
    }

    /// Makes the file longer.
    pub(crate) fn set_len(&self, len: usize) -> Result<(), Errno> {
        // The kernel would also send SIGXFSZ.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
            return Err(Errno::FBIG);
        }
        rustix::fs::ftruncate(self.fd()?, len as u64)
    }

    pub(crate) fn close(self) {
        if self.fd().is_ok() {
            // SAFETY: the number is of our file, and this is its end.
            drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
        }
    }
}

/// The pages. The lock of the heap is around them.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Whether the range was asked for.
    is_asked: Cell<bool>,
    base: Cell<usize>,
    end: Cell<usize>,
    /// Pages of the file up to here.
    shared: Cell<usize>,
    /// Mapped up to here: behind `shared` lies ordinary memory.
    top: Cell<usize>,
    file: Cell<Option<File>>,
    /// Why the file did not grow.
    refused: Cell<Option<Errno>>,
}

impl Pages {
    pub(crate) const fn new() -> Self {
        Self {
            is_asked: Cell::new(false),
            base: Cell::new(0),
            end: Cell::new(0),
            shared: Cell::new(0),
            top: Cell::new(0),
            file: Cell::new(None),
            refused: Cell::new(None),
        }
    }

    /// The addresses that are pages of the file, and the file.
    pub(crate) fn shared(&self) -> Option<(usize, usize, File)> {
        let file = self.file.get()?;
        (self.shared.get() > self.base.get()).then(|| (self.base.get(), self.shared.get(), file))
    }

    /// The file is another one, or none is there and the memory is ordinary from now on.
    pub(crate) fn replace_file(&self, with: Result<File, Errno>) {
        self.file.set(with.ok());
        if let Err(errno) = with {
            self.refused.set(Some(errno));
            self.shared.set(self.base.get());
        }
    }

    /// The file that has `len` bytes at `addr`, and their offset; or why none has.
    pub(crate) fn place(&self, addr: usize, len: usize) -> Result<(RawFd, u64), Option<Errno>> {
        let end = addr.checked_add(len).ok_or(None)?;
        if addr < self.base.get() || end > self.top.get() || addr >= end {
            return Err(None);
        }
        let file = self.file.get().filter(|_| end <= self.shared.get());
        let file = file.ok_or(Some(self.refused.get().unwrap_or(Errno::NODEV)))?;
        file.fd().map_err(Some)?;
        Ok((file.fd, (addr - self.base.get()) as u64))
    }

    /// Takes pages away from what lies between two addresses; they come back as zeros. Without
    /// success they keep their bytes.
    pub(crate) fn clear(&self, from: usize, to: usize) -> bool {
        let advice = if to <= self.shared.get() {
            Advice::LinuxRemove
        } else if from >= self.shared.get() {
            Advice::LinuxDontNeed
        } else {
            return false;
        };
        // SAFETY: the pages are those of a block that nobody has, or whose owner expects zeros.
        unsafe { rustix::mm::madvise(pointer(from), to - from, advice) }.is_ok()
    }

    fn reserve(&self) {
        if self.is_asked.replace(true) {
            return;
        }
        let most = getrlimit(Resource::As).current.map_or(u64::MAX, |limit| limit / 4);
        let mut size = RESERVED;
        while size >= LEAST_RESERVED {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
            let found = (size as u64 <= most).then(|| unsafe {
                rustix::mm::mmap_anonymous(ptr::null_mut(), size, ProtFlags::empty(), flags)
            });
            if let Some(Ok(base)) = found {
                let base = base.expose_provenance();
                for at in [&self.base, &self.shared, &self.top] {
                    at.set(base);
                }
                self.end.set(base + size);
                SPAN[0].store(base, Ordering::Relaxed);
                SPAN[1].store(base + size, Ordering::Relaxed);
                return;
            }
            size /= 2;
        }
    }

    /// Maps that many bytes more.
    fn grow(&self, bytes: usize) -> Option<*mut u8> {
        let top = self.top.get();
        if self.end.get() - top < bytes {
            return None;
        }
        // What lies behind ordinary memory is ordinary, too.
        let is_file = self.shared.get() == top && self.grow_file(top, bytes);
        if is_file {
            self.shared.set(top + bytes);
        } else {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the addresses are reserved, and nothing is there.
            unsafe { rustix::mm::mmap_anonymous(pointer(top), bytes, rights, flags) }.ok()?;
        }
        self.top.set(top + bytes);
        Some(pointer(top).cast())
    }

    /// Whether the file has that many bytes more, at these addresses.
    fn grow_file(&self, top: usize, bytes: usize) -> bool {
        let grown = self.try_grow_file(top, bytes);
        if let Err(errno) = grown {
            self.refused.set(Some(errno));
        }
        grown.is_ok()
    }

    fn try_grow_file(&self, top: usize, bytes: usize) -> Result<(), Errno> {
        let file = match (self.file.get(), self.refused.get()) {
            (Some(file), _) => file,
            // Not again for each piece.
            (None, Some(errno)) => return Err(errno),
            (None, None) => File::new()?,
        };
        self.file.set(Some(file));
        let before = top - self.base.get();
        file.set_len(before + bytes)?;
        let (flags, rights) =
            (MapFlags::SHARED | MapFlags::FIXED, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the addresses are reserved, and nothing is there.
        unsafe { rustix::mm::mmap(pointer(top), bytes, rights, flags, file.fd()?, before as u64) }?;
        Ok(())
    }
}

// SAFETY: what is returned is mapped, belongs to nobody else, and stays.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        self.reserve();
        let has = self.top.get() - self.base.get();
        let step = has.clamp(STEP.0, STEP.1).max(size);
        for wanted in [step, size] {
            let Some(wanted) = wanted.checked_next_multiple_of(page_size()) else { continue };
            if let Some(start) = self.grow(wanted) {
                return (start, wanted, 0);
            }
        }
        (ptr::null_mut(), 0, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        page_size()
    }
}

/// Addresses are numbers here: the range is ours, and its bytes are their owners'.
pub(crate) fn pointer(addr: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(addr)
}
