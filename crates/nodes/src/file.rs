//! An open node: the descriptor that the program has, and the handles that name buffers in it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use descriptors::Known;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::Result;
use crate::habana::context::Context;
use crate::node::{Node, Object};
use crate::vfio::device::Device;
use crate::vfio::iommu::Iommu;

/// The kind of a node. The preload library uses the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `/dev/dri/renderD128`.
    Render = 0,
    /// `/dev/dri/card0`.
    Card = 1,
    /// `/dev/accel/accel0`.
    Accel = 2,
    /// `/dev/accel/accel_controlD0`.
    AccelControl = 3,
    /// `/dev/vfio/devices/vfio0`.
    Vfio = 4,
    /// `/dev/iommu`.
    Iommu = 5,
}

/// What an open node has besides handles.
pub(crate) enum Behind {
    /// Nothing.
    Drm,
    /// A program's context on an accelerator.
    Accel(Context),
    /// Nothing: a control device only answers queries.
    AccelControl,
    /// A device that a program drives itself.
    Vfio(Box<Device>),
    /// The iommufd that such devices are bound to.
    Iommu(Arc<Iommu>),
}

#[doc(alias = "drm_file")]
pub(crate) struct File {
    pub(crate) node: Arc<Node>,
    pub(crate) kind: Kind,
    pub(crate) behind: Behind,
    /// The inode of the program's descriptor.
    pub(crate) ino: u64,
    pub(crate) is_writable: bool,
    /// Our end of the socket pair; the program has the other end.
    ours: Known,
    handles: Mutex<BTreeMap<u32, Arc<Object>>>,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Render, Self::Card, Self::Accel, Self::AccelControl, Self::Vfio, Self::Iommu];

    pub(crate) fn of(number: c_int) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as c_int == number)
    }
}

impl File {
    /// Makes a descriptor for the program, and the file behind it.
    pub(crate) fn open(node: Arc<Node>, kind: Kind, flags: c_int) -> Result<(OwnedFd, Self)> {
        // CAST: keeps the bits.
        let flags = OFlags::from_bits_retain(flags as u32);
        if flags.contains(OFlags::CREATE | OFlags::EXCL) {
            return Err(libc::EEXIST);
        }
        if flags.contains(OFlags::DIRECTORY) {
            return Err(libc::ENOTDIR);
        }
        let behind = match kind {
            Kind::Render | Kind::Card => Behind::Drm,
            Kind::Accel => Behind::Accel(Context::open(&node)?),
            Kind::AccelControl => Behind::AccelControl,
            Kind::Vfio => Behind::Vfio(Box::default()),
            Kind::Iommu => Behind::Iommu(Arc::default()),
        };
        let errno = Errno::raw_os_error;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        // The first is the lowest free number, as `open` promises.
        let (theirs, ours) = pair.map_err(errno)?;
        if !flags.contains(OFlags::CLOEXEC) {
            rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(errno)?;
        }
        if flags.contains(OFlags::NONBLOCK) {
            rustix::io::ioctl_fionbio(&theirs, true).map_err(errno)?;
        }
        let ino = rustix::fs::fstat(&theirs).map_err(errno)?.st_ino;
        let is_writable = flags & OFlags::RWMODE != OFlags::RDONLY;
        let handles = Mutex::default();
        Ok((theirs, Self { node, kind, behind, ino, is_writable, ours: Known::new(ours), handles }))
    }

    /// Whether the file is no longer needed: the program has closed every copy of its descriptor,
    /// and nothing made through it still holds it.
    pub(crate) fn is_over(&self) -> bool {
        let is_kept = || match &self.behind {
            Behind::Accel(context) => context.has_exports(),
            Behind::Drm | Behind::AccelControl | Behind::Vfio(_) | Behind::Iommu(_) => false,
        };
        self.has_hung_up() && !is_kept()
    }

    /// Ends the file within the program's call, so that the effects are visible when the call
    /// returns.
    pub(crate) fn end(&self) {
        if let Behind::Vfio(device) = &self.behind {
            device.close();
        }
    }

    fn has_hung_up(&self) -> bool {
        if !self.ours.is_ours() {
            // The program closed this descriptor too, as it closed its own: nobody is left to tell.
            return true;
        }
        let mut ours = [PollFd::from_borrowed_fd(self.ours.as_fd(), PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut ours, Some(&now)).is_ok() && ours[0].revents().contains(PollFlags::HUP)
    }

    /// The handle of a buffer in this file: always the same one.
    pub(crate) fn add(&self, object: Arc<Object>) -> u32 {
        let mut handles = self.handles();
        let known = handles.iter().find(|(_, other)| Arc::ptr_eq(other, &object));
        if let Some(handle) = known.map(|(handle, _)| *handle) {
            drop(handles);
            return handle;
        }
        let gap = handles.keys().zip(1..).find(|(handle, free)| **handle != *free);
        let lowest = gap.map_or(handles.len() as u32 + 1, |(_, free)| free);
        handles.insert(lowest, object);
        lowest
    }

    /// The buffer of a handle.
    pub(crate) fn object(&self, handle: u32) -> Result<Arc<Object>> {
        self.handles().get(&handle).cloned().ok_or(libc::ENOENT)
    }

    /// Ends a handle.
    #[doc(alias = "drm_gem_handle_delete")]
    pub(crate) fn close(&self, handle: u32) -> Result<()> {
        let object = self.handles().remove(&handle);
        object.map(drop).ok_or(libc::EINVAL)
    }

    pub(crate) fn at(&self, offset: u64) -> Option<Arc<Object>> {
        self.handles().values().find(|object| object.offset == offset).cloned()
    }

    fn handles(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Object>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
