//! Which pages of the program's memory are there.

#![allow(unsafe_code, reason = "mincore(2)")]

use std::ops::Range;

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
        self.ask(offset, len, |_, states| states.iter().all(|state| is_there(*state)))
    }

    /// The pages under `len` bytes at `offset` that are not in memory, by the rules of
    /// [`is_resident`](Self::is_resident): ranges of offsets within those bytes, in order. The
    /// kernel is asked once for all of them (once for each 2 MiB).
    pub fn absent(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        let (page, base, end) = (page_size(), self.addr(), offset.saturating_add(len.max(1)));
        let mut absent = Vec::<Range<u64>>::new();
        self.ask(offset, len, |first, states| {
            for (at, _) in states.iter().enumerate().filter(|(_, state)| !is_there(**state)) {
                // The first page may begin before the bytes, and the last one end behind them.
                let of = |number: usize| number.saturating_mul(page).saturating_sub(base) as u64;
                let gone = of(first + at).max(offset)..of(first + at + 1).min(end);
                match absent.last_mut() {
                    Some(last) if last.end == gone.start => last.end = gone.end,
                    _ => absent.push(gone),
                }
            }
            true
        });
        absent
    }

    /// Shows `look` the states of the pages under `len` bytes at `offset`, with the number of the
    /// first one, piece by piece until it returns false. Nothing is shown of what counts as there.
    fn ask(&self, offset: u64, len: u64, mut look: impl FnMut(usize, &[u8]) -> bool) -> bool {
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
            told != 0 || look(from, &states[..count])
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

fn is_there(state: u8) -> bool {
    state & 1 != 0
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
        let only = |gone: Range<u64>| vec![gone; 1];
        assert_eq!(memory.absent(0, 4 * page), only(2 * page..4 * page));
        assert_eq!(memory.absent(page, page + 1), only(2 * page..2 * page + 1));
        assert!(memory.absent(7, 2 * page - 7).is_empty());
        memory.read(3 * page, &mut [0]).expect("inside");
        assert_eq!(memory.absent(2 * page + 5, page), only(2 * page + 5..3 * page));
        memory.bring_in(0, 4 * page);
        assert!(memory.is_resident(0, 4 * page) && memory.absent(0, 4 * page).is_empty());
    }

    #[test]
    fn holes_are_told_apart_however_many_pages_there_are() {
        let (page, count) = (page_size() as u64, 3 * AT_ONCE as u64);
        let buffer = HostBuf::anonymous(count as usize * page_size()).expect("memory");
        // Where huge pages are given unasked, a page that is used brings in its neighbours. A
        // kernel without them refuses the advice.
        let (start, length) = (buffer.as_ptr().cast(), buffer.len());
        let advice = rustix::mm::Advice::LinuxNoHugepage;
        // SAFETY: the buffer is mapped, and the advice changes no byte.
        let _ = unsafe { rustix::mm::madvise(start, length, advice) };
        let memory = Umem::host(&buffer);
        let used = |number: u64| !number.is_multiple_of(5) || number == 2 * AT_ONCE as u64;
        for number in (0..count).filter(|number| used(*number)) {
            memory.write(number * page, &[1]).expect("inside");
        }
        let holes = (0..count).filter(|number| !used(*number));
        let expected: Vec<_> = holes.map(|hole| hole * page..(hole + 1) * page).collect();
        assert_eq!(memory.absent(0, count * page), expected);
    }

    #[test]
    fn what_is_shared_or_not_mapped_counts_as_there() {
        let buffer = HostBuf::memfd("peerdma-test", page_size()).expect("memory");
        assert!(Umem::host(&buffer).is_resident(0, 1));
        // SAFETY: nothing is mapped there, and nothing is accessed.
        let nothing = unsafe { Umem::user(page_size(), 1 << 20) };
        assert!(nothing.is_resident(0, 1 << 20) && nothing.absent(0, 1 << 20).is_empty());
        nothing.bring_in(0, 1 << 20);
    }
}
