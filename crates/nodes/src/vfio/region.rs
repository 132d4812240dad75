//! Regions: what a program reads and writes at offsets into the device's descriptor.

use std::sync::Arc;

use super::config::SIZE as CONFIG_SIZE;
use super::device::Bound;
use super::structure::refuse;
use crate::file::{Behind, File};
use crate::{Result, refused};

/// BAR 0.
#[doc(alias = "VFIO_PCI_BAR0_REGION_INDEX")]
pub(super) const BAR: u32 = 0;
/// The regions before the ROM are BARs.
#[doc(alias = "VFIO_PCI_ROM_REGION_INDEX")]
pub(super) const ROM: u32 = 6;
#[doc(alias = "VFIO_PCI_CONFIG_REGION_INDEX")]
pub(super) const CONFIG: u32 = 7;
#[doc(alias = "VFIO_PCI_NUM_REGIONS")]
pub(super) const REGIONS: u32 = 9;

#[doc(alias = "VFIO_PCI_OFFSET_SHIFT")]
const SHIFT: u32 = 40;

/// How many bytes are copied at once.
const PIECE: usize = 64 << 10;

/// This many bytes at this offset.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) len: usize,
    pub(crate) offset: i64,
}

/// Where a region begins.
pub(super) fn offset_of(index: u32) -> u64 {
    u64::from(index) << SHIFT
}

/// A part of a region.
struct Part {
    index: u32,
    at: u64,
    len: usize,
}

impl Part {
    #[doc(alias = "vfio_pci_rw")]
    fn new(bound: &Bound, span: Span) -> Result<Self> {
        let offset = u64::try_from(span.offset).map_err(|_| libc::EINVAL)?;
        // CAST: 24 bits are left.
        let (index, at) = ((offset >> SHIFT) as u32, offset & ((1 << SHIFT) - 1));
        match index {
            BAR => {
                let left = bound.bar.size().checked_sub(at).filter(|left| *left > 0);
                let left =
                    left.ok_or_else(|| refuse(libc::EINVAL, format_args!("behind BAR 0")))?;
                if !bound.is_enabled() {
                    return Err(refuse(libc::EIO, format_args!("memory is disabled")));
                }
                let len = span.len.min(usize::try_from(left).unwrap_or(usize::MAX));
                Ok(Self { index, at, len })
            }
            CONFIG => {
                let end = at.saturating_add(span.len as u64);
                if end > CONFIG_SIZE as u64 {
                    let why = format_args!("behind the configuration space");
                    return Err(refuse(libc::EFAULT, why));
                }
                Ok(Self { index, at, len: span.len })
            }
            index => Err(refuse(libc::EINVAL, format_args!("region {index} is not there"))),
        }
    }
}

/// Copies a part of a region piece by piece, through a buffer: `copy` gets each piece, its offset
/// in the region, and its offset in the part.
fn pieces(part: &Part, mut copy: impl FnMut(&mut [u8], u64, usize) -> Result<()>) -> Result<()> {
    let mut piece = vec![0; part.len.min(PIECE)];
    for done in (0..part.len).step_by(PIECE) {
        copy(&mut piece[..(part.len - done).min(PIECE)], part.at + done as u64, done)?;
    }
    Ok(())
}

/// Reads from a region.
///
/// # Safety
///
/// `out` has room for that many bytes.
pub(crate) unsafe fn read(file: &Arc<File>, out: *mut u8, span: Span) -> Result<usize> {
    let Behind::Vfio(device) = &file.behind else { return Err(libc::EINVAL) };
    device.with(|bound| {
        let part = Part::new(bound, span)?;
        pieces(&part, |bytes, at, done| {
            match part.index {
                BAR => bound.bar.read(at, bytes).map_err(|error| refused(&error))?,
                // CAST: below 256.
                _ => bound.config.read(at as usize, bytes),
            }
            let to = out.wrapping_add(done);
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
            Ok(())
        })?;
        Ok(part.len)
    })
}

/// Writes to a region.
///
/// # Safety
///
/// There are that many bytes at `from`.
pub(crate) unsafe fn write(file: &Arc<File>, from: *const u8, span: Span) -> Result<usize> {
    let Behind::Vfio(device) = &file.behind else { return Err(libc::EINVAL) };
    device.with(|bound| {
        let part = Part::new(bound, span)?;
        pieces(&part, |bytes, at, done| {
            let from = from.wrapping_add(done);
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
            match part.index {
                BAR => bound.bar.write(at, bytes).map_err(|error| refused(&error))?,
                // CAST: below 256.
                _ => bound.config.write(at as usize, bytes),
            }
            Ok(())
        })?;
        if part.index == CONFIG {
            bound.follow()?;
        }
        Ok(part.len)
    })
}
