//! The blocks.

#![allow(unsafe_code, reason = "blocks are raw memory")]

use core::ptr;
use std::os::fd::RawFd;

use dlmalloc::Dlmalloc;
use rustix::io::Errno;
use rustix::param::page_size;
use threads::futex::Mutex;

use crate::fork;
use crate::pages::Pages;

/// The pages of a block of this length are given back when it is freed, and taken anew when zeros
/// are asked for.
const LARGE: usize = 4 << 20;
/// What the words of a free block take at either of its ends (`TreeChunk` of dlmalloc).
const WORDS: usize = 128;

/// The heap of the process.
pub(crate) static HEAP: Heap = Heap(Mutex::new(Blocks(Dlmalloc::new_with_allocator(Pages::new()))));

/// Blocks, behind a lock.
pub(crate) struct Heap(Mutex<Blocks>);

/// All of them.
pub(crate) struct Blocks(Dlmalloc<Pages>);

impl Heap {
    pub(crate) const fn lock_of(&self) -> &Mutex<Blocks> {
        &self.0
    }

    /// A block, or null.
    pub(crate) fn alloc(&self, size: usize, align: usize) -> *mut u8 {
        fork::begin();
        // SAFETY: the alignment is a power of two.
        unsafe { self.0.lock().0.c_memalign(align, size) }
    }

    /// A block of zeros, or null.
    pub(crate) fn alloc_zeroed(&self, size: usize) -> *mut u8 {
        let block = self.alloc(size, 1);
        if block.is_null() {
            return block;
        }
        let start = block.expose_provenance();
        let (from, to) = if size >= LARGE { inside(start, size) } else { (start, start) };
        let (from, to) =
            if self.0.lock().0.allocator().clear(from, to) { (from, to) } else { (start, start) };
        // SAFETY: the block has this length, and nobody else has it.
        unsafe { ptr::write_bytes(block, 0, from - start) };
        // SAFETY: `to` is within it.
        let rest = unsafe { block.add(to - start) };
        // SAFETY: as above.
        unsafe { ptr::write_bytes(rest, 0, size - (to - start)) };
        block
    }

    /// Changes the length of a block. It may move; null leaves it as it is.
    ///
    /// # Safety
    ///
    /// It is a block of this heap, and the caller's.
    pub(crate) unsafe fn resize(&self, block: *mut u8, size: usize) -> *mut u8 {
        fork::begin();
        // SAFETY: the caller's promise.
        unsafe { self.0.lock().0.c_realloc(block, size) }
    }

    /// # Safety
    ///
    /// As for [`resize`](Self::resize); it is nobody's afterwards.
    pub(crate) unsafe fn free(&self, block: *mut u8) {
        fork::begin();
        let mut blocks = self.0.lock();
        // SAFETY: the caller's promise.
        let size = unsafe { length(block) };
        // SAFETY: the caller's promise.
        unsafe { blocks.0.c_free(block) };
        if size >= LARGE {
            // Of a free block only its ends have a meaning.
            let start = block.expose_provenance();
            let (from, to) = inside(start + WORDS, size - 2 * WORDS);
            blocks.0.allocator().clear(from, to);
        }
    }

    /// The file that has `len` bytes at `addr`, and their offset; or why none has.
    pub(crate) fn place(&self, addr: usize, len: usize) -> Result<(RawFd, u64), Option<Errno>> {
        self.0.lock().0.allocator().place(addr, len)
    }
}

impl Blocks {
    pub(crate) fn pages(&self) -> &Pages {
        self.0.allocator()
    }
}

/// How many bytes a block has, at least those that were asked for.
///
/// # Safety
///
/// It is a block of this heap.
pub(crate) unsafe fn length(block: *mut u8) -> usize {
    // The word before a block has its length with that word, and flags in its last three bits.
    // SAFETY: dlmalloc writes it there.
    let head = unsafe { block.cast::<usize>().sub(1) };
    // SAFETY: as above.
    (unsafe { head.read() } & !7) - size_of::<usize>()
}

