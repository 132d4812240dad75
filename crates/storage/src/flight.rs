//! A request in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmabuf::gate::OwnedGateGuard;
use rustix::io::Errno;
use umem::{HostBuf, Umem};

use crate::buffer::{Buffer, View};
use crate::engine::Inner as Client;
use crate::queue::Mailbox;
use crate::sys::{Place, Waiter, call};
use crate::{Error, File, Op, Result};

/// How many times in a row the kernel may answer that the call must be retried.
const AGAIN: u32 = 1000;

/// One request. It is read or written piece by piece, until all of it is done or the kernel
/// reports an error.
pub(crate) struct Flight {
    pub(crate) request: Request,
    /// The offset in the file.
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) done: u32,
    pub(crate) again: u32,
    pub(crate) way: Way,
    pub(crate) mailbox: Arc<Mailbox>,
}

/// What remains of a request when the kernel is done with it.
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) file: File,
    pub(crate) buffer: Buffer,
    /// The offset in the buffer.
    pub(crate) at: u64,
    /// Whether its bytes go through memory of ours.
    pub(crate) is_bounced: bool,
    pub(crate) slot: Slot,
}

/// One of the requests that a client may have at a time.
pub(crate) struct Slot(Arc<Client>);

/// The memory passed to the kernel.
pub(crate) enum Way {
    /// The buffer itself.
    Straight(Arc<View>, Option<Arc<OwnedGateGuard>>),
    /// Memory of ours, copied to or from the buffer.
    Bounced(HostBuf),
}

enum Next {
    Again,
    Done(Result<u64>),
}

impl Flight {
    /// Starts the request, or continues with what is left.
    pub(crate) fn run(mut self: Box<Self>) {
        let Some(ring) = self.request.slot.client().ring().map(Arc::clone) else {
            loop {
                let Some(place) = self.place() else { return self.lost() };
                let result = call(
                    self.request.op,
                    &self.request.file,
                    self.offset + u64::from(self.done),
                    &place,
                );
                if let Ok(bytes) = result {
                    place.count(bytes);
                }
                drop(place);
                if let Next::Done(result) = self.took(result) {
                    return self.end(result);
                }
            }
        };
        let Some(place) = self.place() else { return self.lost() };
        if place.fixed().is_some() {
            // ORDERING: as in `took`.
            self.request.slot.client().counts.fixed.fetch_add(1, Ordering::Relaxed);
        }
        let (op, file) = (self.request.op, self.request.file.clone());
        let offset = self.offset + u64::from(self.done);
        ring.push(op, &file, offset, place, self);
    }

    /// The next piece.
    fn place(&self) -> Option<Place> {
        let (done, left) = (u64::from(self.done), self.len - self.done);
        match &self.way {
            Way::Straight(view, gate) => {
                Place::new(&view.umem, self.request.at + done, left, view.fixed(), gate.clone())
            }
            Way::Bounced(memory) => Place::new(&Umem::host(memory), done, left, &[], None),
        }
    }

    fn took(&mut self, result: std::result::Result<u32, Errno>) -> Next {
        let (op, path) = (self.request.op, || self.request.file.shown());
        let failed = |errno| {
            let (offset, done) = (self.offset, self.done.into());
            Next::Done(Err(Error::Io { op, path: path(), offset, done, errno }))
        };
        match result {
            Ok(0) if op == Op::Read => return Next::Done(Ok(self.done.into())),
            // `write(2)`: no file system returns zero for a write of more than zero bytes.
            Ok(0) => return failed(Errno::IO),
            Ok(bytes) => (self.done, self.again) = (self.done + bytes.min(self.left()), 0),
            Err(Errno::INTR | Errno::AGAIN) if self.again < AGAIN => {
                self.again += 1;
                return Next::Again;
            }
            Err(Errno::FAULT) => {
                let why = "the kernel finds no pages there that it may use (EFAULT)".to_owned();
                return Next::Done(Err(Error::Memory { op, path: path(), why }));
            }
            Err(errno) => return failed(errno),
        }
        // With direct I/O, only the end of the file is not at a block boundary.
        let is_end = op == Op::Read && !self.request.file.alignment().has_offset(self.done.into());
        if self.left() == 0 || is_end {
            return Next::Done(Ok(self.done.into()));
        }
        // ORDERING: a counter that only grows and is only reported.
        self.request.slot.client().counts.continued.fetch_add(1, Ordering::Relaxed);
        Next::Again
    }

    fn left(&self) -> u32 {
        self.len - self.done
    }

    /// The memory is no longer where it was checked to be.
    fn lost(self) {
        let (op, path) = (self.request.op, self.request.file.shown());
        let why = "its addresses are not in one piece with the buffer".to_owned();
        self.end(Err(Error::Memory { op, path, why }));
    }

    /// Releases the memory, and reports the completion.
    fn end(self, result: Result<u64>) {
        let Self { request, way, mailbox, .. } = self;
        let bounce = match way {
            Way::Bounced(memory) if request.op == Op::Read && result.is_ok() => Some(memory),
            _ => None,
        };
        mailbox.deliver(request, result, bounce);
    }
}

impl Waiter for Flight {
    fn answered(mut self: Box<Self>, result: std::result::Result<u32, Errno>) {
        match self.took(result) {
            Next::Again => self.run(),
            Next::Done(result) => self.end(result),
        }
    }

    fn refused(self: Box<Self>, errno: Errno) {
        let why = match errno {
            Errno::OWNERDEAD => "it is that of the parent of this process".to_owned(),
            errno => format!("the kernel takes no request: {errno}"),
        };
        let error = self.request.slot.client().broken(&why);
        self.end(Err(error));
    }
}

impl Slot {
    pub(crate) fn take(client: &Arc<Client>) -> Result<Self> {
        let depth = client.depth();
        let one_more = |count| (count < depth).then_some(count + 1);
        // ORDERING: a counter, which guards no other memory.
        let taken = client.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        match taken {
            Ok(_) => Ok(Self(Arc::clone(client))),
            Err(_) => Err(Error::Full { client: client.name().to_owned(), depth }),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
