//! The null region: it reads as zeros, and discards what is written to it (`ibv_alloc_null_mr`).
//!
//! Programs put it in scatter/gather lists where bytes must be left out. It has one key for the
//! whole device, is valid at every address, in any protection domain, and grants no rights to
//! peers, like mlx5's null mkey.

use iba::{Access, LKey};
use transport::env::LocalError;
use umem::{HostBuf, Umem};

use super::mr::MrTable;
use crate::refusal::{Result, no_memory};

/// Its key: the last one, which no region can have, as their indices end at `max_mr`.
pub(crate) const NULL_KEY: u32 = (1 << 31) - 1;

/// The memory behind it, piece by piece.
#[derive(Debug)]
pub(super) struct Null {
    /// Only read.
    zeros: Umem,
    /// Only written.
    sink: Umem,
}

/// Bytes of each.
const PIECE: u32 = 64 << 10;

impl Null {
    fn new() -> Result<Self> {
        let memory = || {
            HostBuf::anonymous(PIECE as usize)
                .map(|memory| Umem::host(&memory))
                .map_err(|error| no_memory("alloc_null_mr", &error))
        };
        Ok(Self { zeros: memory()?, sink: memory()? })
    }
}

impl MrTable {
    /// Makes sure that there is a null region.
    pub(crate) fn make_null(&mut self) -> Result<()> {
        if self.null.is_none() {
            self.null = Some(Null::new()?);
        }
        Ok(())
    }

    /// Whether a key is that of the null region, and it exists.
    #[inline]
    pub(crate) fn is_null(&self, key: LKey) -> bool {
        key.0 == NULL_KEY && self.null.is_some()
    }

    /// Visits memory that stands for `length` bytes of the null region.
    pub(crate) fn for_each_null(
        &self,
        length: u32,
        access: Access,
        mut visit: impl FnMut(&Umem, u64, u32) -> core::result::Result<(), LocalError>,
    ) -> core::result::Result<(), LocalError> {
        let Some(null) = &self.null else { return Err(LocalError::Protection) };
        let umem = if access.is_empty() { &null.zeros } else { &null.sink };
        let mut left = length;
        while left > 0 {
            let piece = left.min(PIECE);
            visit(umem, 0, piece)?;
            left -= piece;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_null_region_reads_as_zeros_whatever_was_written() {
        let mut mrs = MrTable::default();
        assert!(!mrs.is_null(LKey(NULL_KEY)));
        let memory = || Umem::host(&HostBuf::anonymous(PIECE as usize).unwrap());
        mrs.null = Some(Null { zeros: memory(), sink: memory() });
        assert!(mrs.is_null(LKey(NULL_KEY)) && !mrs.is_null(LKey(NULL_KEY - 1)));
        let mut written = 0;
        mrs.for_each_null(PIECE * 2 + 5, Access::LOCAL_WRITE, |umem, at, length| {
            written += length;
            umem.write(at, &vec![7; length as usize]).map_err(|_| LocalError::Fault)
        })
        .unwrap();
        assert_eq!(written, PIECE * 2 + 5);
        let mut bytes = vec![1; 10];
        mrs.for_each_null(10, Access::empty(), |umem, at, length| {
            umem.read(at, &mut bytes[..length as usize]).map_err(|_| LocalError::Fault)
        })
        .unwrap();
        assert_eq!(bytes, [0; 10]);
    }
}
