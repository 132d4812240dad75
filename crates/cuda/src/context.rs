//! Contexts: which GPU a thread works on.

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
    /// The version of the interface by which it was made.
    pub(crate) version: u32,
    is_primary: bool,
    is_destroyed: AtomicBool,
    /// GPUs whose memory it was given access to.
    pub(crate) peers: Mutex<Vec<usize>>,
    /// The stream that has no handle: work in it and in the others waits for each other.
    pub(crate) legacy: Arc<Stream>,
}

/// The context that all users of a GPU share.
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

/// Flags that a context may have: how to wait, host memory mapped, stacks kept, core dumps, and
/// [`SYNC_MEMOPS`].
const FLAGS: u32 = 0xff;

/// How to wait: one of automatic, spin, yield, block.
const SCHEDULING: u32 = 0x07;

impl Contexts {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            handles: Handles::new(0),
            primaries: (0..devices).map(|_| Mutex::default()).collect(),
        }
    }

    /// Makes a context.
    ///
    /// # Errors
    ///
    /// Flags that are none.
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
    /// It is none, or was destroyed.
    pub(crate) fn find(&self, handle: u64) -> Result<Arc<Context>> {
        match self.handles.find(handle) {
            Found::Live(context) => Ok(context),
            Found::Gone => Err(destroyed(handle)),
            Found::Unknown => {
                Err(Refusal::new(Status::InvalidContext, format!("{handle:#x} is no context")))
            }
        }
    }

    /// The context of a handle, or the thread's own for none.
    ///
    /// # Errors
    ///
    /// It is none, or was destroyed, or the thread has none.
    pub(crate) fn find_or_current(&self, handle: u64) -> Result<Arc<Context>> {
        if handle == 0 { current() } else { self.find(handle) }
    }

    /// The context of a handle, which is to end.
    ///
    /// # Errors
    ///
    /// It is none, or is the one that all share.
    pub(crate) fn find_own(&self, handle: u64) -> Result<Arc<Context>> {
        let context = self.find(handle)?;
        if context.is_primary {
            return Err(Refusal::new(
                Status::InvalidContext,
                "a primary context is released, and not destroyed",
            ));
        }
        Ok(context)
    }

    /// Its handle names nothing from now on.
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

    /// One user less. The last one is given it, to end it.
    ///
    /// # Errors
    ///
    /// It has no user.
    pub(crate) fn release_primary(&self, device: usize) -> Result<Option<Arc<Context>>> {
        let mut primary = self.primary(device);
        primary.users = primary.users.checked_sub(1).ok_or_else(|| {
            Refusal::new(Status::InvalidContext, "the primary context is not retained by anybody")
        })?;
        Ok(if primary.users == 0 { primary.context.take() } else { None })
    }

    /// Takes the primary context, if it is there, whoever uses it: to end it.
    pub(crate) fn reset_primary(&self, device: usize) -> Option<Arc<Context>> {
        let mut primary = self.primary(device);
        primary.flags = 0;
        let context = primary.context.take();
        if context.is_some() {
            primary.users = 0;
        }
        context
    }

    /// The primary context, if it is there.
    pub(crate) fn primary_if_active(&self, device: usize) -> Option<Arc<Context>> {
        self.primary(device).context.clone()
    }

    /// Its flags, and whether it is there.
    pub(crate) fn primary_state(&self, device: usize) -> (u32, bool) {
        let primary = self.primary(device);
        match &primary.context {
            Some(context) => (context.flags.load(Ordering::Relaxed), true),
            None => (primary.flags, false),
        }
    }

    /// Sets the flags of the primary context. One that is there is refused if `fails_if_active`,
    /// else changed.
    ///
    /// # Errors
    ///
    /// Flags that are none; or it is there.
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
                    "the primary context is in use: its flags stay",
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
    /// Whether all its copies are synchronous.
    pub(crate) fn syncs_memops(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & SYNC_MEMOPS != 0
    }

    /// Sets its flags.
    ///
    /// # Errors
    ///
    /// Flags that are none.
    pub(crate) fn set_flags(&self, flags: u32) -> Result<()> {
        check_flags(flags)?;
        self.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    /// Whether it is one that all users of its GPU share.
    pub(crate) fn is_primary(&self) -> bool {
        self.is_primary
    }

    /// Ends it. Whether it had not ended before.
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

/// The thread's context, be it destroyed or not.
pub(crate) fn top() -> Option<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow().last().cloned()).ok().flatten()
}

/// Makes a context the thread's, on top of the others.
pub(crate) fn push(context: Arc<Context>) {
    let _ = STACK.try_with(|stack| stack.borrow_mut().push(context));
}

/// Takes the top one away.
///
/// # Errors
///
/// There is none.
pub(crate) fn pop() -> Result<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow_mut().pop()).ok().flatten().ok_or_else(none)
}

/// Replaces the top one, or takes it away.
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
        return Err(invalid(format!("flags of a context: {flags:#x}")));
    }
    Ok(())
}
