//! A reserved range of addresses, and what is mapped in it.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr;

use descriptors::Known;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size of the file behind retired addresses when there is no IOMMU.
const POISON_LEN: usize = 2 << 20;
/// Its contents.
const POISON: u8 = 0xA5;

/// Reserved addresses of this process, without access.
#[derive(Debug)]
pub(crate) struct Reservation {
    addr: usize,
    len: usize,
    generation: u32,
}

impl Reservation {
    /// Reserves `len` bytes, a multiple of the page size. Costs nothing but the addresses.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), NOTHING)
        }?;
        Ok(Self { addr: ptr.expose_provenance(), len, generation: descriptors::generation() })
    }

    pub(crate) fn addr(&self) -> usize {
        self.addr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether it was made in a parent of this process, and has holes in which something else may
    /// be mapped by now.
    pub(crate) fn is_husk(&self) -> bool {
        self.generation != descriptors::generation()
    }

    /// Maps a file from `offset` on, at `at` bytes from the beginning (all multiples of the page
    /// size). A forked child does not inherit the mapping.
    pub(crate) fn place(
        &self,
        at: usize,
        len: usize,
        file: impl AsFd,
        offset: u64,
        writable: bool,
    ) -> Result<(), Errno> {
        let ptr = self.check(at, len)?;
        let rights = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the range is inside the reservation, which is ours; what was mapped there is to
        // be replaced.
        unsafe {
            rustix::mm::mmap(ptr, len, rights, MapFlags::SHARED | MapFlags::FIXED, file, offset)
        }?;
        // SAFETY: exactly the mapping made above; the advice changes nothing in this process.
        if let Err(errno) = unsafe { rustix::mm::madvise(ptr, len, Advice::LinuxDontFork) } {
            self.retire(at, len)?;
            return Err(errno);
        }
        Ok(())
    }

    /// Removes access to a range.
    pub(crate) fn retire(&self, at: usize, len: usize) -> Result<(), Errno> {
        let ptr = self.check(at, len)?;
        // SAFETY: as in `place`.
        unsafe {
            rustix::mm::mmap_anonymous(ptr, len, ProtFlags::empty(), NOTHING | MapFlags::FIXED)
        }?;
        Ok(())
    }

    /// Maps meaningless bytes into a range. Stores there are lost.
    pub(crate) fn poison(&self, at: usize, len: usize, poison: &Known) -> Result<(), Errno> {
        poison.look()?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let mut done = 0;
        while done < len {
            let piece = POISON_LEN.min(len - done);
            let ptr = self.check(at + done, piece)?;
            // SAFETY: as in `place`.
            unsafe { rustix::mm::mmap(ptr, piece, rights, flags, poison, 0) }?;
            done += piece;
        }
        Ok(())
    }

    fn check(&self, at: usize, len: usize) -> Result<*mut std::ffi::c_void, Errno> {
        let is_inside = len > 0 && at.checked_add(len).is_some_and(|end| end <= self.len);
        if self.is_husk() || !is_inside {
            return Err(Errno::INVAL);
        }
        Ok(ptr::with_exposed_provenance_mut(self.addr + at))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.is_husk() {
            return;
        }
        let ptr = ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: exactly the reserved range; users of an address of it keep the window alive.
        let _ = unsafe { rustix::mm::munmap(ptr, self.len) };
    }
}

/// The file for [`Reservation::poison`].
pub(crate) fn poison_file() -> Result<OwnedFd, Errno> {
    let file = super::unsealed_memfd("peerdma-poison", POISON_LEN as u64)?;
    let piece = [POISON; 4096];
    for at in (0..POISON_LEN).step_by(piece.len()) {
        rustix::io::pwrite(&file, &piece, at as u64)?;
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file)
}

const NOTHING: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// Reads a byte at an address of this process through the kernel: EFAULT if nothing is mapped
/// there.
#[cfg(test)]
pub(crate) fn peek(addr: u64) -> Result<u8, Errno> {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote =
        libc::iovec { iov_base: ptr::with_exposed_provenance_mut(addr as usize), iov_len: 1 };
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    // SAFETY: both vectors have one element; the local one is the byte above, and the remote one is
    // only an address.
    let read = unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
    if read == 1 { Ok(byte) } else { Err(Errno::FAULT) }
}
