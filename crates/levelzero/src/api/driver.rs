//! Initialisation, and properties of the driver.

use std::ffi::{c_char, c_void};

use umd::machine;

use crate::boundary::{self, calls};
use crate::c::{self, Head, In, Out, Text};
use crate::process::{self, DRIVER, PRESET, driver};
use crate::status::{Refusal, Result, Status, flags, unsupported};
use crate::tables::VERSION;

/// Types of devices that a program may ask for: GPUs, and others.
const GPUS: u32 = 1;
const KINDS: u32 = 3;

/// The version of the driver.
const DRIVER_VERSION: u32 = 1;

/// Supported extensions: name and version.
const EXTENSIONS: [(&str, u32); 3] = [
    ("ZE_extension_pci_properties", 0x1_0000),
    ("ZE_extension_memory_free_policies", 0x1_0000),
    ("ZE_experimental_relaxed_allocation_limits", 0x1_0000),
];

/// What may be shared with other processes: memory and events.
const IPC_FLAGS: u32 = 3;

#[derive(Clone, Copy)]
#[repr(C)]
struct DriverProperties {
    head: Head,
    uuid: [u8; 16],
    version: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct IpcProperties {
    head: Head,
    flags: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Extension {
    name: [u8; 256],
    version: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct DriverTypes {
    head: Head,
    flags: u32,
}

fn init(kinds: u32) -> Result<()> {
    if kinds != 0 && kinds & GPUS == 0 {
        return Err(Refusal::new(Status::Uninitialized, "there are GPUs, and no other devices"));
    }
    process::init().map(|_| ())
}

calls! { CALLS:
    fn zeInit(given: u32) {
        flags(given, KINDS)?;
        init(given)
    }

    fn zeInitDrivers(count: Out<u32>, drivers: Out<u64>, types: In<DriverTypes>) {
        let types = types.get()?;
        if types.flags == 0 {
            return Err(Refusal::new(Status::InvalidEnumeration, "no type of device"));
        }
        init(types.flags)?;
        c::list(count, drivers, [DRIVER].into_iter())
    }

    fn zeDriverGet(count: Out<u32>, drivers: Out<u64>) {
        process::get()?;
        c::list(count, drivers, [DRIVER].into_iter())
    }

    fn zeDriverGetApiVersion(handle: u64, version: Out<u32>) {
        driver(handle)?;
        version.put(VERSION)
    }

    fn zeDriverGetProperties(handle: u64, place: Out<DriverProperties>) {
        driver(handle)?;
        c::fill(place, |properties| {
            // The UUID of the machine's first GPU, regardless of a mask.
            properties.uuid = machine::devices(PRESET)[0].uuid;
            properties.version = DRIVER_VERSION;
        })
    }

    fn zeDriverGetIpcProperties(handle: u64, place: Out<IpcProperties>) {
        driver(handle)?;
        c::fill(place, |properties| properties.flags = IPC_FLAGS)
    }

    fn zeDriverGetExtensionProperties(handle: u64, count: Out<u32>, places: Out<Extension>) {
        driver(handle)?;
        let extension = |(name, version): (&str, u32)| Extension { name: c::text(name), version };
        c::list(count, places, EXTENSIONS.into_iter().map(extension))
    }

    fn zeDriverGetExtensionFunctionAddress(handle: u64, name: Text, address: Out<*const c_void>) {
        driver(handle)?;
        let name = name.get()?.to_string_lossy();
        address.put(std::ptr::null())?;
        Err(unsupported(format!("there is no function {name:?} beside those of the tables")))
    }

    fn zeDriverGetLastErrorDescription(handle: u64, text: Out<*const c_char>) {
        driver(handle)?;
        text.put(boundary::last())
    }
}
