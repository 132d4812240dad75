//! Which pages of the program's memory are there.

#![allow(unsafe_code, reason = "mincore(2)")]

use rustix::param::page_size;

use crate::mem::{Backing, Umem};

/// Pages that one call asks for.
const AT_ONCE: usize = 512;

impl Umem {
    /// Whether the kernel has every page under `len` bytes at `offset` in memory: none of them was
    /// dropped (`MADV_DONTNEED`), migrated away or written to swap, and each was used before.
    ///
    /// Known of private memory alone: of a shared mapping the kernel tells what its file has, so
    /// that counts as there. So does what is not mapped, as the access finds that out.
    pub fn is_resident(&self, offset: u64, len: u64) -> bool {
        let Backing::Process { addr } = self.backing() else { return true };
        let Ok(offset) = usize::try_from(offset) else { return true };
        let Ok(len) = usize::try_from(len.max(1)) else { return true };
        let page = page_size();
        let first = addr.wrapping_add(offset) / page;
        let last = addr.wrapping_add(offset).saturating_add(len - 1) / page;
        let mut states = [0_u8; AT_ONCE];
        (first..=last).step_by(AT_ONCE).all(|from| {
            let count = AT_ONCE.min(last - from + 1);
            // SAFETY: the kernel examines the range, mapped or not, and writes a byte for each of
            // the `count` pages.
            let told = unsafe {
                libc::mincore((from * page) as *mut _, count * page, states.as_mut_ptr())
            };
            told != 0 || states[..count].iter().all(|state| state & 1 != 0)
        })
    }

    /// Has every page under `len` bytes at `offset` brought in, by reading a byte of it. What is
    /// not there to be read is left to the access.
    pub fn bring_in(&self, offset: u64, len: u64) {
        let page = page_size() as u64;
        let end = offset.saturating_add(len.max(1));
        let mut at = offset;
        while at < end {
            if self.read(at, &mut [0]).is_err() {
                return;
            }
            let address = self.addr() as u64;
            at = (address.wrapping_add(at) / page + 1).saturating_mul(page).wrapping_sub(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::HostBuf;

    use super::*;

    #[test]
    fn a_page_is_there_once_it_was_used() {
        let page = page_size() as u64;
        let buffer = HostBuf::anonymous(4 * page_size()).expect("memory");
        let memory = Umem::host(&buffer);
        assert!(!memory.is_resident(0, 1));
        memory.write(page - 1, &[1, 2]).expect("inside");
        assert!(memory.is_resident(0, 2 * page) && !memory.is_resident(page, page + 1));
        memory.bring_in(0, 4 * page);
        assert!(memory.is_resident(0, 4 * page));
    }

    #[test]
    fn what_is_shared_or_not_mapped_counts_as_there() {
        let buffer = HostBuf::memfd("peerdma-test", page_size()).expect("memory");
        assert!(Umem::host(&buffer).is_resident(0, 1));
        // SAFETY: nothing is mapped there, and nothing is accessed.
        let nothing = unsafe { Umem::user(page_size(), 1 << 20) };
        assert!(nothing.is_resident(0, 1 << 20));
        nothing.bring_in(0, 1 << 20);
    }
}
