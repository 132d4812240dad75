//! Buffers: registered memory with one owner.

use std::ops::{Deref, DerefMut};

use super::backing::Piece;
use super::{Stable, StableMut};
use crate::{Pd, Result};

/// Registered memory that its owner reads and writes as a slice, and that requests take and give
/// back. It is a whole piece of memory of the program ([`Pd::register`]) or a part of a
/// [`Pool`](super::Pool), to which it returns when it is dropped.
///
/// A buffer has a capacity, which is what can be received into it, and a length, which is what is
/// sent of it.
#[derive(Debug)]
pub struct Buffer(pub(super) Piece);

/// The same for memory that nobody may write: text of the program, what others share. Requests send
/// it and write it to peers; none receives into it.
#[derive(Debug)]
pub struct ConstBuffer(pub(super) Piece);

impl Pd {
    /// Registers memory of the program for requests of this side; peers have no access to it. The
    /// region ends when the buffer is dropped, and then the owner is dropped.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](crate::Kind::Invalid) for memory of no bytes; otherwise the device's.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<B: StableMut>(&self, owner: B) -> Result<Buffer> {
        Piece::writable(self, owner).map(Buffer)
    }

    /// The same for memory that is only read.
    ///
    /// # Errors
    ///
    /// As [`Pd::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_const<B: Stable>(&self, owner: B) -> Result<ConstBuffer> {
        Piece::read_only(self, owner).map(ConstBuffer)
    }
}

impl Buffer {
    pub(crate) fn slice(&self) -> crate::Slice<'_> {
        self.0.slice()
    }

    /// How many bytes can be received into it.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Sets how many bytes of it there are. Bytes that were not there before are what they were
    /// last: nothing is cleared.
    ///
    /// # Panics
    ///
    /// If the length is above the capacity.
    pub fn set_len(&mut self, len: usize) {
        self.0.set_len(len);
    }

    /// Copies bytes in from the front, and makes them all that there are.
    ///
    /// # Panics
    ///
    /// If there are more than its capacity.
    pub fn fill_with(&mut self, bytes: &[u8]) {
        self.set_len(bytes.len());
        self.copy_from_slice(bytes);
    }

    /// Ends the registration and gives the owner back. The buffer comes back if its memory is of
    /// another type, or a part of a pool.
    ///
    /// # Errors
    ///
    /// The inner one: the NIC would not let go of the memory, which nobody gets back then.
    pub fn into_owner<B: StableMut>(self) -> std::result::Result<Result<B>, Self> {
        self.0.into_owner().map_err(Self)
    }
}

impl ConstBuffer {
    /// Ends the registration and gives the owner back, as [`Buffer::into_owner`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn into_owner<B: Stable>(self) -> std::result::Result<Result<B>, Self> {
        self.0.into_owner().map_err(Self)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Deref for ConstBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl AsRef<[u8]> for ConstBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
