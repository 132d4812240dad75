//! Open devices, as the library has them.

use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use descriptors::Known;
use device::ids::CtxId;
use device::{Hca, Kind, Refusal};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use threads::whole::Mutex;

use crate::abi::object::{Object, bad};
use crate::abi::pointers::Pointers;
use crate::abi::types::context::Context;
use crate::abi::types::ops::VerbsContext;

/// An open device, as the library knows it.
pub(crate) struct Open {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: CtxId,
    /// The last context of an opening closes it.
    _opening: Arc<Opening>,
    /// A descriptor that programs may duplicate, pass and import.
    _cmd_fd: Known,
}

type ContextObject = Object<VerbsContext, Open>;

/// The contexts that programs hold. A context lies inside of its object, at a distance from the
/// beginning that no other object has, so the word before a pointer does not say whether it is one.
static CONTEXTS: Pointers = Pointers::new();

/// The library's part of a context.
///
/// # Safety
///
/// `context` is from [`add`] and is not closed before the result is last used.
pub(crate) unsafe fn opened<'a>(context: *mut Context) -> &'a Open {
    // SAFETY: the caller's promise: the context lies within one of ours.
    let whole = unsafe { whole(context) };
    // SAFETY: as above.
    unsafe { ContextObject::own(whole) }
}

/// The structure around the part of it that programs hold.
unsafe fn whole(context: *mut Context) -> *mut VerbsContext {
    if !CONTEXTS.has(context.addr()) {
        bad(format!("{context:p} is no open context"));
    }
    // SAFETY: the caller promises that the context lies within one of ours.
    unsafe { context.byte_sub(offset_of!(VerbsContext, context)) }.cast()
}

/// Makes the context of a device that is open, with the descriptor that becomes its own.
pub(crate) fn add(c: VerbsContext, opening: Arc<Opening>, cmd_fd: Known) -> *mut Context {
    let (hca, id) = (Arc::clone(&opening.hca), opening.id);
    let whole = ContextObject::create(c, Open { hca, id, _opening: opening, _cmd_fd: cmd_fd });
    // SAFETY: the object was created just now.
    let context = unsafe { &raw mut (*whole).context };
    CONTEXTS.add(context.addr());
    context
}

/// Closes a context.
///
/// # Safety
///
/// It is from [`add`], and nobody uses it now or later.
pub(crate) unsafe fn remove(context: *mut Context) {
    // SAFETY: the caller's promise.
    let whole = unsafe { whole(context) };
    CONTEXTS.remove(context.addr());
    // SAFETY: the caller's promise.
    drop(unsafe { ContextObject::destroy(whole) });
}

/// An open device, however many contexts share it. The last of them closes it.
pub(crate) struct Opening {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: CtxId,
    /// The pointer of the device that was opened, as an address.
    pub(crate) device: usize,
}

/// What the descriptors of an opening are recognised by, of which there may be many: device and
/// inode.
type File = (u64, u64);

/// What is open in this process.
static OPENINGS: Mutex<Vec<(File, Weak<Opening>)>> = Mutex::new(Vec::new());

/// Creates the descriptor for a device that was opened, and remembers whose it is.
pub(crate) fn register(
    hca: Arc<Hca>,
    id: CtxId,
    device: usize,
) -> Result<(Arc<Opening>, Known), Refusal> {
    let failed = |error| Refusal::new(Kind::NoMemory, format!("ibv_open_device: {error}"));
    let fd = Known::new(memfd_create("peerdma-context", MemfdFlags::CLOEXEC).map_err(failed)?);
    let stat = fstat(&fd).map_err(failed)?;
    let opening = Arc::new(Opening { hca, id, device });
    let mut openings = OPENINGS.lock();
    openings.retain(|(_, known)| known.strong_count() > 0);
    openings.push(((stat.st_dev, stat.st_ino), Arc::downgrade(&opening)));
    drop(openings);
    Ok((opening, fd))
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.hca.close_ctx(self.id);
    }
}

/// The device that a descriptor stands for.
pub(crate) fn find_opening(fd: BorrowedFd<'_>) -> Option<Arc<Opening>> {
    let stat = fstat(fd).ok()?;
    let file = (stat.st_dev, stat.st_ino);
    let openings = OPENINGS.lock();
    let known = openings.iter().filter(|(known, _)| *known == file);
    known.filter_map(|(_, opening)| opening.upgrade()).next()
}
