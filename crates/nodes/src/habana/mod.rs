//! An accelerator of habanalabs: a program allocates memory, maps it at device addresses, and
//! exports it by those addresses, as the driver's user-space library (`libhl-thunk`) does.
//!
//! ```text
//!   open("/dev/accel/accel0")         -> Context::open   one program at a time has the device
//!   HL_IOCTL_MEMORY: ALLOC            -> memory          Gpu::alloc -> a handle
//!                    MAP              ->                 an address of the device's own
//!                    EXPORT_DMABUF_FD ->                 Bo::export_range of what is mapped there
//!   HL_IOCTL_INFO                     -> info            also of accel_controlD0
//! ```
//!
//! It is a device with an MMU for its memory (Gaudi2 and later): addresses are virtual. No engine
//! runs: command buffers, submissions and waits are refused.

pub(crate) mod context;
mod info;
mod memory;
mod space;

use self::context::Context;
use crate::Result;
use crate::args::Arg;
use crate::file::File;
use crate::refusal::unknown;

/// A request of the driver, numbered from the driver's first.
///
/// # Safety
///
/// The argument points to what the request needs.
pub(super) unsafe fn ioctl(file: &File, context: &Context, nr: u8, arg: &Arg) -> Result<()> {
    match nr {
        // SAFETY: the caller's promise.
        0x00 => unsafe { arg.with(|asked| info::answer(file, Some(context), asked)) },
        // CB, CS, WAIT_CS and DEBUG.
        0x01..=0x03 | 0x05 => {
            tracing::debug!(target: "peerdma::drm", "no engine of the accelerator runs anything");
            Err(libc::EINVAL)
        }
        // SAFETY: the caller's promise.
        0x04 => unsafe { arg.with(|asked| memory::ioctl(file, context, asked)) },
        nr => Err(unknown(nr)),
    }
}

/// A request to the control device, which answers queries no matter who has the device.
///
/// # Safety
///
/// The argument points to what the request needs.
#[doc(alias = "hl_ioctl_control")]
pub(super) unsafe fn control(file: &File, nr: u8, arg: &Arg) -> Result<()> {
    match nr {
        // SAFETY: the caller's promise.
        0x40 => unsafe { arg.with(|asked| info::answer(file, None, asked)) },
        _ => Err(libc::ENOTTY),
    }
}
