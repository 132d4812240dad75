//! An io_uring, with everything that the kernel may touch on its behalf.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;
use slab::Slab;
use umem::Umem;

use super::Place;
use crate::{File, Op};

/// Buffers that may be registered at a time. For others, the kernel looks up the pages at each
/// request.
const FIXED: u32 = 256;
/// The longest registered buffer: the kernel's `SZ_1G`.
const LONGEST: u64 = 1 << 30;
/// How long the kernel may lack memory for a request.
const PATIENCE: Duration = Duration::from_secs(1);
/// The user data of an entry that is not a request.
const WAKE: u64 = u64::MAX;

/// A ring, and the requests in flight on it: for each its memory, its file and its waiter. None of
/// these is released before the kernel has answered.
pub(crate) struct Ring {
    ring: ManuallyDrop<IoUring>,
    /// Held to write the submission queue. Taken before the lock of `under_way`.
    submission: Mutex<()>,
    /// Held to read the completion queue.
    completion: Mutex<()>,
    under_way: ManuallyDrop<Mutex<Slab<Held>>>,
    /// Free slots in the table of registered buffers.
    free: Mutex<Vec<u16>>,
    is_broken: AtomicBool,
    is_stopped: AtomicBool,
    /// The process that made it: a forked child has neither the ring nor its memory.
    process: u32,
}

struct Held {
    place: Place,
    _file: File,
    /// Taken out if the kernel never saw the request.
    waiter: Option<Box<dyn Waiter>>,
}

/// Learns how a request ended.
pub(crate) trait Waiter: Send {
    /// The kernel's answer: how many bytes were moved.
    fn answered(self: Box<Self>, result: Result<u32, Errno>);

    /// The kernel did not take the request, and will not.
    fn refused(self: Box<Self>, errno: Errno);
}

/// Memory that is registered with a ring: the kernel looks up its pages once.
#[doc(alias = "IORING_REGISTER_BUFFERS")]
pub(crate) struct Fixed {
    index: u16,
    addr: usize,
    len: u64,
    ring: Weak<Ring>,
}

