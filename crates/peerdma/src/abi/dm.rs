//! Device memory. Programs call all of it through pointers in the context and in the block itself.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::ids::DmId;
use device::{Hca, Kind, Refusal};
use iba::Access;
use libc::size_t;
use rustix::fs::OFlags;

use super::boundary::control;
use super::errno;
use super::mr::{self, Place};
use super::object::{Object, bad, given, same_device};
use super::own::context::opened;
use super::own::pd::PdObject;
use super::types::context::Context;
use super::types::dm::{AllocDmAttr, Dm};
use super::types::mr::Mr;
use super::types::pd::Pd;

/// The library's part of a block of device memory.
pub(crate) struct OwnDm {
    hca: Arc<Hca>,
    id: DmId,
}

pub(crate) type DmObject = Object<Dm, OwnDm>;

/// `IBV_DM_MASK_HANDLE`: the handle is valid.
const MASK_HANDLE: u32 = 1;

const WORD: usize = size_of::<u32>();

pub(crate) unsafe extern "C" fn alloc_dm(context: *mut Context, attr: *mut AllocDmAttr) -> *mut Dm {
    control("ibv_alloc_dm", ptr::null_mut(), || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        if attr.comp_mask != 0 {
            errno::set(libc::EINVAL);
            return ptr::null_mut();
        }
        let block = open.hca.alive().and_then(|mut engine| {
            engine.alloc_dm(open.id, attr.length as u64, attr.log_align_req)
        });
        errno::or_null(block.map(|id| create(context, &open.hca, id)))
    })
}

/// Creates the structure for a block of the engine.
pub(crate) fn create(context: *mut Context, hca: &Arc<Hca>, id: DmId) -> *mut Dm {
    let c = Dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: MASK_HANDLE,
        handle: id.handle(),
    };
    DmObject::create(c, OwnDm { hca: Arc::clone(hca), id })
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut Dm) -> c_int {
    control("ibv_free_dm", libc::EIO, || {
        // SAFETY: contract: the block is one of ours.
        let own = unsafe { DmObject::lookup(dm) };
        if let Err(refusal) = own.hca.free_dm(own.id) {
            return errno::of(refusal.kind());
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { DmObject::destroy(dm) });
        0
    })
}

pub(crate) unsafe extern "C" fn ibv_dm_export_dmabuf_fd(dm: *mut Dm) -> c_int {
    control("ibv_dm_export_dmabuf_fd", -1, || {
        // SAFETY: contract: the block is one of ours.
        let own = unsafe { DmObject::lookup(dm) };
        let exported = own.hca.export_dm(own.id).and_then(|buffer| {
            let failed =
                |error| Refusal::new(Kind::Io, format!("ibv_dm_export_dmabuf_fd: {error}"));
            dmabuf::give(buffer, OFlags::RDWR | OFlags::CLOEXEC).map_err(failed)
        });
        match exported {
            Ok(fd) => fd.into_raw_fd(),
            Err(refusal) => {
                errno::set(errno::of(refusal.kind()));
                -1
            }
        }
    })
}

pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut Pd,
    dm: *mut Dm,
    offset: u64,
    length: size_t,
    access: c_uint,
) -> *mut Mr {
    control("ibv_reg_dm_mr", ptr::null_mut(), || {
        // SAFETY: contract: the PD is one of ours.
        let own = unsafe { PdObject::lookup(pd) };
        // SAFETY: contract: the block is one of ours.
        let block = unsafe { DmObject::lookup(dm) };
        same_device(&own.hca, &block.hca, "the device memory");
        let access = Access::from_bits_retain(access);
        let info = own.hca.alive().and_then(|mut engine| {
            engine.reg_dm_mr(own.id, block.id, offset, length as u64, access)
        });
        errno::or_null(info.map(|info| {
            // Device memory has no address in the program.
            let place = Place { addr: ptr::null_mut(), length, can_rereg: true };
            mr::create(pd, own, info, place)
        }))
    })
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut Dm,
    offset: u64,
    host: *const c_void,
    length: size_t,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { copy("ibv_memcpy_to_dm", dm, offset, host.cast_mut(), length, Direction::To) }
}

unsafe extern "C" fn memcpy_from_dm(
    host: *mut c_void,
    dm: *mut Dm,
    offset: u64,
    length: size_t,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { copy("ibv_memcpy_from_dm", dm, offset, host, length, Direction::From) }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    To,
    From,
}

/// Copies in ascending order, each word in one access, as mlx5 does (`docs/semantics.md` 3).
unsafe fn copy(
    verb: &'static str,
    dm: *mut Dm,
    offset: u64,
    host: *mut c_void,
    length: size_t,
    direction: Direction,
) -> c_int {
    control(verb, libc::EIO, || {
        // SAFETY: contract: the block is one of ours.
        let own = unsafe { DmObject::own(dm) };
        if length > 0 && host.is_null() {
            bad("no buffer in the program".to_owned());
        }
        // A separate statement, so that the engine is not locked while bytes are copied.
        let memory =
            own.hca.alive().and_then(|mut engine| engine.dm_memory(own.id, offset, length as u64));
        errno::or_errno(memory.and_then(|memory| {
            let memory = memory.foreign();
            let faulty = |fault| Refusal::new(Kind::BadAddress, format!("{verb}: {fault}"));
            for at in (0..length).step_by(WORD) {
                let word = memory.atomic_u32(offset as usize + at).map_err(faulty)?;
                // SAFETY: contract: the program's buffer has `length` bytes, a multiple of the
                // word.
                let host = unsafe { host.byte_add(at) }.cast::<u32>();
                if direction == Direction::To {
                    // SAFETY: as above; the program's buffer need not be aligned.
                    let value = unsafe { host.read_unaligned() };
                    word.store(value, Ordering::Relaxed);
                } else {
                    // SAFETY: as above.
                    unsafe { host.write_unaligned(word.load(Ordering::Relaxed)) };
                }
            }
            Ok(())
        }))
    })
}
