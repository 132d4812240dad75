//! Requests and their completions.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use umem::{HostBuf, Umem};

use crate::engine::Inner;
use crate::flight::{Flight, Request, Slot, Way};
use crate::{Buffer, Client, Error, File, Op, Result};

/// The longest request, in bytes. A move of a buffer waits for no longer transfer than this.
#[doc(alias = "MDTS")]
pub const MAX_TRANSFER: u32 = 1 << 20;

/// Requests that [`Client::read`] and [`Client::write`] keep in flight.
const AHEAD: u32 = 8;

/// How long a waiter polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// A queue for requests and their completions, which come in any order. Dropping it discards the
/// completions that nobody took; requests in flight still run to their end.
pub struct Queue {
    client: Arc<Inner>,
    mailbox: Arc<Mailbox>,
}

/// How a request ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The ID that the caller gave the request.
    pub id: u64,
    /// How many bytes were moved: fewer than asked for if a read meets the end of the file.
    pub result: Result<u64>,
}

#[derive(Default)]
pub(crate) struct Mailbox {
    arrived: Mutex<VecDeque<Arrived>>,
    waiting: Condvar,
}

struct Arrived {
    request: Request,
    result: Result<u64>,
    /// Bytes that were read but are not yet in the buffer.
    bounce: Option<HostBuf>,
}

impl Queue {
    pub(crate) fn new(client: &Arc<Inner>) -> Self {
        Self { client: Arc::clone(client), mailbox: Arc::default() }
    }

    /// Requests a read of `len` bytes at `offset` of `file` into `buffer` from `at` on. Waits while
    /// the buffer moves, but not for the disk.
    ///
    /// # Errors
    ///
    /// Whatever is refused before the request starts: all but [`Error::Io`] and [`Error::Memory`].
    pub fn read(
        &self,
        id: u64,
        file: &File,
        offset: u64,
        buffer: &Buffer,
        at: u64,
        len: u32,
    ) -> Result<()> {
        self.submit(Op::Read, id, file, offset, buffer, at, len)
    }

    /// Requests a write of `len` bytes of `buffer` from `at` on to `file` at `offset`.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn write(
        &self,
        id: u64,
        file: &File,
        offset: u64,
        buffer: &Buffer,
        at: u64,
        len: u32,
    ) -> Result<()> {
        self.submit(Op::Write, id, file, offset, buffer, at, len)
    }

    /// A completion, if there is one.
    pub fn poll(&self) -> Option<Completion> {
        if let Some(ring) = self.client.ring().filter(|ring| ring.is_ours()) {
            ring.reap();
        }
        let arrived = self.mailbox.arrived().pop_front()?;
        Some(arrived.take())
    }

    /// A completion; waits up to `timeout` for it.
    pub fn wait(&self, timeout: Duration) -> Option<Completion> {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.poll() {
                return Some(completion);
            }
            if start.elapsed() >= SPIN.min(timeout) {
                break;
            }
            std::hint::spin_loop();
        }
        let mut arrived = self.mailbox.arrived();
        loop {
            if let Some(one) = arrived.pop_front() {
                drop(arrived);
                return Some(one.take());
            }
            let left = timeout.checked_sub(start.elapsed())?;
            let waited = self.mailbox.waiting.wait_timeout(arrived, left);
            arrived = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a request")]
    fn submit(
        &self,
        op: Op,
        id: u64,
        file: &File,
        offset: u64,
        buffer: &Buffer,
        at: u64,
        len: u32,
    ) -> Result<()> {
        check(&self.client, op, file, offset, buffer, at, len)?;
        let slot = Slot::take(&self.client)?;
        let (view, gate) = buffer.inner.enter()?;
        let way = if view.is_on_bus && !self.client.bounces() {
            aligned(op, file, view.umem.addr() as u64 + at)?;
            Way::Straight(view, gate)
        } else {
            drop((view, gate));
            Way::Bounced(bounce(op, file, buffer, at, len)?)
        };
        let is_bounced = matches!(way, Way::Bounced(_));
        let (file, buffer) = (file.clone(), buffer.clone());
        let request = Request { id, op, file, buffer, at, is_bounced, slot };
        let mailbox = Arc::clone(&self.mailbox);
        let flight = Flight { request, offset, len, done: 0, again: 0, way, mailbox };
        Box::new(flight).run();
        Ok(())
    }
}

impl Client {
    /// Reads `len` bytes at `offset` of `file` into `buffer` from `at` on, in as many requests as
    /// needed. Returns how many bytes were read: fewer at the end of the file.
    ///
    /// # Errors
    ///
    /// [`Error`]; what was read before is in the buffer.
    pub fn read(
        &self,
        file: &File,
        offset: u64,
        buffer: &Buffer,
        at: u64,
        len: u64,
    ) -> Result<u64> {
        self.transfer(Op::Read, file, offset, buffer, at, len)
    }

    /// Writes `len` bytes of `buffer` from `at` on into `file` at `offset`.
    ///
    /// # Errors
    ///
    /// [`Error`]; parts may have been written.
    pub fn write(
        &self,
        file: &File,
        offset: u64,
        buffer: &Buffer,
        at: u64,
        len: u64,
    ) -> Result<()> {
        self.transfer(Op::Write, file, offset, buffer, at, len).map(drop)
    }

