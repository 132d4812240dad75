//! Objects that a program holds as pointers to C structures.
//!
//! A word before each structure says what it is, so that a null pointer, an object of another kind
//! and a destroyed one are refused, with the reason in the log, instead of being used. Memory of
//! destroyed objects is kept for a while ([`KEPT`]): an older pointer is as invalid as any other,
//! and as undefined as with rdma-core.

use std::any::{Any, TypeId};
use std::collections::VecDeque;
use std::mem::{ManuallyDrop, MaybeUninit, offset_of};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use device::{Hca, Kind as Refused};
use threads::whole::Mutex;

use super::uobject::{Identity, Uobject};

/// Destroyed objects whose memory is kept.
const KEPT: usize = 1024;

/// The memory of destroyed objects, oldest first.
static GONE: Mutex<VecDeque<Box<dyn Any + Send>>> = Mutex::new(VecDeque::new());

/// A C structure with what the library keeps beside it. A program sees only the first.
///
/// The two never alias: a program reads, and in places writes, the C part; the library's part is
/// shared between threads and so synchronizes itself.
#[repr(C)]
pub(crate) struct Object<C: 'static, T: 'static> {
    kind: Kind,
    c: C,
    own: ManuallyDrop<T>,
}

/// What an object is, at the same distance before every C structure.
#[repr(align(16))]
struct Kind {
    of: TypeId,
    /// [`ALIVE`] or [`GONE`]: two values that nothing else is likely to have.
    life: AtomicU32,
    /// What the kernel would find it by, as the library wrote it.
    identity: Identity,
}

const ALIVE: u32 = 0x7065_6572;
const GONE_FOR_GOOD: u32 = 0x676f_6e65;

/// The memory of an object under construction: its address is known, its contents are not.
pub(crate) struct Reserved<C: 'static, T: 'static> {
    memory: Box<MaybeUninit<Object<C, T>>>,
    c: C,
}

/// What a call that was given something it cannot use unwinds with. `boundary` turns it into an
/// errno.
pub(crate) struct BadArgument {
    pub(crate) kind: Refused,
    pub(crate) what: String,
}

/// Memory that is kept and not used. SAFETY of the `Send` below: nothing of it is ever used again.
struct Husk<C: 'static, T: 'static>(
    #[expect(dead_code, reason = "kept, not used")] Box<Object<C, T>>,
);

// SAFETY: nobody touches the contents any more; dropping it frees memory, since the library's part
// was taken out and C structures have no drop.
unsafe impl<C, T> Send for Husk<C, T> {}

impl Kind {
    fn of<C: Uobject + 'static>(c: &C) -> Self {
        Self { of: TypeId::of::<C>(), life: AtomicU32::new(ALIVE), identity: c.identity() }
    }
}

/// Ends a call that was given something it cannot use.
#[cold]
pub(crate) fn bad(what: String) -> ! {
    resume_unwind(Box::new(BadArgument { kind: Refused::Invalid, what }))
}

/// The same with something that the kernel would not find.
#[cold]
fn not_found(what: String) -> ! {
    resume_unwind(Box::new(BadArgument { kind: Refused::NotFound, what }))
}

/// Whether a pointer is to an object of the library, of whatever kind, as far as can be told
/// without risking a fault: a pointer to the beginning of a page counts as no object.
///
/// # Safety
///
/// It points into memory that can be read from the beginning of its page on.
pub(crate) unsafe fn is_object<C>(c: *const C) -> bool {
    const PAGE: usize = 4096;
    let kind = c.cast::<Kind>();
    if !kind.is_aligned() || c.addr() % PAGE < size_of::<Kind>() {
        return false;
    }
    let kind = kind.wrapping_sub(1);
    // SAFETY: the caller's promise: it is in the same page.
    let life = unsafe { &raw const (*kind).life }.cast::<u32>();
    // SAFETY: as above. Another thread may destroy the object meanwhile; either value is then a
    // right answer.
    matches!(unsafe { life.read_volatile() }, ALIVE | GONE_FOR_GOOD)
}

/// A structure that a program passes.
///
/// # Safety
///
/// It is null, or valid for as long as the result is used.
#[inline]
pub(crate) unsafe fn given<'a, T>(pointer: *const T) -> &'a T {
    check(pointer);
    // SAFETY: the caller's promise.
    unsafe { &*pointer }
}

/// A structure that a program passes to be filled in.
///
/// # Safety
///
/// It is null, or valid and used by nobody else for as long as the result is used.
#[inline]
pub(crate) unsafe fn given_mut<'a, T>(pointer: *mut T) -> &'a mut T {
    check(pointer);
    // SAFETY: the caller's promise.
    unsafe { &mut *pointer }
}

/// Room that a program passes for an answer. Checked before anything is done whose answer would be
/// lost.
#[inline]
pub(crate) fn room<T>(pointer: *mut T) -> *mut T {
    check(pointer);
    pointer
}

/// Ends a call that passed an address at which no structure can be.
#[inline]
fn check<T>(pointer: *const T) {
    if pointer.is_null() || !pointer.is_aligned() {
        let path = std::any::type_name::<T>();
        let name = path.rsplit("::").next().unwrap_or(path);
        bad(format!("{pointer:p} where a {name} belongs"));
    }
}

/// Ends a call that was given things of two devices.
#[inline]
pub(crate) fn same_device(one: &Arc<Hca>, other: &Arc<Hca>, what: &str) {
    if !Arc::ptr_eq(one, other) {
        bad(format!("{what} is of another device"));
    }
}

