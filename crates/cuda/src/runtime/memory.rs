//! Memory of GPUs, managed memory, and attributes of pointers.

use std::ffi::{c_int, c_void};

use super::call::{Result, done, exported, in_context, initialized};
use crate::boundary::calls;
use crate::c::{In, Out};
use crate::driver;
use crate::driver::managed::Location;
use crate::pointer;
use crate::process;

/// The element size of rows: any valid one will do.
const ELEMENT: u32 = 4;

/// Rows of GPU memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Pitched {
    pub(super) start: u64,
    pub(super) pitch: usize,
    width: usize,
    /// Rows from plane to plane.
    pub(super) height: usize,
}

/// A block of rows.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Extent {
    width: usize,
    height: usize,
    depth: usize,
}

impl Extent {
    /// Bytes of a row, rows of a plane, planes.
    pub(super) fn shape(&self) -> [usize; 3] {
        [self.width, self.height, self.depth]
    }
}

/// The attributes of a pointer in version 12.
#[repr(C)]
pub(crate) struct Attributes {
    kind: c_int,
    device: c_int,
    device_pointer: u64,
    host_pointer: u64,
}

/// The same in version 13, which adds only unused fields.
#[repr(C)]
pub(crate) struct LongAttributes {
    first: Attributes,
    locality: i64,
    reserved: [u64; 7],
}

const _: () = assert!(size_of::<Attributes>() == 24 && size_of::<LongAttributes>() == 88);

/// Kinds of memory.
const UNREGISTERED: c_int = 0;
const HOST: c_int = 1;
const DEVICE: c_int = 2;
const MANAGED: c_int = 3;

fn attributes(addr: u64) -> Result<Attributes> {
    let process = process::get()?;
    let unknown =
        || Attributes { kind: UNREGISTERED, device: -2, device_pointer: 0, host_pointer: addr };
    let Some(region) = process.space.find(addr) else { return Ok(unknown()) };
    let number = |attribute| {
        pointer::attribute(process, &region, attribute, addr).map_or(0, pointer::Value::number)
    };
    let is_managed = number(pointer::IS_MANAGED) != 0;
    let kind = match number(pointer::MEMORY_TYPE) {
        _ if is_managed => MANAGED,
        1 => HOST,
        2 => DEVICE,
        // Reserved addresses without memory.
        _ => return Ok(unknown()),
    };
    Ok(Attributes {
        kind,
        // CAST: there are few GPUs.
        device: number(pointer::DEVICE_ORDINAL) as c_int,
        device_pointer: number(pointer::DEVICE_POINTER),
        host_pointer: number(pointer::HOST_POINTER),
    })
}

fn allocate_rows(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize) -> Result<()> {
    out.check()?;
    pitch.check()?;
    if width == 0 || height == 0 {
        pitch.put_if(0);
        return Ok(out.put(0)?);
    }
    exported!(cuMemAllocPitch_v2(
        out => Out<u64>,
        pitch => Out<usize>,
        width => usize,
        height => usize,
        ELEMENT => u32,
    ))
}

