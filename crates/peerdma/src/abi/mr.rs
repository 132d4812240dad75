//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use device::ids::{MrId, PdId};
use device::{Hca, Kind, MrAdvice, MrInfo, Refusal, Rereg};
use iba::Access;
use libc::size_t;
use transport::wr::SgList;
use umem::Umem;

use super::boundary::control;
use super::object::{Object, given, same_device};
use super::own::pd::{OwnPd, PdObject};
use super::types::Opaque;
use super::types::mr::{Mr, MrInitAttr};
use super::types::pd::Pd;
use super::types::wr::Sge;
use super::{buf, errno, lists};

/// The library's part of a region.
pub(crate) struct OwnMr {
    hca: Arc<Hca>,
    of: Named,
    /// Whether the library allows its re-registration (`ibv_rereg_mr(3)`): not one of a dma-buf.
    can_rereg: bool,
}

/// What an `ibv_mr` stands for.
#[derive(Clone, Copy)]
enum Named {
    /// A region.
    Region(MrId),
    /// The null region, which has no memory; its protection domain counts it.
    Null(PdId),
}

pub(crate) type MrObject = Object<Mr, OwnMr>;

const PAGE: usize = 4096;

/// What an `ibv_mr` says about its memory.
pub(crate) struct Place {
    pub(crate) addr: *mut c_void,
    pub(crate) length: size_t,
    pub(crate) can_rereg: bool,
}

/// Creates the structure for a region of the engine.
pub(crate) fn create(pd: *mut Pd, own: &OwnPd, info: MrInfo, place: Place) -> *mut Mr {
    let Place { addr, length, can_rereg } = place;
    // SAFETY: the PD is the one that `own` belongs to.
    let context = unsafe { (*pd).context };
    let handle = info.id.handle();
    let c = Mr { context, pd, addr, length, handle, lkey: info.lkey, rkey: info.rkey };
    MrObject::create(c, OwnMr { hca: Arc::clone(&own.hca), of: Named::Region(info.id), can_rereg })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut Pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut Mr {
    // SAFETY: the same contract.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access as c_uint) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    // SAFETY: the same contract.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    control("ibv_reg_mr", ptr::null_mut(), || {
        // SAFETY: contract: the PD is one of ours.
        let own = unsafe { PdObject::lookup(pd) };
        let access = Access::from_bits_retain(access);
        // SAFETY: contract: the program lends the memory until it deregisters it.
        let info = unsafe { register(&own.hca, own.id, addr, length, iova, access) };
        errno::or_null(
            info.map(|info| create(pd, own, info, Place { addr, length, can_rereg: true })),
        )
    })
}

/// Registers memory of the program, or of a device whose memory is mapped there.
///
/// # Safety
///
/// The program lends the memory, to be read and written at any moment by peers that have the key,
/// until the region is deregistered.
pub(super) unsafe fn register(
    hca: &Arc<Hca>,
    pd: PdId,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: Access,
) -> Result<MrInfo, Refusal> {
    if addr.addr() % PAGE != iova as usize % PAGE {
        let what = format!("ibv_reg_mr: {addr:p} and iova {iova:#x} differ within the page");
        return Err(Refusal::new(Kind::Invalid, what));
    }
    let (start, span) = (addr.addr() as u64, length as u64);
    hca.alive()?.check_reg_mr(start, span, iova, access)?;
    // Pages that are faulted in on demand need not be present yet.
    if !access.contains(Access::ON_DEMAND) {
        // A range in a device's arena is for the device to judge: the CPU may have no access to it.
        if !dmabuf::peer::is_in_arena(start, span) {
            check_mapped(addr, length, access)?;
        }
        if let Some(info) = hca.reg_peer_mr(pd, start, span, iova, access)? {
            return Ok(info);
        }
    }
    hca.alive()?.reg_mr(pd, user_memory(addr, length), iova, access)
}

fn user_memory(addr: *mut c_void, length: size_t) -> Umem {
    // SAFETY: contract: a program that registers memory lends it to the device, to be read and
    // written at any moment by peers that have the key, until it deregisters it.
    unsafe { Umem::user(addr.addr(), length as u64) }
}

