//! Memory that host and GPU share. It is host memory; advice is only reported back.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::boundary::calls;
use crate::c::{In, Out};
use crate::context;
use crate::process::{self, Process};
use crate::space::{Kind, Region};
use crate::status::{Result, invalid, unsupported};

/// The location of memory: the kind, and the number.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// Kinds of locations.
pub(crate) const DEVICE: c_int = 1;
const HOST: c_int = 2;

/// Attached globally, or to the host until it is attached otherwise.
const ATTACH_GLOBAL: u32 = 1;
const ATTACH_HOST: u32 = 2;

/// No location; the CPU.
const NOBODY: c_int = -2;
const CPU: c_int = -1;

fn managed(process: &Process, addr: u64, len: usize) -> Result<Arc<Region>> {
    let found = process.space.find(addr).filter(|region| {
        matches!(region.kind, Kind::Managed { .. })
            && addr.checked_add(len as u64).is_some_and(|end| end <= region.stop())
    });
    found.ok_or_else(|| invalid(format!("{len:#x} bytes at {addr:#x} are not managed memory")))
}

fn advise(addr: u64, len: usize, advice: c_int, device: c_int) -> Result<()> {
    let process = process::get()?;
    let region = managed(process, addr, len)?;
    if len == 0 || !(1..=6).contains(&advice) {
        return Err(invalid(format!("advice {advice} for {len:#x} bytes")));
    }
    if device != CPU {
        process.ordinal(device)?;
    }
    let Kind::Managed { preferred, .. } = &region.kind else { return Ok(()) };
    match advice {
        3 => preferred.store(device, Ordering::Relaxed),
        4 => preferred.store(NOBODY, Ordering::Relaxed),
        _ => {}
    }
    Ok(())
}

fn prefetch(addr: u64, len: usize, device: c_int, stream: u64) -> Result<()> {
    let process = process::get()?;
    managed(process, addr, len)?;
    process.stream(stream)?;
    if device != CPU {
        process.ordinal(device)?;
    }
    Ok(())
}

fn device_of(location: Location) -> c_int {
    if location.kind == DEVICE { location.id } else { CPU }
}

fn put_attribute(
    process: &Process,
    data: Out<u8>,
    size: usize,
    attribute: c_int,
    addr: u64,
    len: usize,
) -> Result<()> {
    data.check()?;
    let region = managed(process, addr, len)?;
    let Kind::Managed { preferred, .. } = &region.kind else { return Ok(()) };
    let preferred = preferred.load(Ordering::Relaxed);
    let value = match attribute {
        // Read mostly.
        1 => 0,
        2 => preferred,
        3 => {
            // A list of GPUs, padded with [`NOBODY`].
            (0..size / 4).for_each(|index| data.of::<c_int>().put_at(index, NOBODY));
            return Ok(());
        }
        // The last prefetch location.
        4 => NOBODY,
        5 => match preferred {
            NOBODY => 0,
            CPU => HOST,
            _ => DEVICE,
        },
        6 => preferred.max(0),
        7 | 8 => 0,
        _ => return Err(invalid(format!("a range has no attribute {attribute}"))),
    };
    if size != 4 {
        return Err(invalid(format!("attribute {attribute} of a range has 4 bytes, not {size}")));
    }
    data.of().put(value)
}

calls! { CALLS:
    fn cuMemAllocManaged(out: Out<u64>, len: usize, flags: u32) {
        out.check()?;
        let process = process::get()?;
        let context = context::current()?;
        if flags != ATTACH_GLOBAL && flags != ATTACH_HOST {
            return Err(invalid(format!("flags {flags:#x} of managed memory")));
        }
        out.put(process.allocate_managed(&context, len as u64)?)
    }

    fn cuMemAdvise(addr: u64, len: usize, advice: c_int, device: c_int) {
        advise(addr, len, advice, device)
    }

    fn cuMemAdvise_v2(addr: u64, len: usize, advice: c_int, location: Location) {
        advise(addr, len, advice, device_of(location))
    }

    fn cuMemPrefetchAsync(addr: u64, len: usize, device: c_int, stream: u64) {
        prefetch(addr, len, device, stream)
    }

    fn cuMemPrefetchAsync_v2(
        addr: u64,
        len: usize,
        location: Location,
        flags: u32,
        stream: u64,
    ) {
        if flags != 0 {
            return Err(invalid(format!("flags {flags:#x}: must be 0")));
        }
        prefetch(addr, len, device_of(location), stream)
    }

    fn cuMemRangeGetAttribute(
        data: Out<u8>,
        size: usize,
        attribute: c_int,
        addr: u64,
        len: usize,
    ) {
        put_attribute(process::get()?, data, size, attribute, addr, len)
    }

    fn cuMemRangeGetAttributes(
        data: In<Out<u8>>,
        sizes: In<usize>,
        attributes: In<c_int>,
        count: usize,
        addr: u64,
        len: usize,
    ) {
        let process = process::get()?;
        (0..count).try_for_each(|index| {
            let (data, size) = (data.get_at(index)?, sizes.get_at(index)?);
            put_attribute(process, data, size, attributes.get_at(index)?, addr, len)
        })
    }

    fn cuStreamAttachMemAsync(stream: u64, addr: u64, len: usize, flags: u32) {
        let process = process::get()?;
        process.stream(stream)?;
        if ![1, 2, 4].contains(&flags) {
            return Err(invalid(format!("flags {flags:#x}")));
        }
        managed(process, addr, len).map(|_| ()).map_err(|refusal| unsupported(refusal.what))
    }
}
