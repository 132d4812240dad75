//! System management: the PCI address of a GPU, and the use of its memory.
//!
//! It does not need `zeInit`: a tool may call only `zesInit`. Handles of devices are those of the
//! core API.

use super::device::{DeviceProperties, address, describe, free};
use crate::boundary::calls;
use crate::c::{self, Head, Out};
use crate::process::{self, DRIVER, device_handle, driver};
use crate::status::{Refusal, Result, Status, flags, invalid};

/// The handle of the memory of the first device; each device has one.
const MEMORIES: u64 = 0x5820_0000_0000;

/// The type of a BAR that maps memory.
const BAR_OF_MEMORY: u32 = 2;

/// The first BAR of 64 bits, and the second.
const BAR_NUMBER: u32 = 2;

/// The location and the type of memory: on the device, GDDR6.
const ON_DEVICE: u32 = 1;
const GDDR6: u32 = 17;

/// The memory is healthy.
const HEALTHY: u32 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    head: Head,
    core: DeviceProperties,
    subdevices: u32,
    serial: [u8; 64],
    board: [u8; 64],
    brand: [u8; 64],
    model: [u8; 64],
    vendor: [u8; 64],
    driver: [u8; 64],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct State {
    head: Head,
    reset: u32,
    repaired: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Speed {
    generation: i32,
    width: i32,
    bandwidth: i64,
}

/// The speed is not known.
const NO_SPEED: Speed = Speed { generation: -1, width: -1, bandwidth: -1 };

#[derive(Clone, Copy)]
#[repr(C)]
struct PciProperties {
    head: Head,
    address: [u32; 4],
    speed: Speed,
    counters: [u8; 3],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PciState {
    head: Head,
    status: u32,
    quality: u32,
    stability: u32,
    speed: Speed,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Bar {
    head: Head,
    kind: u32,
    index: u32,
    base: u64,
    size: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct MemoryProperties {
    head: Head,
    kind: u32,
    on_subdevice: u8,
    subdevice: u32,
    location: u32,
    size: u64,
    bus_width: i32,
    channels: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct MemoryState {
    head: Head,
    health: u32,
    free: u64,
    size: u64,
}

fn find(handle: u64) -> Result<&'static umd::machine::Device> {
    let process = process::init()?;
    Ok(process.devices[process.device(handle)?])
}

/// The device of a handle of memory.
fn memory(handle: u64) -> Result<&'static umd::machine::Device> {
    let process = process::init()?;
    let index = usize::try_from(handle.wrapping_sub(MEMORIES)).ok();
    match handle {
        0 => Err(Refusal::new(Status::InvalidNullHandle, "no memory")),
        _ => index
            .and_then(|index| process.devices.get(index).copied())
            .ok_or_else(|| invalid(format!("{handle:#x} is not a handle of memory"))),
    }
}

calls! { CALLS:
    fn zesInit(given: u32) {
        flags(given, 1)?;
        process::init().map(|_| ())
    }

    fn zesDriverGet(count: Out<u32>, drivers: Out<u64>) {
        process::init()?;
        c::list(count, drivers, [DRIVER].into_iter())
    }

    fn zesDeviceGet(handle: u64, count: Out<u32>, devices: Out<u64>) {
        let process = driver(handle)?;
        c::list(count, devices, (0..process.devices.len()).map(device_handle))
    }

    fn zesDeviceGetProperties(handle: u64, place: Out<Properties>) {
        let device = find(handle)?;
        c::fill(place, |properties| {
            describe(device, &mut properties.core);
            properties.subdevices = 0;
            properties.serial = c::text(&device.serial());
            properties.board = c::text("unknown");
            properties.brand = c::text("peerdma");
            properties.model = c::text(&device.title());
            properties.vendor = c::text("Intel(R) Corporation");
            properties.driver = c::text(env!("CARGO_PKG_VERSION"));
        })
    }

    fn zesDeviceGetState(handle: u64, place: Out<State>) {
        find(handle)?;
        c::fill(place, |state| (state.reset, state.repaired) = (0, 0))
    }

    fn zesDevicePciGetProperties(handle: u64, place: Out<PciProperties>) {
        let device = find(handle)?;
        c::fill(place, |pci| {
            (pci.address, pci.speed, pci.counters) = (address(device), NO_SPEED, [0; 3]);
        })
    }

    fn zesDevicePciGetState(handle: u64, place: Out<PciState>) {
        find(handle)?;
        c::fill(place, |pci| {
            (pci.status, pci.quality, pci.stability, pci.speed) = (HEALTHY, 0, 0, NO_SPEED);
        })
    }

    fn zesDevicePciGetBars(handle: u64, count: Out<u32>, places: Out<Bar>) {
        let device = find(handle)?;
        c::list_filled(count, places, 1, |_, bar: &mut Bar| {
            (bar.kind, bar.index, bar.base) = (BAR_OF_MEMORY, BAR_NUMBER, 0);
            bar.size = device.config.vram;
        })
    }

    fn zesDeviceEnumMemoryModules(handle: u64, count: Out<u32>, memories: Out<u64>) {
        let process = process::init()?;
        let index = process.device(handle)? as u64;
        c::list(count, memories, [MEMORIES + index].into_iter())
    }

    fn zesMemoryGetProperties(handle: u64, place: Out<MemoryProperties>) {
        let device = memory(handle)?;
        c::fill(place, |memory| {
            (memory.kind, memory.location) = (GDDR6, ON_DEVICE);
            (memory.on_subdevice, memory.subdevice) = (0, 0);
            (memory.size, memory.bus_width, memory.channels) = (device.config.vram, -1, -1);
        })
    }

    fn zesMemoryGetState(handle: u64, place: Out<MemoryState>) {
        let device = memory(handle)?;
        let free = free(device)?;
        c::fill(place, |memory| {
            (memory.health, memory.free, memory.size) = (HEALTHY, free, device.config.vram);
        })
    }
}
