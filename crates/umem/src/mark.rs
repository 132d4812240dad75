//! A word in shared memory that shows that its process is alive: the kernel clears it when the
//! process ends.
//!
//! A pid names a process and not its address space: `execve` gives the process another address
//! space under the same pid, and the pid of a process that ended is reused. No call copies to a
//! particular address space and also obeys its page permissions (writes to an open `/proc/PID/mem`
//! go to one address space only, but ignore the permissions). Robust futexes, however, exist for
//! this very question. A thread names words in memory to the kernel (`set_robust_list(2)`); when
//! the thread ends, the kernel clears the thread's id in them. It ends before its process gets
//! another address space: `execve` first ends all other threads and waits for them (`de_thread`),
//! and processes the list of the calling thread before it exchanges the address space
//! (`exec_mm_release`). So:
//!
//! ```text
//!   the word holds a thread id  =>  the process lives, and its address space is still the same
//! ```
//!
//! A check costs one load. It tells what was true when the word was loaded, and no more.

#![allow(unsafe_code, reason = "set_robust_list(2)")]

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::HostBuf;
use crate::fault::Fault;

/// The mark of this process. It is set until this value is dropped or the calling thread ends in
/// any way.
///
/// Meanwhile the thread can lock no robust mutex of the C library: a thread has one list only.
#[derive(Debug)]
pub struct Mark {
    memory: HostBuf,
    offset: usize,
    /// The list that the kernel reads when the thread ends.
    list: Box<List>,
    /// The list that the thread had before.
    before: (*const Head, usize),
    thread: PhantomData<*const ()>,
}

/// The mark of another process.
#[derive(Clone, Debug)]
pub struct PeerMark {
    memory: HostBuf,
    offset: usize,
}

/// Why a mark cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MarkError {
    /// The word is not in the memory, or not aligned.
    #[error(transparent)]
    Place(#[from] Fault),
    /// The kernel has no robust futexes, or a sandbox forbids them.
    #[error("{call}: {errno}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
}

/// `struct robust_list_head`, whose list has one entry.
#[derive(Debug)]
#[repr(C)]
struct Head {
    first: *const Entry,
    /// The offset from an entry to its word.
    futex_offset: isize,
    pending: *const Entry,
}

/// `struct robust_list`.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    next: *const Head,
}

#[derive(Debug)]
struct List {
    head: Head,
    entry: Entry,
}

/// The bits of the word that name a thread (`FUTEX_TID_MASK`).
const THREAD: u32 = 0x3fff_ffff;

impl Mark {
    /// Sets the mark: the aligned 32 bits at `offset`, which only this process can write.
    ///
    /// # Errors
    ///
    /// [`MarkError`].
    pub fn set(memory: &HostBuf, offset: usize) -> Result<Self, MarkError> {
        let word = memory.foreign().atomic_u32(offset)?;
        let mut before: (*const Head, usize) = (ptr::null(), 0);
        // SAFETY: two valid pointers for the list of the calling thread.
        let n = unsafe {
            libc::syscall(libc::SYS_get_robust_list, 0, &raw mut before.0, &raw mut before.1)
        };
        check("get_robust_list", n)?;
        let head = Head { first: ptr::null(), futex_offset: 0, pending: ptr::null() };
        let mut list = Box::new(List { head, entry: Entry { next: ptr::null() } });
        list.entry.next = &raw const list.head;
        list.head.first = &raw const list.entry;
        list.head.futex_offset =
            word.as_ptr().addr().wrapping_sub((&raw const list.entry).addr()).cast_signed();
        // First the list, then the word: a word that names a thread must be on that thread's list.
        // SAFETY: the list lives until `drop` has set another one, or the thread ends.
        unsafe { set_list(&raw const list.head, size_of::<Head>()) }?;
        let id = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        word.store(id & THREAD, Ordering::SeqCst);
        Ok(Self { memory: memory.clone(), offset, list, before, thread: PhantomData })
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // The word was writable when it was set.
        if let Ok(word) = self.memory.foreign().atomic_u32(self.offset) {
            word.store(0, Ordering::SeqCst);
        }
        // SAFETY: this is the list that the thread had before: the C library's, which lives as long
        // as the thread.
        let restored = unsafe { set_list(self.before.0, self.before.1) };
        if restored.is_err() {
            // The kernel still reads it when the thread ends.
            let empty = Box::new(List {
                head: Head { first: ptr::null(), futex_offset: 0, pending: ptr::null() },
                entry: Entry { next: ptr::null() },
            });
            Box::leak(std::mem::replace(&mut self.list, empty));
        }
    }
}

impl PeerMark {
    /// The mark that a peer sets at `offset` of memory that it shares.
    pub fn new(memory: &HostBuf, offset: usize) -> Self {
        Self { memory: memory.clone(), offset }
    }

    /// Whether it is set. Everything loaded before this call was loaded before the check.
    #[inline]
    pub fn is_set(&self) -> bool {
        // ORDERING: earlier copies come before the check, and later copies after it. A mark outside
        // the memory does not count as set.
        self.memory.load_u32(self.offset, Ordering::SeqCst).is_ok_and(|word| word & THREAD != 0)
    }
}

/// Gives the calling thread a list.
///
/// # Safety
///
/// `head` is null or a `struct robust_list_head` that stays one until the thread has another list
/// or ends.
unsafe fn set_list(head: *const Head, len: usize) -> Result<(), MarkError> {
    // SAFETY: the kernel only notes the address.
    let n = unsafe { libc::syscall(libc::SYS_set_robust_list, head, len) };
    check("set_robust_list", n)
}

fn check(call: &'static str, n: libc::c_long) -> Result<(), MarkError> {
    if n == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(MarkError::System { call, errno: Errno::from_io_error(&error).unwrap_or(Errno::IO) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_set_until_it_is_dropped_and_the_thread_has_its_list_again() {
        let memory = HostBuf::memfd("umem-test", 4096).expect("memory exists");
        let seen = PeerMark::new(&memory, 8);
        assert!(!seen.is_set());
        let mark = Mark::set(&memory, 8).expect("robust futexes");
        let before = mark.before;
        assert!(seen.is_set());
        drop(mark);
        assert!(!seen.is_set());
        let again = Mark::set(&memory, 8).expect("robust futexes");
        assert_eq!(again.before, before);
    }

    #[test]
    fn a_mark_ends_with_its_thread_however_the_thread_ends() {
        let memory = HostBuf::memfd("umem-test", 4096).expect("memory exists");
        let seen = PeerMark::new(&memory, 16);
        let ours = memory.clone();
        let thread = std::thread::spawn(move || {
            let mark = Mark::set(&ours, 16).expect("robust futexes");
            let was_set = PeerMark::new(&ours, 16).is_set();
            // Nobody drops it, as with a thread that is killed.
            std::mem::forget(mark);
            was_set
        });
        assert!(thread.join().expect("no panic"));
        assert!(!seen.is_set());
    }

    #[test]
    fn a_mark_outside_the_memory_is_none() {
        let memory = HostBuf::memfd("umem-test", 4096).expect("memory exists");
        assert!(!PeerMark::new(&memory, 4096).is_set());
        assert!(matches!(Mark::set(&memory, 4096), Err(MarkError::Place(_))));
        assert!(matches!(Mark::set(&memory, 2), Err(MarkError::Place(_))));
    }
}
