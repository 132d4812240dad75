//! What a process has of CUDA, from `cuInit` on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::context::Contexts;
use crate::event::Event;
use crate::handles::Handles;
use crate::machine::{self, Device};
use crate::pool::Pools;
use crate::space::Space;
use crate::status::{Refusal, Result, Status, invalid};
use crate::stream::Stream;
use crate::vmm::Allocation;

/// All of it. Made once, and never freed: other threads may be in a call when the process ends.
pub(crate) struct Process {
    /// The GPUs that the program is to see, in its order.
    devices: Vec<&'static Device>,
    pub(crate) space: Space,
    pub(crate) contexts: Contexts,
    pub(crate) streams: Handles<Stream>,
    pub(crate) events: Handles<Event>,
    pub(crate) allocations: Handles<Allocation>,
    pub(crate) pools: Pools,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Whether this process is a child of one that had called `cuInit`.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// `cuInit`: makes what a process has, if that was not done yet.
///
/// # Errors
///
/// No GPU; or a child of a process that had one.
pub(crate) fn init() -> Result<&'static Process> {
    match get() {
        Err(refusal) if refusal.status == Status::NotInitialized && !is_child() => {}
        other => return other,
    }
    let given = environment::var("CUDA_VISIBLE_DEVICES");
    let hidden = environment::is_empty("CUDA_VISIBLE_DEVICES").then(String::new);
    let visible = machine::visible(hidden.or(given).as_deref());
    if visible.is_empty() {
        return Err(Refusal::new(Status::NoDevice, "there is no GPU that this program may see"));
    }
    let devices: Vec<_> = visible.into_iter().map(|index| &machine::devices()[index]).collect();
    let new = Box::new(Process {
        space: Space::new(&devices)?,
        contexts: Contexts::new(devices.len()),
        streams: Handles::new(1),
        events: Handles::new(2),
        allocations: Handles::new(3),
        pools: Pools::new(devices.len()),
        devices,
    });
    let new = Box::into_raw(new);
    // ORDERING: pairs with the acquire in `get`.
    let won =
        PROCESS.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    if won.is_err() {
        // SAFETY: nobody else has seen it. (Another thread was first.)
        drop(unsafe { Box::from_raw(new) });
    } else {
        // SAFETY: the function is an atomic store, which a child may do.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if let Ok(process) = get() {
            crate::peer::register(process);
            umem::guard::explain_strays(crate::stray::explain);
        }
    }
    get()
}

/// What the process has.
///
/// # Errors
///
/// `cuInit` was not called in it.
pub(crate) fn get() -> Result<&'static Process> {
    // ORDERING: pairs with the release in `init`.
    let process = PROCESS.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    match unsafe { process.as_ref() } {
        Some(process) if !is_child() => Ok(process),
        Some(_) => Err(Refusal::new(
            Status::NotInitialized,
            "cuInit was called before this process was forked: a child cannot use its parent's GPU",
        )),
        None => Err(Refusal::new(Status::NotInitialized, "cuInit was not called")),
    }
}

/// The same in a child, too: whose addresses it still has.
pub(crate) fn even_in_child() -> Option<&'static Process> {
    // ORDERING: pairs with the release in `init`.
    let process = PROCESS.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    unsafe { process.as_ref() }
}

fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

impl Process {
    /// The GPUs.
    pub(crate) fn devices(&self) -> &[&'static Device] {
        &self.devices
    }

    /// The number of a GPU that a program passes.
    ///
    /// # Errors
    ///
    /// There is none of that number.
    pub(crate) fn ordinal(&self, number: i32) -> Result<usize> {
        let ordinal = usize::try_from(number).ok().filter(|ordinal| *ordinal < self.devices.len());
        ordinal.ok_or_else(|| {
            let count = self.devices.len();
            Refusal::new(Status::InvalidDevice, format!("device {number}: there are {count}"))
        })
    }

    /// The GPU of a number that a program passes.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(crate) fn device(&self, number: i32) -> Result<&'static Device> {
        Ok(self.devices[self.ordinal(number)?])
    }

    /// The event of this handle.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(crate) fn event(&self, handle: u64) -> Result<Arc<Event>> {
        let gone = || Refusal::new(Status::InvalidHandle, format!("{handle:#x} is no event"));
        self.events.get(handle).ok_or_else(gone)
    }

    /// The memory of this handle.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(crate) fn allocation(&self, handle: u64) -> Result<Arc<Allocation>> {
        let gone = || invalid(format!("{handle:#x} is no handle of memory"));
        self.allocations.get(handle).ok_or_else(gone)
    }
}
