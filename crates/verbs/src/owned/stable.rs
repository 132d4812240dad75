//! Owners of memory that can be registered.

#![allow(unsafe_code, reason = "the traits promise what the compiler cannot see")]

use std::sync::Arc;

/// Memory that a NIC may read by its address while somebody holds its owner.
///
/// # Safety
///
/// From the first call of [`stable_ptr`](Self::stable_ptr) until the owner is dropped, both
/// functions return the same, wherever the owner is moved to, and that many bytes at the address
/// are mapped, initialized, and changed by nobody.
pub unsafe trait Stable: Send + Sync + 'static {
    /// Where the memory begins.
    fn stable_ptr(&self) -> *const u8;

    /// Its length in bytes.
    fn stable_len(&self) -> usize;
}

/// Memory that a NIC may write, too.
///
/// # Safety
///
/// The address is that of [`Stable::stable_ptr`], and nothing but the owner gives access to the
/// memory.
pub unsafe trait StableMut: Stable {
    /// Where the memory begins.
    fn stable_mut_ptr(&mut self) -> *mut u8;
}

// SAFETY: the bytes are on the heap, and nothing is pushed while the vector is only held.
unsafe impl Stable for Vec<u8> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn stable_len(&self) -> usize {
        self.len()
    }
}

// SAFETY: a vector owns its bytes.
unsafe impl StableMut for Vec<u8> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
}

// SAFETY: the bytes are on the heap.
unsafe impl Stable for Box<[u8]> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn stable_len(&self) -> usize {
        self.len()
    }
}

// SAFETY: a box owns its bytes.
unsafe impl StableMut for Box<[u8]> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
}

// SAFETY: the bytes are on the heap, and shared ones do not change: `Arc::get_mut` fails while the
// region has its clone.
unsafe impl Stable for Arc<[u8]> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn stable_len(&self) -> usize {
        self.len()
    }
}

// SAFETY: borrowed for ever, so nobody changes it.
unsafe impl Stable for &'static [u8] {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn stable_len(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "bytes")]
// SAFETY: the bytes are on the heap or static, shared, and do not change.
unsafe impl Stable for bytes::Bytes {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn stable_len(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "bytes")]
// SAFETY: the bytes are on the heap, and nothing is put in while the value is only held.
unsafe impl Stable for bytes::BytesMut {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn stable_len(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "bytes")]
// SAFETY: its part of the memory is its own.
unsafe impl StableMut for bytes::BytesMut {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
}
