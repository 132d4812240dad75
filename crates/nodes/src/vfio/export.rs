//! `VFIO_DEVICE_FEATURE`, with the one feature served: dma-bufs of BARs.

use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::device::Bound;
use super::region::{BAR, ROM};
use super::structure::{check, refuse, take};
use crate::args::uapi;
use crate::{Result, refused};

uapi! {
    #[doc(alias = "vfio_device_feature")]
    struct Feature: 8 {
        argsz: u32,
        flags: u32,
    }
    #[doc(alias = "vfio_device_feature_dma_buf")]
    struct DmaBuf: 16 {
        region_index: u32,
        open_flags: u32,
        flags: u32,
        nr_ranges: u32,
    }
    #[doc(alias = "vfio_region_dma_range")]
    struct Range: 16 {
        offset: u64,
        length: u64,
    }
}

#[doc(alias = "VFIO_DEVICE_FEATURE_MASK")]
const MASK: u32 = 0xffff;
#[doc(alias = "VFIO_DEVICE_FEATURE_GET")]
const GET: u32 = 1 << 16;
#[doc(alias = "VFIO_DEVICE_FEATURE_SET")]
const SET: u32 = 1 << 17;
#[doc(alias = "VFIO_DEVICE_FEATURE_PROBE")]
const PROBE: u32 = 1 << 18;
#[doc(alias = "VFIO_DEVICE_FEATURE_DMA_BUF")]
const DMA_BUF: u32 = 11;

/// For more ranges than this the kernel answers ENOMEM.
const MOST_RANGES: u32 = (4 << 20) / 16;

/// # Safety
///
/// `place` is null or points to a `vfio_device_feature` with what the feature needs.
#[doc(alias = "vfio_ioctl_device_feature")]
pub(super) unsafe fn feature(bound: &mut Bound, place: *mut c_void) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let feature = unsafe { take::<Feature>(place) }?;
    check(feature.argsz, size_of::<Feature>())?;
    let (flags, probes) = (feature.flags, feature.flags & PROBE != 0);
    let both = flags & GET != 0 && flags & SET != 0;
    if flags & !(MASK | GET | SET | PROBE) != 0 || !probes && both {
        return Err(refuse(libc::EINVAL, format_args!("flags {flags:#x} of a feature")));
    }
    if flags & MASK != DMA_BUF {
        return Err(refuse(libc::ENOTTY, format_args!("feature {} is not there", flags & MASK)));
    }
    if flags & SET != 0 || !probes && flags & GET == 0 {
        return Err(refuse(libc::EINVAL, format_args!("dma-bufs are gotten, and nothing else")));
    }
    if probes {
        return Ok(0);
    }
    check(feature.argsz, size_of::<Feature>() + size_of::<DmaBuf>())?;
    let behind = place.cast::<Feature>().wrapping_add(1).cast::<DmaBuf>();
    // SAFETY: the caller's promise: this is what the feature needs.
    let wanted = unsafe { behind.read_unaligned() };
    let ranges = behind.wrapping_add(1).cast::<Range>();
    // SAFETY: the caller's promise: as many ranges follow as the header says.
    unsafe { export(bound, &wanted, ranges) }
}

/// A dma-buf of ranges of a BAR, concatenated.
///
/// # Safety
///
/// There are as many ranges as `wanted` says.
#[doc(alias = "vfio_pci_core_feature_dma_buf")]
unsafe fn export(bound: &mut Bound, wanted: &DmaBuf, ranges: *const Range) -> Result<c_int> {
    let no = |errno: c_int, why: &str| Err(refuse(errno, format_args!("dma-buf: {why}")));
    if wanted.nr_ranges == 0 || wanted.flags != 0 {
        return no(libc::EINVAL, "no ranges, or flags");
    }
    if wanted.region_index >= ROM {
        return no(libc::ENODEV, "only BARs are exported");
    }
    if wanted.nr_ranges > MOST_RANGES {
        return no(libc::ENOMEM, "too many ranges");
    }
    let count = wanted.nr_ranges as usize;
    // SAFETY: the caller's promise.
    let ranges = (0..count).map(|n| unsafe { ranges.wrapping_add(n).read_unaligned() });
    let ranges: Vec<Range> = ranges.collect();
    let page = rustix::param::page_size() as u64;
    let mut total = 0_u64;
    for range in &ranges {
        if range.length == 0 || !(range.offset | range.length).is_multiple_of(page) {
            return no(libc::EINVAL, "a range that is not whole pages");
        }
        match total.checked_add(range.length) {
            Some(sum) => total = sum,
            None => return no(libc::EINVAL, "more than there are addresses"),
        }
    }
    if wanted.region_index != BAR {
        return no(libc::EINVAL, "that BAR is not there");
    }
    for range in &ranges {
        match range.offset.checked_add(range.length) {
            None => return no(libc::EOVERFLOW, "a range that ends behind all addresses"),
            Some(end) if end > bound.bar.size() => {
                return no(libc::EINVAL, "a range that ends behind the BAR");
            }
            Some(_) => {}
        }
    }
    let exported = match &*ranges {
        [range] => bound.bar.export_range(range.offset, range.length),
        ranges => {
            let parts: Vec<_> =
                ranges.iter().map(|range| (&bound.bar, range.offset, range.length)).collect();
            gpu::export_joined(&parts)
        }
    };
    let buf = exported.map_err(|error| refused(&error))?;
    let flags = OFlags::from_bits_retain(wanted.open_flags);
    Ok(dmabuf::give(buf, flags).map_err(Errno::raw_os_error)?.into_raw_fd())
}
