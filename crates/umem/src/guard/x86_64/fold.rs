//! CRC-32 with wide registers, during a copy or without one.
//!
//! A routine that copies and computes takes the CRC from the registers used for the copy. With two
//! passes, the second waits until the stores of the first have left the store buffer: for 4 KiB
//! that takes as long as the CRC itself. One call takes several pieces, since the end of each
//! computation is a chain of dependent instructions, and the processor can start the next piece
//! meanwhile.
//!
//! The folding is that of Intel's "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction", with four registers of four parts each.

use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::guard::plain::Outcome;
use crate::pieces::Pieces;

/// Whether the processor has the instructions; zero until [`prepare`] ran.
static HAS_FOLDING: AtomicU8 = AtomicU8::new(0);

/// The block size of the routines.
const BLOCK: usize = 256;

/// Detects the processor's features.
pub(super) fn prepare() {
    use std::arch::is_x86_feature_detected as has;
    HAS_FOLDING.store(u8::from(has!("avx512f") && has!("vpclmulqdq")), Ordering::Relaxed);
}

/// Copies as many of the first bytes as can be copied and checksummed in one pass. Returns how
/// many, and the CRC-32 `crc` continued over them.
///
/// # Safety
///
/// As for [`crate::guard::copy`], of the source.
pub(crate) unsafe fn copy_crc32(
    dst: &mut [u8],
    src: *const u8,
    crc: u32,
) -> Result<(usize, u32), Option<usize>> {
    let len = dst.len() / BLOCK * BLOCK;
    let mut crc = crc;
    if !folds(len) {
        return Ok((0, crc));
    }
    // SAFETY: the caller's promise for the source; there are `len` bytes, at least one block, in
    // `dst`, and one CRC; and the processor has the instructions.
    unsafe { peerdma_umem_copy_fold(dst.as_mut_ptr(), src, len, 1, &raw mut crc, 0) }
        .into_result()?;
    Ok((len, crc))
}

/// As [`crate::guard::copy_pieces_crc32`]. Also false if the pieces cannot be copied and
/// checksummed in one pass.
///
/// # Safety
///
/// As for [`crate::guard::copy`], of the source.
pub(crate) unsafe fn copy_pieces_crc32(
    dst: &mut [u8],
    pieces: Pieces,
    src: *const u8,
    crcs: &mut [u32],
) -> bool {
    let Pieces { first, len, stride, count } = pieces;
    if !takes(pieces, dst, crcs) {
        return false;
    }
    let dst = dst[first..].as_mut_ptr();
    // SAFETY: the caller's promise for the source; `dst` has room for the pieces, which are blocks,
    // there is a CRC for each, and at least one; and the processor has the instructions.
    let done =
        unsafe { peerdma_umem_copy_fold(dst, src, len, count, crcs.as_mut_ptr(), stride - len) };
    done.into_result().is_ok()
}

/// As [`crate::crc32_pieces`].
pub(crate) fn crc32_pieces(bytes: &[u8], pieces: Pieces, crcs: &mut [u32]) -> bool {
    let Pieces { first, len, stride, count } = pieces;
    if !takes(pieces, bytes, crcs) {
        return false;
    }
    let src = bytes[first..].as_ptr();
    // SAFETY: all pieces are in `bytes`, they are blocks, there is a CRC for each, and at least
    // one; nothing is written to but the CRCs; and the processor has the instructions.
    unsafe { peerdma_umem_fold(ptr::null_mut(), src, len, count, crcs.as_mut_ptr(), stride - len) };
    true
}

/// Whether the routines accept these pieces, with this many CRCs.
fn takes(pieces: Pieces, bytes: &[u8], crcs: &[u32]) -> bool {
    folds(pieces.len) && pieces.fit(bytes.len()) && crcs.len() == pieces.count
}

/// Whether the routines accept pieces of this length.
pub(crate) fn folds(len: usize) -> bool {
    len != 0 && len.is_multiple_of(BLOCK) && HAS_FOLDING.load(Ordering::Relaxed) != 0
}

unsafe extern "C" {
    /// Copies `count` pieces of `len` bytes, a multiple of [`BLOCK`] and not zero, and continues a
    /// CRC-32 at `crcs` over each. In the destination, `gap` bytes lie between the end of one and
    /// the start of the next.
    fn peerdma_umem_copy_fold(
        dst: *mut u8,
        src: *const u8,
        len: usize,
        count: usize,
        crcs: *mut u32,
        gap: usize,
    ) -> Outcome;
    /// The same without a copy, for memory that does not vanish. The gaps are in the source.
    fn peerdma_umem_fold(
        none: *mut u8,
        src: *const u8,
        len: usize,
        count: usize,
        crcs: *mut u32,
        gap: usize,
    ) -> Outcome;
}

/// `x` to the power of `n`, modulo the polynomial of CRC-32, as a factor for `vpclmulqdq`: bits
/// reflected, and shifted up by one because the product of two reflected factors is one bit short.
const fn power(n: u32) -> u64 {
    let mut value: u32 = 1 << 31;
    let mut i = 0;
    while i < n {
        value = if value & 1 != 0 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
        i += 1;
    }
    (value as u64) << 1
}

/// The factors that move the two halves of 16 bytes on by this many bits.
const fn by(bits: u32) -> [u64; 2] {
    [power(bits + 32), power(bits - 32)]
}

/// The factors for a block, and for the 64 bytes of a register. The routines read them.
pub(super) static FOLD: [[u64; 2]; 2] = [by(8 * BLOCK as u32), by(8 * 64)];

/// The factors that move the parts of a register to its last part, which stays.
pub(super) static LANES: [[u64; 2]; 4] = [by(8 * 48), by(8 * 32), by(8 * 16), [0; 2]];

/// The factors from 128 bits to 96 and to 64; the polynomial and the quotient of Barrett's
/// reduction, both reflected; and the mask of half a word.
pub(super) static REDUCE: [[u64; 2]; 3] =
    [[power(96), power(64)], [0x1_db71_0641, 0x1_f701_1641], [0xffff_ffff, 0]];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::recheck;

    #[test]
    fn a_processor_without_wide_registers_finds_the_same_crc() {
        recheck();
        let source: Vec<u8> = (0..5000_u32).map(|i| (i * 13 + i / 251) as u8).collect();
        for len in [256, 700, 1024, 4096, 5000] {
            let sum = |folds| {
                let before = HAS_FOLDING.swap(folds, Ordering::Relaxed);
                let mut target = vec![0; len];
                // SAFETY: the source has 5000 bytes.
                let crc = unsafe { crate::guard::copy_crc32(&mut target, source.as_ptr(), 7) };
                HAS_FOLDING.store(before, Ordering::Relaxed);
                assert_eq!(target, source[..len]);
                crc
            };
            let folds = HAS_FOLDING.load(Ordering::Relaxed);
            assert_eq!(sum(0), sum(folds), "{len} bytes");
        }
    }

    #[test]
    fn the_factors_are_those_of_the_literature() {
        // Intel's paper and every implementation of it use these for CRC-32 and four registers of
        // 16 bytes.
        assert_eq!(FOLD[1], [0x1_5444_2bd4, 0x1_c6e4_1596]);
        assert_eq!(LANES[2], [0x1_7519_97d0, 0x0_ccaa_009e]);
        assert_eq!(REDUCE[0], [0x0_ccaa_009e, 0x1_63cd_6124]);
    }
}
