//! The fault guard: copies and atomics on memory that may vanish. They then fail instead of raising
//! a signal.
//!
//! ```text
//!   copy(dst, src, len) ---> guarded routine (global_asm!) ---> Ok
//!                                  | page fault
//!                                  v
//!                        SIGSEGV / SIGBUS handler: is the PC in the routine?
//!                            yes: continue at the fixup ---> Err(address)
//!                            no:  the handler that was there before us
//! ```
//!
//! No `setjmp`: entering costs nothing, because which instructions may fault is decided by their
//! address alone.
//!
//! A program may install its own handlers after ours (a JVM, a Go runtime, a sanitizer). We never
//! take the signals back. Instead [`recheck`] notices, and from then on copies go through
//! `process_vm_writev` on our own process ([`Mode::Kernel`]). These gaps are documented because
//! they cannot be closed:
//!
//! * between the replacement and the next check, a fault in a guarded routine reaches the program's
//!   handler;
//! * [`Mode::Kernel`] has no atomics in the kernel: they are probed and then performed, and a page
//!   that vanishes in between raises a signal;
//! * the kernel cannot copy from or to pages without a `struct page` (device BARs); such memory
//!   faults;
//! * a sandbox may forbid `process_vm_writev`; then [`Mode::Guarded`] stays, and depends on the
//!   program's handler;
//! * the kernel kills a process at a fault of a thread that *blocks* SIGSEGV or SIGBUS, whichever
//!   handler is installed. Our own threads leave both unblocked.
#![allow(unsafe_code, reason = "signal handlers and hand-written copies")]

use std::sync::Once;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::pieces::Pieces;

#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64;
mod bytes;
mod fallback;
mod handler;
pub(crate) mod plain;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use self::aarch64 as arch;
pub(crate) use self::bytes::bulk_length;
use self::bytes::crc32;
#[cfg(target_arch = "x86_64")]
pub(crate) use self::x86_64 as arch;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("umem has guarded routines for x86_64 and aarch64 only");

/// How foreign memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no third way")]
pub enum Mode {
    /// Guarded instructions in user space: a few nanoseconds.
    Guarded,
    /// System calls that return EFAULT: about half a microsecond, when the program owns the signal
    /// handlers.
    Kernel,
}

/// How foreign memory is touched at present. The first call installs the handler.
#[inline]
pub fn mode() -> Mode {
    match WAY.load(Ordering::Relaxed) {
        GUARDED => Mode::Guarded,
        KERNEL => Mode::Kernel,
        _ => recheck(),
    }
}

/// Checks whether the signal handlers are still ours, and chooses the mode accordingly.
///
/// Makes two system calls that only query. [`Umem`](crate::Umem) calls it at registration and once
/// in many accesses; an engine may call it from its housekeeping.
pub fn recheck() -> Mode {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        prepare();
        handler::install();
    });
    let observed = if handler::is_ours() || !fallback::works() { GUARDED } else { KERNEL };
    let forced = FORCED.load(Ordering::Relaxed);
    let chosen = if forced == UNKNOWN { observed } else { forced };
    let before = WAY.swap(chosen, Ordering::Relaxed);
    if before != chosen && chosen == KERNEL {
        tracing::warn!(
            "SIGSEGV or SIGBUS is handled by the program: memory regions are copied by process_vm_writev from now on"
        );
    }
    if chosen == KERNEL { Mode::Kernel } else { Mode::Guarded }
}

/// Calls `explain` with the address of each fault that is the program's own, before the previous
/// handler: the owner of reserved addresses that never hold memory can thus explain the fault. It
/// runs in the signal handler, so it may neither allocate nor wait for a lock.
/// Only the last function that was set is called.
pub fn explain_strays(explain: fn(usize)) {
    handler::set_explainer(explain);
    mode();
}

/// Test hook: uses `mode` no matter who owns the handlers, or (`None`) checks the handlers again
/// and decides.
#[doc(hidden)]
pub fn force(mode: Option<Mode>) {
    let value = match mode {
        None => UNKNOWN,
        Some(Mode::Guarded) => GUARDED,
        Some(Mode::Kernel) => KERNEL,
    };
    FORCED.store(value, Ordering::Relaxed);
    recheck();
}

/// Lets the routines use the processor's features. Installs nothing.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(arch::prepare);
}

/// Copies `len` bytes; the ranges must not overlap (the result would be unspecified bytes). The
/// last bytes become visible last. On a fault, the address that could not be touched, as far as
/// known.
///
/// # Safety
///
/// Each range is memory that the caller may access in this way, or is not mapped at all: there is
/// no live Rust reference to it that the copy would violate.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Option<usize>> {
    match mode() {
        Mode::Guarded => {
            // SAFETY: the caller's promise; a page that is absent ends in the fixup.
            unsafe { plain::peerdma_umem_copy(dst, src, len) }.into_result().map(|_| ())
        }
        Mode::Kernel => {
            // SAFETY: the caller's promise.
            unsafe { fallback::copy(dst, src, len) }
                .map_err(|done| Some(fallback::culprit(dst.addr(), src.addr(), done)))
        }
    }
}

