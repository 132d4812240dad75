//! The child of a fork gets a file of its own, with the bytes that its parent's has.

#![allow(unsafe_code, reason = "mappings at addresses of our own choice")]

use core::ptr;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use crate::pages::{File, Pages, pointer};
use crate::vmas::{self, Vma};

/// Gives this process, which has the pages of another one, pages of its own at the same addresses.
///
/// # Errors
///
/// The kernel's. The pages are the other one's then, or some of them are.
pub(crate) fn separate(pages: &Pages) -> Result<(), Errno> {
    let Some((base, end, theirs)) = pages.shared() else { return Ok(()) };
    let len = end - base;
    let ours = File::new().and_then(|file| match file.set_len(len) {
        Ok(()) => Ok(file),
        Err(errno) => {
            file.close();
            Err(errno)
        }
    });
    let there = map(ours.as_ref().ok(), len)?;
    let filled = fill(&theirs, ours.as_ref().ok(), base, there, len);
    if let Err(errno) = filled.and_then(|()| put(&theirs, base, there, len)) {
        // SAFETY: the mapping was made above, and nobody has an address in it.
        let _ = unsafe { rustix::mm::munmap(pointer(there), len) };
        if let Ok(ours) = ours {
            ours.close();
        }
        return Err(errno);
    }
    theirs.close();
    pages.replace_file(ours);
    Ok(())
}

/// Room for the bytes: the file, or ordinary memory.
fn map(ours: Option<&File>, len: usize) -> Result<usize, Errno> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let made = match ours {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        Some(file) => unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, rights, MapFlags::SHARED, file.fd()?, 0)
        },
        // SAFETY: as above.
        None => unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE)
        },
    };
    Ok(made?.expose_provenance())
}

/// Copies the pages that are there. A page that was never used costs nothing.
fn fill(
    theirs: &File,
    ours: Option<&File>,
    base: usize,
    there: usize,
    len: usize,
) -> Result<(), Errno> {
    let Ok(from) = theirs.fd() else {
        // The program closed the descriptor. The bytes are still mapped.
        // SAFETY: both ranges have this length, and the second is ours alone.
        unsafe { ptr::copy_nonoverlapping(pointer(base).cast::<u8>(), pointer(there).cast(), len) };
        return Ok(());
    };
    let mut at = 0;
    while at < len as u64 {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?.min(len as u64);
        at = start;
        if let Some(ours) = ours {
            rustix::fs::seek(ours.fd()?, SeekFrom::Start(at))?;
        }
        while at < end {
            // CAST: a length of mapped memory.
            let left = (end - at) as usize;
            let copied = match ours {
                // From page to page, without a fault for each.
                Some(ours) => {
                    let mut next = at;
                    rustix::fs::sendfile(ours.fd()?, from, Some(&mut next), left)?
                }
                None => {
                    let to = pointer(there + at as usize).cast::<u8>();
                    // SAFETY: within the mapping, which nobody else has.
                    let to = unsafe { core::slice::from_raw_parts_mut(to, left) };
                    rustix::io::pread(from, to, at)?
                }
            };
            if copied == 0 {
                return Err(Errno::IO);
            }
            at += copied as u64;
        }
    }
    Ok(())
}

/// Puts the new pages in the place of the old ones, with the rights that those have. What the
/// program has mapped over its blocks stays.
fn put(theirs: &File, base: usize, there: usize, len: usize) -> Result<(), Errno> {
    let all = MprotectFlags::READ | MprotectFlags::WRITE;
    let whole = [Vma { start: base, end: base + len, rights: all.bits() }];
    let found = vmas::of_file(theirs.inode, base, base + len);
    for vma in found.as_ref().map_or(&whole[..], |found| found.all()) {
        let (from, size) = (there + (vma.start - base), vma.end - vma.start);
        // SAFETY: the old addresses are those of the room made for these, and the new ones have
        // the same bytes of the other file.
        unsafe {
            rustix::mm::mremap_fixed(
                pointer(from),
                size,
                size,
                MremapFlags::MAYMOVE,
                pointer(vma.start),
            )
        }?;
        if vma.rights != all.bits() {
            let rights = MprotectFlags::from_bits_retain(vma.rights);
            // SAFETY: the rights that the program gave these pages.
            unsafe { rustix::mm::mprotect(pointer(vma.start), size, rights) }?;
        }
    }
    // What the child has no pages for.
    // SAFETY: nobody has an address in it.
    let _ = unsafe { rustix::mm::munmap(pointer(there), len) };
    Ok(())
}
