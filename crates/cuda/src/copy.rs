//! Copies and fills, between any two addresses.

use umd::copy::Piece;

use crate::process::Process;
use crate::status::{Result, invalid};

impl Process {
    /// The memory behind `len` bytes at `addr`. Addresses unknown to CUDA are the program's own
    /// memory.
    ///
    /// # Errors
    ///
    /// Addresses of the arena without memory, or a range that extends beyond its allocation.
    pub(crate) fn pieces(&self, addr: u64, len: u64) -> Result<Vec<Piece>> {
        Ok(self.space.pieces(addr, len)?)
    }

    /// Copies `len` bytes.
    ///
    /// # Errors
    ///
    /// A range that is not all mapped, or lost memory.
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
            return Err(invalid(format!("{dst:#x} is not a multiple of {size}")));
        }
        let len = count.checked_mul(size).ok_or_else(|| invalid("more bytes than addresses"))?;
        // CAST: 1, 2 or 4.
        Ok(self.space.fill(dst, &value.to_le_bytes()[..size as usize], len)?)
    }
}
