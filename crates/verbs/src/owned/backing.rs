//! The memory below buffers: one region, whole or in pieces of equal length.

#![allow(unsafe_code, reason = "the owner of a piece has a slice of it")]

use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use super::raw::Owner;
use super::{Stable, StableMut};
use crate::slots::{Permit, Slots};
use crate::{Access, HostBuf, Kind, Mr, Pd, Refusal, Result, Slice};

/// A region that grants no peer access, and what it is on. The region goes first.
#[derive(Debug)]
pub(super) struct Backing {
    mr: Mr,
    start: NonNull<u8>,
    /// Bytes of a piece.
    length: usize,
    /// The pieces that nobody has, if they come back.
    free: Option<Free>,
    owner: Owner,
}

/// The pieces of a region that nobody has.
#[derive(Debug)]
struct Free {
    numbers: Mutex<Vec<u32>>,
    /// As many places as there are numbers, which tasks wait for.
    slots: Arc<Slots>,
}

// SAFETY: `start` is memory of `owner`, which may be sent; `Piece` says when it is touched.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

/// A part of a region that this value alone gives access to. It is small, as requests move it.
#[derive(Debug)]
pub struct Piece {
    backing: Arc<Backing>,
    len: usize,
    /// Which of the pieces it is.
    number: u32,
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(free) = &self.backing.free {
            free.numbers().push(self.number);
            // Behind this: a task that waits for a place finds the piece.
            free.slots.give(1);
        }
    }
}

impl Free {
    fn numbers(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Piece {
    /// Memory that the NIC may read and write for requests of this side.
    pub(super) fn writable<B: StableMut>(pd: &Pd, mut owner: B) -> Result<Self> {
        let len = owner.stable_len();
        let start = NonNull::new(owner.stable_mut_ptr());
        Self::whole(pd, start, len, Access::LOCAL_WRITE, Arc::new(owner))
    }

    /// Memory that the NIC may read for requests of this side.
    pub(super) fn read_only<B: Stable>(pd: &Pd, owner: B) -> Result<Self> {
        let len = owner.stable_len();
        let start = NonNull::new(owner.stable_ptr().cast_mut());
        Self::whole(pd, start, len, Access::empty(), Arc::new(owner))
    }

    fn whole(
        pd: &Pd,
        start: Option<NonNull<u8>>,
        len: usize,
        access: Access,
        owner: Owner,
    ) -> Result<Self> {
        let start = start.filter(|_| len > 0).ok_or_else(|| {
            Refusal::new(Kind::Invalid, "register: memory of no bytes cannot be registered")
        })?;
        // SAFETY: the owner keeps the memory mapped. Nothing of this process has a reference to it
        // while the NIC uses it: only a piece gives one, and a request in flight has the piece.
        let mr = unsafe { pd.reg_owned_mr(start, len, access, Arc::clone(&owner)) }?;
        let backing = Arc::new(Backing { mr, start, length: len, free: None, owner });
        Ok(Self { backing, len, number: 0 })
    }

    /// The owner, after the region is gone. The piece comes back if the memory is of another owner,
    /// or is a part of a pool.
    ///
    /// # Errors
    ///
    /// The NIC has not let go of the memory, which is never given back then.
    pub(super) fn into_owner<B: Stable>(self) -> std::result::Result<Result<B>, Self> {
        if self.backing.free.is_some() || !self.backing.owner.is::<B>() {
            return Err(self);
        }
        let owner = Arc::clone(&self.backing.owner).downcast::<B>().expect("checked above");
        drop(self);
        Ok(Arc::into_inner(owner).ok_or_else(|| {
            Refusal::new(Kind::Busy, "into_owner: ibv_dereg_mr failed: the NIC has the memory")
        }))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let start = self.start().as_ptr();
        // SAFETY: within the owner's memory, which is mapped and initialized; this value alone
        // gives access to the part, and no request has it, since the value is here.
        unsafe { slice::from_raw_parts(start, self.len) }
    }

    /// For a piece of memory that is writable.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.start().as_ptr();
        // SAFETY: as above, and the owner gives nobody else access (`StableMut`).
        unsafe { slice::from_raw_parts_mut(start, self.len) }
    }

    /// Where it begins in the region.
    fn offset(&self) -> usize {
        self.number as usize * self.backing.length
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: the offset of a piece lies within the owner's memory.
        unsafe { self.backing.start.add(self.offset()) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn capacity(&self) -> usize {
        self.backing.length
    }

    pub(super) fn set_len(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(len <= capacity, "a buffer of {capacity} bytes cannot have {len}");
        self.len = len;
    }

    /// Its bytes, for a request. Longer than a message can be, it is refused when it is posted.
    pub(super) fn slice(&self) -> Slice<'_> {
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        self.backing.mr.slice(self.offset() as u64, len)
    }

    pub(super) fn pd(&self) -> &Pd {
        self.backing.mr.pd()
    }
}

/// A region in pieces of equal length.
#[derive(Clone, Debug)]
pub(super) struct Slab(Arc<Backing>);

impl Slab {
    /// Takes a buffer that nobody else has a clone of.
    pub(super) fn new(pd: &Pd, buffer: HostBuf, length: usize, count: u32) -> Result<Self> {
        let start = NonNull::new(buffer.as_ptr()).expect("memory is not at address zero");
        let bytes = buffer.len();
        assert!(length * count as usize <= bytes, "the pieces lie within the buffer");
        let owner: Owner = Arc::new(buffer);
        // SAFETY: as for a whole region.
        let mr = unsafe { pd.reg_owned_mr(start, bytes, Access::LOCAL_WRITE, Arc::clone(&owner)) }?;
        let numbers = Mutex::new((0..count).rev().collect());
        let free = Some(Free { numbers, slots: Slots::new(count) });
        Ok(Self(Arc::new(Backing { mr, start, length, free, owner })))
    }

    fn free(&self) -> &Free {
        self.0.free.as_ref().expect("the pieces of a slab come back")
    }

    pub(super) fn slots(&self) -> &Arc<Slots> {
        &self.free().slots
    }

    pub(super) fn length(&self) -> usize {
        self.0.length
    }

    /// The piece that a permit stands for; it gives the place back.
    pub(super) fn piece(&self, permit: Permit) -> Piece {
        permit.forget();
        let number = self.free().numbers().pop().expect("a permit stands for a free piece");
        Piece { backing: Arc::clone(&self.0), len: self.length(), number }
    }
}
