//! Event channels.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use verbs_abi::rdma::EventChannel;

use super::event::CmEvent;
use super::library::{CmLibrary, Functions};
use crate::context::readable;
use crate::error::{Error, Result};

/// A channel of events, whose descriptor does not block. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "rdma_event_channel")]
pub struct CmChannel(Arc<Events>);

#[derive(Debug)]
struct Events {
    raw: NonNull<EventChannel>,
    library: &'static CmLibrary,
    /// Held while an event is taken and until it is acknowledged.
    turn: Mutex<()>,
}

// SAFETY: librdmacm may be called from any thread, and the descriptor does not change.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

impl Drop for Events {
    fn drop(&mut self) {
        let destroy = self.library.functions.rdma_destroy_event_channel;
        // SAFETY: every identifier of the channel holds it, so none is left.
        unsafe { destroy(self.raw.as_ptr()) };
    }
}

impl CmLibrary {
    /// Creates an event channel.
    ///
    /// # Errors
    ///
    /// The library's: ENODEV or ENOENT without the kernel's `rdma_ucm`, for two.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn create_channel(&'static self) -> Result<CmChannel> {
        const CALL: &str = "rdma_create_event_channel";
        let create = self.functions.rdma_create_event_channel;
        // SAFETY: it takes nothing.
        let raw = unsafe { create() };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        let channel = CmChannel(Arc::new(Events { raw, library: self, turn: Mutex::default() }));
        rustix::io::ioctl_fionbio(&channel, true)
            .map_err(|errno| Error::new(CALL, errno.raw_os_error()))?;
        Ok(channel)
    }
}

impl CmChannel {
    pub(super) fn raw(&self) -> *mut EventChannel {
        self.0.raw.as_ptr()
    }

    pub(super) fn library(&self) -> &'static CmLibrary {
        self.0.library
    }

    pub(super) fn functions(&self) -> &'static Functions {
        &self.0.library.functions
    }

    /// While this is held, no event of the channel is being taken.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.0.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are the same one.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The oldest event, if one waits. It is acknowledged.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias("rdma_get_cm_event", "rdma_ack_cm_event"))]
    pub fn event(&self) -> Result<Option<CmEvent>> {
        let (get, acknowledge) =
            (self.functions().rdma_get_cm_event, self.functions().rdma_ack_cm_event);
        loop {
            let turn = self.turn();
            if !readable(self, None)? {
                return Ok(None);
            }
            let mut raw = ptr::null_mut();
            // SAFETY: the channel exists, and there is room for a pointer.
            if unsafe { get(self.raw(), &raw mut raw) } != 0 {
                return match Error::last("rdma_get_cm_event") {
                    error if error.errno == libc::EAGAIN => Ok(None),
                    error => Err(error),
                };
            }
            // SAFETY: the library gave the event a moment ago, and its identifiers stay until it is
            // acknowledged.
            let given = unsafe { &*raw };
            // SAFETY: as above.
            let event = unsafe { CmEvent::copy(self, given) };
            // SAFETY: it was taken above, and nothing refers to it.
            unsafe { acknowledge(raw) };
            drop(turn);
            // None if its identifier is about to be destroyed.
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// The same, waiting for it.
    pub(super) fn wait(&self, call: &'static str, timeout: Duration) -> Result<CmEvent> {
        let began = Instant::now();
        loop {
            if let Some(event) = self.event()? {
                return Ok(event);
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(Error::new(call, libc::ETIMEDOUT));
            }
            let left = Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            readable(self, Some(left))?;
        }
    }
}

impl AsFd for CmChannel {
    /// Readable while an event waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists.
        let fd = unsafe { (*self.raw()).fd };
        // SAFETY: the library keeps the descriptor open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}
