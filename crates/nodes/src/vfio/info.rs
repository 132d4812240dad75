//! What the device reports about itself.

use std::ffi::{c_int, c_void};

use super::config::SIZE as CONFIG_SIZE;
use super::device::Bound;
use super::region::{BAR, CONFIG, REGIONS, offset_of};
use super::structure::{check, put, refuse, take};
use crate::Result;
use crate::args::uapi;

uapi! {
    #[doc(alias = "vfio_device_info")]
    struct DeviceInfo: 16 {
        argsz: u32,
        flags: u32,
        num_regions: u32,
        num_irqs: u32,
    }
    #[doc(alias = "vfio_region_info")]
    struct RegionInfo: 32 {
        argsz: u32,
        flags: u32,
        index: u32,
        cap_offset: u32,
        size: u64,
        offset: u64,
    }
    #[doc(alias = "vfio_irq_info")]
    struct IrqInfo: 16 {
        argsz: u32,
        flags: u32,
        index: u32,
        count: u32,
    }
}

#[doc(alias = "VFIO_DEVICE_FLAGS_RESET")]
const RESET: u32 = 1;
#[doc(alias = "VFIO_DEVICE_FLAGS_PCI")]
const PCI: u32 = 2;
#[doc(alias = "VFIO_REGION_INFO_FLAG_READ")]
#[doc(alias = "VFIO_REGION_INFO_FLAG_WRITE")]
const READ_WRITE: u32 = 3;
#[doc(alias = "VFIO_PCI_NUM_IRQS")]
const IRQS: u32 = 5;
/// The error interrupt (`VFIO_PCI_ERR_IRQ_INDEX`), which only PCI Express functions have.
#[doc(alias = "VFIO_PCI_ERR_IRQ_INDEX")]
const ERR_IRQ: u32 = 3;

/// # Safety
///
/// `place` is null or points to a `vfio_device_info`.
#[doc(alias = "VFIO_DEVICE_GET_INFO")]
pub(super) unsafe fn device(place: *mut c_void) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let mut info = unsafe { take::<DeviceInfo>(place) }?;
    check(info.argsz, size_of::<DeviceInfo>())?;
    info = DeviceInfo { flags: PCI | RESET, num_regions: REGIONS, num_irqs: IRQS, ..info };
    // SAFETY: the caller's promise.
    unsafe { put(place, &info) };
    Ok(0)
}

/// # Safety
///
/// `place` is null or points to a `vfio_region_info`.
#[doc(alias = "VFIO_DEVICE_GET_REGION_INFO")]
pub(super) unsafe fn region(bound: &Bound, place: *mut c_void) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let mut info = unsafe { take::<RegionInfo>(place) }?;
    check(info.argsz, size_of::<RegionInfo>())?;
    info.size = match info.index {
        BAR => bound.bar.size(),
        CONFIG => CONFIG_SIZE as u64,
        // The other BARs and the ROM do not exist.
        1..CONFIG => 0,
        index => return Err(refuse(libc::EINVAL, format_args!("there is no region {index}"))),
    };
    info.flags = if info.size == 0 { 0 } else { READ_WRITE };
    info.offset = offset_of(info.index);
    // SAFETY: the caller's promise.
    unsafe { put(place, &info) };
    Ok(0)
}

/// # Safety
///
/// `place` is null or points to a `vfio_irq_info`.
#[doc(alias = "VFIO_DEVICE_GET_IRQ_INFO")]
pub(super) unsafe fn irq(place: *mut c_void) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let mut info = unsafe { take::<IrqInfo>(place) }?;
    check(info.argsz, size_of::<IrqInfo>())?;
    if info.index >= IRQS || info.index == ERR_IRQ {
        return Err(refuse(libc::EINVAL, format_args!("there is no interrupt {}", info.index)));
    }
    (info.flags, info.count) = (0, 0);
    // SAFETY: the caller's promise.
    unsafe { put(place, &info) };
    Ok(0)
}
