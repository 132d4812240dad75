//! A VFIO device: a PCI function that a program drives itself. Its memory is behind BAR 0.
//!
//! ```text
//!   open("/dev/iommu"), open("/dev/vfio/devices/vfio0")
//!   VFIO_DEVICE_BIND_IOMMUFD          -> bind     Gpu::alloc of all that peers reach: one program has it
//!   VFIO_DEVICE_GET_REGION_INFO       -> info     BAR 0 and configuration space, at fixed offsets
//!   pread, pwrite                     -> region   the memory, the registers
//!   VFIO_DEVICE_FEATURE_DMA_BUF       -> export   Bo::export_range
//!   PCI_COMMAND_MEMORY off, VFIO_DEVICE_RESET, close: the dma-bufs are revoked (Bo::suspend)
//! ```
//!
//! The device computes nothing, has no interrupts, and does no DMA.

mod config;
pub(crate) mod device;
mod export;
mod info;
pub(crate) mod iommu;
mod region;
mod structure;

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use gpu::Place;

use self::config::Config;
use self::device::{Bound, Device};
pub(super) use self::region::{Span, read, write};
use self::structure::{BASE, LETTER, check, put, refuse, take};
use crate::args::{Request, uapi};
use crate::file::{Behind, File};
use crate::state::State;
use crate::{Result, inode};

uapi! {
    #[doc(alias = "vfio_device_bind_iommufd")]
    struct Bind: 16 {
        argsz: u32,
        flags: u32,
        iommufd: i32,
        devid: u32,
    }
    #[doc(alias = "vfio_device_attach_iommufd_pt")]
    struct Attach: 12 {
        argsz: u32,
        flags: u32,
        pt_id: u32,
    }
    #[doc(alias = "vfio_device_detach_iommufd_pt")]
    struct Detach: 8 {
        argsz: u32,
        flags: u32,
    }
}

/// A request to the device.
///
/// # Safety
///
/// `place` points to what the request needs.
#[doc(alias = "vfio_device_fops_unl_ioctl")]
pub(super) unsafe fn ioctl(
    state: &State,
    file: &File,
    device: &Device,
    request: Request,
    place: *mut c_void,
) -> Result<c_int> {
    if request.letter() != LETTER {
        return Err(libc::ENOTTY);
    }
    let nr = request.nr();
    if nr == BASE + 18 {
        // SAFETY: the caller's promise.
        return unsafe { bind(state, file, device, place) };
    }
    device.with(|bound| {
        // SAFETY, for all below: the caller promises that the place has what the request needs.
        match nr.wrapping_sub(BASE) {
            // SAFETY: see above.
            7 => unsafe { info::device(place) },
            // SAFETY: see above.
            8 => unsafe { info::region(bound, place) },
            // SAFETY: see above.
            9 => unsafe { info::irq(place) },
            10 => Err(refuse(libc::EINVAL, format_args!("the device has no interrupts"))),
            11 => bound.reset().map(|()| 0),
            12 | 13 => {
                Err(refuse(libc::ENODEV, format_args!("the device is not reset with its bus")))
            }
            // SAFETY: see above.
            17 => unsafe { export::feature(bound, place) },
            // SAFETY: see above.
            19 => unsafe { attach(bound, place) },
            // SAFETY: see above.
            20 => unsafe { detach(bound, place) },
            nr => Err(refuse(libc::ENOTTY, format_args!("request {nr} is not served"))),
        }
    })
}

/// # Safety
///
/// `place` is null or points to a `vfio_device_bind_iommufd`.
#[doc(alias = "VFIO_DEVICE_BIND_IOMMUFD")]
unsafe fn bind(state: &State, file: &File, device: &Device, place: *mut c_void) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let mut bind = unsafe { take::<Bind>(place) }?;
    if (bind.argsz as usize) < size_of::<Bind>() || bind.flags != 0 || bind.iommufd < 0 {
        let why = "an argsz of 16, no flags, and a descriptor are due";
        return Err(refuse(libc::EINVAL, format_args!("{why}")));
    }
    let mut bound = device.lock();
    if bound.is_some() {
        return Err(refuse(libc::EINVAL, format_args!("the device is bound already")));
    }
    inode(bind.iommufd).ok_or(libc::EBADF)?;
    let opened = state.known(bind.iommufd).and_then(|(ino, _)| state.file(ino));
    let iommu = opened.and_then(|file| match &file.behind {
        Behind::Iommu(iommu) => Some(Arc::clone(iommu)),
        _ => None,
    });
    let iommu =
        iommu.ok_or_else(|| refuse(libc::EBADFD, format_args!("that descriptor is no iommufd")))?;
    let size = file.node.config().visible();
    let bar = file.node.gpu()?.alloc(size, Place::ONLY_VRAM).map_err(|error| {
        let why = format_args!("somebody else has the device: {}", error.what);
        refuse(libc::EINVAL, why)
    })?;
    bind.devid = iommu.next_id();
    *bound = Some(Bound {
        config: Config::new(bar.size()),
        bar,
        suspended: None,
        iommu,
        attached: None,
    });
    drop(bound);
    // SAFETY: the caller's promise.
    unsafe { put(place, &bind) };
    Ok(0)
}

/// # Safety
///
/// `place` is null or points to a `vfio_device_attach_iommufd_pt`.
#[doc(alias = "VFIO_DEVICE_ATTACH_IOMMUFD_PT")]
unsafe fn attach(bound: &mut Bound, place: *mut c_void) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let attach = unsafe { take::<Attach>(place) }?;
    check(attach.argsz, size_of::<Attach>())?;
    check_pasid(attach.flags)?;
    bound.iommu.attach(attach.pt_id)?;
    if let Some(before) = bound.attached.replace(attach.pt_id) {
        bound.iommu.detach(before);
    }
    Ok(0)
}

/// # Safety
///
/// `place` is null or points to a `vfio_device_detach_iommufd_pt`.
#[doc(alias = "VFIO_DEVICE_DETACH_IOMMUFD_PT")]
unsafe fn detach(bound: &mut Bound, place: *mut c_void) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let detach = unsafe { take::<Detach>(place) }?;
    check(detach.argsz, size_of::<Detach>())?;
    check_pasid(detach.flags)?;
    if let Some(id) = bound.attached.take() {
        bound.iommu.detach(id);
    }
    Ok(0)
}

#[doc(alias = "VFIO_DEVICE_ATTACH_PASID")]
fn check_pasid(flags: u32) -> Result<()> {
    match flags {
        0 => Ok(()),
        1 => Err(refuse(libc::EOPNOTSUPP, format_args!("the device knows no PASID"))),
        _ => Err(refuse(libc::EINVAL, format_args!("flags {flags:#x}"))),
    }
}
