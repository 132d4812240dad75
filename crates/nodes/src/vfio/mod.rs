//! A device of VFIO: a PCI function that a program drives itself, whose memory is behind BAR 0.
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
mod export;
mod info;
mod iommu;
mod region;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu::{Bo, Place, Resetting};

use self::config::Config;
pub(super) use self::iommu::Iommu;
pub(super) use self::region::{Span, read, write};
use crate::args::{Request, Uapi, uapi};
use crate::file::{Behind, File};
use crate::state::State;
use crate::{Result, inode, no, refused};

/// The letter of VFIO's requests and of iommufd's.
#[doc(alias = "VFIO_TYPE")]
const LETTER: u8 = b';';
/// The number of VFIO's first request.
#[doc(alias = "VFIO_BASE")]
const BASE: u8 = 100;

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

/// An open device, which answers nothing before it is bound.
#[derive(Default)]
pub(crate) struct Device {
    bound: Mutex<Option<Bound>>,
}

/// What a program has of the device.
#[doc(alias = "vfio_device_file")]
struct Bound {
    /// What BAR 0 shows.
    bar: Bo,
    config: Config,
    /// While memory is not enabled.
    suspended: Option<Resetting>,
    iommu: Arc<File>,
    /// The address space that it is attached to.
    attached: Option<u32>,
}

impl Device {
    fn lock(&self) -> MutexGuard<'_, Option<Bound>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the device, if it is bound. The lock is that of the device's memory, as in the
    /// kernel: what is exported meanwhile is revoked or not.
    fn with<T>(&self, body: impl FnOnce(&mut Bound) -> Result<T>) -> Result<T> {
        match &mut *self.lock() {
            Some(bound) => body(bound),
            None => {
                Err(refuse(libc::EINVAL, format_args!("the device is not bound to an iommufd")))
            }
        }
    }

    /// The last descriptor is closed: what was exported is revoked.
    pub(super) fn close(&self) {
        let bound = self.lock().take();
        if let Some(bound) = bound {
            bound.close();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let Some(bound) = self.lock().take() else { return };
        // The caller may be in the middle of anything, and importers have locks that they take.
        if let Err(error) = threads::spawn("peerdma-vfio", || bound.close()) {
            tracing::error!(target: "peerdma::drm", "a device stays open: {error}");
        }
    }
}

impl Bound {
    /// Whether memory answers.
    #[doc(alias = "__vfio_pci_memory_enabled")]
    fn is_enabled(&self) -> bool {
        self.suspended.is_none()
    }

    /// Follows the bit for memory in the command register.
    #[doc(alias = "vfio_pci_dma_buf_move")]
    fn follow(&mut self) -> Result<()> {
        if self.config.has_memory() {
            self.suspended = None;
        } else if self.suspended.is_none() {
            self.suspended = Some(self.suspend("memory of the device was disabled")?);
        }
        Ok(())
    }

    /// What memory held is lost; registers are what they were.
    #[doc(alias = "VFIO_DEVICE_RESET")]
    fn reset(&mut self) -> Result<()> {
        match &self.suspended {
            Some(suspended) => suspended.lose_contents(),
            None => self.suspend("the device was reset")?.lose_contents(),
        }
        Ok(())
    }

    fn suspend(&self, why: &str) -> Result<Resetting> {
        let suspended = self.bar.suspend(why).map_err(|error| refused(&error))?;
        tell_kept(&suspended);
        Ok(suspended)
    }

    #[doc(alias = "vfio_pci_dma_buf_cleanup")]
    fn close(mut self) {
        if let Some(id) = self.attached.take() {
            iommu_of(&self.iommu, |iommu| iommu.detach(id));
        }
        let suspended = match self.suspended.take() {
            Some(suspended) => Ok(suspended),
            None => self.suspend("the device was closed"),
        };
        if let Ok(suspended) = suspended {
            suspended.end_for_good();
        }
    }
}

fn tell_kept(suspended: &Resetting) {
    for name in suspended.kept() {
        tracing::warn!(target: "peerdma::drm", "{name}: an importer kept its access");
    }
}

fn iommu_of<T>(file: &File, body: impl FnOnce(&Iommu) -> T) -> Option<T> {
    match &file.behind {
        Behind::Iommu(iommu) => Some(body(iommu)),
        _ => None,
    }
}

/// A request to the device.
///
/// # Safety
///
/// `place` is what the request needs.
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
        // SAFETY, for all below: the caller says that the place is what the request needs.
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
/// `place` is null or a `vfio_device_bind_iommufd`.
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
    let iommu = state.known(bind.iommufd).and_then(|(ino, _)| state.file(ino));
    let iommu = iommu.filter(|file| matches!(file.behind, Behind::Iommu(_)));
    let iommu =
        iommu.ok_or_else(|| refuse(libc::EBADFD, format_args!("that descriptor is no iommufd")))?;
    let size = file.node.config().visible();
    let bar = file.node.gpu()?.alloc(size, Place::ONLY_VRAM).map_err(|error| {
        let why = format_args!("somebody else has the device: {}", error.what);
        refuse(libc::EINVAL, why)
    })?;
    bind.devid = iommu_of(&iommu, Iommu::next_id).unwrap_or_default();
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
/// `place` is null or a `vfio_device_attach_iommufd_pt`.
#[doc(alias = "VFIO_DEVICE_ATTACH_IOMMUFD_PT")]
unsafe fn attach(bound: &mut Bound, place: *mut c_void) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let attach = unsafe { take::<Attach>(place) }?;
    check(attach.argsz, size_of::<Attach>())?;
    check_pasid(attach.flags)?;
    iommu_of(&bound.iommu, |iommu| iommu.attach(attach.pt_id)).ok_or(libc::EINVAL)??;
    if let Some(before) = bound.attached.replace(attach.pt_id) {
        iommu_of(&bound.iommu, |iommu| iommu.detach(before));
    }
    Ok(0)
}

/// # Safety
///
/// `place` is null or a `vfio_device_detach_iommufd_pt`.
#[doc(alias = "VFIO_DEVICE_DETACH_IOMMUFD_PT")]
unsafe fn detach(bound: &mut Bound, place: *mut c_void) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let detach = unsafe { take::<Detach>(place) }?;
    check(detach.argsz, size_of::<Detach>())?;
    check_pasid(detach.flags)?;
    if let Some(id) = bound.attached.take() {
        iommu_of(&bound.iommu, |iommu| iommu.detach(id));
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

/// A structure that says how long it is must be as long as needed.
fn check(argsz: u32, least: usize) -> Result<()> {
    if (argsz as usize) < least {
        return Err(refuse(libc::EINVAL, format_args!("argsz is {argsz} and must be {least}")));
    }
    Ok(())
}

fn refuse(errno: c_int, why: std::fmt::Arguments<'_>) -> c_int {
    no("vfio-pci", errno, why)
}

/// What the program passes.
///
/// # Safety
///
/// `place` is null or such a structure.
unsafe fn take<T: Uapi>(place: *mut c_void) -> Result<T> {
    if place.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise; every pattern of bits is one.
    Ok(unsafe { place.cast::<T>().read_unaligned() })
}

/// What it gets back.
///
/// # Safety
///
/// `place` is such a structure.
unsafe fn put<T: Uapi>(place: *mut c_void, value: &T) {
    // SAFETY: the caller's promise.
    unsafe { place.cast::<T>().write_unaligned(*value) };
}
