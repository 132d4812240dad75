//! Copies of boxes: planes of rows.

use std::ffi::c_int;

use super::copy::{DEVICE, HOST, Rows, UNIFIED, and_wait, in_stream};
use crate::boundary::calls;
use crate::c::In;
use crate::process::{self, Process};
use crate::status::{Result, invalid, unsupported};

/// One end of a copy, as in the header. `context` is for copies between GPUs; otherwise it must be
/// null.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct End {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_int,
    host: u64,
    device: u64,
    array: u64,
    context: u64,
    pitch: usize,
    height: usize,
}

/// A box of bytes.
#[doc(alias = "CUDA_MEMCPY3D")]
#[doc(alias = "CUDA_MEMCPY3D_PEER")]
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy3d {
    src: End,
    dst: End,
    width: usize,
    height: usize,
    depth: usize,
}

/// The start of a box in memory, and the pitch of its rows and planes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Corner {
    pub(crate) base: u64,
    /// The offset of the box in the memory: bytes, rows, planes.
    pub(crate) at: [usize; 3],
    /// Bytes from row to row.
    pub(crate) pitch: usize,
    /// Rows from plane to plane.
    pub(crate) height: usize,
}

/// Planes of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    rows: Rows,
    dst_plane: u64,
    src_plane: u64,
    depth: u64,
}

impl Planes {
    /// A copy of `width` bytes, `height` rows, `depth` planes.
    ///
    /// # Errors
    ///
    /// Rows that are longer than their pitch, planes likewise; a box beyond the end of the address
    /// space.
    pub(crate) fn new(dst: Corner, src: Corner, shape: [usize; 3]) -> Result<Self> {
        let [(dst, dst_pitch, dst_plane), (src, src_pitch, src_plane)] =
            [dst.first(shape)?, src.first(shape)?];
        let [width, height, depth] = shape.map(|size| size as u64);
        let rows = Rows { dst, dst_pitch, src, src_pitch, width, height };
        Ok(Self { rows, dst_plane, src_plane, depth })
    }
}

impl Corner {
    /// The first byte, and the bytes from row to row and from plane to plane.
    fn first(self, [width, height, depth]: [usize; 3]) -> Result<(u64, u64, u64)> {
        let [x, y, z] = self.at;
        // A pitch may be 0 where there is only one row or plane.
        let pitch =
            if self.pitch == 0 && height <= 1 && depth <= 1 { x + width } else { self.pitch };
        let rows = if self.height == 0 && depth <= 1 && z == 0 { y + height } else { self.height };
        if x.checked_add(width).is_none_or(|end| end > pitch) {
            return Err(invalid(format!("rows of {width} bytes at {x}, {pitch} apart")));
        }
        if y.checked_add(height).is_none_or(|end| end > rows) {
            return Err(invalid(format!("planes of {height} rows at {y}, {rows} apart")));
        }
        let first = || {
            let plane = (pitch as u64).checked_mul(rows as u64)?;
            let planes = plane.checked_mul(z as u64)?;
            let skip = (pitch as u64).checked_mul(y as u64)?.checked_add(x as u64)?;
            Some((self.base.checked_add(planes)?.checked_add(skip)?, plane))
        };
        let (start, plane) =
            first().ok_or_else(|| invalid("a box beyond the end of the address space"))?;
        Ok((start, pitch as u64, plane))
    }
}

impl End {
    fn corner(&self) -> Result<Corner> {
        let base = match self.kind {
            HOST => self.host,
            DEVICE | UNIFIED => self.device,
            _ => return Err(unsupported("arrays")),
        };
        if self.level != 0 {
            return Err(invalid(format!("level {} of memory that has no levels", self.level)));
        }
        let at = [self.x, self.y, self.z];
        Ok(Corner { base, at, pitch: self.pitch, height: self.height })
    }
}

impl Copy3d {
    fn planes(&self) -> Result<Planes> {
        let shape = [self.width, self.height, self.depth];
        Planes::new(self.dst.corner()?, self.src.corner()?, shape)
    }

    /// A copy in one context.
    fn within(&self) -> Result<Planes> {
        if self.src.context != 0 || self.dst.context != 0 {
            return Err(invalid("a reserved field is not null"));
        }
        self.planes()
    }

    /// A copy between two.
    fn between(&self) -> Result<Planes> {
        let process = process::get()?;
        process.contexts.find(self.src.context)?;
        process.contexts.find(self.dst.context)?;
        self.planes()
    }
}

impl Process {
    /// Copies planes.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy).
    pub(crate) fn copy_planes(&self, planes: &Planes) -> Result<()> {
        let Planes { rows, depth, .. } = *planes;
        let dst = [(rows.dst_pitch, rows.height), (planes.dst_plane, depth)];
        let src = [(rows.src_pitch, rows.height), (planes.src_plane, depth)];
        // All planes are copied, or none.
        self.check_steps(rows.dst, &dst, rows.width)?;
        self.check_steps(rows.src, &src, rows.width)?;
        for plane in 0..planes.depth {
            let at = |start: u64, step: u64| {
                let skip = step.checked_mul(plane).and_then(|skip| start.checked_add(skip));
                skip.ok_or_else(|| invalid("planes beyond the end of the address space"))
            };
            let dst = at(planes.rows.dst, planes.dst_plane)?;
            let src = at(planes.rows.src, planes.src_plane)?;
            self.copy_rows(&Rows { dst, src, ..planes.rows })?;
        }
        Ok(())
    }
}

/// Copies, and waits until the copy is done.
pub(crate) fn copy(planes: Planes) -> Result<()> {
    and_wait(move |process| process.copy_planes(&planes))
}

/// Queues a copy in a stream.
pub(crate) fn copy_in(stream: u64, planes: Planes) -> Result<()> {
    in_stream(stream, move |process| process.copy_planes(&planes))
}

calls! { CALLS:
    fn cuMemcpy3D_v2(what: In<Copy3d>) { copy(what.get()?.within()?) }

    fn cuMemcpy3DAsync_v2(what: In<Copy3d>, stream: u64) { copy_in(stream, what.get()?.within()?) }

    fn cuMemcpy3DPeer(what: In<Copy3d>) { copy(what.get()?.between()?) }

    fn cuMemcpy3DPeerAsync(what: In<Copy3d>, stream: u64) {
        copy_in(stream, what.get()?.between()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_that_of_the_header() {
        assert_eq!((size_of::<End>(), size_of::<Copy3d>()), (88, 200));
    }

    #[test]
    fn a_box_begins_planes_rows_and_bytes_into_its_memory() {
        let corner = Corner { base: 1000, at: [3, 2, 1], pitch: 16, height: 5 };
        assert_eq!(corner.first([13, 3, 2]), Ok((1000 + 80 + 32 + 3, 16, 80)));
        assert!(corner.first([14, 3, 2]).is_err(), "rows overlap");
        assert!(corner.first([13, 4, 2]).is_err(), "planes overlap");
        let row = Corner { base: 8, at: [0; 3], pitch: 0, height: 0 };
        assert_eq!(row.first([7, 1, 1]), Ok((8, 7, 7)), "one row needs no steps");
        assert!(row.first([7, 2, 1]).is_err());
        let far = Corner { base: u64::MAX, at: [1, 0, 0], pitch: 8, height: 1 };
        assert!(far.first([1, 1, 1]).is_err());
    }
}