/// Refuses memory that is not mapped, as a kernel that pins pages does. Pages that are unmapped
/// later are found when they are used.
fn check_mapped(addr: *mut c_void, length: size_t, access: Access) -> Result<(), Refusal> {
    let fault = |what: &str| {
        let what = format!("ibv_reg_mr: {length:#x} bytes at {addr:p}: {what}");
        Err(Refusal::new(Kind::BadAddress, what))
    };
    let start = addr.addr() / PAGE * PAGE;
    // The engine has checked the end of the range.
    let span = addr.addr().saturating_add(length) - start;
    let start = ptr::without_provenance_mut(start);
    // SAFETY: MS_ASYNC changes nothing; it only looks whether the range is mapped.
    if unsafe { libc::msync(start, span, libc::MS_ASYNC) } != 0 {
        return fault("not all of it is mapped");
    }
    // One page tells a constant from a buffer: apart from odd programs, a region is writable as a
    // whole or not at all.
    if access.contains(Access::LOCAL_WRITE) && !is_writable(start) {
        return fault("it is not writable");
    }
    Ok(())
}

/// Refuses device memory, onto which a region cannot be re-registered.
fn check_plain(addr: *mut c_void, length: size_t) -> Result<(), Refusal> {
    let Some(found) = dmabuf::peer::owner_of(addr.addr() as u64, length as u64) else {
        return Ok(());
    };
    let what = format!("ibv_rereg_mr: {} is {}: register a new region", found.mapping, found.owner);
    Err(Refusal::new(Kind::BadAddress, what))
}

/// Whether the kernel would let the page be written. Unknown counts as yes.
fn is_writable(page: *mut c_void) -> bool {
    let populate = |page: *mut c_void| {
        // SAFETY: this brings a page in and changes no byte of it.
        let done = unsafe { libc::madvise(page, PAGE, libc::MADV_POPULATE_WRITE) };
        (done == 0, io::Error::last_os_error().raw_os_error())
    };
    match populate(page) {
        (true, _) => true,
        (false, Some(libc::EFAULT)) => false,
        // Read-only, or a kernel before 5.14, which does not know this advice: a try on our own
        // stack tells the two apart.
        (false, Some(libc::EINVAL)) => {
            let here = 0u8;
            let own = (&raw const here).addr() / PAGE * PAGE;
            !populate(ptr::without_provenance_mut(own)).0
        }
        _ => true,
    }
}

pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    length: size_t,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    control("ibv_reg_dmabuf_mr", ptr::null_mut(), || {
        // SAFETY: contract: the PD is one of ours.
        let own = unsafe { PdObject::lookup(pd) };
        let access = Access::from_bits_retain(access as c_uint);
        let fd = open_descriptor(fd);
        let info = own.hca.reg_dmabuf_mr(own.id, fd, offset, length as u64, iova, access);
        errno::or_null(info.map(|info| {
            // The address of such a region is its offset in the buffer (`docs/semantics.md` 2.1).
            let addr = ptr::without_provenance_mut(offset as usize);
            create(pd, own, info, Place { addr, length, can_rereg: false })
        }))
    })
}

/// A descriptor of the program, if it is open.
pub(crate) fn open_descriptor<'fd>(fd: c_int) -> Option<BorrowedFd<'fd>> {
    // SAFETY: asking for the flags of a number is harmless, whatever it is.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: it is open, and the program keeps it open during the call that it passed it to.
    Some(unsafe { BorrowedFd::borrow_raw(fd) })
}

pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut Pd) -> *mut Mr {
    control("ibv_alloc_null_mr", ptr::null_mut(), || {
        // SAFETY: contract: the PD is one of ours.
        let own = unsafe { PdObject::lookup(pd) };
        errno::or_null(own.hca.lock().alloc_null_mr(own.id).map(|key| {
            // SAFETY: contract: the PD is alive.
            let context = unsafe { (*pd).context };
            let (addr, length) = (ptr::null_mut(), size_t::MAX);
            let c = Mr { context, pd, addr, length, handle: 0, lkey: key, rkey: key };
            let hca = Arc::clone(&own.hca);
            MrObject::create(c, OwnMr { hca, of: Named::Null(own.id), can_rereg: false })
        }))
    })
}

