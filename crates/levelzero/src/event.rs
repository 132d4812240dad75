//! Events: each is a word in the memory of its pool, which processes may share.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub(crate) use umd::wait::{end_of, now, wait_until};
use umem::HostBuf;

use crate::status::{Refusal, Result, Status};

/// Memory for events.
pub(crate) struct Pool {
    pub(crate) handle: u64,
    /// The handle of its context.
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) count: u32,
    /// Whether it belongs to another process.
    pub(crate) is_opened: bool,
    memory: HostBuf,
}

/// An event.
pub(crate) struct Event {
    pub(crate) handle: u64,
    pub(crate) pool: Arc<Pool>,
    pub(crate) signal_scope: u32,
    pub(crate) wait_scope: u32,
    /// Its offset in the pool.
    at: usize,
}

/// The pool can be shared with other processes.
#[doc(alias = "ZE_EVENT_POOL_FLAG_IPC")]
pub(crate) const IPC: u32 = 2;

/// Its events take timestamps.
#[doc(alias = "ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP")]
pub(crate) const TIMESTAMP: u32 = 4;

/// All flags of pools.
pub(crate) const POOL_FLAGS: u32 = 0xf;

/// The bytes of each event in its pool: a cache line.
const SLOT: usize = 64;

/// Offsets in a slot: the state, and the start and end of the command that signalled it.
const STATE: usize = 0;
const BEGAN: usize = 8;
const ENDED: usize = 16;

impl Pool {
    /// # Errors
    ///
    /// No memory.
    pub(crate) fn new(handle: u64, context: u64, flags: u32, count: u32) -> Result<Self> {
        let size = (count as usize * SLOT).next_multiple_of(rustix::param::page_size());
        let memory = if flags & IPC != 0 {
            HostBuf::memfd("peerdma-events", size)
        } else {
            HostBuf::anonymous(size)
        };
        let memory = memory.map_err(|error| none(&error.to_string()))?;
        Ok(Self { handle, context, flags, count, is_opened: false, memory })
    }

    /// The pool of another process that this file belongs to.
    ///
    /// # Errors
    ///
    /// The file is not that of a pool.
    pub(crate) fn opened(handle: u64, context: u64, file: OwnedFd) -> Result<Self> {
        let stat = rustix::fs::fstat(&file).map_err(|error| none(&error.to_string()))?;
        let size = usize::try_from(stat.st_size).ok().filter(|size| *size > 0);
        let size = size.ok_or_else(|| none("the file is empty"))?;
        // CAST: the number of events of a pool has 32 bits.
        let count = (size / SLOT) as u32;
        let memory = HostBuf::received(file, size).map_err(|error| none(&error.to_string()))?;
        // The file does not tell whether timestamps are wanted, so they are always taken.
        Ok(Self { handle, context, flags: IPC | TIMESTAMP, count, is_opened: true, memory })
    }

    /// The file by which other processes open it.
    ///
    /// # Errors
    ///
    /// The pool cannot be shared.
    pub(crate) fn file(&self) -> Result<BorrowedFd<'_>> {
        self.memory.fd().ok_or_else(|| {
            Refusal::new(
                Status::InvalidArgument,
                "the pool is not for other processes (ZE_EVENT_POOL_FLAG_IPC)",
            )
        })
    }

    /// The descriptor of that file.
    pub(crate) fn number(&self) -> Result<i32> {
        Ok(self.file()?.as_fd().as_raw_fd())
    }
}

impl Event {
    /// The event at an index of its pool.
    ///
    /// # Errors
    ///
    /// The pool has fewer events.
    pub(crate) fn new(
        handle: u64,
        pool: &Arc<Pool>,
        index: u32,
        signal_scope: u32,
        wait_scope: u32,
    ) -> Result<Self> {
        if index >= pool.count {
            let what = format!("event {index} of a pool of {}", pool.count);
            return Err(Refusal::new(Status::InvalidArgument, what));
        }
        let at = index as usize * SLOT;
        let event = Self { handle, pool: Arc::clone(pool), signal_scope, wait_scope, at };
        if !pool.is_opened {
            event.reset();
        }
        Ok(event)
    }

    fn get(&self, which: usize) -> u64 {
        self.pool.memory.load_u64(self.at + which, Ordering::Acquire).unwrap_or_default()
    }

    fn put(&self, which: usize, value: u64) {
        // It is in bounds: the index was checked.
        let _ = self.pool.memory.store_u64(self.at + which, value, Ordering::Release);
    }

    pub(crate) fn is_signalled(&self) -> bool {
        self.get(STATE) != 0
    }

    /// Signals it; the command that signals it began at `began`.
    pub(crate) fn signal(&self, began: u64) {
        self.put(BEGAN, began);
        self.put(ENDED, now().max(began + 1));
        self.put(STATE, 1);
    }

    pub(crate) fn reset(&self) {
        self.put(STATE, 0);
    }

    /// The start and the end of the command that signalled it.
    ///
    /// # Errors
    ///
    /// Its pool takes no timestamps, or it is not signalled.
    pub(crate) fn times(&self) -> Result<(u64, u64)> {
        if !self.is_signalled() {
            return Err(Refusal::new(Status::NotReady, "the event is not signalled"));
        }
        Ok((self.get(BEGAN), self.get(ENDED)))
    }

    /// Waits until it is signalled, or `end`.
    ///
    /// # Errors
    ///
    /// A timeout.
    pub(crate) fn wait(&self, end: Option<Instant>) -> Result<()> {
        if wait_until(|| self.is_signalled(), end) {
            return Ok(());
        }
        Err(Refusal::new(Status::NotReady, "the event is not signalled"))
    }
}

fn none(why: &str) -> Refusal {
    Refusal::new(Status::OutOfHostMemory, format!("no memory for events: {why}"))
}
