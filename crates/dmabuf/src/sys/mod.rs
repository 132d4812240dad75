//! What the kernel offers: real dma-bufs, udmabuf, sealed memfds, and mapping them.
//!
//! The only module of this crate with `unsafe` in it.

#![allow(unsafe_code, reason = "ioctls and mmap")]

mod heap;
pub(crate) mod lease;
mod lock;
mod process;
mod reserve;
pub(crate) mod sync_file;
pub(crate) mod vma;
mod words;

use std::ffi::{CString, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags};

pub(crate) use heap::allocate as heap_allocate;
pub(crate) use lock::{is_locked, reopen, try_lock, unlock};
#[cfg(test)]
pub(crate) use process::in_child;
pub(crate) use process::spawn;
#[cfg(test)]
pub(crate) use reserve::peek;
pub(crate) use reserve::{Reservation, poison_file};
pub(crate) use words::SharedWords;

/// Magic number of the pseudo filesystem of all kernel dma-bufs: "DMAB".
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

/// Longest name `DMA_BUF_SET_NAME` takes, without its NUL.
pub(crate) const DMA_BUF_NAME_LEN: usize = 31;

/// Whether `fd` is a dma-buf of the kernel.
pub(crate) fn is_dma_buf(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let stat = rustix::fs::fstatfs(fd)?;
    // CAST: the kernel's type of this field differs by architecture; the magic fits in 32 bits of
    // each.
    Ok(stat.f_type as u64 == DMA_BUF_MAGIC)
}

/// Size of a kernel dma-buf. Seeking is the documented way; only the two ends exist as positions.
pub(crate) fn dma_buf_size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let size = rustix::fs::seek(fd, SeekFrom::End(0))?;
    rustix::fs::seek(fd, SeekFrom::Start(0))?;
    Ok(size)
}

/// Identity of the file behind `fd`, and its size from the inode.
pub(crate) fn identity(fd: BorrowedFd<'_>) -> Result<((u64, u64), u64), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(((stat.st_dev, stat.st_ino), u64::try_from(stat.st_size).unwrap_or(0)))
}

/// The name with which a memfd was made; `None` for other files.
pub(crate) fn memfd_name(fd: BorrowedFd<'_>) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let name = link.to_str()?.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// The name of the driver that exported a kernel dma-buf, and the buffer's own name, from `fdinfo`.
pub(crate) fn dma_buf_names(fd: BorrowedFd<'_>) -> (String, Option<String>) {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim().to_owned())
    };
    (value("exp_name:").unwrap_or_else(|| "unknown exporter".to_owned()), value("name:"))
}

/// The seals of a memfd; `None` when the file cannot be sealed.
pub(crate) fn seals(fd: BorrowedFd<'_>) -> Option<SealFlags> {
    rustix::fs::fcntl_get_seals(fd).ok()
}

/// Whether the open mode of `fd` permits stores through a mapping.
pub(crate) fn is_writable(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(open_flags(fd)? & OFlags::RWMODE == OFlags::RDWR)
}

/// How `fd` was opened.
pub(crate) fn open_flags(fd: BorrowedFd<'_>) -> Result<OFlags, Errno> {
    rustix::fs::fcntl_getfl(fd)
}

/// A memfd of `size` bytes that cannot be resized.
pub(crate) fn sealed_memfd(name: &str, size: u64) -> Result<OwnedFd, Errno> {
    let fd = unsealed_memfd(name, size)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// The file of a buffer whose bytes are elsewhere: `size` bytes without contents, open only for
/// writing and sealed against it. So it has a size, but a map, read or write that bypasses the
/// exporter is refused: a mapping needs read permission.
pub(crate) fn faceless_memfd(name: &str, size: u64) -> Result<OwnedFd, Errno> {
    let fd = unsealed_memfd(name, size)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    open_faceless(fd.as_fd(), true, true)
}

/// One more open file description of such a file.
pub(crate) fn open_faceless(
    fd: BorrowedFd<'_>,
    is_writable: bool,
    cloexec: bool,
) -> Result<OwnedFd, Errno> {
    let mut flags = OFlags::WRONLY;
    flags.set(OFlags::APPEND, !is_writable);
    flags.set(OFlags::CLOEXEC, cloexec);
    let opened =
        rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty())?;
    lease::make_harmless(&opened);
    Ok(opened)
}

/// The meaning of the flags of a buffer's file: for a [faceless](faceless_memfd) one, `O_WRONLY`
/// stands for `O_RDWR`, and with `O_APPEND` for `O_RDONLY`.
pub(crate) fn meant_flags(flags: OFlags) -> OFlags {
    if flags & OFlags::RWMODE != OFlags::WRONLY {
        return flags;
    }
    let mode = if flags.contains(OFlags::APPEND) { OFlags::RDONLY } else { OFlags::RDWR };
    flags.difference(OFlags::RWMODE | OFlags::APPEND).union(mode)
}

fn unsealed_memfd(name: &str, size: u64) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, size)?;
    Ok(fd)
}

