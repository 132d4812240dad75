//! An accelerator of habanalabs: memory that is allocated, mapped into the device's addresses, and
//! exported by those, as the driver's thunk (`libhl-thunk`) has it.
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

mod info;
mod memory;

use std::sync::{Mutex, MutexGuard, PoisonError};

use descriptors::Known;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use self::memory::Memory;
use crate::Result;
use crate::args::Arg;
use crate::file::File;
use crate::node::Node;
use crate::refusal::unknown;

/// What a program has of the device.
#[doc(alias = "hl_ctx")]
pub(crate) struct Context {
    memory: Mutex<Memory>,
    /// As long as it has this name, nobody else has the device.
    _only: Known,
}

impl Context {
    /// Takes the device, which one program at a time may have: EBUSY for the next.
    #[doc(alias = "hl_device_open")]
    pub(super) fn open(node: &Node) -> Result<Self> {
        let config = node.config();
        let whose = match config.shared {
            true => format!("user {}", rustix::process::getuid().as_raw()),
            false => format!("process {}", std::process::id()),
        };
        let name = format!("peerdma/accel/{whose}/{}", config.name);
        let taken = || {
            let at = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
            let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
            let only = socket_with(AddressFamily::UNIX, kind, flags, None)?;
            bind(&only, &at)?;
            Ok(only)
        };
        let only = taken().map_err(|error: Errno| match error {
            Errno::ADDRINUSE => {
                tracing::debug!(
                    target: "peerdma::drm",
                    "{}: somebody has it open, or has a dma-buf of its memory", config.name
                );
                libc::EBUSY
            }
            error => error.raw_os_error(),
        })?;
        Ok(Self { memory: Mutex::default(), _only: Known::new(only) })
    }

    /// Whether a dma-buf of it is still there, which keeps it open.
    pub(super) fn has_exports(&self) -> bool {
        self.memory().has_exports()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of the driver's, counted from its first.
///
/// # Safety
///
/// The argument is what the request needs.
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

/// A request to the control device, which answers questions whoever has the device.
///
/// # Safety
///
/// The argument is what the request needs.
#[doc(alias = "hl_ioctl_control")]
pub(super) unsafe fn control(file: &File, nr: u8, arg: &Arg) -> Result<()> {
    match nr {
        // SAFETY: the caller's promise.
        0x40 => unsafe { arg.with(|asked| info::answer(file, None, asked)) },
        _ => Err(libc::ENOTTY),
    }
}

fn refuse(errno: i32, why: std::fmt::Arguments<'_>) -> i32 {
    crate::no("habanalabs", errno, why)
}
