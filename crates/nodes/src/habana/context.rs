//! A program's context on an accelerator.

use std::sync::{Mutex, MutexGuard, PoisonError};

use descriptors::Known;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use super::space::Memory;
use crate::Result;
use crate::node::Node;

/// A program's context on the device.
#[doc(alias = "hl_ctx")]
pub(crate) struct Context {
    memory: Mutex<Memory>,
    /// While this context holds the name, nobody else can have the device.
    _only: Known,
}

impl Context {
    /// Takes the device. One program at a time may have it; the next gets EBUSY.
    #[doc(alias = "hl_device_open")]
    pub(crate) fn open(node: &Node) -> Result<Self> {
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

    /// Whether a dma-buf of its memory still exists; that keeps the device open.
    pub(crate) fn has_exports(&self) -> bool {
        self.memory().has_exports()
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
