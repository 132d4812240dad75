//! What C passes: pointers to results, to lists and to text.
//!
//! A call takes these types where the header has a pointer. All of them rely on what the header
//! documents about the argument: that a pointer which is not null is valid, for as much as the call
//! is documented to read or to write. `E` is the error of the driver.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

use crate::refusal::{Error, Kind, Refusal};

/// Where a result goes.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T, E>(*mut T, PhantomData<fn() -> E>);

/// Where an argument is.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T, E>(*const T, PhantomData<fn() -> E>);

/// A terminated string.
#[repr(transparent)]
#[derive(Debug)]
pub struct Text<E>(*const c_char, PhantomData<fn() -> E>);

impl<T, E> Clone for Out<T, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, E> Copy for Out<T, E> {}

impl<T, E> Clone for In<T, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, E> Copy for In<T, E> {}

impl<E> Clone for Text<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Text<E> {}

impl<T, E: Error> Out<T, E> {
    /// A place in memory of our own.
    pub fn to(place: &mut T) -> Self {
        Self(place, PhantomData)
    }

    /// Whether there is none.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value that the program has put there.
    pub fn input(self) -> In<T, E> {
        In(self.0, PhantomData)
    }

    /// No place.
    pub fn null() -> Self {
        Self(std::ptr::null_mut(), PhantomData)
    }

    /// Stores the result.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    pub fn put(self, value: T) -> Result<(), E> {
        self.check()?;
        self.put_if(value);
        Ok(())
    }

    /// Stores the result if the program wants it.
    pub fn put_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so it is what the header documents: a place for one. It need not be
            // aligned.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Stores one of several results.
    pub fn put_at(self, index: usize, value: T) {
        Self(self.0.wrapping_add(index), PhantomData).put_if(value);
    }

    /// A result that cannot go anywhere.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    pub fn check(self) -> Result<(), E> {
        if self.0.is_null() {
            Err(null("a result has no place: the pointer is null"))
        } else {
            Ok(())
        }
    }

    /// The same place, for another type.
    pub fn of<U>(self) -> Out<U, E> {
        Out(self.0.cast(), PhantomData)
    }
}

impl<E: Error> Out<c_char, E> {
    /// Stores a string, cut to what `len` bytes hold with the zero at its end.
    ///
    /// # Errors
    ///
    /// The pointer is null, or there is no room for the zero.
    pub fn put_text(self, text: &str, len: usize) -> Result<(), E> {
        self.check()?;
        let room = len
            .checked_sub(1)
            .ok_or_else(|| Refusal::new(Kind::Invalid, "a string of no bytes"))?;
        let bytes = &text.as_bytes()[..text.len().min(room)];
        for (index, byte) in bytes.iter().chain(&[0]).enumerate() {
            // CAST: the bits.
            self.put_at(index, *byte as c_char);
        }
        Ok(())
    }
}

impl<T: Copy, E: Error> In<T, E> {
    /// The same place, into which the call is documented to write.
    pub fn output(self) -> Out<T, E> {
        Out(self.0.cast_mut(), PhantomData)
    }

    /// The argument.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    pub fn get(self) -> Result<T, E> {
        if self.0.is_null() {
            return Err(null("an argument is missing: the pointer is null"));
        }
        // SAFETY: not null, so it is what the header documents: one of these. It need not be
        // aligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The argument, if there is one.
    pub fn get_if(self) -> Option<T> {
        self.get().ok()
    }

    /// One of several.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    pub fn get_at(self, index: usize) -> Result<T, E> {
        if self.is_null() {
            return self.get();
        }
        Self(self.0.wrapping_add(index), PhantomData).get()
    }

    /// All of `count`.
    ///
    /// # Errors
    ///
    /// The pointer is null, and there should be some.
    pub fn list(self, count: usize) -> Result<Vec<T>, E> {
        (0..count).map(|index| self.get_at(index)).collect()
    }

    /// Whether there is none.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same place, for another type.
    pub fn of<U: Copy>(self) -> In<U, E> {
        In(self.0.cast(), PhantomData)
    }
}

impl<E: Error> Text<E> {
    /// The string.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    pub fn get<'a>(self) -> Result<&'a CStr, E> {
        if self.0.is_null() {
            return Err(null("a string is missing: the pointer is null"));
        }
        // SAFETY: not null, so it is what the header documents: terminated. It is used during the
        // call only.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}

/// Text as a field of a structure holds it: cut to the room there is, and ended by zeros.
pub fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let len = text.len().min(N - 1);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

fn null<E: Error>(what: &'static str) -> E {
    Refusal::new(Kind::Null, what).into()
}
