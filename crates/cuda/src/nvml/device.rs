//! Properties of GPUs.

use std::ffi::{c_char, c_int};

use super::call::{Code, Failure, Result, device, handle, initialized, put_text};
use crate::attribute;
use crate::boundary::calls;
use crate::c::{Out, Text};
use crate::machine::{self, Device};
use crate::status::Refusal;

/// The brand of data centre GPUs.
const BRAND_NVIDIA: c_int = 14;

/// The generation of compute capability 9.0.
const ARCHITECTURE_HOPPER: c_int = 9;

/// PCI Express.
const BUS_PCIE: c_int = 2;

/// The memory usage of a GPU.
#[repr(C)]
pub(crate) struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// The same, including the memory that the driver reserves.
#[repr(C)]
pub(crate) struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

const _: () = assert!(size_of::<MemoryV2>() == 40);

/// The utilization, in percent.
#[repr(C)]
pub(crate) struct Utilization {
    gpu: u32,
    memory: u32,
}

/// The first word of a structure: its length, and its version.
pub(super) fn version_of<T>(version: u32) -> u32 {
    // CAST: structures are small.
    size_of::<T>() as u32 | version << 24
}

/// Total and used bytes.
fn memory(device: &Device) -> Result<(u64, u64)> {
    let total = device.config.vram;
    Ok((total, device.gpu().map_err(Refusal::from)?.used(gpu::Domain::Vram).min(total)))
}

fn by(what: &str, is: impl Fn(&Device) -> bool) -> Result<u64> {
    let found = machine::devices().iter().position(is);
    let none = || Failure::new(Code::NotFound, format!("no GPU has {what}"));
    found.map(handle).ok_or_else(none)
}

fn by_index(out: Out<u64>, index: u32) -> Result<()> {
    out.check()?;
    let count = machine::devices().len();
    if index as usize >= count {
        let what = format!("GPU {index}: there are {count}");
        return Err(Failure::new(Code::InvalidArgument, what));
    }
    Ok(out.put(handle(index as usize))?)
}

/// Answers 0, for features that are off or absent on every GPU.
fn zero(gpu: u64, out: Out<c_int>) -> Result<()> {
    device(gpu)?;
    Ok(out.put(0)?)
}

