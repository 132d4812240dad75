//! Memory of GPUs.

use crate::allocate::PITCH;
use crate::boundary::calls;
use crate::c::Out;
use crate::context;
use crate::process;
use crate::space::{Kind, Source};
use crate::status::{Refusal, Result, Status, invalid};

calls! { CALLS:
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let process = process::get()?;
        let device = process.devices()[context::current()?.device];
        let all = device.config.vram;
        let used = device.gpu()?.used(gpu::Domain::Vram);
        // CAST: addresses are 64 bits wide here.
        free.put(all.saturating_sub(used) as usize)?;
        // CAST: as above.
        total.put(all as usize)
    }

    fn cuMemAlloc_v2(out: Out<u64>, len: usize) {
        out.check()?;
        let process = process::get()?;
        out.put(process.allocate(&context::current()?, len as u64)?)
    }

    fn cuMemAllocPitch_v2(
        out: Out<u64>,
        pitch: Out<usize>,
        width: usize,
        height: usize,
        element: u32,
    ) {
        out.check()?;
        pitch.check()?;
        let process = process::get()?;
        let context = context::current()?;
        if ![4, 8, 16].contains(&element) {
            return Err(invalid(format!("elements of {element} bytes: 4, 8 or 16")));
        }
        let (row, len) = pitched(width as u64, height as u64)?;
        out.put(process.allocate(&context, len)?)?;
        // CAST: a row is not longer than an allocation.
        pitch.put(row as usize)
    }

    fn cuMemFree_v2(start: u64) {
        let process = process::get()?;
        if start == 0 {
            return Ok(());
        }
        process.wait_for_streams();
        process.free(start, |kind| match kind {
            Kind::Device { source, .. } => !matches!(source, Source::Ipc { .. }),
            Kind::Managed { .. } => true,
            _ => false,
        })
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, len: Out<usize>, addr: u64) {
        let process = process::get()?;
        let none = || Refusal::new(Status::NotFound, format!("{addr:#x} is in no allocation"));
        let region = process.space.find(addr).ok_or_else(none)?;
        let (start, size) = match &region.kind {
            // The range of the mapping, not that of the reservation.
            Kind::Reserved(reserved) => {
                let mapped = reserved.find(addr).ok_or_else(none)?;
                (mapped.start, mapped.len)
            }
            Kind::Registered { .. } => return Err(none()),
            _ => (region.start, region.len),
        };
        base.put_if(start);
        // CAST: addresses are 64 bits wide here.
        len.put_if(size as usize);
        Ok(())
    }
}

/// The pitch, and the bytes of all rows.
pub(crate) fn pitched(width: u64, height: u64) -> Result<(u64, u64)> {
    let row = width.checked_next_multiple_of(PITCH);
    let len = row.and_then(|row| row.checked_mul(height));
    match (row, len) {
        (Some(row), Some(len)) if len > 0 => Ok((row, len)),
        _ => Err(invalid(format!("{height} rows of {width} bytes"))),
    }
}