/// Fills `dst`, and returns the CRC-32 `crc`, continued over the bytes that are in `dst` now,
/// whatever happens to the source meanwhile.
///
/// # Safety
///
/// As for [`copy`], of the source.
#[inline]
pub(crate) unsafe fn copy_crc32(
    dst: &mut [u8],
    src: *const u8,
    crc: u32,
) -> Result<u32, Option<usize>> {
    match mode() {
        // SAFETY: the caller's promise; a page that is absent ends in the fixup.
        Mode::Guarded => unsafe { plain::copy_crc32(dst, src, crc) },
        Mode::Kernel => {
            // SAFETY: the caller's promise.
            unsafe { copy(dst.as_mut_ptr(), src, dst.len()) }?;
            Ok(crc32(crc, dst))
        }
    }
}

/// Fills pieces of `dst` from consecutive bytes of the source, and continues a CRC-32 over the
/// contents of each piece. False if a page was absent, or if this cannot be done in one pass:
/// pieces and CRCs are then unspecified.
///
/// # Safety
///
/// As for [`copy`], of the source.
#[inline]
pub(crate) unsafe fn copy_pieces_crc32(
    dst: &mut [u8],
    pieces: Pieces,
    src: *const u8,
    crcs: &mut [u32],
) -> bool {
    // SAFETY: the caller's promise; a page that is absent ends in the fixup.
    mode() == Mode::Guarded && unsafe { arch::copy_pieces_crc32(dst, pieces, src, crcs) }
}

/// As [`crate::sums_pieces`].
#[inline]
pub(crate) fn folds(len: usize) -> bool {
    arch::folds(len)
}

/// As [`crate::crc32_pieces`].
#[inline]
pub(crate) fn crc32_pieces(bytes: &[u8], pieces: Pieces, crcs: &mut [u32]) -> bool {
    arch::crc32_pieces(bytes, pieces, crcs)
}

/// Stores `byte` `len` times.
///
/// # Safety
///
/// As for [`copy`], for the destination.
#[inline]
pub(crate) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) -> Result<(), Option<usize>> {
    match mode() {
        Mode::Guarded => {
            // SAFETY: the caller's promise; a page that is absent ends in the fixup.
            unsafe { plain::peerdma_umem_fill(dst, byte, len) }.into_result().map(|_| ())
        }
        Mode::Kernel => {
            // SAFETY: the caller's promise.
            unsafe { fallback::fill(dst, byte, len) }
                .map_err(|done| Some(dst.addr().wrapping_add(done)))
        }
    }
}

/// Sequentially consistent compare-and-swap; returns what was there.
///
/// # Safety
///
/// As for [`copy`], for eight bytes; `addr` is a multiple of eight.
#[inline]
pub(crate) unsafe fn compare_swap(
    addr: *mut u64,
    compare: u64,
    swap: u64,
) -> Result<u64, Option<usize>> {
    match mode() {
        Mode::Guarded => {
            // SAFETY: the caller's promise; a page that is absent ends in the fixup.
            unsafe { plain::peerdma_umem_compare_swap(addr, compare, swap) }.into_result()
        }
        Mode::Kernel => {
            // SAFETY: the caller's promise.
            unsafe { fallback::compare_swap(addr, compare, swap) }.map_err(|_| Some(addr.addr()))
        }
    }
}

/// Sequentially consistent addition, wrapping; returns what was there.
///
/// # Safety
///
/// As for [`compare_swap`].
#[inline]
pub(crate) unsafe fn fetch_add(addr: *mut u64, add: u64) -> Result<u64, Option<usize>> {
    match mode() {
        Mode::Guarded => {
            // SAFETY: the caller's promise; a page that is absent ends in the fixup.
            unsafe { plain::peerdma_umem_fetch_add(addr, add) }.into_result()
        }
        Mode::Kernel => {
            // SAFETY: the caller's promise.
            unsafe { fallback::fetch_add(addr, add) }.map_err(|_| Some(addr.addr()))
        }
    }
}

const UNKNOWN: u8 = 0;
const GUARDED: u8 = 1;
const KERNEL: u8 = 2;

/// One of the constants above; relaxed everywhere, because nothing else is published through it.
static WAY: AtomicU8 = AtomicU8::new(UNKNOWN);
static FORCED: AtomicU8 = AtomicU8::new(UNKNOWN);