/// A kernel dma-buf over new system memory, and which call failed otherwise: ENOENT or EACCES where
/// the machine has no `/dev/udmabuf` for us.
pub(crate) fn udmabuf(name: &str, size: u64) -> Result<OwnedFd, (&'static str, Errno)> {
    let device = rustix::fs::open("/dev/udmabuf", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| ("open of /dev/udmabuf", errno))?;
    let memfd = unsealed_memfd(name, size).map_err(|errno| ("memfd_create", errno))?;
    // `drivers/dma-buf/udmabuf.c`: F_SEAL_SHRINK is required.
    rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK)
        .map_err(|errno| ("F_ADD_SEALS", errno))?;
    let request = UdmabufCreate(UdmabufCreateArg {
        memfd: memfd.as_raw_fd() as u32,
        flags: UDMABUF_FLAGS_CLOEXEC,
        offset: 0,
        size,
    });
    // SAFETY: the request matches the driver's structure; the driver reads it and returns a new fd.
    let fd = unsafe { ioctl(&device, request) }.map_err(|errno| ("UDMABUF_CREATE", errno))?;
    // SAFETY: the ioctl returned this fd, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `DMA_BUF_SET_NAME_B`: names a kernel dma-buf. EINVAL if the name is too long.
pub(crate) fn set_name(fd: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    // SAFETY: the request holds a NUL-terminated string that lives until the call returns.
    unsafe { ioctl(fd, SetName(name)) }
}

/// `DMA_BUF_IOCTL_SYNC`, restarted when the kernel asks for it.
pub(crate) fn sync(fd: BorrowedFd<'_>, flags: SyncFlags) -> Result<(), Errno> {
    loop {
        // SAFETY: the opcode takes a pointer to these 64 bits and only reads them.
        let request =
            unsafe { Setter::<{ opcode::write::<SyncFlags>(b'b', 0) }, SyncFlags>::new(flags) };
        // SAFETY: as above; a file that is not a dma-buf returns ENOTTY.
        match unsafe { ioctl(fd, request) } {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
}

bitflags::bitflags! {
    /// `struct dma_buf_sync`.
    #[derive(Clone, Copy, Debug)]
    #[repr(transparent)]
    pub(crate) struct SyncFlags: u64 {
        const READ = 1;
        const WRITE = 2;
        const END = 4;
    }
}

/// Replaces the mapping by pages beyond the end of a file, so that an access raises SIGBUS, as with
/// a device that is gone. If there is no memory for that, an access raises SIGSEGV.
///
/// # Errors
///
/// The kernel's error; the old mapping is still there.
///
/// # Safety
///
/// The caller may take away what is mapped there: whole pages of a shared mapping, without
/// references to them.
pub unsafe fn zap(addr: usize, len: usize, prot: ProtFlags) -> Result<(), Errno> {
    let at = ptr::with_exposed_provenance_mut(addr);
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    let mapped = sealed_memfd("peerdma-zapped", 0).and_then(|empty| {
        // SAFETY: the caller's promise.
        unsafe { rustix::mm::mmap(at, len, prot, flags, &empty, 0) }
    });
    if mapped.is_err() {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the caller's promise.
        unsafe { rustix::mm::mmap_anonymous(at, len, ProtFlags::empty(), flags) }?;
    }
    Ok(())
}

/// Pages of a file mapped shared; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Pages {
    addr: usize,
    len: usize,
}

impl Pages {
    /// Maps `len` bytes at `offset`, both multiples of the page size.
    pub(crate) fn map(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, offset)
        }?;
        Ok(Self { addr: ptr.expose_provenance(), len })
    }

    /// Replaces the pages by inaccessible ones.
    pub(crate) fn zap(&self) {
        // SAFETY: exactly the range that `map` got, which this value keeps.
        if let Err(errno) = unsafe { zap(self.addr, self.len, ProtFlags::READ | ProtFlags::WRITE) }
        {
            tracing::error!("pages of memory that was taken away stay mapped: {errno}");
        }
    }

    /// Where they begin.
    pub(crate) fn addr(&self) -> usize {
        self.addr
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let ptr = ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: exactly the range that `map` got; users of the address keep this value alive.
        let _ = unsafe { rustix::mm::munmap(ptr, self.len) };
    }
}

const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

/// `struct udmabuf_create`.
#[repr(C)]
struct UdmabufCreateArg {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

struct UdmabufCreate(UdmabufCreateArg);

// SAFETY: opcode and structure are those of `<linux/udmabuf.h>`; the kernel only reads the
// structure, and answers with a file descriptor.
unsafe impl Ioctl for UdmabufCreate {
    type Output = RawFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<UdmabufCreateArg>(b'u', 0x42)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<RawFd> {
        Ok(output)
    }
}

struct SetName(CString);

// SAFETY: the opcode is `DMA_BUF_SET_NAME_B`, which takes a pointer to a NUL-terminated string and
// only reads it.
unsafe impl Ioctl for SetName {
    type Output = ();
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<u64>(b'b', 1)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.0.as_ptr().cast_mut().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}
