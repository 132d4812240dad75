//! The PCI address of a GPU.

use std::ffi::c_char;

use super::call::{Code, Failure, Result, check_version, device, handle, initialized};
use super::device::version_of;
use crate::boundary::calls;
use crate::c::{Out, Text};
use crate::machine::{self, Device, PCI_ID, PCI_SUBSYSTEM};

/// The structure of the first two variants: the fields that follow are unused.
#[repr(C)]
pub(crate) struct Short {
    text: [c_char; 16],
    domain: u32,
    bus: u32,
    device: u32,
    id: u32,
    subsystem: u32,
    reserved: [u32; 4],
}

/// The structure of the third variant.
#[repr(C)]
pub(crate) struct Info {
    short: [c_char; 16],
    domain: u32,
    bus: u32,
    device: u32,
    id: u32,
    subsystem: u32,
    text: [c_char; 32],
}

/// The structure with a version.
#[repr(C)]
pub(crate) struct Extended {
    version: u32,
    domain: u32,
    bus: u32,
    device: u32,
    id: u32,
    subsystem: u32,
    base_class: u32,
    sub_class: u32,
    text: [c_char; 32],
}

const _: () = assert!(size_of::<Short>() == 52 && size_of::<Info>() == 68);
const _: () = assert!(size_of::<Extended>() == 64);

/// A string in a structure, truncated to its size.
fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array[..N - 1].iter_mut().zip(text.bytes()) {
        // CAST: keeps the bits.
        *to = from as c_char;
    }
    array
}

/// The address with a domain of eight digits, as NVML writes it, and with one of four digits.
fn texts(device: &Device) -> (String, String) {
    let bdf = device.bdf;
    let rest = format!("{:02X}:{:02X}.{}", bdf.bus(), bdf.device(), bdf.function());
    (format!("{:08X}:{rest}", bdf.domain()), format!("{:04X}:{rest}", bdf.domain()))
}

fn short(gpu: u64, out: Out<Short>) -> Result<()> {
    let (_, device) = device(gpu)?;
    Ok(out.put(Short {
        text: array(&texts(device).1),
        domain: device.bdf.domain(),
        bus: device.bdf.bus().into(),
        device: device.bdf.device().into(),
        id: PCI_ID,
        subsystem: PCI_SUBSYSTEM,
        reserved: [0; 4],
    })?)
}

fn by_address(text: Text, out: Out<u64>) -> Result<()> {
    out.check()?;
    let text = text.get()?.to_string_lossy().to_lowercase();
    let wanted = machine::bdf(&text)?;
    let found = machine::devices().iter().position(|device| device.bdf == wanted);
    let none = || Failure::new(Code::NotFound, format!("no GPU is at {text}"));
    Ok(out.put(handle(found.ok_or_else(none)?))?)
}

calls! { CALLS by initialized:
    fn nvmlDeviceGetHandleByPciBusId(text: Text, out: Out<u64>) { by_address(text, out) }

    fn nvmlDeviceGetHandleByPciBusId_v2(text: Text, out: Out<u64>) { by_address(text, out) }

    fn nvmlDeviceGetPciInfo(gpu: u64, out: Out<Short>) { short(gpu, out) }

    fn nvmlDeviceGetPciInfo_v2(gpu: u64, out: Out<Short>) { short(gpu, out) }

    fn nvmlDeviceGetPciInfo_v3(gpu: u64, out: Out<Info>) {
        let (_, device) = device(gpu)?;
        let (long, short) = texts(device);
        Ok(out.put(Info {
            short: array(&short),
            domain: device.bdf.domain(),
            bus: device.bdf.bus().into(),
            device: device.bdf.device().into(),
            id: PCI_ID,
            subsystem: PCI_SUBSYSTEM,
            text: array(&long),
        })?)
    }

    fn nvmlDeviceGetPciInfoExt(gpu: u64, out: Out<Extended>) {
        let version = version_of::<Extended>(1);
        check_version(out.of(), version)?;
        let (_, device) = device(gpu)?;
        Ok(out.put(Extended {
            version,
            domain: device.bdf.domain(),
            bus: device.bdf.bus().into(),
            device: device.bdf.device().into(),
            id: PCI_ID,
            subsystem: PCI_SUBSYSTEM,
            // A 3D controller.
            base_class: 3,
            sub_class: 2,
            text: array(&texts(device).0),
        })?)
    }
}