/// The most elements in a list of [`advise_mr`]: as many as fit in one attribute of a command to
/// the kernel, whose length has 16 bits (`struct ib_uverbs_attr`).
const MOST_ADVISED: u32 = u16::MAX as u32 / size_of::<Sge>() as u32;

/// `IBV_ADVISE_MR_FLAG_FLUSH`: wait until it is done, which it is here when the call returns.
const FLUSH: u32 = 1;

pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut Pd,
    advice: u32,
    flags: u32,
    list: *mut Sge,
    count: u32,
) -> c_int {
    control("ibv_advise_mr", libc::EIO, || {
        // SAFETY: contract: the PD is one of ours.
        let own = unsafe { PdObject::lookup(pd) };
        let refuse = |kind, what| Err(Refusal::new(kind, format!("ibv_advise_mr: {what}")));
        let advice = match advice {
            0 => MrAdvice::Prefetch,
            1 => MrAdvice::PrefetchWrite,
            2 => MrAdvice::PrefetchNoFault,
            other => {
                let what = format!("there is no advice {other}");
                return errno::or_errno(refuse(Kind::NotSupported, what));
            }
        };
        if flags & !FLUSH != 0 || count == 0 || count > MOST_ADVISED || list.is_null() {
            let what = format!("flags {flags:#x}, {count} elements");
            return errno::or_errno(refuse(Kind::Invalid, what));
        }
        let element = |place: u32| {
            // SAFETY: contract: the list has `count` elements.
            let c = unsafe { list.add(place as usize) };
            // SAFETY: as above.
            lists::sge(unsafe { &*c })
        };
        let sges: SgList = (0..count).map(element).collect();
        errno::or_errno(
            own.hca.alive().and_then(|mut engine| engine.advise_mr(own.id, advice, &sges)),
        )
    })
}

/// Bits of [`MrInitAttr::comp_mask`].
pub(crate) mod mask {
    pub(crate) const IOVA: u64 = 1;
    pub(crate) const ADDR: u64 = 1 << 1;
    pub(crate) const FD: u64 = 1 << 2;
    pub(crate) const FD_OFFSET: u64 = 1 << 3;
    pub(crate) const BUF: u64 = 1 << 5;
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut Pd, attr: *mut MrInitAttr) -> *mut Mr {
    use mask::{ADDR, BUF, FD, FD_OFFSET, IOVA};
    control("ibv_reg_mr_ex", ptr::null_mut(), || {
        // SAFETY: contract: the attributes are valid; only those that the mask names are read.
        let attr = unsafe { given(attr) };
        let has = |bit| attr.comp_mask & bit != 0;
        let refused = |errno| {
            errno::set(errno);
            ptr::null_mut()
        };
        if attr.comp_mask & !(IOVA | ADDR | FD | FD_OFFSET | BUF) != 0 {
            return refused(libc::EOPNOTSUPP);
        }
        // SAFETY: contract: the PD is one of ours.
        let _ = unsafe { PdObject::lookup(pd) };
        if has(BUF) {
            if has(FD) || has(FD_OFFSET) || !has(ADDR) {
                return refused(libc::EINVAL);
            }
            // SAFETY: contract: the mask says that the handle is valid.
            let checked = unsafe { buf::check(pd, attr.buf, attr.addr, attr.length) };
            if let Err(refusal) = checked {
                return refused(errno::of(refusal.kind()));
            }
        }
        if has(FD) {
            if !has(FD_OFFSET) || !has(IOVA) || has(ADDR) {
                return refused(libc::EINVAL);
            }
            // SAFETY: the same contract.
            return unsafe {
                ibv_reg_dmabuf_mr(pd, attr.fd_offset, attr.length, attr.iova, attr.fd, attr.access)
            };
        }
        if !has(ADDR) || has(FD_OFFSET) {
            return refused(libc::EINVAL);
        }
        let iova = if has(IOVA) { attr.iova } else { attr.addr.addr() as u64 };
        // SAFETY: the same contract.
        unsafe { ibv_reg_mr_iova2(pd, attr.addr, attr.length, iova, attr.access as c_uint) }
    })
}

