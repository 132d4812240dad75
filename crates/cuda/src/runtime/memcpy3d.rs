//! Copies and fills of boxes.

use std::ffi::c_int;

use super::call::{Failure, Result, in_context};
use super::memcpy::check;
use super::memory::{Extent, Pitched};
use crate::boundary::calls;
use crate::c::In;
use crate::driver::copy::{and_wait, in_stream};
use crate::driver::copy3d::{Corner, Planes, copy, copy_in};
use crate::process::Process;
use crate::status::{Status, invalid};

/// One end of a copy. Its position is in bytes, rows and planes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct End {
    array: u64,
    position: [usize; 3],
    memory: Pitched,
}

#[doc(alias = "cudaMemcpy3DParms")]
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Box3d {
    src: End,
    dst: End,
    extent: Extent,
    direction: c_int,
}

/// One end of a copy between GPUs.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PeerEnd {
    end: End,
    device: c_int,
}

#[doc(alias = "cudaMemcpy3DPeerParms")]
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PeerBox {
    src: PeerEnd,
    dst: PeerEnd,
    extent: Extent,
}

impl End {
    fn corner(&self) -> Result<Corner> {
        if self.array != 0 {
            return Err(Failure::new(Status::NotSupported.number(), "arrays"));
        }
        let Pitched { start, pitch, height, .. } = self.memory;
        Ok(Corner { base: start, at: self.position, pitch, height })
    }
}

fn planes(dst: &End, src: &End, extent: Extent) -> Result<Planes> {
    Ok(Planes::new(dst.corner()?, src.corner()?, extent.shape())?)
}

impl Box3d {
    fn planes(&self) -> Result<Planes> {
        check(self.direction)?;
        planes(&self.dst, &self.src, self.extent)
    }
}

impl PeerBox {
    fn planes(&self) -> Result<Planes> {
        let process = crate::process::get()?;
        process.ordinal(self.src.device)?;
        process.ordinal(self.dst.device)?;
        planes(&self.dst.end, &self.src.end, self.extent)
    }
}

/// Fills a box.
fn fill(process: &Process, to: Pitched, value: u8, extent: Extent) -> crate::status::Result<()> {
    let [width, height, depth] = extent.shape();
    let plane = (to.pitch as u64).checked_mul(to.height as u64);
    let plane = plane.ok_or_else(|| invalid("planes beyond the end of the address space"))?;
    for index in 0..depth as u64 {
        let at = plane.checked_mul(index).and_then(|skip| to.start.checked_add(skip));
        let at = at.ok_or_else(|| invalid("planes beyond the end of the address space"))?;
        process.fill_rows(at, to.pitch, value.into(), 1, [width, height])?;
    }
    Ok(())
}

calls! { CALLS by in_context:
    fn cudaMemcpy3D(what: In<Box3d>) { Ok(copy(what.get()?.planes()?)?) }

    fn cudaMemcpy3DAsync(what: In<Box3d>, stream: u64) {
        Ok(copy_in(stream, what.get()?.planes()?)?)
    }

    fn cudaMemcpy3DPeer(what: In<PeerBox>) { Ok(copy(what.get()?.planes()?)?) }

    fn cudaMemcpy3DPeerAsync(what: In<PeerBox>, stream: u64) {
        Ok(copy_in(stream, what.get()?.planes()?)?)
    }

    // CAST: a byte, as of memset.
    fn cudaMemset3D(to: Pitched, value: c_int, extent: Extent) {
        Ok(and_wait(move |process| fill(process, to, value as u8, extent))?)
    }

    // CAST: as above.
    fn cudaMemset3DAsync(to: Pitched, value: c_int, extent: Extent, stream: u64) {
        Ok(in_stream(stream, move |process| fill(process, to, value as u8, extent))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_those_of_the_header() {
        assert_eq!((size_of::<Box3d>(), size_of::<PeerBox>()), (160, 168));
    }
}
