//! Devices and their properties.

use umd::machine::Device;

use crate::boundary::calls;
use crate::c::{self, Head, Out};
use crate::event::now;
use crate::process::{self, device_handle, driver};
use crate::status::Result;

/// The PCI vendor ID.
pub(super) const VENDOR: u32 = 0x8086;

/// The number of queue groups: one for compute and copies, one for copies alone.
pub(super) const GROUPS: u32 = 2;

/// The number of queues in each group.
pub(super) const QUEUES: u32 = 4;

/// The longest fill pattern.
pub(super) const PATTERN: usize = 128;

/// The type of a device that is a GPU.
const GPU: u32 = 1;

/// The version of a structure whose timer resolution is a frequency, not a time.
const PROPERTIES_1_2: u32 = 0x0002_0006;

/// The type of file for export and import of memory: a dma-buf.
pub(super) const DMA_BUF: u32 = 2;

/// Capabilities of queues: compute (including cooperative kernels) and copy, or copy.
const COMPUTE_AND_COPY: u32 = 7;
const COPY: u32 = 2;

/// Capabilities of memory access: read and write, atomics, concurrent access, concurrent atomics.
const ALL_ACCESS: u32 = 0xf;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct DeviceProperties {
    head: Head,
    kind: u32,
    vendor: u32,
    device: u32,
    flags: u32,
    subdevice: u32,
    core_clock: u32,
    max_alloc: u64,
    max_contexts: u32,
    max_priority: u32,
    threads_per_eu: u32,
    simd_width: u32,
    eus_per_subslice: u32,
    subslices_per_slice: u32,
    slices: u32,
    timer_resolution: u64,
    timestamp_bits: u32,
    kernel_timestamp_bits: u32,
    uuid: [u8; 16],
    name: [u8; 256],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ComputeProperties {
    head: Head,
    max_group: u32,
    max_group_sizes: [u32; 3],
    max_group_counts: [u32; 3],
    max_local_memory: u32,
    subgroups: u32,
    subgroup_sizes: [u32; 8],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ModuleProperties {
    head: Head,
    spirv: u32,
    flags: u32,
    float_flags: [u32; 3],
    max_arguments: u32,
    printf_buffer: u32,
    native: [u8; 16],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GroupProperties {
    head: Head,
    flags: u32,
    max_pattern: usize,
    queues: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct MemoryProperties {
    head: Head,
    flags: u32,
    max_clock: u32,
    max_width: u32,
    total: u64,
    name: [u8; 256],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct AccessProperties {
    head: Head,
    host: u32,
    device: u32,
    shared: u32,
    shared_cross: u32,
    shared_system: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CacheProperties {
    head: Head,
    flags: u32,
    size: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ImageProperties {
    head: Head,
    max_dims: [u32; 3],
    max_buffer: u64,
    others: [u32; 4],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ExternalProperties {
    head: Head,
    import: u32,
    export: u32,
    image_import: u32,
    image_export: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PeerProperties {
    head: Head,
    flags: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PciProperties {
    head: Head,
    address: [u32; 4],
    generation: i32,
    width: i32,
    bandwidth: i64,
}

/// The maximum size of an allocation, unless its limits are relaxed.
pub(super) fn max_alloc(device: &Device) -> u64 {
    device.config.vram
}

/// The address of a device on PCI: domain, bus, device, function.
pub(super) fn address(device: &Device) -> [u32; 4] {
    let bdf = device.bdf;
    [bdf.domain(), bdf.bus().into(), bdf.device().into(), bdf.function().into()]
}

/// Fills the properties of a device, in any structure that contains them.
pub(super) fn describe(device: &Device, properties: &mut DeviceProperties) {
    let is_frequency = properties.head.kind == PROPERTIES_1_2;
    *properties = DeviceProperties {
        head: properties.head,
        kind: GPU,
        vendor: VENDOR,
        device: crate::PCI_ID >> 16,
        flags: 0,
        subdevice: 0,
        core_clock: 2400,
        max_alloc: max_alloc(device),
        max_contexts: 64 << 10,
        max_priority: 0,
        threads_per_eu: 8,
        simd_width: 16,
        eus_per_subslice: 8,
        subslices_per_slice: 4,
        slices: 5,
        timer_resolution: if is_frequency { 1_000_000_000 } else { 1 },
        timestamp_bits: 64,
        kernel_timestamp_bits: 64,
        uuid: device.uuid,
        name: c::text(&device.title()),
    };
}

fn find(handle: u64) -> Result<&'static Device> {
    let process = process::get()?;
    Ok(process.devices[process.device(handle)?])
}

fn reaches(handle: u64, peer: u64) -> Result<bool> {
    Ok(find(handle)?.reaches(find(peer)?))
}

calls! { CALLS:
    fn zeDeviceGet(handle: u64, count: Out<u32>, devices: Out<u64>) {
        let process = driver(handle)?;
        c::list(count, devices, (0..process.devices.len()).map(device_handle))
    }

    fn zeDeviceGetRootDevice(handle: u64, root: Out<u64>) {
        find(handle)?;
        root.put(0)
    }

    fn zeDeviceGetSubDevices(handle: u64, count: Out<u32>, devices: Out<u64>) {
        find(handle)?;
        c::list(count, devices, std::iter::empty())
    }

    fn zeDeviceGetProperties(handle: u64, place: Out<DeviceProperties>) {
        let device = find(handle)?;
        c::fill(place, |properties| describe(device, properties))
    }

    // Programs divide by these numbers, so they are not 0.
    fn zeDeviceGetComputeProperties(handle: u64, place: Out<ComputeProperties>) {
        find(handle)?;
        c::fill(place, |properties| {
            *properties = ComputeProperties {
                head: properties.head,
                max_group: 1024,
                max_group_sizes: [1024; 3],
                max_group_counts: [u32::MAX; 3],
                max_local_memory: 64 << 10,
                subgroups: 3,
                subgroup_sizes: [8, 16, 32, 0, 0, 0, 0, 0],
            };
        })
    }

    // No SPIR-V, and no flag: nothing computes.
    fn zeDeviceGetModuleProperties(handle: u64, place: Out<ModuleProperties>) {
        find(handle)?;
        c::fill(place, |properties| {
            *properties = ModuleProperties {
                head: properties.head,
                spirv: 0,
                flags: 0,
                float_flags: [0; 3],
                max_arguments: 2048,
                printf_buffer: 4096,
                native: [0; 16],
            };
        })
    }

    fn zeDeviceGetCommandQueueGroupProperties(
        handle: u64,
        count: Out<u32>,
        places: Out<GroupProperties>,
    ) {
        find(handle)?;
        c::list_filled(count, places, GROUPS, |index, group: &mut GroupProperties| {
            let flags = if index == 0 { COMPUTE_AND_COPY } else { COPY };
            (group.flags, group.max_pattern, group.queues) = (flags, PATTERN, QUEUES);
        })
    }

    fn zeDeviceGetMemoryProperties(handle: u64, count: Out<u32>, places: Out<MemoryProperties>) {
        let device = find(handle)?;
        c::list_filled(count, places, 1, |_, memory: &mut MemoryProperties| {
            memory.flags = 0;
            (memory.max_clock, memory.max_width) = (2400, 64);
            memory.total = device.config.vram;
            memory.name = c::text("VRAM");
        })
    }

    fn zeDeviceGetMemoryAccessProperties(handle: u64, place: Out<AccessProperties>) {
        find(handle)?;
        c::fill(place, |access| {
            (access.host, access.device, access.shared) = (ALL_ACCESS, ALL_ACCESS, ALL_ACCESS);
            (access.shared_cross, access.shared_system) = (ALL_ACCESS, ALL_ACCESS);
        })
    }

    fn zeDeviceGetCacheProperties(handle: u64, count: Out<u32>, places: Out<CacheProperties>) {
        find(handle)?;
        c::list_filled(count, places, 1, |_, cache: &mut CacheProperties| {
            (cache.flags, cache.size) = (0, 16 << 20);
        })
    }

    fn zeDeviceGetImageProperties(handle: u64, place: Out<ImageProperties>) {
        find(handle)?;
        c::fill(place, |image| {
            (image.max_dims, image.max_buffer, image.others) = ([0; 3], 0, [0; 4]);
        })
    }

    fn zeDeviceGetExternalMemoryProperties(handle: u64, place: Out<ExternalProperties>) {
        let device = find(handle)?;
        let exports = if device.config.dma_buf == Some(false) { 0 } else { DMA_BUF };
        c::fill(place, |external| {
            (external.import, external.export) = (DMA_BUF, exports);
            (external.image_import, external.image_export) = (0, 0);
        })
    }

    fn zeDeviceGetP2PProperties(handle: u64, peer: u64, place: Out<PeerProperties>) {
        let reaches = reaches(handle, peer)?;
        c::fill(place, |properties| properties.flags = reaches.into())
    }

    fn zeDeviceCanAccessPeer(handle: u64, peer: u64, value: Out<u8>) {
        value.put(reaches(handle, peer)?.into())
    }

    fn zeDeviceGetStatus(handle: u64) {
        find(handle)?.gpu()?;
        Ok(())
    }

    fn zeDeviceGetGlobalTimestamps(handle: u64, host: Out<u64>, device: Out<u64>) {
        find(handle)?;
        device.check()?;
        let now = now();
        host.put(now)?;
        device.put(now)
    }

    // Waits until all work queued on the device is done.
    fn zeDeviceSynchronize(handle: u64) {
        let process = process::get()?;
        let device = process.device(handle)?;
        process.synchronize(Some(device))
    }

    fn zeDevicePciGetPropertiesExt(handle: u64, place: Out<PciProperties>) {
        let device = find(handle)?;
        c::fill(place, |pci| {
            pci.address = address(device);
            // Unknown.
            (pci.generation, pci.width, pci.bandwidth) = (-1, -1, -1);
        })
    }
}

/// The free memory of a device.
pub(super) fn free(device: &Device) -> Result<u64> {
    let used = device.gpu()?.used(gpu::Domain::Vram);
    Ok(device.config.vram.saturating_sub(used))
}
