//! Completion counters. What is refused, and with which errno, follows `ibv_create_comp_cntr(3)`
//! and `ibv_qp_attach_comp_cntr(3)`.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use device::ids::CompCntrId;
use device::{CompCntrEntry, CompCntrType, Engine, Hca, Kind, Refusal};
use iba::CompCntrOps;
use libc::size_t;

use super::boundary::{control, data};
use super::errno;
use super::object::{Object, given, room, same_device};
use super::own::context::opened;
use super::own::qp;
use super::types::comp_cntr::{CompCntr, CompCntrCaps, CompCntrInitAttr, QpAttachCompCntrAttr};
use super::types::context::Context;
use super::types::qp::Qp;

/// The library's part of a counter.
struct OwnCompCntr {
    hca: Arc<Hca>,
    id: CompCntrId,
}

type CompCntrObject = Object<CompCntr, OwnCompCntr>;

/// `IBV_COMP_CNTR_TYPE_WRS` and `IBV_COMP_CNTR_TYPE_BYTES`.
const WRS: u32 = 0;
const BYTES: u32 = 1;

pub(crate) unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: *mut Context,
    caps: *mut CompCntrCaps,
    size: size_t,
) -> c_int {
    control("ibv_query_comp_cntr_caps", libc::EIO, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        let caps = room(caps);
        let own = size_of::<CompCntrCaps>();
        if size < own {
            let what = format!("ibv_query_comp_cntr_caps: room for {size} of {own} bytes");
            return errno::of(Refusal::new(Kind::Invalid, what).kind());
        }
        errno::or_errno(open.hca.alive().map(|engine| {
            let answer = CompCntrCaps {
                max_value: u64::MAX,
                max_counters: engine.device_attr().max_comp_cntr,
                supported_qp_attach_ops: CompCntrOps::KNOWN.bits(),
            };
            // A newer program has room for more, which is zeroed. SAFETY: contract: the program has
            // room for `size` bytes.
            unsafe { caps.cast::<u8>().write_bytes(0, size) };
            // SAFETY: as above, and it is no less than the structure.
            unsafe { caps.write(answer) };
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut Context,
    attr: *mut CompCntrInitAttr,
) -> *mut CompCntr {
    control("ibv_create_comp_cntr", ptr::null_mut(), || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        let unsupported = |what: String| {
            errno::or_null(Err(Refusal::new(
                Kind::NotSupported,
                format!("ibv_create_comp_cntr: {what}"),
            )))
        };
        if attr.comp_mask != 0 || attr.flags != 0 {
            return unsupported(format!(
                "comp_mask {:#x}, flags {:#x}",
                attr.comp_mask, attr.flags
            ));
        }
        let kind = match attr.r#type {
            WRS => CompCntrType::Wrs,
            BYTES => CompCntrType::Bytes,
            other => return unsupported(format!("a counter of type {other}")),
        };
        let made = open.hca.alive().and_then(|mut engine| engine.create_comp_cntr(open.id, kind));
        errno::or_null(made.map(|id| {
            let own = OwnCompCntr { hca: Arc::clone(&open.hca), id };
            CompCntrObject::create(CompCntr { context, handle: id.handle() }, own)
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_cntr(cntr: *mut CompCntr) -> c_int {
    control("ibv_destroy_comp_cntr", libc::EIO, || {
        // SAFETY: contract: the counter is one of ours.
        let own = unsafe { CompCntrObject::lookup(cntr) };
        if let Err(refusal) = own.hca.lock().destroy_comp_cntr(own.id) {
            return errno::of(refusal.kind());
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { CompCntrObject::destroy(cntr) });
        0
    })
}

/// Changes a counter.
///
/// # Safety
///
/// The contract of the module `abi`.
unsafe fn change(
    verb: &'static str,
    cntr: *mut CompCntr,
    how: impl FnOnce(&mut Engine, CompCntrId) -> Result<(), Refusal>,
) -> c_int {
    data(verb, libc::EIO, || {
        // SAFETY: contract: the counter is one of ours.
        let own = unsafe { CompCntrObject::own(cntr) };
        errno::or_errno(own.hca.alive().and_then(|mut engine| how(&mut engine, own.id)))
    })
}

pub(crate) unsafe extern "C" fn ibv_set_comp_cntr(cntr: *mut CompCntr, value: u64) -> c_int {
    let set = |engine: &mut Engine, id| engine.set_comp_cntr(id, CompCntrEntry::Comp, value);
    // SAFETY: the same contract.
    unsafe { change("ibv_set_comp_cntr", cntr, set) }
}

pub(crate) unsafe extern "C" fn ibv_set_err_comp_cntr(cntr: *mut CompCntr, value: u64) -> c_int {
    let set = |engine: &mut Engine, id| engine.set_comp_cntr(id, CompCntrEntry::Err, value);
    // SAFETY: the same contract.
    unsafe { change("ibv_set_err_comp_cntr", cntr, set) }
}

pub(crate) unsafe extern "C" fn ibv_inc_comp_cntr(cntr: *mut CompCntr, amount: u64) -> c_int {
    let inc = |engine: &mut Engine, id| engine.inc_comp_cntr(id, CompCntrEntry::Comp, amount);
    // SAFETY: the same contract.
    unsafe { change("ibv_inc_comp_cntr", cntr, inc) }
}

pub(crate) unsafe extern "C" fn ibv_inc_err_comp_cntr(cntr: *mut CompCntr, amount: u64) -> c_int {
    let inc = |engine: &mut Engine, id| engine.inc_comp_cntr(id, CompCntrEntry::Err, amount);
    // SAFETY: the same contract.
    unsafe { change("ibv_inc_err_comp_cntr", cntr, inc) }
}

pub(crate) unsafe extern "C" fn ibv_read_comp_cntr(cntr: *mut CompCntr, to: *mut u64) -> c_int {
    // SAFETY: the same contract.
    unsafe { read("ibv_read_comp_cntr", cntr, CompCntrEntry::Comp, to) }
}

pub(crate) unsafe extern "C" fn ibv_read_err_comp_cntr(cntr: *mut CompCntr, to: *mut u64) -> c_int {
    // SAFETY: the same contract.
    unsafe { read("ibv_read_err_comp_cntr", cntr, CompCntrEntry::Err, to) }
}

/// Reads a value, as a program does while it waits for the value to grow.
///
/// # Safety
///
/// The contract of the module `abi`.
unsafe fn read(
    verb: &'static str,
    cntr: *mut CompCntr,
    entry: CompCntrEntry,
    to: *mut u64,
) -> c_int {
    data(verb, libc::EIO, || {
        // SAFETY: contract: the counter is one of ours.
        let own = unsafe { CompCntrObject::own(cntr) };
        let to = room(to);
        if let Err(refusal) = own.hca.alive().map(drop) {
            return errno::of(refusal.kind());
        }
        let value = own.hca.poll_any().read_comp_cntr(own.id, entry);
        // SAFETY: contract: the program has room for the value.
        errno::or_errno(value.map(|value| unsafe { to.write(value) }))
    })
}

pub(crate) unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut Qp,
    cntr: *mut CompCntr,
    attr: *mut QpAttachCompCntrAttr,
) -> c_int {
    control("ibv_qp_attach_comp_cntr", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let own = unsafe { qp::lookup(qp) };
        // SAFETY: contract: the counter is one of ours.
        let cntr = unsafe { CompCntrObject::lookup(cntr) };
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        same_device(&own.hca, &cntr.hca, "the completion counter");
        if attr.comp_mask != 0 {
            let what = format!("ibv_qp_attach_comp_cntr: comp_mask {:#x}", attr.comp_mask);
            return errno::of(Refusal::new(Kind::Invalid, what).kind());
        }
        let ops = CompCntrOps::from_bits_retain(attr.op_mask);
        let attached =
            own.hca.alive().and_then(|mut engine| engine.attach_comp_cntr(own.id, cntr.id, ops));
        errno::or_errno(attached)
    })
}
