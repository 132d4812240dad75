//! What C passes: pointers to results, to lists and to text.
//!
//! A call takes these types where the header has a pointer. All of them rely on what the header says of the argument: that a
//! pointer which is not null is one, to as much as the call is documented to read or to write.

use std::ffi::{CStr, c_char};

use crate::status::{Result, invalid};

/// Where a result goes.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// Where an argument is.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

/// A terminated string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> Out<T> {
    /// A place of our own.
    pub(crate) fn to(place: &mut T) -> Self {
        Self(place)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// What the program has put there.
    pub(crate) fn input(self) -> In<T> {
        In(self.0)
    }

    /// No place.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    /// Stores the result.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    pub(crate) fn put(self, value: T) -> Result<()> {
        self.check()?;
        self.put_if(value);
        Ok(())
    }

    /// Stores the result if the program wants it.
    pub(crate) fn put_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so what the header says: a place for one. It need not be aligned.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Stores one of several results.
    pub(crate) fn put_at(self, index: usize, value: T) {
        Self(self.0.wrapping_add(index)).put_if(value);
    }

    /// A result that cannot go anywhere.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    pub(crate) fn check(self) -> Result<()> {
        if self.0.is_null() {
            Err(invalid("a result has no place: the pointer is null"))
        } else {
            Ok(())
        }
    }

    /// The same place, for another type.
    pub(crate) fn of<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl Out<c_char> {
    /// Stores a string, cut to what `len` bytes hold with the zero at its end.
    ///
    /// # Errors
    ///
    /// The pointer is null, or there is no room for the zero.
    pub(crate) fn put_text(self, text: &str, len: usize) -> Result<()> {
        self.check()?;
        let room = len.checked_sub(1).ok_or_else(|| invalid("a string of no bytes"))?;
        let bytes = &text.as_bytes()[..text.len().min(room)];
        for (index, byte) in bytes.iter().chain(&[0]).enumerate() {
            // CAST: the bits.
            self.put_at(index, *byte as c_char);
        }
        Ok(())
    }
}

impl<T: Copy> In<T> {
    /// The argument.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    pub(crate) fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(invalid("an argument is not there: the pointer is null"));
        }
        // SAFETY: not null, so what the header says: one of these. It need not be aligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The argument, if there is one.
    pub(crate) fn get_if(self) -> Option<T> {
        self.get().ok()
    }

    /// One of several.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    pub(crate) fn get_at(self, index: usize) -> Result<T> {
        if self.is_null() {
            return self.get();
        }
        Self(self.0.wrapping_add(index)).get()
    }

    /// All of `count`.
    ///
    /// # Errors
    ///
    /// The pointer is null, and there should be some.
    pub(crate) fn list(self, count: usize) -> Result<Vec<T>> {
        (0..count).map(|index| self.get_at(index)).collect()
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same place, for another type.
    pub(crate) fn of<U: Copy>(self) -> In<U> {
        In(self.0.cast())
    }
}

impl Text {
    /// The string.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    pub(crate) fn get<'a>(self) -> Result<&'a CStr> {
        if self.0.is_null() {
            return Err(invalid("a string is not there: the pointer is null"));
        }
        // SAFETY: not null, so what the header says: terminated. It is used during the call only.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}
