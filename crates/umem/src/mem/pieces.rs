//! The payloads of a train of packets: pieces of one length, evenly spaced in a buffer of ours, and
//! adjacent in memory.

use dmabuf::Direction;

use super::Umem;
use super::access::Place;
use super::inner::pointer;
use crate::fault::Fault;
use crate::guard;
use crate::pieces::Pieces;

impl Umem {
    /// Copies the bytes at `offset` to pieces of `out`, and continues the CRC-32 (as
    /// [`Umem::read_crc32`]) of each over its new contents. Cheaper than reading them one by one.
    ///
    /// False if that cannot be done in one pass: the processor has no instructions for it, or none
    /// for this length; the memory is in several places, or has to be made coherent; a page is
    /// absent; there are no pieces, they are not all in `out`, or the number of CRCs is wrong.
    /// Pieces and CRCs are then unspecified; [`Umem::read_crc32`] does what can be done, and
    /// reports what is wrong.
    pub fn read_pieces_crc32(
        &self,
        offset: u64,
        out: &mut [u8],
        pieces: Pieces,
        crcs: &mut [u32],
    ) -> bool {
        let is_plain = !self.needs_bracket() && self.parts().is_none() && pieces.fit(out.len());
        if !is_plain {
            return false;
        }
        let Ok(addr) = self.inner.check(offset, (pieces.len * pieces.count) as u64) else {
            return false;
        };
        let _ = self.inner.takes_guard();
        // SAFETY: the creator of the memory promised that it may be read; absent pages are caught.
        unsafe { guard::copy_pieces_crc32(out, pieces, pointer(addr), crcs) }
    }

    /// Copies in pieces of `bytes` at `offset`, the last bytes of each last.
    ///
    /// # Errors
    ///
    /// [`Fault`]; the memory may then be partly overwritten.
    ///
    /// # Panics
    ///
    /// If not all pieces are in `bytes`.
    pub fn write_pieces(&self, offset: u64, bytes: &[u8], pieces: Pieces) -> Result<(), Fault> {
        let Pieces { first, len, stride, count } = pieces;
        assert!(count == 0 || pieces.fit(bytes.len()), "{pieces:?} in {} bytes", bytes.len());
        let piece = |index: usize| &bytes[first + index * stride..][..len];
        self.bracketed(Direction::ToDevice, |umem| match umem.place() {
            Place::Parts(_) => (0..count)
                .try_for_each(|index| umem.write(offset + (index * len) as u64, piece(index))),
            Place::One(memory) => {
                let addr = memory.check_write(offset, (len * count) as u64)?;
                (0..count).try_for_each(|index| {
                    // SAFETY: the address is in the checked range, with a whole piece before its
                    // end.
                    unsafe { memory.copy_in(addr + index * len, piece(index).as_ptr(), len) }
                })
            }
        })
    }
}

/// Whether several pieces of this length can be checksummed at once: if not, there is no point in
/// trying [`Umem::read_pieces_crc32`] and [`crc32_pieces`].
pub fn sums_pieces(len: usize) -> bool {
    guard::folds(len)
}

/// Continues a CRC-32 (as [`Umem::read_crc32`]) over each of several pieces of `bytes`.
///
/// False if the processor has no instructions for that, or none for this length; or if there are no
/// pieces, they are not all in `bytes`, or the number of CRCs is wrong. Nothing is changed then.
pub fn crc32_pieces(bytes: &[u8], pieces: Pieces, crcs: &mut [u32]) -> bool {
    guard::crc32_pieces(bytes, pieces, crcs)
}