calls! { CALLS by initialized:
    fn nvmlDeviceGetCount(count: Out<u32>) {
        // CAST: there are few GPUs.
        Ok(count.put(machine::devices().len() as u32)?)
    }

    fn nvmlDeviceGetCount_v2(count: Out<u32>) {
        // CAST: there are few GPUs.
        Ok(count.put(machine::devices().len() as u32)?)
    }

    fn nvmlDeviceGetHandleByIndex(index: u32, out: Out<u64>) { by_index(out, index) }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, out: Out<u64>) { by_index(out, index) }

    fn nvmlDeviceGetHandleByUUID(text: Text, out: Out<u64>) {
        out.check()?;
        let text = text.get()?.to_string_lossy();
        Ok(out.put(by(&text, |device| machine::uuid_text(device) == text)?)?)
    }

    fn nvmlDeviceGetHandleBySerial(text: Text, out: Out<u64>) {
        out.check()?;
        let text = text.get()?.to_string_lossy();
        Ok(out.put(by(&text, |device| device.serial() == text)?)?)
    }

    fn nvmlDeviceGetName(gpu: u64, text: Out<c_char>, len: u32) {
        put_text(text, &device(gpu)?.1.title(), len)
    }

    fn nvmlDeviceGetUUID(gpu: u64, text: Out<c_char>, len: u32) {
        put_text(text, &machine::uuid_text(device(gpu)?.1), len)
    }

    fn nvmlDeviceGetSerial(gpu: u64, text: Out<c_char>, len: u32) {
        put_text(text, &device(gpu)?.1.serial(), len)
    }

    fn nvmlDeviceGetIndex(gpu: u64, out: Out<u32>) {
        // CAST: there are few GPUs.
        Ok(out.put(device(gpu)?.0 as u32)?)
    }

    // The number in /dev/nvidiaN, a node that does not exist.
    fn nvmlDeviceGetMinorNumber(gpu: u64, out: Out<u32>) {
        // CAST: there are few GPUs.
        Ok(out.put(device(gpu)?.0 as u32)?)
    }

    fn nvmlDeviceGetModuleId(gpu: u64, out: Out<u32>) {
        // CAST: there are few GPUs.
        Ok(out.put(device(gpu)?.0 as u32)?)
    }

    fn nvmlDeviceGetBrand(gpu: u64, out: Out<c_int>) {
        device(gpu)?;
        Ok(out.put(BRAND_NVIDIA)?)
    }

    fn nvmlDeviceGetArchitecture(gpu: u64, out: Out<c_int>) {
        device(gpu)?;
        Ok(out.put(ARCHITECTURE_HOPPER)?)
    }

    fn nvmlDeviceGetBusType(gpu: u64, out: Out<c_int>) {
        device(gpu)?;
        Ok(out.put(BUS_PCIE)?)
    }

    fn nvmlDeviceGetCudaComputeCapability(gpu: u64, major: Out<c_int>, minor: Out<c_int>) {
        let (_, device) = device(gpu)?;
        major.check()?;
        minor.check()?;
        major.put(attribute::of(device, attribute::COMPUTE_MAJOR)?)?;
        Ok(minor.put(attribute::of(device, attribute::COMPUTE_MINOR)?)?)
    }

    fn nvmlDeviceGetMemoryBusWidth(gpu: u64, out: Out<c_int>) {
        Ok(out.put(attribute::of(device(gpu)?.1, attribute::MEMORY_BUS_WIDTH)?)?)
    }

    fn nvmlDeviceGetMemoryInfo(gpu: u64, out: Out<Memory>) {
        out.check()?;
        let (total, used) = memory(device(gpu)?.1)?;
        Ok(out.put(Memory { total, free: total - used, used })?)
    }

    fn nvmlDeviceGetMemoryInfo_v2(gpu: u64, out: Out<MemoryV2>) {
        let version = version_of::<MemoryV2>(2);
        super::call::check_version(out.of(), version)?;
        let (total, used) = memory(device(gpu)?.1)?;
        Ok(out.put(MemoryV2 { version, total, reserved: 0, free: total - used, used })?)
    }

    // All of its memory is visible on the bus.
    fn nvmlDeviceGetBAR1MemoryInfo(gpu: u64, out: Out<Memory>) {
        out.check()?;
        let (total, used) = memory(device(gpu)?.1)?;
        Ok(out.put(Memory { total, free: total - used, used })?)
    }

    // Nothing computes.
    fn nvmlDeviceGetUtilizationRates(gpu: u64, out: Out<Utilization>) {
        device(gpu)?;
        Ok(out.put(Utilization { gpu: 0, memory: 0 })?)
    }

    fn nvmlDeviceGetNumaNodeId(gpu: u64, _out: Out<u32>) {
        device(gpu)?;
        Err(Failure::new(Code::NotSupported, "the GPU's memory is not a NUMA node"))
    }

    fn nvmlDeviceGetComputeMode(gpu: u64, out: Out<c_int>) { zero(gpu, out) }

    fn nvmlDeviceGetPersistenceMode(gpu: u64, out: Out<c_int>) { zero(gpu, out) }

    fn nvmlDeviceGetDisplayMode(gpu: u64, out: Out<c_int>) { zero(gpu, out) }

    fn nvmlDeviceGetDisplayActive(gpu: u64, out: Out<c_int>) { zero(gpu, out) }

    fn nvmlDeviceGetMultiGpuBoard(gpu: u64, out: Out<c_int>) { zero(gpu, out) }

    fn nvmlDeviceGetMaxMigDeviceCount(gpu: u64, out: Out<c_int>) { zero(gpu, out) }

    fn nvmlDeviceIsMigDeviceHandle(gpu: u64, out: Out<c_int>) { zero(gpu, out) }

    fn nvmlDeviceGetMigMode(gpu: u64, now: Out<c_int>, next: Out<c_int>) {
        zero(gpu, now)?;
        zero(gpu, next)
    }

    fn nvmlDeviceGetEccMode(gpu: u64, now: Out<c_int>, next: Out<c_int>) {
        zero(gpu, now)?;
        zero(gpu, next)
    }

    // Each GPU is a board, whose number is its PCI address.
    fn nvmlDeviceGetBoardId(gpu: u64, out: Out<u32>) {
        let bdf = device(gpu)?.1.bdf;
        Ok(out.put(bdf.domain() << 16 | u32::from(bdf.bus()) << 8 | u32::from(bdf.device()))?)
    }

    fn nvmlDeviceOnSameBoard(gpu: u64, other: u64, out: Out<c_int>) {
        let same = device(gpu)?.0 == device(other)?.0;
        Ok(out.put(c_int::from(same))?)
    }
}