calls! { CALLS by in_context:
    // An allocation of no bytes is a null pointer.
    fn cudaMalloc(out: Out<u64>, len: usize) {
        out.check()?;
        if len == 0 {
            return Ok(out.put(0)?);
        }
        exported!(cuMemAlloc_v2(out => Out<u64>, len => usize))
    }

    fn cudaFree(start: u64) { exported!(cuMemFree_v2(start => u64)) }

    fn cudaMallocPitch(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize) {
        allocate_rows(out, pitch, width, height)
    }

    fn cudaMalloc3D(out: Out<Pitched>, extent: Extent) {
        out.check()?;
        let (mut start, mut pitch) = (0, 0);
        let rows = extent.height.checked_mul(extent.depth);
        let rows = rows.ok_or_else(|| crate::status::invalid("more rows than can be counted"))?;
        allocate_rows(Out::to(&mut start), Out::to(&mut pitch), extent.width, rows)?;
        Ok(out.put(Pitched { start, pitch, width: extent.width, height: extent.height })?)
    }

    fn cudaMallocManaged(out: Out<u64>, len: usize, flags: u32) {
        exported!(cuMemAllocManaged(out => Out<u64>, len => usize, flags => u32))
    }

    fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) {
        done(driver::memory::cuMemGetInfo_v2(free, total))
    }

    fn cudaMemRangeGetAttribute(
        data: Out<u8>,
        size: usize,
        attribute: c_int,
        addr: u64,
        len: usize,
    ) {
        done(driver::managed::cuMemRangeGetAttribute(data, size, attribute, addr, len))
    }

    fn cudaMemRangeGetAttributes(
        data: In<Out<u8>>,
        sizes: In<usize>,
        attributes: In<c_int>,
        count: usize,
        addr: u64,
        len: usize,
    ) {
        done(driver::managed::cuMemRangeGetAttributes(data, sizes, attributes, count, addr, len))
    }

    fn cudaStreamAttachMemAsync(stream: u64, addr: u64, len: usize, flags: u32) {
        done(driver::managed::cuStreamAttachMemAsync(stream, addr, len, flags))
    }
}

// A variable of a module: modules are empty.
calls! { QUERIES by initialized:
    fn cudaGetSymbolAddress(_out: Out<u64>, symbol: *const c_void) {
        super::kernel::no_symbol(symbol)
    }

    fn cudaGetSymbolSize(_out: Out<usize>, symbol: *const c_void) {
        super::kernel::no_symbol(symbol)
    }
}

calls! { ONLY_12 by in_context:
    fn cudaMemAdvise(addr: u64, len: usize, advice: c_int, device: c_int) {
        done(driver::managed::cuMemAdvise(addr, len, advice, device))
    }

    fn cudaMemAdvise_v2(addr: u64, len: usize, advice: c_int, location: Location) {
        done(driver::managed::cuMemAdvise_v2(addr, len, advice, location))
    }

    fn cudaMemPrefetchAsync(addr: u64, len: usize, device: c_int, stream: u64) {
        done(driver::managed::cuMemPrefetchAsync(addr, len, device, stream))
    }

    fn cudaMemPrefetchAsync_v2(
        addr: u64,
        len: usize,
        location: Location,
        flags: u32,
        stream: u64,
    ) {
        done(driver::managed::cuMemPrefetchAsync_v2(addr, len, location, flags, stream))
    }
}

mod twelve {
    use crate::runtime::memory::{Attributes, Out, attributes, calls, initialized};

    calls! { POINTERS_12 by initialized:
        fn cudaPointerGetAttributes(out: Out<Attributes>, addr: u64) {
            out.check()?;
            Ok(out.put(attributes(addr)?)?)
        }
    }
}
pub(super) use twelve::POINTERS_12;

mod thirteen {
    use crate::runtime::call::{in_context, initialized};
    use crate::runtime::memory::{
        Location, LongAttributes, Out, attributes, c_int, calls, done, driver,
    };

    calls! { ONLY_13 by in_context:
        fn cudaMemAdvise(addr: u64, len: usize, advice: c_int, location: Location) {
            done(driver::managed::cuMemAdvise_v2(addr, len, advice, location))
        }

        fn cudaMemPrefetchAsync(
            addr: u64,
            len: usize,
            location: Location,
            flags: u32,
            stream: u64,
        ) {
            done(driver::managed::cuMemPrefetchAsync_v2(addr, len, location, flags, stream))
        }
    }

    calls! { POINTERS_13 by initialized:
        fn cudaPointerGetAttributes(out: Out<LongAttributes>, addr: u64) {
            out.check()?;
            let first = attributes(addr)?;
            // Memory has no locality within a GPU.
            Ok(out.put(LongAttributes { first, locality: -1, reserved: [0; 7] })?)
        }
    }
}
pub(super) use thirteen::{ONLY_13, POINTERS_13};
