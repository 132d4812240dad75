//! The byte ring between one producer and one consumer in two processes.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use umem::Foreign;

use super::cursor::{NoRoom, RingCorrupt, Rx, Tx};
use super::guard::{self, Held};
use super::layout::{LINE, SCRATCH, SCRATCH_LEN, max_payload, ring_file_len, valid_capacity};
use super::memfd::{BadMemory, Mapping, SEALS};

/// Why [`Producer::push`] published nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushError<E> {
    /// No room now: try again when the consumer has taken something.
    #[error("the ring is full")]
    Full,
    /// No room ever.
    #[error("{len} bytes do not fit a ring whose longest record has {max}")]
    TooLarge {
        /// Bytes asked for.
        len: usize,
        /// The longest payload of this ring.
        max: usize,
    },
    /// The consumer wrote an invalid value to the control page.
    #[error(transparent)]
    Corrupt(#[from] RingCorrupt),
    /// The closure failed.
    #[error("the record could not be written")]
    Fill(E),
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Producer {
    memory: Mapping,
    tx: Tx,
    capacity: usize,
    /// How often the guard slot was held.
    holds: u32,
}

impl Producer {
    /// Creates a ring of `capacity` bytes (a power of two between [`MIN_CAPACITY`] and
    /// [`MAX_CAPACITY`]) and returns its writing end and the memfd to pass to the consumer.
    ///
    /// # Errors
    /// `InvalidInput` for any other capacity, or the system's error.
    ///
    /// [`MIN_CAPACITY`]: super::MIN_CAPACITY
    /// [`MAX_CAPACITY`]: super::MAX_CAPACITY
    pub fn create(capacity: usize) -> io::Result<(Self, OwnedFd)> {
        if !valid_capacity(capacity) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a ring cannot have {capacity} bytes"),
            ));
        }
        let (fd, memory) = Mapping::create("peerdma-ring", ring_file_len(capacity), SEALS)?;
        Ok((Self { memory, tx: Tx::new(capacity), capacity, holds: 0 }, fd))
    }

    /// Appends a record of `len` bytes that `fill` writes, and makes it visible to the consumer.
    ///
    /// # Errors
    /// Nothing is published if the ring is full, corrupt or too small, or if `fill` fails.
    #[inline]
    pub fn push<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(Foreign<'_>) -> Result<(), E>,
    ) -> Result<(), PushError<E>> {
        let slot = self.tx.reserve(&self.memory, len).map_err(|e| self.refusal(&e, len))?;
        fill(self.memory.foreign(slot.payload, len)).map_err(PushError::Fill)?;
        self.tx.publish(&self.memory, slot);
        Ok(())
    }

    /// Announces that a record will be pushed very soon. The consumer, which polls there, has the
    /// cache line: getting it back takes as long as writing a record.
    #[inline]
    pub fn expect_push(&self) {
        self.memory.foreign(self.tx.next(), LINE).expect_write();
    }

    /// Asks the consumer to ring our doorbell when it frees space, and returns true if there is
    /// room for `len` bytes already, so that there is nothing to wait for.
    ///
    /// # Errors
    /// [`PushError::TooLarge`] and [`PushError::Corrupt`], as [`push`](Self::push).
    pub fn want_space(&mut self, len: usize) -> Result<bool, PushError<std::convert::Infallible>> {
        self.tx.want_space(&self.memory, len).map_err(|e| self.refusal(&e, len))
    }

    /// Bytes free in the ring, at least: read from our own memory only. A record takes
    /// [`record_size`](super::record_size) bytes, one line is never used, and a wrap may waste
    /// up to the size of the record.
    pub fn free_hint(&self) -> usize {
        self.tx.free()
    }

    /// Position after the last record pushed. A record is consumed once
    /// [`consumed_up_to`](Self::consumed_up_to) reaches the position after its push.
    pub fn position(&self) -> u64 {
        self.tx.position()
    }

    /// Position up to which the consumer reports that it took the records. It reports when its ring
    /// is empty, or an eighth of it has been read.
    pub fn consumed_up_to(&mut self) -> u64 {
        self.tx.consumed(&self.memory)
    }

    /// Longest payload of one record.
    pub fn max_payload(&self) -> usize {
        max_payload(self.capacity)
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The page next to the ring that both engines may read and write; its first word is the guard
    /// slot.
    pub fn scratch(&self) -> Foreign<'_> {
        self.memory.foreign(SCRATCH, SCRATCH_LEN)
    }

    /// Holds the guard slot for `key`, which is not 0.
    #[inline]
    pub fn hold(&mut self, key: u32) {
        self.holds = self.holds.wrapping_add(1);
        guard::hold(&self.memory, key, self.holds);
    }

    /// Frees the guard slot.
    #[inline]
    pub fn free(&mut self) {
        guard::free(&self.memory);
    }

    fn refusal<E>(&self, e: &NoRoom, len: usize) -> PushError<E> {
        match e {
            NoRoom::Full => PushError::Full,
            NoRoom::TooLarge => PushError::TooLarge { len, max: self.max_payload() },
            NoRoom::Corrupt(e) => PushError::Corrupt(*e),
        }
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer {
    memory: Mapping,
    rx: Rx,
    capacity: usize,
    wake: bool,
}

impl Consumer {
    /// Takes the reading end of the ring in `fd`, which a peer sent.
    ///
    /// # Errors
    /// If the file is not exactly what a producer creates: sealed, of the right size, in memory.
    pub fn open(fd: BorrowedFd<'_>, capacity: usize) -> io::Result<Self> {
        Self::open_checked(fd, capacity)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))
    }

    pub(crate) fn open_checked(fd: BorrowedFd<'_>, capacity: usize) -> Result<Self, BadMemory> {
        if !valid_capacity(capacity) {
            return Err(BadMemory::Capacity(capacity));
        }
        let memory = Mapping::open(fd, ring_file_len(capacity), SEALS)?;
        Ok(Self { memory, rx: Rx::new(capacity), capacity, wake: false })
    }

    /// Passes the next record to `take`, if there is one, and frees it afterwards.
    ///
    /// The producer can change the bytes while `take` reads them: copy first, then check.
    ///
    /// # Errors
    /// The contents of the ring are not a valid record. The connection must be closed.
    #[inline]
    pub fn pop<R>(
        &mut self,
        take: impl FnOnce(Foreign<'_>) -> R,
    ) -> Result<Option<R>, RingCorrupt> {
        self.pop_if(|record| Some(take(record)))
    }

    /// Like [`pop`](Self::pop), but a record for which `take` returns `None` stays the next one.
    ///
    /// # Errors
    /// As [`pop`](Self::pop).
    #[inline]
    pub fn pop_if<R>(
        &mut self,
        take: impl FnOnce(Foreign<'_>) -> Option<R>,
    ) -> Result<Option<R>, RingCorrupt> {
        if let Some(record) = self.rx.next(&self.memory)?
            && let Some(taken) = take(self.memory.foreign(record.payload, record.len))
        {
            self.wake |= self.rx.consume(&self.memory, record);
            return Ok(Some(taken));
        }
        self.wake |= self.rx.release(&self.memory);
        Ok(None)
    }

    /// Whether there is no record; if so, tells the producer how far we have read. A cheap check
    /// for threads that poll.
    #[inline]
    pub fn is_idle(&mut self) -> bool {
        let is_empty = self.rx.is_empty(&self.memory);
        if is_empty {
            self.wake |= self.rx.release(&self.memory);
        }
        is_empty
    }

    /// Tells the producer at once how far we have read, instead of at an eighth of the ring or when
    /// the ring is found empty. Needed by a consumer that sleeps while records remain.
    pub fn release(&mut self) {
        self.wake |= self.rx.release(&self.memory);
    }

    /// Whether the producer wants its doorbell rung; asking resets it.
    pub fn take_wake(&mut self) -> bool {
        std::mem::take(&mut self.wake)
    }

    /// Position up to which records were read.
    pub fn position(&self) -> u64 {
        self.rx.position()
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The page next to the ring that both engines may read and write; its first word is the guard
    /// slot.
    pub fn scratch(&self) -> Foreign<'_> {
        self.memory.foreign(SCRATCH, SCRATCH_LEN)
    }

    /// Looks at the guard slot of the sender.
    pub fn held(&self) -> Held {
        guard::look(&self.memory)
    }
}
