//! Contexts: the GPU that a thread works on.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::status::{Refusal, Result, Status, invalid};
use crate::stream::Stream;
use umd::handles::{Found, Handles};

/// All contexts of a process.
pub(crate) struct Contexts {
    handles: Handles<Context>,
    primaries: Vec<Mutex<Primary>>,
}

/// A context.
pub(crate) struct Context {
    pub(crate) handle: u64,
    /// Never used twice.
    pub(crate) id: u64,
    /// The number of its GPU.
    pub(crate) device: usize,
    pub(crate) flags: AtomicU32,
    /// The version of the API that created it.
    pub(crate) version: u32,
    is_primary: bool,
    is_destroyed: AtomicBool,
    /// GPUs whose memory it may access.
    pub(crate) peers: Mutex<Vec<usize>>,
    /// The legacy default stream, which has no handle: it and the blocking streams wait for each
    /// other.
    pub(crate) legacy: Arc<Stream>,
}

/// The primary context of a GPU, which all its users share.
#[derive(Default)]
struct Primary {
    users: u32,
    flags: u32,
    context: Option<Arc<Context>>,
}

thread_local! {
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

/// Make all copies of this context synchronous.
#[doc(alias = "CU_CTX_SYNC_MEMOPS")]
pub(crate) const SYNC_MEMOPS: u32 = 0x80;

/// Flags of a context: scheduling, mapped host memory, stacks kept, core dumps, and
/// [`SYNC_MEMOPS`].
const FLAGS: u32 = 0xff;

/// How a thread waits: one of automatic, spin, yield, block.
const SCHEDULING: u32 = 0x07;

impl Contexts {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            handles: Handles::new(0),
            primaries: (0..devices).map(|_| Mutex::default()).collect(),
        }
    }

    /// Creates a context.
    ///
    /// # Errors
    ///
    /// Unknown flags.
    pub(crate) fn create(&self, device: usize, flags: u32, version: u32) -> Result<Arc<Context>> {
        check_flags(flags)?;
        Ok(self.make(device, flags, version, false))
    }

    fn make(&self, device: usize, flags: u32, version: u32, is_primary: bool) -> Arc<Context> {
        self.handles.add(|handle| Context {
            handle,
            id: handle >> 6 & 0xff_ffff_ffff,
            device,
            flags: AtomicU32::new(flags),
            version,
            is_primary,
            is_destroyed: AtomicBool::new(false),
            peers: Mutex::default(),
            legacy: Arc::new(Stream::legacy(handle)),
        })
    }

    /// The context of a handle.
    ///
    /// # Errors
    ///
    /// The handle is not that of a context, or the context was destroyed.
    pub(crate) fn find(&self, handle: u64) -> Result<Arc<Context>> {
        match self.handles.find(handle) {
            Found::Live(context) => Ok(context),
            Found::Gone => Err(destroyed(handle)),
            Found::Unknown => {
                Err(Refusal::new(Status::InvalidContext, format!("{handle:#x} is not a context")))
            }
        }
    }

    /// The context of a handle, or the thread's context for handle 0.
    ///
    /// # Errors
    ///
    /// As [`find`](Self::find); or the thread has no context.
    pub(crate) fn find_or_current(&self, handle: u64) -> Result<Arc<Context>> {
        if handle == 0 { current() } else { self.find(handle) }
    }

    /// The context of a handle, if the program may destroy it.
    ///
    /// # Errors
    ///
    /// The handle is not that of a context, or it is a primary context.
    pub(crate) fn find_own(&self, handle: u64) -> Result<Arc<Context>> {
        let context = self.find(handle)?;
        if context.is_primary {
            return Err(Refusal::new(
                Status::InvalidContext,
                "a primary context cannot be destroyed: release it instead",
            ));
        }
        Ok(context)
    }

    /// Makes the handle of a context invalid.
    pub(crate) fn remove(&self, context: &Context) {
        self.handles.remove(context.handle);
    }

    /// The primary context of a GPU, with one more user.
    pub(crate) fn retain_primary(&self, device: usize) -> Arc<Context> {
        let mut primary = self.primary(device);
        primary.users += 1;
        let flags = primary.flags;
        let make = || self.make(device, flags, 3020, true);
        Arc::clone(primary.context.get_or_insert_with(make))
    }

    /// Drops one user. The caller that was the last user gets the context, to end it.
    ///
    /// # Errors
    ///
    /// It has no user.
    pub(crate) fn release_primary(&self, device: usize) -> Result<Option<Arc<Context>>> {
        let mut primary = self.primary(device);
        primary.users = primary.users.checked_sub(1).ok_or_else(|| {
            Refusal::new(Status::InvalidContext, "the primary context is not retained")
        })?;
        Ok(if primary.users == 0 { primary.context.take() } else { None })
    }

    /// Takes the primary context, if it exists, even while it is in use; the caller must end it.
    pub(crate) fn reset_primary(&self, device: usize) -> Option<Arc<Context>> {
        let mut primary = self.primary(device);
        primary.flags = 0;
        let context = primary.context.take();
        if context.is_some() {
            primary.users = 0;
        }
        context
    }

    /// The primary context, if it exists.
    pub(crate) fn primary_if_active(&self, device: usize) -> Option<Arc<Context>> {
        self.primary(device).context.clone()
    }

    /// Its flags, and whether it exists.
    pub(crate) fn primary_state(&self, device: usize) -> (u32, bool) {
        let primary = self.primary(device);
        match &primary.context {
            Some(context) => (context.flags.load(Ordering::Relaxed), true),
            None => (primary.flags, false),
        }
    }

    /// Sets the flags of the primary context. With `fails_if_active`, an existing context is
    /// refused; otherwise its flags change.
    ///
    /// # Errors
    ///
    /// Unknown flags; or the context exists.
    pub(crate) fn set_primary_flags(
        &self,
        device: usize,
        flags: u32,
        fails_if_active: bool,
    ) -> Result<()> {
        check_flags(flags)?;
        let mut primary = self.primary(device);
        if let Some(context) = &primary.context {
            if fails_if_active {
                return Err(Refusal::new(
                    Status::PrimaryContextActive,
                    "the primary context is in use: its flags cannot be changed",
                ));
            }
            context.flags.store(flags, Ordering::Relaxed);
        }
        primary.flags = flags;
        Ok(())
    }

    fn primary(&self, device: usize) -> MutexGuard<'_, Primary> {
        self.primaries[device].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Whether all copies in it are synchronous.
    pub(crate) fn syncs_memops(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & SYNC_MEMOPS != 0
    }

    /// Sets its flags.
    ///
    /// # Errors
    ///
    /// Unknown flags.
    pub(crate) fn set_flags(&self, flags: u32) -> Result<()> {
        check_flags(flags)?;
        self.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    /// Whether it is a primary context.
    pub(crate) fn is_primary(&self) -> bool {
        self.is_primary
    }

    /// Ends it. Returns false if it had ended before.
    pub(crate) fn end(&self) -> bool {
        !self.is_destroyed.swap(true, Ordering::AcqRel)
    }

    fn check(&self) -> Result<()> {
        if self.is_destroyed.load(Ordering::Acquire) { Err(destroyed(self.handle)) } else { Ok(()) }
    }
}