/// The whole pages within a range.
fn inside(start: usize, len: usize) -> (usize, usize) {
    let page = page_size();
    let from = start.next_multiple_of(page);
    (from, ((start + len) / page * page).max(from))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex as StdMutex;
    use std::thread;

    use super::*;
    use crate::pages::holds;

    /// The heap is the process's, and a fork stands for all of it.
    static ALONE: StdMutex<()> = StdMutex::new(());

    fn alone() -> std::sync::MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn byte(block: *mut u8, at: usize) -> u8 {
        // SAFETY: the tests look within their blocks.
        unsafe { block.wrapping_add(at).read_volatile() }
    }

    fn fill(block: *mut u8, with: u8, len: usize) {
        // SAFETY: the tests write within their blocks.
        unsafe { block.write_bytes(with, len) };
    }

    fn free(block: *mut u8) {
        // SAFETY: a block of the heap, which no test uses afterwards.
        unsafe { HEAP.free(block) };
    }

    /// What a child of a fork returns.
    fn forked(child: impl FnOnce() -> bool) -> bool {
        fork::prepare();
        // SAFETY: the child calls nothing but the heap and the kernel.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            fork::child();
            let code = i32::from(!child());
            // SAFETY: it does not return.
            unsafe { libc::_exit(code) };
        }
        fork::parent();
        let mut status = 0;
        // SAFETY: the status can be written.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        ended == pid && status == 0
    }

    #[test]
    fn a_block_has_a_place_in_the_file_that_follows_from_its_address() {
        let _alone = alone();
        let (a, b) = (HEAP.alloc(10_000, 1), HEAP.alloc(70_000, 4096));
        let place = |block: *mut u8, len| HEAP.place(block.addr(), len).expect("it has a file");
        let (first, second) = (place(a, 10_000), place(b, 70_000));
        assert_eq!(first.0, second.0, "one file");
        assert_eq!(first.1.wrapping_sub(a.addr() as u64), second.1.wrapping_sub(b.addr() as u64));
        assert!(b.addr().is_multiple_of(4096));
        assert!(holds(a.addr()) && holds(b.addr() + 69_999) && !holds(0x1000));
        // SAFETY: blocks of the heap.
        assert!(unsafe { length(a) } >= 10_000 && unsafe { length(b) } >= 70_000);
        assert_eq!(HEAP.place(a.addr(), 1 << 45), Err(None), "nothing is that long");
        assert_eq!(HEAP.place(0x1000, 10), Err(None));
        free(a);
        free(b);
    }

    #[test]
    fn what_is_written_to_the_file_is_in_the_block() {
        let _alone = alone();
        let block = HEAP.alloc(8192, 1);
        let (fd, offset) = HEAP.place(block.addr(), 8192).expect("it has a file");
        // SAFETY: the heap keeps the descriptor.
        let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        rustix::io::pwrite(file, b"from a peer", offset + 5).expect("a file of ours");
        assert_eq!((byte(block, 5), byte(block, 15)), (b'f', b'r'));
        free(block);
    }

    #[test]
    fn zeros_are_zeros_after_others_had_the_memory() {
        let _alone = alone();
        for len in [5000, LARGE - 1, LARGE + 12_345, 3 * LARGE] {
            let dirty = HEAP.alloc(len, 1);
            fill(dirty, 0xa5, len);
            free(dirty);
            let clean = HEAP.alloc_zeroed(len);
            assert!((0..len).all(|at| byte(clean, at) == 0), "{len}");
            fill(clean, 0x5a, len);
            free(clean);
        }
    }

    #[test]
    fn a_block_keeps_its_bytes_when_its_length_changes() {
        let _alone = alone();
        let mut block = HEAP.alloc(5000, 1);
        fill(block, 7, 5000);
        for len in [6000, 100_000, 9_000_000, 5000] {
            // SAFETY: a block of the heap.
            block = unsafe { HEAP.resize(block, len) };
            assert!((0..5000).all(|at| byte(block, at) == 7), "{len}");
        }
        free(block);
    }

    #[test]
    fn threads_have_blocks_of_their_own() {
        let _alone = alone();
        thread::scope(|scope| {
            for number in 1..=4_u8 {
                scope.spawn(move || {
                    let mut mine: HashMap<usize, usize> = HashMap::new();
                    for round in 0..2000_usize {
                        let len = 4096 + round * 37 % 60_000;
                        let block = HEAP.alloc(len, 1 << (round % 14));
                        fill(block, number, len);
                        mine.insert(block.expose_provenance(), len);
                        if round % 3 > 0 {
                            let (at, len) =
                                mine.iter().next().map(|(at, len)| (*at, *len)).expect("one");
                            let block = ptr::with_exposed_provenance_mut::<u8>(at);
                            assert!((0..len).all(|at| byte(block, at) == number));
                            mine.remove(&at);
                            free(block);
                        }
                    }
                    for at in mine.into_keys() {
                        free(ptr::with_exposed_provenance_mut(at));
                    }
                });
            }
        });
    }

    #[test]
    fn a_child_of_a_fork_has_the_bytes_and_a_file_of_its_own() {
        let _alone = alone();
        let len = 300_000;
        let block = HEAP.alloc(len, 4096);
        fill(block, 1, len);
        let theirs = HEAP.place(block.addr(), len).map(|(fd, _)| inode(fd));
        assert!(forked(|| {
            let same = (0..len).all(|at| byte(block, at) == 1);
            fill(block, 2, len);
            let ours = HEAP.place(block.addr(), len).map(|(fd, _)| inode(fd));
            let more = HEAP.alloc(len, 1);
            fill(more, 3, len);
            same && ours.is_ok() && ours != theirs && forked_again(block, len)
        }));
        assert!((0..len).all(|at| byte(block, at) == 1), "the child wrote to its own");
        free(block);
    }

    fn forked_again(block: *mut u8, len: usize) -> bool {
        forked(|| (0..len).all(|at| byte(block, at) == 2))
    }

    #[test]
    fn pages_that_the_program_protected_are_protected_in_its_child() {
        let _alone = alone();
        let block = HEAP.alloc(3 * 4096, 4096);
        fill(block, 4, 3 * 4096);
        // SAFETY: the middle page of the block.
        let middle = unsafe { block.add(4096) };
        let protect = |rights| {
            // SAFETY: as above.
            unsafe { libc::mprotect(middle.cast(), 4096, rights) }
        };
        assert_eq!(protect(libc::PROT_READ), 0);
        assert!(forked(|| {
            let mut word = [0_u8; 1];
            // The kernel refuses to write where a program may not.
            let zero = rustix::fs::open(
                "/dev/zero",
                rustix::fs::OFlags::RDONLY,
                rustix::fs::Mode::empty(),
            );
            // SAFETY: the range is mapped; the kernel checks whether it may be written.
            let there = unsafe { core::slice::from_raw_parts_mut(middle, 1) };
            let refused =
                zero.is_ok_and(|zero| rustix::io::read(&zero, there) == Err(Errno::FAULT));
            word[0] = byte(middle, 0);
            refused && word == [4] && byte(block, 0) == 4 && byte(block, 2 * 4096) == 4
        }));
        assert_eq!(protect(libc::PROT_READ | libc::PROT_WRITE), 0);
        free(block);
    }

    #[test]
    fn a_child_whose_parent_closed_the_file_has_the_bytes_all_the_same() {
        let _alone = alone();
        let block = HEAP.alloc(50_000, 1);
        fill(block, 6, 50_000);
        assert!(forked(|| {
            let Ok((fd, _)) = HEAP.place(block.addr(), 1) else { return false };
            // SAFETY: a program may close what it likes.
            unsafe { libc::close(fd) };
            let lost = HEAP.place(block.addr(), 1) == Err(Some(Errno::BADF));
            lost && forked(|| {
                (0..50_000).all(|at| byte(block, at) == 6) && HEAP.place(block.addr(), 1).is_ok()
            })
        }));
        free(block);
    }

    #[test]
    fn without_descriptors_blocks_are_ordinary_memory() {
        let _alone = alone();
        let block = HEAP.alloc(50_000, 1);
        fill(block, 8, 50_000);
        assert!(forked(|| {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the limit can be read.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) };
            forked(|| {
                let kept = (0..50_000).all(|at| byte(block, at) == 8);
                let more = HEAP.alloc(64 << 20, 1);
                fill(more, 9, 64 << 20);
                let ordinary = HEAP.place(more.addr(), 1) == Err(Some(Errno::MFILE));
                kept && ordinary && forked(|| byte(more, 12_345) == 9 && byte(block, 1) == 8)
            })
        }));
        free(block);
    }

    fn inode(fd: RawFd) -> u64 {
        // SAFETY: the heap keeps the descriptor.
        let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        rustix::fs::fstat(file).map_or(0, |stat| stat.st_ino)
    }
}
