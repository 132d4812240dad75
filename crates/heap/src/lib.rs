//! `libpeerdma-heap.so`: an allocator whose larger blocks lie in a file, which other processes can
//! map. `peerdma run --shared-heap` loads it before a program.
//!
//! A NIC's peer on the same host reaches ordinary memory by a system call for each operation, and a
//! file by plain loads and stores. Few programs keep their buffers in a file. With this library
//! they do so without knowing: it stands in front of libc's `malloc` and its relatives.
//!
//! ```text
//!   malloc(100)    -> libc's own
//!   malloc(65536)  -> a block in one range of addresses, which is one memfd, mapped shared:
//!
//!      base                    shared        top                      end
//!       | pages of the file      | ordinary   | reserved, nothing there |
//!
//!   ibv_reg_mr     -> libpeerdma.so asks peerdma_heap_at: which file, and where in it?
//! ```
//!
//! | file | what |
//! |---|---|
//! | `hooks` | the functions of C: which block is whose |
//! | `heap` | the blocks, behind one lock; crate dlmalloc divides the pages |
//! | `pages` | the range and its file, which grows and never shrinks |
//! | `copy` | the child of a fork gets a file of its own, with the same bytes |
//! | `fork` | when that is done, and what the parent does meanwhile |
//! | `vmas` | what the kernel has in the range |
//! | `below` | the functions that ours stand in front of |
//!
//! The place of an address in the file never changes, so what was registered stays registered
//! rightly, whatever is freed and allocated there.
//!
//! Small blocks are libc's, since nearly all that programs point to is small: a child of a fork
//! gets them as ever, as they are at one moment, while the large ones are copied one page after the
//! other.
//!
//! Where no file can be had, or no more of it, blocks lie in ordinary memory. It does not reach
//! static binaries, Go, programs with an allocator of their own, nor what they take by `mmap`.
//!
//! It is called before `main`, by the loader, and by libraries that it is made of; so it allocates
//! nothing, has no variables of threads, and takes no lock but its own.

mod copy;
mod fork;
mod heap;
mod pages;
mod vmas;

// The test harness is a program like any other: with these names in it, its own libc calls would
// come here.
#[cfg(not(test))]
mod below;
#[cfg(not(test))]
mod hooks;