/// The thread's context.
///
/// # Errors
///
/// It has none, or it was destroyed.
pub(crate) fn current() -> Result<Arc<Context>> {
    let context = top().ok_or_else(none)?;
    context.check()?;
    Ok(context)
}

/// The thread's context, even if it was destroyed.
pub(crate) fn top() -> Option<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow().last().cloned()).ok().flatten()
}

/// Pushes a context onto the thread's stack of contexts.
pub(crate) fn push(context: Arc<Context>) {
    let _ = STACK.try_with(|stack| stack.borrow_mut().push(context));
}

/// Pops the top context.
///
/// # Errors
///
/// The stack is empty.
pub(crate) fn pop() -> Result<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow_mut().pop()).ok().flatten().ok_or_else(none)
}

/// Replaces the top context, or pops it.
pub(crate) fn set(context: Option<Arc<Context>>) {
    let _ = STACK.try_with(|stack| {
        let mut stack = stack.borrow_mut();
        stack.pop();
        stack.extend(context);
    });
}

pub(crate) fn pop_if(context: &Arc<Context>) {
    if top().is_some_and(|top| Arc::ptr_eq(&top, context)) {
        set(None);
    }
}

fn none() -> Refusal {
    Refusal::new(Status::InvalidContext, "the thread has no context")
}

fn destroyed(handle: u64) -> Refusal {
    Refusal::new(Status::ContextIsDestroyed, format!("context {handle:#x} was destroyed"))
}

fn check_flags(flags: u32) -> Result<()> {
    let ways = [0, 1, 2, 4];
    if flags & !FLAGS != 0 || !ways.contains(&(flags & SCHEDULING)) {
        return Err(invalid(format!("flags {flags:#x} of a context")));
    }
    Ok(())
}