    fn transfer(
        &self,
        op: Op,
        file: &File,
        offset: u64,
        buffer: &Buffer,
        at: u64,
        len: u64,
    ) -> Result<u64> {
        let (queue, mut next, mut under_way) = (self.queue(), 0, 0);
        // Where the file ended, or the first error; requests behind it do not count.
        let mut end: (u64, Result<()>) = (len, Ok(()));
        while next < len.min(end.0) || under_way > 0 {
            while next < len.min(end.0) && under_way < AHEAD && end.1.is_ok() {
                // CAST: no more than a request.
                let piece = (len - next).min(MAX_TRANSFER.into()) as u32;
                match queue.submit(op, next, file, offset + next, buffer, at + next, piece) {
                    Ok(()) => (next, under_way) = (next + u64::from(piece), under_way + 1),
                    Err(Error::Full { .. }) if under_way > 0 => break,
                    Err(error) => end = (next, Err(error)),
                }
            }
            if under_way == 0 {
                break;
            }
            let Some(Completion { id, result }) = queue.wait(Duration::from_secs(3600)) else {
                continue;
            };
            under_way -= 1;
            let asked = (len - id).min(MAX_TRANSFER.into());
            match result {
                Ok(got) if got < asked && id + got < end.0 => end = (id + got, Ok(())),
                Ok(_) => {}
                Err(error) if id < end.0 || end.1.is_ok() && id <= end.0 => end = (id, Err(error)),
                Err(_) => {}
            }
        }
        end.1.map(|()| end.0.min(len))
    }
}

/// The checks that do not look at memory.
fn check(
    client: &Arc<Inner>,
    op: Op,
    file: &File,
    offset: u64,
    buffer: &Buffer,
    at: u64,
    len: u32,
) -> Result<()> {
    if !buffer.is_of(client) {
        return Err(client.broken("the buffer is attached to another client"));
    }
    let (size, limit) = (buffer.size(), u64::from(MAX_TRANSFER));
    let is_inside = at.checked_add(len.into()).is_some_and(|end| end <= size);
    if !is_inside || len == 0 || u64::from(len) > limit {
        return Err(Error::OutOfRange { offset: at, len: len.into(), size, limit });
    }
    let read_only = |what| Err(Error::ReadOnly { op, path: file.shown(), what });
    match op {
        Op::Write if !file.is_writable() => return read_only("the file"),
        Op::Read if !buffer.is_writable() => return read_only("the buffer's descriptor"),
        _ => {}
    }
    for (what, value) in [("the offset", offset), ("the length", len.into())] {
        if !file.alignment().has_offset(value) {
            let multiple = file.alignment().offset;
            return Err(Error::Unaligned { op, path: file.shown(), what, value, multiple });
        }
    }
    Ok(())
}

fn aligned(op: Op, file: &File, value: u64) -> Result<()> {
    if file.alignment().has_address(value) {
        return Ok(());
    }
    let (what, multiple) = ("the address in memory", file.alignment().memory);
    Err(Error::Unaligned { op, path: file.shown(), what, value, multiple })
}

/// A bounce buffer for bytes that cannot go straight, filled if they are to be written.
fn bounce(op: Op, file: &File, buffer: &Buffer, at: u64, len: u32) -> Result<HostBuf> {
    let failed = |why: String| Error::Memory { op, path: file.shown(), why };
    // CAST: a request's length.
    let memory = HostBuf::anonymous(len as usize).map_err(|error| failed(error.to_string()))?;
    if op == Op::Write {
        let local = Umem::host(&memory);
        let copied = buffer.inner.access(|umem| Umem::copy(&local, 0, umem, at, len.into()))?;
        copied.map_err(|fault| failed(fault.to_string()))?;
    }
    Ok(memory)
}

impl Mailbox {
    pub(crate) fn deliver(&self, request: Request, result: Result<u64>, bounce: Option<HostBuf>) {
        self.arrived().push_back(Arrived { request, result, bounce });
        self.waiting.notify_one();
    }

    fn arrived(&self) -> MutexGuard<'_, VecDeque<Arrived>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrived {
    /// The last step: copies bounced bytes to the buffer.
    fn take(self) -> Completion {
        let Self { request, mut result, bounce } = self;
        let Request { id, op, file, buffer, at, is_bounced, slot } = &request;
        if let (Some(memory), Ok(got)) = (&bounce, &result) {
            let (local, got) = (Umem::host(memory), *got);
            let put = buffer.inner.access(|umem| Umem::copy(umem, *at, &local, 0, got));
            result = match put {
                Ok(Ok(())) => Ok(got),
                Ok(Err(fault)) => {
                    Err(Error::Memory { op: *op, path: file.shown(), why: fault.to_string() })
                }
                Err(error) => Err(error),
            };
        }
        // ORDERING: counters that only grow and are only reported.
        let counts = &slot.client().counts;
        match &result {
            Ok(bytes) => {
                counts.requests.fetch_add(1, Ordering::Relaxed);
                counts.bytes.fetch_add(*bytes, Ordering::Relaxed);
                if *is_bounced {
                    counts.bounced.fetch_add(*bytes, Ordering::Relaxed);
                    let _ = buffer.inner.access(|umem| {
                        umem.bounced(*bytes);
                        Ok(())
                    });
                }
            }
            Err(_) => {
                counts.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        Completion { id: *id, result }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("client", &self.client.name()).finish_non_exhaustive()
    }
}
