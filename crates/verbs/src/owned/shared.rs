//! Memory that peers reach.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use umem::HostBufError;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Range, RemoteSlice};
use crate::{Access, HostBuf, Kind, Mr, Pd, Refusal, Result};

/// An array of values that peers read, write or change at any moment. The program has copies of the
/// values and, of words of 64 bits, atomics; never a reference.
///
/// A copy that is taken while a peer writes may be partly old and partly new; words of 64 bits are
/// whole.
#[derive(Debug)]
pub struct Shared<T> {
    mr: Mr,
    memory: HostBuf,
    count: usize,
    of: PhantomData<fn() -> T>,
}

impl<T: FromBytes + IntoBytes + Immutable> Shared<T> {
    /// `count` values, all bytes zero, that peers of the domain's QPs reach as `access` says.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for no values or a type of no bytes, [`Kind::NoMemory`] if the system has
    /// no memory for them; otherwise the device's.
    pub fn new(pd: &Pd, count: usize, access: Access) -> Result<Self> {
        Self::on(pd, count, access, HostBuf::anonymous)
    }

    /// The same in a file of its own, which costs a descriptor: processes of the same host and user
    /// map it, so that their one-sided operations on the software device need no system call, and
    /// their atomics no packet. A child of a fork shares it.
    ///
    /// # Errors
    ///
    /// As [`Shared::new`].
    pub fn in_file(pd: &Pd, count: usize, access: Access) -> Result<Self> {
        Self::on(pd, count, access, |bytes| HostBuf::memfd("peerdma-shared", bytes))
    }

    fn on(
        pd: &Pd,
        count: usize,
        access: Access,
        memory: impl FnOnce(usize) -> std::result::Result<HostBuf, HostBufError>,
    ) -> Result<Self> {
        const { assert!(align_of::<T>() <= 4096, "memory is aligned to pages") };
        let bytes = size_of::<T>().checked_mul(count).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| {
            let what = format!("shared memory of {count} values of {} bytes", size_of::<T>());
            Refusal::new(Kind::Invalid, what)
        })?;
        let memory = memory(bytes).map_err(|error| {
            Refusal::new(Kind::NoMemory, format!("shared memory of {bytes} bytes: {error}"))
        })?;
        let mr = pd.reg_mr(&memory, access | Access::LOCAL_WRITE)?;
        Ok(Self { mr, memory, count, of: PhantomData })
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Always false: there is at least one.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn offset(&self, index: usize, count: usize) -> usize {
        let end = index.checked_add(count);
        let len = self.count;
        assert!(end.is_some_and(|end| end <= len), "{count} values at {index} of {len}");
        index * size_of::<T>()
    }

    /// A copy of a value.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn get(&self, index: usize) -> T {
        let mut value = T::new_zeroed();
        self.read(index, std::slice::from_mut(&mut value));
        value
    }

    /// Replaces a value.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn set(&self, index: usize, value: T) {
        self.write(index, std::slice::from_ref(&value));
    }

    /// Copies values out, from `index` on.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn read(&self, index: usize, out: &mut [T]) {
        let offset = self.offset(index, out.len());
        self.memory.read(offset, out.as_mut_bytes()).expect(OURS);
    }

    /// Copies values in, from `index` on.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn write(&self, index: usize, values: &[T]) {
        let offset = self.offset(index, values.len());
        self.memory.write(offset, values.as_bytes()).expect(OURS);
    }

    /// All of it, for a peer.
    pub fn remote(&self) -> RemoteSlice<T> {
        RemoteSlice::new(self.mr.remote(0), self.count as u64).expect("memory of this process")
    }

    /// Values of it, for requests of this side.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if they have more bytes than a message can have.
    pub fn range(&self, index: usize, count: usize) -> Result<Range> {
        let offset = self.offset(index, count) as u64;
        let bytes = count * size_of::<T>();
        let length = u32::try_from(bytes).map_err(|_| {
            Refusal::new(Kind::Invalid, format!("range: {bytes} bytes are no message"))
        })?;
        self.mr.range(offset, length)
    }

    /// The region, for requests of [`SendRequest`](crate::SendRequest) and for windows.
    pub fn mr(&self) -> &Mr {
        &self.mr
    }
}

/// Words, which programs and peers change at once. A peer's atomic and one of this process exclude
/// each other only if the device says so ([`DeviceAttr`](crate::DeviceAttr), `atomic_cap`).
impl Shared<u64> {
    /// A word.
    ///
    /// # Panics
    ///
    /// If there are not so many, or the order is none of a load.
    pub fn load(&self, index: usize, order: Ordering) -> u64 {
        self.memory.load_u64(self.offset(index, 1), order).expect(OURS)
    }

    /// Replaces a word.
    ///
    /// # Panics
    ///
    /// If there are not so many, or the order is none of a store.
    pub fn store(&self, index: usize, value: u64, order: Ordering) {
        self.memory.store_u64(self.offset(index, 1), value, order).expect(OURS);
    }

    /// Adds to a word, and returns what it was.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn fetch_add(&self, index: usize, add: u64, order: Ordering) -> u64 {
        self.memory.fetch_add_u64(self.offset(index, 1), add, order).expect(OURS)
    }
}

const OURS: &str = "memory of this library is mapped, and the range was checked";