/// Bits of the flags of [`ibv_rereg_mr`].
mod change {
    use std::ffi::c_int;

    pub(super) const TRANSLATION: c_int = 1;
    pub(super) const PD: c_int = 1 << 1;
    pub(super) const ACCESS: c_int = 1 << 2;
}

/// `IBV_REREG_MR_ERR_INPUT`: the region is as it was.
const ERR_INPUT: c_int = -1;
/// `IBV_REREG_MR_ERR_CMD`: the region must not be used.
const ERR_CMD: c_int = -4;

pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut Pd,
    buf: *mut Opaque,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut Mr {
    let mut attr = MrInitAttr {
        length,
        access,
        comp_mask: mask::BUF | mask::ADDR,
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: ptr::null_mut(),
        buf,
    };
    // SAFETY: the same contract.
    unsafe { ibv_reg_mr_ex(pd, &raw mut attr) }
}

pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut Mr,
    flags: c_int,
    pd: *mut Pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    use change::{ACCESS, PD, TRANSLATION};
    control("ibv_rereg_mr", ERR_CMD, || {
        // SAFETY: contract: the region is one of ours.
        let own = unsafe { MrObject::lookup(mr) };
        let has = |bit| flags & bit != 0;
        if !own.can_rereg
            || flags & !(TRANSLATION | PD | ACCESS) != 0
            || has(TRANSLATION) && (length == 0 || addr.is_null())
            || access != 0 && !has(ACCESS)
        {
            errno::set(libc::EINVAL);
            return ERR_INPUT;
        }
        let Named::Region(id) = own.of else {
            errno::set(libc::EINVAL);
            return ERR_INPUT;
        };
        let access = Access::from_bits_retain(access as c_uint);
        let mut change = Rereg { access: has(ACCESS).then_some(access), ..Rereg::default() };
        if has(PD) {
            // SAFETY: contract: the PD is one of ours if the flag is set.
            let new = unsafe { PdObject::lookup(pd) };
            same_device(&own.hca, &new.hca, "the protection domain");
            change.pd = Some(new.id);
        }
        if has(TRANSLATION) {
            change.translation = Some((user_memory(addr, length), addr.addr() as u64));
        }
        let checked = || {
            let access = {
                let mut engine = own.hca.alive()?;
                engine.check_rereg(id, &change)?;
                change.access.or(engine.mr_access(id)).unwrap_or_default()
            };
            // Pages that are faulted in on demand need not be present yet.
            if has(TRANSLATION) && !access.contains(Access::ON_DEMAND) {
                check_mapped(addr, length, access)?;
            }
            if has(TRANSLATION) { check_plain(addr, length) } else { Ok(()) }
        };
        let info = match checked().and_then(|()| own.hca.rereg_mr(id, change.clone())) {
            Ok(info) => info,
            Err(refusal) => {
                errno::set(errno::of(refusal.kind()));
                return ERR_CMD;
            }
        };
        // SAFETY: contract: the region is alive, and the program does not use it during this call.
        let c = unsafe { &mut *mr };
        (c.lkey, c.rkey) = (info.lkey, info.rkey);
        if has(PD) {
            c.pd = pd;
        }
        if has(TRANSLATION) {
            (c.addr, c.length) = (addr, length);
        }
        0
    })
}

pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    control("ibv_dereg_mr", libc::EIO, || {
        // SAFETY: contract: the region is one of ours.
        let own = unsafe { MrObject::lookup(mr) };
        let done = match own.of {
            Named::Region(id) => own.hca.dereg_mr(id),
            Named::Null(pd) => own.hca.lock().free_null_mr(pd),
        };
        if let Err(refusal) = done {
            return errno::of(refusal.kind());
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { MrObject::destroy(mr) });
        0
    })
}
