//! Memory of a peer, with its type.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use iba::RKey;

use crate::{Kind, Refusal, Remote, Result};

/// Values of type `T` in the memory of a peer: where they are, the key, and how many there are.
///
/// It is what a peer sends by [`to_bytes`](Self::to_bytes) or serde. Nothing proves that the peer
/// told the truth: its NIC checks each request.
pub struct RemoteSlice<T> {
    at: Remote,
    count: u64,
    of: PhantomData<fn() -> T>,
}

/// How many bytes [`RemoteSlice::to_bytes`] gives.
const BYTES: usize = 20;

impl<T> RemoteSlice<T> {
    /// `count` values at a place.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if the place is not aligned for the type, or the end is above the highest
    /// address.
    pub fn new(at: Remote, count: u64) -> Result<Self> {
        let refused = |why: &str| {
            let what = format!("a remote slice of {count} values at {:#x}: {why}", at.addr);
            Err(Refusal::new(Kind::Invalid, what))
        };
        if !at.addr.is_multiple_of(align_of::<T>() as u64) {
            return refused("the address is not aligned for their type");
        }
        let end = count.checked_mul(size_of::<T>() as u64).and_then(|n| at.addr.checked_add(n));
        if end.is_none() {
            return refused("they leave the address space");
        }
        Ok(Self { at, count, of: PhantomData })
    }

    /// How many values there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many bytes they have.
    pub fn byte_len(&self) -> u64 {
        self.count * size_of::<T>() as u64
    }

    /// A part of it; `None` if the range is not within it.
    pub fn get(&self, range: impl RangeBounds<u64>) -> Option<Self> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1)?,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.count,
        };
        if start > end || end > self.count {
            return None;
        }
        let at = self.at.add(start * size_of::<T>() as u64);
        Some(Self { at, count: end - start, of: PhantomData })
    }

    /// One value of it; `None` if there are not so many.
    pub fn at(&self, index: u64) -> Option<Self> {
        self.get(index..=index)
    }

    /// The place, for requests of [`SendRequest`](crate::SendRequest).
    pub fn remote(&self) -> Remote {
        self.at
    }

    /// Itself as bytes, to be sent to the peer that shall use it.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.at.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.count.to_be_bytes());
        bytes[16..].copy_from_slice(&self.at.rkey.0.to_be_bytes());
        bytes
    }

    /// What a peer sent.
    ///
    /// # Errors
    ///
    /// As [`RemoteSlice::new`].
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Result<Self> {
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let rkey = RKey(u32::from_be_bytes(bytes[16..].try_into().expect("four")));
        Self::new(Remote { addr: number(0), rkey }, number(8))
    }
}

// By hand: a derive would ask the same of `T`.
impl<T> Clone for RemoteSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for RemoteSlice<T> {}

impl<T> PartialEq for RemoteSlice<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.count) == (other.at, other.count)
    }
}

impl<T> Eq for RemoteSlice<T> {}

impl<T> fmt::Debug for RemoteSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (addr, key) = (self.at.addr, self.at.rkey.0);
        write!(f, "{} x {} at {addr:#x}, key {key:#x}", self.count, std::any::type_name::<T>())
    }
}

#[cfg(feature = "serde")]
impl<T> serde::Serialize for RemoteSlice<T> {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        (self.at.addr, self.count, self.at.rkey.0).serialize(serializer)
    }
}

#[cfg(feature = "serde")]
impl<'de, T> serde::Deserialize<'de> for RemoteSlice<T> {
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Self, D::Error> {
        let (addr, count, rkey) = <(u64, u64, u32)>::deserialize(deserializer)?;
        let at = Remote { addr, rkey: RKey(rkey) };
        Self::new(at, count).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(count: u64) -> RemoteSlice<u64> {
        RemoteSlice::new(Remote { addr: 0x1000, rkey: RKey(7) }, count).unwrap()
    }

    #[test]
    fn a_part_lies_within_the_whole() {
        let words = words(10);
        let part = words.get(2..5).unwrap();
        assert_eq!((part.remote().addr, part.len(), part.byte_len()), (0x1010, 3, 24));
        assert_eq!(part.at(2).unwrap().remote().addr, 0x1020);
        assert_eq!(words.get(..), Some(words));
        assert_eq!(words.get(10..).map(|rest| rest.len()), Some(0));
        for outside in [part.get(2..4), part.at(3), words.get(..=10), words.at(u64::MAX)] {
            assert_eq!(outside, None);
        }
    }

    #[test]
    fn bytes_of_a_peer_are_checked() {
        let whole = words(10);
        assert_eq!(RemoteSlice::from_bytes(&whole.to_bytes()), Ok(whole));
        let odd = RemoteSlice::<u8>::new(Remote { addr: 0x1001, rkey: RKey(7) }, 8).unwrap();
        let refusal = RemoteSlice::<u64>::from_bytes(&odd.to_bytes()).unwrap_err();
        assert!(refusal.what().contains("not aligned"), "{refusal}");
        let far = RemoteSlice::<u64>::new(Remote { addr: 8, rkey: RKey(7) }, u64::MAX / 8);
        assert!(far.unwrap_err().what().contains("leave the address space"));
        assert!(RemoteSlice::<u64>::new(Remote { addr: 8, rkey: RKey(7) }, u64::MAX).is_err());
    }
}
