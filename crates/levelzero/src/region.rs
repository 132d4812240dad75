//! Copies of boxes: slices of rows of bytes.

use crate::space::Space;
use crate::status::{Refusal, Result, Status, invalid};

/// A box of bytes.
#[doc(alias = "ze_copy_region_t")]
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Bounds {
    origin: [u32; 3],
    size: [u32; 3],
}

/// One end of a copy: the address, the pitch of rows, and that of slices.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) at: u64,
    pub(crate) bounds: Bounds,
    pub(crate) pitch: u32,
    pub(crate) slice: u32,
}

/// A copy of a box.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    dst: End,
    src: End,
}

impl End {
    /// Whether two boxes of the same size, address and pitches overlap.
    fn overlaps(&self, other: &Self) -> bool {
        let is_alike = (self.at, self.pitch, self.slice) == (other.at, other.pitch, other.slice);
        let axes = self.bounds.origin.iter().zip(&other.bounds.origin).zip(&self.bounds.size);
        is_alike
            && axes.into_iter().all(|((own, others), size)| own.abs_diff(*others) < (*size).max(1))
    }

    /// The address of a row.
    fn row(&self, y: u32, z: u32) -> Option<u64> {
        let [x0, y0, z0] = self.bounds.origin.map(u64::from);
        let rows = (y0 + u64::from(y)).checked_mul(self.pitch.into())?;
        let layers = (z0 + u64::from(z)).checked_mul(self.slice.into())?;
        self.at.checked_add(x0)?.checked_add(rows)?.checked_add(layers)
    }
}

impl Region {
    /// # Errors
    ///
    /// Boxes of different sizes, or rows longer than their pitch.
    pub(crate) fn new(dst: End, src: End) -> Result<Self> {
        if dst.bounds.size != src.bounds.size {
            let (to, from) = (dst.bounds.size, src.bounds.size);
            return Err(invalid(format!("a box of {from:?} into one of {to:?}")));
        }
        let [width, height, _] = dst.bounds.size;
        for end in [&dst, &src] {
            if height > 1 && end.pitch < width {
                let pitch = end.pitch;
                return Err(invalid(format!("rows of {width} bytes with a pitch of {pitch}")));
            }
        }
        if dst.overlaps(&src) {
            return Err(Refusal::new(Status::OverlappingRegions, "the boxes overlap"));
        }
        Ok(Self { dst, src })
    }

    /// Copies row by row, or all at once where the rows are contiguous.
    pub(crate) fn copy(&self, space: &Space) -> Result<()> {
        let [width, height, depth] = self.dst.bounds.size;
        let depth = depth.max(1);
        let is_whole = [&self.dst, &self.src].iter().all(|end| end.pitch == width);
        let (rows, len) = if is_whole {
            (1, u64::from(width) * u64::from(height))
        } else {
            (height, width.into())
        };
        for z in 0..depth {
            for y in 0..rows {
                let end = || invalid("the box wraps around the end of the address space");
                let dst = self.dst.row(y, z).ok_or_else(end)?;
                let src = self.src.row(y, z).ok_or_else(end)?;
                space.copy(dst, src, len)?;
            }
        }
        Ok(())
    }
}