impl<C: Uobject + 'static, T: 'static> Object<C, T> {
    const C_AT: usize = {
        assert!(offset_of!(Self, c) == size_of::<Kind>(), "the same for every kind");
        offset_of!(Self, c)
    };

    fn new(c: C, own: T) -> Self {
        Self { kind: Kind::of(&c), c, own: ManuallyDrop::new(own) }
    }

    fn into_c(whole: Box<Self>) -> *mut C {
        // SAFETY: inside the allocation.
        unsafe { Box::into_raw(whole).byte_add(Self::C_AT) }.cast()
    }

    /// Makes an object, and the pointer that stands for it.
    pub(crate) fn create(c: C, own: T) -> *mut C {
        Self::into_c(Box::new(Self::new(c, own)))
    }

    /// Makes room for an object whose address the engine must know before it is complete.
    pub(crate) fn reserve(c: C) -> Reserved<C, T> {
        Reserved { memory: Box::new_uninit(), c }
    }

    /// The library's part, for a call that would reach the kernel: the structure must still hold
    /// what the library wrote ([`Uobject`]). A pointer to anything else ends the call
    /// ([`BadArgument`]).
    ///
    /// # Safety
    ///
    /// As for [`own`](Self::own).
    pub(crate) unsafe fn lookup<'a>(c: *mut C) -> &'a T {
        // SAFETY: the caller's promise.
        let own = unsafe { Self::own(c) };
        // SAFETY: it is of this type, and alive.
        let said = unsafe { &*c }.identity();
        // SAFETY: before every object is its kind.
        let kind = unsafe { c.byte_sub(Self::C_AT) }.cast::<Kind>();
        // SAFETY: as above.
        if said != unsafe { &*kind }.identity {
            not_found(Self::wrong(c, "has a handle or a context that is not its own"));
        }
        own
    }

    /// The library's part, for calls that a provider answers in user space. A pointer to anything
    /// else ends the call ([`BadArgument`]).
    ///
    /// # Safety
    ///
    /// `c` is null or from [`Object::create`] or [`Reserved::create`] of any type, not destroyed
    /// more than [`KEPT`] objects ago, and not destroyed by another thread before the result is
    /// last used.
    #[inline]
    pub(crate) unsafe fn own<'a>(c: *mut C) -> &'a T {
        // SAFETY: the caller's promise.
        match unsafe { Self::find(c) } {
            Ok(own) => own,
            Err(what) => bad(what),
        }
    }

    /// The same for a call that must not be ended: returns why there is no such object.
    ///
    /// # Safety
    ///
    /// As for [`own`](Self::own).
    #[inline]
    pub(crate) unsafe fn find<'a>(c: *mut C) -> Result<&'a T, String> {
        if c.is_null() || !c.cast::<Kind>().is_aligned() {
            return Err(Self::wrong(c, "is no object"));
        }
        // SAFETY: the caller's promise: before every object is its kind.
        let kind = unsafe { c.byte_sub(Self::C_AT) }.cast::<Kind>();
        // SAFETY: as above; memory of objects that were destroyed is kept.
        let kind = unsafe { &*kind };
        if kind.of != TypeId::of::<C>() {
            return Err(Self::wrong(c, "is another kind of object"));
        }
        if kind.life.load(Ordering::Acquire) != ALIVE {
            return Err(Self::wrong(c, "was destroyed"));
        }
        // SAFETY: it is of this type, and alive.
        let own = unsafe { c.byte_add(offset_of!(Self, own) - Self::C_AT) };
        // SAFETY: as above, and the library's part is only ever shared, never borrowed mutably.
        Ok(unsafe { &*own.cast::<T>() })
    }

    #[cold]
    fn wrong(c: *mut C, what: &str) -> String {
        let path = std::any::type_name::<C>();
        let name = path.rsplit("::").next().unwrap_or(path);
        format!("{c:p} {what}, and a {name} belongs there")
    }

    /// Takes the object apart.
    ///
    /// # Safety
    ///
    /// As for [`own`](Self::own), and nothing uses the object now or later.
    pub(crate) unsafe fn destroy(c: *mut C) -> T {
        // SAFETY: the caller's promise.
        let _ = unsafe { Self::own(c) };
        // SAFETY: the whole of which `own` found the parts.
        let whole = unsafe { c.byte_sub(Self::C_AT) }.cast::<Self>();
        // SAFETY: it is the pointer that `Box::into_raw` gave, and given back once, since it was
        // alive.
        let mut whole = unsafe { Box::from_raw(whole) };
        whole.kind.life.store(GONE_FOR_GOOD, Ordering::Release);
        // SAFETY: taken once; `ManuallyDrop` does not drop it.
        let own = unsafe { ManuallyDrop::take(&mut whole.own) };
        let mut gone = GONE.lock();
        gone.push_back(Box::new(Husk(whole)));
        if gone.len() > KEPT {
            gone.pop_front();
        }
        own
    }
}

impl<C: Uobject + 'static, T: 'static> Reserved<C, T> {
    /// The address the object will have.
    pub(crate) fn address(&self) -> usize {
        self.memory.as_ptr().addr() + Object::<C, T>::C_AT
    }

    /// Creates the object, after `finish` has completed the C part.
    pub(crate) fn create(self, finish: impl FnOnce(&mut C), own: T) -> *mut C {
        let Self { memory, mut c } = self;
        finish(&mut c);
        Object::into_c(Box::write(memory, Object::new(c, own)))
    }
}
