//! The routines themselves, without the choice of a mode: they never fault on memory that cannot
//! vanish.

use super::arch;
use super::bytes::crc32;

/// What a routine returns, in two registers.
#[repr(C)]
pub(crate) struct Outcome {
    /// The old value of an atomic, or the faulting address.
    pub(crate) value: usize,
    /// 0, or 1 after a fault.
    pub(crate) fault: usize,
}

impl Outcome {
    /// The value, or the faulting address. The kernel reports 0 for an address that no page table
    /// can hold.
    #[inline]
    pub(crate) fn into_result(self) -> Result<u64, Option<usize>> {
        if self.fault == 0 {
            Ok(self.value as u64)
        } else {
            Err((self.value != 0).then_some(self.value))
        }
    }
}

/// Fills `dst` and continues a CRC-32, as [`super::copy_crc32`].
///
/// # Safety
///
/// As for [`super::copy`], of the source.
pub(crate) unsafe fn copy_crc32(
    dst: &mut [u8],
    src: *const u8,
    crc: u32,
) -> Result<u32, Option<usize>> {
    // SAFETY: the caller's promise.
    let (done, crc) = unsafe { arch::copy_crc32(dst, src, crc) }?;
    let rest = &mut dst[done..];
    // SAFETY: the caller's promise for the source; `rest` is as long.
    unsafe { peerdma_umem_copy(rest.as_mut_ptr(), src.wrapping_add(done), rest.len()) }
        .into_result()?;
    Ok(crc32(crc, rest))
}

unsafe extern "C" {
    /// Copies `len` bytes, the naturally aligned word of the last byte last.
    pub(crate) fn peerdma_umem_copy(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    /// Stores `byte` `len` times.
    pub(crate) fn peerdma_umem_fill(dst: *mut u8, byte: u8, len: usize) -> Outcome;
    /// Sequentially consistent compare-and-swap.
    pub(crate) fn peerdma_umem_compare_swap(addr: *mut u64, compare: u64, swap: u64) -> Outcome;
    /// Sequentially consistent wrapping addition.
    pub(crate) fn peerdma_umem_fetch_add(addr: *mut u64, add: u64) -> Outcome;
}