impl Ring {
    /// A ring for `depth` requests.
    pub(crate) fn new(depth: u32) -> io::Result<Arc<Self>> {
        let ring = IoUring::builder().dontfork().setup_clamp().build(depth.next_power_of_two())?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Nop::CODE];
        if !needed.into_iter().all(|code| probe.is_supported(code)) {
            return Err(io::Error::from(Errno::OPNOTSUPP));
        }
        // A table without buffers needs Linux 5.19; without it no buffer is registered.
        let has_table = ring.submitter().register_buffers_sparse(FIXED).is_ok();
        // CAST: below 256.
        let free = (0..if has_table { FIXED as u16 } else { 0 }).rev().collect();
        Ok(Arc::new(Self {
            ring: ManuallyDrop::new(ring),
            submission: Mutex::default(),
            completion: Mutex::default(),
            under_way: ManuallyDrop::new(Mutex::new(Slab::new())),
            free: Mutex::new(free),
            is_broken: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            process: std::process::id(),
        }))
    }

    /// Whether this is the process that made it.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Starts a request. What it needs is kept until the kernel has answered; the thread that
    /// [reaps](Self::reap) the answer passes it to the waiter.
    pub(crate) fn push(
        &self,
        op: Op,
        file: &File,
        offset: u64,
        place: Place,
        waiter: Box<dyn Waiter>,
    ) {
        if !self.is_ours() {
            return waiter.refused(Errno::OWNERDEAD);
        }
        let fd = types::Fd(file.as_fd().as_raw_fd());
        let (addr, len) = (ptr::with_exposed_provenance_mut::<u8>(place.addr()), place.len());
        let entry = match (op, place.fixed()) {
            (Op::Read, Some(fixed)) => {
                opcode::ReadFixed::new(fd, addr, len, fixed.index).offset(offset).build()
            }
            (Op::Write, Some(fixed)) => {
                opcode::WriteFixed::new(fd, addr, len, fixed.index).offset(offset).build()
            }
            (Op::Read, None) => opcode::Read::new(fd, addr, len).offset(offset).build(),
            (Op::Write, None) => opcode::Write::new(fd, addr, len).offset(offset).build(),
        };
        let submission = lock(&self.submission);
        let held = Held { place, _file: file.clone(), waiter: Some(waiter) };
        let token = lock(&self.under_way).insert(held);
        let Err(errno) = self.submit(&entry.user_data(token as u64)) else { return };
        drop(submission);
        // The kernel might still find the entry in the queue, so what it names is kept.
        let waiter = lock(&self.under_way).get_mut(token).and_then(|held| held.waiter.take());
        if let Some(waiter) = waiter {
            waiter.refused(errno);
        }
    }

    /// Submits one entry to the kernel, with the submission queue locked. After an error nothing is
    /// submitted any more: the entry is still in the queue, and would go with the next one.
    fn submit(&self, entry: &squeue::Entry) -> Result<(), Errno> {
        if self.is_broken() {
            return Err(Errno::IO);
        }
        // SAFETY: the lock of the submission queue is held, so this is its only user.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: what the entry names is kept until its completion is reaped.
        let pushed = unsafe { queue.push(entry) };
        // Each entry is submitted before the next is pushed.
        pushed.map_err(|_| Errno::BUSY)?;
        drop(queue);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let errno = match self.ring.submit() {
                Ok(0) => Errno::AGAIN,
                Ok(_) => return Ok(()),
                Err(error) => Errno::from_io_error(&error).unwrap_or(Errno::IO),
            };
            match errno {
                Errno::INTR => {}
                // The kernel has no memory now, or completions wait to be reaped.
                Errno::AGAIN | Errno::BUSY if Instant::now() < deadline => {
                    std::thread::yield_now();
                }
                errno => {
                    self.is_broken.store(true, Ordering::Release);
                    return Err(errno);
                }
            }
        }
    }

    /// Whether the kernel accepts no more requests.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Waits until something has completed.
    pub(crate) fn wait(&self) -> io::Result<()> {
        const GETEVENTS: u32 = 1;
        // SAFETY: this passes no argument and submits no entry.
        unsafe { self.ring.submitter().enter::<()>(0, 1, GETEVENTS, None) }.map(drop)
    }

    /// Ends the thread that reaps.
    pub(crate) fn stop(&self) {
        if self.is_ours() {
            self.is_stopped.store(true, Ordering::Release);
            let _submission = lock(&self.submission);
            if let Err(errno) = self.submit(&opcode::Nop::new().build().user_data(WAKE)) {
                tracing::error!(target: "peerdma::storage", "the thread of an io_uring cannot be woken: {errno}");
            }
        }
    }

    /// Takes the completions, and passes each to its waiter.
    pub(crate) fn reap(&self) {
        loop {
            let next = {
                let _completion = lock(&self.completion);
                // SAFETY: the lock of the completion queue is held, so this is its only user.
                let mut queue = unsafe { self.ring.completion_shared() };
                queue.next().map(|entry| (entry.user_data(), entry.result()))
            };
            let Some((token, result)) = next else { return };
            if token == WAKE {
                continue;
            }
            // CAST: made from one.
            let Some(held) = lock(&self.under_way).try_remove(token as usize) else { continue };
            let result = u32::try_from(result)
                .map_err(|_| Errno::from_raw_os_error(result.saturating_neg()));
            if let Ok(bytes) = result {
                held.place.count(bytes);
            }
            let Held { place, waiter, .. } = held;
            drop(place);
            if let Some(waiter) = waiter {
                waiter.answered(result);
            }
        }
    }

    /// Whether it was [stopped](Self::stop).
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Registers contiguous memory. `None`: the table is full, or the limit on locked memory is
    /// reached, and the kernel looks up the pages at each request.
    pub(crate) fn register(self: &Arc<Self>, memory: &Umem) -> Option<Arc<Fixed>> {
        let (addr, len) = (memory.addr(), memory.len());
        if addr == 0 || len > LONGEST || !self.is_ours() {
            return None;
        }
        let index = lock(&self.free).pop()?;
        // CAST: a gigabyte at most.
        if let Err(errno) = self.update(index, addr, len as usize) {
            tracing::debug!(
                target: "peerdma::storage",
                "{len:#x} bytes are not registered with an io_uring: {errno}{}",
                // The kernel charges them to the limit of locked memory.
                if errno == Errno::NOMEM { sandbox::HINT } else { "" }
            );
            lock(&self.free).push(index);
            return None;
        }
        Some(Arc::new(Fixed { index, addr, len, ring: Arc::downgrade(self) }))
    }

    fn update(&self, index: u16, addr: usize, len: usize) -> Result<(), Errno> {
        let iov_base = ptr::with_exposed_provenance_mut(addr);
        let place = [libc::iovec { iov_base, iov_len: len }];
        // SAFETY: the kernel looks the pages up and keeps them; it touches their bytes only for
        // requests, whose `Place` vouches for them.
        let done =
            unsafe { self.ring.submitter().register_buffers_update(index.into(), &place, None) };
        done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    fn unregister(&self, index: u16) {
        if !self.is_ours() {
            return;
        }
        match self.update(index, 0, 0) {
            Ok(()) => lock(&self.free).push(index),
            // Its slot in the table is lost, and its pages stay until the ring ends.
            Err(errno) => tracing::warn!(
                target: "peerdma::storage",
                "memory stays registered with an io_uring: {errno}"
            ),
        }
    }
}

impl Fixed {
    /// Whether all of these bytes are in the registered memory.
    pub(super) fn holds(&self, addr: usize, len: u32) -> bool {
        let from = addr.checked_sub(self.addr);
        from.is_some_and(|from| (from as u64).saturating_add(len.into()) <= self.len)
    }
}

impl Drop for Fixed {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.upgrade() {
            ring.unregister(self.index);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let is_ours = self.process == std::process::id();
        if !is_ours || !lock(&self.under_way).is_empty() {
            // The kernel may still touch that memory; or all of it belongs to the parent, and
            // something else is at the ring's addresses here.
            return;
        }
        // SAFETY: neither is used again.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.under_way) };
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
