//! Objects that a program holds as pointers to C structures.

use std::mem::{MaybeUninit, offset_of};

/// A C structure with what the library keeps beside it. A program sees only the first.
///
/// The two never alias: a program reads, and in places writes, the C part; the library's part is shared between threads
/// and so synchronizes itself.
#[repr(C)]
pub(crate) struct Object<C, T> {
    c: C,
    own: T,
}

/// The memory of an object that is about to be: its address is known, its contents are not.
pub(crate) struct Reserved<C, T> {
    memory: Box<MaybeUninit<Object<C, T>>>,
    c: C,
}

impl<C, T> Object<C, T> {
    /// Makes an object, and the pointer that stands for it.
    pub(crate) fn create(c: C, own: T) -> *mut C {
        // The C part is first, so its address is that of the whole.
        Box::into_raw(Box::new(Self { c, own })).cast()
    }

    /// Makes room for an object whose address the engine must know before it is complete.
    pub(crate) fn reserve(c: C) -> Reserved<C, T> {
        Reserved { memory: Box::new_uninit(), c }
    }

    /// The library's part.
    ///
    /// # Safety
    ///
    /// `c` is from [`Object::create`] or [`Reserved::create`] of the same types, and is not destroyed before the result
    /// is last used.
    #[inline]
    pub(crate) unsafe fn own<'a>(c: *mut C) -> &'a T {
        // SAFETY: the caller's promise: the whole object is alive.
        let own = unsafe { c.byte_add(offset_of!(Self, own)) };
        // SAFETY: as above, and the library's part is only ever shared, never borrowed mutably.
        unsafe { &*own.cast() }
    }

    /// Takes the object apart and frees it.
    ///
    /// # Safety
    ///
    /// `c` is from [`Object::create`] or [`Reserved::create`] of the same types, and nothing uses the object now or
    /// later.
    pub(crate) unsafe fn destroy(c: *mut C) -> T {
        // SAFETY: the caller's promise: it is the pointer that `Box::into_raw` gave, and it is given back once.
        let object = unsafe { Box::from_raw(c.cast::<Self>()) };
        object.own
    }
}

impl<C, T> Reserved<C, T> {
    /// The address the object will have.
    pub(crate) fn address(&self) -> usize {
        self.memory.as_ptr().addr()
    }

    /// Makes the object, after `finish` completed the C part.
    pub(crate) fn create(self, finish: impl FnOnce(&mut C), own: T) -> *mut C {
        let Self { memory, mut c } = self;
        finish(&mut c);
        Box::into_raw(Box::write(memory, Object { c, own })).cast()
    }
}
