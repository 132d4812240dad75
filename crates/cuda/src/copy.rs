//! Copies and fills, between any two addresses.

use umd::copy::Piece;

use crate::process::Process;
use crate::status::{Result, invalid};

impl Process {
    /// What `len` bytes at `addr` are. Addresses that CUDA knows nothing of are the program's.
    ///
    /// # Errors
    ///
    /// Addresses of the arena where no memory is, or a range that leaves its allocation.
    pub(crate) fn pieces(&self, addr: u64, len: u64) -> Result<Vec<Piece>> {
        Ok(self.space.pieces(addr, len)?)
    }

    /// Copies.
    ///
    /// # Errors
    ///
    /// A range of which not all is there, or memory that was lost.
    pub(crate) fn copy(&self, dst: u64, src: u64, len: u64) -> Result<()> {
        Ok(self.space.copy(dst, src, len)?)
    }

    /// Fills `count` values of `size` bytes (1, 2 or 4).
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy); and an address that is not a multiple of `size`.
    pub(crate) fn fill(&self, dst: u64, value: u32, size: u64, count: u64) -> Result<()> {
        if !dst.is_multiple_of(size) {
            return Err(invalid(format!("{dst:#x} is no multiple of {size}")));
        }
        let len = count.checked_mul(size).ok_or_else(|| invalid("more bytes than there are"))?;
        // CAST: 1, 2 or 4.
        Ok(self.space.fill(dst, &value.to_le_bytes()[..size as usize], len)?)
    }
}
